"""`check --report`: the report of the experiment shows the plan as well."""

from __future__ import annotations

from pathlib import Path

from pipeline.planner.commands import check_command
from pipeline.planner.results import plan_check
from tests.support.report_rows import study
from tests.unit.planner.results.test_plan_check import PLAN, runs_of


def test_the_report_has_the_table_first_and_a_picture_of_the_gpus(tmp_path: Path) -> None:
    measured = study(*runs_of(PLAN))
    table = plan_check.build_table(plan_check.check(PLAN, measured, None, "plan.json"), "plan.json")
    page = check_command._report(measured, table, PLAN, tmp_path / "report").read_text()
    assert "Services on the slices of each GPU" in page and table.title in page
    assert "3g.40gb" in (tmp_path / "report/figures/planned-gpus.svg").read_text()
    assert (tmp_path / "report/figures/planned-gpus.pdf").read_bytes().startswith(b"%PDF")
