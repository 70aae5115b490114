"""Which trials of a pack run at each time, with simulated trials whose rates under sharing are known."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from pipeline.study.trial_schedule import Step, TrialSchedule

pytestmark = pytest.mark.covers("pipeline/study/trial_schedule.py")
MOST = 12


class Machine:
    """A device whose total rate is known for each number of working trials.

    Each trial needs a time alone, after a start-up in which it does not load the device, and reports its rate at
    intervals. A trial that leaks needs more and more memory; one that crashes ends at a part of its work.
    """

    def __init__(self, curve, works, *, seed, startup_s=0.0, interval_s=1.0, noise=0.0, memory=None, crashes=()):
        self.curve, self.works, self.random = curve, list(works), random.Random(seed)
        self.startup_s, self.interval_s, self.noise = startup_s, interval_s, noise
        self.memory, self.crashes = memory, set(crashes)
        self.step_s = interval_s / 2
        self.base = [self.random.lognormvariate(0, 0.3) for _ in works]
        self.ends, self.starts, self.now_s = Counter(), Counter(), 0.0

    def total(self, number):
        return self.curve[min(number, len(self.curve)) - 1]

    def run(self, schedule, *, rates=True):
        """Run all trials; return the makespan."""
        done, age, told = {}, {}, {}
        while not schedule.is_over:
            for step, trial in schedule.choose(self.now_s):
                if step is Step.START:
                    done[trial], age[trial], told[trial] = 0.0, 0.0, 0.0
                    self.starts[trial] += 1
            self.now_s += self.step_s
            assert self.now_s < 10 * sum(self.works) + 1e4
            working = [trial for trial in schedule.running if age[trial] >= self.startup_s]
            for trial in list(schedule.running):
                age[trial] += self.step_s
            speed = self.total(len(working)) / len(working) if working else 0.0
            for trial in working:
                done[trial] += speed * self.step_s
                told[trial] += self.step_s
                if rates and told[trial] >= self.interval_s:
                    told[trial] = 0.0
                    rate = self.base[trial] * speed * self.random.lognormvariate(0, self.noise)
                    schedule.add_rate(trial, rate)
            self._end(schedule, done)
        return self.now_s

    def _end(self, schedule, done):
        started = [*schedule.running, *schedule.held]
        if self.memory is not None and started:
            need, leak, size = self.memory
            used = [need + leak * done[trial] for trial in started]
            schedule.note_memory(sum(used), size)
            while sum(used) > size:
                trial = started[used.index(max(used))]
                schedule.note_end(trial, self.now_s, is_out_of_memory=True)
                self.ends[trial, "oom"] += 1
                place = started.index(trial)
                del started[place], used[place]
        for trial in list(schedule.running):
            if done[trial] >= self.works[trial] * (0.1 if trial in self.crashes else 1):
                has_failed = trial in self.crashes
                schedule.note_end(trial, self.now_s, has_failed=has_failed)
                self.ends[trial, "failed" if has_failed else "ok"] += 1


class Fixed(TrialSchedule):
    """A fixed number of trials at a time."""

    def __init__(self, num_trials, number):
        super().__init__(num_trials, most=number)
        self.number = self._accepted = number

    def _judge_number(self):
        return []


def make_curve(draw):
    """Return total rates by number of trials: rising, saturating, falling after a peak, or falling at once."""
    kind = draw.choice(["rising", "saturating", "peaked", "flat", "falling"])
    if kind == "rising":
        power = draw.uniform(0.5, 0.95)
        return [k**power for k in range(1, MOST + 1)]
    if kind == "saturating":
        most = draw.uniform(1.3, 4.0)
        return [min(most, 1 + (k - 1) * draw.uniform(0.4, 0.9)) for k in range(1, MOST + 1)]
    if kind == "peaked":
        peak, gain = draw.randint(2, 6), draw.uniform(0.2, 0.7)
        top = 1 + gain * (peak - 1)
        return [
            1 + gain * (k - 1) if k <= peak else max(0.5, top * (1 - 0.08 * (k - peak))) for k in range(1, MOST + 1)
        ]
    if kind == "flat":
        return [1.0] * MOST
    loss = draw.uniform(0.03, 0.25)
    return [max(0.4, 1 - loss * (k - 1)) for k in range(1, MOST + 1)]


def make_queue(seed):
    """Return the properties of a random queue."""
    draw = random.Random(seed)
    length_s = draw.choice([60.0, 180.0, 600.0])
    spread = draw.choice([0.0, 0.2, 0.5])
    works = [length_s * draw.lognormvariate(0, spread) for _ in range(draw.choice([16, 24, 40]))]
    return {
        "curve": make_curve(draw),
        "works": works,
        "startup_s": draw.uniform(1, 6),
        "interval_s": max(1.0, length_s * draw.uniform(0.005, 0.03)),
        "noise": draw.uniform(0.0, 0.04),
    }


def outcome(seed, *, off_by=None, **changes):
    """Return the makespan over that of the best fixed number, and over that of one at a time.

    With `off_by`, the schedule begins with a number that is off the best one by as many.
    """
    queue = make_queue(seed) | changes
    num_trials = len(queue["works"])

    def run(schedule):
        return Machine(seed=seed, **queue).run(schedule)

    fixed = [run(Fixed(num_trials, number)) for number in range(1, MOST + 1)]
    first = 1 if off_by is None else 1 + fixed.index(min(fixed)) + off_by
    makespan_s = run(TrialSchedule(num_trials, most=MOST, first=first))
    return makespan_s / min(fixed), makespan_s / fixed[0]


def count_good(seeds, **changes):
    outcomes = [outcome(seed, **changes) for seed in seeds]
    return sum(over_best <= 1.10 for over_best, _ in outcomes), max(over_serial for _, over_serial in outcomes)


def test_the_makespan_is_near_that_of_the_best_fixed_number():
    num_good, worst = count_good(range(4))
    assert num_good >= 3 and worst <= 1.03


@pytest.mark.slow
def test_of_a_hundred_queues_ninety_five_are_near_the_best_and_none_is_above_serial():
    num_good, worst = count_good(range(100))
    assert num_good >= 95 and worst <= 1.03


@pytest.mark.slow
@pytest.mark.parametrize("off_by", [-1, 0, 1])
def test_a_known_number_or_its_neighbour_is_a_good_beginning(off_by):
    num_good, worst = count_good(range(30), off_by=off_by)
    assert num_good >= 28 and worst <= 1.03


def test_a_pack_begins_with_a_known_number_and_leaves_it_if_it_is_wrong():
    schedule = TrialSchedule(9, most=MOST, first=5)
    assert [trial for _, trial in schedule.choose(0.0)] == [0, 1, 2, 3, 4]
    assert TrialSchedule(3, most=MOST, first=5).number == 3 and TrialSchedule(9, most=2, first=5).number == 2
    curve, works = [1.0, 1.9, 1.5, 1.2, 1.0, 0.9], [60.0] * 40
    schedule = TrialSchedule(40, most=MOST, first=5)
    assert Machine(curve, works, seed=0).run(schedule) < 0.75 * 40 * 60


def test_a_fixed_number_stays():
    schedule = TrialSchedule(12, most=3, first=3, is_fixed=True)
    makespan_s = Machine([1.0, 0.4, 0.3], [60.0] * 12, seed=0).run(schedule)
    assert schedule.number == 3 and makespan_s == pytest.approx(12 * 60 / 0.3, rel=0.1)


def run_queue(curve, num_trials=16, *, check_share=0.0, rates=True, **machine):
    schedule = TrialSchedule(num_trials, most=MOST, check_share=check_share)
    simulated = Machine(curve, machine.pop("works", [60.0] * num_trials), **{"seed": 0, **machine})
    simulated.makespan_s = simulated.run(schedule, rates=rates)
    return schedule, simulated


@pytest.mark.parametrize("seed", range(5))
def test_every_trial_ends_once_with_leaks_and_crashes(seed):
    queue = make_queue(seed)
    num_trials = len(queue["works"])
    memory = (100.0, 300.0 / max(queue["works"]), 900.0)
    schedule = TrialSchedule(num_trials, most=MOST)
    machine = Machine(seed=seed, **queue, memory=memory, crashes=(1, 7))
    machine.run(schedule)
    assert {trial for trial, result in machine.ends if result != "oom"} == set(range(num_trials))
    assert all(number == 1 for (_, result), number in machine.ends.items() if result != "oom")
    for trial in range(num_trials):
        assert machine.starts[trial] == 1 + machine.ends[trial, "oom"] <= 2


def test_memory_bounds_the_number_of_trials():
    curve = list(range(1, MOST + 1))
    _, machine = run_queue(curve, memory=(100.0, 0.0, 550.0))
    assert not any(result == "oom" for _, result in machine.ends)
    assert machine.makespan_s < 16 * 60 / 3


def test_an_out_of_memory_trial_starts_again_alone_once_and_the_number_falls():
    schedule = TrialSchedule(4, most=4)
    schedule.choose(0.0)
    for now_s in range(1, 5):
        schedule.add_rate(0, 1.0)
        schedule.choose(now_s)
    assert schedule.running == [0, 1]
    assert schedule.note_end(1, 5.0, is_out_of_memory=True)
    assert schedule.choose(5.0) == []
    for trial, now_s in ((0, 6.0), (2, 7.0), (3, 8.0)):
        assert schedule.running == [trial]
        assert not schedule.note_end(trial, now_s)
        moves = schedule.choose(now_s)
    assert moves == [(Step.START, 1)]
    assert not schedule.note_end(1, 9.0, is_out_of_memory=True)
    assert schedule.is_over


def test_a_number_that_gains_nothing_is_undone_by_holding_the_newest():
    _, machine = run_queue([1.0, 0.8, 0.7])
    assert machine.makespan_s < 1.03 * 16 * 60


def test_trials_without_rates_are_compared_by_ended_ones():
    curve = [1.0, 1.9, 2.7, 3.4, 3.4, 3.4]
    _, machine = run_queue(curve, 40, rates=False)
    assert machine.makespan_s < 0.5 * 40 * 60
    _, machine = run_queue([1.0, 0.7, 0.6], 40, rates=False)
    assert machine.makespan_s < 1.12 * 40 * 60


GAIN_OF_SHORT = [1, 1.95, 2.85, 3.75, 4.6, 5.4, 6.1, 6.8, 7.4, 7.9, 8.3, 8.6]
"""Total rates of small trainings under MPS, about as on an H200."""


@pytest.mark.parametrize(("curve", "most"), [(GAIN_OF_SHORT, 0.4), ([1.0, 0.8, 0.7], 1.03)], ids=["rising", "falling"])
def test_trials_that_end_before_others_have_started_up_are_compared(curve, most):
    machine = {"works": [11.0] * 16, "startup_s": 9.0, "interval_s": 0.55, "noise": 0.03}
    _, simulated = run_queue(curve, **machine)
    one_at_a_time = Machine(curve, seed=0, **machine).run(Fixed(16, 1))
    assert simulated.makespan_s < most * one_at_a_time


def outcome_of_short_trials(seed):
    draw = random.Random(seed)
    length_s, spread = draw.choice([10.0, 15.0, 30.0]), draw.choice([0.0, 0.2, 0.5])
    num_trials = draw.choice([16, 24, 40])
    return outcome(
        seed,
        works=[length_s * draw.lognormvariate(0, spread) for _ in range(num_trials)],
        startup_s=draw.uniform(5, 10),
        interval_s=max(0.5, length_s * draw.uniform(0.02, 0.06)),
    )


@pytest.mark.slow
def test_short_trials_with_long_start_ups_gain_too_and_are_never_slower_than_serial():
    outcomes = [outcome_of_short_trials(seed) for seed in range(40)]
    over_best = sorted(over_best for over_best, _ in outcomes)
    assert over_best[20] < 1.2 and over_best[36] < 1.6 and max(over_serial for _, over_serial in outcomes) <= 1.03


def test_turns_estimate_the_time_one_at_a_time():
    num_right = 0
    for seed in range(20):
        schedule, _ = run_queue(
            [1.0, 1.8, 2.4, 2.4, 2.4], 24, check_share=0.05, seed=seed, noise=0.03, works=[300.0] * 24
        )
        expected_s, least_s, most_s = schedule.estimate_serial_s()
        assert expected_s == pytest.approx(24 * 300, rel=0.1)
        num_right += least_s <= 24 * 300 <= most_s
    assert num_right >= 17


def test_without_turns_nothing_is_claimed():
    schedule, _ = run_queue([1.0, 1.8, 2.4])
    assert schedule.turns == [] and schedule.estimate_serial_s() is None
