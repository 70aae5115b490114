"""What goes by the name of a secret is not published; everything else is."""

from __future__ import annotations

import pytest

from pipeline.base import secrets
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
        (["+workload.environ={HF_TOKEN: S,A: b}"], ["+workload.environ={HF_TOKEN: <hidden>,A: b}"]),
        (["workload.args=[--token,S,--lr,1]"], ["workload.args=[--token,<hidden>,--lr,1]"]),
        (["mix=['t.py --password S',b]"], ["mix=['t.py --password <hidden>',b]"]),
        (["postgres://me:S@host/db", "ssh://git@host/x"], ["postgres://<hidden>@host/db", "ssh://git@host/x"]),
    ],
)
def test_words_of_a_command_line(words, hidden):
    assert secrets.hidden_in_words(words) == hidden
    assert [without_secrets(word) for word in hidden] == hidden


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
