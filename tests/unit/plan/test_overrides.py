"""Command lines and overrides: their order, Hydra's own values and combinations, errors and their remedies."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra import compose, initialize_config_dir
from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from pipeline.base.system import override_values
from pipeline.base.system.errors import ConfigError
from pipeline.plan import command_line, override_remedy, overrides
from pipeline.plan.overrides import list_combinations, read_blocks


@pytest.mark.parametrize(
    ("arguments", "arranged"),
    [
        (["gpu=cpu", "--config-dir", "DIR", "+experiment=x"], ["--config-dir=DIR", "gpu=cpu", "+experiment=x"]),
        (["a=1", "-m", "b=2", "-cd", "DIR", "c=3"], ["--multirun", "--config-dir=DIR", "a=1", "b=2", "c=3"]),
        (["a=1", "--config-dir=DIR=1", "b=2"], ["--config-dir=DIR=1", "a=1", "b=2"]),
        (["a=1", "--cfg", "job", "--resolve", "-p", "gpu"], ["--cfg=job", "--resolve", "--package=gpu", "a=1"]),
        (["-i"], ["--info=all"]),
        (["--info", "a=1"], ["--info=all", "a=1"]),
        (["--info", "defaults", "a=1"], ["--info=defaults", "a=1"]),
        (["a=1", "--info", "--config-dir", "DIR"], ["--config-dir=DIR", "--info=all", "a=1"]),
        (["-sc", "install=bash"], ["--shell-completion", "install=bash"]),
        (["~gpu.admin", "+a.b=-1", "c='-d e'"], ["~gpu.admin", "+a.b=-1", "c='-d e'"]),
        ([], []),
    ],
)
def test_options_come_first_each_with_its_value(arguments, arranged):
    assert command_line.arrange(arguments) == arranged
    get_args_parser().parse_args(arranged)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["a=1", "--foo"],
            "unrecognized arguments: --foo; options of your program follow its name; see python run.py --help",
        ),
        (["--degree", "2"], "unrecognized arguments: --degree; write degree=2, or see python run.py --help"),
        (["--mode", "mps"], "unrecognized arguments: --mode; write scenario=mps, or see python run.py --help"),
        (["--minuts", "5"], "unrecognized arguments: --minuts; write advise_minutes=5, or see python run.py --help"),
        (["--max-copies", "4"], "unrecognized arguments: --max-copies; write degree=4, or see python run.py --help"),
        (
            ["--colour", "5"],
            "unrecognized arguments: --colour; options of your program follow its name; see python run.py --help",
        ),
        (["a=1", "--degree=2"], "unrecognized arguments: --degree=2; write degree=2, or see python run.py --help"),
        (["--cfg", "foo"], "argument --cfg/-c: invalid choice: 'foo'"),
        (["--info", "foo"], "argument --info/-i: invalid choice: 'foo'"),
        (["a=1", "--config-dir"], "argument --config-dir/-cd: expected one argument"),
        (["-m", "--cfg", "job"], "--cfg and --multirun exclude each other; remove one"),
        (["--resolve"], "--resolve has an effect only with --cfg"),
    ],
)
def test_what_hydra_takes_no_option_for_is_refused_in_one_line(arguments, message):
    with pytest.raises(ConfigError) as refused:
        command_line.arrange(arguments)
    assert str(refused.value).startswith(message) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("overrides", "deferred"),
    [
        (["scenario.profile=1g", "scenario=mig,mig_mps"], ["scenario=mig,mig_mps", "scenario.profile=choice(1g)"]),
        (["scenario=choice(mig,mps)", "+scenario.x=1"], ["scenario=choice(mig,mps)", "+scenario.x=choice(1)"]),
        (["workload@sizes.S=a,b", "sizes.S.x=1", "sizes.M.x=1"], None),
        (["scenario=mig,mps", "scenario.profile=1g,2g"], ["scenario=mig,mps", "scenario.profile=1g,2g"]),
        (["scenario=mig", "scenario.profile=1g"], ["scenario=mig", "scenario.profile=1g"]),
        (["scenario=[a,b]", "scenario.profile=1g"], ["scenario=[a,b]", "scenario.profile=1g"]),
        (["scenarios=a,b", "scenario.profile=1g"], ["scenarios=a,b", "scenario.profile=1g"]),
        (["scenario=a,b", "scenario.x=[1,", "(,"], ["scenario=a,b", "(,", "scenario.x=[1,"]),
    ],
)
def test_settings_of_choices_that_are_swept_are_left_to_the_jobs(overrides, deferred):
    if deferred is None:
        deferred = ["workload@sizes.S=a,b", "sizes.M.x=1", "sizes.S.x=choice(1)"]
    assert command_line.defer_settings(overrides) == deferred


@pytest.mark.parametrize(
    "setting",
    ["=1", "=", "='a, b'", "=[1g,2g]", "={a: 1,b: [2]}", "=null", "=a b", "=${x.y}", "=\\,", "=1e-3", "=int(3)"],
)
@pytest.mark.parametrize("sign", ["", "+", "++"])
def test_a_setting_that_is_left_to_the_jobs_keeps_its_value(sign, setting):
    parser = OverridesParser.create()
    swept, deferred = command_line.defer_settings(["scenario=a,b", f"{sign}scenario.x{setting}"])
    assert parser.parse_override(deferred).is_sweep_override()
    first, _ = list_combinations(parser.parse_overrides([swept, deferred]))
    expected, deferred_override = parser.parse_overrides([f"{sign}scenario.x{setting}", first[1]])
    assert deferred_override.value() == expected.value()
    assert (deferred_override.type, deferred_override.get_key_element()) == (expected.type, expected.get_key_element())


def test_a_deletion_that_is_left_to_the_jobs_stays_one():
    parser = OverridesParser.create()
    for word, value in (("~scenario.x", None), ("~scenario.x=3", 3)):
        overrides = parser.parse_overrides(command_line.defer_settings(["scenario=a,b", word]))
        assert all(override.is_sweep_override() for override in overrides)
        (deletion,) = parser.parse_overrides(list_combinations(overrides)[0][1:])
        assert deletion.is_delete() and deletion.value() == value


@pytest.mark.parametrize("setting", [None, "", "0", "1"])
def test_children_get_what_the_user_gave(monkeypatch, setting):
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    if setting is not None:
        monkeypatch.setenv("HYDRA_FULL_ERROR", setting)
    with pytest.raises(KeyError), command_line.raise_errors():
        assert os.environ["HYDRA_FULL_ERROR"] == "1"
        assert command_line.is_traceback_wanted() == (setting == "1")
        with command_line.restore_environment():
            assert os.environ.get("HYDRA_FULL_ERROR") == setting
        assert os.environ["HYDRA_FULL_ERROR"] == "1"
        raise KeyError
    assert os.environ.get("HYDRA_FULL_ERROR") == setting
    assert command_line.is_traceback_wanted() == (setting == "1")
    with command_line.restore_environment():  # as in a worker, which composes nothing
        assert os.environ.get("HYDRA_FULL_ERROR") == setting


TEXTS = (
    *("#1", "a b#c", "it's", 'say "hi"', "f(x)", "<x>", "a&b", "x=y", "a;b", "é", "!x", "^x", "`x`", "^a(b|c)$", "'a"),
    *("https://h/?a=1&b=2", "a\nb", "${x", '"a" b', "{a}", "a>b", "50%&", "(a", "a)", "a]", 'it\'s "both"', "x: #y"),
)
WORDS_OF_THE_PARSER = re.compile(r"<?EOF|EQUAL|extraneous|mismatched|viable|expecting|LexerNo|token recognition")


def get_explanation(override: str) -> str:
    """Explanation of an override that Hydra refuses."""
    with pytest.raises(HydraException) as refused:
        OverridesParser.create().parse_overrides([override])
    text = command_line.explain(refused.value)
    assert "\n" not in text and WORDS_OF_THE_PARSER.search(text) is None
    return text


def list_proposals(text: str) -> list[str]:
    """The overrides that are proposed, as bash gives them on."""
    words = text.partition("; ")[2]
    parts = re.split(r"(?:, or |, |^)(?:write the \w+ as|for \d+ runs write -m) ", words)[1:]
    script = "\n".join(f"printf '%s\\0' {part}" for part in parts)
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout.split("\0")[:-1]


@pytest.mark.sampled(12)
@pytest.mark.parametrize("text", TEXTS)
def test_a_text_gets_quotes_that_give_it_as_it_was_typed(text):
    *_, proposal = list_proposals(get_explanation(f"workload.flags.tag={text}"))
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
        for proposal in list_proposals(get_explanation(f"workload.flags.x={value}"))[:2]
    ]
    assert meant is None or meant in parsed_values


def test_several_values_of_which_one_cannot_be_read_may_be_runs_of_their_own():
    *_, sweep = list_proposals(get_explanation("workload.flags.tag=a#,b"))
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
    assert get_explanation(override) == text


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
    assert proposal in get_explanation(next(word for word in words if "=" not in word))


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


parse = OverridesParser.create().parse_overrides


@dataclass
class Flags:
    """A configuration with a flag and a number."""

    verbose: bool = True
    degree: int = 2


def test_the_combinations_of_a_grid_come_in_order():
    grid = parse(["a=1,2", "b=x", "c=range(2)"])
    assert overrides.list_combinations(grid) == [
        ["a=1", "b=x", "c=0"],
        ["a=1", "b=x", "c=1"],
        ["a=2", "b=x", "c=0"],
        ["a=2", "b=x", "c=1"],
    ]
    assert overrides.list_combinations([]) == [[]]
    assert overrides.list_combinations(parse(["a=1,2", "b=3,3", "a=4"])) == [["a=4", "b=3"]] * 2
    assert overrides.list_combinations(parse(["a=null,null"])) == [["a=null"]]
    with pytest.raises(ConfigError, match=r"a=interval\(0,1\) has no discrete values"):
        overrides.list_combinations(parse(["a=interval(0,1)"]))


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    """A configuration with values of every kind; nothing in it is a group."""
    (tmp_path / "config.yaml").write_text(
        "window: {seconds: 1.0, unset: null}\ndegree: null\nflags: {a: 1, b: {c: 2}}\nmix: [1, 2]\nname: x\n"
    )
    return tmp_path


def compose_by_hydra(conf: Path, words: list[str]) -> DictConfig:
    with initialize_config_dir(str(conf), version_base="1.3"):
        return compose("config", words)


def get_outcome(make: Any) -> tuple[str, Any]:
    """What came of composing: the values, or the one line in which a refusal is explained."""
    try:
        return "composed", OmegaConf.to_container(make())
    except HydraException as error:
        return "refused", command_line.explain(error)


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    "words",
    [
        ["window.seconds=2.5"],
        ["degree=3", "name='a b'"],
        ["window.second=1"],
        ["windw=1"],
        ["+window.extra=1"],
        ["+window.extra={a: {b: 1}}"],
        ["+window.seconds=3"],
        ["+degree=3"],
        ["+flags={d: 4}"],
        ["++window.seconds=3", "++window.more=4"],
        ["flags={a: 5}"],
        ["flags.b.c=7", "flags.b={c: 8}"],
        ["mix=[3]"],
        ["mix.0=9"],
        ["mix.7=9"],
        ["+mix=[3]"],
        ["~window.seconds"],
        ["~window.seconds=1.0"],
        ["~window.seconds=7"],
        ["~window.x"],
        ["~flags"],
        ["~window.unset"],
        ["name=${window.seconds}"],
        ["name=${"],
        ["x@y=3"],
        ["window=3"],
        ["window.seconds.x=3"],
    ],
    ids=" ".join,
)
def test_values_are_set_as_hydra_sets_them(conf, words):
    def set_in_copy() -> DictConfig:
        config = compose_by_hydra(conf, [])
        overrides.set_values(parse(words), config)
        return config

    expected = get_outcome(lambda: compose_by_hydra(conf, words))
    if words == ["x@y=3"]:  # Hydra words it by package
        assert expected[0] == get_outcome(set_in_copy)[0] == "refused"
        return
    assert get_outcome(set_in_copy) == expected


@pytest.mark.parametrize("word", ["verbose=7", "verbose=true,2", "+verbose=-1"])
def test_a_number_is_neither_true_nor_false(word):
    config = OmegaConf.structured(Flags)
    with pytest.raises(ConfigError, match=r"verbose=-?\d must be true or false"):
        overrides.refuse_integers([word], config)
    overrides.refuse_integers(["verbose=1", "verbose=false", "degree=7", "-m", "other=3"], config)


def test_a_number_in_a_block_is_neither():
    config = OmegaConf.structured(Flags)
    with pytest.raises(ConfigError, match="verbose=7 must be true or false"):
        overrides.set_values(parse(["verbose=7"]), config)


def read(block: str) -> list[dict[str, Any]]:
    keys = dict.fromkeys(("baseline", "degree", "listeners", "mix", "scenario", "window", "workload"))
    hydra = {"runtime": {"choices": {"experiment": "mine"}}, "overrides": {"task": []}}
    return read_blocks(OmegaConf.create({**keys, "hydra": hydra, "blocks": [yaml.safe_load(block)]}))


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ("{degree: 2,3,7, workload: tiny}", '3 is not a key; quote several values: degree: "2,3,7"'),
        ("{scenario: naive,mps}", 'mps is not a key; quote several values: scenario: "naive,mps"'),
        ("{window.seconds: 2,3}", '3 is not a key; quote several values: window.seconds: "2,3"'),
        ("{listeners: host,nvml}", "nvml is not a key; write a list as listeners: [host,nvml]"),
        ("{on: 1}", "true is not a key; write KEY: VALUE"),
        ("{degree: [2,3]}", 'degree does not accept a list; write degree: "2,3"'),
        ("{workload.batch_size: [8]}", 'workload.batch_size does not accept a list; write workload.batch_size: "8"'),
        ("{scenario: [naive,mps]}", 'scenario does not accept a list; write scenario: "naive,mps"'),
    ],
)
def test_values_without_quotes_are_named_with_their_place(block: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read(block)
    assert str(refused.value) == f"experiment/mine.yaml: blocks[0]: {message}"


@pytest.mark.parametrize(
    "block", ['{degree: "2,3"}', "{mix: [M,S], listeners: [host]}", "{window.most_s: null, workload@sizes.S: tiny}"]
)
def test_values_of_keys_are_accepted(block: str) -> None:
    assert read(block) == [yaml.safe_load(block)]
