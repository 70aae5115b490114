"""The steps of a job, from lines of which any may be wrong: those that can be true together.

A line says when a step was complete, how much work it was, and how much that makes in all. So one line tells of the
next: one that was written twice, late or by a second process counts work again; from a wrong total the next one does
not go on.
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
"""Kept of a job, 24 bytes each. Beyond it two steps become one, again and again."""

NO_EPOCH = -(2**63)
_MANY = 50_000
"""Beyond so many values numpy is worth its import, which takes as long as they do without it."""

_TOLERANCE = 1e-9
_OUTLIER, _FEW = 1000.0, 2
"""Among more than a few steps, none does so many times the work of the median and is as many times as fast."""

_JITTER_NS = 100_000_000
"""Between taking an instant and writing it, on a busy machine."""

_REPEATED = "a step counts work that was counted before"
_JUMP = "a total does not continue the one before"
_EARLIER = "a step is earlier than the one before"
_LATER = "a step is later than an event written after it"
_TOO_LARGE = "a step has more work than possible"


class Step(NamedTuple):
    """A step as a line tells of it; `samples` is `None` if the line does not say, `epoch` `NO_EPOCH`.

    `line` is its number in the file, from 1.
    """

    t_ns: int
    samples: float | None
    total: float
    epoch: int
    line: int


@dataclass(slots=True)
class Steps:
    """Completed steps in the order of their completion: when, work done since the start, and epoch, if counted.

    Work need not come in whole numbers. Instants grow strictly: steps that were reported at one instant are one.

    Attributes:
        per_entry: how many steps an entry stands for: 1, unless there were more than `MOST_STEPS`.
        after_gap: numbers of those before which some were left out, so that nobody knows how long they took.
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
        """Return how long the steps took from number `first` (at least 1) to before `until`, in ms, the shortest first.

        The first step of an epoch waits for validation or for the loader to begin again: that is no step time.
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
    """Takes the steps of a file in its order, and keeps those that follow from each other.

    The last one is held until the next is there. One that does not go on from it becomes its rival, and the next step
    decides by going on from one of the two.

    Args:
        start_ns: when the work began; no step is before it.
        damage: called with what is wrong, in words, and the number of the line, for each that is left out.
    """

    def __init__(self, start_ns: int, damage: Callable[[str, int], None]) -> None:
        self._steps = Steps()
        self._damage = damage
        self.start_ns = start_ns
        self._base = self._held = Step(start_ns, 0.0, 0.0, NO_EPOCH, 0)
        self._is_after_gap = False  # the step that is held
        self._rival: Step | None = None
        self._why = ""
        self._offset = 0.0  # of the totals of the file, which may begin at what an earlier run did
        self._lost = self._lost_before_rival = self._lost_before_held = 0  # lines left out, that may have been steps
        self._largest, self._smallest = 0.0, float("inf")
        self._in_last_entry = 1

    def note_lost(self) -> None:
        """Take note of a line that was left out, which may have been a step."""
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
        """Add the steps of many lines, from this one on, if each goes on from the one before; returns whether it does.

        The columns are `[steps]` each.
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
        """Return when the last step so far was complete, if it is of this epoch."""
        return self._held.t_ns if self._held.epoch == epoch else None

    def finish(self, later_ns: int | None) -> Steps:
        """Return the steps; `later_ns` is the last instant that was written after them, `None` if nothing was."""
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
        """Keep the rival, as the next step goes on from it: after the step that is held, or instead of that."""
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
            self._offset += gap  # else the totals include what an earlier run of the job did
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
        if num_lacking:  # in the last entry
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
            begin = (len(steps) - 1) % 2  # the last one stays
            steps.t_ns, steps.total, steps.epoch = (
                steps.t_ns[begin::2],
                steps.total[begin::2],
                steps.epoch[begin::2],
            )
            steps.per_entry *= 2
            del steps.after_gap[:]
            self._in_last_entry = steps.per_entry

    def _drop_impossible(self) -> None:
        """Leave out steps that are consistent, and did far more than all others."""
        steps = self._steps
        if len(steps) <= _FEW or self._largest <= _OUTLIER * self._smallest:
            return
        import numpy as np

        total, t_ns = np.array(steps.total), np.array(steps.t_ns)
        grown = np.diff(total, prepend=0.0)
        rate = grown / np.diff(t_ns, prepend=self.start_ns).clip(1)
        wrong = (grown > _OUTLIER * np.median(grown)) & (rate > _OUTLIER * np.median(rate))
        for _ in range(int(wrong.sum())):
            self._damage(_TOO_LARGE, 0)
        if wrong.any():
            is_after_gap = np.append(False, wrong[:-1])
            is_after_gap[np.array(steps.after_gap, np.int64)] = True
            steps.after_gap = array("q", np.flatnonzero(is_after_gap[~wrong]).tobytes())
            steps.total = array("d", np.cumsum(np.where(wrong, 0.0, grown))[~wrong].tobytes())
            steps.t_ns = array("q", t_ns[~wrong].tobytes())
            steps.epoch = array("q", np.array(steps.epoch)[~wrong].tobytes())


def _compute_gap(before: Step, step: Step) -> float:
    """Return the work that is missing between two steps, 0 if none: below 0 where the second counts some of it again.

    A line that does not say how much work its step was leaves none out.
    """
    if step.samples is None:
        return min(0.0, step.total - before.total)
    gap = step.total - step.samples - before.total
    return 0.0 if abs(gap) <= _TOLERANCE * step.total else gap
