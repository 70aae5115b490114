"""Advice: it says what the report's verdicts say, refuses where they say nothing, and prints what would settle it."""

from __future__ import annotations

import json
import shlex
import tarfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.base.domain.records import Result
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.planner.commands.results_commands import answer_advice
from pipeline.planner.results.advice import Advice, advise
from pipeline.planner.results.follow_up_sweep import build_command
from pipeline.report.evaluate.cells import Cell, make_cells
from pipeline.report.evaluate.contrasts import compare_modes
from pipeline.report.evaluate.verdicts import find_slower_pairs, winners
from pipeline.report.read import rows as report_rows
from pipeline.report.read.study_records import Row
from tests.support.report_rows import collocation_study, copies, job, params, row, study
from tests.unit.report.test_report_services import make_service_row, service

BUNDLES = sorted((PROJECT_DIR / "docs/results").glob("*.tar.xz"))
TINY = params("tiny")


def advice_on(*rows: Row) -> list[Advice]:
    cells = make_cells(study(*rows))
    return advise(cells, compare_modes(cells))


def blocks(number: int, **speeds: float) -> list[Row]:
    """Two jobs in each mode at a speed over serial, scattered a little."""
    group_rows = []
    for block in range(1, number + 1):
        group_rows.append(copies("serial", 1, 100.0, block, TINY))
        for mode, speed in speeds.items():
            group_rows.append(copies(mode, 2, 50.0 * speed * (1 + 0.001 * (block % 3)), block, TINY))
    return group_rows


def assert_agreement(cells: Sequence[Cell]) -> None:
    """Check that advice names the fastest mode where the verdicts name one, and else no mode that is slower."""
    mode_comparisons = compare_modes(cells)
    best = {(winner.case, winner.degree): winner for winner in winners(cells, mode_comparisons)}
    recommended = advise(cells, mode_comparisons)
    assert {(advice.case, advice.degree) for advice in recommended} >= {place for place in best if place[1] > 1}
    for advice in recommended:
        winner = best.get((advice.case, advice.degree))
        if winner is not None and winner.mode is not None:
            assert advice.mode == winner.mode
        if advice.mode is not None:
            assert winner is not None and advice.mode in winner.tied
        comparisons = [
            comparison
            for comparison in mode_comparisons
            if (comparison.case, comparison.degree) == (advice.case, advice.degree)
        ]
        modes = {verdict.mode for verdict in comparisons}  # that is, without the best step mode alone
        assert advice.mode not in {slower for slower, faster in find_slower_pairs(comparisons) if faster in modes}


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("num_blocks", "noise"), [(5, 0.01), (5, 0.04), (9, 0.002), (3, 0.01)])
def test_advice_agrees_with_the_verdicts_of_the_report(num_blocks: int, noise: float) -> None:
    for seed in range(4):
        assert_agreement(make_cells(study(*collocation_study(num_blocks, noise, seed))))


@pytest.mark.slow
@pytest.mark.parametrize("bundle", BUNDLES, ids=lambda bundle: bundle.name)
def test_advice_on_what_was_measured_on_real_gpus_agrees_with_its_verdicts(bundle: Path) -> None:
    with tarfile.open(bundle) as archive:
        experiment = json.load(archive.extractfile("manifest.json"))["experiment"]
    cells = make_cells(report_rows.read([bundle], experiment))
    assert_agreement(cells)
    assert any(cell.degree > 1 for cell in cells)


def test_a_recommendation_has_its_interval_the_runner_up_and_what_would_change_it() -> None:
    rows = blocks(5, naive=1.4, mps=1.8)
    for block in range(1, 6):
        rows += [copies("naive", 7, 30.0 * (1 + 0.001 * block), block, TINY), copies("mps", 7, 20.0, block, TINY)]
    rows = [
        group_row if group_row.scenario != "naive" else row_with_energy(group_row, 0.02)
        for group_row in (row_with_energy(group_row, 0.03) for group_row in rows)
    ]
    two, seven = advice_on(*rows)
    assert (two.degree, two.mode, two.runner_up) == (2, "MPS", "naive")
    assert two.figure is not None and two.figure.median == pytest.approx(1.8, rel=0.01)
    assert two.over_runner_up is not None and two.over_runner_up.low is not None
    assert two.over_runner_up.low <= 1.8 / 1.4 <= two.over_runner_up.median * 1.001
    assert two.changes[0].startswith("naive instead, if MPS loses 22 %")
    assert "naive for the least energy per sample, in J: 0.02 against 0.03" in two.changes
    assert two.changes[-1] == "naive for 7 jobs"
    assert (seven.mode, seven.changes[-1]) == ("naive", "MPS for 2 jobs")


