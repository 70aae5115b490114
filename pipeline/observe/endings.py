"""How a job and a group ended, decided here and nowhere else: each gets a result and, if it is not `ok`, a reason.

Pure, but for the last lines of a job's error output: the last is part of the reason.
"""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Sequence
from pathlib import Path

from pipeline.base import layout
from pipeline.base.records import Group, Result
from pipeline.launch.events import Events, last_lines, last_shown
from pipeline.launch.state import Ending, JobState
from pipeline.observe.group_result import GroupResult, JobResult

_OOM_TYPES = frozenset({"OutOfMemoryError", "MemoryError"})
_OOM_TEXTS = ("out of memory", "ALLOC_FAILED", "can't allocate memory", "cannot allocate memory")
_TAIL_LINES, _TAIL_BYTES, _MAX_LENGTH = 20, 1 << 14, 300
# Of a script that SIGTERM or SIGKILL ended, or whose own shell says so of what it ran.
_BY_SIGNAL = tuple(str(128 + number) for number in (signal.SIGTERM, signal.SIGKILL))
_BY_USER = Ending(Result.INTERRUPTED, "interrupted by the user")
# Which failing job names the group's result, most telling first.
_SEVERITY = (Result.OOM, Result.FAILED, Result.TIMEOUT, Result.WRONG_RESULTS)


def of_job(state: JobState, log: Events, *, interrupted: bool) -> Ending:
    """How a job ended, from what is known of it and what it reported; `interrupted` says that the user ended it."""
    ending = _end(state, log, interrupted)
    diverged = bool(log.errors) and log.errors[-1].get("type") == "NonFiniteLossError"
    if log.wrong and (ending.result is Result.OK or diverged):
        further = f" (and {log.num_wrong - 1} more)" if log.num_wrong > 1 else ""
        return Ending(Result.WRONG_RESULTS, f"computes wrong results: {log.wrong[0]}{further}")
    return ending


def of_measurement(absence: str) -> Ending:
    """How a job ended that finished its work: as failed, if there are words for why it shows none (`work.absence`)."""
    return Ending(Result.FAILED, absence) if absence else Ending(Result.OK)


def of_group(jobs: Sequence[JobResult], reason: str | None, *, interrupted: bool, expected: int) -> Ending:
    """How a group of as many jobs as expected ended; `reason` says why it ended early, if that was no job."""
    if interrupted:
        return _BY_USER
    for result in _SEVERITY:
        for job in jobs:
            if job.result is result:
                return Ending(result, f"job {job.job.name}: {job.reason}")
    if reason is not None:
        return Ending(Result.FAILED, reason)
    if any(job.result is not Result.OK for job in jobs):
        return Ending(Result.FAILED, "the jobs were ended before they had finished")
    if len(jobs) < expected:
        return Ending(Result.FAILED, f"only {len(jobs)} of {expected} jobs ran")
    return Ending(Result.OK)


def without_owner() -> Ending:
    """How a group and its running jobs ended whose orchestrator died and could not say."""
    return Ending(Result.INTERRUPTED)


def of_absent_job(group: Result) -> Ending:
    """How a job ended that was never started, from how its group did."""
    return Ending(Result.FAILED if group is Result.OK else group, "did not run")


def skipped(group: Group) -> GroupResult | None:
    """The row of a group that the plan skips; `None` if it is to run."""
    if group.skip_reason is None:
        return None
    return GroupResult(group=group, result=Result.SKIPPED, reason=group.skip_reason)


def not_judged(group: Group, error: Exception | None, states: Sequence[JobState] = ()) -> GroupResult:
    """Return the row of a group without figures: they could not be computed, or the user did not wait for them.

    Args:
        group: whose row it is.
        error: why there are none; `None` if the user ended it.
        states: of the jobs that were started.
    """
    ending = _BY_USER if error is None else Ending(Result.FAILED, f"no figures: {type(error).__name__}: {error}")
    jobs = (
        JobResult(
            job=state.job, result=ending.result, reason=ending.reason, exit_status=state.ended.status, pid=state.pid
        )
        for state in states
    )
    return GroupResult(group=group, result=ending.result, reason=ending.reason, jobs=tuple(jobs))


def with_wrong_results(row: GroupResult, difference: str) -> GroupResult:
    """The row of a group that ended well, after a comparison found its results wrong."""
    return dataclasses.replace(row, result=Result.WRONG_RESULTS, reason=difference)


def _end(state: JobState, log: Events, interrupted: bool) -> Ending:
    noticed, ended = state.ended.noticed, state.ended
    if noticed is not None and noticed.result is not Result.FAILED:
        return noticed
    if log.errors and not _is_our_signal(state, log):
        return _of_error(log.errors[-1], state.folder)
    if noticed is not None:  # what the job itself says of a failure, above, tells more
        return noticed
    if state.ended_well:
        return Ending(Result.OK)
    if ended.status is None or ended.was_signalled:
        return _BY_USER if interrupted else Ending(Result.INTERRUPTED, "ended because the group failed")
    if ended.status == 0:
        return Ending(Result.FAILED, "ended with status 0 without reporting the end of its work")
    how = f"status {ended.status}" if ended.status > 0 else f"signal {-ended.status}"
    words = _last_words(state.folder / layout.STDERR)
    if state.profiler is not None and state.said.bye in (None, "ok"):
        when = "before the job spoke" if state.said.pid is None else "before the job's end"
        words = words or _last_words(state.folder / layout.STDOUT)
        said = f"{state.profiler} ended with {how} {'after the job' if state.said.bye else when}{words}"
        return Ending(Result.FAILED, said)
    return Ending(Result.OOM if _tells_oom(words) else Result.FAILED, f"ended with {how}{words}")


def _of_error(error: dict[str, str], folder: Path) -> Ending:
    text = f"{error.get('type')}: {error.get('message')}"
    if error.get("type") == "ScriptError":
        # What went wrong in a script that knows nothing of us stands in its own error output only.
        text = f"{error.get('message')}{_last_words(folder / layout.STDERR)}"
    is_oom = error.get("type") in _OOM_TYPES or _tells_oom(text)
    return Ending(Result.OOM if is_oom else Result.FAILED, text)


def _is_our_signal(state: JobState, log: Events) -> bool:
    """Whether what a script died of is the signal by which we ended it, as when another job had failed.

    What its runner ended with does not tell: that may have been killed before it came to its end.
    """
    return state.ended.was_signalled and log.errors[-1].get("status") in _BY_SIGNAL


def _tells_oom(text: str) -> bool:
    return any(words in text for words in _OOM_TEXTS)


def error_output(state: JobState, ending: Ending) -> tuple[str, ...]:
    """The last lines that a job wrote to its error output; none of one that ended well, or that we ended."""
    if ending.result not in (Result.FAILED, Result.OOM, Result.TIMEOUT):
        return ()
    lines = last_shown(state.folder / layout.STDERR, _TAIL_BYTES)  # of forty states of a progress bar, one
    return tuple(line[:_MAX_LENGTH] for line in lines)[-_TAIL_LINES:]


def _last_words(path: Path) -> str:
    """The last line that a process wrote to its error output, as `: LINE`."""
    lines = [line.strip() for line in last_lines(path) if line.strip()]
    return f": {lines[-1].decode(errors='replace')[:500]}" if lines else ""
