"""Comparison of rows with the serial baselines of their block.

The order of the groups within a block is random, so a baseline may run after the groups that need it.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections import defaultdict
from collections.abc import Sequence

from pipeline.base.domain.normalisation import BIT_IDENTICAL, Baselines, ComparedJob, average_figures, normalise
from pipeline.base.domain.records import Group, Result
from pipeline.base.domain.sharing_modes import mode_of
from pipeline.base.domain.tags import Tag
from pipeline.observe.group_result import GroupResult, JobResult

# Largest relative difference between the loss of a job and the loss of the same job alone, for each of the first steps.
# Each limit is about four times the largest difference between equal jobs that computed correctly: two models, seven
# jobs at once on an H100, in fp32, tf32, bf16 and fp16 (`default` rounds like tf32, or less). The first loss comes from
# one forward pass; later steps amplify differences of rounding.
_LOSS_TOLERANCES = (0.003, 0.04, 0.15, 0.2, 0.4, 0.4, 0.4, 0.4, 0.8, 1.2)

# Largest relative difference of the norm of the answer to each fixed request. The limit is small because rounding
# changes the values of an answer in both directions.
_OUTPUT_TOLERANCES = (0.01,) * 8

_FirstSteps = tuple[list[float], list[float]]
"""The losses of a job's first steps, and the norms of its first answers; each list is empty if the job reports none."""
_SoloRun = tuple[JobResult, _FirstSteps]
_Baselines = Baselines[GroupResult, _SoloRun]


class Comparison:
    """The rows of a study and the baselines among them."""

    def __init__(self) -> None:
        # Valid serial rows with result `ok`, by `make_comparison_key`.
        self._serial: dict[tuple[object, ...], list[GroupResult]] = defaultdict(list)
        self._rows: dict[str, GroupResult] = {}
        # Rows of `_serial` of all blocks, by the settings that a block's groups share.
        self._serial_of_blocks: dict[tuple[object, ...], list[GroupResult]] = defaultdict(list)
        self._baselines: dict[tuple[object, ...], _Baselines] = {}

    def add(self, row: GroupResult) -> list[GroupResult]:
        """Add a row, and return the rows whose figures or result this row changes.

        A returned row holds only its new figures against the baseline, or the result `wrong_results` if a job computed
        other values than the same job alone. `get_latest` returns a row with all figures.
        """
        self._rows[row.group.digest] = row
        concerned = [row.group.digest]
        if row.group.sequential and row.result is Result.OK and not row.marks.invalid:
            self._serial[make_comparison_key(row.group)].append(row)
            self._serial_of_blocks[_make_settings_key(row.group)].append(row)
            self._baselines.clear()
            concerned = list(self._rows)
        changed = []
        for digest in concerned:
            other = self._rows[digest]
            if other.result is not Result.OK:
                continue
            if difference := self._find_difference(other):
                self._rows[digest] = dataclasses.replace(other, result=Result.WRONG_RESULTS, reason=difference)
                changed.append(dataclasses.replace(self._rows[digest], metrics={}))
                continue
            metrics = self._compare(other)
            if not metrics.items() <= other.metrics.items():
                self._rows[digest] = dataclasses.replace(other, metrics=other.metrics | metrics)
                changed.append(dataclasses.replace(other, metrics=metrics))
        return changed

    def get_latest(self, row: GroupResult) -> GroupResult:
        return self._rows.get(row.group.digest, row)

    def _find_baselines(self, row: GroupResult) -> _Baselines:
        state, shared = row.machine_state, make_comparison_key(row.group)
        if (key := (state, shared)) not in self._baselines:
            self._baselines[key] = baselines = _Baselines()
            for serial in self._serial[shared]:
                if state.is_same(serial.machine_state):
                    baselines.add(
                        serial, _list_digests(serial), list(zip(serial.measured, _read_first(serial), strict=True))
                    )
        return self._baselines[key]

    def _find_solo_runs(self, row: GroupResult) -> list[list[_SoloRun]]:
        baselines, digests = self._find_baselines(row), _list_digests(row)
        return [baselines.find_runs_alone(digest, digests) for digest in digests]

    def _find_difference(self, row: GroupResult) -> str | None:
        for job, (losses, outputs), runs in zip(row.measured, _read_first(row), self._find_solo_runs(row), strict=True):
            for _, (losses_alone, outputs_alone) in runs:
                if difference := describe_loss_difference(losses, losses_alone):
                    return f"the losses of job {job.job.name} differ from its solo run: {difference}"
                if difference := describe_output_difference(outputs, outputs_alone):
                    return f"the answers of job {job.job.name} differ from its solo run: {difference}"
        return None

    def _compare(self, row: GroupResult) -> dict[str, float]:
        solo = [[job for job, _ in runs] for runs in self._find_solo_runs(row)]
        mix = self._find_baselines(row).find_serial_group(_list_digests(row))
        figures = compare_with_baseline(row, solo, mix.metrics.get("makespan_s") if mix else None)
        identical = self._share_identical(row)
        return figures if identical is None else figures | {BIT_IDENTICAL: identical}

    def _share_identical(self, row: GroupResult) -> float | None:
        """Return the share of pairs of a job and one of its other runs alone whose first losses have the same bits.

        Runs alone of all blocks count: a serial row shows whether its program repeats itself at all. A job that made
        fewer steps is compared by these.
        """
        runs_alone: dict[str, dict[tuple[str, str], str]] = defaultdict(dict)
        for serial in self._serial_of_blocks[_make_settings_key(row.group)]:
            if serial.machine_state.is_same(row.machine_state):
                for workload, run, bits in _read_bits(serial):
                    runs_alone[workload][run] = bits
        pairs = [
            bits.startswith(bits_alone) or bits_alone.startswith(bits)
            for workload, run, bits in _read_bits(row)
            for run_alone, bits_alone in runs_alone[workload].items()
            if run_alone != run
        ]
        return sum(pairs) / len(pairs) if pairs else None


