"""The largest consistent sequence of the steps of a job, any line of which may be wrong.

A line reports when a step was complete, its work, and the total work so far. Consecutive lines can therefore be
compared: a line that was written twice, late, or by a second process counts work again, and a wrong total does not
match the next line.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MOST_STEPS = 1 << 24
"""Most entries of a job, 24 bytes each. Whenever there are more, pairs of entries are merged."""

NO_EPOCH = -(2**63)
_MANY = 50_000
"""Number of values above which numpy is used; importing numpy takes as long as processing so many without it."""

_TOLERANCE = 1e-9
_OUTLIER, _FEW = 1000.0, 2
"""Factor and number of steps: among more than `_FEW` steps, a step with more than `_OUTLIER` times the median work and
the median rate is impossible."""

_JITTER_NS = 100_000_000
"""Longest delay between reading the clock and writing the line, on a busy machine."""

_REPEATED = "a step counts work that was already counted"
_JUMP = "a total does not continue the previous one"
_EARLIER = "a step is earlier than the previous one"
_LATER = "a step is later than an event written after it"
_TOO_LARGE = "a step has more work than possible"


class Step(NamedTuple):
    """A step as reported by a line.

    Attributes:
        samples: work of the step; `None` if the line lacks it.
        epoch: number of the epoch; `NO_EPOCH` if the line lacks it.
        line: number of the line in the file, from 1.
    """

    t_ns: int
    samples: float | None
    total: float
    epoch: int
    line: int


@dataclass(slots=True)
class Steps:
    """Completed steps in the order of their completion.

    The instants increase strictly: steps that were reported at the same instant are one entry.

    Attributes:
        t_ns: instants of completion.
        total: work since the start, not necessarily an integer.
        epoch: number of the epoch; `NO_EPOCH` if the job does not count epochs.
        per_entry: number of steps per entry: 1, unless there were more than `MOST_STEPS`.
        after_gap: numbers of the entries before which steps were left out; their durations are unknown.
    """

    t_ns: array[int] = field(default_factory=lambda: array("q"))
    total: array[float] = field(default_factory=lambda: array("d"))
    epoch: array[int] = field(default_factory=lambda: array("q"))
    per_entry: int = 1
    after_gap: array[int] = field(default_factory=lambda: array("q"))

    def __len__(self) -> int:
        return len(self.t_ns)

    def begins_epoch(self, number: int) -> bool:
        return self.epoch[number] != self.epoch[number - 1]

    def sorted_times_ms(self, first: int = 1, until: int | None = None) -> Sequence[float]:
        """Return the durations of the steps from number `first` (at least 1) to before `until`, in ms, sorted.

        The first step of an epoch is excluded, because its duration includes validation or the restart of the loader.
        """
        until = len(self) if until is None else until
        if len(self) < _MANY:
            gaps = set(self.after_gap)
            numbers = (number for number in range(first, until) if not (number in gaps or self.begins_epoch(number)))
            return sorted((self.t_ns[number] - self.t_ns[number - 1]) / 1e6 for number in numbers)
        import numpy as np

        columns = (np.frombuffer(column, np.int64)[first - 1 : until] for column in (self.t_ns, self.epoch))
        times, is_other_epoch = map(np.diff, columns)
        is_other_epoch[[number - first for number in self.after_gap if first <= number < until]] = 1
        times = times[is_other_epoch == 0]
        times.sort()
        return array("d", (times / 1e6).tobytes())


class StepChain:
    """Filter that receives the steps of a file in order and keeps a consistent sequence.

    The last step is held back until the next step arrives. A step that does not continue the held step becomes its
    rival; the next step decides between the two by continuing one of them.

    Args:
        start_ns: start of the work; no step can be earlier.
        damage: called with the reason and the line number of each step that is left out.
    """

    def __init__(self, start_ns: int, damage: Callable[[str, int], None]) -> None:
        self._steps = Steps()
        self._damage = damage
        self.start_ns = start_ns
        self._base = self._held = Step(start_ns, 0.0, 0.0, NO_EPOCH, 0)
        self._is_after_gap = False  # whether steps are missing before the held step
        self._rival: Step | None = None
        self._why = ""
        self._offset = 0.0  # subtracted from the file's totals, which may include the work of an earlier run
        self._lost = self._lost_before_rival = self._lost_before_held = 0  # omitted lines that may have been steps
        self._largest, self._smallest = 0.0, float("inf")
        self._in_last_entry = 1

    def note_lost(self) -> None:
        """Count a line that was left out and may have been a step."""
        self._lost += 1

    def add(self, step: Step) -> None:
        is_after_gap = False
        if self._continues(self._held, step, self._lost + (self._rival is not None)):
            self._drop_rival()
            self._commit(self._held)
            is_after_gap = _compute_gap(self._held, step) > 0
        elif self._rival is not None and self._continues(self._rival, step, self._lost - self._lost_before_rival):
            self._prefer_rival(self._rival)
        else:
            self._drop_rival()
            self._why = self._explain_break(step)
            self._rival, self._lost_before_rival = step, self._lost
            if step.t_ns < self._base.t_ns or _compute_gap(self._base, step) < 0:
                self._drop_rival()
            return
        self._held, self._rival, self._is_after_gap = step, None, is_after_gap
        self._lost_before_held, self._lost = self._lost, 0

    def add_many(
        self,
        line: int,
        t_ns: NDArray[np.int64],
        samples: NDArray[np.int64],
        total: NDArray[np.int64],
        epoch: NDArray[np.int64],
    ) -> bool:
        """Add the steps of consecutive lines if each continues the previous step; return whether they were added.

        The columns have the shape `[steps]`; `line` is the number of the first line.
        """
        import numpy as np

        first, last = (
            Step(int(t_ns[at]), float(samples[at]), float(total[at]), int(epoch[at]), line + at % len(t_ns))
            for at in (0, -1)
        )
        goes_on = self._rival is None and self._lost == 0 and self._held.t_ns < first.t_ns
        goes_on = goes_on and _compute_gap(self._held, first) == 0
        if not goes_on or (np.diff(t_ns) <= 0).any() or (total[1:] - samples[1:] != total[:-1]).any():
            return False
        self._commit(self._held)
        if len(done := samples[samples > 0]):
            self._largest = max(self._largest, float(done.max()))
            self._smallest = min(self._smallest, float(done.min()))
        self._commit_many(t_ns[:-1], total[:-1].astype(np.float64) - self._offset, epoch[:-1])
        at = len(t_ns) - 2
        self._base = Step(int(t_ns[at]), float(samples[at]), float(total[at]), int(epoch[at]), line + at)
        self._held, self._lost_before_held, self._is_after_gap = last, 0, False
        return True

    def last_ns(self, epoch: int) -> int | None:
        """Return the instant of the last step so far; `None` if it belongs to another epoch."""
        return self._held.t_ns if self._held.epoch == epoch else None

    def finish(self, later_ns: int | None) -> Steps:
        """Return the steps; `later_ns` is the instant of the last event after them, `None` if there is none."""
        self._drop_rival()
        if later_ns is not None and self._held.t_ns > later_ns + _JITTER_NS:
            self._damage(_LATER, self._held.line)
        else:
            self._commit(self._held)
        self._drop_impossible()
        return self._steps

    def _continues(self, before: Step, step: Step, num_lost: int) -> bool:
        if step.t_ns < before.t_ns:
            return False
        if step.samples is None and step.t_ns == before.t_ns:
            return step.total > before.total
        gap = _compute_gap(before, step)
        return gap == 0 or self._is_explained(gap, step, num_lost)

    def _is_explained(self, gap: float, step: Step, num_lost: int) -> bool:
        largest = max(self._largest, step.samples or 0.0)
        return 0 < gap <= num_lost * largest * (1 + _TOLERANCE)

    def _explain_break(self, step: Step) -> str:
        if step.t_ns < self._held.t_ns:
            return _EARLIER
        return _JUMP if _compute_gap(self._held, step) > 0 else _REPEATED

    def _drop_rival(self) -> None:
        if self._rival is not None:
            self._damage(self._why, self._rival.line)
            self._rival = None
            self._lost += 1

    def _prefer_rival(self, rival: Step) -> None:
        """Keep the rival, because the next step continues it: after the held step, or in its place."""
        is_after = rival.t_ns >= self._held.t_ns and _compute_gap(self._held, rival) >= 0
        if is_after:
            self._commit(self._held)
            num_lost = self._lost
        else:
            self._damage(_LATER if rival.t_ns < self._held.t_ns else _JUMP, self._held.line)
            num_lost = self._lost_before_held + self._lost + 1
        gap = _compute_gap(self._base, rival)
        if gap and not self._is_explained(gap, rival, num_lost):
            if len(self._steps) or num_lost:
                self._damage(_JUMP, rival.line)
            self._offset += gap  # without lost lines, the totals include the work of an earlier run of the job
        self._is_after_gap = True
        self._commit(rival)

    def _commit(self, step: Step) -> None:
        if step is self._base:
            return
        steps, total = self._steps, step.total - self._offset
        grown = total - (steps.total[-1] if steps.total else 0.0)
        self._base = step
        self._largest = max(self._largest, step.samples or grown)
        if grown > 0:
            self._smallest = min(self._smallest, grown)
        if steps.t_ns and (step.t_ns == steps.t_ns[-1] or self._in_last_entry < steps.per_entry):
            self._in_last_entry += step.t_ns != steps.t_ns[-1]
            steps.t_ns[-1], steps.total[-1], steps.epoch[-1] = step.t_ns, total, step.epoch
            return
        if self._is_after_gap and steps.t_ns:
            steps.after_gap.append(len(steps))
        steps.t_ns.append(step.t_ns)
        steps.total.append(total)
        steps.epoch.append(step.epoch)
        self._in_last_entry = 1
        self._halve_if_many()

    def _commit_many(self, t_ns: NDArray[np.int64], total: NDArray[np.float64], epoch: NDArray[np.int64]) -> None:
        import numpy as np

        steps, per_entry, count = self._steps, self._steps.per_entry, len(t_ns)
        num_lacking = min(per_entry - self._in_last_entry, count) if len(steps) else 0
        if num_lacking:  # the last entry is incomplete
            at = num_lacking - 1
            steps.t_ns[-1], steps.total[-1], steps.epoch[-1] = int(t_ns[at]), float(total[at]), int(epoch[at])
        ends = np.minimum(np.arange(num_lacking + per_entry - 1, count + per_entry - 1, per_entry), count - 1)
        steps.t_ns.frombytes(t_ns[ends].tobytes())
        steps.total.frombytes(total[ends].tobytes())
        steps.epoch.frombytes(epoch[ends].tobytes())
        num_after = count - num_lacking
        self._in_last_entry = (num_after - 1) % per_entry + 1 if num_after else self._in_last_entry + num_lacking
        self._halve_if_many()

    def _halve_if_many(self) -> None:
        steps = self._steps
        while len(steps) > MOST_STEPS:
            begin = (len(steps) - 1) % 2  # the last entry is kept
            steps.t_ns, steps.total, steps.epoch = (
                steps.t_ns[begin::2],
                steps.total[begin::2],
                steps.epoch[begin::2],
            )
            steps.per_entry *= 2
            del steps.after_gap[:]
            self._in_last_entry = steps.per_entry

    def _drop_impossible(self) -> None:
        """Leave out steps that are consistent but have impossibly more work than all others."""
        steps = self._steps
        if len(steps) <= _FEW or self._largest <= _OUTLIER * self._smallest:
            return
        import numpy as np

        total, t_ns = np.array(steps.total), np.array(steps.t_ns)
        grown = np.diff(total, prepend=0.0)
        rate = grown / np.diff(t_ns, prepend=self.start_ns).clip(1)
        is_outlier = (grown > _OUTLIER * np.median(grown)) & (rate > _OUTLIER * np.median(rate))
        for _ in range(int(is_outlier.sum())):
            self._damage(_TOO_LARGE, 0)
        if is_outlier.any():
            is_after_gap = np.append(False, is_outlier[:-1])
            is_after_gap[np.array(steps.after_gap, np.int64)] = True
            steps.after_gap = array("q", np.flatnonzero(is_after_gap[~is_outlier]).tobytes())
            steps.total = array("d", np.cumsum(np.where(is_outlier, 0.0, grown))[~is_outlier].tobytes())
            steps.t_ns = array("q", t_ns[~is_outlier].tobytes())
            steps.epoch = array("q", np.array(steps.epoch)[~is_outlier].tobytes())


def _compute_gap(before: Step, step: Step) -> float:
    """Return the work that is missing between two steps; negative if the second step counts work again.

    No work counts as missing before a step whose line does not report the step's work.
    """
    if step.samples is None:
        return min(0.0, step.total - before.total)
    gap = step.total - step.samples - before.total
    return 0.0 if abs(gap) <= _TOLERANCE * step.total else gap
