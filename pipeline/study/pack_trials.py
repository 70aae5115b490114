"""The trials of a pack that earlier starts have ended, and the lines about a pack at the end of a study."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from pipeline.base.domain.records import Group, Job, Result
from pipeline.base.domain.tags import Tag
from pipeline.base.system import words
from pipeline.base.system.words import format_count
from pipeline.observe import endings
from pipeline.observe.group_result import GroupResult, JobResult
from pipeline.record.group_record import JobRecord
from pipeline.study.pack_run import spell_trial
from pipeline.study.study_request import StudyRequest


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
    trials = [*ended, *(job for job in row.jobs if row.jobs != tuple(ended))]
    for trial in trials:
        if trial.result is not Result.OK:
            yield f"trial {spell_trial(trial.job)}: {trial.result}{': ' * bool(trial.reason)}{trial.reason}"
    counts = Counter(str(trial.result) for trial in trials)
    yield ", ".join(f"{number} {result}" for result, number in counts.items())
    if text := row.tags.get(Tag.PACK):
        energy_j = row.metrics.get("energy_j")
        yield text + ("" if energy_j is None else f"; {energy_j / 3600:.3g} Wh")