def compare_with_baseline(
    row: GroupResult, solo: Sequence[Sequence[JobResult]], serial_makespan_s: float | None
) -> dict[str, float]:
    """Compute the figures of a group against its serial baseline, except figures whose baseline is missing.

    `solo` has the runs of each job alone.
    """
    return normalise(
        row.group.window.kind,
        [_compare_job(job, runs) for job, runs in zip(row.measured, solo, strict=True)],
        is_sequential=row.group.sequential,
        has_co_runners=row.group.has_co_runners,
        adds_memory=mode_of(row.group.scenario).adds_memory,
        serial_s=serial_makespan_s,
        makespan_s=row.metrics.get("makespan_s"),
    )


def _compare_job(job: JobResult, runs: Sequence[JobResult]) -> ComparedJob:
    workload = job.job.workload
    same = [run for run in runs if run.job.arrivals == job.job.arrivals or not workload.is_rate_given]
    return ComparedJob(
        job.work_unit,
        workload.is_rate_given,
        together=job.metrics,
        alone=average_figures([run.metrics for run in same or runs]),
        has_same_arrivals=bool(same),
    )


def describe_loss_difference(colocated: Sequence[float], alone: Sequence[float]) -> str | None:
    """Describe the first step whose loss differs by more than rounding from the loss of the same job alone."""
    for step, (loss, expected) in enumerate(zip(colocated, alone, strict=False)):
        if not math.isfinite(expected) or step >= len(_LOSS_TOLERANCES):
            return None
        if not abs(loss - expected) <= _LOSS_TOLERANCES[step] * abs(expected):
            return f"loss {loss:.6g} instead of {expected:.6g} in step {step + 1}"
    return None


def describe_output_difference(colocated: Sequence[float], alone: Sequence[float]) -> str | None:
    """Describe the first request whose answer has another norm than the answer of the same job alone."""
    pairs = zip(colocated, alone, _OUTPUT_TOLERANCES, strict=False)
    for number, (norm, expected, tolerance) in enumerate(pairs, start=1):
        if not abs(norm - expected) <= tolerance * abs(expected):
            return f"answer to request {number} has norm {norm:.6g} instead of {expected:.6g}"
    return None


def _read_first(row: GroupResult) -> list[_FirstSteps]:
    losses, outputs = (json.loads(row.tags.get(tag, "{}")) for tag in (Tag.FIRST_LOSSES, Tag.FIRST_OUTPUTS))
    indices = [str(job.job.index) for job in row.measured]
    return [(losses.get(index, []), outputs.get(index, [])) for index in indices]


def _read_bits(row: GroupResult) -> list[tuple[str, tuple[str, str], str]]:
    """Return the workload, the run and the bits of the first losses, of each job that reports losses."""
    bits = json.loads(row.tags.get(Tag.FIRST_LOSS_BITS, "{}"))
    return [
        (job.workload.digest, (row.group.digest, index), bits[index])
        for job in row.group.measured
        if (index := str(job.index)) in bits
    ]


def _list_digests(row: GroupResult) -> tuple[str, ...]:
    return tuple(job.workload.digest for job in row.group.measured)


def make_comparison_key(group: Group) -> tuple[object, ...]:
    """Return the settings that a group shares with its baselines, apart from workloads and machine state."""
    return (group.block, *_make_settings_key(group))


def _make_settings_key(group: Group) -> tuple[object, ...]:
    return (*sorted(group.shared_settings.items()), group.profiler)
