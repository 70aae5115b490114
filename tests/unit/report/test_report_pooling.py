"""Stores that measured the same case: slices, packages that compute nothing and versions do not separate them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest

from pipeline.base.domain.package_locks import parse_lock, select_computing
from pipeline.base.domain.window import WindowKind
from pipeline.report.evaluate.cells import make_cells
from pipeline.report.evaluate.contrasts import Contrast, Decision, compare_modes
from pipeline.report.read import environments
from pipeline.report.read.rows import study_of
from pipeline.report.read.study_records import Row, Study
from tests.support.report_rows import GPU, copies, params

TORCH = "# python: 3.12.3\ntorch==2.11.0\nnvidia-cudnn-cu13==9.19.0.56"
SLICES = ("interleaved, 4 x 0.5 s, each after 0.1 s", "interleaved, 6 x 0.5 s, each after 0.1 s")
OWN = "workloads/train_timm.py"


def settings(window: str) -> tuple[tuple[str, str], ...]:
    return (("device", GPU), ("window", window), ("seed", "0"), ("pinned CPUs", "false"))


def measure_store(
    number: int,
    lock: str = TORCH,
    window: str = SLICES[0],
    code: str = "",
    script: str = OWN,
    host: Sequence[float] = (1.0,) * 5,
) -> list[Row]:
    """One store: its own GPU, host and plan, five blocks of one job alone and of two naive jobs that fill the GPU."""
    rows = []
    job_params = params(environment_digest=lock, script=script)
    for block, speed in enumerate(host, start=1):
        for scenario, degree, rate in (("serial", 1, 1000.0 * speed), ("naive", 2, 750.0)):
            group_row = copies(
                scenario,
                degree,
                rate * (1 + 0.0001 * number * block),
                block,
                job_params,
                window=WindowKind.INTERLEAVED,
                settings=settings(window),
                gpu_uuid=f"GPU-{number}",
                boot_id=f"boot-{number}",
                start=f"start-{number}",
                store=f"store-{number}",
                start_ms=10_000_000 * number + 10_000 * block + degree,
            )
            jobs = tuple(
                dataclasses.replace(job, digest=f"{job.digest}{code}", program_digest=f"program{code}", run_id=lock)
                for job in group_row.jobs
            )
            key = group_row.key.replace(group_row.jobs[0].digest, jobs[0].digest)
            rows.append(dataclasses.replace(group_row, jobs=jobs, key=key))
    return rows


@pytest.fixture(autouse=True)
def _read_locks_from_run_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "_read_lock", lambda store, run_id: run_id)


def compare(*stores: list[Row]) -> tuple[Study, list[Contrast]]:
    study = study_of("synthetic", *stores)
    return study, compare_modes(make_cells(study))


def test_packages_slices_and_versions_that_compute_the_same_are_pooled() -> None:
    other = f"{TORCH}\nargcomplete==3.7.2\nidna==3.20".replace("3.12.3", "3.12.4")
    study, comparisons = compare(
        measure_store(1), measure_store(2, lock=other, window=SLICES[1]), measure_store(3, code="b")
    )
    (verdict,) = comparisons
    assert (verdict.num_gpus, verdict.num_blocks, verdict.decision) == (3, 15, Decision.BETTER)
    assert study.left_out == {} and all(block.num_missing == 0 for block in study.blocks)
    slices, packages, versions = study.environments
    assert all(window in slices for window in SLICES)
    assert "with argcomplete==3.7.2; with idna==3.20; Python 3.12.3 now Python 3.12.4" in packages
    assert versions == "2 versions of resnet26_cifar10 with equal options are pooled."


@pytest.mark.parametrize(
    "changed",
    [
        {"lock": TORCH.replace("2.11.0", "2.11.1")},
        {"lock": TORCH.replace("9.19", "9.20")},
        {"lock": ""},
        {"code": "b", "script": "train.py"},
    ],
    ids=["torch", "cudnn", "unknown packages", "another version of a user's script"],
)
def test_programs_that_compute_differently_are_separate_cases(changed: dict[str, Any]) -> None:
    first = {"script": changed.get("script", OWN)}
    _, comparisons = compare(measure_store(1, **first), measure_store(2, **first), measure_store(3, **changed))
    assert all(verdict.num_gpus < 3 for verdict in comparisons)


def test_a_plan_that_compares_slices_or_programs_keeps_them_apart() -> None:
    plan = [
        *measure_store(1),
        *(dataclasses.replace(row, start="start-1") for row in measure_store(1, window=SLICES[1])),
    ]
    study, _ = compare(plan)
    assert {row.setting for row in study.rows} == {f"window {window}" for window in SLICES}
    versions = [*measure_store(1), *(dataclasses.replace(row, start="start-1") for row in measure_store(1, code="b"))]
    _, comparisons = compare(versions, measure_store(2, code="c"))
    assert {verdict.num_gpus for verdict in comparisons} == {1}


def test_an_older_version_in_the_same_store_does_not_count() -> None:
    newer = [
        dataclasses.replace(row, start="later", start_ms=row.start_ms + 10**9) for row in measure_store(1, code="b")
    ]
    study, (verdict,) = compare([*measure_store(1), *newer], measure_store(2, code="c"))
    assert study.left_out == {"older plan: a program, its options or its environment changed since": 10}
    assert verdict.num_gpus == 2


def test_the_packages_that_compute() -> None:
    lock = [
        *TORCH.splitlines(),
        "pytorch-lightning==2.6",
        "cupy-cuda13x==14",
        "certifi==1",
        "rich==15",
        "tokenizers==1",
    ]
    assert sorted(select_computing(parse_lock(lock))) == [
        *("cupy-cuda13x", "nvidia-cudnn-cu13", "python", "pytorch-lightning", "tokenizers", "torch")
    ]


def test_figures_over_a_job_that_waits_for_the_host_are_not_decided_over_several_hosts() -> None:
    hosts = [(1.0, 0.95, 1.04, 0.97, 1.05), (0.75, 0.72, 0.78, 0.7, 0.77), (0.9, 0.93, 0.88, 0.91, 0.86)]
    _, (pooled,) = compare(*(measure_store(number, host=host) for number, host in enumerate(hosts, 1)))
    assert (pooled.num_gpus, pooled.decision) == (3, Decision.NO_VERDICT)
    assert "x serial on these hosts" in pooled.sentence and "no verdict over several hosts" in pooled.sentence
    _, (single,) = compare(measure_store(1, host=hosts[0]))
    assert "x serial on this host" in single.sentence and single.decision is Decision.BETTER
    _, (full,) = compare(measure_store(1), measure_store(2), measure_store(3))
    assert "host" not in full.sentence and full.decision is Decision.BETTER
