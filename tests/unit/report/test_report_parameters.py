"""Figures against a swept parameter: which there are, and what they draw."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import pytest

from pipeline.base.domain.records import Result
from pipeline.report.evaluate.cells import make_cells
from pipeline.report.figures import parameters
from tests.support.report_rows import copies, job, params, row, study

SERVED = "throughput_total_requests_per_s"


def sketches(*rows: Any) -> dict[str, Any]:
    return {sketch.name: sketch for sketch in parameters.sketches(make_cells(study(*rows)), None)}


def panels(sketch: Any) -> dict[str, Any]:
    """The panels of a figure by their titles, and the words of its legend."""
    figure = sketch.paint()
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    return {axes.get_title().replace("\n", " "): axes for axes in figure.axes} | {"legend": legend}


def lines(axes: Any) -> list[list[tuple[float, float]]]:
    return [list(map(tuple, line.lines[0].get_xydata().tolist())) for line in axes.containers]


def test_cases_that_differ_in_one_number_are_drawn_against_it_a_line_a_mode_and_degree() -> None:
    rows = []
    for batch, rate in ((32, 100.0), (64, 150.0), (512, 200.0)):
        own = params(batch_size=batch)
        rows.append(copies("serial", 1, rate, own=own))
        rows.append(copies("mps", 2, 0.8 * rate, own=own, metrics={"memory_peak_mib": 10.0 * batch}))
        rows.append(copies("naive", 2, rate, own=own, result=Result.OK if batch < 512 else Result.OOM))
    found = sketches(*rows)
    assert list(found) == ["against batch size resnet26_cifar10"]
    drawn = panels(found["against batch size resnet26_cifar10"])
    assert drawn["legend"] == ["serial, 1 job", "naive, 2 jobs", "MPS, 2 jobs", "no interval"]
    assert lines(drawn["throughput of all jobs"]) == [
        [(32, 100), (64, 150), (512, 200)],
        [(32, 200), (64, 300)],
        [(32, 160), (64, 240), (512, 320)],
    ]
    assert "512: naive oom" in drawn["throughput of all jobs"].get_xlabel()
    assert lines(drawn["peak memory of the GPU"]) == [[(32, 320), (64, 640), (512, 5120)]]


def test_values_that_grow_far_have_a_logarithmic_axis_and_labels_that_do_not_touch() -> None:
    sizes = (32, 64, 96, 128, 256, 512)
    degrees = (("serial", 1), ("naive", 4), ("mps", 2), ("mps", 4))
    rows = [
        copies(mode, degree, 9.0, own=params(batch_size=size), metrics={"memory_peak_mib": 9.0})
        for size in sizes
        for mode, degree in degrees
    ]
    figure = sketches(*rows)["against batch size resnet26_cifar10"].paint()
    (axes, *_) = figure.axes
    assert axes.get_xscale() == "log" and list(axes.get_xticks()) == list(sizes)
    assert [label.get_text() for label in axes.get_xticklabels()] == ["32", "64", "96", "", "256", "512"]
    # A style says how many jobs, in each mode: 1; 4; 2 and 4.
    assert [line.lines[0].get_linestyle() for line in axes.containers] == ["-", "-.", "--", "-."]


def test_two_values_or_two_params_that_change_at_once_make_no_line() -> None:
    two = [copies("serial", 1, 1.0, own=params(batch_size=batch)) for batch in (32, 64)]
    assert sketches(*two) == {}
    both = [copies("serial", 1, 1.0, own=params(batch_size=n, image_px=n)) for n in (32, 64, 128)]
    assert sketches(*both) == {}


def test_points_of_many_modes_at_few_values_make_no_figure() -> None:
    rows = [copies("serial", 1, 1.0, own=params(batch_size=batch)) for batch in (4, 12, 24, 48)]
    rows += [copies(mode, 1, 1.0, own=params(batch_size=batch)) for mode, batch in (("mps", 4), ("naive", 12))]
    assert sketches(*rows) == {}
    assert list(sketches(*rows[:4])) == ["against batch size resnet26_cifar10"]


def test_two_swept_params_are_each_drawn_for_every_value_of_the_other() -> None:
    grid = [(batch, tokens) for batch in (1, 2, 4) for tokens in (32, 64, 128)]
    rows = [
        copies("serial", 1, float(batch * tokens), own=params("bert", batch_size=batch, sequence_tokens=tokens))
        for batch, tokens in grid
    ]
    assert list(sketches(*rows)) == [
        *(f"against batch size bert sequence_tokens={tokens}" for tokens in (32, 64, 128)),
        *(f"against sequence tokens bert batch_size={batch}" for batch in (1, 2, 4)),
    ]


def test_a_flag_of_a_script_is_a_parameter_too() -> None:
    rows = [copies("serial", 1, 1.0, own={"workload": "train", "args": f"--lr {lr}"}) for lr in ("0.1", "0.2", "0.4")]
    assert list(sketches(*rows)) == ["against lr train"]


def test_latency_is_drawn_against_the_rate_of_a_service_also_beside_a_training() -> None:
    rows = []
    for rate in (25, 50, 75):
        own = params("infer", work_unit="requests", given_rate="true", rate_per_s=rate)
        figures = {f"latency_{name}_worst_ms": value * rate for name, value in (("mean", 1), ("p50", 0.5), ("p99", 3))}
        jobs = (
            job(0, params("train"), 100.0, size="T"),
            job(1, own, None, size="I", metrics={"latency_mean_ms": 1.0 * rate, "latency_std_ms": 0.5 * rate}),
        )
        rows.append(row("mps", jobs, metrics=figures))
    found = sketches(*rows)
    assert list(found) == ["against rate per s infer + train"]
    drawn = panels(found["against rate per s infer + train"])
    latency = drawn["mean latency of the slowest job"]
    assert lines(latency) == [[(25, 25), (50, 50), (75, 75)]]
    assert latency.get_xscale() == "linear"
    assert lines(drawn["p99 latency of the slowest job"]) == [[(25, 75), (50, 150), (75, 225)]]
    assert lines(drawn["standard deviation of the latency of the slowest job"]) == [[(25, 12.5), (50, 25), (75, 37.5)]]
    assert not any("p95" in title for title in drawn)


@pytest.mark.parametrize(("rates", "scale"), [((25, 50, 100, 200), "linear"), ((10, 100, 1000), "log")])
def test_an_axis_of_rates_is_linear_unless_they_differ_much(rates: tuple[int, ...], scale: str) -> None:
    rows = [
        row(
            "naive",
            (job(0, params("infer", work_unit="requests", rate_per_s=rate), None),),
            metrics={SERVED: 1.0 * rate},
        )
        for rate in rates
    ]
    (found,) = sketches(*rows).values()
    assert {axes.get_xscale() for axes in found.paint().axes} == {scale}


def test_what_is_missing_is_told_by_reason_below_the_axis() -> None:
    rows = []
    for rate, (scenario, degree) in itertools.product((25, 50, 75), (("serial", 1), ("naive", 2), ("naive", 4))):
        own = params("infer", work_unit="requests", given_rate="true", rate_per_s=f"{rate}.0")
        jobs = [job(index, own, None, metrics={"latency_mean_ms": 1.0 * rate}) for index in range(degree)]
        rows.append(row(scenario, tuple(jobs), metrics={"latency_mean_worst_ms": 1.0 * degree * rate}))
    (found,) = sketches(*rows).values()
    drawn = panels(found)["mean latency of the slowest job"]
    assert lines(drawn) == [[(rate, degree * rate) for rate in (25, 50, 75)] for degree in (1, 2, 4)]
    ends = [dataclasses.replace(each, result=Result.OOM, metrics={}) if each.degree > 1 else each for each in rows[-3:]]
    (found,) = sketches(*rows[:-3], *ends).values()
    assert panels(found)["mean latency of the slowest job"].get_xlabel().endswith("(requests/s)\n75: naive oom")


def test_no_latency_is_drawn_of_a_rate_that_was_not_sustained_in_every_block() -> None:
    def asked(rate: int, block: int, sustained: float = 1.0) -> Any:
        own = params("infer", work_unit="requests", given_rate="true", rate_per_s=rate)
        figures = {"throughput_total_requests_per_s": 1.0 * rate, "rate_sustained_worst_ratio": sustained}
        figures |= {"latency_mean_worst_ms": 1.0 * rate} if sustained == 1 else {}
        return row("naive", (job(0, own, None),), block, metrics=figures)

    rates = (25, 50, 75, 100)
    rows = [asked(rate, block, 0.9 if (rate, block) == (75, 2) else 1.0) for rate in rates for block in (1, 2)]
    drawn = panels(sketches(*rows)["against rate per s infer"])
    (line,) = lines(drawn["mean latency of the slowest job"])
    assert line[:2] == [(25, 25), (50, 50)] and line[3:] == [(100, 100)]
    assert math.isnan(line[2][1]), "no line through a rate that was not sustained"
    assert drawn["mean latency of the slowest job"].get_xlabel().endswith("75: naive rate not sustained")
    others = [axes for title, axes in drawn.items() if title.startswith("throughput")]
    assert [len(line) for axes in others for line in lines(axes)] == [4]


def test_a_line_ends_at_a_value_that_its_mode_was_not_measured_at() -> None:
    rows = [copies("serial", 1, 1.0 * batch, own=params(batch_size=batch)) for batch in (16, 32, 64, 128)]
    rows += [copies("naive", 1, 2.0 * batch, own=params(batch_size=batch)) for batch in (16, 64, 128)]
    (found,) = sketches(*rows).values()
    complete, broken = lines(panels(found)["throughput of all jobs"])
    assert complete == [(16, 16), (32, 32), (64, 64), (128, 128)]
    assert (broken[0], *broken[2:]) == ((16, 32), (64, 128), (128, 256)) and math.isnan(broken[1][1])


def test_a_percentile_of_some_windows_is_drawn_with_a_lower_one_that_all_have() -> None:
    rows = []
    for batch in (8, 16, 32):
        own = params("infer", work_unit="requests", batch_size=batch)
        figures = {
            f"latency_{name}_worst_ms": 1.0 * batch for name in ("mean", "p95", *(["p99"] if batch < 32 else []))
        }
        rows.append(row("mps", (job(0, own, None, metrics={"latency_mean_ms": 1.0 * batch}),), metrics=figures))
    (found,) = sketches(*rows).values()
    drawn = panels(found)
    assert lines(drawn["p99 latency of the slowest job"]) == [[(8, 8), (16, 16)]]
    assert drawn["p99 latency of the slowest job"].get_xlabel().endswith("32: MPS too few requests")
    assert lines(drawn["p95 latency of the slowest job"]) == [[(8, 8), (16, 16), (32, 32)]]


def test_the_step_time_of_a_training_is_drawn() -> None:
    rows = []
    for batch in (8, 16, 32):
        own = params(batch_size=batch)
        jobs = [
            job(n, own, 100.0, metrics={"throughput_samples_per_s": 1.0, "step_time_p50_ms": n + batch}) for n in (0, 1)
        ]
        rows.append(row("naive", tuple(jobs)))
    (found,) = sketches(*rows).values()
    assert lines(panels(found)["median step time of the slowest job"]) == [[(8, 9), (16, 17), (32, 33)]]


def test_lines_of_several_profiles_differ_in_colour_marker_and_dashes() -> None:
    rows = [copies("serial", 1, 9.0, own=params(batch_size=batch)) for batch in (16, 32, 64)]
    for batch, profile in itertools.product((16, 32, 64), ("1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb")):
        jobs = (job(0, params(batch_size=batch), 1.0, place={"mig_profile": profile}),)
        rows.append(row("mig", jobs, options={"profile": profile}, profiles=(profile,), detail=profile))
    found = sketches(*rows)["against batch size resnet26_cifar10"]
    (axes, *_) = found.paint().axes
    drawn = [line.lines[0] for line in axes.containers]
    assert len(drawn) == 6
    assert len({line.get_color() for line in drawn}) == len({line.get_marker() for line in drawn}) == 6
    shades = [sum(int(line.get_color()[at : at + 2], 16) for at in (1, 3, 5)) for line in drawn[1:]]
    assert shades == sorted(shades, reverse=True), "the more slices, the darker"


def test_the_models_of_services_are_an_axis_without_lines() -> None:
    rows = []
    for number, name in enumerate(("infer_resnet18", "infer_resnet101", "infer_bert_base")):
        own = params(name, work_unit="requests", model=name, image_px=number, batch_size=8)
        figures = {"throughput_total_requests_per_s": 9.0 - number, "latency_mean_worst_ms": 1.0 + number}
        for scenario in ("naive", "mps"):
            rows.append(row(scenario, tuple(job(n, own, None) for n in range(4)), metrics=figures))
    found = sketches(*rows)
    assert list(found) == ["against model services"]
    drawn = panels(found["against model services"])
    axes = drawn["mean latency of the slowest job"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["bert_base", "resnet18", "resnet101"]
    assert [[latency for _, latency in line] for line in lines(axes)] == [[3, 1, 2], [3, 1, 2]]
    assert {line.lines[0].get_linestyle() for line in axes.containers} == {"None"}
    assert not sketches(*rows[:4]), "two models"


def on_instance(profile: str, rate: float) -> Any:
    figures = {"throughput_samples_per_s": rate, "gract_mean_ratio": rate / 100, "instance_memory_peak_mib": 900.0}
    return job(0, params(), None, metrics=figures, place={"mig_profile": profile, "gi_id": "1"})


def test_the_same_jobs_on_instances_of_several_profiles_are_drawn_against_the_profile() -> None:
    rows = [
        row("mig", (on_instance(profile, rate),), options={"profile": profile})
        for profile, rate in (("1g.10gb", 10.0), ("3g.40gb", 30.0), ("7g.80gb", 50.0))
    ]
    found = sketches(*rows)
    assert list(found) == ["against MIG profile resnet26_cifar10 bs128"]
    drawn = panels(found["against MIG profile resnet26_cifar10 bs128"])
    assert lines(drawn["GRACT of an instance"]) == [[(0, 0.1), (1, 0.3), (2, 0.5)]]
    assert lines(drawn["peak memory of an instance"]) == [[(0, 900), (1, 900), (2, 900)]]
    axes = drawn["throughput of all jobs"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1g.10gb", "3g.40gb", "7g.80gb"]
    assert lines(axes) == [[(0, 10), (1, 30), (2, 50)]]
