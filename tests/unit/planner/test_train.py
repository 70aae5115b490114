"""Training plans: speeds that are measured or marked, groups that run as their jobs do, schedules as good as any."""

from __future__ import annotations

import itertools
import json
import operator
import random
from pathlib import Path
from typing import Any

import pytest

from pipeline.base.system.errors import ConfigError
from pipeline.planner import __main__, profile_table
from pipeline.planner.export.experiment import group_gpus
from pipeline.planner.profile_table import Profile, Row
from pipeline.planner.results.plan_check import check
from pipeline.planner.serving.problem import Model
from pipeline.planner.training import schedule, training_jobs
from pipeline.planner.training.schedule import Schedule
from pipeline.planner.training.speed import Place, Speeds, fit_speed
from pipeline.planner.training.training_jobs import Job, JobGroup, TrainingProblem
from pipeline.prepare.mig import profiles
from pipeline.report.evaluate.predictions import STRENGTH
from tests.support.report_rows import job, params, study
from tests.support.report_rows import row as report_row

H100 = Model(name="h100_80gb", mig=profiles.load_model("h100_80gb"))


def row(mode: str, processes: int, rate: float, workload: str = "a", **changes: Any) -> Row:
    """Of `processes` at `rate` each."""
    values: dict[str, Any] = {"workload": workload, "gpu_model": "h100_80gb", "sharing_mode": mode, "batch": 32}
    return Row(**values | {"processes": processes, "throughput_per_s": processes * rate} | changes)


def make_speeds(*rows: Row) -> Speeds:
    return Speeds(model=H100, rows=rows)


def make_problem(
    jobs: list[Job], rows: list[Row], num_gpus: int = 1, memory_mib: float | None = None
) -> TrainingProblem:
    programs = tuple((job.workload or job.name, 32) for job in jobs)
    return TrainingProblem(
        jobs=tuple(jobs),
        programs=programs,
        num_gpus=num_gpus,
        model=H100,
        speeds=make_speeds(*rows),
        memory_mib=memory_mib,
    )


A = ("a", 32)


def test_what_takes_a_plus_b_over_its_share_is_predicted_exactly() -> None:
    assert fit_speed([(x, 1 / (0.002 + 0.001 / x)) for x in (1.0, 0.5, 0.2)]) == pytest.approx((0.002, 0.001))
    assert fit_speed([(1.0, 100.0), (0.5, 100.0)]) == pytest.approx((0.01, 0.0))  # no profit from more
    rows = [row("serial", 1, 1 / 0.003), *(row("mps", k, 1 / (0.002 + 0.001 * k)) for k in (2, 3, 7))]
    speeds = make_speeds(*rows)
    five = speeds.find(A, Place(mode="mps", processes=5))
    assert five is not None and five.is_predicted
    assert five.rate_per_s == pytest.approx(1 / 0.007) and five.error_ratio == pytest.approx(0, abs=1e-9)
    assert len(speeds.held_out) == 3  # of the three that share, each from the others
    two = speeds.find(A, Place(mode="mps", processes=2))
    assert two is not None and not two.is_predicted and two.error_ratio is None


def test_the_error_of_a_prediction_is_that_of_measured_cells_left_out() -> None:
    # A straight line through (1, 100) and (1/2, 50) gives 33.3 for a third; 40 was measured.
    speeds = make_speeds(row("serial", 1, 100.0), row("mps", 2, 50.0), row("mps", 3, 40.0))
    errors = {prediction.row.processes: prediction.error_ratio for prediction in speeds.held_out}
    assert errors[3] == pytest.approx(1 - (100 / 3) / 40)
    four = speeds.find(A, Place(mode="mps", processes=4))
    assert four is not None and four.error_ratio == pytest.approx(sum(errors.values()) / 2)
    mixed = speeds.find(A, Place(mode="mps", processes=3), is_mixed=True)
    assert mixed is not None and mixed.is_predicted and mixed.error_ratio is None  # no mix was measured


def test_mig_is_predicted_from_shares_and_multiprocessors_but_no_way_of_sharing_from_another() -> None:
    share = {"share_percent": 50.0}
    speeds = make_speeds(row("serial", 1, 100.0), row("mps_percent", 2, 60.0, **share), row("naive", 2, 45.0))
    three = speeds.find(A, Place(mode="mig", instance_profile="3g.40gb"))
    assert three is not None and three.is_predicted and three.error_ratio is None
    a, b = fit_speed([(1.0, 100.0), (0.5, 60.0)]) or (0, 0)
    assert three.rate_per_s == pytest.approx(1 / (a + b * 132 / 60))
    assert speeds.find(A, Place(mode="mps", processes=2)) is None
    assert speeds.find(A, Place(mode="naive", processes=3)) is not None
    alone = speeds.find(A, Place(mode="naive", processes=1))
    assert alone is not None and (alone.rate_per_s, alone.is_predicted) == (100.0, False)
    assert speeds.find(("b", 32), Place(mode="serial")) is None


