"""Errors of the planner are one line: subject, what is wrong; remedy."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.base.system.paths import PROJECT_DIR
from pipeline.planner.__main__ import main

_PLANNER = PROJECT_DIR / "pipeline" / "planner"


def list_errors(path: Path) -> Iterator[tuple[str, str]]:
    """Yield place and message of each error that a file raises, except those that add a place to another error."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    handlers = [node for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler) and node.type is not None]
    placing = [node for node in handlers if ast.unparse(node.type) in ("ConfigError", "JsonValueError")]
    wrapped = {id(node) for handler in placing for node in ast.walk(handler)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and node.exc is not None and id(node) not in wrapped:
            text = ast.unparse(node.exc)
            if text.startswith("ConfigError("):
                yield f"{path.relative_to(PROJECT_DIR)}:{node.lineno}", text


def test_every_error_has_a_remedy() -> None:
    errors = [error for path in sorted(_PLANNER.rglob("*.py")) for error in list_errors(path)]
    assert len(errors) > 100
    assert [place for place, text in errors if ";" not in text] == []


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "{",
            "not valid JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1); name a file",
        ),
        ("[]", "not a JSON object; name a file that the planner wrote"),
        ('{"version": 1, "gpus": 3}', "gpus must be a list, not 3; correct it there"),
        ('{"version": 1, "gpus": [{}]}', "gpus[0]: key 'instances' is missing; add it"),
    ],
)
def test_a_file_that_is_no_plan_is_refused_with_a_remedy(
    text: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "plan.json").write_text(text, encoding="utf-8")
    assert main(["draw", str(tmp_path / "plan.json"), "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and line in error and error.count("\n") == 1
