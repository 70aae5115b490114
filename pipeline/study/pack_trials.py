"""The trials of a pack that earlier starts have ended, and the lines about a pack at the end of a study."""

from __future__ import annotations

import dataclasses
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from pipeline.base.domain.records import DEVICE, Group, Job, Result
from pipeline.base.domain.tags import Tag
from pipeline.base.domain.trial_words import find_shared_words, spell_trial
from pipeline.base.system import words
from pipeline.base.system.words import format_count
from pipeline.observe import endings
from pipeline.observe.group_result import GroupResult, JobResult
from pipeline.observe.study_progress import PastGroup
from pipeline.record.group_record import JobRecord
from pipeline.study.study_request import StudyRequest

_NEARLY_BEST = 0.97
"""Part of the best speed-up above which a smaller number of copies is as good."""


def divide(request: StudyRequest, group: Group) -> tuple[Group, list[JobResult]]:
    """Return a pack with the trials that have not ended, and the results of those that have.

    A trial that failed has ended. Of equal trials, as many have ended as have a result.
    """
    assert request.sender is not None
    store = request.config.tracking.uri or str(request.root)
    ended: dict[str, list[JobRecord]] = defaultdict(list)
    for record in request.sender.find_finished(group.experiment):
        for trial in request.sender.recall(record.run_id, store).group.jobs if record.digest == group.digest else ():
            if trial.exit_status is not None and trial.result not in (None, Result.INTERRUPTED):
                ended[trial.digest].append(trial)
    trials: list[Job] = []
    results: list[JobResult] = []
    for job in group.jobs:
        if stored := ended[job.workload.digest]:
            trial = stored.pop()
            results.append(JobResult(job=job, result=trial.result or Result.OK, reason=trial.reason))
        else:
            trials.append(dataclasses.replace(job, index=len(trials)))
    words.say(f"resume: {len(results)} of {format_count(len(group.jobs), 'trial')} have ended")
    return dataclasses.replace(group, jobs=tuple(trials)), results


def begin_as_known(group: Group, past: Iterable[PastGroup]) -> Group:
    """Return a pack that begins with the best number of copies of its program in earlier studies, if there are any.

    Of numbers that are nearly as fast, the smallest is the best.
    """
    name, *other_names = {job.workload.name for job in group.jobs}
    speedups: dict[int, list[float]] = defaultdict(list)
    for earlier in () if other_names else past:
        copies = earlier.jobs.split("+")
        is_like = (earlier.scenario, earlier.device) == (group.scenario, group.settings[DEVICE])
        if is_like and earlier.speedup is not None and set(copies) == {name}:
            speedups[len(copies)].append(earlier.speedup)
    medians = {number: statistics.median(values) for number, values in speedups.items()}
    best = max(medians.values(), default=0.0)
    first = min((number for number, speedup in medians.items() if speedup > _NEARLY_BEST * best), default=1)
    if group.pack is None or group.pack.is_fixed or best <= 1 or first == 1:
        return group
    words.say(f"begins with {first} trials at a time, the best number of copies of {name} in earlier studies")
    return dataclasses.replace(group, pack=dataclasses.replace(group.pack, first=first))


def make_row(group: Group, results: Sequence[JobResult]) -> GroupResult:
    """Return the row of a pack whose trials have all ended."""
    ending = endings.judge_group(results, None, interrupted=False, expected=len(results))
    return GroupResult(group=group, result=ending.result, reason=ending.reason, jobs=tuple(results))


def have_failed(rows: Sequence[GroupResult], ended: Sequence[JobResult]) -> bool:
    """Return whether a trial of packs, or one that an earlier start has ended, did not end well."""
    trials = [job for row in rows if row.group.pack is not None for job in row.jobs]
    return any(trial.result is not Result.OK for trial in (*trials, *ended))


def describe(row: GroupResult, ended: Sequence[JobResult]) -> Iterator[str]:
    """Yield the lines about a pack: each failed trial, the trials by result, and what the pack gained."""
    trials = [*ended, *row.jobs]
    shared = find_shared_words([trial.job for trial in trials])
    for trial in trials:
        if trial.result is not Result.OK:
            yield f"trial {spell_trial(trial.job, shared)}: {trial.result}{': ' * bool(trial.reason)}{trial.reason}"
    counts = Counter(str(trial.result) for trial in trials)
    yield ", ".join(f"{number} {result}" for result, number in counts.items())
    if text := row.tags.get(Tag.PACK):
        energy_j = row.metrics.get("energy_j")
        yield text + ("" if energy_j is None else f"; {energy_j / 3600:.3g} Wh")
