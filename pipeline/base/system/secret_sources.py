"""Programs and their changes without the secrets in them: a script, a diff."""

from __future__ import annotations

import re
from pathlib import PurePath

from pipeline.base.system.secret_texts import Style, mask_text

_PYTHON = frozenset({".py", ".pyi", ".pyw", ".pyx"})
_PYTHON_PROGRAM = re.compile(r"#!.*\bpython")
_FILE = re.compile(r"^(?=diff --git )", re.MULTILINE)
_CHANGED = re.compile(r"^diff --git \"?a/(?P<name>.*?)\"? \"?b/")


def mask_source(text: str, name: str) -> str:
    """Replace the secrets in a program, which is of the language that the name of its file or its first line says."""
    is_python = PurePath(name).suffix in _PYTHON or _PYTHON_PROGRAM.match(text) is not None
    return mask_text(text, style=Style.CODE if is_python else Style.PLAIN)


def mask_diff(text: str) -> str:
    """Replace the secrets in a diff of git; its lines and their marks stay, so that it is still one."""
    return "".join(map(_mask_file, _FILE.split(text)))


def _mask_file(text: str) -> str:
    """Replace the secrets in what a diff says of one file, or in what stands before the first."""
    changed = _CHANGED.match(text)
    head, start, hunks = text.partition("\n@@ ")
    if changed is None or not start:
        return mask_text(text)
    marks, lines = zip(*((line[:1], line[1:]) for line in f"@@ {hunks}".split("\n")), strict=True)
    masked = mask_source("\n".join(lines), changed["name"]).split("\n")
    return mask_text(head) + "\n" + "\n".join(map("".join, zip(marks, masked, strict=True)))
