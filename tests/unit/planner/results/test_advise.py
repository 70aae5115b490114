"""Advice: whether to share and how, what is open, and the commands that measure and answer it."""

from __future__ import annotations

import json
import shlex
import tarfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import exp
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pipeline.base.domain.records import Result
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.planner.commands.results_commands import answer_advice
from pipeline.planner.results.advice import Advice, advise, choose_degree, describe_advice
from pipeline.planner.results.follow_up_sweep import build_follow_ups
from pipeline.report.evaluate.cells import Case, Cell, make_cells
from pipeline.report.evaluate.contrasts import compare_modes
from pipeline.report.evaluate.verdicts import find_slower_pairs, winners
from pipeline.report.read import rows as report_rows
from pipeline.report.read.study_records import JobRow, Row
from tests.support.report_rows import collocation_study, copies, job, params, row, study
from tests.unit.report.test_report_services import make_service_row, service

BUNDLES = sorted((PROJECT_DIR / "docs/results").glob("*.tar.xz"))
TINY = params("tiny")


def advice_on(*rows: Row) -> list[Advice]:
    return advise(make_cells(study(*rows)))


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
    doubtful = {(cell.case, cell.degree, cell.mode) for cell in cells if cell.exceeds_ideal}
    best = {(winner.case, winner.degree): winner for winner in winners(cells, mode_comparisons)}
    recommended = advise(cells)
    assert {(advice.case, advice.degree) for advice in recommended} >= {place for place in best if place[1] > 1}
    for advice in recommended:
        winner = best.get((advice.case, advice.degree))
        assert (advice.case, advice.degree, advice.mode) not in doubtful
        if winner is not None and winner.mode is not None and (*place_of(advice), winner.mode) not in doubtful:
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


def place_of(advice: Advice) -> tuple[Case, int]:
    return advice.case, advice.degree


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


def scattered(factors: Mapping[str, Sequence[float]], *, num_jobs: int = 2, graph: float | None = None) -> list[Row]:
    """Groups of each mode at these speed-ups over serial, one for each block, with a CUDA graph alone if `graph`."""
    group_rows = []
    for block in range(1, len(next(iter(factors.values()))) + 1):
        group_rows.append(copies("serial", 1, 100.0, block, TINY))
        if graph is not None:
            group_rows.append(copies("serial", 1, 100.0 * graph, block, params("tiny", step_mode="cuda_graph")))
        for mode, speedups in factors.items():
            group_rows.append(copies(mode, num_jobs, 100.0 * speedups[block - 1] / num_jobs, block, TINY))
    return group_rows


NOISE = (0.97, 1.03, 1.0, 0.96, 1.04)
BOUND = 0.0908
"""exp(2.776 s / sqrt(5)) - 1, of the logarithms of `NOISE` reversed over `NOISE`, by hand."""
SPEEDUPS = {
    # both modes gain, and differ by a bounded amount: the simpler one
    "either": (
        {"naive": [1.5 * factor for factor in NOISE], "mps": [1.5 * factor for factor in reversed(NOISE)]},
        *("share", "naive", {"MPS": BOUND}, None),
    ),
    # the faster mode is shown to be faster
    "faster": ({"naive": [1.2 * f for f in NOISE], "mps": [1.8] * 5}, "share", "MPS", {}, None),
    # both gain, but may differ by more than a fifth: the better one, and blocks that would tell
    "unclear": (
        {
            "naive": [1.58, 1.42, 1.5, 1.59, 1.41],
            "mps": [1.58, 1.42 * exp(0.2), 1.5 * exp(0.09), 1.59, 1.41 * exp(0.16)],
        },
        *("share", "MPS", {}, 8),
    ),
    # a mode that may be the faster one does not stand in the way of one that gains
    "one gains": ({"naive": [1.3] * 5, "mps": [0.9, 2.4, 1.1, 1.9, 1.5]}, "share", "naive", {}, None),
    # three blocks give an interval, two do not
    "three": ({"naive": [1.4, 1.41, 1.39]}, "share", "naive", {}, None),
    "two": ({"naive": [1.4, 1.41]}, "open", None, {}, 5),
    # no mode gains
    "loss": (
        {"naive": [0.9 * f for f in NOISE], "mps": [0.95, 0.96, 0.94, 0.95, 0.96]},
        "one at a time",
        "serial",
        {},
        None,
    ),
    "nothing": ({"naive": [1.0, 1.001, 1.0, 0.999, 1.0]}, "one at a time", "serial", {}, None),
    # a gain is possible
    "undecided": ({"naive": [1.15 * f for f in (0.8, 1.2, 1.0, 0.85, 1.15)]}, "open", None, {}, 18),
    # and more than twenty blocks would be needed
    "hopeless": ({"naive": [1.02 * f for f in (0.9, 1.1, 1.0, 0.95, 1.05)]}, "open", None, {}, None),
}


