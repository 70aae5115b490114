"""The choice which trials of a pack run at each time: how many, from their rates, and which ones.

It begins with one trial, or the number of an earlier study, and starts one more while the total rate rises. Two numbers
of trials are compared by the trials that ran at both: `n` trials with the relative rates `r` of the same trials make `n
* mean(r)` times the progress of one. If trials end before others have started up, the mean rates of all trials are
compared, by the number of trials that had started up. A larger number that does not raise the progress is undone by
holding the newest trials, which go on as soon as another one ends. Now and then one trial more and one fewer are tried
again. Trials without rates are compared by the times that ended trials took.

Pure: the caller carries out the moves and reports rates, ends and memory, all with its own clock.
"""

from __future__ import annotations

import enum
import math
import statistics
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from pipeline.report.evaluate.statistics import compute_half

_LEAST_VALUES, _MOST_VALUES = 2, 10
"""Values of a trial's rate for a comparison: the fewest, and those after which it is decided by their mean."""
_LEAST_DEVIATION = 0.02
"""Relative standard deviation that is assumed of a rate, because two values may be equal by chance."""
_KEPT_VALUES = 20
_FEW, _DEVIATION_OF_TRIALS = 3, 0.3
"""Relative standard deviation that is assumed between the rates of fewer than three trials."""
_LEAST_RISE = 0.02
"""Relative rise of the total rate below which one more trial gains nothing, as in `Climb`."""
_NEAR_LINEAR = 0.75
"""Part of its rate that each trial keeps if the next step may be larger."""
_STARVED = 1 / 3
"""Part of an equal share of the total rate below which a trial is starved."""
_ENDS_UNTIL_RETRY = 6
"""Ended trials after which a number that gained nothing is tried again; doubled each time."""
_MEMORY_SHARE = 0.95
LEAST_TURNS, _VALUES_OF_TURN = 3, 4
"""Turns of an estimate, and values of a rate after which a turn ends."""

Rates = Mapping[int, Sequence[float]]


class Step(enum.Enum):
    """A step of the caller: start, hold (stop without ending) or continue a trial."""

    START = "start"
    HOLD = "hold"
    CONTINUE = "continue"


class Move(NamedTuple):
    """One step with one trial."""

    step: Step
    trial: int


class Turn(NamedTuple):
    """A trial that ran alone for a time: its rate before, beside `number - 1` others, over its rate alone."""

    number: int
    ratio: float


