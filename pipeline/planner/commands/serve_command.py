"""`python -m pipeline.planner serve`: the fewest GPUs that serve given rates within latency objectives."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from pipeline.base.system.command_parser import CommandAnswer
from pipeline.base.system.words import align_table, format_count
from pipeline.planner import deployment, input_files
from pipeline.planner.deployment import Instance, Plan
from pipeline.planner.profile_table import Profile, list_marks
from pipeline.planner.serving import change as changes
from pipeline.planner.serving import planning_input, slices, solution_plan, solvers
from pipeline.planner.serving.problem import Problem
from pipeline.planner.serving.solution import Solution, judge

# Least time for finding the plan with the fewest changes.
_CHANGE_S = 5.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the demand, the method, today's plan and the path of the plan."""
    planning_input.add_arguments(parser)
    parser.add_argument(
        "--method", choices=list(solvers.METHODS), default=solvers.EXACT, help=f"solver (default {solvers.EXACT})"
    )
    parser.add_argument(
        "--from",
        dest="today",
        type=Path,
        metavar="FILE",
        help="today's plan: among the plans with the fewest GPUs, choose the fewest changes from today's plan",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="the plan to write, in JSON")


def answer(arguments: argparse.Namespace) -> CommandAnswer:
    """Return the plan, or the reasons why no plan exists."""
    if arguments.out is not None:
        input_files.check_folder(arguments.out)
    problem, profile = planning_input.read(arguments)
    today = None if arguments.today is None else deployment.read(arguments.today).deployment
    solution = solvers.solve(
        problem,
        arguments.method,
        seed=arguments.seed,
        time_limit_s=arguments.time_limit_s,
        fewest_slices=today is None,  # with --from, the fewest changes come first
    )
    if not solution.gpus:
        return answer_without_plan(problem, solution, arguments.time_limit_s, profile)
    details = {
        "method": arguments.method,
        "seconds": round(solution.seconds, 3),
        "margin": arguments.margin,
        "profile": profile.source,
        "has_fewest_slices": solution.has_fewest_slices,
    }
    changed = None
    if today is not None:
        left_s = max(arguments.time_limit_s - solution.seconds, _CHANGE_S)
        change = changes.find_least_change(problem, solution.gpus, today, time_limit_s=left_s)
        solution, changed = judge(change.gpus, solution.bound, solution.seconds), change.deployment
        details["has_fewest_slices"] = change.has_fewest_slices
        details["changes"] = {
            "from": str(arguments.today),
            "num_kept": change.num_kept,
            "num_created": change.num_created,
            "num_removed": change.num_removed,
            "at_least": change.at_least,
            "is_least": change.is_least,
        }
    compute, memory = slices.count_slices(problem, solution.gpus)
    details |= {"num_compute_slices": compute, "num_memory_slices": memory}
    plan = solution_plan.build_plan(problem, solution, profile, details, changed)
    if arguments.out is not None:
        deployment.write(plan, arguments.out)
    written = f"\nplan: {arguments.out}" if arguments.out is not None else ""
    return CommandAnswer(data=deployment.to_json(plan), text=describe_plan(plan) + written)


def answer_without_plan(problem: Problem, solution: Solution, time_limit_s: float, profile: Profile) -> CommandAnswer:
    """Return the reasons why no plan exists."""
    reasons = solution_plan.explain_infeasibility(problem, solution, time_limit_s)
    data: dict[str, Any] = {
        "version": deployment.VERSION,
        "status": solution.status,
        "num_gpus": None,
        "bound": solution.bound,
        "gap": None,
        "is_simulated": profile.is_simulated,
        "gpus": [],
        "reasons": [reason for reason, _ in reasons],
        "unmet": [facts for _, facts in reasons if facts],
    }
    text = "\n".join([*(f"no plan: {reason}" for reason, _ in reasons), *list_marks(is_simulated=profile.is_simulated)])
    return CommandAnswer(data=data, text=text, status=1)


def describe_plan(plan: Plan) -> str:
    """Describe a plan: the proved bounds, the GPUs, and the slack of each service."""
    num_gpus = len(plan.deployment.gpus)
    if plan.status == "optimal":
        proved = "proved, no plan has fewer"
    elif plan.bound is None:
        proved = "no lower bound is known"
    else:
        proved = f"at least {plan.bound:g} are needed (gap {plan.gap:.1%})"
    head = f"{format_count(num_gpus, 'GPU')}: {proved}"
    if change := plan.details.get("changes"):
        proved = "" if change["at_least"] is None else f": at least {change['at_least']} changes are needed"
        if change["is_least"]:
            proved = ": proved, no plan with as few GPUs has fewer changes"
        head += (
            f"\nfrom {change['from']}: {format_count(change['num_kept'], 'instance')} kept, "
            f"{change['num_created']} created, {change['num_removed']} removed{proved}"
        )
    gpus = [["GPU", "model", "services"]]
    for number, gpu in enumerate(plan.deployment.gpus):
        gpus.append([str(number), gpu.model, ", ".join(_instance(instance) for instance in gpu.instances)])
    services = [["service", "rate/s", "planned/s", "slack", "latency ms", "limit ms", "slack", "instances"]]
    for row in plan.details["services"]:
        services.append(
            [
                row["service"],
                f"{row['rate_per_s']:g}",
                f"{row['planned_throughput_per_s']:.6g}",
                f"{row['rate_slack_ratio']:.1%}",
                f"{row['latency_ms']:.4g} ({row['latency_is']})",
                f"{row['admitted_below_ms']:.4g}",
                f"{row['latency_slack_ratio']:.1%}",
                str(row["num_instances"]),
            ]
        )
    note = list_marks(is_simulated=plan.is_simulated)
    return "\n".join([head, *note, "", *align_table(gpus, left_columns=(0, 1, 2)), "", *align_table(services)])


def _instance(instance: Instance) -> str:
    place = "undivided" if instance.profile is None else f"{instance.profile}@{instance.start}"
    batch = "" if instance.batch is None else f" batch {instance.batch}"
    return f"{place} {instance.service} {instance.processes}x{batch}"
