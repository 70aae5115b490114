"""Lines about failed groups below the table: the last output of their jobs, and the jobs that succeeded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from pipeline.base.domain import work_units
from pipeline.base.domain.records import Result
from pipeline.observe.group_result import GroupResult

_MAX_ERROR_OUTPUTS = 3


def describe(rows: Sequence[GroupResult], log_of: Callable[[GroupResult, int], str]) -> Iterator[str]:
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
            yield f"{row.group.name}: job {job.job.name} succeeded: {', '.join(figures)}".rstrip(": ")


def _quote_error_outputs(rows: Sequence[GroupResult], log_of: Callable[[GroupResult, int], str]) -> Iterator[str]:
    shown: set[tuple[str, ...]] = set()
    for row in rows:
        for job in row.jobs:
            if job.error_output and job.error_output not in shown:
                if len(shown) == _MAX_ERROR_OUTPUTS:
                    yield "more jobs failed; the artifacts of their runs contain their error output"
                    return
                shown.add(job.error_output)
                where = log_of(row, job.job.index)
                yield f"last lines of stderr of job {job.job.name} in {row.group.name} ({where}):"
                yield from (f"    {line}" for line in job.error_output)