class TrialSchedule:
    """The queue of trials, and those that run.

    Args:
        num_trials: number of trials, which are started in order.
        most: largest number of trials at a time.
        first: number of trials with which it begins.
        is_fixed: whether this number stays, unless a trial is out of memory.
        check_share: share of the time for turns in which one trial runs alone.
        turn_s: longest time of a turn.

    Attributes:
        number: how many trials are to run at a time.
        running, held: trials that run and that are held, oldest first.
        turns: the completed turns.
    """

    def __init__(
        self,
        num_trials: int,
        *,
        most: int,
        first: int = 1,
        is_fixed: bool = False,
        check_share: float = 0.0,
        turn_s: float = 30.0,
    ) -> None:
        self.number = self._accepted = max(1, min(first, most, num_trials))
        self.running: list[int] = []
        self.held: list[int] = []
        self.turns: list[Turn] = []
        self._waiting, self._alone = deque(range(num_trials)), deque[int]()
        self._retried = set[int]()
        self._most, self._need_mib, self._total_mib = most, 0.0, 0.0
        self._is_fixed = is_fixed
        self._check_share, self._turn_s = check_share, turn_s
        self._turn: tuple[int, float] | None = None  # trial that runs alone, and the end of its turn
        self._next_turn_s = 0.0
        self._step, self._is_down_next, self._is_known_first = 1, False, self.number > 1
        self._rates: dict[int, deque[float]] = {}
        self._accepted_rates: Rates = {}
        self._warm, self._fresh = set[int](), set[int]()  # have reported a rate; the next rate covers a change
        self._levels: dict[int, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
        self._speeds: dict[int, list[float]] = defaultdict(list)  # of ended trials, by number of trials
        self._num_ended, self._retry_at, self._wait_ends = 0, 0, _ENDS_UNTIL_RETRY
        self._now_s: float | None = None
        self._spent_s: dict[int, list[float]] = {}  # time since its start and its integral over the number, by trial
        self._time_at: dict[int, float] = defaultdict(float)

    @property
    def is_over(self) -> bool:
        """True if no trial is left to run."""
        return not (self._waiting or self._alone or self.running or self.held)

    def add_rate(self, trial: int, rate: float) -> None:
        """Note a rate that a running trial has reported."""
        if trial not in self.running or not 0 < rate < math.inf:
            return
        if trial not in self._warm:
            self._warm.add(trial)
            self._fresh.update(self.running)
        if trial in self._fresh:
            self._fresh.discard(trial)
            return
        if self._is_settled:
            self._rates.setdefault(trial, deque(maxlen=_KEPT_VALUES)).append(rate)
        self._levels[len(self._warm.intersection(self.running))][trial].append(rate)

    def note_memory(self, used_mib: float, total_mib: float) -> None:
        """Note the memory that all started trials use."""
        if num_started := len(self.running) + len(self.held):
            self._need_mib = max(self._need_mib, used_mib / num_started)
            self._total_mib = total_mib

    def note_end(self, trial: int, now_s: float, *, has_failed: bool = False, is_out_of_memory: bool = False) -> bool:
        """Note the end of a trial; return whether it starts again: alone, once, if it lacked memory beside others."""
        starts_again = False
        self._pass_time(now_s)
        num_others = len(self.running) + len(self.held) - 1
        for trials in (self.running, self.held):
            if trial in trials:
                trials.remove(trial)
        took_s, sum_numbers = self._spent_s.pop(trial)
        self._num_ended += 1
        if is_out_of_memory:
            self._most = max(1, min(self._most, num_others))
            self._accept(min(self._accepted, self._most))
            self._step = 1
            if num_others and trial not in self._retried:
                starts_again = True
                self._alone.append(trial)
                self._retried.add(trial)
        elif not has_failed and took_s > 0:
            mean_number = sum_numbers / took_s
            if abs(mean_number - round(mean_number)) < 0.3:
                self._speeds[round(mean_number)].append(mean_number / took_s)
        self._warm.discard(trial)
        self._fresh.update(self.running)
        return starts_again

    def choose(self, now_s: float) -> list[Move]:
        """Return the moves that are to be carried out now."""
        self._pass_time(now_s)
        if self._turn is not None:
            moves = self._end_turn(now_s)
        else:
            moves = self._judge_number()
            moves += self._fill()
            if not moves and self._is_turn_due(now_s):
                moves = self._begin_turn(now_s)
        if moves:
            self._fresh.update(self.running)
        return moves

    # The number of trials.

    def _judge_number(self) -> list[Move]:
        """Compare the number on trial with the accepted one, or put another number on trial; return holds."""
        if self.number == self._accepted:
            return [] if self._is_fixed else self._try_number()
        is_up = self.number > self._accepted
        rise = self._compare()
        if rise is None and not self._list_common() and self._is_unclear():
            self._retry_at = self._num_ended + 1  # the trials that could be compared have ended
            self._is_down_next = not is_up
            return self._undo()
        if rise is None:
            return []
        if rise:
            self._accept(self.number)
            self._wait_ends, self._is_down_next = _ENDS_UNTIL_RETRY, not is_up
            return []
        if is_up and self._step > 1:
            self._step = 1
        elif self._is_known_first and is_up:
            self._is_down_next, self._is_known_first = True, False  # fewer trials at once
        else:
            self._retry_at = self._num_ended + self._wait_ends
            self._wait_ends *= 2
            self._is_down_next = is_up
        return self._undo()

    def _undo(self) -> list[Move]:
        """Go back to the accepted number: hold the newest trials."""
        num_more = len(self.running) - self._accepted if self.number > self._accepted else 0
        self._rates = {trial: deque(rates, _KEPT_VALUES) for trial, rates in self._accepted_rates.items()}
        self.number = self._accepted
        return self._hold(num_more)

    def _accept(self, number: int) -> None:
        self.number = self._accepted = number

    def _try_number(self) -> list[Move]:
        if self._num_ended < self._retry_at or not (self._waiting or self.held) or not self._can_compare():
            return []
        if self._is_down_next and self._accepted > 1:
            self._put_on_trial(self._accepted - 1)
            return self._hold(1)
        num_left = len(self.running) + len(self.held) + len(self._waiting)
        number = min(self._accepted + self._step, self._count_fitting(), num_left)
        if number > self._accepted:
            self._put_on_trial(number)
        return []

    def _put_on_trial(self, number: int) -> None:
        for level in [level for level in self._levels if level > min(number, self._accepted)]:
            del self._levels[level]
        self._accepted_rates, self._rates = self._rates, {}
        self._is_down_next = False
        self.number = number

    def _can_compare(self) -> bool:
        """Return whether the accepted number has rates, or else ended trials, to compare another number with."""
        if len(self.running) < self._accepted:
            return False
        known = [trial for trial in self.running if len(self._rates.get(trial, ())) >= _LEAST_VALUES]
        if 2 * len(known) >= len(self.running) or len(self._speeds[self._accepted]) >= self._accepted:
            return True
        return self._find_level(self._accepted / 2, self._accepted) is not None

    def _list_common(self) -> list[int]:
        """Return the running trials whose rates at the accepted number are known."""
        known = self._accepted_rates.items()
        return [trial for trial, rates in known if trial in self.running and len(rates) >= _LEAST_VALUES]

    def _compare(self) -> bool | None:
        """Return whether the number on trial is better than the accepted one; `None` if this is not known yet."""
        common = self._list_common()
        num_values = min((len(self._rates.get(trial, ())) for trial in common), default=0)
        if num_values < _LEAST_VALUES:
            rise_of_all = None if common else self._compare_levels()
            return self._compare_ends() if rise_of_all is None else rise_of_all
        pairs = [(self._accepted_rates[trial], self._rates[trial]) for trial in common]
        ratios = [statistics.fmean(after) / statistics.fmean(before) for before, after in pairs]
        variance = sum(_relative_variance(rates) for pair in pairs for rates in pair) / len(pairs) ** 2
        mean, is_up = statistics.fmean(ratios), self.number > self._accepted
        if is_up and min(ratios) < _STARVED * self._accepted / self.number:
            return False
        rise = self.number / self._accepted * mean - 1
        is_better = _exceeds(rise, variance, is_enough=num_values >= _MOST_VALUES)
        if is_up and is_better:
            self._step = 2 * self._step if mean > _NEAR_LINEAR else 1
        return is_better

    def _find_level(self, above: float, most: float) -> int | None:
        """Return the largest number of trials in a range that had started up and reported rates."""
        levels = [
            level
            for level, rates in self._levels.items()
            if above < level <= most and sum(map(len, rates.values())) >= _LEAST_VALUES
        ]
        return max(levels, default=None)

    def _compare_levels(self) -> bool | None:
        """Compare by the rates of all trials, at the numbers of trials that had started up."""
        low, high = sorted((self._accepted, self.number))
        after, before = self._find_level(low, high), self._find_level(low / 2, low)
        if after is None or before is None:
            return None
        means = [[statistics.fmean(rates) for rates in self._levels[level].values()] for level in (before, after)]
        ratio = statistics.fmean(means[1]) / statistics.fmean(means[0])
        variance = sum(_relative_variance(rates, _DEVIATION_OF_TRIALS) for rates in means)
        is_up = _exceeds(after / before * ratio - 1, variance, is_enough=False)
        if self.number < self._accepted:
            return None if is_up is None else not is_up
        if is_up:
            self._step = 2 * self._step if ratio > _NEAR_LINEAR else 1
        return is_up

    def _is_unclear(self) -> bool:
        """Return whether trials beside each other reported enough rates, but the comparison is open."""
        low = min(self._accepted, self.number)
        num_values = sum(
            len(rates) for level, by_trial in self._levels.items() if level > low for rates in by_trial.values()
        )
        return num_values >= _MOST_VALUES

    def _compare_ends(self) -> bool | None:
        """Compare by ended trials, if enough of them ran from start to end beside equally many."""
        before, after = self._speeds[self._accepted], self._speeds[self.number]
        if not before or len(after) < max(2, self.number):
            return None
        rise = statistics.fmean(after) / statistics.fmean(before) - 1
        variance = _relative_variance(before) + _relative_variance(after)
        return _exceeds(rise, variance, is_enough=len(after) >= _MOST_VALUES)

    # The trials.

    @property
    def _is_settled(self) -> bool:
        """True if every running trial works: each has reported a rate."""
        return bool(self.running) and self._warm.issuperset(self.running)

    def _count_fitting(self) -> int:
        """Return how many trials fit at a time."""
        if not self._need_mib:
            return self._most
        return max(1, min(self._most, int(_MEMORY_SHARE * self._total_mib / self._need_mib)))

    def _fill(self) -> list[Move]:
        moves = []
        while len(self.running) < self.number and (self.held or self._waiting):
            if self.held:
                moves.append(self._run(Step.CONTINUE, self.held.pop(0)))
            elif len(self.running) < self._count_fitting():
                moves.append(self._run(Step.START, self._waiting.popleft()))
            else:
                break
        if self._alone and not (self.running or self.held or self._waiting):
            moves.append(self._run(Step.START, self._alone.popleft()))
        return moves

    def _run(self, step: Step, trial: int) -> Move:
        if step is Step.START:
            self._spent_s[trial] = [0.0, 0.0]
            self._rates.pop(trial, None)
        self.running.append(trial)
        return Move(step, trial)

    def _hold(self, number: int) -> list[Move]:
        """Hold the newest running trials."""
        trials = self.running[len(self.running) - number :] if number > 0 else []
        return self._hold_trials(trials)

    def _hold_trials(self, trials: Iterable[int]) -> list[Move]:
        moves = [Move(Step.HOLD, trial) for trial in trials]
        for _, trial in moves:
            self.running.remove(trial)
            self.held.append(trial)
        return moves

    def _pass_time(self, now_s: float) -> None:
        passed_s = 0.0 if self._now_s is None else now_s - self._now_s
        self._now_s = now_s
        number = len(self.running)
        self._time_at[number] += passed_s
        for trial in (*self.running, *self.held):
            self._spent_s[trial][0] += passed_s
            self._spent_s[trial][1] += passed_s * number

    # The turns in which one trial runs alone.

    def _is_turn_due(self, now_s: float) -> bool:
        is_stable = self.number == self._accepted == len(self.running) > 1
        return bool(self._check_share) and is_stable and self._is_settled and now_s >= self._next_turn_s

    def _begin_turn(self, now_s: float) -> list[Move]:
        known = [trial for trial in self.running if len(self._rates.get(trial, ())) >= _LEAST_VALUES]
        if not known:
            return []
        trial = known[len(self.turns) % len(known)]
        self._turn = trial, now_s + self._turn_s
        self._accepted_rates, self._rates = self._rates, {}
        return self._hold_trials([other for other in self.running if other != trial])

    def _end_turn(self, now_s: float) -> list[Move]:
        assert self._turn is not None
        trial, end_s = self._turn
        alone = self._rates.get(trial, ())
        if trial in self.running and now_s < end_s and len(alone) < _VALUES_OF_TURN:
            return []
        if len(alone) >= _LEAST_VALUES:
            ratio = statistics.fmean(self._accepted_rates[trial]) / statistics.fmean(alone)
            self.turns.append(Turn(self._accepted, ratio))
        begin_s = end_s - self._turn_s
        self._turn = None
        self._next_turn_s = now_s + (now_s - begin_s) * (1 / self._check_share - 1)
        self._rates = {trial: deque(rates, _KEPT_VALUES) for trial, rates in self._accepted_rates.items()}
        return self._fill()

    def estimate_serial_s(self) -> tuple[float, float, float] | None:
        """Estimate the seconds of the trials one at a time, with a 95 % interval; `None` below three turns.

        While `n` trials ran, each at the part `ratio` of its rate alone, one at a time would have taken `n * ratio`
        times as long. A number without turns gains as much as the nearest ones, which widens the interval.
        """
        if len(self.turns) < LEAST_TURNS:
            return None
        by_number: dict[int, list[float]] = defaultdict(list)
        for turn in self.turns:
            by_number[turn.number].append(turn.ratio)
        gains = {1: 1.0} | {number: number * statistics.fmean(ratios) for number, ratios in by_number.items()}
        bounds = [(seconds, *_bound(gains, number)) for number, seconds in self._time_at.items() if number]
        least_s = sum(seconds * least for seconds, least, _ in bounds)
        most_s = sum(seconds * most for seconds, _, most in bounds)
        errors = [turn.number * turn.ratio / gains[turn.number] - 1 for turn in self.turns]
        freedom = max(1, len(errors) - len(by_number))
        deviation = math.sqrt(sum(error * error for error in errors) / freedom)
        half = min(1.0, compute_half(deviation / math.sqrt(len(errors)), freedom))
        return (least_s + most_s) / 2, least_s * (1 - half), most_s * (1 + half)


def _exceeds(rise: float, variance: float, *, is_enough: bool) -> bool | None:
    """Return whether a rise is a gain; `None` if this is within the noise, unless there are enough values."""
    if not is_enough and abs(rise - _LEAST_RISE) < 2 * math.sqrt(variance):
        return None
    return rise > _LEAST_RISE


def _relative_variance(rates: Sequence[float], of_few: float = 0.0) -> float:
    """Return the relative variance of the mean of some rates; `of_few` is the least deviation of fewer than three."""
    deviation = statistics.stdev(rates) / statistics.fmean(rates) if len(rates) > 1 else 0.0
    return max(deviation, _LEAST_DEVIATION, of_few if len(rates) < _FEW else 0.0) ** 2 / len(rates)


def _bound(gains: Mapping[int, float], number: int) -> tuple[float, float]:
    """Return the bounds of the gain at a number of trials: without turns at it, the gains at the nearest numbers."""
    below = max(known for known in gains if known <= number)
    above = min((known for known in gains if known >= number), default=None)
    most = gains[below] * number / below if above is None else gains[above]
    return min(gains[below], most), max(gains[below], most)
