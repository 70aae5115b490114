"""Which runs count in a report, and what they are called."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pipeline.base.domain.normalisation import SPEEDUP
from pipeline.base.domain.records import Group, Result
from pipeline.base.domain.sharing_modes import mode_of
from pipeline.base.domain.window import WindowKind
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.observe.group_result import GroupResult, JobResult
from pipeline.prepare.env.current import CurrentEnv
from pipeline.record.group_record import GroupRecord
from pipeline.record.spool import Spool
from pipeline.report.evaluate import effects
from pipeline.report.evaluate.cells import make_cells
from pipeline.report.evaluate.contrasts import Contrast, compare_modes
from pipeline.report.evaluate.verdicts import winners
from pipeline.report.page.key_findings import describe_setup, summarize
from pipeline.report.read import rows
from pipeline.report.read.result_rows import make_study_of_results
from pipeline.report.read.rows import study_of
from pipeline.report.read.study_records import JobRow, Row
from tests.conftest import GPU
from tests.support.report_rows import copies, job, params, row, study, table_of
from tests.support.rows import group as make_group
from tests.support.tracking_cases import Recorded


def test_the_newest_finding_of_a_group_counts_and_a_failure_only_while_there_is_no_finding() -> None:
    failed = copies("naive", 2, 1.0, result=Result.FAILED, start_ms=1)
    first, second = copies("naive", 2, 5.0, start_ms=2), copies("naive", 2, 7.0, start_ms=3)
    later_failure = copies("naive", 2, 1.0, result=Result.TIMEOUT, start_ms=4)
    selected_study = study(failed, first, second, later_failure)
    assert [r.start_ms for r in selected_study.rows] == [3]
    assert selected_study.left_out == {"run again: the newest result counts": 3}
    assert [r.result for r in study(failed).rows] == [Result.FAILED]


def test_a_study_that_was_stopped_and_resumed_is_as_if_it_had_not_been() -> None:
    complete_rows = [copies("serial", 1, 10.0, start_ms=1), copies("naive", 2, 9.0, start_ms=3)]
    stopped = copies("naive", 2, 1.0, result=Result.INTERRUPTED, start_ms=2)
    once, resumed = study(*complete_rows), study(complete_rows[0], stopped, complete_rows[1])
    assert dataclasses.replace(resumed) == once
    assert [r.result for r in study(complete_rows[0], stopped).rows] == [Result.OK, Result.INTERRUPTED]


@pytest.mark.parametrize("boot", ["boot-1", "boot-2"])
def test_a_group_that_was_skipped_and_could_begin_later_is_not_called_skipped(boot: str) -> None:
    skipped = copies("mps", 2, 1.0, result=Result.SKIPPED, start_ms=2, boot_id=boot)
    first_rows = [copies("serial", 1, 10.0, start_ms=1), skipped]
    later = copies("mps", 2, 1.0, result=Result.TIMEOUT, start_ms=3)
    selected_study = study(*first_rows, later)
    assert [r.result for r in selected_study.rows] == [Result.OK, Result.TIMEOUT]
    assert selected_study.left_out == {"skipped at first, run later": 1} and selected_study.blocks[0].num_missing == 1
    assert [
        r.result for r in study(first_rows[0], later, dataclasses.replace(skipped, start_ms=4, boot_id="boot-1")).rows
    ] == [
        Result.OK,
        Result.SKIPPED,
    ]


def test_a_complete_block_of_one_boot_is_preferred_to_newer_pieces_of_another() -> None:
    old = [copies("serial", 1, 10.0, start_ms=1), copies("naive", 2, 9.0, start_ms=2)]
    new = copies("naive", 2, 99.0, start_ms=3, boot_id="boot-2")
    selected_study = study(*old, new)
    assert {r.boot_id for r in selected_study.rows} == {"boot-1"}
    assert selected_study.left_out == {"different boot than the rest of its block": 1}
    assert (selected_study.blocks[0].num_groups, selected_study.blocks[0].num_missing) == (2, 0)


@pytest.mark.parametrize(
    "change", [{"driver_version": "590.48.01"}, {"power_limit_w": "500"}, {"ecc_mode": "disabled"}]
)
def test_rows_of_two_states_of_a_machine_never_stand_in_one_block(change: dict[str, str]) -> None:
    before = {"driver_version": "580.159.04", "power_limit_w": "700", "ecc_mode": "enabled"}
    serial, naive = copies("serial", 1, 10.0, start_ms=1), copies("naive", 2, 9.0, start_ms=2)
    mps = copies("mps", 2, 9.0, start_ms=3)
    old = [dataclasses.replace(group_row, facts=group_row.facts | before) for group_row in (serial, naive)]
    selected_study = study(*old, dataclasses.replace(mps, facts=mps.facts | before | change))
    assert [group_row.scenario for group_row in selected_study.rows] == ["serial", "naive"]
    (reason,) = selected_study.left_out
    assert reason in {f"different {word} than the rest of its block" for word in ("driver", "power limit", "ECC mode")}
    unknown = dataclasses.replace(mps, facts=mps.facts | dict.fromkeys(change, ""))
    assert [group_row.scenario for group_row in study(*old, unknown).rows] == ["serial", "naive", "mps"]


def test_of_an_incomplete_block_the_larger_part_counts_and_never_a_mixture() -> None:
    rows = [copies("serial", 1, 10.0), copies("naive", 2, 9.0), copies("mps", 2, 9.0, boot_id="boot-2", start_ms=9)]
    selected_study = study(*rows)
    assert {r.boot_id for r in selected_study.rows} == {"boot-1"}
    assert selected_study.blocks[0].num_missing == 1
    assert selected_study.num_complete_blocks == 0


def test_where_a_unit_is_a_case_each_case_of_a_block_comes_from_a_gpu_of_its_own() -> None:
    def case(number: int, gpu: str, block: int) -> list[Row]:
        job_params = params(f"workload{number}")
        facts = {"plan": "p", "case": str(number), "plan_groups": "8", "shard": "1"}
        more: dict[str, Any] = {"gpu_uuid": gpu, "facts": facts, "job_params": job_params, "block": block}
        return [copies("serial", 1, 10.0, **more), copies("naive", 2, 6.0, **more)]

    selected_study = study(*case(1, "GPU-1", 1), *case(2, "GPU-2", 1), *case(1, "GPU-1", 2), *case(2, "GPU-1", 2))
    assert len(selected_study.rows) == selected_study.num_planned == 8
    assert not selected_study.left_out
    assert [
        (gpu_block.number, gpu_block.gpu_uuid, gpu_block.num_groups, gpu_block.num_missing)
        for gpu_block in selected_study.blocks
    ] == [
        *((1, "GPU-1", 2, 0), (2, "GPU-1", 4, 0)),
        (3, "GPU-2", 2, 0),
    ]
    ratios = [cell.values[SPEEDUP] for cell in make_cells(selected_study) if cell.degree == 2 and cell.mode == "naive"]
    assert ratios == [{1: 1.2, 2: 1.2}, {2: 1.2, 3: 1.2}]


def compare_other_gpus(*rows: Row) -> Iterator[Contrast]:
    """Return the effects of work on other GPUs in the study of these rows."""
    measured = study(*rows)
    return effects.compare_other_gpus(measured, make_cells(measured))


def make_company_row(beside: str, rate: float, block: int, **changes: Any) -> Row:
    settings = (("device", "NVIDIA H100 80GB HBM3"), ("window", "steady, 5 s after 1 s"), ("other GPUs", beside))
    facts = {"plan": f"plan{beside}", "plan_groups": "3", "shard": str(block)}
    start_ms = 1000 * block + len(beside)
    return copies("naive", 2, rate, block, settings=settings, facts=facts, start_ms=start_ms, **changes)


def test_rows_alone_and_in_company_are_cells_of_their_own_and_are_compared_on_one_gpu() -> None:
    alone = [make_company_row("", 10.0 * block, block) for block in (1, 2, 3)]
    company = [make_company_row("3", 9.0 * block, block) for block in (1, 2)]
    selected_study = study(*alone, *company, make_company_row("3", 99.0, 3, gpu_uuid="GPU-2"))
    assert not selected_study.left_out
    assert selected_study.num_planned == len(selected_study.rows) == 6
    assert [(cell.case.setting, len(cell.gpus)) for cell in make_cells(selected_study)] == [
        ("", 3),
        ("other GPUs 3", 3),
    ]
    (effect,) = compare_other_gpus(*selected_study.rows)
    assert (effects.count_other_gpus(effect), effect.num_blocks, effect.gain) == (3, 2, 0.9)
    assert effects.find_reference(effect).case.setting == ""
    assert effects.describe_other_gpus(effect).endswith("keeps 0.900 of its speed while 3 other GPUs work.")
    assert not list(compare_other_gpus(*alone))


def test_what_other_gpus_cost_is_said_in_a_sentence_with_the_least_and_the_most() -> None:
    def summarize_company(*shares: tuple[float, ...], beside: str = "1") -> list[str]:
        rows = []
        for position, of_blocks in enumerate(shares):
            for block, share in enumerate(of_blocks, start=1):
                what = {"options": {"percent": str(position)}}
                rows += [
                    make_company_row("", 10.0, block, **what),
                    make_company_row(beside, 10.0 * share, block, **what),
                ]
        return effects.summarize_other_gpus(compare_other_gpus(*rows))

    jobs = "naive percent=0 with 2 resnet26_cifar10 bs128"
    (sentence,) = summarize_company((0.9,))
    assert sentence == f"While another GPU works, {jobs} keeps 0.900 of its speed; an interval needs 3 blocks."
    (sentence,) = summarize_company((0.9, 0.91, 0.92), (0.9, 1.0, 1.1), (0.8, 0.8, 0.81), beside="3")
    assert sentence.startswith("While 3 other GPUs work, ")
    assert " keeps 0.800 (0.789 to 0.818) of its speed (the lowest of 3 groups) and " in sentence
    assert sentence.endswith("; 2 of 3 intervals exclude 1.")
    assert summarize_company() == []


def test_company_is_compared_by_rates_of_logged_windows_and_of_mixes_by_those_of_each_job() -> None:
    def make_company_mix(beside: str, rates: list[float], window: WindowKind, **changes: Any) -> Row:
        jobs = tuple(job(index, params(f"w{index}"), rate) for index, rate in enumerate(rates))
        settings = (("device", "NVIDIA H100 80GB HBM3"), ("window", "logged"), ("other GPUs", beside))
        return row("naive", jobs, settings=settings, window=window, start_ms=len(beside), **changes)

    slow = {"metrics": {"makespan_s": 80.0}}
    rows = [
        make_company_mix("", [1000.0], WindowKind.LOGGED, metrics={"makespan_s": 70.0}),
        make_company_mix("1", [500.0], WindowKind.LOGGED, **slow),
    ]
    (effect,) = compare_other_gpus(*rows)
    assert effect.gain == 0.5
    rows = [
        make_company_mix("", [1000.0, 10.0], WindowKind.STEADY),
        make_company_mix("1", [1000.0, 5.0], WindowKind.STEADY),
    ]
    (effect,) = compare_other_gpus(*rows)
    assert effect.gain == 0.75
    service_jobs = [dataclasses.replace(e.jobs[0], params=e.jobs[0].params | {"given_rate": "true"}) for e in rows]
    services = [dataclasses.replace(e, jobs=(g,)) for e, g in zip(rows, service_jobs, strict=True)]
    assert not list(compare_other_gpus(*services))


def make_host_rows(store: int, **facts: str) -> list[Row]:
    kind = {"cpu_model": "Xeon", "cpus": "16", "power_limit_w": "700", "driver_version": "580.1"}
    more: dict[str, Any] = {"facts": kind | facts, "gpu_uuid": f"GPU-{store}", "start_ms": store}
    return [copies("serial", 1, 10.0 * store, **more), copies("naive", 2, 6.0 * store, **more)]


def test_kinds_of_hosts_are_cells_of_their_own_unless_they_are_pooled() -> None:
    stores = (make_host_rows(1), make_host_rows(2, driver_version="590.2"), make_host_rows(3))
    unpooled_study = study_of("e", *stores, pools_hosts=False)
    assert [
        (cell.case.setting, cell.mode, sorted(cell.gpus)) for cell in make_cells(unpooled_study) if cell.degree == 2
    ] == [
        (f"host driver {driver}", mode, blocks)
        for driver, blocks in (("580.1", [1, 3]), ("590.2", [2]))
        for mode in ("serial", "naive")
    ]
    assert "The hosts of NVIDIA H100 80GB HBM3 differ in driver; their blocks are not pooled" in str(
        describe_setup(unpooled_study)
    )
    pooled = study_of("e", *stores, pools_hosts=True)
    assert {(cell.case.setting, len(cell.gpus)) for cell in make_cells(pooled)} == {("", 3)}
    assert "differ in driver; their blocks are pooled" in str(describe_setup(pooled))
    alike = study_of("e", make_host_rows(1), make_host_rows(2), pools_hosts=False)
    assert {cell.case.setting for cell in make_cells(alike)} == {""}
    assert "hosts" not in str(describe_setup(alike))


A100 = "NVIDIA A100-SXM4-40GB"


def make_model_rows(model: str, speed: float, study_digest: str = "s", start_ms: int = 1) -> list[Row]:
    """Two blocks of a plan on a GPU of one model, which ends an hour or so before that on another one."""
    facts = {"plan": f"{study_digest} on {model}", "plan_any_gpu": study_digest, "plan_groups": "6", "shard": "1"}
    facts |= {"driver_version": "580.1", "host": f"host of {model}"}
    more: dict[str, Any] = {"device": model, "gpu_uuid": f"GPU-{model}", "facts": facts, "start_ms": start_ms}
    pairs = [("serial", 1, speed), ("naive", 2, 0.6 * speed), ("mps", 2, 0.8 * speed)]
    return [copies(*pair, block, **more) for block in (1, 2) for pair in pairs]


@pytest.mark.parametrize("pools_hosts", [False, True])
def test_gpu_models_of_one_study_stand_beside_each_other_and_never_mix(pools_hosts: bool) -> None:
    two_model_study = study_of(
        "e", [*make_model_rows(GPU.name, 20.0), *make_model_rows(A100, 10.0, start_ms=9)], pools_hosts=pools_hosts
    )
    assert not two_model_study.left_out
    assert two_model_study.num_planned == len(two_model_study.rows) == 12
    assert [(block.number, block.device, block.num_missing) for block in two_model_study.blocks] == [
        (number, model, 0) for number in (1, 2) for model in (A100, GPU.name)
    ]
    together = [cell for cell in make_cells(two_model_study) if cell.degree == 2]
    assert {(cell.case.setting, cell.device, cell.mode, len(set(cell.gpus.values()))) for cell in together} == {
        (f"device {model}", model, mode, 1) for model in (A100, GPU.name) for mode in ("serial", "naive", "MPS")
    }
    gains = {cell.mode: cell.values[SPEEDUP] for cell in together}
    assert gains["naive"] == pytest.approx({1: 1.2, 2: 1.2}) and gains["MPS"] == pytest.approx({1: 1.6, 2: 1.6})
    judged = compare_modes(make_cells(two_model_study))
    against_serial = {
        round(comparison.ratio.median, 9)
        for comparison in judged
        if comparison.ratio and comparison.against == "serial"
    }
    assert against_serial == {1.2, 1.6}
    assert {winner.case.setting for winner in winners(make_cells(two_model_study), judged)} == {
        f"device {A100}",
        f"device {GPU.name}",
    }
    assert "The blocks ran on 2 GPUs of 2 models, which are not pooled: " in str(describe_setup(two_model_study))
    sentence = summarize(two_model_study, make_cells(two_model_study), winners(make_cells(two_model_study), judged))
    assert sentence.endswith(" (2 complete blocks of each GPU model).")
    assert [row[:4] for row in table_of("blocks", two_model_study).rows[:2]] == [
        (1, f"host of {model}", model, "580.1") for model in (A100, GPU.name)
    ]


def test_of_another_study_the_model_that_was_measured_last_counts() -> None:
    selected_study = study(*make_model_rows(GPU.name, 20.0, "older"), *make_model_rows(A100, 10.0, "newer", start_ms=9))
    assert selected_study.devices == (A100,)
    assert selected_study.left_out == {f"older plan: device {GPU.name} instead of {A100}": 6}
    assert "models" not in str(describe_setup(selected_study))


def test_a_half_run_study_says_which_blocks_lack_groups() -> None:
    rows = [copies(s, d, 10.0, b) for b in (1, 2, 3) for s, d in (("serial", 1), ("naive", 2), ("mps", 2))][:-2]
    partial_study = study(*rows, None)
    assert [block.num_missing for block in partial_study.blocks] == [0, 0, 2]
    assert partial_study.num_complete_blocks == 2
    assert partial_study.left_out == {"no result: still running, or never closed": 1}


def test_blocks_of_a_second_store_follow_those_of_the_first() -> None:
    """As those of a second machine: another GPU, the same plan."""
    pairs = [("serial", 1, 10.0), ("naive", 2, 9.0)]
    facts = {"plan": "1234", "plan_groups": "6"}
    first = [copies(*pair, block, facts=facts) for block in (1, 2) for pair in pairs]
    second = [copies(*pair, block, facts=facts, gpu_uuid="GPU-2") for block in (1, 2, 3) for pair in pairs][:-1]
    merged_study = study_of("synthetic", first, [*second, None])
    assert [(block.number, block.gpu_uuid, block.num_missing) for block in merged_study.blocks] == [
        *((number, "GPU-1", 0) for number in (1, 2)),
        *((number, "GPU-2", 0) for number in (3, 4)),
        (5, "GPU-2", 1),
    ]
    assert merged_study.num_planned == 12 and len(merged_study.rows) == 9
    assert merged_study.left_out == {"no result: still running, or never closed": 1}
    (naive,) = [cell for cell in make_cells(merged_study) if cell.mode == "naive"]
    assert naive.values["speedup_vs_serial_ratio"] == dict.fromkeys((1, 2, 3, 4), 1.8)
    (reason,) = study_of("synthetic", [copies("naive", 2, 9.0, settings=settings("20 s"), start_ms=1)], first).left_out
    assert reason.startswith("older plan: ")


def test_a_study_that_stopped_at_its_precision_goal_is_complete() -> None:
    plans = {"facts": {"plan": "20", "plan_groups": "40"}, "later_plans": ({"plan": "5", "plan_groups": "10"},)}
    stopped_study = study(
        *(copies(mode, 1, 9.0, block, **plans) for block in range(1, 6) for mode in ("serial", "naive"))
    )
    assert stopped_study.num_planned == len(stopped_study.rows) == 10


def test_units_of_one_plan_are_one_study_in_whatever_stores_they_are() -> None:
    """Of two workers that ran one unit, one attempt counts: the complete one."""
    facts = {"plan": "1234", "plan_groups": "6"}
    units = [{"facts": facts | {"shard": str(number)}} for number in (1, 2, 3)]
    pairs = [("serial", 1, 10.0), ("naive", 2, 9.0)]
    first = [copies(*pair, block, **units[block - 1]) for block in (1, 3) for pair in pairs]
    second = [copies(*pair, block, gpu_uuid="GPU-2", **units[block - 1]) for block in (2, 3) for pair in pairs][:-1]
    merged_study = study_of("synthetic", first, second)
    assert [(block.number, block.gpu_uuid, block.num_missing) for block in merged_study.blocks] == [
        *((1, "GPU-1", 0), (2, "GPU-2", 0), (3, "GPU-1", 0)),
    ]
    assert merged_study.num_planned == 6
    assert merged_study.left_out == {"different GPU than the rest of its block": 1}


def test_settings_are_named_only_where_rows_of_the_same_jobs_differ_in_them() -> None:
    steady, work = settings("steady, 5 s"), settings("work, 1 epoch")
    alone = [copies(mode, 2, 9.0, settings=steady) for mode in ("naive", "mps")]
    mix = row("naive", (job(0, params(), 5.0, size="S"), job(1, params("other"), 5.0, size="M")), settings=work)
    assert {r.setting for r in study(*alone, mix).rows} == {""}
    both = study(*alone, copies("naive", 3, 9.0, settings=work), mix).rows
    assert sorted((r.degree, r.setting) for r in both if not r.is_mix) == [
        (2, "window steady, 5 s"),
        (2, "window steady, 5 s"),
        (3, "window work, 1 epoch"),
    ]
    assert [r.setting for r in both if r.is_mix] == [""]


def test_rows_of_older_settings_are_left_out_with_what_differed() -> None:
    old = [copies("naive", 2, 9.0, block, settings=settings("20 s")) for block in (1, 2, 3)]
    new = [copies("naive", 2, 9.0, settings=settings("5 s"), start_ms=9_000_000, start="later")]
    selected_study = study(*old, *new)
    assert len(selected_study.rows) == 1
    assert selected_study.left_out == {"older plan: window 20 s instead of 5 s": 3}


def test_rows_of_a_program_that_changed_are_left_out() -> None:
    old = row("naive", (job(0, params(), 5.0, salt="old environment"),), start_ms=1)
    new = row("serial", (job(0, params(), 5.0),), start_ms=9, start="later")
    other = row("serial", (job(0, params("other"), 5.0),), start_ms=2)
    selected_study = study(old, new, other)
    assert sorted(r.jobs[0].params["workload"] for r in selected_study.rows) == ["other", "resnet26_cifar10"]
    assert list(selected_study.left_out) == ["older plan: a program, its options or its environment changed since"]


def test_a_plan_is_older_for_its_own_programs_only() -> None:
    """A mix that ran before stays, and so do the baselines that it is compared with."""
    of = {name: job(0, params(name), 5.0) for name in ("a", "b")}
    old = {"settings": settings("20 s"), "start_ms": 1, "facts": {"plan": "old"}}
    mix = row("naive", (of["a"], dataclasses.replace(of["b"], index=1)), **old)
    alone = [row("serial", (workload_job,), **old) for workload_job in of.values()]
    copies_of_b = row("naive", (of["b"],) * 2, **old)
    again = row("naive", (of["a"],) * 2, settings=settings("5 s"), start_ms=9, facts={"plan": "new"})
    selected_study = study(mix, *alone, copies_of_b, row("naive", (of["a"],) * 2, **old), again)
    assert {r.run_id for r in selected_study.rows} == {r.run_id for r in (mix, *alone, copies_of_b, again)}
    assert selected_study.left_out == {"older plan: window 20 s instead of 5 s": 1}


def test_what_ran_under_a_profiler_neither_counts_nor_replaces_anything() -> None:
    plain = copies("naive", 2, 9.0, start_ms=1)
    profiled = copies("naive", 2, 3.0, start_ms=2, start="later", facts={"profiler": "nsys"})
    selected_study = study(plain, profiled)
    assert [r.run_id for r in selected_study.rows] == [plain.run_id]
    assert selected_study.left_out == {"ran under nsys, which changes the figures": 1}


def test_two_precisions_that_ran_apart_stand_beside_each_other() -> None:
    """In another window, and since another boot, neither is an older plan of the other."""
    pairs = (("serial", 1), ("naive", 2))
    job_params = params(precision="bf16")
    first = [
        copies(*pair, 9.0, block, job_params=params(precision="default"), start="first", settings=settings("5 s"))
        for block in (1, 2)
        for pair in pairs
    ]
    other = {"job_params": job_params, "boot_id": "boot-2", "settings": settings("20 s")}
    second = [
        copies(*pair, 18.0, block, start_ms=9_000_000, start="second", **other) for block in (1, 2) for pair in pairs
    ]
    selected_study = study(*first, *second)
    assert selected_study.left_out == {} and selected_study.num_complete_blocks == 4
    assert [(block.number, block.boot_id) for block in selected_study.blocks] == [
        (1, "boot-1"), (2, "boot-1"), (3, "boot-2"), (4, "boot-2"),
    ]  # fmt: skip
    labels = {r.jobs[0].label for r in selected_study.rows}
    assert labels == {"resnet26_cifar10 bs128 (default precision)", "resnet26_cifar10 bs128 (bf16)"}
    gains = [cell.values["speedup_vs_serial_ratio"] for cell in make_cells(selected_study) if cell.mode == "naive"]
    assert gains == [{3: 2.0, 4: 2.0}, {1: 2.0, 2: 2.0}]


def test_two_precisions_of_one_boot_share_their_blocks() -> None:
    first = [copies(mode, 2, 9.0, start="first") for mode in ("naive", "mps")]
    second = [copies(mode, 2, 9.0, start="second", job_params=params(precision="bf16")) for mode in ("naive", "mps")]
    (block,) = study(*first, *second).blocks
    assert (block.num_groups, block.num_expected, block.num_missing) == (4, 4, 0)


def test_step_modes_of_a_program_have_a_best_one_and_versions_of_a_script_none() -> None:
    def list_best_metrics(*programs: JobRow) -> set[str]:
        rows = [row("serial", (one,), block) for block in (1, 2) for one in programs]
        return {
            name for cell in make_cells(study(*rows)) for name in cell.values if name == "speedup_vs_best_solo_ratio"
        }

    script = {"workload": "script", "model": "x"}
    assert list_best_metrics(job(0, params(), 5.0), job(0, params(step_mode="cuda_graph"), 9.0))
    assert not list_best_metrics(job(0, script, 5.0, salt="a"), job(0, script, 9.0, salt="b"))
    assert not list_best_metrics(job(0, params(), 5.0, salt="a"), job(0, params(), 9.0, salt="b"))


def test_a_study_over_two_windows_keeps_them_apart() -> None:
    rows = [copies("naive", 2, 9.0, settings=settings(f"{seconds} s")) for seconds in (5, 20)]
    assert sorted(r.setting for r in study(*rows).rows) == ["window 20 s", "window 5 s"]


def test_a_resumed_plan_is_one_plan_whatever_its_last_start_ran() -> None:
    plan = {"plan": "0123"}
    first = [copies("naive", 2, 9.0, settings=settings(f"{s} s"), facts=plan, start_ms=s) for s in (5, 20)]
    resumed = copies("mps", 2, 9.0, settings=settings("5 s"), facts=plan, start_ms=99, start="later")
    assert len(study(*first, resumed).rows) == 3
    other = copies("mps", 2, 9.0, settings=settings("5 s"), facts={"plan": "4567"}, start_ms=99, start="later")
    assert study(*first, other).left_out == {"older plan: window 20 s instead of 5 s": 1}


def read_recorded(group: Group, root: Path, **facts: str) -> Row:
    """A group as a report reads it back from what was recorded of it."""
    (row,) = read_recorded_groups([group], root, **facts)
    return row


def read_recorded_groups(groups: Sequence[Group], root: Path, **facts: str) -> list[Row]:
    """Groups of one experiment; those after the first have these facts as well."""

    records: list[GroupRecord] = []
    for group in groups:
        spool = Spool(root, Recorded(), {"plan": f"plan-{len(records)}"} | (facts if records else {}), {})
        with spool.open(group) as opened:
            record = opened.record
        run_id = f"{group.digest}-{len(records)}"
        record = dataclasses.replace(record, run_id=run_id, start_ns=record.start_ns + len(records), result=Result.OK)
        records.append(record)
    is_any_environment = bool(facts.get("accepts_environment")) and len(records) > 1
    optional_rows = [rows.make_row(record, "store", is_any_environment=is_any_environment) for record in records]
    return [row for row in optional_rows if row is not None]


def test_results_of_other_packages_stand_beside_each_other_where_a_resume_accepted_them(
    make_plan, tmp_path, monkeypatch
) -> None:
    def plan_with_packages(packages: str, degree: int) -> Group:
        current = CurrentEnv().preview()
        with monkeypatch.context() as patch:
            changed = dataclasses.replace(current, lock_digest=packages)
            patch.setattr(CurrentEnv, "preview", lambda env: changed)
            return make_plan([f"degree={degree}", "baseline=never"], device=GPU).groups[0]

    groups = [plan_with_packages("old", 2), plan_with_packages("new", 3)]
    older, newer = read_recorded_groups(groups, tmp_path / "a")
    assert list(study(older, newer).left_out) == ["older plan: a program, its options or its environment changed since"]
    together = study(*read_recorded_groups(groups, tmp_path / "b", accepts_environment="true"))
    assert len(together.rows) == 2 and together.left_out == {}


def test_what_the_plan_tells_apart_the_report_does_not_take_for_one_group(make_plan, tmp_path) -> None:
    mps = ["scenario=mps", "degree=2"]
    plan = make_plan(mps, [*mps, "gpu.exclusive_process=true"], device=GPU, is_sweep=True)
    selected_study = study(*(read_recorded(group, tmp_path) for group in plan.groups))
    assert len(plan.groups) == len(selected_study.rows) == 3 and selected_study.left_out == {}
    assert sorted(r.mode for r in selected_study.rows) == ["MPS", "MPS exclusive_process=true", "serial"]
    assert sorted(str(r.options) for r in selected_study.rows) == ["{'exclusive_process': True}", "{}", "{}"]


def test_sizes_and_options_with_several_values_are_read_as_they_were_recorded(make_plan, tmp_path) -> None:
    mix = ["mix=[M,S]", "data.source=synthetic_device", "scenario=mig", "scenario.profiles=[4g,1g]"]
    (group_row,) = study(read_recorded(make_plan(mix, device=GPU).groups[0], tmp_path)).rows
    assert ([job.size for job in group_row.jobs], group_row.mode, group_row.profiles) == (
        ["M", "S"],
        "MIG 4g+1g",
        ("4g", "1g"),
    )
    (case,) = {cell.case for cell in make_cells(study(group_row))}
    assert case.label == "M+S"
    assert [(one["workload"], one["batch_size"], one["step_mode"]) for one in case.params] == [
        ("resnet26_cifar10", "128", "eager"),
        ("resnet50_imagenet64", "128", "eager"),
    ]


@pytest.mark.slow
def test_what_a_simulated_gpu_is_told_to_be_is_a_setting(make_plan, tmp_path) -> None:
    simulated = "gpu=simulated_a100_40gb"
    gpus = ([simulated], [simulated, "gpu.job_memory_mib=600"])
    device = dataclasses.replace(GPU, kind="simulated")
    plan = make_plan(*(["scenario=naive", "degree=2", *gpu] for gpu in gpus), device=device)
    recorded_rows = [read_recorded(group, tmp_path) for group in plan.groups]
    selected_study = study(*recorded_rows)
    assert len(plan.groups) == len(selected_study.rows) == 4 and selected_study.left_out == {}
    assert sorted({r.setting for r in selected_study.rows}) == ["memory of a job 512 MiB", "memory of a job 600 MiB"]
    real = read_recorded(make_plan(["scenario=naive", "degree=2"], device=GPU).groups[0], tmp_path)
    assert [name for name, _ in real.settings] == [name for name, _ in recorded_rows[0].settings]
    newest = max(recorded_rows, key=lambda row: dict(row.settings)["memory of a job"])
    unknown = tuple((key, "" if key == "memory of a job" else value) for key, value in newest.settings)
    older = dataclasses.replace(newest, settings=unknown, start_ms=-1, facts={"plan": "4567"})
    assert list(study(older, newest).left_out) == ["older plan: memory of a job not recorded instead of 600 MiB"]


def settings(window: str) -> tuple[tuple[str, str], ...]:
    return (("device", "H100"), ("window", window), ("seed", "0"), ("pinned CPUs", "false"))


def test_the_runs_of_a_baseline_in_a_block_count_as_one_row_with_their_means() -> None:
    def baseline(run: int, rate: float, **changes: Any) -> Row:
        one = copies("serial", 1, rate, start_ms=run, metrics={"window_s": rate}, **changes)
        return dataclasses.replace(one, facts={**one.facts, "plan_groups": "4", "baseline_run": str(run)})

    together = copies("naive", 2, 9.0, start_ms=9)
    runs = [baseline(1, 10.0), baseline(2, 14.0, note="hot"), baseline(3, 99.0, invalid="stalled")]
    selected_study = study(*runs, dataclasses.replace(together, facts={**together.facts, "plan_groups": "4"}))
    assert [row.scenario for row in selected_study.rows] == ["serial", "naive"]
    assert selected_study.rows[0].jobs[0].metrics["throughput_samples_per_s"] == 12
    assert selected_study.rows[0].metrics == {"throughput_total_samples_per_s": 12, "window_s": 12}
    assert selected_study.rows[0].marks == ("", "hot")
    assert selected_study.left_out == {"a baseline of which another run in the block counts": 1}
    assert (
        selected_study.num_planned,
        selected_study.blocks[0].num_expected,
        selected_study.blocks[0].num_missing,
    ) == (2, 4, 0)
    (cell,) = [cell for cell in make_cells(selected_study) if cell.sharing == mode_of("naive")]
    assert cell.values[SPEEDUP] == {1: pytest.approx(2 * 9 / 12)}
    stalled = study(*[dataclasses.replace(row, marks=runs[2].marks) for row in runs[:2]], together)
    assert stalled.rows[0].marks.invalid == "stalled" and len(stalled.rows) == 2


def test_a_row_of_an_ended_study_has_its_co_runners_apart() -> None:
    pair = make_group("a", "b")
    measured, co_runner = pair.jobs
    pair = dataclasses.replace(pair, jobs=(measured, dataclasses.replace(co_runner, is_co_runner=True)))
    jobs = tuple(JobResult(job=job, result=Result.OK, reason="", metrics={}) for job in pair.jobs)
    ended = GroupResult(group=pair, result=Result.OK, reason="", jobs=jobs)
    (read_row,) = make_study_of_results("test", [ended]).rows
    assert [[job.label for job in jobs] for jobs in (read_row.jobs, read_row.co_runner_jobs)] == [["a"], ["b"]]
    assert (read_row.key, read_row.run_id, read_row.result) == (pair.key, pair.digest, Result.OK)


def test_a_pack_has_a_short_label_and_only_its_total_time():
    study = rows.read([PROJECT_DIR / "docs/results/pack_timm_h200.tar.xz"], "pack_timm")
    (cell,) = make_cells(study)
    assert cell.case.label == "8 trials of timm_train" and set(cell.values) == {"makespan_s"}
    assert "run at different times" in cell.marks