def test_jobs_that_stay_speed_up_when_others_end_and_memory_must_fit() -> None:
    rows = [row("serial", 1, 100.0, memory_mib=30.0, energy_per_item_j=2.0)]
    rows += [row("mps", 2, 60.0, memory_mib=60.0, energy_per_item_j=1.5)]
    jobs = [Job(name="short", workload="a", work=600), Job(name="long", workload="a", work=1600)]
    (group,) = training_jobs.groups_of(make_problem(jobs, rows, memory_mib=60), (1, 1), ["mps"])
    assert [run.end_s for run in group.runs] == [10.0, 20.0]  # 10 s at 60, then 1,000 items at 100
    assert group.duration_s == 20 and group.ends_s == 30
    assert group.energy_j == pytest.approx(1200 * 1.5 + 1000 * 2.0)
    assert [run.is_predicted for run in group.runs] == [False, False]  # of one program
    assert not [*training_jobs.groups_of(make_problem(jobs, rows, memory_mib=59), (1, 1), ["mps"])]


def test_different_jobs_with_loads_slow_each_other_down_under_mps() -> None:
    loads = {"a": (0.4, 0.5), "b": (0.3, 0.8)}
    rows = [
        row("serial", 1, 100.0, name, sensitivity_ratio=sensitivity, pressure_ratio=pressure)
        for name, (sensitivity, pressure) in loads.items()
    ]
    jobs = [Job(name="a", workload="a", work=1000), Job(name="b", workload="b", work=1000)]
    (group,) = training_jobs.groups_of(make_problem(jobs, rows), (1, 1), ["mps"])
    slowdowns = 1 + STRENGTH * 0.4 * 0.8, 1 + STRENGTH * 0.3 * 0.5
    assert [run.rate_per_s for run in group.runs] == pytest.approx([100 / slowdown for slowdown in slowdowns])
    assert group.runs[1].end_s == pytest.approx(10 * slowdowns[1])
    assert group.runs[0].end_s == pytest.approx(10 + (slowdowns[0] - 1) / slowdowns[0] * 10 * slowdowns[1])
    assert all(run.is_predicted for run in group.runs)
    assert not [*training_jobs.groups_of(make_problem(jobs, rows), (1, 1), ["naive"])]
    unknown = [rows[0], row("serial", 1, 100.0, "b")]
    assert not [*training_jobs.groups_of(make_problem(jobs, unknown), (1, 1), ["mps"])]


def test_instances_get_the_longest_jobs_first_and_partitions_are_legal() -> None:
    rows = [
        row("serial", 1, 100.0),
        row("mig", 1, 70.0, instance_profile="4g.40gb"),
        row("mig", 1, 60.0, instance_profile="3g.40gb"),
    ]
    rows += [row("mig", 1, 25.0, instance_profile="1g.10gb", memory_mib=9000)]
    jobs = [Job(name="short", workload="a", work=600), Job(name="long", workload="a", work=900)]
    groups_by_instances = {
        group.instances: group for group in training_jobs.groups_of(make_problem(jobs, rows), (1, 1), ["mig"])
    }
    both = groups_by_instances["4g.40gb", "3g.40gb"]
    assert {make_problem(jobs, rows).jobs[run.kind].name: run.place.instance_profile for run in both.runs} == {
        "long": "4g.40gb",
        "short": "3g.40gb",
    }
    assert not any(run.is_predicted for run in both.runs)
    assert all(
        any(run.is_predicted for run in group.runs)
        for names, group in groups_by_instances.items()
        if "2g.20gb" in names
    )
    several = [*training_jobs.groups_of(make_problem([Job(name="a", work=100, count=9)], rows), (9,), ["mig_mps"])]
    assert several and all(group.mode == "mig_mps" and len(group.runs) == 9 for group in several)


