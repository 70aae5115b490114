"""MIG-serving's algorithms beside the exact plan, and the plan that changes least from today's."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from itertools import combinations, permutations, product
from types import SimpleNamespace

import pytest

from pipeline.planner.deployment import Service
from pipeline.planner.profile_table import Profile, Row
from pipeline.planner.serving import mig_serving, problem, solution, solvers
from pipeline.planner.serving.integer_programme import Counts, Programme
from pipeline.planner.serving.mig_serving import Candidates
from pipeline.planner.serving.problem import Demand
from pipeline.prepare.mig import profiles
from tests.support.plans import answer
from tests.unit.planner.serving import validator
from tests.unit.planner.serving.test_serve import BERT, ROW, demand, table
from tests.unit.planner.serving.validator import plain_profiles

MODEL = "a100_80gb"


def make_problem(num_services, seed=0):
    """Services whose throughput grows less than their instances."""
    chance = random.Random(seed)
    rows, services = [], []
    for number in range(num_services):
        name, base, power = f"service{number}", chance.lognormvariate(4, 1), chance.uniform(0.6, 1.05)
        for profile, slices, _ in plain_profiles(MODEL):
            row = Row(
                workload=name,
                gpu_model=MODEL,
                sharing_mode="mig",
                instance_profile=profile,
                throughput_per_s=base * slices**power * chance.uniform(0.95, 1.05),
                latency_mean_ms=10.0,
            )
            rows.append(row)
        services.append(Service(name=name, rate_per_s=base * 7**power * chance.lognormvariate(0, 0.7), objective_ms=20))
    model = problem.Model(name=MODEL, mig=profiles.load_model(MODEL))
    return problem.build_problem(Demand(services=tuple(services)), Profile(rows=tuple(rows)), [model])


@pytest.mark.slow
@pytest.mark.usefixtures("searches_by_rounds")
def test_the_greedy_plan_is_near_the_optimum_and_searches_are_not_worse():
    stated = make_problem(20)
    exact = solvers.solve(stated, solvers.EXACT, time_limit_s=20)
    greedy = solvers.solve(stated, solvers.GREEDY, time_limit_s=20)
    assert exact.status == "optimal" and exact.num_gpus > 15
    assert exact.num_gpus <= greedy.num_gpus <= 1.1 * exact.num_gpus
    for method in (solvers.TREE, solvers.GENETIC):
        searched_plan = solvers.solve(stated, method, time_limit_s=20, seed=1)
        assert exact.num_gpus <= searched_plan.num_gpus <= greedy.num_gpus


@pytest.mark.parametrize("explore", [mig_serving.grow_tree, mig_serving.evolve])
def test_a_search_ends_at_its_time_limit(explore, monkeypatch):
    candidates = Candidates(make_problem(6))
    first = mig_serving.complete_greedily(candidates, [])
    ticks = itertools.count()
    monkeypatch.setattr(mig_serving, "time", SimpleNamespace(monotonic=lambda: next(ticks)))
    selected_gpus = mig_serving.search(candidates, first, explore, seed=1, time_limit_s=5)
    assert len(selected_gpus) <= len(first) and next(ticks) == 6  # once before, then in each round


@pytest.mark.sampled(1)
@pytest.mark.parametrize("explore", [mig_serving.grow_tree, mig_serving.evolve])
def test_a_search_makes_small_what_it_is_told(explore):
    """Not only the number of GPUs: here also how much of a service is lost with one of them."""
    stated = make_problem(6)

    def cost(gpus):
        return 1000 * len(gpus) + sum(gpu.services.count(service) ** 2 for gpu in gpus for service in range(6))

    candidates = Candidates(stated)
    first = mig_serving.complete_greedily(candidates, [])
    selected_gpus = mig_serving.search(candidates, first, explore, seed=1, time_limit_s=20, rounds=40, cost=cost)
    assert cost(selected_gpus) < cost(first)
    assert not mig_serving.Selection(candidates, selected_gpus).lack.any()
    again = mig_serving.search(candidates, first, explore, seed=1, time_limit_s=20, rounds=40, cost=cost)
    assert again == selected_gpus


def test_a_search_ends_at_the_bound():
    stated = make_problem(3)
    exact = solvers.solve(stated, solvers.EXACT, time_limit_s=20)
    bounded_plan = solvers.solve(stated, solvers.GENETIC, time_limit_s=30, bound=exact.bound + 3)
    assert bounded_plan.seconds < 10 and bounded_plan.status == "optimal"


def test_where_the_solver_finds_nothing_in_time_the_greedy_plan_is_held_against_a_linear_programme(monkeypatch):
    stated = make_problem(4)
    proved = solvers.solve(stated, solvers.EXACT, time_limit_s=20)
    monkeypatch.setattr(Programme, "solve", lambda *_, **__: Counts(None, None, "unknown"))
    fallback_plan = solvers.solve(stated, solvers.EXACT, time_limit_s=20)
    greedy = solvers.solve(stated, solvers.GREEDY, time_limit_s=20)
    assert fallback_plan.gpus == greedy.gpus
    assert proved.num_gpus - 1 <= fallback_plan.bound <= proved.num_gpus
    assert fallback_plan.gap == (fallback_plan.num_gpus - fallback_plan.bound) / fallback_plan.num_gpus


def test_a_plan_near_that_of_the_linear_programme_stands_in_where_the_time_is_short(monkeypatch):
    stated = make_problem(20)
    proved = solvers.solve(stated, solvers.EXACT, time_limit_s=20)
    solve, calls = Programme.solve, []

    def fail_first_time(*arguments, **options):
        calls.append(arguments)
        return Counts(None, None, "unknown") if len(calls) == 1 else solve(*arguments, **options)

    monkeypatch.setattr(Programme, "solve", fail_first_time)
    nearby_plan = solvers.solve(stated, solvers.EXACT, time_limit_s=20)
    assert nearby_plan.bound <= proved.num_gpus <= nearby_plan.num_gpus <= proved.num_gpus + 1
    assert all(share > 1 - 1e-9 for share in solution.shares(stated, nearby_plan.gpus))


A30 = "a30_24gb"
PLACES = [
    (profile["name"], place["start"])
    for profile in validator.TABLE[validator.KEYS[A30]]["gi_profiles"]
    if not profile["attributes"]
    for place in profile["placements"]
]


def list_placements(gpu):
    """Return the places and services of a GPU."""
    return {(instance["profile"], instance["start"], instance["service"]) for instance in gpu["instances"]}


def count_fewest_changes(today, rates, speed, num_gpus):
    """Instances created and removed at least, then slices, by trying every deployment of so many A30s."""
    gpus = [
        {(*place, name) for place, name in zip(placed, who, strict=True)}
        for size in range(5)
        for placed in combinations(PLACES, size)
        if validator.is_legal(A30, None, placed)
        for who in product(rates, repeat=size)
    ]
    old = [list_placements(gpu) for gpu in today["gpus"]]
    total, costs = sum(map(len, old)), []
    for new in product(gpus, repeat=num_gpus):
        served_rates = Counter()
        for profile, _, name in (placement for gpu in new for placement in gpu):
            served_rates[name] += speed[name, profile]
        if all(served_rates[name] >= rate for name, rate in rates.items()):
            most = max(len(new), len(old))
            padded = [*new, *[set()] * (most - len(new))]
            most_kept = max(
                sum(len(a & b) for a, b in zip(order, old, strict=False)) for order in permutations(padded, most)
            )
            sizes = [validator.get_slices(A30, profile) for gpu in new for profile, _, _ in gpu]
            slices = tuple(map(sum, zip(*sizes, strict=True)))
            costs.append((sum(map(len, new)) + total - 2 * most_kept, slices))
    return min(costs)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "seed", [*range(1, 8), *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in (0, *range(8, 60)))]
)
def test_no_plan_with_as_few_gpus_changes_less(tmp_path, capsys, seed):
    chance = random.Random(seed)
    speed = {
        (name, profile): round(10 * slices ** chance.uniform(0.6, 1.1), 2)
        for name in ("bert", "yolo")
        for profile, slices, _ in plain_profiles(A30)
    }
    rows = [
        ROW | {"workload": name, "gpu_model": A30, "instance_profile": profile, "throughput_per_s": str(rate)}
        for (name, profile), rate in speed.items()
    ]
    path = table(tmp_path, *rows)

    def plan_for(rates, *options):
        services = [BERT | {"name": name, "rate_per_s": rate} for name, rate in rates.items()]
        return answer(capsys, "serve", demand(tmp_path, services), "--profile", path, *options)

    _, today = plan_for({name: round(chance.uniform(5, 35), 1) for name in ("bert", "yolo")})
    for number, gpu in enumerate(today["gpus"]):
        gpu["id"] = f"GPU-{number}"
    (tmp_path / "today.json").write_text(json.dumps(today))
    rates = {name: round(chance.uniform(5, 35), 1) for name in ("bert", "yolo")}
    status, plan = plan_for(rates, "--from", tmp_path / "today.json")
    _, alone = plan_for(rates)
    changes = plan["details"]["changes"]
    assert (
        status == 0
        and changes["is_least"]
        and changes["at_least"] == sum(changes[f"num_{what}"] for what in ("created", "removed"))
    )
    assert plan["num_gpus"] == alone["num_gpus"] <= 2
    services = [BERT | {"name": name, "rate_per_s": rate, "latency_share": 1.0} for name, rate in rates.items()]
    assert validator.list_faults(plan, services, validator.read_profile(path)) == []
    new = {gpu["id"]: list_placements(gpu) for gpu in plan["gpus"] if gpu["id"]}
    num_kept = sum(len(list_placements(gpu) & new.get(gpu["id"], set())) for gpu in today["gpus"])
    placed, before = (sum(len(gpu["instances"]) for gpu in answered_plan["gpus"]) for answered_plan in (plan, today))
    assert changes["num_kept"] == num_kept
    assert (changes["num_created"], changes["num_removed"]) == (placed - num_kept, before - num_kept)
    expected = count_fewest_changes(today, rates, speed, plan["num_gpus"])
    assert (placed + before - 2 * num_kept, validator.count_slices(plan)) == expected
    assert plan["details"]["has_fewest_slices"]


def test_limits_hold_where_a_plan_is_held_against_todays(tmp_path, capsys):
    rows = [ROW | {"workload": name} for name in ("bert", "yolo")]
    path = table(tmp_path, *rows)
    both = [BERT | {"rate_per_s": 25}, BERT | {"name": "yolo", "rate_per_s": 25}]
    _, today = answer(capsys, "serve", demand(tmp_path, both), "--profile", path)
    assert today["num_gpus"] == 1
    (tmp_path / "today.json").write_text(json.dumps(today))
    argv = [demand(tmp_path, both, limits={"apart": [["bert", "yolo"]]}), "--profile", path]
    _, plan = answer(capsys, "serve", *argv, "--from", tmp_path / "today.json")
    assert plan["num_gpus"] == 2 and not plan["details"]["changes"]["is_least"]
    assert plan["details"]["changes"]["num_kept"] == 3
    assert all(len({instance["service"] for instance in gpu["instances"]}) == 1 for gpu in plan["gpus"])


def test_a_deployment_that_is_not_legal_is_refused(tmp_path, capsys):
    path = table(tmp_path, ROW)
    _, today = answer(capsys, "serve", demand(tmp_path, [BERT]), "--profile", path)
    today["gpus"][0]["instances"][1]["start"] = today["gpus"][0]["instances"][0]["start"]
    (tmp_path / "today.json").write_text(json.dumps(today))
    argv = ["serve", demand(tmp_path, [BERT]), "--profile", path, "--from", tmp_path / "today.json"]
    status, error = answer(capsys, *argv, "--out", tmp_path / "new.json")
    assert status == 2 and "is not legal" in error and not (tmp_path / "new.json").exists()