def row_with_energy(one: Row, energy_j: float) -> Row:
    return replace(one, metrics={**one.metrics, "energy_per_sample_j": energy_j})


def test_another_batch_size_may_want_another_mode() -> None:
    rows = []
    for block in range(1, 6):
        for size, naive in ((32, 1.2), (256, 1.9)):
            job_params, jitter = params(batch_size=size), 1 + 0.001 * block
            rows.append(copies("serial", 1, 100.0, block, job_params))
            rows += [
                copies("naive", 2, 50 * naive * jitter, block, job_params),
                copies("mps", 2, 75.0, block, job_params),
            ]
    small, large = advice_on(*rows)
    assert (small.mode, small.changes[-1]) == ("MPS", "naive at batch size 256")
    assert (large.mode, large.changes[-1]) == ("naive", "MPS at batch size 32")


def test_of_modes_that_are_equally_fast_the_simpler_one_is_taken() -> None:
    (advice,) = advice_on(*blocks(6, naive=1.500, mps=1.501))
    assert (advice.mode, advice.runner_up) == ("naive", "MPS")
    assert advice.because == "as fast as MPS within 2 %, and simpler"
    assert advice.changes[0] == "MPS instead, if it gains 2 % on naive"


def test_modes_that_no_verdict_compares_are_compared() -> None:
    rows = blocks(5, naive=1.2)
    for block in range(1, 6):
        place = {"mps_active_thread_percentage": "50"}
        limited = tuple(job(i, TINY, 70.0 + 0.01 * block, place=place) for i in range(2))
        rows += [copies("mig", 2, 85.0, block, TINY), row("mps_percent", limited, block)]
    comparisons = compare_modes(make_cells(study(*rows)))
    assert not any({comparison.mode, comparison.against} == {"MIG 3g.40gb", "MPS 50 %"} for comparison in comparisons)
    (advice,) = advice_on(*rows)
    assert (advice.mode, advice.runner_up) == ("MIG 3g.40gb", "MPS 50 %")
    assert advice.over_runner_up is not None and advice.over_runner_up.median == pytest.approx(85 / 70, rel=0.01)


def test_too_few_blocks_wrong_results_and_too_few_gpus_are_refused() -> None:
    (few,) = advice_on(*blocks(4, naive=1.2, mps=1.9))
    assert few.mode is None and few.because.startswith("4 blocks, advice needs 5: MPS is 1.58 times")
    assert few.undecided == ("MPS", "naive", "serial") and few.blocks_needed == 5
    wrong = [
        group_row
        if group_row.scenario == "serial"
        else copies(group_row.scenario, 2, 90.0, group_row.block, TINY, result=Result.WRONG_RESULTS)
        for group_row in blocks(5, naive=1.2)
    ]
    (refused,) = advice_on(*wrong)
    assert refused.mode is None and "naive: computes wrong results in 5 of 5 blocks" in refused.not_considered[0]
    one_wrong = [*blocks(5, naive=1.2, mps=1.9)[:-1], copies("mps", 2, 90.0, 5, TINY, result=Result.WRONG_RESULTS)]
    (other,) = advice_on(*one_wrong)
    assert other.mode == "naive" and "MPS: computes wrong results in 1 of 5 blocks" in other.not_considered[0]
    two_gpus = [move_to_gpu(group_row, f"GPU-{group_row.block % 2}") for group_row in blocks(8, naive=1.2, mps=1.9)]
    (pooled,) = advice_on(*two_gpus)
    assert pooled.mode is None and pooled.because.startswith("2 GPUs, advice needs 3")


def move_to_gpu(one: Row, uuid: str) -> Row:
    return replace(one, gpu_uuid=uuid)


