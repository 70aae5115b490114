"""The metric files of MLflow's file store: lines that no database could take are left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.base.domain import script_runs


@pytest.mark.parametrize("line", [f"1 2.0 {2**63}", f"{2**63} 2.0 1", "1 two 1", "1 2.0 1 more", "1 2.0 1\ttorn"])
def test_a_line_that_is_no_point_is_left_out(tmp_path: Path, line: str) -> None:
    file = tmp_path / "loss"
    file.write_text(f"1000 0.5 7\n{line}\n2000 0.25 8\n")
    points = script_runs._points(file, 100)
    assert len(points) == 2