@pytest.mark.parametrize("name", SPEEDUPS)
def test_intervals_decide_whether_to_share_and_how(name: str) -> None:
    speedups, answer, mode, alike, num_blocks = SPEEDUPS[name]
    (advice,) = advice_on(*scattered(speedups))
    assert (advice.answer, advice.mode, advice.blocks_needed) == (answer, mode, num_blocks)
    assert advice.alike == pytest.approx(alike, abs=0.001)
    assert advice.mode in (None, "serial") or advice.speedup.low > 1


def test_an_answer_has_its_speedup_slowdown_energy_and_a_faster_step_mode() -> None:
    rows = [
        row_with_energy(group_row, 0.02 if group_row.scenario == "naive" else 0.03)
        for group_row in scattered({"naive": [1.4] * 5, "mps": [1.8, 1.81, 1.79, 1.8, 1.8]}, graph=3.6)
    ]
    (advice,) = advice_on(*rows)
    assert advice.speedup.median == pytest.approx(1.8) and advice.speedup.n == 5
    assert advice.slowdown.median == pytest.approx(2 / 1.8)
    assert advice.energy is None
    lines = describe_advice(advice).splitlines()
    assert lines[0] == "2 tiny bs128: share, MPS: 1.80 times serial (1.79 to 1.81; 5 blocks)"
    assert lines[1] == "    the slowest job takes 1.11 times (1.11 to 1.12) as long as alone"
    assert "    still faster: CUDA graph alone, one job at a time, 2.00 times (1.99 to 2.01) as fast" in lines
    assert "    MPS is 1.29 times (1.28 to 1.29) as fast as naive" in lines
    assert "    instead: naive for the least energy per sample, in J: 0.02 against 0.03" in lines


def test_a_doubtful_speedup_and_invalid_rows_never_lead() -> None:
    (advice,) = advice_on(*scattered({"naive": [1.4] * 5, "mps": [2.5] * 5}))
    assert advice.mode == "naive"
    assert advice.not_considered[0].startswith("MPS: speed-up of 2.50 exceeds the number of jobs")
    rows = [
        copies("mps", 2, 95.0, one.block, TINY, invalid="jobs overlapped by 0.5") if one.scenario == "mps" else one
        for one in scattered({"naive": [1.4] * 5, "mps": [1.9] * 5})
    ]
    (advice,) = advice_on(*rows)
    assert advice.mode == "naive" and "invalid in 5 of 5 blocks" in advice.not_considered[0]


def test_the_number_of_jobs_is_the_least_that_no_larger_one_exceeds() -> None:
    gains = {2: [1.5, 1.51, 1.49], 3: [2.0, 2.01, 1.99], 4: [2.0, 1.98, 2.01], 7: [1.9, 1.91, 1.89]}
    rows = [row for degree, factors in gains.items() for row in scattered({"mps": factors}, num_jobs=degree)]
    advices = advice_on(*{row.run_id: row for row in rows}.values())
    best = choose_degree(advices)
    assert best is not None and (best.degree, best.mode) == (3, "MPS")
    assert choose_degree(advice_on(*scattered({"naive": [0.9, 0.91, 0.9]}))) is None
    assert choose_degree(advice_on(*scattered({"naive": [1.4, 1.4]}))) is None  # two blocks leave it open


def test_wrong_answers_are_rare_and_a_loss_is_never_shared() -> None:
    random, answers = Random(1), Counter[str | None]()
    for _ in range(100):
        naive, mps = ([true * exp(random.gauss(0, 0.03)) for _ in range(5)] for true in (0.9, 1.5))
        answers[advice_on(*scattered({"naive": naive, "mps": mps}))[0].mode] += 1
    assert answers["MPS"] >= 95
    shared = Counter(
        advice_on(*scattered({"naive": [0.97 * exp(random.gauss(0, 0.03)) for _ in range(5)]}))[0].mode
        for _ in range(100)
    )
    assert shared["naive"] <= 1


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
    assert (small.mode, large.mode) == ("MPS", "naive")


