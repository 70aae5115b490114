"""The page of plans on a committed profile has the figures that its commands print."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pipeline.base.system.paths import PROJECT_DIR
from pipeline.planner import __main__ as planner

pytestmark = [pytest.mark.slow, pytest.mark.covers("docs")]

PAGE = PROJECT_DIR / "docs/results/planner_h200.md"
PROFILE = PAGE.with_suffix("") / "profile.csv"
PRINTED = PROFILE.with_name("printed.txt")


def run(command: str, work: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    """Return what a command of the page prints."""
    arguments = [command, str(PROFILE.with_name(work)), "--profile", str(PROFILE), "--gpu", "simulated_h200_141gb"]
    assert planner.main([*arguments, "--out", str(tmp_path / "plan.json"), *options]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("mode", "row", "error"), [("mps", "MPS", 0), ("mps_percent", "MPS, 25 % each", 1), ("naive", "naive", 2)]
)
def test_the_page_has_the_makespans_and_errors_of_its_plans(
    mode: str, row: str, error: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = run("train", "jobs.yaml", tmp_path, capsys, "--modes", mode)
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    assert printed.partition("plan:")[0].strip() in PRINTED.read_text(encoding="utf-8")
    makespan, serial = (re.search(pattern, printed) for pattern in (r"makespan ~([\d.]+) s on", r"serial ([\d.]+)"))
    assert makespan is not None and serial is not None and "(proved)" in printed
    assert f"| {row} | {makespan[1]} |" in page
    assert f"| serial | {serial[1]} |" in page
    missed = re.search(rf"error in {mode}: median ([\d.]+)%, at most ([\d.]+)%", printed)
    shown = re.search(
        r"the error is ([\d.]+) %.*?, ([\d.]+) %.*? and ([\d.]+) %.*? in the median, and (.*?) at most", page
    )
    assert missed is not None and shown is not None
    assert (missed[1], missed[2]) == (shown[error + 1], re.findall(r"[\d.]+", shown[4])[error])


def test_the_page_has_the_rate_and_latency_of_its_service(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = run("serve", "services.yaml", tmp_path, capsys)
    assert printed.partition("plan:")[0].strip() in PRINTED.read_text(encoding="utf-8")
    rate, latency = re.search(r"400\s+([\d.]+)", printed), re.search(r"([\d.]+) \(mean\)", printed)
    assert rate is not None and latency is not None and "1 GPU: proved" in printed
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    assert f"{rate[1]} requests/s at most, {latency[1]} ms on average" in page