def find_best_value(problem: TrainingProblem, modes: list[str], objective: Any) -> float:
    """The best value of all schedules: every way to make groups, every GPU for each, in the best order."""
    groups = {
        composition: list_undominated(problem, composition, modes)
        for composition in training_jobs.compositions(problem)
    }
    jobs = [kind for kind, job in enumerate(problem.jobs) for _ in range(job.count)]
    best = float("inf")
    for labels in itertools.product(range(len(jobs)), repeat=len(jobs)):
        if any(label > max(labels[:place], default=-1) + 1 for place, label in enumerate(labels)):
            continue  # the same groups by other names
        choices = []
        for label in range(max(labels) + 1):
            members = [kind for kind, other in zip(jobs, labels, strict=True) if other == label]
            choices.append(groups[tuple(members.count(kind) for kind in range(len(problem.jobs)))])
        for taken in itertools.product(*choices):
            for places in itertools.product(range(problem.num_gpus), repeat=len(taken)):
                gpus = [
                    [g for g, place in zip(taken, places, strict=True) if place == number]
                    for number in range(problem.num_gpus)
                ]
                ordered = tuple(tuple(sorted(gpu, key=lambda g: g.duration_s / len(g.runs))) for gpu in gpus)
                value = Schedule(gpus=ordered).cost(objective)
                best = best if value is None else min(best, value)
    return best


def list_undominated(problem: TrainingProblem, composition: tuple[int, ...], modes: list[str]) -> list[JobGroup]:
    """The groups of a composition than which none is better in everything that an objective counts."""

    def counts(group: JobGroup) -> tuple[float, ...]:
        return group.ends_s, group.duration_s, float("inf") if group.energy_j is None else group.energy_j

    group_by_counts = {counts(group): group for group in training_jobs.groups_of(problem, composition, modes)}
    return [
        group
        for figures, group in group_by_counts.items()
        if not any(other != figures and all(map(operator.le, other, figures)) for other in group_by_counts)
    ]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(4))
def test_schedules_are_as_good_as_trying_every_one(seed: int) -> None:
    rng = random.Random(seed)
    rows = []
    for name in "ab":
        alone, gain = rng.uniform(50, 150), rng.uniform(1.0, 1.9)
        rows.append(row("serial", 1, alone, name, energy_per_item_j=rng.uniform(1, 2)))
        rows += [row("mps", k, alone * gain / k, name, energy_per_item_j=rng.uniform(0.5, 2)) for k in (2, 3)]
    jobs = [Job(name="a", work=rng.uniform(500, 2000), count=3), Job(name="b", work=rng.uniform(500, 2000), count=2)]
    problem = make_problem(jobs, rows, num_gpus=2)
    for objective in ("makespan", "completion", "energy"):
        groups = training_jobs.find_cheapest(problem, objective, ["serial", "mps"])
        solution = schedule.solve(problem, groups, objective, seed=0, time_limit_s=60.0)
        assert solution is not None
        counts = [sum(g.composition[kind] for gpu in solution.gpus for g in gpu) for kind in range(2)]
        assert counts == [3, 2]
        value = solution.cost(objective)
        assert value == pytest.approx(find_best_value(problem, ["serial", "mps"], objective), rel=1e-5)
        if objective != "completion":
            assert solution.bound == pytest.approx(value, rel=1e-5)


@pytest.mark.parametrize("seed", [18, 36, 39, 56])
def test_the_mean_completion_is_as_good_as_trying_every_group_on_instances_and_off_them(seed: int) -> None:
    rng = random.Random(seed)
    rows = []
    for name in "ab":
        alone = rng.uniform(50, 150)
        rows.append(row("serial", 1, alone, name))
        rows += [row("mps", k, alone * rng.uniform(0.8, 1.9) / k, name) for k in (2, 3)]
        rows += [row("mig", 1, alone * rng.uniform(0.4, 0.9), name, instance_profile=p) for p in ("3g.40gb", "4g.40gb")]
    jobs = [Job(name=name, work=rng.uniform(200, 3000), count=2) for name in "ab"]
    problem, modes = make_problem(jobs, rows, num_gpus=rng.randint(1, 2)), ["serial", "mps", "mig"]
    solution = schedule.solve(
        problem, training_jobs.find_cheapest(problem, "completion", modes), "completion", seed=0, time_limit_s=60.0
    )
    assert solution is not None
    assert solution.mean_completion_s == pytest.approx(find_best_value(problem, modes, "completion"), rel=1e-9)