def test_modes_that_no_verdict_compares_are_compared() -> None:
    rows = blocks(5, naive=1.2)
    for block in range(1, 6):
        place = {"mps_active_thread_percentage": "50"}
        limited = tuple(job(i, TINY, 70.0 + 0.01 * block, place=place) for i in range(2))
        rows += [copies("mig", 2, 85.0, block, TINY), row("mps_percent", limited, block)]
    comparisons = compare_modes(make_cells(study(*rows)))
    assert not any({comparison.mode, comparison.against} == {"MIG 3g.40gb", "MPS 50 %"} for comparison in comparisons)
    (advice,) = advice_on(*rows)
    assert (advice.mode, advice.rivals[0].against) == ("MIG 3g.40gb", "MPS 50 %")
    assert advice.rivals[0].ratio is not None and advice.rivals[0].ratio.median == pytest.approx(85 / 70, rel=0.01)


def test_wrong_results_and_too_few_gpus_are_refused() -> None:
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
    assert pooled.mode is None and "at best MPS, 1.90 times serial (2 GPUs)" in describe_advice(pooled)


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
    assert (advice.mode, advice.rivals[0].against) == ("MIG", "MPS")
    assert advice.not_considered == ("naive: misses the objective in 5 of 5 blocks",)
    assert advice.figure is not None and advice.figure.median == pytest.approx(24, rel=0.01)
    (alone,) = advice_on(*(group_row for group_row in rows if group_row.scenario in ("serial", "naive")))
    assert alone.mode == "serial" and alone.reason.startswith("no mode sustains the rates and meets the objectives")


def test_different_services_are_advised_by_the_tail_of_the_slowest() -> None:
    rows = []
    for block in range(1, 6):
        for scenario, latency_ms in (("naive", 20.0), ("mps", 10.0)):
            jobs = (service(0, 50, latency_ms), job(1, params("other", given_rate="true"), 9.0, size="O"))
            rows.append(row(scenario, jobs, block, metrics={"latency_p99_worst_ms": latency_ms + 0.01 * block}))
    (advice,) = advice_on(*rows)
    assert (advice.mode, advice.rivals[0].against) == ("MPS", "naive")
    (unknown,) = advice_on(*(replace(group_row, metrics={"gract_mean_ratio": 0.5}) for group_row in rows))
    assert unknown.mode is None and unknown.reason.startswith("no latency was measured")


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
    assert (advice.mode, advice.rivals[0].against) == ("MPS", "naive")
    assert advice.not_considered == ("MIG: misses the objective in 5 of 5 blocks",)
    (refused,) = advice_on(*make_service_mixes())
    assert refused.mode is None and "set an objective for the services" in refused.reason
    assert build_follow_ups(study(*make_service_mixes()), [refused]) == []


TYPED = "run.py -m scenario=naive,mps degree=2 workload=tiny gpu=simulated_a100_40gb repeats=3 resume=false"


def set_command_line(rows: list[Row], typed: str) -> list[Row]:
    return [replace(group_row, facts={"command_line": typed}) for group_row in rows]


def follow_ups(rows: list[Row]) -> list[str]:
    return build_follow_ups(study(*rows), advice_on(*rows))


@pytest.mark.slow
def test_the_sweep_that_would_settle_it_can_be_typed(make_plan) -> None:
    rows = set_command_line(scattered({"naive": [1.6, 1.1], "mps": [1.5, 1.2]}), TYPED)
    (command,) = follow_ups(rows)
    python, program, *options = shlex.split(command)
    assert (Path(python).name, program) == ("python", "run.py") and options.count("-m") == 1
    assert options[-2:] == ["repeats=5", "resume=true"]
    assert [option for option in options if option.startswith(("repeats=", "resume="))] == options[-2:]
    values = [option for option in options if option not in ("-m", "scenario=naive,mps")]
    assert len(values) == len(options) - 2
    plan = make_plan(*([f"scenario={mode}", *values] for mode in ("naive", "mps")))
    names = Counter(group.name for group in plan.groups)
    assert names == dict.fromkeys(["serial-1x-tiny", "naive-2x-tiny", "mps-2x-tiny"], 5)


