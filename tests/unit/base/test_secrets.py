"""What goes by the name of a secret is not published; everything else is."""

from __future__ import annotations

import pytest

from pipeline.base import override_values, secrets
from pipeline.base.words import without_secrets


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "--api-key", "workload.environ.DB_PASSWORD", "apiKey", "SECRET_KEY_BASE", "TOKEN_2", "key"]
)
def test_names_of_secrets(name):
    assert secrets.is_of_secret(name)


@pytest.mark.parametrize(
    "name", ["max_new_tokens", "TOKENIZERS_PARALLELISM", "SSH_KEY_FILE", "num_key_value_heads", "PWD", "monkey", ""]
)
def test_names_that_only_look_like_it(name):
    assert not secrets.is_of_secret(name)


@pytest.mark.parametrize(
    ("words", "hidden"),
    [
        (["--token", "S", "--lr", "1"], ["--token", "<hidden>", "--lr", "1"]),
        (["--api-key=S", "x"], ["--api-key=<hidden>", "x"]),
        (["--token", "--lr", "1"], ["--token", "--lr", "1"]),
        (["workload.environ.HF_TOKEN=S,S"], ["workload.environ.HF_TOKEN=<hidden>"]),
        (["--token", "S", "S", "-v", "1"], ["--token", "<hidden>", "<hidden>", "-v", "1"]),
        (["--token", "-S", "-v"], ["--token", "<hidden>", "-v"]),
        (["+workload.environ={HF_TOKEN: S,A: b}"], ["+workload.environ={HF_TOKEN: '<hidden>',A: 'b'}"]),
        (["workload.args=[--token,S,--lr,1]"], ["workload.args=['--token','<hidden>','--lr',1]"]),
        (["workload.args=[--lr,1]", "--out=a/key"], ["workload.args=[--lr,1]", "--out=a/key"]),
        (["sizes.S.args='--lr 1 --token=S'"], ["sizes.S.args='--lr 1 \\'--token=<hidden>\\''"]),
        (["workload.args=--token=S"], ["workload.args=<hidden>"]),
        (["mix=[{command: 't.py --token=S'},b]"], ["mix=[{command: 't.py \\'--token=<hidden>\\''},'b']"]),
        (["mix=['t.py --password S',b]"], ["mix=['t.py --password \\'<hidden>\\'','b']"]),
        (["workload.flags.api_key=[S,S]"], ["workload.flags.api_key=<hidden>"]),
        (["workload.flags={api_key: [S,S],lr: 1}"], ["workload.flags={api_key: '<hidden>',lr: 1}"]),
        (["workload.args='--password S[S{S\\'S'"], ["workload.args='<hidden>'"]),
        (["workload.args=--lr,'--token S'"], ["workload.args=<hidden>"]),
        (["t.py --password S[S,S x"], ["t.py --password '<hidden>' '<hidden>'"]),
        (["t.py --password S'S", "b"], ["<hidden>", "b"]),
        (["postgres://me:S@host/db", "ssh://git@host/x"], ["postgres://<hidden>@host/db", "ssh://git@host/x"]),
    ],
)
def test_words_of_a_command_line(words, hidden):
    assert secrets.hidden_in_words(words) == hidden
    assert [without_secrets(word) for word in hidden] == hidden


@pytest.mark.parametrize(
    "value",
    [
        ["--re", r"\d+ x\'", "l1\nl2", "é, [x]", "${a}", "", "null", "1", r"a\\", "it's"],
        [None, True, 1e-3, 7, float("inf"), [], {}],
        {"a b": {"c:d": [1]}, "e=,{}": "f", r"g\h": None},
    ],
)
def test_a_value_in_hydras_grammar_means_itself(value):
    assert override_values.parsed(override_values.as_text(value)) == value


def test_a_configuration_tells_where_something_was_hidden():
    config = {
        "workload": {"environ": {"HF_TOKEN": "S", "A": "1"}, "args": ["--token", "S"], "flags": {"key": None, "lr": 1}},
        "mix": ["t.py --token S", {"command": "t.py", "environ": {"API_KEY": "S"}}],
        "pairs": [["HF_TOKEN", "S"], ["A", "1"]],
    }
    hidden = secrets.hidden_in(config)
    assert "S'" not in str(hidden)
    assert hidden["workload"]["flags"] == {"key": None, "lr": 1}
    assert hidden["pairs"] == [["HF_TOKEN", "<hidden>"], ["A", "1"]]
    assert [*secrets.places_of_hidden(hidden)] == ["workload.environ.HF_TOKEN", "workload.args", "mix", "pairs"]
