"""What Hydra's grammar refuses gets an override that it reads, and that gives what was meant."""

from __future__ import annotations

import re
import shlex
import subprocess

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import OmegaConf

from pipeline.base.system import override_values
from pipeline.base.system.errors import ConfigError
from pipeline.plan import command_line, override_remedy

TEXTS = (
    *("#1", "a b#c", "it's", 'say "hi"', "f(x)", "<x>", "a&b", "x=y", "a;b", "é", "!x", "^x", "`x`", "^a(b|c)$", "'a"),
    *("https://h/?a=1&b=2", "a\nb", "${x", '"a" b', "{a}", "a>b", "50%&", "(a", "a)", "a]", 'it\'s "both"', "x: #y"),
)
WORDS_OF_THE_PARSER = re.compile(r"<?EOF|EQUAL|extraneous|mismatched|viable|expecting|LexerNo|token recognition")


def explanation(override: str) -> str:
    """What is said of an override that Hydra refuses."""
    with pytest.raises(HydraException) as refused:
        OverridesParser.create().parse_overrides([override])
    text = command_line.explain(refused.value)
    assert "\n" not in text and WORDS_OF_THE_PARSER.search(text) is None
    return text


def proposals(text: str) -> list[str]:
    """The overrides that are proposed, as bash gives them on."""
    words = text.partition("; ")[2]
    parts = re.split(r"(?:, or |, |^)(?:write the \w+ as|for \d+ runs write -m) ", words)[1:]
    script = "\n".join(f"printf '%s\\0' {part}" for part in parts)
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout.split("\0")[:-1]


@pytest.mark.sampled(12)
@pytest.mark.parametrize("text", TEXTS)
def test_a_text_gets_quotes_that_give_it_as_it_was_typed(text):
    *_, proposal = proposals(explanation(f"workload.flags.tag={text}"))
    key, _, value = proposal.partition("=")
    assert key == "workload.flags.tag"
    meant = text.strip('"') if re.fullmatch(r"\"[^\"]*\"", text) else text
    assert OmegaConf.create({"value": override_values.parse(value)}).value == meant


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("value", "meant"),
    [
        ("[a#,b]", ["a#", "b"]),
        ("[a,,b]", ["a", "b"]),
        ("[a,b", ["a", "b"]),
        ("a#,b", ["a#", "b"]),
        ("[a#, 1]", ["a#", 1]),
        ('{"a": 1}', {"a": 1}),
        ('{"a": [1, "b#"], "c": {"d": null}}', None),
        ("{a:1", {"a": 1}),
        ("{a: b#c}", {"a": "b#c"}),
    ],
)
def test_a_list_or_a_map_gets_the_notation_that_hydra_reads(value, meant):
    parsed_values = [
        override_values.parse(proposal.partition("=")[2])
        for proposal in proposals(explanation(f"workload.flags.x={value}"))[:2]
    ]
    assert meant is None or meant in parsed_values


def test_several_values_of_which_one_cannot_be_read_may_be_runs_of_their_own():
    *_, sweep = proposals(explanation("workload.flags.tag=a#,b"))
    assert sweep == "workload.flags.tag='a#',b"
    (override,) = OverridesParser.create().parse_overrides([sweep])
    assert [*override.sweep_string_iterator()] == ["'a#'", "b"]


@pytest.mark.parametrize(
    ("override", "text"),
    [
        ("key", "key has no value; write key=VALUE"),
        ("++key", "++key has no value; write ++key=VALUE"),
        ("a b", "a b cannot be read; write KEY=VALUE without spaces, as in gpu=cpu"),
        ("train.py", "train.py is not KEY=VALUE; put two dashes before a script: -- train.py"),
        ("degree:2", "degree:2 is not KEY=VALUE; write degree=2"),
        ("degree = 2", "degree = 2 has spaces around =; write degree=2"),
        ("a b=1", "a b=1 has no valid key; write KEY=VALUE, with letters, digits, _ and . in the key"),
        ("window.seconds=#1", "window.seconds=#1 must be a number"),
        ("degree=rang(1,2)", "degree=rang(1,2) is not a valid function call; write range(...)"),
        ("mix=[S,", "mix=[S, cannot be read; write the list as \"mix=['S']\""),
        (
            "gpu.tolerate=a#,b",
            "gpu.tolerate=a#,b cannot be read; write the list as \"gpu.tolerate=['a#','b']\"",
        ),
    ],
)
def test_what_is_proposed_is_what_the_key_takes(override, text):
    assert explanation(override) == text


