"""Result and reason of a job and a group, and the lines about failed groups below the table.

Only this module decides results. The only side effect is reading the end of a failed job's output, in which `causes.py`
finds the cause.
"""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from pipeline.base.domain import layout, work_units
from pipeline.base.domain.records import Group, Result
from pipeline.base.system import secrets
from pipeline.launch.events import Events
from pipeline.launch.job_state import Ending, JobEnd, JobState
from pipeline.observe import causes, output_lines
from pipeline.observe.causes import Cause
from pipeline.observe.group_result import GroupResult, JobResult
from pipeline.observe.output_lines import Line

_TAIL_LINES, _MAX_LENGTH = 20, 300
# Errors of the runners of programs that do not use the job protocol; their cause is only in the output.
_OF_PROGRAMS = frozenset(("ScriptError", "ServerEndedError"))
_UNSUPPORTED = "UnsupportedError"
"""The error of a host program whose sharing mode does not work with the libraries of its environment."""
_KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)
# Exit status of a script, or of a program that its shell ran, after SIGTERM or SIGKILL.
_OF_OUR_SIGNALS = tuple(str(128 + number) for number in (signal.SIGTERM, signal.SIGKILL))
_BY_SIGNAL = Ending(Result.INTERRUPTED, "interrupted by a signal")
# If several jobs failed, the first of these results is the group's result.
_SEVERITY = (Result.SKIPPED, Result.OOM, Result.FAILED, Result.TIMEOUT, Result.WRONG_RESULTS)


def judge_job(state: JobState, log: Events, *, interrupted: bool) -> Ending:
    """Return how a job ended; `interrupted` is true if the user ended the study."""
    ending = _judge_end(state, log, interrupted)
    if ending.reason:
        ending = dataclasses.replace(ending, reason=secrets.mask_text(ending.reason, _collect_secrets(state)))
    diverged = bool(log.errors) and log.errors[-1].get("type") == "NonFiniteLossError"
    if log.wrong and (ending.result is Result.OK or diverged):
        suffix = f" (and {log.num_wrong - 1} more)" if log.num_wrong > 1 else ""
        return Ending(Result.WRONG_RESULTS, f"computes wrong results: {log.wrong[0]}{suffix}")
    return ending


def judge_group(jobs: Sequence[JobResult], reason: str | None, *, interrupted: bool, expected: int) -> Ending:
    """Return how a group ended; `reason` is why the group ended early, if no job was the cause."""
    if interrupted:
        return _BY_SIGNAL
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


def judge_absent_job(group: Result) -> Ending:
    """Return the ending of a job that never started."""
    return Ending(Result.FAILED if group is Result.OK else group, "did not run")


def make_skipped_row(group: Group) -> GroupResult | None:
    """Return the row of a group that the plan skips; `None` if the plan runs the group."""
    if group.skip_reason is None:
        return None
    return GroupResult(group=group, result=Result.SKIPPED, reason=group.skip_reason)


def make_row_without_figures(group: Group, error: Exception | None, states: Sequence[JobState] = ()) -> GroupResult:
    """Return the row of a group without figures, because of an error, or because of a signal if `error` is `None`."""
    ending = _BY_SIGNAL if error is None else Ending(Result.FAILED, f"no figures: {type(error).__name__}: {error}")
    jobs = (
        JobResult(
            job=state.job, result=ending.result, reason=ending.reason, exit_status=state.ended.status, pid=state.pid
        )
        for state in states
    )
    return GroupResult(group=group, result=ending.result, reason=ending.reason, jobs=tuple(jobs))


def _judge_end(state: JobState, log: Events, interrupted: bool) -> Ending:
    noticed, ended = state.ended.noticed, state.ended
    if noticed is not None and noticed.result is not Result.FAILED:
        return noticed
    if log.errors and not _is_our_signal(state, log):
        return _judge_error(log.errors[-1], state)
    if noticed is not None:  # after the job's own report of its failure, which is more detailed
        return noticed
    if state.ended_well and not (interrupted and ended.was_signalled and _ended_after_signal(ended, log)):
        return Ending(Result.OK)
    if ended.status is None or ended.was_signalled:
        return _BY_SIGNAL if interrupted else Ending(Result.INTERRUPTED, "ended because the group failed")
    if ended.status == 0:
        is_cleared = state.wrapper is not None and state.said.pid is None
        hint = f"; {state.wrapper} may hide the job's variables: remove options such as --cleanenv" * is_cleared
        return Ending(Result.FAILED, f"ended with status 0 without reporting the end of its work{hint}")
    status = f"status {ended.status}" if ended.status > 0 else f"signal {-ended.status}"
    printed = state.folder if state.host_folder is None else state.host_folder
    cause = causes.judge_output(printed / layout.STDERR, printed / layout.STDOUT)
    if state.wrapper is not None and state.said.bye in (None, "ok"):
        when = "before the job sent a message" if state.said.pid is None else "before the job's end"
        ending = f"{state.wrapper} ended with {status} {'after the job' if state.said.bye else when}"
        return Ending(Result.FAILED, _join_cause(ending, cause))
    event = "the process of all jobs ended" if state.is_tenant else "ended"
    return _describe_failure(f"{event} with {status}", cause, state, was_killed=ended.status in _KILLED)