def test_only_measured_speeds_where_that_is_asked_for() -> None:
    rows = [row("serial", 1, 100.0), row("mps", 2, 90.0), row("mps", 3, 80.0)]
    problem = make_problem([Job(name="a", work=100, count=4)], rows)
    assert any(group.runs[0].is_predicted for (group,) in training_jobs.find_cheapest(problem, "makespan").values())
    measured = training_jobs.find_cheapest(problem, "makespan", is_measured_only=True)
    assert set(measured) == {(1,), (2,), (3,)}


def run(tmp_path: Path, jobs: str, rows: list[Row], *options: str) -> int:
    profile_table.write(tmp_path / "p.csv", Profile(rows=tuple(rows)))
    (tmp_path / "jobs.yaml").write_text(jobs)
    return __main__.main(["train", str(tmp_path / "jobs.yaml"), "--profile", str(tmp_path / "p.csv"), *options])


ROWS = [row("serial", 1, 100.0, memory_mib=1000), row("mps", 2, 90.0, memory_mib=2000), row("mps", 3, 80.0)]


def test_the_command_prints_and_writes_the_plan_and_marks_predictions(tmp_path: Path, capsys) -> None:
    jobs = "jobs: [{name: one, workload: a, work: 900, count: 2}]"
    assert run(tmp_path, jobs, ROWS, "--modes", "mps", "--out", str(tmp_path / "plan.json")) == 0
    out = capsys.readouterr().out
    assert "makespan 10 s on 1 GPU (proved)" in out and "all figures were measured, none predicted" in out
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert (plan["makespan_s"], plan["status"], plan["with_one_mode_beside_serial"]["serial"]) == (
        10.0,
        "optimal",
        18.0,
    )
    assert plan["profile_digest"] == profile_table.read(tmp_path / "p.csv").digest
    (group,) = plan["gpus"][0]["groups"]
    assert group["mode"] == "mps" and [planned_job["is_predicted"] for planned_job in group["jobs"]] == [False, False]
    assert run(tmp_path, jobs.replace("2", "5"), ROWS, "--modes", "mps", "--json") == 0
    data = json.loads(capsys.readouterr().out)
    assert any(planned_job["is_predicted"] for gpu in data["gpus"] for g in gpu["groups"] for planned_job in g["jobs"])
    assert data["prediction_error_ratio"]["mps"]["num_cells"] == 2


def test_a_mode_of_which_nothing_was_measured_is_planned_only_if_it_is_asked_for(tmp_path: Path, capsys) -> None:
    jobs = "jobs: [{name: one, workload: a, work: 900, count: 2}]"
    assert run(tmp_path, jobs, ROWS, "--json") == 0
    assert list(json.loads(capsys.readouterr().out)["with_one_mode_beside_serial"]) == ["serial", "mps"]
    assert run(tmp_path, jobs, ROWS) == 0
    assert "not considered: naive, mps_percent, mig, mig_mps; --modes adds them" in capsys.readouterr().out
    assert run(tmp_path, jobs, ROWS, "--modes", "mig", "--json") == 0
    assert "mig" in json.loads(capsys.readouterr().out)["with_one_mode_beside_serial"]


@pytest.mark.parametrize(
    ("jobs", "options", "status", "message"),
    [
        ("jobs: []", [], 2, "jobs.yaml: jobs is empty"),
        ("jobs: [{name: a, work: 0}]", [], 2, "jobs[0] a, work: must be above 0"),
        ("jobs: [{name: a, work: 5}, {name: a, work: 6}]", [], 2, "a is listed twice"),
        ("jobs: [{name: b, work: 5}]", [], 2, "the profile has no row of b on h100_80gb; choose among a"),
        ("jobs: [{name: a, work: 5, batch: 64}]", [], 2, "the profile has no row of a at batch 64"),
        ("jobs: [{name: a, work: .nan}]", [], 2, "jobs[0].work must be finite"),
        ("jobs: [{name: a, works: 5}]", [], 2, "unknown key 'works'"),
        ("jobs: [", [], 2, "jobs.yaml row 2: not valid YAML"),
        ("gpus: 0\njobs: [{name: a, work: 5}]", [], 2, "jobs.yaml: gpus: 0: must be from 1 to 4096"),
        ("jobs: [{name: a, work: 5}]", ["--gpus", "100000000"], 2, "--gpus 100000000: must be from 1 to 4096"),
        ("jobs: [{name: a, work: 5, count: 100001}]", [], 2, "jobs: 100001 jobs are too many; plan at most 100000"),
        ("jobs: [{name: a, work: 5}]", ["--driver-branch", "-3"], 2, "--driver-branch -3: must be above 0"),
        (
            "jobs: [{name: a, work: 5}]",
            ["--gpu", "simulated_a100_80gb"],
            2,
            "has no row of a100_80gb; choose --gpu h100_80gb",
        ),
        ("jobs: [{name: a, work: 5}]", ["--modes", "mpss"], 2, "unknown mode mpss"),
        ("jobs: [{name: a, work: 5}]", ["--objective", "energy"], 1, "no plan: a: the profile has no energy of a"),
    ],
)
def test_what_cannot_be_used_is_one_line(tmp_path: Path, capsys, jobs, options, status, message) -> None:
    assert run(tmp_path, jobs, ROWS, *options, "--out", str(tmp_path / "plan.json")) == status
    printed = capsys.readouterr()
    assert message in (printed.err if status == 2 else printed.out)
    assert (printed.err if status == 2 else printed.out).count("\n") == 1
    assert not (tmp_path / "plan.json").exists()