@pytest.mark.parametrize("argument", ["", "=5", "~", "+", "++=1", "@x=1"])
def test_an_override_without_a_key_says_so(argument):
    with pytest.raises(ConfigError, match="names no key; write KEY=VALUE"):
        command_line.quote_home(argument)


@pytest.mark.parametrize(
    ("override", "proposal"),
    [
        ("scenario=naive,mps", None),
        ("degree=2,3", None),
        ("workload.run_in=a,b", None),
        ("gpu.tolerate=a,b", "gpu.tolerate=[a,b]"),
        ("listeners=host,smi", "listeners=[host,smi]"),
        ("workload.flags.ids=1,2,3", "workload.flags.ids=[1,2,3]"),
        ("workload.environ.UCX_TLS=cuda_copy,rc", None),
        ("workload.args=--lr,'a b'", "workload.args=[--lr,'a b']"),
        ("sizes.S.flags.x=1,2", "sizes.S.flags.x=[1,2]"),
    ],
)
def test_a_list_is_proposed_only_for_a_key_that_takes_one(override, proposal):
    text = override_remedy.explain_several(override)
    number = len(re.findall(",", override)) + 1
    assert (
        f"has {number} values; to run each value, add -m (python run.py -m {override_remedy.quote(override)})" in text
    )
    assert (proposal is None) == ("for one list" not in text)
    if proposal is not None:
        assert shlex.split(text.partition("for one list, write ")[2]) == [proposal]


@pytest.mark.parametrize("override", ["workload.environ.UCX_TLS=cuda_copy,rc", "+workload.environ.A=a b,$c"])
def test_a_text_with_commas_gets_its_quotes(override):
    text = override_remedy.explain_several(override).partition("for one text, write ")[2]
    key, _, value = override.partition("=")
    (word,) = shlex.split(text)
    assert OverridesParser.create().parse_override(word).value() == value
    assert word.startswith(f"{key}=")


@pytest.mark.parametrize(
    ("words", "proposal"),
    [
        (["scenario=serial", "naive", "degree=2"], "scenario=serial,naive"),
        (["degree=1", "2", "3"], "degree=1,2"),
        (["help"], "see python run.py --help"),
        (["gpu=cpu", "key"], "key has no value; write key=VALUE"),
    ],
)
def test_a_word_without_a_key_is_explained_by_the_word_before_it(monkeypatch, words, proposal):
    monkeypatch.setattr("sys.argv", ["run.py", *words])
    assert proposal in explanation(next(word for word in words if "=" not in word))


def test_a_sweep_of_a_key_that_takes_a_list_is_said_to_be_several_runs():
    note = "note: -m starts 2 runs for scenario.chunks=1,2; for one run with the list, write 'scenario.chunks=[1,2]'"
    assert override_remedy.note_on_sweep("scenario.chunks=1,2") == note
    for override in (
        "degree=1,2",
        "scenario=naive,mps",
        "window.seconds=1,2",
        "workload.flags.x=[1,2]",
        "degree=range(1,3)",
    ):
        assert override_remedy.note_on_sweep(override) is None


def test_an_interpolation_that_is_meant_as_text_is_escaped():
    text = override_remedy.explain_interpolation("workload.flags.tag='${x'")
    assert text.endswith("contains an invalid interpolation; to set this text, write 'workload.flags.tag=\"\\${x\"'")
