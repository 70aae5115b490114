"""Pictures show what the files say: who is where and how full, each step at its time, each method at each load."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from pipeline.planner import deployment, pictures
from pipeline.planner.__main__ import main
from pipeline.planner.deployment import Deployment, Gpu, Instance, Plan, Service
from pipeline.planner.transition import transition_plan, transition_steps
from pipeline.report.figures.drawing import COLUMN, LEAST_FONT, WIDEST, draw
from tests.unit.planner.transition.test_transition import DURATIONS_S, draw_plans, transition


def make_instance(profile: str | None, start: int | None, service: str, **figures: float) -> Instance:
    return Instance(profile=profile, start=start, service=service, **figures)  # type: ignore[arg-type]


def widths(pdf: bytes) -> set[float]:
    return {round(float(width) / 72, 2) for width in re.findall(rb"/MediaBox \[ 0 0 ([\d.]+) ", pdf)}


def list_words(svg: str) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg)


def test_a_plan_is_drawn_with_who_is_where_and_how_full() -> None:
    half = Gpu(
        model="a100_80gb",
        instances=(
            make_instance("3g.40gb", 4, "bert", throughput_per_s=50, memory_mib=20000),
            make_instance("4g.40gb", 0, "resnet", throughput_per_s=200, processes=3),
        ),
    )
    shared = Gpu(model="NVIDIA A10", mode="mps", instances=(make_instance(None, None, "bert", throughput_per_s=50),))
    services = (Service(name="bert", rate_per_s=80), Service(name="resnet", rate_per_s=50))
    plan = Plan(deployment=Deployment(gpus=(half, half, shared)), services=services)
    boxes = pictures._make_boxes(half, {"bert": 0.8, "resnet": 0.25})
    assert [(box.start, box.width, box.load) for box in boxes] == [(4, 4, 0.8), (0, 4, 0.25)]
    assert boxes[0].memory == pytest.approx(20000 / 40192, rel=0.02) and boxes[1].memory is None
    words = list_words(draw(pictures.sketch_gpus(plan, "plan"), "plan", is_simulated=False).svg)
    # Of bert, 80 of 150 a second are asked for; of resnet 50 of 400.
    assert {"3g.40gb bert 53%", "4g.40gb 3x resnet 12%", "bert 53%", "2 GPUs", "GPU 2", "MPS", "MIG+MPS"} <= set(words)


@pytest.mark.parametrize("gpu", [(), (Gpu(model="a100_80gb", instances=()),)])
def test_a_plan_with_nobody_in_it_is_drawn_as_well(gpu: tuple[Gpu, ...]) -> None:
    svg = draw(pictures.sketch_gpus(Plan(deployment=Deployment(gpus=gpu)), "plan"), "plan", is_simulated=False).svg
    assert ("GPU 0" if gpu else "the plan has no GPU") in list_words(svg)


def test_a_name_that_is_too_long_loses_its_middle() -> None:
    box = pictures._Box(
        instance=make_instance("1g.10gb", 0, "service-1234", processes=2), start=0, width=1, load=0.5, memory=None
    )
    assert pictures._label_box(box, 30, 2) == "1g.10gb 2x service-1234 50%"
    assert pictures._label_box(box, 20, 2) == "2x service-1234 50%"
    assert pictures._label_box(box, 12, 2) == "service-1234\n2x 50%"
    assert pictures._label_box(box, 8, 2) == "2x\nser..234"
    assert pictures._label_box(box, 6, 3) == "2x\nservic\ne-1234"


@pytest.mark.parametrize("seed", range(8))
def test_the_timeline_has_every_step_once_and_no_service_below_what_it_must_keep(seed: int) -> None:
    planned = transition(seed)
    bars = pictures._make_bars(planned.steps)
    assert sorted(bar.step.id for bar in bars if not bar.is_source) == sorted(step.id for step in planned.steps)
    assert sum(bar.is_source for bar in bars) == sum(
        step.kind == "migrate" and step.source_gpu != step.gpu for step in planned.steps
    )
    for bar in bars:
        beside = [b for b in bars if (b.gpu, b.lane) == (bar.gpu, bar.lane) and b is not bar]
        assert all(other.begins >= bar.ends or other.ends <= bar.begins for other in beside)
    times, shares = pictures.find_least_shares(planned, planned.steps)
    assert times == sorted(times) and all(share >= 1 - 1e-9 for share in shares)


def test_a_timeline_says_whether_its_times_were_given() -> None:
    today, tomorrow = draw_plans(5)
    timed = pictures.sketch_transition(transition_plan.plan_transition(today, tomorrow, 1, DURATIONS_S), "t")
    untimed = pictures.sketch_transition(transition_plan.plan_transition(today, tomorrow, 1, {}), "t")
    nothing = pictures.sketch_transition(transition_plan.plan_transition(today, today, 1, {}), "t")
    assert "Times are computed from --duration" in timed.caption and "Without --duration" in untimed.caption
    assert "time since the first step began (s)" in list_words(draw(timed, "t", is_simulated=False).svg)
    assert "time since the first step began (steps)" in list_words(draw(untimed, "t", is_simulated=False).svg)
    assert "nothing changes" in list_words(draw(nothing, "t", is_simulated=False).svg)


@pytest.mark.slow
def test_many_gpus_are_drawn_on_two_pages_of_a_column() -> None:
    gpus = tuple(
        Gpu(
            id=f"GPU-{n}",
            model="a100_80gb",
            instances=(make_instance("1g.10gb", 0, f"service-{n}", throughput_per_s=n + 1.0),),
        )
        for n in range(20)
    )
    services = tuple(Service(name=f"service-{n}", rate_per_s=1) for n in range(20))
    drawn_plan = draw(
        pictures.sketch_gpus(Plan(deployment=Deployment(gpus=gpus), services=services), "plan"),
        "plan",
        is_simulated=False,
        has_columns=True,
    )
    assert widths(drawn_plan.pdf) == {WIDEST} and widths(drawn_plan.column_pdf) == {COLUMN}
    assert drawn_plan.column_pdf.count(b"/MediaBox") == 2


def test_labels_of_gpus_are_left_out_where_they_would_overlap() -> None:
    assert pictures._space_out([0, 1, 2, 3.5], 1.5) == [0, 2, 3]


def make_comparison(*counts: int | None) -> dict[str, object]:
    rows = [{"method": f"m{n}", "status": "feasible", "num_gpus": count} for n, count in enumerate(counts)]
    return {"load": 2.0, "bound": 3, "methods": rows}


def test_loads_are_drawn_in_their_order_with_a_gap_where_there_is_no_plan() -> None:
    loads = pictures.read_loads({"loads": [make_comparison(4, None), make_comparison(2, 3) | {"load": 1}]}, "here")
    assert [load.load for load in loads] == [1, 2]
    figure = pictures._paint_loads(loads, is_proved=False)
    lines = {line.get_label(): list(line.get_ydata()) for line in figure.axes[0].lines}
    assert lines["m0"] == [2, 4] and lines["m1"][0] == 3 and lines["m1"][1] != lines["m1"][1]
    assert lines["lower bound"] == [3, 3]
    assert "some plans of the exact method are not proved" in pictures.sketch_loads(loads, "l").caption


@pytest.mark.slow
def test_files_are_drawn_by_what_they_hold_the_same_every_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    deployment.write(draw_plans(2)[0], tmp_path / "plan.json")
    transition_steps.write(transition(2), tmp_path / "steps.json")
    (tmp_path / "compare.json").write_text(json.dumps(make_comparison(3) | {"loads": [make_comparison(3)]}))
    files = [str(tmp_path / f"{name}.json") for name in ("plan", "steps", "compare")]
    assert main(["draw", *files, "--out", str(tmp_path / "one")]) == 0
    assert main(["draw", *files, "--out", str(tmp_path / "two")]) == 0
    written = {path.name: path.read_bytes() for path in (tmp_path / "one").iterdir()}
    suffixes = ("-column.pdf", ".pdf", ".svg")
    assert sorted(written) == [f"{name}{suffix}" for name in ("compare", "plan", "steps") for suffix in suffixes]
    for name, content in written.items():
        if name.endswith(".svg"):
            assert min(map(float, re.findall(rb"font-size: ([\d.]+)px", content))) >= LEAST_FONT, name
        else:
            assert widths(content) == {COLUMN if "-column" in name else WIDEST}, name
    assert written == {path.name: path.read_bytes() for path in (tmp_path / "two").iterdir()}
    capsys.readouterr()


def test_what_cannot_be_drawn_is_refused_and_nothing_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    deployment.write(draw_plans(2)[0], tmp_path / "plan.json")
    (tmp_path / "other.json").write_text("{}")
    good, bad = str(tmp_path / "plan.json"), str(tmp_path / "other.json")
    for paths, message in (([good, bad], "nothing to draw"), ([good, good], "plan.svg")):
        assert main(["draw", *paths, "--out", str(tmp_path / "out")]) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
