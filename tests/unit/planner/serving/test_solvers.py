"""What MIG-serving's algorithms promise beside the exact plan."""

from __future__ import annotations

import itertools
import random
from types import SimpleNamespace

import pytest

from pipeline.planner.deployment import Service
from pipeline.planner.profile_table import Profile, Row
from pipeline.planner.serving import problem, solution, solvers
from pipeline.planner.serving.candidates import Candidates
from pipeline.planner.serving.demand import Demand
from pipeline.planner.serving.integer_programme import Counts, Programme
from pipeline.prepare.mig import profiles
from tests.unit.planner.serving.cases import plain_profiles

MODEL = "a100_80gb"


def many(num_services, seed=0):
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
    return problem.build(Demand(services=tuple(services)), Profile(rows=tuple(rows)), [model])


@pytest.mark.slow
@pytest.mark.usefixtures("searches_by_rounds")
def test_the_greedy_plan_is_near_the_optimum_and_searches_are_not_worse():
    stated = many(20)
    exact = solvers.solve(stated, solvers.EXACT, time_limit_s=20)
    greedy = solvers.solve(stated, solvers.GREEDY, time_limit_s=20)
    assert exact.status == "optimal" and exact.num_gpus > 15
    assert exact.num_gpus <= greedy.num_gpus <= 1.1 * exact.num_gpus
    for method in (solvers.TREE, solvers.GENETIC):
        found = solvers.solve(stated, method, time_limit_s=20, seed=1)
        assert exact.num_gpus <= found.num_gpus <= greedy.num_gpus


@pytest.mark.parametrize("module", [solvers.tree, solvers.genetic])
def test_a_search_ends_at_its_time_limit(module, monkeypatch):
    candidates = Candidates(many(6))
    first = solvers.greedy.complete(candidates, [])
    ticks = itertools.count()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(ticks)))
    found = module.search(candidates, first, seed=1, time_limit_s=5)
    assert len(found) <= len(first) and next(ticks) == 6  # once before, then in each round


@pytest.mark.sampled(1)
@pytest.mark.parametrize("method", ["tree", "genetic"])
def test_a_search_makes_small_what_it_is_told(method):
    """Not only the number of GPUs: here also how much of a service is lost with one of them."""
    stated = many(6)

    def cost(gpus):
        return 1000 * len(gpus) + sum(each.services.count(service) ** 2 for each in gpus for service in range(6))

    candidates = Candidates(stated)
    first = solvers.greedy.complete(candidates, [])
    search = {"tree": solvers.tree.search, "genetic": solvers.genetic.search}[method]
    found = search(candidates, first, seed=1, time_limit_s=20, rounds=40, cost=cost)
    assert cost(found) < cost(first)
    assert not solvers.greedy.Selection(candidates, found).lack.any()
    again = search(candidates, first, seed=1, time_limit_s=20, rounds=40, cost=cost)
    assert again == found


def test_a_search_ends_at_the_bound():
    stated = many(3)
    exact = solvers.solve(stated, solvers.EXACT, time_limit_s=20)
    found = solvers.solve(stated, solvers.GENETIC, time_limit_s=30, bound=exact.bound + 3)
    assert found.seconds < 10 and found.status == "optimal"


def test_where_the_solver_finds_nothing_in_time_the_greedy_plan_is_held_against_a_linear_programme(monkeypatch):
    stated = many(4)
    proved = solvers.solve(stated, solvers.EXACT, time_limit_s=20)
    monkeypatch.setattr(Programme, "solve", lambda *_, **__: Counts(None, None, "unknown"))
    found = solvers.solve(stated, solvers.EXACT, time_limit_s=20)
    greedy = solvers.solve(stated, solvers.GREEDY, time_limit_s=20)
    assert found.gpus == greedy.gpus
    assert proved.num_gpus - 1 <= found.bound <= proved.num_gpus
    assert found.gap == (found.num_gpus - found.bound) / found.num_gpus


def test_a_plan_near_that_of_the_linear_programme_stands_in_where_the_time_is_short(monkeypatch):
    stated = many(20)
    proved = solvers.solve(stated, solvers.EXACT, time_limit_s=20)
    solve, calls = Programme.solve, []

    def late(*arguments, **options):
        calls.append(arguments)
        return Counts(None, None, "unknown") if len(calls) == 1 else solve(*arguments, **options)

    monkeypatch.setattr(Programme, "solve", late)
    found = solvers.solve(stated, solvers.EXACT, time_limit_s=20)
    assert found.bound <= proved.num_gpus <= found.num_gpus <= proved.num_gpus + 1
    assert all(share > 1 - 1e-9 for share in solution.shares(stated, found.gpus))