OPEN_SPEEDUPS = {"naive": [1.6], "mps": [1.5]}
COMMANDS = {
    "baselines": ("run.py degree=2 baseline=never", "scenario=naive,mps workload=tiny degree=2"),
    "program": ("run.py degree=2 time_limit_s=60 -- train.py --only x", "scenario=naive,mps degree=2"),
    "swept": (
        "run.py -m workload=tiny workload.batch_size=32,128 degree=1,2,3 gpu.device=3",
        "workload.batch_size=128 gpu.device=3 scenario=naive,mps workload=tiny degree=2",
    ),
    "launcher": (
        "run.py +experiment=curve hydra/launcher=gpus hydra.launcher.devices=[0,1]",
        "+experiment=curve hydra/launcher=gpus 'hydra.launcher.devices=[0,1]' "
        "scenario=naive,mps workload=tiny degree=2",
    ),
    "mix": (
        "run.py +experiment=pairs sizes.S.lr=1 sizes.X.lr=2 +workload@sizes.X=tiny",
        "+experiment=pairs sizes.S.lr=1 scenario=naive,mps 'mix=[S,M]'",
    ),
    "folder of every machine": (
        "run.py data.root=$TMPDIR/images degree=2",
        "data.root=/scratch/images scenario=naive,mps workload=tiny degree=2",
    ),
    "folder of another machine": ("run.py data.root=$FOLDER_0a1b2c/images degree=2", None),
}