def test_services_are_advised_what_meets_their_objective_with_the_shortest_tail() -> None:
    rows = []
    for block in range(1, 6):
        jitter = 1 + 0.001 * block
        rows.append(make_service_row("serial", 1, 50, 5.0, block))
        rows += [
            make_service_row("naive", 4, 50, 20.0 * jitter, block),
            make_service_row("mps", 4, 50, 10.0 / jitter, block),
        ]
        rows.append(make_service_row("mig", 4, 50, 8.0 * jitter, block))
    (advice,) = advice_on(*rows)
    assert (advice.mode, advice.runner_up) == ("MIG", "MPS")
    assert advice.not_considered == ("naive: misses the objective in 5 of 5 blocks",)
    assert advice.figure is not None and advice.figure.median == pytest.approx(24, rel=0.01)


def test_different_services_are_advised_by_the_tail_of_the_slowest() -> None:
    rows = []
    for block in range(1, 6):
        for scenario, latency_ms in (("naive", 20.0), ("mps", 10.0)):
            jobs = (service(0, 50, latency_ms), job(1, params("other", given_rate="true"), 9.0, size="O"))
            rows.append(row(scenario, jobs, block, metrics={"latency_p99_worst_ms": latency_ms + 0.01 * block}))
    (advice,) = advice_on(*rows)
    assert (advice.mode, advice.runner_up) == ("MPS", "naive")
    (unknown,) = advice_on(*(replace(group_row, metrics={"gract_mean_ratio": 0.5}) for group_row in rows))
    assert unknown.mode is None and unknown.because.startswith("no latency was measured")


def make_service_mixes(**objective: Any) -> list[Row]:
    train, rows = params("train"), []
    for block in range(1, 6):
        rows += [row("serial", (job(0, train, 100.0),), block), row("serial", (service(0, 50, 5.0),), block)]
        for scenario, rate, latency_ms in (("naive", 40.0, 20.0), ("mps", 80.0, 10.0), ("mig", 90.0, 30.0)):
            jobs = (job(0, train, rate + 0.01 * block, size="T"), service(1, 50, latency_ms, size="I"))
            met = {"objective_met_worst_ratio": float(latency_ms <= 20)} if objective else {}
            rows.append(row(scenario, jobs, block, metrics={"latency_mean_worst_ms": latency_ms, **met}))
    return rows


def test_training_beside_a_service_takes_what_keeps_most_among_what_meets_the_objective() -> None:
    (advice,) = advice_on(*make_service_mixes(is_given=True))
    assert (advice.mode, advice.runner_up) == ("MPS", "naive")
    assert advice.not_considered == ("MIG: misses the objective in 5 of 5 blocks",)
    (refused,) = advice_on(*make_service_mixes())
    assert refused.mode is None and "set an objective for the services" in refused.because
    assert build_command(study(*make_service_mixes()), refused) is None


TYPED = "run.py -m scenario=naive,mps degree=2 workload=tiny gpu=simulated_a100_40gb repeats=3 resume=false"


def set_command_line(rows: list[Row], typed: str) -> list[Row]:
    return [replace(group_row, facts={"command_line": typed}) for group_row in rows]


@pytest.mark.slow
def test_the_sweep_that_would_settle_it_can_be_typed(make_plan) -> None:
    rows = set_command_line(blocks(3, naive=1.80, mps=1.79), TYPED)
    typed_study = study(*rows)
    (advice,) = advice_on(*rows)
    typed = build_command(typed_study, advice)
    assert typed is not None and advice.blocks_needed is not None and advice.blocks_needed > 3
    python, program, *words = shlex.split(typed)
    assert (python, program) == ("python", "run.py") and words.count("-m") == 1
    assert words[-3:-1] == [f"repeats={advice.blocks_needed}", "resume=true"]
    assert [word for word in words if word.startswith(("repeats=", "resume="))] == words[-3:-1]
    values = [word for word in words if word not in ("-m", "scenario=naive,mps")]
    assert len(values) == len(words) - 2
    plan = make_plan(*([f"scenario={mode}", *values] for mode in ("naive", "mps")))
    names = Counter(group.name for group in plan.groups)
    assert names == dict.fromkeys(["serial-1x-tiny", "naive-2x-tiny", "mps-2x-tiny"], advice.blocks_needed)


