"""MIG's cost and scaling, and what co-runners leave, of studies whose truth is known."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from pipeline.base.domain.records import CO_RUNNERS
from pipeline.base.domain.window import WindowKind
from pipeline.report.evaluate import effects, paper
from pipeline.report.evaluate.cells import make_cells
from pipeline.report.evaluate.paper import Agreement
from pipeline.report.evaluate.publication import publications
from pipeline.report.page.key_findings import write_answer
from pipeline.report.read.study_records import Row
from tests.support.report_rows import job, params, row, study, table_of

MULTIPROCESSORS = {"full": 108, "7g.40gb": 98, "4g.20gb": 56, "3g.20gb": 42, "2g.10gb": 28, "1g.5gb": 14}
SETTINGS = (("device", "A100"), ("window", "steady, 5 s after 1 s"), ("seed", "0"), ("pinned CPUs", "false"))


def on(place: str, rate: float, block: int, workload: str = "micro_fp32_cuda", co_runners: str = "") -> Row:
    """One job on the whole GPU or a profile."""
    own = {key: value for key, value in params(workload).items() if key not in ("batch_size", "job.samples_per_epoch")}
    where: dict[str, Any] = {}
    if place != "full":
        where = {"gi_id": "1", "mig_profile": place, "mig_multiprocessors": str(MULTIPROCESSORS[place])}
    return row(
        "serial" if place == "full" else "mig",
        (job(0, own, rate, place=where),),
        block,
        settings=(*SETTINGS, (CO_RUNNERS, co_runners)),
        options={} if place == "full" else {"profile": place},
        device="NVIDIA A100-SXM4-40GB",
        facts={"multiprocessors": "108"},
    )


def scaled(**rates: float) -> list[Row]:
    """Five blocks of each place, which hardly differ."""
    names = {place.partition(".")[0]: place for place in MULTIPROCESSORS}
    return [
        on(names["full" if key == "full" else key[1:]], rate * (1 + block / 10_000), block)
        for block in range(1, 6)
        for key, rate in rates.items()
    ]


def test_each_place_stands_against_the_next_and_7g_against_3g_beside_the_ideal():
    cells = make_cells(study(*scaled(full=16.8, _7g=15.3, _4g=8.9, _3g=6.7, _2g=4.4, _1g=2.1)))
    found = {(step.larger.partition(".")[0], step.smaller.partition(".")[0]): step for step in effects.steps(cells)}
    assert list(found) == [
        ("full", "7g"),
        ("7g", "4g"),
        ("4g", "3g"),
        ("3g", "2g"),
        ("2g", "1g"),
        ("7g", "3g"),
        ("4g", "2g"),
    ]
    assert found["full", "7g"].median == pytest.approx(16.8 / 15.3)
    assert found["full", "7g"].ideal == pytest.approx(108 / 98)
    assert found["4g", "2g"].ideal == 2
    assert found["7g", "3g"].published == "2.292 (A100-SXM4-40GB)"
    assert found["4g", "3g"].published == ""
    table = table_of("scaling", cells)
    loss = dict(zip(table.columns, table.rows[0], strict=True))["loss (%)"]
    assert loss == pytest.approx(100 * (1 - 15.3 / 16.8))


def test_memory_bandwidth_scales_ideally_with_memory_slices() -> None:
    rates = {"full": 1400.0, "7g.40gb": 1400.0, "3g.20gb": 700.0, "2g.10gb": 350.0, "1g.5gb": 175.0}
    rows = [on(place, rate, block, "micro_copy") for place, rate in rates.items() for block in range(1, 6)]
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
    rows = [on(place, 50.0, block, workload) for place in ("7g.40gb", "3g.20gb") for block in range(1, 6)]
    (step,) = effects.steps(make_cells(study(*rows)))
    assert step.ideal is None


def test_tables_have_a_row_a_format_and_a_column_a_profile() -> None:
    rows = [*scaled(full=16.8, _7g=15.3, _3g=6.7), *(on("7g.40gb", 151.7, b, "micro_fp16_tensor") for b in range(1, 6))]
    rows += [on("3g.20gb", 94.2, block, "micro_fp16_tensor") for block in range(1, 6)]
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
        for row in [on(place, rate, block, "particles")]
    ]
    table = table_of("profile-times", study(*rows))
    assert table.columns == ("workload", "unit", "7g.40gb", "3g.20gb")
    assert table.rows == (("particles", "s", "50", "100"),)


def test_co_runners_are_another_case_and_what_they_leave_is_told_by_profile():
    rows = scaled(full=16.8, _1g=2.0)
    rows += [on("1g.5gb", 1.5 * (1 + b / 10_000), b, co_runners="6x micro_fp32_cuda") for b in range(1, 6)]
    cells = make_cells(study(*rows))
    (beside,) = effects.compare_co_runners(cells)
    assert (beside.cell.mode, round(beside.gain, 3)) == ("MIG 1g.5gb", 0.75)
    assert f"{CO_RUNNERS} 6x micro_fp32_cuda" in beside.cell.case.label
    assert len(list(effects.steps(cells))) == 1, "the whole GPU against 1g, both without co-runners"


def test_cerns_rows_agree_with_ratios_that_are_near():
    cells = make_cells(study(*scaled(full=16.8, _7g=15.3, _3g=5.1)))
    found = {check.finding.text: check for check in paper.compare(cells, [])}
    assert found["fp32 on CUDA cores, the full GPU over 7g"].agreement is Agreement.AGREES
    other = found["fp32 on CUDA cores, 7g over 3g"]
    assert (other.agreement, other.difference) == (Agreement.DIFFERS, "27 % higher")
    assert found["fp64 on CUDA cores, 7g over 3g"].agreement is Agreement.NOT_MEASURED


def test_the_slips_of_cerns_tables_are_left_out_and_said():
    (cern,) = [publication for publication in publications() if publication.table == "cern"]
    slips = {finding.text: finding for finding in cern.findings if finding.slips}
    assert len(slips) == 2 and all(len(each.ratios) == len(each.rows) - 1 for each in slips.values())
    copied = slips["fine-tuning at batch 24, 7g over 3g"]
    figures = {name: rest for name, *rest in copied.rows}
    assert figures["5,000 samples"] == figures["10,000 samples"] and copied.left_out == ("5,000 samples",)
    too_long = {name: time for name, time, _ in slips["fine-tuning at batch 48, the full GPU over 7g"].rows}
    assert too_long["15,000 samples"] / too_long["10,000 samples"] == pytest.approx(2, abs=0.02)


def test_the_answer_says_what_mig_and_co_runners_take():
    rows = scaled(full=16.8, _7g=15.3, _3g=7.0)
    rows += [on("3g.20gb", 6.3 * (1 + b / 10_000), b, co_runners="1x micro_fp32_cuda") for b in range(1, 6)]
    found = study(*rows)
    (said,) = write_answer(found, make_cells(found), [])
    assert "on 7g.40gb a job is 8.9 % slower (micro_fp32_cuda) than on the whole GPU" in said
    assert "a job keeps at least 0.90 times (0.90 to 0.90) its throughput" in said
    twice = study(
        *rows,
        *(on("full", 16.8, b, "micro_copy") for b in range(1, 6)),
        *(on("7g.40gb", 15.3, b, "micro_copy") for b in range(1, 6)),
    )
    (said,) = write_answer(twice, make_cells(twice), [])
    assert "8.9 % slower (micro_fp32_cuda) to 8.9 % slower (micro_copy) than on the whole GPU" in said
    faster = study(
        *rows,
        *(on(place, rate, b, "micro_copy") for place, rate in (("full", 10), ("7g.40gb", 15)) for b in range(1, 6)),
    )
    (said,) = write_answer(faster, make_cells(faster), [])
    assert "a job is 50.0 % faster (micro_copy) to 8.9 % slower (micro_fp32_cuda) than on the whole GPU" in said
    (row,) = table_of("co-runners", found).rows
    assert row[:4] == ("micro_fp32_cuda", 1, "MIG 3g.20gb", "1x micro_fp32_cuda")


def test_what_co_runners_leave_is_told_at_equal_settings_and_of_equal_jobs_only() -> None:
    def placed(block: int, rate: float, settings: tuple[tuple[str, str], ...], co_runners: str = "") -> Row:
        whole = (*settings, (CO_RUNNERS, co_runners))
        return dataclasses.replace(
            on("1g.5gb", rate, block), settings=whole, key=repr(whole), run_id=f"{whole} {block}"
        )

    pinned = (*SETTINGS[:-1], ("pinned CPUs", "true"))
    rows = [placed(block, 1000.0, SETTINGS) for block in range(1, 6)]
    rows += [placed(block, 500.0, pinned) for block in range(1, 6)]
    rows += [placed(block, 900.0, SETTINGS, "1x other") for block in range(1, 6)]
    (beside,) = effects.compare_co_runners(make_cells(study(*rows)))
    assert beside.gain == pytest.approx(0.9)
    assert not list(effects.compare_co_runners(make_cells(study(*rows[5:]))))
    given = [{**job.params, "given_rate": "true"} for job in rows[0].jobs]
    services = [dataclasses.replace(e, jobs=(dataclasses.replace(e.jobs[0], params=given[0]),)) for e in rows]
    assert not list(effects.compare_co_runners(make_cells(study(*services))))


def test_a_later_study_beside_co_runners_stands_beside_that_without() -> None:
    plan = {"multiprocessors": "108", "plan": "later"}
    later = [on("1g.5gb", 1.5, block, co_runners="6x micro_fp32_cuda") for block in range(1, 6)]
    later = [dataclasses.replace(each, facts=plan, start_ms=each.start_ms + 10**9) for each in later]
    found = study(*scaled(_1g=2.0), *later)
    assert not found.left_out
    (beside,) = effects.compare_co_runners(make_cells(found))
    assert beside.gain == pytest.approx(0.75, abs=0.01)
