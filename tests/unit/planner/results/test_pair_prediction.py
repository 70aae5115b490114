"""Predicted pairs: the model's formula on stated measurements, its errors and ranges; what is not known."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import pair_models
from pipeline.base.domain.records import CO_RUNNERS, Result
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.planner import profile_table
from pipeline.planner.__main__ import main
from pipeline.planner.commands.results_commands import answer_predictions, choose_pairs
from pipeline.planner.results.profile_measurement import measure_profile
from pipeline.report.evaluate.cells import make_cells
from pipeline.report.evaluate.predictions import (
    STRENGTH,
    Load,
    Prediction,
    collect_inputs,
    correct_loads,
    predict_groups,
    predict_slowdowns,
)
from pipeline.report.evaluate.selector import NoFigureError
from pipeline.report.page.claims import Query
from pipeline.report.read.study_records import JobRow, Row
from tests.support.report_rows import job, params, row, study, table_of

RESOURCES = ("l2", "memory_bandwidth")
ALONE = 1000.0
Use = Mapping[str, float]
"""The share of time in which a workload uses each resource.

The law: a workload that uses r for a share u of its time does it at half speed while the other program uses r too, so
beside a program with share v it has the speed 1 - u v / 2. With several resources the losses of time add up, or the
largest counts.
"""
MEMORY, MEMORY_TOO = {"memory_bandwidth": 0.9}, {"memory_bandwidth": 0.8}
CACHE = {"l2": 0.6}
BOTH, BOTH_TOO = {"l2": 0.8, "memory_bandwidth": 0.7}, {"l2": 0.5, "memory_bandwidth": 0.9}


def slow_down(use: Use, other: Use, combine: Any = max) -> float:
    return 1 + float(combine(1 / (1 - use.get(r, 0) * other.get(r, 0) / 2) - 1 for r in RESOURCES))


def stressor(resource: str, dial: float, speed: float, index: int = 1) -> JobRow:
    stressor_params = {
        "workload": "stressor",
        "resource": resource,
        "dial": str(dial),
        "work_unit": "calls",
        "seed": "0",
    }
    return job(index, stressor_params, None, metrics={"throughput_calls_per_s": 400 * dial * speed}, size="stressor")


def make_stressed_rows(
    name: str | dict[str, str], use: Use, mode: str = "mps", block: int = 1, dials: Sequence[float] = (0.33, 0.67, 1)
) -> list[Row]:
    """Return a workload alone and beside every stressor, and the stressors alone."""
    job_params = name if isinstance(name, dict) else params(name)
    rows = [row("serial", (job(0, job_params, ALONE),), block)]
    for resource, dial in itertools.product(RESOURCES, dials):
        load = {resource: float(dial)}
        rows.append(row("serial", (stressor(resource, dial, 1.0, 0),), block))
        jobs = (
            job(0, job_params, ALONE / slow_down(use, load)),
            stressor(resource, dial, 1 / slow_down(load, use)),
        )
        rows.append(row(mode, jobs, block))
    return rows


def predict(victim: Use, partner: Use) -> float:
    """Return what the model says of a workload that obeys the law, beside another."""
    full = [{resource: 1.0} for resource in RESOURCES]
    sensitivity = statistics.mean(math.log(slow_down(victim, load)) for load in full)
    pressure = statistics.mean(math.log(slow_down(load, partner)) for load in full)
    return 1 + STRENGTH * math.expm1(sensitivity) * math.expm1(pressure)


def pair(names: tuple[str, str], uses: tuple[Use, Use], mode: str = "mps", block: int = 1, combine: Any = max) -> Row:
    both = zip(names, uses, reversed(uses), strict=True)
    jobs = (job(i, params(name), ALONE / slow_down(u, v, combine)) for i, (name, u, v) in enumerate(both))
    return row(mode, tuple(jobs), block)


def unique(rows: Sequence[Row]) -> list[Row]:
    """Leave out the second run of a stressor alone, which every workload has."""
    return list({one.run_id: one for one in rows}.values())


def predictions(*rows: Row, **options: Any) -> dict[tuple[str, ...], Prediction]:
    pair_study = study(*unique(rows))
    predicted = predict_groups(collect_inputs(pair_study, make_cells(pair_study)), **options)
    return {tuple(name.split()[0] for name in one.workloads): one for one in predicted}


def list_middles(prediction: Prediction) -> list[float]:
    return [slowdown.middle for slowdown in prediction.slowdowns]


def test_what_a_partner_adds_is_a_product_of_sensitivity_and_pressure() -> None:
    uses = {"a": MEMORY, "b": BOTH, "c": {}}
    rows = [one for name, use in uses.items() for one in make_stressed_rows(name, use)]
    pairs = predictions(*rows)
    first, second = predict(MEMORY, BOTH), predict(BOTH, MEMORY)
    assert list_middles(pairs["a", "b"]) == pytest.approx([first, second]) and first > 1
    throughput = pairs["a", "b"].throughput
    assert throughput is not None and throughput.middle == pytest.approx(1 / first + 1 / second)
    assert list_middles(pairs["a", "c"]) == pytest.approx([1, 1])  # neither sensitive nor pressing
    assert {one.error for one in pairs.values()} == {None}  # no pair was measured


def test_the_published_page_has_the_errors_of_the_models() -> None:
    page = pair_models.PAGE.read_text()
    table = pair_models.make_table()
    assert table in page and pair_models.make_group_table() in page and pair_models.describe_ranges() in page
    errors = {(groups, model): numbers for groups, model, numbers in pair_models.list_lines()}
    guide = " ".join((PROJECT_DIR / "docs" / "planner.md").read_text().split())
    for model, text in {
        "waiting": "off by [{:.1f} % in the median and by {:.1f} % at most](results/sensitivity_ten_h200.md",
        "waiting, corrected by the other pairs": "with the other pairs measured by {:.1f} % and {:.1f} %",
    }.items():
        of_model = errors["pairs, MPS", model]
        assert text.format(100 * statistics.median(of_model), 100 * max(of_model)) in guide


def test_measured_pairs_correct_the_loads_of_their_workloads() -> None:
    truth = {"a": Load(0.4, 0.5), "b": Load(0.3, 0.8), "c": Load(0.2, 1.2), "d": Load(0.5, 0.3)}
    from_stressors = {"a": Load(0.4, 0.5), "b": Load(0.3, 0.8), "c": Load(0.2, 0.9), "d": Load(0.5, 0.3)}
    pairs = {pair: predict_slowdowns(pair, truth) for pair in itertools.combinations("abcd", 2) if pair != ("c", "d")}
    corrected = correct_loads(from_stressors, pairs)
    expected, before, after = (predict_slowdowns(("c", "d"), loads)[1] for loads in (truth, from_stressors, corrected))
    assert before < after < expected  # d beside c
    assert abs(after / expected - 1) < 0.2 * abs(before / expected - 1)
    idle = {"a": Load(0.0, 0.0), "b": Load(0.3, 0.8)}
    assert correct_loads(idle, {("a", "b"): [1.09, 1.3]}) == idle  # nothing to scale


def test_the_losses_beside_two_partners_add_up() -> None:
    loads = {"a": Load(0.4, 0.5), "b": Load(0.3, 0.8), "c": Load(0.2, 1.2)}
    of_three = predict_slowdowns(("a", "b", "c"), loads)
    beside_each = [predict_slowdowns(("a", other), loads)[0] for other in "bc"]
    assert of_three[0] - 1 == pytest.approx(sum(beside_each) - 2)


def test_a_profile_has_the_loads_of_programs_beside_stressors(tmp_path: Path) -> None:
    rows = [one for name, use in {"a": MEMORY, "b": BOTH}.items() for one in make_stressed_rows(name, use)]
    profile = measure_profile(study(*unique(rows)), "x")
    loads = {one.workload: (one.sensitivity_ratio, one.pressure_ratio) for one in profile.rows}
    sensitivity, pressure = (loads[name][place] for place, name in enumerate("ab"))
    assert sensitivity is not None and pressure is not None
    assert 1 + STRENGTH * sensitivity * pressure == pytest.approx(predict(MEMORY, BOTH))
    profile_table.write(tmp_path / "p.csv", profile)
    assert profile_table.read(tmp_path / "p.csv").digest == profile.digest


def test_a_measured_group_of_three_is_predicted_from_pairs() -> None:
    uses = {"a": MEMORY, "b": MEMORY_TOO, "c": CACHE}
    rows = [one for name, use in uses.items() for one in make_stressed_rows(name, use)]
    speeds = {"a": 2.0, "b": 1.8, "c": 1.5}
    jobs = [job(number, params(name), ALONE / speeds[name]) for number, name in enumerate(uses)]
    rows += [pair(("a", "b"), (MEMORY, MEMORY_TOO)), row("mps", tuple(jobs))]
    predicted = predictions(*rows)
    assert len(predicted) == 4
    group = predicted["a", "b", "c"]
    assert group.measured is not None and group.error is not None and group.error.num_groups == 1
    assert [slowdown.median for slowdown in group.measured.slowdowns] == pytest.approx(list(speeds.values()))
    corrected = [one.middle for one in group.slowdowns]
    assert corrected[0] != pytest.approx(group.by_stressors[0])  # the pair of a and b corrects a
    assert predicted["a", "b"].by_stressors == pytest.approx(list_middles(predicted["a", "b"]))  # no other pair


def test_a_range_holds_nine_of_ten_errors_of_other_workloads() -> None:
    uses = {name: {"memory_bandwidth": 0.3 + 0.1 * place} for place, name in enumerate("abcdef")}
    rows = [one for name, use in uses.items() for one in make_stressed_rows(name, use)]
    measured = list(itertools.combinations(uses, 2))
    rows += [pair(names, (uses[names[0]], uses[names[1]])) for names in measured]
    pairs = predictions(*rows)
    for names, one in pairs.items():
        other_pairs = [other for other in measured if not {*other} & {*names}]
        errors = sorted(
            abs(math.log(predict(uses[a], uses[b]) / slow_down(uses[a], uses[b])))
            for other in other_pairs
            for a, b in (other, other[::-1])
        )
        assert len(errors) == 12  # the range reaches the error of rank 13 x 0.9 = 11.7
        for slowdown in one.slowdowns:
            assert slowdown.high is not None and slowdown.low is not None
            assert slowdown.high / slowdown.middle == pytest.approx(math.exp(errors[11]), rel=1e-4)
            assert slowdown.middle / slowdown.low == pytest.approx(math.exp(errors[11]), rel=1e-4)
    few = predictions(*[one for one in rows if not {"e", "f"} & {j.params["workload"] for j in one.jobs}])
    assert few["a", "b"].slowdowns[0].low is None  # two errors of one other pair


def scale(one: JobRow, factor: float) -> JobRow:
    return replace(one, metrics={name: factor * value for name, value in one.metrics.items()})


def test_the_report_has_measured_pairs_and_their_predictions() -> None:
    uses = {"a": MEMORY, "b": MEMORY_TOO, "c": CACHE}
    rows = unique([one for name, use in uses.items() for one in make_stressed_rows(name, use)])
    assert table_of("pairs", study(*rows)).rows == ()
    rows += [pair(("a", "b"), (MEMORY, MEMORY_TOO)), pair(("a", "c"), (MEMORY, CACHE))]
    table = table_of("pairs", study(*rows))
    assert [line[0] for line in table.rows] == ["a bs128 + b bs128"] * 2 + ["a bs128 + c bs128"] * 2
    assert table.rows[1][2:4] == ("b bs128", pytest.approx(slow_down(MEMORY, MEMORY_TOO)))
    assert table.rows[1][6] == pytest.approx(predict(MEMORY_TOO, MEMORY))
    assert "MPS, 2 workloads: the median error is " in table.note


def test_variants_of_one_workload_have_a_slowdown_each() -> None:
    variants = [params(step_mode="eager"), params(step_mode="cuda_graph")]
    uses = (MEMORY, {"memory_bandwidth": 0.3})
    rows = [one for variant, use in zip(variants, uses, strict=True) for one in make_stressed_rows(variant, use)]
    measured = (job(0, variants[0], ALONE / 1.25), job(1, variants[1], ALONE / 2))
    pair_study = study(*unique([*rows, row("mps", measured)]))
    (predicted,) = predict_groups(collect_inputs(pair_study, make_cells(pair_study)))
    assert predicted.workloads == ("resnet26_cifar10 bs128", "resnet26_cifar10 bs128 (CUDA graph)")
    assert predicted.measured is not None
    assert [slowdown.median for slowdown in predicted.measured.slowdowns] == [1.25, 2]
    assert predicted.error is not None and predicted.error.num_groups == 1


def test_scripts_beside_which_the_stressor_is_a_co_runner_are_predicted() -> None:
    def make_script_row(one: Row) -> Row:
        if len(one.jobs) < 2:
            return one
        script, load = one.jobs
        settings = (*one.settings, (CO_RUNNERS, f"1x stressor {load.params['resource']} {load.params['dial']}"))
        return replace(one, jobs=(script,), co_runner_jobs=(load,), settings=settings, key=f"{script.label} {settings}")

    rows = [
        *map(make_script_row, make_stressed_rows("a", MEMORY)),
        *map(make_script_row, make_stressed_rows("b", MEMORY_TOO)),
    ]
    expected = [predict(MEMORY, MEMORY_TOO), predict(MEMORY_TOO, MEMORY)]
    assert list_middles(predictions(*rows)["a", "b"]) == pytest.approx(expected)


def test_what_was_not_measured_is_not_known_with_the_reason() -> None:
    rows = [*make_stressed_rows("a", MEMORY), *make_stressed_rows("b", CACHE), pair(("a", "c"), (MEMORY, MEMORY))]
    rows += [
        one for one in make_stressed_rows("d", CACHE) if not any(j.params.get("resource") == "l2" for j in one.jobs)
    ]
    rows += make_stressed_rows("e", CACHE, dials=(0.33, 0.67))
    rows.append(row("serial", (job(0, params("c"), ALONE),)))
    pairs = predictions(*rows)
    assert pairs["a", "c"].reason == "c bs128 has no slowdown beside stressors at dial 1"
    assert pairs["a", "d"].reason == "d bs128 has no slowdown beside l2 at dial 1"
    assert pairs["a", "e"].reason == "e bs128 has no slowdown beside stressors at dial 1"
    assert pairs["a", "c"].slowdowns == () and pairs["a", "c"].throughput is None
    measured = pairs["a", "c"].measured
    assert measured is not None and [known.median for known in measured.slowdowns] == pytest.approx(
        [slow_down(MEMORY, MEMORY)] * 2
    )
    assert pairs["a", "b"].reason == "" and len(pairs["a", "b"].slowdowns) == 2


@pytest.mark.parametrize(
    "change", [{"invalid": "another program used the GPU"}, {"result": Result.OOM, "reason": "out of memory"}]
)
def test_invalid_and_failed_rows_lead_nothing(change: dict[str, Any]) -> None:
    def spoil(one: Row) -> Row:
        if len(one.jobs) < 2 or one.jobs[1].params["resource"] != "l2" or one.jobs[1].params["dial"] != "1":
            return one
        marks = one.marks._replace(invalid=change["invalid"]) if "invalid" in change else one.marks
        return replace(one, marks=marks, **{key: value for key, value in change.items() if key != "invalid"})

    pairs = predictions(*make_stressed_rows("a", MEMORY), *map(spoil, make_stressed_rows("b", CACHE)))
    assert pairs["a", "b"].slowdowns == ()
    assert pairs["a", "b"].reason.startswith("b bs128 has no slowdown beside l2 at dial 1 (")
    assert change.get("invalid", change.get("reason", "")) in pairs["a", "b"].reason


def test_another_gpu_model_or_driver_branch_has_no_prediction() -> None:
    rows = [*make_stressed_rows("a", MEMORY), *make_stressed_rows("b", CACHE)]
    assert predictions(*rows, gpu_model="h100_80gb", driver_branch=580)["a", "b"].slowdowns
    model = predictions(*rows, gpu_model="a100_80gb")["a", "b"]
    assert (model.slowdowns, model.reason) == (
        (),
        "a bs128 was measured on h100_80gb with driver 580, not on a100_80gb",
    )
    driver = predictions(*rows, driver_branch=570)["a", "b"]
    assert driver.reason == "a bs128 was measured on h100_80gb with driver 580, not with driver 570"
    simulated = predictions(*rows, gpu_model="simulated_h100_80gb")["a", "b"]
    assert simulated.reason.endswith("not on simulated_h100_80gb")
    newer = [replace(one, facts={**one.facts, "driver_version": "590.1"}, block=2, boot_id="2") for one in rows]
    moved = predictions(
        *(one for one in rows if has_workload("a", one)), *(one for one in newer if has_workload("b", one))
    )["a", "b"]
    assert moved.reason == "a bs128 was measured on h100_80gb with driver 580, b bs128 on h100_80gb with driver 590"


def has_workload(name: str, one: Row) -> bool:
    return any(job_row.params["workload"] in (name, "stressor") for job_row in one.jobs) and not any(
        job_row.params["workload"] not in (name, "stressor") for job_row in one.jobs
    )


def test_the_pairing_has_the_least_gpu_time_and_each_pair_its_better_mode() -> None:
    uses = {"a": MEMORY, "b": MEMORY_TOO, "c": CACHE, "d": {"l2": 0.9}, "e": {"l2": 1.0, "memory_bandwidth": 1.0}}
    rows = [one for name, use in uses.items() for one in make_stressed_rows(name, use)]
    rows += [
        one
        for name in ("a", "c")
        for one in make_stressed_rows(name, uses[name], mode="naive")
        if one.scenario == "naive"
    ]
    predicted_pairs = list(list_predictions(rows))
    pairing = choose_pairs(predicted_pairs)
    speeds = {one.workloads: one.throughput.middle for one in predicted_pairs if one.throughput is not None}
    names = sorted({name for one in predicted_pairs for name in one.workloads})

    def least(remaining_names: tuple[str, ...]) -> float:
        if not remaining_names:
            return 0.0
        first, rest = remaining_names[0], remaining_names[1:]
        paired = [
            2 / max(speed for key, speed in speeds.items() if key == (first, other))
            + least(tuple(name for name in rest if name != other))
            for other in rest
        ]
        return min([1 + least(rest), *paired])

    assert pairing.gpu_time_ratio == pytest.approx(least(tuple(names)) / 5)
    together = sorted(name for one in pairing.groups for name in one.workloads)
    assert sorted([*together, *pairing.alone]) == names and len(pairing.groups) == 2


def list_predictions(rows: Sequence[Row]) -> list[Prediction]:
    pair_study = study(*unique(rows))
    return predict_groups(collect_inputs(pair_study, make_cells(pair_study)))


def test_the_answer_is_a_table_and_json_and_says_what_is_not_known() -> None:
    rows = unique(
        [*make_stressed_rows("a", MEMORY), *make_stressed_rows("b", CACHE), pair(("a", "c"), (MEMORY, MEMORY))]
    )
    answer = answer_predictions(study(*rows))
    assert answer.status == 0
    lines = answer.text.splitlines()
    assert lines[1].split()[:8] == ["a", "bs128", "+", "b", "bs128", "MPS", "1.09,", "1.09"]
    assert lines[1].endswith("not known")
    assert "Put together, for 70 % of the GPU time of all one after another:" in lines
    assert "    c bs128: alone" in lines
    assert "a bs128 + c bs128, MPS: not known: c bs128 has no slowdown beside stressors at dial 1" in lines
    first, second, _ = json.loads(json.dumps(answer.data))["pairs"]
    assert first["slowdowns"][0]["middle"] == pytest.approx(predict(MEMORY, CACHE)) and first["error"] is None
    assert second["slowdowns"] is None and second["reason"]
    refused = answer_predictions(study(*rows), device="a100_80gb")
    assert refused.status == 1 and refused.data["pairing"] is None and "Put together" not in refused.text


def test_what_is_simulated_is_said_to_be() -> None:
    rows = [
        replace(one, is_simulated=True)
        for one in unique([*make_stressed_rows("a", MEMORY), *make_stressed_rows("b", CACHE)])
    ]
    answer = answer_predictions(study(*rows), device="simulated_h100_80gb")
    assert answer.status == 0 and answer.text.splitlines()[-1].startswith("simulated: ")
    assert "was measured on simulated_h100_80gb" in answer_predictions(study(*rows), device="h100_80gb").text


def test_studies_without_two_workloads_beside_stressors_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"no workload with a result beside a stressor; measure: .*sensitivity"):
        answer_predictions(study(row("serial", (job(0, params("a"), ALONE),))))
    with pytest.raises(ConfigError, match="has a bs128 only, but a pair needs two workloads; measure: "):
        answer_predictions(study(*make_stressed_rows("a", MEMORY)))


@pytest.mark.parametrize("words", [["--driver-branch", "0"], ["--root", "nowhere"]])
def test_bad_input_is_one_line_and_status_2(words: list[str], tmp_path: Path, capfd: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["pairs", "--experiment", "sensitivity", *words]) == 2
    assert len(capfd.readouterr().err.splitlines()) == 1


def test_claims_show_slowdowns_beside_stressors_and_workloads() -> None:
    uses = {"a": MEMORY, "b": MEMORY_TOO, "c": CACHE}
    rows = [one for name, use in uses.items() for one in make_stressed_rows(name, use)]
    rows += [pair(("a", "b"), (MEMORY, MEMORY_TOO)), pair(("a", "c"), (MEMORY, MEMORY_TOO))]
    measured = study(*unique(rows))
    cells = make_cells(measured)
    inputs = collect_inputs(measured, cells)
    tables = [table_of("sensitivity", measured), table_of("pairs", measured)]
    a, b, c = inputs.workloads

    def show(table: str, quantity: str, *texts: str) -> str:
        return Query(table=table, quantity=quantity, row=texts).format_value(tables)

    full, truth = {"memory_bandwidth": 1.0}, slow_down(MEMORY, MEMORY_TOO)
    assert show("sensitivity", "slowdown", a, "memory_bandwidth", "1.0") == f"{slow_down(MEMORY, full):.2f}"
    pressure = show("sensitivity", "slowdown of the stressor", a, "memory_bandwidth", "1.0")
    assert pressure == f"{slow_down(full, MEMORY):.2f}"
    assert show("pairs", "slowdown", f"{a} + {b}", b) == show("pairs", "slowdown", f"{a} + {c}", c) == f"{truth:.2f}"
    predicted = {one.workloads: list_middles(one) for one in predict_groups(inputs)}
    assert show("pairs", "predicted", f"{a} + {b}", b) == f"{predicted[a, b][1]:.2f}"
    for texts in ((b, c), (f"{a} + {b}",), (f"{b} + {c}", b)):
        with pytest.raises(NoFigureError, match="rows of pairs have"):
            show("pairs", "slowdown", *texts)