def replace_size(one: JobRow, size: str) -> JobRow:
    return replace(one, size=size)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_follow_up_is_the_recorded_command_for_what_is_open(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", "/scratch")
    typed, expected = COMMANDS[name]
    rows = set_command_line(scattered(OPEN_SPEEDUPS), typed)
    if name == "mix":
        sizes = ("S", "M")
        rows = [replace(row, jobs=tuple(map(replace_size, row.jobs, sizes))) for row in rows]
    commands = follow_ups(rows)
    if expected is None:
        assert commands == []
        return
    _, dashes, after = typed.partition(" -- ")
    swept = "" if "+experiment" in typed else "-m "
    assert [command.partition(" run.py ")[2] for command in commands] == [
        f"{swept}{expected} repeats=5 resume=true{dashes}{after}"
    ]


def test_cases_that_need_the_same_have_one_command() -> None:
    rows = scattered({"naive": [1.6], "mps": [1.5]}) + scattered({"naive": [1.9], "mps": [2.1]}, num_jobs=3)
    unique = list({row.run_id: row for row in set_command_line(rows, "run.py +experiment=curve")}.values())
    (command,) = follow_ups(unique)
    assert command.endswith("+experiment=curve scenario=naive,mps workload=tiny degree=2,3 repeats=5 resume=true")


def test_modes_of_several_commands_are_all_in_the_sweep() -> None:
    of_naive = set_command_line(blocks(2, naive=1.80), "run.py scenario=naive degree=2 workload=tiny")
    of_mps = set_command_line(
        [row for row in blocks(2, mps=1.79) if row.scenario == "mps"], "run.py scenario=mps degree=2 workload=tiny"
    )
    rows = [*of_naive, *(replace(row, start_ms=row.start_ms + 1000) for row in of_mps)]
    (command,) = follow_ups(rows)
    assert command.endswith(" -m scenario=naive,mps workload=tiny degree=2 repeats=5 resume=true")


def test_blocks_of_a_bundle_are_not_resumed_and_a_store_is_named(tmp_path: Path) -> None:
    rows = set_command_line(blocks(2, naive=1.8, mps=1.7), "run.py degree=2 gpu.device=3 tracking.root=$TMPDIR/c")
    bundle = [replace(row, store=BUNDLES[0]) for row in rows]
    (command,) = follow_ups(bundle)
    assert command.endswith("run.py -m scenario=naive,mps workload=tiny degree=2 repeats=5")
    local = [replace(row, store=tmp_path) for row in rows]
    (command,) = follow_ups(local)
    assert command.endswith(f"degree=2 repeats=5 resume=true tracking.root={tmp_path}")


def test_another_gpu_has_a_store_of_its_own_and_any_launcher() -> None:
    typed = f"{TYPED} hydra/launcher=gpus hydra.launcher.devices=[0,1]"
    rows = [
        move_to_gpu(group_row, f"GPU-{group_row.block % 2}")
        for group_row in set_command_line(blocks(8, naive=1.2, mps=1.9), typed)
    ]
    (command,) = follow_ups(rows)
    assert "hydra" not in command and command.endswith(" repeats=5 tracking.root=mlruns_3")


def test_what_was_not_measured_is_asked_for() -> None:
    typed = "run.py degree=2 time_limit_s=60 -- train.py --only x"
    rows = set_command_line(blocks(5, naive=1.2), typed)
    without = [group_row for group_row in rows if group_row.scenario != "serial"]
    (no_baseline,) = advice_on(*without)
    assert no_baseline.reason == "the baselines are missing; measure with baseline=always"
    ending = "resume=true -- train.py --only x"
    (command,) = follow_ups(without)
    assert command.endswith(f"run.py scenario=naive degree=2 repeats=5 baseline=always {ending}")
    oom = [
        replace(group_row, result=Result.OOM, metrics={}) if group_row.scenario == "naive" else group_row
        for group_row in rows
    ]
    (command,) = follow_ups(oom)
    assert command.endswith(f"run.py scenario=mps degree=2 repeats=5 {ending}")
    assert follow_ups([move_to_gpu(group_row, "CPU-host") for group_row in oom]) == []
    assert follow_ups(set_command_line([copies("serial", 2, 50.0, 1, TINY)], typed)) == []


def test_a_command_with_a_file_that_was_removed_is_not_proposed() -> None:
    answer = answer_advice(study(*set_command_line(blocks(2, naive=1.2), f"{TYPED} listeners=[host,pressure]")))
    assert "measure again without listeners=pressure, not in conf/ any more" in answer.text
    assert answer.data["follow_ups"] == [] and answer.data["cases"][0]["command"] is None


def test_what_is_printed_and_how_it_ends() -> None:
    done = answer_advice(study(*set_command_line(blocks(5, naive=1.2, mps=1.9), TYPED)))
    assert done.status == 0 and done.data["cases"][0]["mode"] == "MPS"
    assert done.text.startswith("1 case: share in 1\n\n2 tiny bs128: share, MPS: 1.90 times serial (1.90 to 1.90; 5 bl")
    assert shlex.split(done.data["cases"][0]["command"])[-2:] == ["repeats=5", "tracking.experiment=advised"]
    refused = answer_advice(study(*set_command_line(blocks(2, naive=1.2, mps=1.9), TYPED)))
    assert refused.status == 1 and refused.data["cases"][0]["mode"] is None
    assert max(map(len, refused.text.splitlines())) <= 100
    _, _, typed = refused.text.partition("To answer what is open:\n")
    assert [shlex.split(typed.replace("\\\n", ""))] == list(map(shlex.split, refused.data["follow_ups"]))
    with pytest.raises(ConfigError, match="no group of several jobs"):
        answer_advice(study(copies("serial", 1, 100.0)))


@pytest.mark.parametrize(
    ("changes", "worth"),
    [
        ({"is_simulated": True}, "simulated: the measurements say nothing about a real GPU"),
        ({"gpu_uuid": "CPU-host"}, "measured on a CPU: the answers say nothing about a GPU"),
    ],
)
def test_answers_without_a_gpu_say_what_they_are_worth(changes: dict[str, Any], worth: str) -> None:
    rows = [replace(row, **changes) for row in blocks(5, naive=1.2, mps=1.9)]
    assert answer_advice(study(*rows)).text.splitlines()[-1] == worth


def test_the_flagship_study_is_answered_in_every_case() -> None:
    bundle = PROJECT_DIR / "docs/results/robroek_curves_h100.tar.xz"
    answer = answer_advice(report_rows.read([bundle], "robroek_curves"))
    assert answer.status == 0 and answer.data["follow_ups"] == []
    modes = {(case["case"].partition("_")[0], case["jobs"]): case["mode"] for case in answer.data["cases"]}
    assert modes == {
        ("resnet26", 2): "naive",
        ("resnet26", 3): "naive",
        ("resnet26", 7): "MPS",
        ("resnet50", 2): "naive",
        ("resnet50", 3): "MPS",
        ("resnet50", 7): "MPS",
    }
    assert (
        "resnet26_cifar10 bs128: 7 jobs, MPS: 6.82 times (6.30 to 7.37) serial; more were not measured" in answer.text
    )
    assert "naive or MPS: at most 14 % apart; naive is the simplest, and needs no daemon" in answer.text
    assert "$" not in answer.text and "tracking.root" not in answer.text
    assert max(map(len, answer.text.splitlines())) <= 100
