"""The trials of a pack that earlier starts have ended, and the lines about a pack at the end of a study."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence

from pipeline.base.domain.records import Group, Job, Result
from pipeline.base.domain.tags import Tag
from pipeline.base.system import words
from pipeline.base.system.words import format_count
from pipeline.observe.group_result import GroupResult
from pipeline.record import resume
from pipeline.study.pack_run import spell_trial
from pipeline.study.study_request import StudyRequest


def select_unended(request: StudyRequest, groups: Sequence[Group]) -> tuple[tuple[Group, ...], list[GroupResult]]:
    """Return the groups with the trials that have not ended, and the stored rows of groups whose trials all have.

    A trial that failed has ended. Equal trials are counted.
    """
    assert request.sender is not None
    store = request.config.tracking.uri or str(request.root)
    stored = request.sender.find_finished(request.config.tracking.experiment)
    unended: list[Group] = []
    rows: list[GroupResult] = []
    for group in groups:
        runs = [record.run_id for record in stored if record.digest == group.digest]
        ended = Counter(
            job.digest
            for run_id in runs
            for job in request.sender.recall(run_id, store).group.jobs
            if job.exit_status is not None and job.result not in (None, Result.INTERRUPTED)
        )
        trials: list[Job] = []
        for job in group.jobs:
            if ended[job.workload.digest] > 0:
                ended[job.workload.digest] -= 1
            else:
                trials.append(dataclasses.replace(job, index=len(trials)))
        all_trials = format_count(len(group.jobs), "trial")
        words.say(f"resume: {len(group.jobs) - len(trials)} of {all_trials} have ended")
        if trials:
            unended.append(dataclasses.replace(group, jobs=tuple(trials)))
        else:
            rows += resume.select_latest([group], stored)
    return tuple(unended), rows


def describe(row: GroupResult) -> Iterator[str]:
    """Yield the lines about a pack: its trials by result, each failed one, and what the pack gained."""
    for job in row.jobs:
        if job.result is not Result.OK:
            yield f"trial {spell_trial(job.job)}: {job.result}{': ' * bool(job.reason)}{job.reason}"
    counts = Counter(str(job.result) for job in row.jobs)
    yield ", ".join(f"{number} {result}" for result, number in counts.items())
    if text := row.tags.get(Tag.PACK):
        energy_j = row.metrics.get("energy_j")
        yield text + ("" if energy_j is None else f"; {energy_j / 3600:.3g} Wh")
