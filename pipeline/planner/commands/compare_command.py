"""`python -m pipeline.planner compare`: the GPUs that each method needs, also for whole GPUs and smallest instances."""

from __future__ import annotations

import argparse
import math
from dataclasses import replace
from typing import Any

from pipeline.base.system.command_parser import CommandAnswer
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.words import align_table
from pipeline.planner.commands.serve_command import answer_without_plan
from pipeline.planner.profile_table import list_marks
from pipeline.planner.serving import planning_input, solvers
from pipeline.planner.serving.problem import Problem
from pipeline.planner.serving.solution import Solution

# Time limit of each method; tree search and genetic algorithm use the full time.
_TIME_LIMIT_S = 10.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the demand and the loads."""
    planning_input.add_arguments(parser, time_limit_s=_TIME_LIMIT_S)
    parser.add_argument(
        "--load",
        type=float,
        action="append",
        metavar="FACTOR",
        help="multiply the rates by FACTOR (default 1); may be repeated",
    )


def answer(arguments: argparse.Namespace) -> CommandAnswer:
    """Return one row per method and load, or only the reasons if no plan exists."""
    problem, profile = planning_input.read(arguments)
    by_load, texts = [], []
    for load in arguments.load or [1.0]:
        if not 0 < load < math.inf:
            raise ConfigError(f"--load {load:g}: must be above 0 and finite; write 2 for twice the rates")
    for load in arguments.load or [1.0]:
        services = tuple(replace(service, rate_per_s=service.rate_per_s * load) for service in problem.services)
        scaled = replace(problem, services=services)
        best = solvers.solve(scaled, solvers.EXACT, time_limit_s=arguments.time_limit_s, fewest_slices=False)
        if best.status == "infeasible":
            return answer_without_plan(scaled, best, arguments.time_limit_s, profile)
        rows = _rows(scaled, best, arguments)
        by_load.append({"load": load, "bound": best.bound, "methods": rows})
        texts.append((f"{load:g} times the rates\n" if arguments.load else "") + _table(rows))
    note = list_marks(is_simulated=profile.is_simulated)
    data = by_load[0] | {"loads": by_load, "is_simulated": profile.is_simulated}
    return CommandAnswer(data=data, text="\n\n".join([*note, *texts]))


def _rows(problem: Problem, best: Solution, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    rows = [_row(solvers.EXACT, best)]
    for method in solvers.METHODS:
        if method != solvers.EXACT:
            solution = solvers.solve(
                problem,
                method,
                seed=arguments.seed,
                time_limit_s=arguments.time_limit_s,
                bound=best.bound,
                fewest_slices=False,
            )
            rows.append(_row(method, solution))
    for name, restricted in restrict_partitions(problem):
        solution = solvers.solve(restricted, solvers.EXACT, time_limit_s=arguments.time_limit_s, fewest_slices=False)
        rows.append(_row(name, solution))
    return rows


def restrict_partitions(problem: Problem) -> list[tuple[str, Problem]]:
    """Restrict a problem to whole GPUs, and to the partition with the most instances, if the profile has rows."""
    undivided, smallest = [], []
    for number, model in enumerate(problem.models):
        of_model = [partition for partition in problem.partitions if partition.model == number]
        for partition in of_model:
            kind = problem.kinds[partition.slots[0]]
            if kind.mig_profile is None or (model.mig and kind.mig_profile.compute_slices == model.mig.compute_slices):
                undivided.append(partition)
        smallest += [
            partition for partition in of_model if len(partition.slots) == max(len(other.slots) for other in of_model)
        ][:1]
    choices = [("whole GPUs", undivided)] if undivided else []
    if smallest != undivided:
        names = [
            " + ".join(
                f"{count}x {problem.kinds[kind].profile or 'undivided'}" for kind, count in partition.counts.items()
            )
            for partition in smallest
        ]
        choices.append((", ".join(names), smallest))
    return [(name, problem.with_partitions(chosen)) for name, chosen in choices]


def _row(method: str, solution: Solution) -> dict[str, Any]:
    return {
        "method": method,
        "num_gpus": solution.num_gpus or None,
        "bound": solution.bound,
        "gap": solution.gap,
        "status": solution.status,
        "seconds": round(solution.seconds, 3),
    }


def _table(rows: list[dict[str, Any]]) -> str:
    lines = [["method", "GPUs", "at least", "gap", "seconds"]]
    for row in rows:
        gap = "-" if row["gap"] is None else f"{row['gap']:.1%}"
        counts = ["-" if row[key] is None else str(row[key]) for key in ("num_gpus", "bound")]
        lines.append([row["method"], *counts, gap, f"{row['seconds']:.2f}"])
    return "\n".join(align_table(lines))
