"""Workloads beside stressors: slowdowns of both, in a table and a figure for each workload."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pipeline.base.domain.records import CO_RUNNERS, Result
from pipeline.base.domain.turns import TurnRates, format_turns
from pipeline.base.domain.window import WindowKind
from pipeline.report.evaluate.cells import make_cells
from pipeline.report.evaluate.pair_inputs import collect_inputs
from pipeline.report.evaluate.stressor_effects import describe_effects, list_effects, runs_stressor
from pipeline.report.figures.catalogue import draw_figures
from pipeline.report.figures.stressor_curves import sketches
from pipeline.report.page.leading_numbers import select_leading_numbers
from pipeline.report.page.study_tables import make_tables
from pipeline.report.read.study_records import JobRow, Row
from tests.support.report_rows import copies, job, params, row, study

ALONE, CALLS_ALONE = 1000.0, 400.0
SLOWED = {("naive", "l2"): 0.5, ("naive", "host_cores"): 0.9, ("mps", "l2"): 0.8, ("mps", "host_cores"): 1.0}
"""Speed that a workload keeps beside a stressor with a dial of 1, by mode and resource."""


def stressor(resource: str, dial: float, speed: float, index: int = 1) -> JobRow:
    own = {"workload": "stressor", "resource": resource, "dial": str(dial), "work_unit": "calls", "seed": "0"}
    return job(index, own, None, metrics={"throughput_calls_per_s": CALLS_ALONE * dial * speed}, size="stressor")


def pairs(block: int, *, pressed: float = 0.7) -> list[Row]:
    rows = [copies("serial", 1, ALONE, block)]
    for resource in ("l2", "host_cores"):
        for dial in (0.33, 0.67, 1.0):
            rows.append(row("serial", (stressor(resource, dial, 1.0, 0),), block))
            for mode in ("naive", "mps"):
                speed = 1 - dial * (1 - SLOWED[mode, resource])
                jobs = (job(0, params(), ALONE * speed), stressor(resource, dial, pressed))
                rows.append(row(mode, jobs, block))
    return rows


def effects_of(*rows: Row) -> dict[tuple[Any, ...], Any]:
    effects = list_effects(study(*rows), make_cells(study(*rows)))
    assert effects == sorted(effects, key=lambda effect: (effect.mode == "MPS", effect.resource, effect.dial))
    return {(effect.mode, effect.resource, effect.dial): effect for effect in effects}


def test_a_pair_has_the_slowdowns_of_both_programs_with_intervals() -> None:
    effects = effects_of(*(pair for block in (1, 2, 3) for pair in pairs(block)))
    assert len(effects) == 12
    effect = effects["naive", "l2", 0.67]
    assert effect.workload == "resnet26_cifar10 bs128" and effect.params["workload"] == "resnet26_cifar10"
    assert effect.sensitivity.median == pytest.approx(1 / (1 - 0.67 / 2)) and effect.sensitivity.n == 3
    assert effect.pressure.median == pytest.approx(1 / 0.7)
    assert effect.sensitivity.low <= effect.sensitivity.median <= effect.sensitivity.high


def test_the_table_has_a_line_for_each_pair_and_the_figure_a_line_for_each_resource() -> None:
    rows = pairs(1)
    cells = make_cells(study(*rows))
    (table,) = (table for table in make_tables(study(*rows), cells, [], [], []) if table.name == "sensitivity")
    assert table.columns[:5] == ("workload", "mode", "resource", "dial", "slowdown")
    assert table.rows[5][:5] == ("resnet26_cifar10 bs128", "naive", "l2", 1.0, pytest.approx(2.0))
    (sketch,) = sketches(list_effects(study(*rows), cells))
    figure = sketch.paint()
    assert [axes.get_title() for axes in figure.axes] == ["naive", "MPS"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["host_cores", "l2", "no interval"]
    (_, l2) = figure.axes[0].containers
    assert l2.lines[0].get_xydata().tolist() == [
        [0.33, pytest.approx(1 / 0.835)],
        [0.67, pytest.approx(1 / 0.665)],
        [1, 2],
    ]


@pytest.mark.slow
def test_other_figures_leave_out_groups_with_stressors() -> None:
    rows = [*pairs(1), copies("naive", 2, 600.0)]
    cells = make_cells(study(*rows))
    names = [drawn.name for drawn in draw_figures(study(*rows), cells, None)]
    ordinary = [cell for cell in cells if not runs_stressor(cell)]
    others = [drawn.name for drawn in draw_figures(study(*rows), ordinary, None)]
    assert others and names == ["sensitivity-resnet26-cifar10-bs128", *others]


def test_the_stressor_of_a_script_is_a_co_runner() -> None:
    own = {"workload": "train", "args": "--epochs 3", "seed": "0"}
    work = (("device", "NVIDIA H100"), ("window", "work, 1 epochs"), ("seed", "0"))
    steady = (("device", "NVIDIA H100"), ("window", "steady, 5 s after 1 s"), ("seed", "0"))
    beside = stressor("l2", 1.0, 0.8)
    rows = [
        row("serial", (job(0, own, None, metrics={"makespan_s": 10.0, "work_time_s": 10.0}),), settings=work,
            window=WindowKind.WORK),
        row("serial", (stressor("l2", 1.0, 1.0, 0),), settings=steady),
        row("mps", (job(0, own, None, metrics={"makespan_s": 15.0, "work_time_s": 15.0}),),
            settings=(*work, (CO_RUNNERS, "1x stressor 123456")), window=WindowKind.WORK, co_runner_jobs=(beside,)),
    ]  # fmt: skip
    ((_, effect),) = effects_of(*rows).items()
    assert (effect.workload, effect.mode, effect.resource) == ("train", "MPS", "l2")
    assert effect.sensitivity.median == pytest.approx(1.5) and effect.pressure.median == pytest.approx(1.25)


def test_a_pair_without_its_baseline_has_no_slowdown() -> None:
    rows = [pair for pair in pairs(1) if pair.scenario != "serial"]
    effects = effects_of(*rows).values()
    assert effects and {(effect.sensitivity, effect.pressure) for effect in effects} == {(None, None)}


def test_the_worst_stressor_leads_and_no_throughput_of_a_job_alone() -> None:
    rows = pairs(1)
    cells = make_cells(study(*rows))
    numbers = select_leading_numbers(study(*rows), cells, [])
    assert [number.label for number in numbers] == [
        "the time alone, beside its worst stressor: l2, dial 1",
        "the time alone, beside its worst stressor: l2, dial 1",
    ]
    clauses = describe_effects(list_effects(study(*rows), cells))
    assert (
        clauses[0]
        == "resnet26_cifar10 bs128 takes 2.00 times its time alone beside its worst stressor (l2, dial 1, naive; 1 "
        "block, no interval)"
    )
    unaffected = [one for one in pairs(1) if not any(part.params.get("resource") == "l2" for part in one.jobs)]
    unaffected = [one for one in unaffected if one.scenario != "naive"]
    cells = make_cells(study(*unaffected))
    assert select_leading_numbers(study(*unaffected), cells, []) == ()
    assert describe_effects(list_effects(study(*unaffected), cells)) == [
        "no stressor was seen to slow down resnet26_cifar10 bs128 by more than 2 % (MPS; 1 block, no interval)"
    ]


def turns_of(rates: dict[tuple[str, float], dict[int, float]]) -> dict[str, str]:
    """Return the facts of a row with these rates in turns."""
    turns = [TurnRates(resource=place[0], dial=place[1], num_turns=2, rates=by_job) for place, by_job in rates.items()]
    return {**copies("serial", 1, 1.0).facts, "turns": format_turns(turns)}


def turn_taker(index: int) -> JobRow:
    own = {"workload": "stressor", "resources": '["l2", "host_cores"]', "dials": "[0.5, 1.0]", "turn_s": "1.0"}
    own |= {"turn_settle_s": "0.2", "work_unit": "calls"}
    return job(index, own, None, metrics={"throughput_calls_per_s": 100.0}, size="stressor")


def pairs_in_turns(block: int, *, idle: float = ALONE, **changes: Any) -> list[Row]:
    """Return a workload beside a stressor that takes turns, with the speeds of `SLOWED`."""
    places = [(resource, dial) for resource in ("l2", "host_cores") for dial in (0.5, 1.0)]
    alone = {place: {0: CALLS_ALONE * place[1]} for place in places} | {("idle", 0.0): {}}
    rows = [copies("serial", 1, ALONE, block), row("serial", (turn_taker(0),), block, facts=turns_of(alone))]
    for mode in ("naive", "mps"):
        rates = {
            (resource, dial): {0: idle * (1 - dial * (1 - SLOWED[mode, resource])), 1: 0.7 * CALLS_ALONE * dial}
            for resource, dial in places
        }
        jobs = (job(0, params(), ALONE * 0.77), turn_taker(1))
        facts = turns_of({("idle", 0.0): {0: idle}, **rates})
        rows.append(row(mode, jobs, block, **({"facts": facts} | changes)))
    return rows


def test_a_stressor_in_turns_has_an_effect_for_each_resource_and_dial() -> None:
    effects = effects_of(*(pair for block in (1, 2, 3) for pair in pairs_in_turns(block)))
    assert len(effects) == 2 * 2 * 2 and {dial for _, _, dial in effects} == {0.5, 1.0}
    effect = effects["naive", "l2", 0.5]
    assert effect.workload == "resnet26_cifar10 bs128" and effect.params["workload"] == "resnet26_cifar10"
    assert effect.sensitivity.median == pytest.approx(1 / 0.75) and effect.sensitivity.n == 3
    assert effect.pressure.median == pytest.approx(1 / 0.7)


def test_the_baseline_in_turns_is_the_idle_turn_of_the_same_launch() -> None:
    slow = [*pairs_in_turns(1, idle=ALONE / 2), *pairs_in_turns(2)]
    assert effects_of(*slow)["naive", "l2", 1.0].sensitivity.median == pytest.approx(2)


def test_turns_of_invalid_rows_and_without_a_rate_have_no_figure() -> None:
    invalid = effects_of(*pairs_in_turns(1, invalid="another program used the GPU")).values()
    assert invalid and {(effect.sensitivity, effect.pressure) for effect in invalid} == {(None, None)}
    without_idle = turns_of({("l2", 1.0): {0: 500.0, 1: 100.0}, ("idle", 0.0): {}})
    effect = effects_of(*pairs_in_turns(1, facts=without_idle))["naive", "l2", 1.0]
    assert effect.sensitivity is None and effect.pressure.median == pytest.approx(4)


def test_a_clause_says_how_many_loads_have_a_figure() -> None:
    rows = [*pairs_in_turns(1), *pairs_in_turns(2), *pairs_in_turns(3)]
    failed = [one for one in pairs(1) if one.scenario != "serial" and one.jobs[1].params["resource"] == "host_cores"]
    rows += [replace(one, result=Result.FAILED) for one in failed]
    clauses = describe_effects(list_effects(study(*rows), make_cells(study(*rows))))
    assert len(clauses) == 2 and all("4 of 7 loads have a figure" in clause for clause in clauses)


@pytest.mark.slow
def test_the_table_the_figure_and_predictions_read_turns() -> None:
    rows = [*pairs_in_turns(1), copies("naive", 2, 600.0)]
    whole = study(*rows)
    cells = make_cells(whole)
    (table,) = (table for table in make_tables(whole, cells, [], [], []) if table.name == "sensitivity")
    assert [line[2:4] for line in table.rows[:4]] == [
        ("host_cores", 0.5),
        ("host_cores", 1.0),
        ("l2", 0.5),
        ("l2", 1.0),
    ]
    names = [drawn.name for drawn in draw_figures(whole, cells, None)]
    ordinary = [cell for cell in cells if not runs_stressor(cell)]
    assert names == ["sensitivity-resnet26-cifar10-bs128", *(d.name for d in draw_figures(whole, ordinary, None))]
    vectors = collect_inputs(whole, cells).vectors["MPS"]["resnet26_cifar10 bs128"]
    assert vectors.has("l2") and vectors.has("host_cores") and not vectors.has("launches")
    failed = [one if one.is_sequential else replace(one, result=Result.OOM) for one in pairs_in_turns(1)]
    failures = collect_inputs(study(*failed), make_cells(study(*failed))).failures
    assert {resource for mode, _, resource in failures if mode == "MPS"} == {"l2", "host_cores"}


def test_a_script_beside_turns_has_the_effects_under_its_own_name() -> None:
    own = {"workload": "train", "args": "--epochs 3", "seed": "0"}
    logged = (("device", "NVIDIA H100"), ("window", "logged"), ("seed", "0"))
    facts = turns_of({("idle", 0.0): {0: 90.0}, ("l2", 1.0): {0: 60.0, 1: 320.0}})
    rows = [
        row("serial", (job(0, own, 100.0),), settings=logged, window=WindowKind.LOGGED),
        row("serial", (turn_taker(0),), facts=turns_of({("l2", 1.0): {0: 400.0}})),
        row("mps", (job(0, own, 80.0),), settings=(*logged, (CO_RUNNERS, "1x stressor 123456")),
            window=WindowKind.LOGGED, co_runner_jobs=(turn_taker(1),), facts=facts),
    ]  # fmt: skip
    ((_, effect),) = effects_of(*rows).items()
    assert (effect.workload, effect.resource, effect.dial) == ("train", "l2", 1.0)
    assert effect.sensitivity.median == pytest.approx(1.5) and effect.pressure.median == pytest.approx(1.25)
