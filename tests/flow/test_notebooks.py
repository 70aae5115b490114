"""The notebooks of docs/notebooks run from their first to their last cell, and come to what the report says.

Their cells are executed here, in order and in one namespace, without a Jupyter kernel: nbclient and ipykernel would add
a server's libraries and a process to what is tested, and a cell is plain Python as long as it has no magic commands.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import report as scale
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.report.evaluate.verdicts import Decision

pytestmark = pytest.mark.covers("docs/notebooks")

NOTEBOOKS = PROJECT_DIR / "docs/notebooks"


def make_cells(name: str) -> list[str]:
    """The text of the code cells of a notebook that holds no outputs: these would be of whoever ran it last."""
    notebook = json.loads((NOTEBOOKS / name).read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert notebook["nbformat"] == 4 and cells and all(cell["outputs"] == [] for cell in cells)
    return ["".join(cell["source"]) for cell in cells]


def execute(name: str) -> dict[str, Any]:
    """The names that a notebook defines; what a cell shows last is made into text, as a kernel does."""
    namespace: dict[str, Any] = {}
    for number, text in enumerate(make_cells(name), 1):
        tree = ast.parse(text)
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, f"{name}, cell {number}", "exec"), namespace)
        if last is not None:
            repr(eval(compile(ast.Expression(last.value), f"{name}, cell {number}", "eval"), namespace))
    return namespace


@pytest.mark.slow
def test_a_study_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import matplotlib as mpl

    mpl.use("agg")
    monkeypatch.setattr(scale, "_WORKLOADS", ["workloada"])
    scale.fill(tmp_path, 5 * 13, 20)
    monkeypatch.setenv("STUDY_ROOT", str(tmp_path))
    monkeypatch.setenv("STUDY", scale.EXPERIMENT)
    cells = execute("read_a_study.ipynb")
    assert cells["table"].loc[("workloada", 7), "mps"] == pytest.approx(1800, rel=0.01)
    labels = {text.get_text() for text in cells["axes"].get_legend().get_texts()}
    assert labels == {"naive", "mps", "mig", "one at a time"}
    assert cells["verdict"].decision is Decision.BETTER and cells["verdict"].num_blocks == len(cells["ratios"]) == 5
    assert cells["ratios"].median() == pytest.approx(1.8 / 1.4, rel=0.01)
    assert "simulated" not in capsys.readouterr().out
