"""The effect of work on other GPUs of the host: speed of groups with and without such work, since the same boot."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pipeline.base.domain import work_units
from pipeline.base.domain.normalisation import select_independent
from pipeline.base.domain.records import OTHER_GPUS
from pipeline.base.domain.window import WindowKind
from pipeline.base.system.grouping import group_by
from pipeline.base.system.words import format_count
from pipeline.report.evaluate.cells import Case, label_cases
from pipeline.report.evaluate.statistics import MIN_FOR_INTERVAL, Estimate, estimate, interval_in_words
from pipeline.report.evaluate.wording import jobs_in_words
from pipeline.report.read.study_records import JobRow, Row, Study


@dataclass(frozen=True, slots=True, kw_only=True)
class CompanyShare:
    """The speed of a group while other GPUs of the host work, relative to its speed without such work.

    Attributes:
        beside: number of other GPUs that work.
        share: ratio of the two speeds, over the blocks that have both.
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
        """The comparison as a sentence."""
        company = _name_others(self.beside)
        return f"{_name_group(self)} keeps {self.share_in_words} of its speed while {company}.{_mark_simulated(self)}"

    @property
    def share_in_words(self) -> str:
        """The share with its interval: `0.971 (0.923 to 1.026)`."""
        return f"{self.share.median:.3f}{interval_in_words(self.share, '.3f')}"


def summarize_shares(groups: Iterable[CompanyShare]) -> list[str]:
    """Return, for each number of working GPUs, a sentence on the groups that keep the least and most of their speed."""
    by_number = group_by(groups, lambda group: group.beside)
    return [_summarize_groups(groups) for _, groups in sorted(by_number.items())]


def _summarize_groups(groups: Sequence[CompanyShare]) -> str:
    lowest, *higher = sorted(groups, key=lambda group: group.share.median)
    sentence = f"While {_name_others(lowest.beside)}, {_name_group(lowest)} keeps {lowest.share_in_words} of its speed"
    if higher:
        sentence += f" (the lowest of {len(groups)} groups) and {_name_group(higher[-1])} {higher[-1].share_in_words}"
        sentence += " (the highest)"
    return f"{sentence}; {_count_differing(groups)}.{_mark_simulated(lowest)}"


def _count_differing(groups: Sequence[CompanyShare]) -> str:
    intervals = [(group.share.low, group.share.high) for group in groups]
    known = [(low, high) for low, high in intervals if low is not None and high is not None]
    if not known:
        return f"an interval needs {MIN_FOR_INTERVAL} blocks"
    num = sum(not low <= 1 <= high for low, high in known)
    return f"{num or 'none'} of {format_count(len(known), 'interval')} {'exclude' if num > 1 else 'excludes'} 1"


def _name_group(group: CompanyShare) -> str:
    return f"{group.mode} with {jobs_in_words(group.case, group.degree)}"


def _name_others(beside: int) -> str:
    return "another GPU works" if beside == 1 else f"{beside} other GPUs work"


def _mark_simulated(group: CompanyShare) -> str:
    return " (simulated)" if group.is_simulated else ""


def compare_company(study: Study) -> Iterator[CompanyShare]:
    """Yield the comparison of each group that ran both with and without work on other GPUs."""
    cases = label_cases(study)
    alone: dict[tuple[object, ...], dict[int, Row]] = defaultdict(dict)
    company: dict[tuple[object, ...], dict[int, Row]] = defaultdict(dict)
    for row in study.rows:
        if row.is_valid:
            by_block = company[(*_identity(row), row.beside)] if row.beside else alone[_identity(row)]
            by_block[row.block] = row
    for (*identity, beside), rows in company.items():
        same = alone[tuple(identity)]
        shares = {block: _share(row, same.get(block)) for block, row in rows.items()}
        if ratios := {block: share for block, share in shares.items() if share is not None}:
            first = same[next(iter(ratios))]
            yield CompanyShare(
                case=cases[first.run_id],
                degree=first.degree,
                mode=first.mode,
                beside=int(str(beside)),
                share=estimate(select_independent(ratios, {block: rows[block].gpu_uuid for block in ratios})),
                num_blocks=len(ratios),
                is_simulated=first.is_simulated,
            )


def _identity(row: Row) -> tuple[object, ...]:
    settings = tuple(pair for pair in row.settings if pair[0] != OTHER_GPUS)
    return row.scenario, repr(sorted(row.options.items())), tuple(job.digest for job in row.jobs), settings


def _share(row: Row, alone: Row | None) -> float | None:
    """Divide the speed of a group by its speed without work on other GPUs.

    Fixed work is compared by its time. Jobs at a given rate are not compared.

    Returns:
        The ratio; `None` if a speed is unknown or the machine states differ.
    """
    if alone is None or not row.machine_state.is_same(alone.machine_state):
        return None
    if any(job.is_rate_given for job in row.jobs):
        return None
    if row.window is WindowKind.WORK:
        return _ratio(alone, row, "makespan_s")
    if not row.is_mix:
        return _ratio(row, alone, work_units.total_of(row.unit))
    shares = [_ratio(job, other, work_units.rate_of(job.unit)) for job, other in zip(row.jobs, alone.jobs, strict=True)]
    known = [share for share in shares if share is not None]
    return statistics.fmean(known) if len(known) == len(shares) else None


def _ratio(of: Row | JobRow, to: Row | JobRow, name: str) -> float | None:
    over, under = of.metrics.get(name, 0.0), to.metrics.get(name, 0.0)
    return over / under if over > 0 and under > 0 else None
