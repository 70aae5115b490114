"""Rows against the serial baselines of their block, as both become known.

Within a block the order is random, so a baseline may run after the groups that need it: then their figures follow.
"""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Sequence

from pipeline.base.normalise import in_turn, normalise, rate_name
from pipeline.base.records import Group, Result
from pipeline.base.tags import Tag
from pipeline.observe import endings
from pipeline.observe.group_result import GroupResult

# How far the loss of each of the first steps may be from that of the same job alone, relative to it. About four times
# the largest difference between equal jobs that computed correctly: two models, seven jobs at once on an H100, in fp32,
# tf32, bf16 and fp16 (`default` rounds as tf32 does, or less). The first loss comes from one forward pass; later ones
# multiply differences of rounding.
_LOSS_TOLERANCES = (0.003, 0.04, 0.15, 0.2, 0.4, 0.4, 0.4, 0.4, 0.8, 1.2)


class Comparison:
    """The rows of a study and the baselines among them."""

    def __init__(self) -> None:
        # Serial rows that ended well and did not stand still, by what a comparison must share.
        self._baselines: dict[tuple[object, ...], list[GroupResult]] = defaultdict(list)
        self._rows: dict[str, GroupResult] = {}

    def add(self, row: GroupResult) -> list[GroupResult]:
        """Take in a row; returns those of which more is known from now on.

        That is their figures against the baseline, or that they learn otherwise than the same jobs alone, which makes
        them `wrong_results`. The rows returned hold these figures only; `latest` has them beside the others.
        """
        self._rows[row.group.digest] = row
        concerned = [row.group.digest]
        if row.group.sequential and row.result is Result.OK and Tag.FLAG not in row.tags:
            self._baselines[comparable(row.group)].append(row)
            concerned = list(self._rows)
        changed = []
        for digest in concerned:
            other = self._rows[digest]
            if other.result is not Result.OK:
                continue
            if difference := self._loss_difference(other):
                self._rows[digest] = endings.with_wrong_results(other, difference)
                changed.append(dataclasses.replace(self._rows[digest], metrics={}))
                continue
            metrics = self._against_baseline(other)
            if not metrics.items() <= other.metrics.items():
                self._rows[digest] = dataclasses.replace(other, metrics=other.metrics | metrics)
                changed.append(dataclasses.replace(other, metrics=metrics))
        return changed

    def latest(self, row: GroupResult) -> GroupResult:
        return self._rows.get(row.group.digest, row)

    def _usable(self, row: GroupResult) -> list[GroupResult]:
        return self._baselines.get(comparable(row.group), [])

    def _loss_difference(self, row: GroupResult) -> str | None:
        alone = {digest: losses for baseline in self._usable(row) for digest, losses in _losses(baseline)}
        for job, (digest, together) in zip(row.jobs, _losses(row), strict=True):
            if difference := loss_difference(together, alone.get(digest, [])):
                return f"the losses of job {job.job.name} differ from its solo run: {difference}"
        return None

    def _against_baseline(self, row: GroupResult) -> dict[str, float]:
        usable = self._usable(row)
        own = [baseline for baseline in usable if baseline.group.degree == 1]
        mixes = {_digests(baseline): baseline for baseline in usable if baseline.group.degree > 1}
        mix = in_turn(mixes, _digests(row))
        # A run of its own is preferred to turns in the same mix, and those to turns in any.
        solo = _means(usable) | _means([mix] if mix else []) | _means(own)
        return against_baseline(row, solo, mix.metrics.get("makespan_s") if mix else None)


def against_baseline(row: GroupResult, solo: dict[str, float], serial_makespan_s: float | None) -> dict[str, float]:
    """Figures of a group that ended well against its serial baseline; absent where a baseline is absent.

    Args:
        row: of the group.
        solo: by workload digest: seconds alone in a work window, else samples/s alone.
        serial_makespan_s: of the same jobs really executed one after another, if that was measured.
    """
    rate = rate_name(row.group.window.kind)
    return normalise(
        row.group.window.kind,
        [(job.metrics.get(rate), solo.get(job.job.workload.digest)) for job in row.jobs],
        is_sequential=row.group.sequential,
        serial_s=serial_makespan_s,
        makespan_s=row.metrics.get("makespan_s"),
    )


def loss_difference(together: Sequence[float], alone: Sequence[float]) -> str | None:
    """In words, the first step whose loss is not that of the same job alone; `None` if rounding explains them all.

    Args:
        together: losses of the first steps in the group.
        alone: those of the baseline. Steps that both have are compared.
    """
    for step, (loss, wanted) in enumerate(zip(together, alone, strict=False)):
        if not math.isfinite(wanted) or step >= len(_LOSS_TOLERANCES):
            return None
        if not abs(loss - wanted) <= _LOSS_TOLERANCES[step] * abs(wanted):
            return f"loss {loss:.6g} instead of {wanted:.6g} in step {step + 1}"
    return None


def _means(baselines: Sequence[GroupResult]) -> dict[str, float]:
    """By workload digest: the mean of its jobs in all of the baselines: seconds (work window) or samples/s."""
    values: dict[str, list[float]] = defaultdict(list)
    for baseline in baselines:
        name = rate_name(baseline.group.window.kind)
        for job in baseline.jobs:
            if name in job.metrics:
                values[job.job.workload.digest].append(job.metrics[name])
    return {digest: statistics.fmean(found) for digest, found in values.items()}


def _losses(row: GroupResult) -> list[tuple[str, list[float]]]:
    """Workload digest and losses of the first steps of each job."""
    told = json.loads(row.tags.get(Tag.FIRST_LOSSES, "{}"))
    return [(job.job.workload.digest, told.get(str(job.job.index), [])) for job in row.jobs]


def _digests(row: GroupResult) -> tuple[str, ...]:
    return tuple(job.workload.digest for job in row.group.jobs)


def comparable(group: Group) -> tuple[object, ...]:
    """What a group and its baseline must share beside their workloads."""
    return (group.block, group.device.uuid, *sorted(group.settings.items()), group.profiler)
