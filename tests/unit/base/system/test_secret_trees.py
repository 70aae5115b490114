"""Secrets in the structures of JSON, YAML, TOML, Python and command lines, also in parts of files."""

from __future__ import annotations

import ast
import json
import time

import pytest

from pipeline.base.system import secrets
from pipeline.base.system.secret_texts import mask_diff, mask_source, mask_text
from tests.support.tables import rows

S = "Zk9qX2vB7mT4wR1p"


@rows("secrets", "secrets_in_structures")
def test_no_structure_shows_its_secret(kind: str, form: str) -> None:
    file = "notes.txt" if kind == "text" else "train.py"
    text = form.replace("§", S)
    masked = mask_source(text, file)
    assert S not in masked and masked.count("\n") == text.count("\n")
    assert mask_source(masked, file) == masked
    lines = "".join(f"\n+{line}" for line in text.split("\n"))
    diff = f"diff --git a/{file} b/{file}\n--- a/{file}\n+++ b/{file}\n@@ -1,2 +1,9 @@{lines}"
    assert S not in mask_diff(diff) and mask_diff(diff).count("\n") == diff.count("\n")
    if kind == "source":
        ast.parse(masked)
    elif form.startswith(('{"', "[{")):
        json.loads(masked)


@rows("secrets", "visible_values")
def test_other_values_of_structures_stay(kind: str, form: str) -> None:
    assert mask_source(form, "notes.txt" if kind == "text" else "train.py") == form


def test_a_value_that_was_changed_is_hidden_in_both_versions() -> None:
    diff = (
        "diff --git a/a.py b/a.py\n--- a/a.py\n+++ b/a.py\n@@ -1,4 +1,4 @@\n"
        f"-PASSWORD = (\n+PASSWORD = SecretStr(\n     '{S}'\n )\n"
    )
    assert mask_diff(diff) == diff.replace(S, "<hidden>")


def test_lines_may_end_with_a_carriage_return() -> None:
    for end in ("\r", "\r\n"):
        code = f"a = 1{end}f(a,{end} token='{S}'){end}"
        assert mask_source(code, "a.py") == code.replace(S, "<hidden>")


def test_words_and_maps_are_masked_like_texts() -> None:
    assert secrets.mask_words(["docker", "login", "-u", "bob", "-p", "S"])[-1] == "<hidden>"
    assert secrets.mask_words(["curl", "h", "-su", "bob:S"]) == ["curl", "h", "-su", "<hidden>"]
    assert secrets.mask({"Name": "HF_TOKEN", "Value": "S"}) == {"Name": "HF_TOKEN", "Value": "<hidden>"}
    assert secrets.mask({"name": "LR", "value": "S"}) == {"name": "LR", "value": "S"}


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("a.py", "PASSWORD = ('Zk9qX2vB7mT4wR1p')\n"),
        ("a.py", "token = f('a', g(\n"),
        ("a.py", '"""token = (\n'),
        ("a.yaml", "- name: DB_PASSWORD\n  value: {{ a }}: b\n"),
        ("a.txt", 'INFO token: bad {"a": [1, 2]} password=x\n'),
        ("a.txt", "{[token: "),
    ],
)
def test_the_time_is_bounded_for_what_cannot_be_parsed(file: str, line: str) -> None:
    text = line * (100_000 // len(line))
    begin = time.process_time()
    masked = mask_source(text, file)
    assert masked.count("\n") == text.count("\n")
    assert time.process_time() - begin < 3  # on a busy machine; 0.3 s on a quiet one


def test_anchors_that_multiply_names_take_no_time() -> None:
    text = "a0: &a0 {p: x, token: s3cret-of-mine}\n"
    text += "".join(f"a{n}: &a{n} {{p: *a{n - 1}, q: *a{n - 1}}}\n" for n in range(1, 20))
    begin = time.process_time()
    assert "s3cret-of-mine" not in mask_text(text)
    assert time.process_time() - begin < 2
