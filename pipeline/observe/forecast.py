"""The duration of a study before it starts, from groups like its own that ran before, else from limits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pipeline.base.domain.records import Group
from pipeline.base.system.words import format_duration
from pipeline.observe.study_progress import Likeness, PastGroup, Progress

_MOST_NAMES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Seconds that a study will take.

    Attributes:
        of_each: by number of the group; only groups with a similar one in the past.
        least_s, most_s: with the windows, and with the limits, of the other groups.
        num_unknown: number of those others among `num_groups`, which leave out skipped ones.
        num_other_packages: number of groups estimated from the same group with other packages.
        other_programs, num_other_programs: programs with other arguments or code that groups are estimated from, and
            the number of those groups.
    """

    of_each: dict[int, float]
    least_s: float
    most_s: float
    num_unknown: int
    num_groups: int
    num_other_packages: int = 0
    other_programs: tuple[str, ...] = ()
    num_other_programs: int = 0

    @property
    def words(self) -> str:
        """The forecast in a line."""
        if not self.num_unknown:
            return f"takes about {format_duration(self.least_s)}, by similar earlier groups{self._basis}"
        least, most = format_duration(self.least_s), format_duration(self.most_s)
        bounds = f"at least {least} (the windows) and at most {most} (limits.*)"
        return (
            f"takes {bounds}: {self.num_unknown} of {self.num_groups} groups have no similar earlier run{self._basis}"
        )

    @property
    def _basis(self) -> str:
        parts = []
        if self.num_other_packages:
            parts.append(f"; {self.num_other_packages} of {self.num_groups} by runs with other packages")
        if self.num_other_programs:
            names = [*self.other_programs[:_MOST_NAMES], *(["..."] if len(self.other_programs) > _MOST_NAMES else [])]
            other = f"{self.num_other_programs} of {self.num_groups} by runs with other arguments or code"
            parts.append(f"; {other}: {', '.join(names)}")
        return "".join(parts)


def forecast(groups: Sequence[Group], past: Iterable[PastGroup]) -> Forecast:
    """Estimate the duration of groups from others that ran before."""
    progress = Progress(groups, past=past)
    expected = {group.number: progress.expect(group) for group in groups}
    unknown = [group for group in groups if expected[group.number] is None]
    known = {number: estimate for number, estimate in expected.items() if estimate is not None}
    of_each = {number: estimate.seconds for number, estimate in known.items()}
    loose = [estimate.source for estimate in known.values() if estimate.likeness is Likeness.OTHER_PROGRAM]
    least_s, _ = progress.estimate_left_s()
    most_s = sum(of_each.values()) + sum(map(_compute_limit_s, unknown))
    num_groups = sum(group.skip_reason is None for group in groups)
    return Forecast(
        of_each=of_each,
        least_s=least_s,
        most_s=most_s,
        num_unknown=len(unknown),
        num_groups=num_groups,
        num_other_packages=sum(estimate.likeness is Likeness.OTHER_PACKAGES for estimate in known.values()),
        other_programs=tuple(dict.fromkeys(loose)),
        num_other_programs=len(loose),
    )


def _compute_limit_s(group: Group) -> float:
    window, limits = group.window, group.limits
    work_s = window.settle_s + window.seconds if window.kind.is_steady else limits.group_s
    return (len(group.jobs) if group.sequential else 1) * (limits.ready_s + work_s + limits.stop_s)
