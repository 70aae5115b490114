"""Forecast of a study's duration, from similar earlier groups, or else from the windows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pipeline.base.domain.records import Group
from pipeline.base.system.words import format_count, format_duration
from pipeline.observe.study_progress import Likeness, PastGroup, Progress, count_windows

_MOST_NAMES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Forecast of a study's duration, in seconds.

    Attributes:
        of_each: estimated seconds of each group that has a similar earlier group, by number of the group.
        least_s, most_s: seconds of the study, if each other group takes only its window, or its limits.
        shortest_s, longest_s: seconds of all windows by need at their shortest and longest lengths.
        num_unknown: number of groups without a similar earlier group.
        num_unknown_windows: number of these groups whose windows have no fixed length, because their work is fixed.
        num_groups: number of groups, without skipped groups.
        num_blocks: number of blocks of these groups.
        num_other_packages: number of groups estimated from the same group with other packages.
        other_programs: earlier programs, with other arguments or code, from which groups are estimated.
        num_other_programs: number of groups estimated from `other_programs`.
    """

    of_each: dict[int, float]
    least_s: float
    most_s: float
    num_unknown: int
    num_unknown_windows: int
    num_groups: int
    num_blocks: int
    shortest_s: float = 0.0
    longest_s: float = 0.0
    num_other_packages: int = 0
    other_programs: tuple[str, ...] = ()
    num_other_programs: int = 0

    @property
    def words(self) -> str:
        """The forecast in one line."""
        return self._duration + self._windows_by_need

    @property
    def _windows_by_need(self) -> str:
        if not self.longest_s:
            return ""
        return f"; its windows by need take {format_duration(self.shortest_s)} to {format_duration(self.longest_s)}"

    @property
    def _duration(self) -> str:
        if not self.num_unknown:
            return f"takes about {format_duration(self.least_s)}, estimated from similar earlier groups{self._basis}"
        rest = "the starts of jobs"
        if self.num_unknown_windows:
            rest += f" and the windows of {format_count(self.num_unknown_windows, 'group')}, which are unknown"
        duration = f"takes at least {format_duration(self.least_s)} plus {rest}"
        if not self.least_s:
            duration = "takes an unknown time, because the windows are unknown"
        have = "has" if self.num_unknown == 1 else "have"
        remedy = "; for an estimate, run one block with repeats=1" if self.num_blocks > 1 else ""
        return (
            f"{duration}: {self.num_unknown} of {self.num_groups} groups {have} no similar earlier run"
            f"{self._basis}{remedy}"
        )

    @property
    def _basis(self) -> str:
        parts = []
        if self.num_other_packages:
            parts.append(f"; {self.num_other_packages} of {self.num_groups} from runs with other packages")
        if self.num_other_programs:
            names = [*self.other_programs[:_MOST_NAMES], *(["..."] if len(self.other_programs) > _MOST_NAMES else [])]
            other = f"{self.num_other_programs} of {self.num_groups} from runs with other arguments or code"
            parts.append(f"; {other}: {', '.join(names)}")
        return "".join(parts)


def forecast(groups: Sequence[Group], past: Iterable[PastGroup]) -> Forecast:
    """Estimate the duration of groups from earlier groups."""
    progress = Progress(groups, past=past)
    expected = {group.number: progress.expect(group) for group in groups}
    unknown = [group for group in groups if expected[group.number] is None]
    known = {number: estimate for number, estimate in expected.items() if estimate is not None}
    of_each = {number: estimate.seconds for number, estimate in known.items()}
    by_need = [group for group in groups if group.window.most_s and group.skip_reason is None]
    loose = [estimate.source for estimate in known.values() if estimate.likeness is Likeness.OTHER_PROGRAM]
    least_s, _ = progress.estimate_left_s()
    most_s = sum(of_each.values()) + sum(map(_compute_limit_s, unknown))
    planned = [group for group in groups if group.skip_reason is None]
    return Forecast(
        of_each=of_each,
        least_s=least_s,
        most_s=most_s,
        num_unknown=len(unknown),
        num_unknown_windows=sum(not group.window.kind.is_steady for group in unknown),
        num_groups=len(planned),
        num_blocks=len({group.block for group in planned}),
        shortest_s=sum(count_windows(group) * group.window.seconds for group in by_need),
        longest_s=sum(count_windows(group) * group.window.most_s for group in by_need),
        num_other_packages=sum(estimate.likeness is Likeness.OTHER_PACKAGES for estimate in known.values()),
        other_programs=tuple(dict.fromkeys(loose)),
        num_other_programs=len(loose),
    )


def _compute_limit_s(group: Group) -> float:
    window, limits = group.window, group.limits
    work_s = window.begin_s + window.longest_s if window.kind.is_steady else limits.group_s
    return count_windows(group) * (limits.ready_s + work_s + limits.stop_s)
