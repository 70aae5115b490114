"""Braces of a command line become the command lines of trials, as in bash."""

from __future__ import annotations

import subprocess

import pytest

from pipeline.base.system.errors import ConfigError
from pipeline.plan.brace_expansion import expand_words, read_commands

pytestmark = pytest.mark.covers("pipeline/plan/brace_expansion.py")


def texts(*words):
    return [" ".join(trial) for trial in expand_words(words)]


def test_every_combination_is_a_trial_and_the_last_brace_varies_fastest():
    assert texts("train.py", "--lr", "{0.1,0.01}", "--seed={1..2}") == [
        "train.py --lr 0.1 --seed=1",
        "train.py --lr 0.1 --seed=2",
        "train.py --lr 0.01 --seed=1",
        "train.py --lr 0.01 --seed=2",
    ]


@pytest.mark.parametrize(
    "word",
    [
        *(
            "{a,b}",
            "x{a,b}y",
            "{a,b}{1,2}",
            "{a,{b,c}}d",
            "{,x}",
            "a{b,}c",
            "{1..4}",
            "{4..1}",
            "{1..9..3}",
            "{9..1..4}",
        ),
        *(
            "{01..10..3}",
            "{-2..2}",
            "{a..e..2}",
            "{1e-1,1e-2}",
            "{{1..2},x}",
            "{x}{1,2}",
            "{{a,b}}",
            "{1..2}{x",
            "{-05..5..5}",
        ),
    ],
)
def test_a_word_expands_as_in_bash(word):
    bash = subprocess.run(["bash", "-c", f"printf '%s\\n' {word}"], capture_output=True, text=True, check=True)
    assert [text for trial in expand_words(["x.py", word]) for text in trial[1:]] == bash.stdout.splitlines()


@pytest.mark.parametrize("word", ["{output_dir}", "${HOME,}", r"\{a,b}", "{1..x}", "{}", "}{", '{"a":1}'])
def test_other_braces_stay(word):
    trials = expand_words(["x.py", word, "{1,2}"])
    assert [trial[1] for trial in trials] == [word.replace("\\", "")] * 2


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (["--lr", "1e-1", "1e-2", "--seed", "1", "2", "3"], "--lr '{1e-1,1e-2}' --seed '{1..3}'"),
        (["--lr=1e-1", "--lr=1e-2", "--seed", "{1..3}"], "--lr='{1e-1,1e-2}'"),
    ],
)
def test_words_that_the_shell_expanded_are_refused_with_the_quoting(words, remedy):
    with pytest.raises(ConfigError) as error:
        expand_words(["train.py", *words])
    assert str(error.value) == f"the shell has expanded the braces; put them in single quotes: {remedy}"


def test_a_flag_with_several_values_is_a_flag_of_the_trials():
    assert texts("x.py", "--betas", "0.9", "0.99", "--seed", "{1,2}")[1] == "x.py --betas 0.9 0.99 --seed 2"


def test_one_trial_and_too_many_are_refused():
    with pytest.raises(ConfigError, match="is one trial; give values in braces"):
        expand_words(["train.py", "--epochs", "3"])
    for word in ("{1..10001}", "{1..200}{1..200}"):
        with pytest.raises(ConfigError, match="at most 10000"):
            expand_words(["train.py", word])


def test_a_file_has_one_command_a_line():
    assert read_commands("# first\na.py --x 'b c'\n\nb.py\n", "trials.txt") == [["a.py", "--x", "b c"], ["b.py"]]
    with pytest.raises(ConfigError, match=r"trials.txt, line 1: .*; check its quotes"):
        read_commands("a.py 'b", "trials.txt")
    with pytest.raises(ConfigError, match=r"trials\.txt has 0 commands"):
        read_commands("\n", "trials.txt")
