"""Effects on jobs: of MIG profiles, co-runners and stressors."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any

import pytest

from pipeline.base.domain.records import CO_RUNNERS, Result
from pipeline.base.domain.window import TurnRates, WindowKind, format_turns
from pipeline.report.evaluate import effects, paper
from pipeline.report.evaluate.cells import make_cells
from pipeline.report.evaluate.paper import Agreement
from pipeline.report.evaluate.predictions import collect_inputs
from pipeline.report.evaluate.publication import publications
from pipeline.report.evaluate.stressors import describe_effects, list_effects
from pipeline.report.figures.catalogue import draw_figures
from pipeline.report.figures.curves import sketch_stressors
from pipeline.report.page.key_findings import select_leading_numbers, write_answer
from pipeline.report.page.study_tables import make_tables
from pipeline.report.read.study_records import JobRow, Row
from tests.support.report_rows import copies, job, params, row, study, table_of

MULTIPROCESSORS = {"full": 108, "7g.40gb": 98, "4g.20gb": 56, "3g.20gb": 42, "2g.10gb": 28, "1g.5gb": 14}
SETTINGS = (("device", "A100"), ("window", "steady, 5 s after 1 s"), ("seed", "0"), ("pinned CPUs", "false"))


def make_place_row(place: str, rate: float, block: int, workload: str = "micro_fp32_cuda", co_runners: str = "") -> Row:
    """One job on the whole GPU or a profile."""
    job_params = {
        key: value for key, value in params(workload).items() if key not in ("batch_size", "job.samples_per_epoch")
    }
    where: dict[str, Any] = {}
    if place != "full":
        where = {"gi_id": "1", "mig_profile": place, "mig_multiprocessors": str(MULTIPROCESSORS[place])}
    return row(
        "serial" if place == "full" else "mig",
        (job(0, job_params, rate, place=where),),
        block,
        settings=(*SETTINGS, (CO_RUNNERS, co_runners)),
        options={} if place == "full" else {"profile": place},
        device="NVIDIA A100-SXM4-40GB",
        facts={"multiprocessors": "108"},
    )


def make_scaled_rows(**rates: float) -> list[Row]:
    """Five blocks of each place, which hardly differ."""
    names = {place.partition(".")[0]: place for place in MULTIPROCESSORS}
    return [
        make_place_row(names["full" if key == "full" else key[1:]], rate * (1 + block / 10_000), block)
        for block in range(1, 6)
        for key, rate in rates.items()
    ]


def test_each_place_stands_against_the_next_and_7g_against_3g_beside_the_ideal():
    cells = make_cells(study(*make_scaled_rows(full=16.8, _7g=15.3, _4g=8.9, _3g=6.7, _2g=4.4, _1g=2.1)))
    named_steps = {
        (step.larger.partition(".")[0], step.smaller.partition(".")[0]): step for step in effects.steps(cells)
    }
    assert list(named_steps) == [
        ("full", "7g"),
        ("7g", "4g"),
        ("4g", "3g"),
        ("3g", "2g"),
        ("2g", "1g"),
        ("7g", "3g"),
        ("4g", "2g"),
    ]
    assert named_steps["full", "7g"].median == pytest.approx(16.8 / 15.3)
    assert named_steps["full", "7g"].ideal == pytest.approx(108 / 98)
    assert named_steps["4g", "2g"].ideal == 2
    assert named_steps["7g", "3g"].published == "2.292 (A100-SXM4-40GB)"
    assert named_steps["4g", "3g"].published == ""
    table = table_of("scaling", cells)
    loss = dict(zip(table.columns, table.rows[0], strict=True))["loss (%)"]
    assert loss == pytest.approx(100 * (1 - 15.3 / 16.8))


def test_memory_bandwidth_scales_ideally_with_memory_slices() -> None:
    rates = {"full": 1400.0, "7g.40gb": 1400.0, "3g.20gb": 700.0, "2g.10gb": 350.0, "1g.5gb": 175.0}
    rows = [make_place_row(place, rate, block, "micro_copy") for place, rate in rates.items() for block in range(1, 6)]
    steps = {(step.larger, step.smaller): step for step in effects.steps(make_cells(study(*rows)))}
    assert {pair: step.ideal for pair, step in steps.items()} == {
        ("full", "7g.40gb"): 1,
        ("7g.40gb", "3g.20gb"): 2,
        ("3g.20gb", "2g.10gb"): 2,
        ("2g.10gb", "1g.5gb"): 2,
    }
    assert steps["full", "7g.40gb"].loss_pct == 0
    (row,) = table_of("profile-ratios", study(*rows)).rows
    assert row[1:4] == ("0.0", "1, 100 % of 1.00", "2, 100 % of 2.00")


@pytest.mark.parametrize("workload", ["micro_to_device", "micro_launch"])
def test_what_mig_does_not_divide_has_no_ideal(workload: str) -> None:
    rows = [make_place_row(place, 50.0, block, workload) for place in ("7g.40gb", "3g.20gb") for block in range(1, 6)]
    (step,) = effects.steps(make_cells(study(*rows)))
    assert step.ideal is None


def test_tables_have_a_row_a_format_and_a_column_a_profile() -> None:
    rows = [
        *make_scaled_rows(full=16.8, _7g=15.3, _3g=6.7),
        *(make_place_row("7g.40gb", 151.7, b, "micro_fp16_tensor") for b in range(1, 6)),
    ]
    rows += [make_place_row("3g.20gb", 94.2, block, "micro_fp16_tensor") for block in range(1, 6)]
    cells = make_cells(study(*rows))
    table = table_of("profiles", cells)
    assert table.columns == ("workload", "unit", "whole GPU", "7g.40gb", "3g.20gb")
    by_case = {row[0]: row[1:] for row in table.rows}
    assert by_case["micro_fp16_tensor"] == ("samples/s", None, "151.7", "94.2")
    assert str(by_case["micro_fp32_cuda"][1]).startswith("16.8")
    ratios = table_of("profile-ratios", cells)
    assert ratios.columns[1:] == ("loss by MIG (%)", "whole GPU / 7g.40gb", "7g.40gb / 3g.20gb")
    assert [row[1:3] for row in ratios.rows] == [(None, None), ("8.9", "1.10, 100 % of 1.10")]
    assert table_of("profile-times", cells).rows == (), "steady windows"


def test_fixed_work_has_a_table_of_times() -> None:
    rows = [
        dataclasses.replace(row, window=WindowKind.WORK, metrics={**row.metrics, "makespan_s": 1000 / rate})
        for place, rate in (("7g.40gb", 20.0), ("3g.20gb", 10.0))
        for block in (1, 2)
        for row in [make_place_row(place, rate, block, "particles")]
    ]
    table = table_of("profile-times", study(*rows))
    assert table.columns == ("workload", "unit", "7g.40gb", "3g.20gb")
    assert table.rows == (("particles", "s", "50", "100"),)


def test_co_runners_are_another_case_and_what_they_leave_is_told_by_profile():
    rows = make_scaled_rows(full=16.8, _1g=2.0)
    rows += [make_place_row("1g.5gb", 1.5 * (1 + b / 10_000), b, co_runners="6x micro_fp32_cuda") for b in range(1, 6)]
    cells = make_cells(study(*rows))
    (beside,) = effects.compare_co_runners(cells)
    assert (beside.cell.mode, round(beside.gain, 3)) == ("MIG 1g.5gb", 0.75)
    assert f"{CO_RUNNERS} 6x micro_fp32_cuda" in beside.cell.case.label
    assert len(list(effects.steps(cells))) == 1, "the whole GPU against 1g, both without co-runners"


def test_cerns_rows_agree_with_ratios_that_are_near():
    cells = make_cells(study(*make_scaled_rows(full=16.8, _7g=15.3, _3g=5.1)))
    checks_by_text = {check.finding.text: check for check in paper.compare(cells, [])}
    assert checks_by_text["fp32 on CUDA cores, the full GPU over 7g"].agreement is Agreement.AGREES
    other = checks_by_text["fp32 on CUDA cores, 7g over 3g"]
    assert (other.agreement, other.difference) == (Agreement.DIFFERS, "27 % higher")
    assert checks_by_text["fp64 on CUDA cores, 7g over 3g"].agreement is Agreement.NOT_MEASURED


def test_the_slips_of_cerns_tables_are_left_out_and_said():
    (cern,) = [publication for publication in publications() if publication.table == "cern"]
    slips = {finding.text: finding for finding in cern.findings if finding.slips}
    assert len(slips) == 2 and all(len(slip.ratios) == len(slip.rows) - 1 for slip in slips.values())
    copied = slips["fine-tuning at batch 24, 7g over 3g"]
    figures = {name: rest for name, *rest in copied.rows}
    assert figures["5,000 samples"] == figures["10,000 samples"] and copied.left_out == ("5,000 samples",)
    too_long = {name: time for name, time, _ in slips["fine-tuning at batch 48, the full GPU over 7g"].rows}
    assert too_long["15,000 samples"] / too_long["10,000 samples"] == pytest.approx(2, abs=0.02)


def test_the_answer_says_what_mig_and_co_runners_take():
    rows = make_scaled_rows(full=16.8, _7g=15.3, _3g=7.0)
    rows += [make_place_row("3g.20gb", 6.3 * (1 + b / 10_000), b, co_runners="1x micro_fp32_cuda") for b in range(1, 6)]
    report_study = study(*rows)
    (sentence,) = write_answer(report_study, make_cells(report_study), [])
    assert "on 7g.40gb a job is 8.9 % slower (micro_fp32_cuda) than on the whole GPU" in sentence
    assert "a job keeps at least 0.90 times (0.90 to 0.90) its throughput" in sentence
    twice = study(
        *rows,
        *(make_place_row("full", 16.8, b, "micro_copy") for b in range(1, 6)),
        *(make_place_row("7g.40gb", 15.3, b, "micro_copy") for b in range(1, 6)),
    )
    (sentence,) = write_answer(twice, make_cells(twice), [])
    assert "8.9 % slower (micro_fp32_cuda) to 8.9 % slower (micro_copy) than on the whole GPU" in sentence
    faster = study(
        *rows,
        *(
            make_place_row(place, rate, b, "micro_copy")
            for place, rate in (("full", 10), ("7g.40gb", 15))
            for b in range(1, 6)
        ),
    )
    (sentence,) = write_answer(faster, make_cells(faster), [])
    assert "a job is 50.0 % faster (micro_copy) to 8.9 % slower (micro_fp32_cuda) than on the whole GPU" in sentence
    (row,) = table_of("co-runners", report_study).rows
    assert row[:4] == ("micro_fp32_cuda", 1, "MIG 3g.20gb", "1x micro_fp32_cuda")


def test_what_co_runners_leave_is_told_at_equal_settings_and_of_equal_jobs_only() -> None:
    def make_placed_row(block: int, rate: float, settings: tuple[tuple[str, str], ...], co_runners: str = "") -> Row:
        all_settings = (*settings, (CO_RUNNERS, co_runners))
        return dataclasses.replace(
            make_place_row("1g.5gb", rate, block),
            settings=all_settings,
            key=repr(all_settings),
            run_id=f"{all_settings} {block}",
        )

    pinned = (*SETTINGS[:-1], ("pinned CPUs", "true"))
    rows = [make_placed_row(block, 1000.0, SETTINGS) for block in range(1, 6)]
    rows += [make_placed_row(block, 500.0, pinned) for block in range(1, 6)]
    rows += [make_placed_row(block, 900.0, SETTINGS, "1x other") for block in range(1, 6)]
    (beside,) = effects.compare_co_runners(make_cells(study(*rows)))
    assert beside.gain == pytest.approx(0.9)
    assert not list(effects.compare_co_runners(make_cells(study(*rows[5:]))))
    rate_params = [{**job.params, "given_rate": "true"} for job in rows[0].jobs]
    services = [dataclasses.replace(e, jobs=(dataclasses.replace(e.jobs[0], params=rate_params[0]),)) for e in rows]
    assert not list(effects.compare_co_runners(make_cells(study(*services))))


def test_a_later_study_beside_co_runners_stands_beside_that_without() -> None:
    plan = {"multiprocessors": "108", "plan": "later"}
    later = [make_place_row("1g.5gb", 1.5, block, co_runners="6x micro_fp32_cuda") for block in range(1, 6)]
    later = [dataclasses.replace(group_row, facts=plan, start_ms=group_row.start_ms + 10**9) for group_row in later]
    report_study = study(*make_scaled_rows(_1g=2.0), *later)
    assert not report_study.left_out
    (beside,) = effects.compare_co_runners(make_cells(report_study))
    assert beside.gain == pytest.approx(0.75, abs=0.01)


ALONE, CALLS_ALONE = 1000.0, 400.0
SLOWED = {("naive", "l2"): 0.5, ("naive", "host_cores"): 0.9, ("mps", "l2"): 0.8, ("mps", "host_cores"): 1.0}
"""Speed that a workload keeps beside a stressor with a dial of 1, by mode and resource."""


def stressor(resource: str, dial: float, speed: float, index: int = 1) -> JobRow:
    stressor_params = {
        "workload": "stressor",
        "resource": resource,
        "dial": str(dial),
        "work_unit": "calls",
        "seed": "0",
    }
    return job(
        index, stressor_params, None, metrics={"throughput_calls_per_s": CALLS_ALONE * dial * speed}, size="stressor"
    )


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


def map_effects(*rows: Row) -> dict[tuple[Any, ...], Any]:
    effects = list_effects(study(*rows), make_cells(study(*rows)))
    assert effects == sorted(effects, key=lambda effect: (effect.mode == "MPS", effect.resource, effect.dial))
    return {(effect.mode, effect.resource, effect.dial): effect for effect in effects}


def test_a_pair_has_the_slowdowns_of_both_programs_with_intervals() -> None:
    effects = map_effects(*(pair for block in (1, 2, 3) for pair in pairs(block)))
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
    (sketch,) = sketch_stressors(list_effects(study(*rows), cells))
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
    ordinary = [cell for cell in cells if not cell.has_stressor]
    ordinary_names = [drawn.name for drawn in draw_figures(study(*rows), ordinary, None)]
    assert ordinary_names and names == ["sensitivity-resnet26-cifar10-bs128", *ordinary_names]


def test_the_stressor_of_a_script_is_a_co_runner() -> None:
    script_params = {"workload": "train", "args": "--epochs 3", "seed": "0"}
    work = (("device", "NVIDIA H100"), ("window", "work, 1 epochs"), ("seed", "0"))
    steady = (("device", "NVIDIA H100"), ("window", "steady, 5 s after 1 s"), ("seed", "0"))
    beside = stressor("l2", 1.0, 0.8)
    rows = [
        row("serial", (job(0, script_params, None, metrics={"makespan_s": 10.0, "work_time_s": 10.0}),), settings=work,
            window=WindowKind.WORK),
        row("serial", (stressor("l2", 1.0, 1.0, 0),), settings=steady),
        row("mps", (job(0, script_params, None, metrics={"makespan_s": 15.0, "work_time_s": 15.0}),),
            settings=(*work, (CO_RUNNERS, "1x stressor 123456")), window=WindowKind.WORK, co_runner_jobs=(beside,)),
    ]  # fmt: skip
    ((_, effect),) = map_effects(*rows).items()
    assert (effect.workload, effect.mode, effect.resource) == ("train", "MPS", "l2")
    assert effect.sensitivity.median == pytest.approx(1.5) and effect.pressure.median == pytest.approx(1.25)


def test_a_pair_without_its_baseline_has_no_slowdown() -> None:
    rows = [pair for pair in pairs(1) if pair.scenario != "serial"]
    effects = map_effects(*rows).values()
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


def make_turn_facts(rates: dict[tuple[str, float], dict[int, float]]) -> dict[str, str]:
    """Return the facts of a row with these rates in turns."""
    turns = [TurnRates(resource=place[0], dial=place[1], num_turns=2, rates=by_job) for place, by_job in rates.items()]
    return {**copies("serial", 1, 1.0).facts, "turns": format_turns(turns)}


def turn_taker(index: int) -> JobRow:
    stressor_params = {
        "workload": "stressor",
        "resources": '["l2", "host_cores"]',
        "dials": "[0.5, 1.0]",
        "turn_s": "1.0",
    }
    stressor_params |= {"turn_settle_s": "0.2", "work_unit": "calls"}
    return job(index, stressor_params, None, metrics={"throughput_calls_per_s": 100.0}, size="stressor")


def make_turn_pairs(block: int, *, idle: float = ALONE, **changes: Any) -> list[Row]:
    """Return a workload beside a stressor that takes turns, with the speeds of `SLOWED`."""
    places = [(resource, dial) for resource in ("l2", "host_cores") for dial in (0.5, 1.0)]
    alone = {place: {0: CALLS_ALONE * place[1]} for place in places} | {("idle", 0.0): {}}
    rows = [copies("serial", 1, ALONE, block), row("serial", (turn_taker(0),), block, facts=make_turn_facts(alone))]
    for mode in ("naive", "mps"):
        rates = {
            (resource, dial): {0: idle * (1 - dial * (1 - SLOWED[mode, resource])), 1: 0.7 * CALLS_ALONE * dial}
            for resource, dial in places
        }
        jobs = (job(0, params(), ALONE * 0.77), turn_taker(1))
        facts = make_turn_facts({("idle", 0.0): {0: idle}, **rates})
        rows.append(row(mode, jobs, block, **({"facts": facts} | changes)))
    return rows


def test_a_stressor_in_turns_has_an_effect_for_each_resource_and_dial() -> None:
    effects = map_effects(*(pair for block in (1, 2, 3) for pair in make_turn_pairs(block)))
    assert len(effects) == 2 * 2 * 2 and {dial for _, _, dial in effects} == {0.5, 1.0}
    effect = effects["naive", "l2", 0.5]
    assert effect.workload == "resnet26_cifar10 bs128" and effect.params["workload"] == "resnet26_cifar10"
    assert effect.sensitivity.median == pytest.approx(1 / 0.75) and effect.sensitivity.n == 3
    assert effect.pressure.median == pytest.approx(1 / 0.7)


def test_the_baseline_in_turns_is_the_idle_turn_of_the_same_launch() -> None:
    slow = [*make_turn_pairs(1, idle=ALONE / 2), *make_turn_pairs(2)]
    assert map_effects(*slow)["naive", "l2", 1.0].sensitivity.median == pytest.approx(2)


def test_turns_of_invalid_rows_and_without_a_rate_have_no_figure() -> None:
    invalid = map_effects(*make_turn_pairs(1, invalid="another program used the GPU")).values()
    assert invalid and {(effect.sensitivity, effect.pressure) for effect in invalid} == {(None, None)}
    without_idle = make_turn_facts({("l2", 1.0): {0: 500.0, 1: 100.0}, ("idle", 0.0): {}})
    effect = map_effects(*make_turn_pairs(1, facts=without_idle))["naive", "l2", 1.0]
    assert effect.sensitivity is None and effect.pressure.median == pytest.approx(4)


def test_a_clause_says_how_many_loads_have_a_figure() -> None:
    rows = [*make_turn_pairs(1), *make_turn_pairs(2), *make_turn_pairs(3)]
    failed = [one for one in pairs(1) if one.scenario != "serial" and one.jobs[1].params["resource"] == "host_cores"]
    rows += [replace(one, result=Result.FAILED) for one in failed]
    clauses = describe_effects(list_effects(study(*rows), make_cells(study(*rows))))
    assert len(clauses) == 2 and all("4 of 7 loads have a figure" in clause for clause in clauses)


@pytest.mark.slow
def test_the_table_the_figure_and_predictions_read_turns() -> None:
    rows = [*make_turn_pairs(1), copies("naive", 2, 600.0)]
    full_study = study(*rows)
    cells = make_cells(full_study)
    (table,) = (table for table in make_tables(full_study, cells, [], [], []) if table.name == "sensitivity")
    assert [line[2:4] for line in table.rows[:4]] == [
        ("host_cores", 0.5),
        ("host_cores", 1.0),
        ("l2", 0.5),
        ("l2", 1.0),
    ]
    names = [drawn.name for drawn in draw_figures(full_study, cells, None)]
    ordinary = [cell for cell in cells if not cell.has_stressor]
    assert names == ["sensitivity-resnet26-cifar10-bs128", *(d.name for d in draw_figures(full_study, ordinary, None))]
    vectors = collect_inputs(full_study, cells).vectors["MPS"]["resnet26_cifar10 bs128"]
    assert vectors.has("l2") and vectors.has("host_cores") and not vectors.has("launches")
    failed = [one if one.is_sequential else replace(one, result=Result.OOM) for one in make_turn_pairs(1)]
    failures = collect_inputs(study(*failed), make_cells(study(*failed))).failures
    assert {resource for mode, _, resource in failures if mode == "MPS"} == {"l2", "host_cores"}


def test_a_script_beside_turns_has_the_effects_under_its_own_name() -> None:
    script_params = {"workload": "train", "args": "--epochs 3", "seed": "0"}
    logged = (("device", "NVIDIA H100"), ("window", "logged"), ("seed", "0"))
    facts = make_turn_facts({("idle", 0.0): {0: 90.0}, ("l2", 1.0): {0: 60.0, 1: 320.0}})
    rows = [
        row("serial", (job(0, script_params, 100.0),), settings=logged, window=WindowKind.LOGGED),
        row("serial", (turn_taker(0),), facts=make_turn_facts({("l2", 1.0): {0: 400.0}})),
        row("mps", (job(0, script_params, 80.0),), settings=(*logged, (CO_RUNNERS, "1x stressor 123456")),
            window=WindowKind.LOGGED, co_runner_jobs=(turn_taker(1),), facts=facts),
    ]  # fmt: skip
    ((_, effect),) = map_effects(*rows).items()
    assert (effect.workload, effect.resource, effect.dial) == ("train", "l2", 1.0)
    assert effect.sensitivity.median == pytest.approx(1.5) and effect.pressure.median == pytest.approx(1.25)
