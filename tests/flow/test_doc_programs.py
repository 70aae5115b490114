"""The notebooks, the page about a user's own script and recorded terminals: what they show runs, and is printed."""

from __future__ import annotations

import ast
import html
import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from benchmarks import record_terminal
from benchmarks import report as scale
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.report.evaluate.contrasts import Decision
from tests.conftest import TOYS

pytestmark = pytest.mark.covers("benchmarks", "docs/notebooks", "docs/your_own_script.md")

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


PAGE = (PROJECT_DIR / "docs/your_own_script.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(text|sh)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def is_said(quoted: str, text: str) -> bool:
    """Return whether a line of the page occurs in a text; its `...` stands for anything."""
    return re.search(".*".join(map(re.escape, quoted.strip().split("..."))), text) is not None


@pytest.mark.torch
@pytest.mark.slow
def test_the_commands_of_the_page_say_what_it_quotes(run, tmp_path):
    shutil.copy(TOYS / "plain_torch.py", tmp_path / "train.py")
    printed, statuses = "", []
    for kind, block in BLOCKS:
        if kind == "text":
            for line in block.splitlines():
                assert is_said(line, printed), line
            continue
        for command in re.findall(r"^python run\.py (.*)$", block.replace("\\\n", ""), re.MULTILINE):
            if "torchrun" in command or "accelerate" in command:
                continue  # test_docs_commands plans them; test_jobs has their ports
            status, out, err = run(*shlex.split(command))
            statuses.append(status)
            printed = out + err
            assert ("changed while" in printed) == (len(statuses) == 1), command
            assert ("samples/s" in out) == ("metric_pattern" in command), command
            assert ("speed-up" in out) == ("degree=2" in command or "mix=[{" in command), command
            assert ("naive-1x-train-batch-size=16" in out) == ("flags" in command), out
    assert statuses == [0, 0, 0, 0, 0, 1]
    assert len(list((tmp_path / "mlruns/artifacts").rglob("output/model.pt"))) == 1 + 2 + 3 + 4 + 1


def test_a_recorded_terminal_has_the_lines_that_stand_at_its_end(tmp_path: Path) -> None:
    script, picture = tmp_path / "session.py", tmp_path / "session.svg"
    script.write_text(
        r"""
import os, sys
print("columns", os.get_terminal_size().columns, sys.stdout.isatty())
print("first", end="\r"); print("last state")
print("table\nof two lines\x1b[1A\r\x1b[2K\x1b[31mred\x1b[0m"); print("\x1b[2Kbelow")
print("a" * 45)
sys.exit(3)
"""
    )
    with pytest.raises(SystemExit) as end:
        record_terminal.main(["-o", str(picture), "--columns", "40", "--folder", str(tmp_path), "python", "session.py"])
    assert end.value.code == 3
    drawn = picture.read_text(encoding="utf-8")
    rows: dict[float, str] = {}
    for y, text in re.findall(r'<text class="[^"]*-r\d+" .*?y="([\d.]+)".*?>(.*?)</text>', drawn):
        rows[float(y)] = rows.get(float(y), "") + html.unescape(text).replace("\xa0", " ").strip("\n")
    lines = [rows[y].strip() for y in sorted(rows)]
    assert lines == ["$ python session.py", "columns 40 True", "last state", "red", "below", "a" * 40, "a" * 5]
    assert "http" not in drawn.replace("http://www.w3.org/2000/svg", "").replace("https://www.textualize.io", "")
