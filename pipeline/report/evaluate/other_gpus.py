"""What work on other GPUs of the host costs: groups in company against the same alone, on one GPU since one boot."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from pipeline.base import units
from pipeline.base.normalise import independent
from pipeline.base.records import BESIDE, Result, WindowKind
from pipeline.report.evaluate.cells import Case, cases_of
from pipeline.report.evaluate.statistics import Estimate, estimate
from pipeline.report.evaluate.wording import interval_in_words, jobs_in_words
from pipeline.report.read.records import Row, Study


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What a group kept of its speed in company.

    Attributes:
        case, degree, mode: of the group alone.
        beside: GPUs at work beside.
        share: its speed in company over that alone, of each block that has both.
        num_blocks: of these.
    """

    case: Case
    degree: int
    mode: str
    beside: int
    share: Estimate
    num_blocks: int
    is_simulated: bool

    @property
    def sentence(self) -> str:
        """In words."""
        share = f"{self.share.median:.3f}{interval_in_words(self.share, '.3f')}"
        others = "another GPU works" if self.beside == 1 else f"{self.beside} other GPUs work"
        simulated = " (simulated)" if self.is_simulated else ""
        what = f"{self.mode} runs {jobs_in_words(self.case, self.degree)}"
        return f"{what} at {share} of its speed while {others}.{simulated}"


def kept(study: Study) -> Iterator[Kept]:
    """Each group that ran alone and in company, in the order of the rows."""
    cases = cases_of(study)
    alone: dict[tuple[object, ...], dict[int, Row]] = defaultdict(dict)
    company: dict[tuple[object, ...], dict[int, Row]] = defaultdict(dict)
    for row in study.rows:
        if row.result is Result.OK:
            found = company[(*_identity(row), row.beside)] if row.beside else alone[_identity(row)]
            found[row.block] = row
    for (*identity, beside), rows in company.items():
        same = alone[tuple(identity)]
        ratios = {block: _speed(row) / _speed(same[block]) for block, row in rows.items() if _has_both(row, same)}
        if ratios:
            first = same[next(iter(ratios))]
            yield Kept(
                case=cases[first.run_id],
                degree=first.degree,
                mode=first.mode,
                beside=int(str(beside)),
                share=estimate(independent(ratios, {block: rows[block].gpu_uuid for block in ratios})),
                num_blocks=len(ratios),
                is_simulated=first.is_simulated,
            )


def _identity(row: Row) -> tuple[object, ...]:
    """What tells a group from others, but for its company."""
    settings = tuple(pair for pair in row.settings if pair[0] != BESIDE)
    return row.scenario, repr(sorted(row.options.items())), tuple(job.digest for job in row.jobs), settings


def _has_both(row: Row, alone: dict[int, Row]) -> bool:
    """Whether the block has the group alone too, on the same GPU since the same boot, and both have a speed."""
    other = alone.get(row.block)
    if other is None or (row.gpu_uuid, row.boot_id) != (other.gpu_uuid, other.boot_id):
        return False
    return _speed(row) > 0 and _speed(other) > 0


def _speed(row: Row) -> float:
    """Work a second, or of a fixed amount of work the inverse of its time; 0 where it is not known."""
    if row.window is WindowKind.STEADY:
        return row.metrics.get(units.total_of(row.unit), 0.0) if row.unit else 0.0
    makespan_s = row.metrics.get("makespan_s", 0.0)
    return 1 / makespan_s if makespan_s > 0 else 0.0