def _ended_after_signal(ended: JobEnd, log: Events) -> bool:
    """Return whether a script was still running when it was signalled; it may handle the signal and exit with 0."""
    return log.ended_ns is not None and ended.signalled_ns is not None and log.ended_ns > ended.signalled_ns


def _judge_error(error: dict[str, str], state: JobState) -> Ending:
    kind, message = str(error.get("type")), str(error.get("message"))
    if kind in _OF_PROGRAMS:
        cause = causes.judge_output(state.folder / layout.STDERR, state.folder / layout.STDOUT)
        return _describe_failure(message, cause, state, was_killed=error.get("status") == str(_KILLED[1]))
    if kind == _UNSUPPORTED:
        return Ending(Result.SKIPPED, message.partition("\n")[0])
    cause = causes.judge_exception(kind, message, error.get("traceback", ""))
    if cause.has_kill and state.num_oom_kills:
        return _report_oom_kill(cause.text, state)
    return Ending(Result.OOM if cause.is_oom else Result.FAILED, cause.text)


def _describe_failure(event: str, cause: Cause, state: JobState, *, was_killed: bool) -> Ending:
    """Describe a failed program; `was_killed` is true if a SIGKILL of another program ended it."""
    if (was_killed or cause.has_kill) and state.num_oom_kills:
        return _report_oom_kill(event, state)
    return Ending(Result.OOM if cause.is_oom else Result.FAILED, _join_cause(event, cause))


def _report_oom_kill(event: str, state: JobState) -> Ending:
    return Ending(
        Result.OOM, f"{event}: out of memory, killed by the kernel (oom_kill {state.num_oom_kills} in its cgroup)"
    )


def _join_cause(event: str, cause: Cause) -> str:
    return f"{event}: {cause.text}" if cause.text else event


def _is_our_signal(state: JobState, log: Events) -> bool:
    """Return whether a signal of the orchestrator ended a script, for example after another job failed.

    The exit status of the script's runner is no proof, because the runner may have been killed first.
    """
    return state.ended.was_signalled and log.errors[-1].get("status") in _OF_OUR_SIGNALS


def read_error_output(state: JobState, ending: Ending) -> tuple[str, ...]:
    """Return the last informative lines of stderr, or else of stdout; none unless a job failed."""
    if ending.result not in (Result.FAILED, Result.OOM, Result.TIMEOUT):
        return ()
    lines, source = _read_lines(state.folder), ""
    if not lines and state.host_folder is not None:
        lines, source = _read_lines(state.host_folder), "process of all jobs: "
    if not lines:
        lines, source = _read_lines(state.folder, layout.STDOUT), "stdout: "
    telling = [line for line in lines if line.is_telling] or lines
    texts = [f"{line.source} {line.text}" if line.source else line.text for line in telling[-_TAIL_LINES:]]
    shown = "\n".join(f"{source}{text}" for text in texts)
    return tuple(line[:_MAX_LENGTH] for line in secrets.mask_text(shown, _collect_secrets(state)).split("\n") if line)


def _read_lines(folder: Path, output: str = layout.STDERR) -> list[Line]:
    return [line for line in output_lines.read_end(folder / output) if not line.is_blank]


def _collect_secrets(state: JobState) -> frozenset[str]:
    workload = state.job.workload
    return secrets.collect_secrets(workload.argv, os.environ | dict(workload.environ))


_MAX_ERROR_OUTPUTS = 3


def describe_failures(rows: Sequence[GroupResult], log_of: Callable[[GroupResult, int], str]) -> Iterator[str]:
    """Yield the lines, with each error output once; `log_of` returns where the complete output of a job is stored."""
    for row in rows:
        if row.result not in (Result.OK, Result.WRONG_RESULTS):
            yield from _describe_others(row)
    yield from _quote_error_outputs(rows, log_of)


def _describe_others(row: GroupResult) -> Iterator[str]:
    for job in row.jobs:
        if job.result is Result.OK:
            unit = job.work_unit
            forms = {"makespan_s": "{:.1f} s", work_units.rate_of(unit): f"{{:.1f}} {work_units.per_second(unit)}"}
            figures = [form.format(job.metrics[key]) for key, form in forms.items() if key in job.metrics]
            yield f"{row.group.display_name}: job {job.job.name} succeeded: {', '.join(figures)}".rstrip(": ")


def _quote_error_outputs(rows: Sequence[GroupResult], log_of: Callable[[GroupResult, int], str]) -> Iterator[str]:
    shown: set[tuple[str, ...]] = set()
    for row in rows:
        for job in row.jobs:
            if job.error_output and job.error_output not in shown:
                if len(shown) == _MAX_ERROR_OUTPUTS:
                    yield "more jobs failed; the artifacts of their runs contain their error output"
                    return
                shown.add(job.error_output)
                log_path = log_of(row, job.job.index)
                yield f"last lines of job {job.job.name} in {row.group.display_name} ({log_path}):"
                yield from (f"    {line}" for line in job.error_output)