def test_a_mode_that_is_compared_with_serial_is_measured_with_baselines() -> None:
    rows = set_command_line(blocks(1, naive=1.2), "run.py degree=2 workload=tiny baseline=never")
    (advice,) = advice_on(*rows)
    command = build_command(study(*rows), advice)
    assert command == "python run.py degree=2 workload=tiny repeats=5 resume=true 'only=[naive-2x-tiny]'"


def test_modes_of_several_commands_are_all_in_the_sweep() -> None:
    of_naive = set_command_line(blocks(3, naive=1.80), "run.py scenario=naive degree=2 workload=tiny")
    of_mps = set_command_line(
        [row for row in blocks(3, mps=1.79) if row.scenario == "mps"], "run.py scenario=mps degree=2 workload=tiny"
    )
    rows = [*of_naive, *(replace(row, start_ms=row.start_ms + 1000) for row in of_mps)]
    (advice,) = advice_on(*rows)
    command = build_command(study(*rows), advice)
    assert command is not None and " -m degree=2 workload=tiny scenario=" in command
    (scenario,) = [word for word in shlex.split(command) if word.startswith("scenario=")]
    assert set(scenario.removeprefix("scenario=").split(",")) == {"naive", "mps"}


def test_a_command_with_a_file_that_was_removed_is_not_proposed() -> None:
    answer = answer_advice(
        study(*set_command_line(blocks(3, naive=1.2, mps=1.9), f"{TYPED} listeners=[host,pressure]"))
    )
    assert "    to get advice, measure again without listeners=pressure, which does not exist any more" in answer.text
    assert answer.data["cases"][0]["sweep"] is None


def test_a_launcher_is_typed_again_but_where_another_gpu_is_needed() -> None:
    typed = f"{TYPED} hydra/launcher=gpus hydra.launcher.devices=[0,1]"
    rows = set_command_line(blocks(3, naive=1.80, mps=1.79), typed)
    assert " hydra/launcher=gpus 'hydra.launcher.devices=[0,1]' " in str(
        build_command(study(*rows), advice_on(*rows)[0])
    )
    rows = [
        move_to_gpu(group_row, f"GPU-{group_row.block % 2}")
        for group_row in set_command_line(blocks(8, naive=1.2, mps=1.9), typed)
    ]
    again = build_command(study(*rows), advice_on(*rows)[0])
    assert again is not None and "hydra" not in again and again.endswith(" tracking.root=mlruns_3")


def test_what_was_not_measured_is_asked_for() -> None:
    typed = "run.py degree=2 time_limit_s=60 -- train.py --only x"
    rows = set_command_line(blocks(5, naive=1.2), typed)
    (no_baseline,) = advice_on(*(group_row for group_row in rows if group_row.scenario != "serial"))
    assert no_baseline.because == "the baselines are missing; measure with baseline=always"
    ending = "repeats=5 resume=true -- train.py --only x"
    assert build_command(study(*rows), no_baseline) == f"python run.py degree=2 baseline=always {ending}"
    oom = [
        replace(group_row, result=Result.OOM, metrics={}) if group_row.scenario == "naive" else group_row
        for group_row in rows
    ]
    (alone,) = advice_on(*oom)
    assert build_command(study(*oom), alone) == f"python run.py degree=2 scenario=mps {ending}"


def test_what_is_printed_and_how_it_ends() -> None:
    done = answer_advice(study(*blocks(5, naive=1.2, mps=1.9)))
    assert done.status == 0 and done.data["cases"][0]["mode"] == "MPS"
    assert "2 tiny bs128: use MPS: 1.58 times" in done.text
    refused = answer_advice(study(*set_command_line(blocks(3, naive=1.2, mps=1.9), TYPED)))
    assert refused.status == 1 and "    to get advice, run: python run.py -m scenario=naive,mps" in refused.text
    assert refused.data["cases"][0]["sweep"] in refused.text
    with pytest.raises(ConfigError, match="no group of several jobs"):
        answer_advice(study(copies("serial", 1, 100.0)))
