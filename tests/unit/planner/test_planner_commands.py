"""Errors of the planner are one line, simulated profiles are marked, and a page has the figures that commands print."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.base.system.paths import PROJECT_DIR
from pipeline.planner import __main__ as planner
from pipeline.planner.__main__ import main
from pipeline.planner.profile_table import SIMULATED, Profile, Row, write
from pipeline.report.figures.drawing import STAMP

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


ROW = Row(
    workload="infer_tiny",
    gpu_model="a100_80gb",
    sharing_mode="mig",
    instance_profile="3g.40gb",
    batch=1,
    throughput_per_s=50.0,
    latency_mean_ms=5.0,
)


@pytest.mark.slow
@pytest.mark.usefixtures("searches_by_rounds")
@pytest.mark.parametrize("is_simulated", [True, False])
def test_plans_transitions_pictures_and_exports_are_marked(tmp_path: Path, capsys, is_simulated: bool) -> None:
    def run_and_read(*argv: object) -> str:
        assert main([str(argument) for argument in argv]) == 0
        return capsys.readouterr().out

    profile, services, jobs = (tmp_path / name for name in ("p.csv", "s.yaml", "j.yaml"))
    write(profile, Profile(rows=(ROW,), is_simulated=is_simulated))
    services.write_text("services: [{name: infer_tiny, rate_per_s: 40, objective_ms: 50}]")
    jobs.write_text("jobs: [{name: infer_tiny, work: 100}]")
    plan, steps, loads = (tmp_path / f"{name}.json" for name in ("plan", "steps", "loads"))
    texts = [
        run_and_read("serve", services, "--profile", profile, "--out", plan),
        run_and_read("train", jobs, "--profile", profile),
        run_and_read("compare", services, "--profile", profile),
        run_and_read("transition", plan, plan, "--out", steps),
        run_and_read("export", plan, "--as", "mig-parted"),
        run_and_read("export", plan, "--as", "kubernetes", "--image", "a"),
    ]
    run_and_read("export", plan, "--as", "experiment", "--out", tmp_path / "conf")
    texts.append((tmp_path / "conf/experiment/plan.yaml").read_text())
    assert [SIMULATED in text for text in texts] == [is_simulated] * len(texts)
    loads.write_text(run_and_read("compare", services, "--profile", profile, "--json"))
    assert json.loads(run_and_read("train", jobs, "--profile", profile, "--json"))["is_simulated"] is is_simulated
    run_and_read("draw", plan, steps, loads, "--out", tmp_path)
    pictures = [(tmp_path / f"{path.stem}.svg").read_text() for path in (plan, steps, loads)]
    assert [STAMP in picture for picture in pictures] == [is_simulated] * 3


PAGE = PROJECT_DIR / "docs/results/planner_h200.md"
PROFILE = PAGE.with_suffix("") / "profile.csv"
PRINTED = PROFILE.with_name("printed.txt")


def run(command: str, work: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    """Return what a command of the page prints."""
    arguments = [command, str(PROFILE.with_name(work)), "--profile", str(PROFILE), "--gpu", "simulated_h200_141gb"]
    assert planner.main([*arguments, "--out", str(tmp_path / "plan.json"), *options]) == 0
    return capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.covers("docs")
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


@pytest.mark.slow
@pytest.mark.covers("docs")
def test_the_page_has_the_rate_and_latency_of_its_service(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = run("serve", "services.yaml", tmp_path, capsys)
    assert printed.partition("plan:")[0].strip() in PRINTED.read_text(encoding="utf-8")
    rate, latency = re.search(r"400\s+([\d.]+)", printed), re.search(r"([\d.]+) \(mean\)", printed)
    assert rate is not None and latency is not None and "1 GPU: proved" in printed
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    assert f"{rate[1]} requests/s at most, {latency[1]} ms on average" in page
