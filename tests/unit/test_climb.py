"""`advise_minutes`: which groups run, and whether the answer names the right mode and number of jobs."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from pipeline.base.domain.records import Result
from pipeline.base.domain.window import Window, WindowKind
from pipeline.base.domain.workload import RateSource
from pipeline.observe.baseline_comparison import Comparison
from pipeline.observe.group_result import GroupResult, JobResult
from pipeline.study.climb import Climb
from tests.support.rows import group

pytestmark = pytest.mark.covers("pipeline/study/climb.py", "pipeline/report/evaluate/recommendation.py")
GROUP_S = 6.0
CURVES = {
    "saturating": {"naive": (1, 1.5, 1.7, 1.72, 1.72), "mps": (1, 1.8, 2.3, 2.32, 2.30)},
    "rising": {"naive": (1, 1.6, 2.1, 2.5, 2.8, 3.0), "mps": (1, 1.9, 2.7, 3.4, 4.0, 4.5)},
    "falling": {"naive": (1, 1.4, 1.2, 1.1), "mps": (1, 1.35, 1.15, 1.0)},
    "full": {"naive": (1, 0.9, 0.88, 0.87), "mps": (1, 0.97, 0.96, 0.95)},
    "same modes": {"naive": (1, 1.7, 1.71, 1.7), "mps": (1, 1.7, 1.71, 1.7)},
}
RIGHT = {
    "saturating": ("mps", 3),
    "rising": ("mps", 6),
    "falling": ("naive", 2),
    "full": ("serial", 1),
    "same modes": ("naive", 2),
}


def plan(curves, num_blocks=30):
    """Return the groups as a study plans them: the job alone first, then each mode with more and more jobs."""
    groups = []
    for block in range(1, num_blocks + 1):
        groups.append(group("a", sequential=True, block=block))
        for scenario, curve in curves.items():
            for degree in range(2, len(curve) + 1):
                names = ("a",) * degree
                digest = f"{scenario}-{degree}"
                groups.append(group(*names, block=block, scenario=scenario, key=digest, digest=f"{block}-{digest}"))
    return groups


class Machine:
    """A device whose speeds are known, with noise of each group and a host whose speed drifts from block to block."""

    def __init__(self, curves, seed, noise, drift=0.0):
        self.curves, self.random, self.noise, self.drift = curves, random.Random(seed), noise, drift
        self.clock_s, self.host = 0.0, 1.0

    def run(self, the_group):
        self.clock_s += GROUP_S
        if the_group.sequential:
            self.host *= self.random.lognormvariate(0, self.drift)
        degree = len(the_group.jobs)
        total = 1.0 if the_group.sequential else self.curves[the_group.scenario][degree - 1]
        rate = 100 * total / degree * self.host * self.random.lognormvariate(0, self.noise)
        jobs = tuple(
            JobResult(job=job, result=Result.OK, reason="", metrics={"throughput_samples_per_s": rate})
            for job in the_group.jobs
        )
        return GroupResult(group=the_group, result=Result.OK, reason="", jobs=jobs)


def plan_turns(curves):
    """Return the groups of scripts, whose modes take turns: fewer jobs first."""
    return sorted(plan(curves), key=lambda the_group: (the_group.block, len(the_group.jobs)))


def search(groups, machine, minutes=10.0):
    """Run a study; return its climb and its rows."""
    comparison, rows = Comparison(), []
    climb = Climb("test", groups, minutes, clock=lambda: machine.clock_s)
    for the_group in groups:
        for selected in climb.select([the_group], [comparison.get_latest(row) for row in rows]):
            rows.append(machine.run(selected))
            comparison.add(rows[-1])
    rows = [comparison.get_latest(row) for row in rows]
    climb.evaluate(rows)
    return climb, rows


def name(climb):
    choice = climb.recommendation.choice
    return choice.sharing.name, choice.degree


def true_speed(case, choice):
    scenario, degree = choice
    return 1.0 if scenario == "serial" else CURVES[case][scenario][degree - 1]


def count_outcomes(seeds, noise):
    outcomes = {"right": 0, "wrong": 0, "open": 0}
    for case, curves in CURVES.items():
        for seed in seeds:
            climb, _ = search(plan(curves), Machine(curves, seed, noise, drift=0.05))
            choice = name(climb)
            is_right = choice == RIGHT[case]
            outcomes["open" if not climb.is_decided else "right" if is_right else "wrong"] += 1
            assert true_speed(case, choice) >= 1.0 or not climb.is_decided, (case, seed)
    return outcomes


def test_the_answer_is_right_or_left_open_with_little_noise():
    outcomes = count_outcomes([0], noise=0.01)
    assert outcomes["wrong"] == 0 and outcomes["right"] >= 4


@pytest.mark.slow
def test_of_a_hundred_answers_with_noise_eighty_are_right_and_at_most_five_are_wrong():
    outcomes = count_outcomes(range(20), noise=0.03)
    assert outcomes["right"] >= 80 and outcomes["wrong"] <= 5


def rise(most, last, step):
    """Return a curve that rises nearly linearly to its best number, and falls by a step for each further job."""
    return [min(n**0.95, most**0.95) - step * max(0, n - last) for n in range(1, 17)]


@pytest.mark.slow
@pytest.mark.parametrize(("group_s", "job_s", "least_decided"), [(20, 0, 21), (12, 6, 11)])
def test_with_much_noise_ten_minutes_decide_most_searches_and_hardly_any_is_wrong(group_s, job_s, least_decided):
    class Costly(Machine):
        def run(self, the_group):
            row = super().run(the_group)
            self.clock_s += group_s + job_s * len(the_group.jobs) - GROUP_S
            return row

    num_decided = num_wrong = 0
    for curve in (rise(6, 12, 0.05), rise(9, 10, 0.1), rise(2, 4, 0.05)):
        curves = {"naive": curve}
        for seed in range(8):
            climb, rows = search(plan_turns(curves), Costly(curves, seed, noise=0.08, drift=0.03))
            list(climb.answer(rows, ["run.py"]))
            num_decided += climb.is_decided
            num_wrong += climb.is_decided and curve[name(climb)[1] - 1] < 0.9 * max(curve)
    assert num_decided >= least_decided and num_wrong <= 1, (num_decided, num_wrong)


def test_a_mode_gets_one_more_job_only_while_its_speed_rises():
    curves = {"naive": (1, 1.5, 1.4, 9.9), "mps": (1, 1.8, 2.3, 2.0, 9.9)}
    _, rows = search(plan(curves), Machine(curves, 0, noise=0.0))
    first = [(row.group.scenario, len(row.group.jobs)) for row in rows if row.group.block == 1]
    assert first == [("serial", 1), ("naive", 2), ("naive", 3), ("mps", 2), ("mps", 3), ("mps", 4)]


@pytest.mark.parametrize(("seed", "noise"), [(1, 0.10), (2, 0.15), (4, 0.15)])
def test_three_blocks_in_each_of_which_copies_are_much_faster_rule_out_one_at_a_time(seed, noise):
    curves = {"naive": (1, 1.95, 2.2, 2.1)}
    climb, _ = search(plan(curves, 3), Machine(curves, seed, noise=noise, drift=0.4))
    assert climb.recommendation.candidates[0] not in climb.recommendation.open
    climb, rows = search(plan(curves), Machine(curves, seed, noise=noise, drift=0.4))
    assert climb.is_decided and rows[-1].group.block <= 6


@pytest.mark.parametrize(
    ("curve", "first", "last"),
    [
        ((1, 1.9, 2.8, 3.6, 4.0, 4.2), [1, 2, 4, 6], {5}),
        ((1, 1.4, 1.8, 2.1, 2.4, 2.6, 2.7, 2.7, 2.7), [1, 2, 3, 4, 6, 8, 9], {5, 7}),
        ([n**0.9 for n in range(1, 17)], [1, 2, 4, 8, 16], {12, 14, 15}),
        ([min(n**0.95, 9.5) for n in range(1, 17)], [1, 2, 4, 8, 16], {9, 10, 11, 12}),
    ],
)
def test_the_number_doubles_while_copies_nearly_keep_their_speed(curve, first, last):
    curves = {"naive": curve}
    climb, rows = search(plan(curves), Machine(curves, 0, noise=0.002))
    assert [len(row.group.jobs) for row in rows if row.group.block == 1] == first
    assert {len(row.group.jobs) for row in rows} - set(first) <= last
    _, degree = name(climb)
    assert climb.is_decided and curve[degree - 1] > 0.94 * max(curve)


@pytest.mark.parametrize(("launch_s", "most"), [(6.0, 32), (145.0, 16)])
def test_more_than_sixteen_copies_are_tried_unless_their_launch_takes_a_quarter_of_the_minutes(launch_s, most):
    class Slow(Machine):
        def run(self, the_group):
            self.clock_s += launch_s * (len(the_group.jobs) > 8)
            return super().run(the_group)

    curves = {"naive": [float(n) for n in range(1, 33)]}
    climb, rows = search(plan_turns(curves), Slow(curves, 0, noise=0.002))
    assert max(len(row.group.jobs) for row in rows) == most and name(climb) == ("naive", most)
    answer = " ".join(" ".join(climb.answer(rows, ["run.py"])).split())
    if most == 32:
        assert answer.startswith("Decided: run 32 copies") and "go on:" not in answer
        assert "More than 32 copies were not tried; to try them, add degree=16,32,48,64." in answer
    else:
        assert answer.startswith("Sharing gains; the number is not decided. So far: run 16 copies")
        assert "More copies were not tried in these minutes, and may gain more." in answer and "go on:" in answer


def test_a_mode_far_behind_another_one_gets_no_more_jobs_in_the_first_block():
    curves = {"naive": [n**0.7 for n in range(1, 17)], "mps": [n**0.95 for n in range(1, 17)]}
    climb, rows = search(plan_turns(curves), Machine(curves, 0, noise=0.002))
    first = [(row.group.scenario, len(row.group.jobs)) for row in rows if row.group.block == 1]
    assert first[1:] == [("naive", 2), ("mps", 2), ("naive", 3), ("naive", 4), ("mps", 4), ("mps", 8), ("mps", 16)]
    assert climb.is_decided and name(climb)[0] == "mps"


def search_scripts(curves, machine, pattern="step (?P<count>[0-9]+)", num_blocks=2, copy_s=0.0):
    """Run scripts, each copy of which takes long to start; return the climb, its rows and the groups of each launch."""
    window = Window(kind=WindowKind.LOGGED, seconds=8.0)
    planned = [replace(one, window=window, jobs=read_by(pattern, one.jobs)) for one in plan(curves, num_blocks)]
    comparison, rows, launches = Comparison(), [], []
    climb = Climb("test", planned, 10.0, clock=lambda: machine.clock_s)
    while planned:
        first, *following = planned
        following = [one for one in following if one.block == first.block]
        selected = climb.select([first], [comparison.get_latest(row) for row in rows], following)
        machine.clock_s += copy_s * len(selected[0].jobs) if selected else 0.0
        for one in selected:
            rows.append(machine.run(one))
            comparison.add(rows[-1])
        launches += [selected] if selected else []
        planned = [one for one in planned if one is not first and one not in selected]
    return climb, [comparison.get_latest(row) for row in rows], launches


def list_launches(curves, **options):
    """Run two blocks of scripts; return the block of each launch, and the mode and number of jobs of its groups."""
    _, _, launches = search_scripts(curves, Machine(curves, 0, noise=0.002), **options)
    return [(launch[0].block, [(one.scenario, len(one.jobs)) for one in launch]) for launch in launches]


def read_by(pattern, jobs):
    return tuple(replace(job, workload=replace(job.workload, rate=RateSource(pattern=pattern))) for job in jobs)


SCRIPTS = {"naive": [n**0.6 for n in range(1, 17)], "mps": [n**0.59 for n in range(1, 17)]}


def test_the_first_block_doubles_the_copies_of_a_script_and_measures_two_numbers_in_a_launch():
    first = [launch for block, launch in list_launches(SCRIPTS) if block == 1]
    launches = [[(mode, number) for number in pair] for mode in ("naive", "mps") for pair in ((4, 2), (16, 8))]
    assert first == [[("serial", 1)], *launches]


def test_a_later_block_starts_the_most_copies_of_a_script_and_stops_some_for_each_next_number():
    naive, mps = (launch for block, launch in list_launches(SCRIPTS) if block == 2)
    numbers = (16, 14, 12, 10)
    assert naive == [*(("naive", number) for number in numbers), ("serial", 1)]
    assert mps == [("mps", number) for number in numbers]


def test_copies_of_a_script_that_prints_only_its_speed_have_launches_of_their_own():
    launches = list_launches(SCRIPTS, pattern="([0-9.]+) samples/s")
    assert {block for block, _ in launches} == {1, 2} and all(len(launch) == 1 for _, launch in launches)
    assert (1, [("mps", 3)]) in launches  # the number no longer doubles


@pytest.mark.slow
def test_ten_minutes_decide_most_searches_of_scripts_that_start_slowly():
    num_decided = 0
    for most in (5, 9, 13, 20):
        curves = {"naive": [n / (1 + (n / most) ** 4) ** 0.25 for n in range(1, 33)]}
        for seed in range(5):
            machine = Machine(curves, seed, noise=0.02, drift=0.02)
            climb, rows, _ = search_scripts(curves, machine, num_blocks=30, copy_s=4.0)
            list(climb.answer(rows, ["run.py"]))
            assert not climb.is_decided or curves["naive"][name(climb)[1] - 1] > 0.9 * max(curves["naive"])
            num_decided += climb.is_decided
    assert num_decided >= 15


def test_a_group_that_the_plan_skips_is_not_selected():
    curves = {"naive": (1, 1.9), "streams": (1, 1.9)}
    groups = [replace(one, skip_reason="no GPU") if one.scenario == "streams" else one for one in plan(curves, 1)]
    climb = Climb("test", groups, 10.0, clock=lambda: 0.0)
    rows = [Machine(curves, 0, noise=0.0).run(groups[0])]
    assert [len(climb.select([one], rows)) for one in groups[1:]] == [1, 0]


def test_a_number_between_two_that_were_measured_is_like_them():
    curves = {"naive": (1, 1.9, 2.8, 3.5, 3.8, 4.0, 4.0, 4.0)}
    searches = [search(plan(curves), Machine(curves, seed, noise=0.03)) for seed in range(6)]
    answers = {climb: " ".join(climb.answer(rows, ["run.py", "+experiment=advise"])) for climb, rows in searches}
    assert all(climb.is_decided for climb in answers)
    right = [climb for climb in answers if climb.recommendation.choice.degree in (5, 6)]
    assert len(right) >= 5 and not any("More copies were not tried" in answers[climb] for climb in right)


def test_a_number_on_a_flat_part_of_a_curve_stays_untried():
    curves = {"naive": (1, 1.9, 2.7, 3.4, 3.9, 4.3, 4.4, 4.5, 4.45, 4.4)}
    climb, rows = search(plan(curves), Machine(curves, 0, noise=0.002))
    assert climb.is_decided
    # Above four, two more at a time; 7 lies between 6 and 8, which are as fast, and so does 9 between 8 and 10.
    assert {len(row.group.jobs) for row in rows} <= {1, 2, 3, 4, 6, 8, 10}


@pytest.mark.parametrize("kind", [WindowKind.WORK, WindowKind.STEADY])
def test_a_search_warns_once_of_runs_that_are_long_for_its_minutes(kind, capsys):
    curves = CURVES["saturating"]
    machine = Machine(curves, 0, noise=0.0)
    climb = Climb("test", plan(curves), 0.6, clock=lambda: machine.clock_s)
    rows = [machine.run(group("a", sequential=True, kind=kind))]
    for _ in range(2):
        climb.select([group("a", sequential=True, kind=kind)], rows)
    warning = f"note: the job alone took {GROUP_S:.0f} s, so 0.6 min are about 6 groups"
    assert capsys.readouterr().err.count(warning) == (kind is WindowKind.WORK)  # other runs are as long as the window


def test_nothing_starts_after_the_minutes_and_the_answer_stays_open():
    curves = CURVES["saturating"]
    machine = Machine(curves, 0, noise=0.05)
    climb, rows = search(plan(curves), machine, minutes=0.6)
    assert not climb.is_decided and machine.clock_s <= 0.6 * 60 + GROUP_S
    text = " ".join(climb.answer(rows, ["run.py", "+experiment=advise", "advise_minutes=0.6", "workload=tiny"]))
    assert "Sharing gains; the number or mode is not decided. So far: run 4 copies" in text
    assert "+experiment=advise workload=tiny resume=true advise_minutes=1.2" in text


def test_two_blocks_decide_when_the_minutes_are_over_if_their_intervals_do():
    curves = {"naive": (1, 1.9, 2.8, 3.6, 3.7, 3.6), "mps": (1, 1.5, 1.8, 2.0, 2.1, 2.1)}
    climb, rows = search(plan(curves), Machine(curves, 0, noise=0.01), minutes=9 * GROUP_S / 60)
    assert max(row.group.block for row in rows) == 2 and not climb.is_decided
    text = " ".join(climb.answer(rows, ["run.py"]))
    assert (
        text.startswith("Decided: run 4 copies side by side (naive): 3.6") and climb.is_decided and "go on:" not in text
    )
    interrupted = Climb("test", plan(curves), 10.0, clock=lambda: 0.0)
    assert "go on:" in " ".join(interrupted.answer(rows, ["run.py"])) and not interrupted.is_decided


def test_no_group_starts_of_which_most_would_come_after_the_minutes():
    class Slow(Machine):
        def run(self, the_group):
            row = super().run(the_group)
            self.clock_s += 10 * len(the_group.jobs) - GROUP_S
            return row

    curves = {"naive": (1, 1.9, 2.8, 3.6, 4.0, 4.2)}
    for minutes in (2.0, 2.5, 3.0, 3.5, 4.0):
        machine = Slow(curves, 0, noise=0.1)
        _, rows = search(plan(curves), machine, minutes=minutes)
        longest_s = max(10 * len(row.group.jobs) for row in rows)
        assert len(rows) >= 4 and machine.clock_s <= 60 * minutes + longest_s / 2 + 10  # and the job alone


def test_the_answer_names_number_gain_next_copy_other_modes_and_the_command():
    curves = {**CURVES["saturating"], "streams": (1, 2.0, 2.6, 2.5)}
    machine = Machine(curves, 0, noise=0.002)
    climb, rows = search(plan(curves), machine)
    lines = list(
        climb.answer(rows, ["run.py", "-m", "+experiment=advise", "resume=true", "--", "train.py", "--epochs", "3"])
    )
    text = " ".join(lines)
    assert text.startswith(
        "Decided: run 3 copies under MPS: 2.30 times the work an hour (2.29 to 2.32); each takes up to 1.30"
    )
    assert "A fourth adds nothing" in text and "4 copies side by side (naive): 1.7" in text
    assert "Same user, no isolation: 3 copies in one process, 2.6" in text
    assert "scenario=mps degree=3 baseline=never -- train.py --epochs 3" in text
    assert max(map(len, lines[: lines.index("")])) <= 80


def test_copies_of_a_service_that_miss_its_objective_are_not_recommended():
    curves = {"naive": (1, 1.5, 1.7, 1.9), "mps": (1, 1.6, 2.2, 3.0, 4.0)}

    class Server(Machine):
        def run(self, the_group):
            row = super().run(the_group)
            is_met = len(the_group.jobs) <= (3 if the_group.scenario == "mps" else 2)
            return replace(row, metrics={**row.metrics, "objective_met_worst_ratio": float(is_met)})

    climb, rows = search(plan(curves), Server(curves, 0, noise=0.002))
    assert climb.is_decided and name(climb) == ("mps", 3)
    assert max(len(row.group.jobs) for row in rows if row.group.scenario == "mps") == 4
    lines = list(climb.answer(rows, ["run.py", "+experiment=advise"]))
    text = " ".join(lines)
    assert text.startswith("Decided: run 3 copies under MPS: 2.") and "A fourth misses the objective." in text
    assert "too slow" in text


def test_if_no_number_of_copies_can_be_recommended_one_at_a_time_is():
    class Server(Machine):
        def run(self, the_group):
            row = super().run(the_group)
            return replace(row, metrics={**row.metrics, "objective_met_worst_ratio": float(len(the_group.jobs) == 1)})

    curves = {"naive": (1, 1.5, 1.7), "streams": (1, 1.8, 2.0)}
    climb, rows = search(plan(curves), Server(curves, 0, noise=0.002))
    text = " ".join(climb.answer(rows, ["run.py", "+experiment=advise"]))
    assert "run one job at a time; sharing gains nothing." in text and "too slow" in text
    curves = {"streams": (1, 1.8, 2.0)}
    climb, rows = search(plan(curves, 1), Machine(curves, 0, noise=0.002))
    text = " ".join(climb.answer(rows, ["run.py", "+experiment=advise"]))
    assert "run one job at a time; sharing gains nothing." in text


def test_the_commands_of_an_answer_have_no_secrets():
    curves = CURVES["saturating"]
    climb, rows = search(plan(curves), Machine(curves, 0, noise=0.05), minutes=0.6)
    words = ["run.py", "tracking.uri=http://bob:s3cret@host", "--", "-m", "train"]
    commands = [line for line in climb.answer(rows, words) if line.startswith(("run it:", "go on:"))]
    assert len(commands) == 2 and all("-- -m train" in line and "<hidden>" in line for line in commands)
    assert not any("s3cret" in line for line in commands)


def test_a_full_device_is_left_to_one_job_at_a_time():
    curves = CURVES["full"]
    climb, rows = search(plan(curves), Machine(curves, 0, noise=0.002))
    text = " ".join(climb.answer(rows, ["run.py"]))
    assert text.startswith("Decided: run one job at a time; sharing gains nothing.") and "run it:" not in text
    assert len(rows) < 20


def test_a_speed_up_above_the_number_of_jobs_is_in_doubt():
    curves = {"naive": (1, 3.4, 3.0)}
    climb, rows = search(plan(curves), Machine(curves, 0, noise=0.0), minutes=0.6)
    text = " ".join(climb.answer(rows, ["run.py"]))
    assert "run 2 copies side by side" in text and "Doubt: speed-up of 3.40" in text and "baseline was slow" in text


def test_disturbed_groups_are_counted_and_lead_nothing():
    curves = {"naive": (1, 1.5, 1.9, 1.8)}
    _, rows = search(plan(curves), Machine(curves, 0, noise=0.0))
    disturbed = {2: {"collocation.invalid": "a job waited for a CPU"}}
    marked = [replace(row, tags=disturbed.get(len(row.group.jobs), {})) for row in rows]
    climb = Climb("test", plan(curves), 10)
    text = "\n".join(climb.answer(marked, ["run.py"]))
    num_marked = sum(len(row.group.jobs) == 2 for row in rows)
    assert text.startswith("Decided: run 3 copies side by side (naive): 1.90 times") and "\n   2  invalid\n" in text
    assert f"Invalid: {num_marked} of {len(rows)} groups: a job waited for a CPU." in text


def test_a_job_that_fails_alone_ends_the_search():
    alone, pair = plan({"naive": (1, 2)}, num_blocks=1)
    climb = Climb("test", [alone, pair], 10)
    row = GroupResult(group=alone, result=Result.FAILED, reason="job 0-a exited with 1")
    assert climb.select([pair], [row]) == []
    assert list(climb.answer([row], ["run.py"])) == ["No answer: the job fails alone."]


def test_rows_without_a_speed_up_give_no_answer_but_a_reason():
    the_group = group("a", "a")
    climb = Climb("test", [the_group], 10)
    row = GroupResult(group=the_group, result=Result.FAILED, reason="the job exited with 1")
    first, second = climb.answer([row], ["run.py"])
    assert first == "No answer: no group of several jobs has a valid speed-up; the job exited with 1"
    assert second.startswith("go on:  python run.py resume=true advise_minutes=20")