def test_a_job_that_fits_nowhere_is_named(tmp_path: Path, capsys) -> None:
    assert run(tmp_path, "jobs: [{name: a, work: 5}]", [row("serial", 1, 100.0, memory_mib=99_000.0)]) == 1
    assert "no plan: a: does not fit into the" in capsys.readouterr().out


def test_a_training_plan_is_exported_and_checked_group_by_group(tmp_path: Path) -> None:
    rows = [
        *ROWS,
        row("serial", 1, 50.0, "b"),
        row("mps", 2, 30.0, "b"),
        row("mig", 1, 60.0, instance_profile="3g.40gb"),
    ]
    jobs = "jobs: [{name: one, workload: a, work: 900, count: 2}, {name: two, workload: b, work: 450}]"
    assert run(tmp_path, jobs, rows, "--modes", "mps", "--out", str(tmp_path / "plan.json")) == 0
    plan, is_training = schedule.read_plan(tmp_path / "plan.json")
    assert is_training and all(gpu.mode in ("mps", "naive") for gpu in plan.deployment.gpus)
    assert plan.details == {"groups_per_gpu": [len(plan.deployment.gpus)]}
    groups = group_gpus(plan)
    assert sorted(size for group in groups for size in group.sizes) == ["a", "a", "b"]
    ran = []
    for group in groups:
        jobs_of_group = tuple(
            job(n, params(size, batch_size=32), 20.0 + n, size=size) for n, size in enumerate(group.sizes)
        )
        ran.append(report_row(group.scenario, jobs_of_group))
    plan_check = check(plan, study(*ran), None, "plan.json", by_group=True)
    assert plan_check.holds
    throughput = {
        comparison.service: comparison
        for comparison in plan_check.compared
        if comparison.quantity == "throughput_per_s"
    }
    assert len(throughput) == sum(len(gpu.instances) for gpu in plan.deployment.gpus)
    for number, gpu in enumerate(plan.deployment.gpus):
        for instance in gpu.instances:
            comparison_of_service = throughput[f"{instance.service} (group {number + 1})"]
            assert (
                comparison_of_service.predicted == instance.throughput_per_s
                and comparison_of_service.measured is not None
            )


def test_instances_of_a_training_plan_have_starts_and_one_workload_each(tmp_path: Path) -> None:
    rows = [row("serial", 1, 100.0), row("mig", 1, 80.0, instance_profile="3g.40gb"), row("serial", 1, 50.0, "b")]
    rows += [row("mig", 1, 45.0, "b", instance_profile="4g.40gb"), row("mig", 1, 45.0, "b", instance_profile="3g.40gb")]
    jobs = "jobs: [{name: a, work: 900}, {name: b, work: 450}]"
    assert run(tmp_path, jobs, rows, "--modes", "mig", "--measured-only", "--out", str(tmp_path / "plan.json")) == 0
    plan, _ = schedule.read_plan(tmp_path / "plan.json")
    (gpu,) = plan.deployment.gpus
    assert gpu.mode == "mig" and {instance.service for instance in gpu.instances} == {"a", "b"}
    content = json.loads((tmp_path / "plan.json").read_text())
    group = content["gpus"][0]["groups"][0]
    group["jobs"][1]["instance"] = group["jobs"][0]["instance"]
    (tmp_path / "plan.json").write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=r"plan.json: gpus\[0\].groups\[0\]: instance \d has (a, b|no job)"):
        schedule.read_plan(tmp_path / "plan.json")
    (tmp_path / "plan.json").write_text(json.dumps(content | {"version": 2}))
    with pytest.raises(ConfigError, match="version is 2, not 1"):
        schedule.read_plan(tmp_path / "plan.json")
