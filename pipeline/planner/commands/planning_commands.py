"""The commands that plan: `serve` and `compare` find the fewest GPUs for services, `train` a schedule of jobs."""

from __future__ import annotations

import argparse
import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.base.domain import mig_table, sharing_modes
from pipeline.base.system import json_decoder
from pipeline.base.system.command_parser import CommandAnswer
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.words import align_table, format_count
from pipeline.planner import deployment, input_files, profile_table
from pipeline.planner.deployment import Instance, Plan
from pipeline.planner.profile_table import Profile, list_marks
from pipeline.planner.serving import solvers
from pipeline.planner.serving.change import find_least_change
from pipeline.planner.serving.problem import INTERVAL, NONE, Limits, Model, Problem, build_problem, read_demand
from pipeline.planner.serving.solution import Solution, build_plan, judge
from pipeline.planner.training import schedule, training_jobs
from pipeline.planner.training.schedule import PlannedGpu, PlannedJob, Schedule
from pipeline.planner.training.training_jobs import Objective, TrainingProblem
from pipeline.prepare.mig import profiles

# With this limit, a plan for a thousand services takes less than a minute, including reading and writing.
_SERVE_LIMIT_S = 40.0
# Least time for finding the plan with the fewest changes.
_CHANGE_S = 5.0
# Time limit of each method; tree search and genetic algorithm use the full time.
_METHOD_LIMIT_S = 10.0
_NAMES = {"makespan": "makespan", "completion": "mean completion", "energy": "energy"}
_UNITS = {"makespan": "s", "completion": "s", "energy": "J"}
_TRAIN_LIMIT_S = 20.0
_PROVED = 1e-4
"""The gap below which a plan counts as proved."""


def _add_demand_arguments(parser: argparse.ArgumentParser, time_limit_s: float = _SERVE_LIMIT_S) -> None:
    """Add demand, GPUs, margin, and the arguments of `_add_solver_arguments`."""
    parser.add_argument("services", type=Path, help="the services with rates and objectives, in YAML")
    parser.add_argument(
        "--gpu",
        action="append",
        metavar="GPU",
        help=f"model (such as {mig_table.SIMULATED}a100_80gb), or index or UUID of a GPU (default: the profile's "
        "models); may be repeated",
    )
    parser.add_argument(
        "--margin",
        default=NONE,
        metavar=f"{INTERVAL}|{NONE}|SHARE",
        help="plan with the low end of the measured interval, or reduce the throughput by a share such as 0.1",
    )
    _add_solver_arguments(parser, time_limit_s)


def _add_solver_arguments(parser: argparse.ArgumentParser, time_limit_s: float) -> None:
    """Add the profile, driver branch, seed and time limit."""
    parser.add_argument(
        "--profile", type=Path, action="append", required=True, metavar="FILE", help="profile; may be repeated"
    )
    parser.add_argument(
        "--driver-branch", type=int, metavar="N", help="driver branch of the models, such as 470 (default: current)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of searches (0)")
    parser.add_argument(
        "--time-limit-s",
        type=float,
        default=time_limit_s,
        metavar="S",
        help=f"time limit of a solver ({time_limit_s:g})",
    )


def _check_time_limit(time_limit_s: float) -> None:
    """Raise ConfigError if a time limit is not above 0 and finite."""
    if not 0 < time_limit_s < math.inf:
        raise ConfigError(f"--time-limit-s {time_limit_s:g}: must be above 0 and finite; write 60 for a minute")


def _read_problem(arguments: argparse.Namespace) -> tuple[Problem, Profile]:
    """Return the problem and profile of a command line; ConfigError if either is invalid."""
    margin = _check_margin(arguments.margin)
    _check_time_limit(arguments.time_limit_s)
    stated = read_demand(arguments.services)
    table = profile_table.read(arguments.profile)
    models = _find_models(arguments.gpu or table.gpu_models, table, stated.limits, arguments.driver_branch)
    return build_problem(stated, table, models, margin), table


def _check_margin(margin: str) -> str:
    """Return the margin; ConfigError if `build_problem` does not support it."""
    if margin in (INTERVAL, NONE):
        return margin
    try:
        is_share = 0 <= float(margin) < 1
    except ValueError:
        is_share = False
    if not is_share:
        raise ConfigError(
            f"--margin {margin}: must be {INTERVAL}, {NONE} or a share from 0 to below 1; write 0.1 for a tenth"
        )
    return margin


def _find_models(selectors: Sequence[str], table: Profile, limits: Limits, driver_branch: int | None) -> list[Model]:
    """Find GPU models by name, by the name in the profile, or by index or UUID of a GPU."""
    if driver_branch is not None and driver_branch < 1:
        raise ConfigError(f"--driver-branch {driver_branch}: must be above 0; write 470 for driver 470.82.01")
    models: list[Model] = []
    for selector in selectors:
        name, mig = _find_model(selector, table, driver_branch)
        if name in [model.name for model in models]:
            raise ConfigError(f"--gpu {selector}: model {name} is named twice; name it once")
        models.append(Model(name=name, mig=mig, limit=limits.gpus.get(name)))
    return models


def _find_model(selector: str, table: Profile, driver_branch: int | None) -> tuple[str, profiles.MigGpu | None]:
    name = mig_table.find_model_name(selector)
    if selector.startswith(mig_table.SIMULATED) or name in mig_table.models():
        return mig_table.find(name).name, profiles.load_model(name, driver_branch)
    if name in table.gpu_models:
        return name, None
    device, mig = profiles.look_up(selector)
    return mig_table.find_model_name(device), mig


def add_serve_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the demand, the method, today's plan and the path of the plan."""
    _add_demand_arguments(parser)
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


def answer_serve(arguments: argparse.Namespace) -> CommandAnswer:
    """Return the plan, or the reasons why no plan exists."""
    if arguments.out is not None:
        input_files.check_folder(arguments.out)
    problem, profile = _read_problem(arguments)
    today = None if arguments.today is None else deployment.read(arguments.today).deployment
    solution = solvers.solve(
        problem,
        arguments.method,
        seed=arguments.seed,
        time_limit_s=arguments.time_limit_s,
        fewest_slices=today is None,  # with --from, the fewest changes come first
    )
    if not solution.gpus:
        return _answer_without_plan(problem, solution, arguments.time_limit_s, profile)
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
        change = find_least_change(problem, solution.gpus, today, time_limit_s=left_s)
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
    compute, memory = solvers.count_slices(problem, solution.gpus)
    details |= {"num_compute_slices": compute, "num_memory_slices": memory}
    plan = build_plan(problem, solution, profile, details, changed)
    if arguments.out is not None:
        deployment.write(plan, arguments.out)
    written = f"\nplan: {arguments.out}" if arguments.out is not None else ""
    return CommandAnswer(data=deployment.to_json(plan), text=describe_plan(plan) + written)


def _answer_without_plan(problem: Problem, solution: Solution, time_limit_s: float, profile: Profile) -> CommandAnswer:
    """Return the reasons why no plan exists."""
    reasons = solvers.explain_infeasibility(problem, solution, time_limit_s)
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
        gpus.append([str(number), gpu.model, ", ".join(_describe_instance(instance) for instance in gpu.instances)])
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


def _describe_instance(instance: Instance) -> str:
    place = "undivided" if instance.profile is None else f"{instance.profile}@{instance.start}"
    batch = "" if instance.batch is None else f" batch {instance.batch}"
    return f"{place} {instance.service} {instance.processes}x{batch}"


def add_compare_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the demand and the loads."""
    _add_demand_arguments(parser, time_limit_s=_METHOD_LIMIT_S)
    parser.add_argument(
        "--load",
        type=float,
        action="append",
        metavar="FACTOR",
        help="multiply the rates by FACTOR (default 1); may be repeated",
    )


def answer_compare(arguments: argparse.Namespace) -> CommandAnswer:
    """Return one row per method and load, or only the reasons if no plan exists."""
    problem, profile = _read_problem(arguments)
    by_load, texts = [], []
    for load in arguments.load or [1.0]:
        if not 0 < load < math.inf:
            raise ConfigError(f"--load {load:g}: must be above 0 and finite; write 2 for twice the rates")
    for load in arguments.load or [1.0]:
        services = tuple(replace(service, rate_per_s=service.rate_per_s * load) for service in problem.services)
        scaled = replace(problem, services=services)
        best = solvers.solve(scaled, solvers.EXACT, time_limit_s=arguments.time_limit_s, fewest_slices=False)
        if best.status == "infeasible":
            return _answer_without_plan(scaled, best, arguments.time_limit_s, profile)
        rows = _compare_methods(scaled, best, arguments)
        by_load.append({"load": load, "bound": best.bound, "methods": rows})
        texts.append((f"{load:g} times the rates\n" if arguments.load else "") + _format_methods(rows))
    note = list_marks(is_simulated=profile.is_simulated)
    data = by_load[0] | {"loads": by_load, "is_simulated": profile.is_simulated}
    return CommandAnswer(data=data, text="\n\n".join([*note, *texts]))


def _compare_methods(problem: Problem, best: Solution, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    rows = [_make_method_row(solvers.EXACT, best)]
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
            rows.append(_make_method_row(method, solution))
    for name, restricted in restrict_partitions(problem):
        solution = solvers.solve(restricted, solvers.EXACT, time_limit_s=arguments.time_limit_s, fewest_slices=False)
        rows.append(_make_method_row(name, solution))
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
    return [(name, problem.with_partitions(partitions)) for name, partitions in choices]


def _make_method_row(method: str, solution: Solution) -> dict[str, Any]:
    return {
        "method": method,
        "num_gpus": solution.num_gpus or None,
        "bound": solution.bound,
        "gap": solution.gap,
        "status": solution.status,
        "seconds": round(solution.seconds, 3),
    }


def _format_methods(rows: list[dict[str, Any]]) -> str:
    lines = [["method", "GPUs", "at least", "gap", "seconds"]]
    for row in rows:
        gap = "-" if row["gap"] is None else f"{row['gap']:.1%}"
        counts = ["-" if row[key] is None else str(row[key]) for key in ("num_gpus", "bound")]
        lines.append([row["method"], *counts, gap, f"{row['seconds']:.2f}"])
    return "\n".join(align_table(lines))


def add_train_arguments(parser: argparse.ArgumentParser) -> None:
    """Add jobs, profile, GPUs and objective."""
    parser.add_argument("jobs", type=Path, help="the training jobs, in YAML")
    parser.add_argument("--gpu", metavar="GPU", help="model, index or UUID of a GPU (default: the profile's model)")
    parser.add_argument("--gpus", type=int, metavar="N", help="number of GPUs (default: gpus of the file)")
    parser.add_argument("--objective", choices=list(_UNITS), default="makespan", help="quantity to minimise (makespan)")
    parser.add_argument("--modes", metavar="LIST", help="sharing modes besides serial (default: modes of the profile)")
    parser.add_argument("--measured-only", action="store_true", help="use measured speeds only, no predictions")
    _add_solver_arguments(parser, _TRAIN_LIMIT_S)
    parser.add_argument("--out", type=Path, metavar="FILE", help="the plan to write, in JSON")


def answer_train(arguments: argparse.Namespace) -> CommandAnswer:
    """Return the plan, or the reason why no plan exists."""
    _check_time_limit(arguments.time_limit_s)
    table = profile_table.read(arguments.profile)
    allowed = _choose_modes(arguments.modes, table)
    selectors = [arguments.gpu] if arguments.gpu else list(table.gpu_models)
    if len(selectors) != 1:
        raise ConfigError(
            f"{table.source}: has rows of several GPU models ({', '.join(selectors)}); choose one model with --gpu"
        )
    (model,) = _find_models(selectors, table, Limits(), arguments.driver_branch)
    problem, objective = training_jobs.read(arguments.jobs, arguments.gpus, model, table), arguments.objective
    best, reason = _solve_training(problem, arguments, allowed, arguments.time_limit_s)
    note = list_marks(is_simulated=table.is_simulated)
    if best is None:
        infeasible = {
            "version": schedule.VERSION,
            "status": "infeasible",
            "reasons": [reason],
            "is_simulated": table.is_simulated,
        }
        return CommandAnswer(data=infeasible, text="\n".join([f"no plan: {reason}", *note]), status=1)
    by_mode: dict[str, float] = {}
    for mode in allowed:
        alone, _ = _solve_training(problem, arguments, [sharing_modes.SERIAL.name, mode], arguments.time_limit_s / 10)
        if alone is not None and (cost := alone.cost(objective)) is not None:
            by_mode[mode] = cost
            if cost < (best.cost(objective) or math.inf):
                best = replace(alone, bound=best.bound)
    gpus = [schedule.plan_gpu(problem, groups) for groups in best.gpus]
    gap = _gap(best, objective)
    data = {
        "version": schedule.VERSION,
        "objective": objective,
        "status": "optimal" if gap is not None and gap < _PROVED else "feasible",
        "bound": best.bound,
        "gap": gap,
        "num_gpus": problem.num_gpus,
        "makespan_s": best.makespan_s,
        "mean_completion_s": best.mean_completion_s,
        "energy_j": best.energy_j,
        "with_one_mode_beside_serial": by_mode,
        "prediction_error_ratio": _summarise_errors(problem),
        "gpus": json_decoder.encode(gpus),
        "profile_digest": table.digest,
        "is_simulated": table.is_simulated,
    }
    if arguments.out is not None:
        input_files.write_json(arguments.out, data)
    lines = [*note, *_describe_schedule(problem, best, gpus, objective, by_mode)]
    if arguments.modes is None and (unused := [mode for mode in training_jobs.MODES if mode not in allowed]):
        lines.append(f"not in the profile, not considered: {', '.join(unused)}; --modes adds them with predictions")
    return CommandAnswer(data=data, text="\n".join(lines))


def _choose_modes(text: str | None, table: Profile) -> list[str]:
    """Return the modes of --modes, else the measured modes, because predicted modes gain a few per cent at most.

    Different programs with loads were measured for MPS.
    """
    if text is None:
        measured = {row.sharing_mode for row in table.rows}
        if sum(row.pressure_ratio is not None for row in table.rows) > 1:
            measured.add(sharing_modes.MPS.name)
        return [mode for mode in training_jobs.MODES if mode == sharing_modes.SERIAL.name or mode in measured]
    names = [name.strip() for name in text.split(",") if name.strip()]
    if unknown := [name for name in names if name not in training_jobs.MODES]:
        raise ConfigError(f"--modes: unknown mode {unknown[0]}; choose among {', '.join(training_jobs.MODES)}")
    return list(dict.fromkeys([sharing_modes.SERIAL.name, *names]))


def _solve_training(
    problem: TrainingProblem, arguments: argparse.Namespace, allowed: Sequence[str], time_limit_s: float
) -> tuple[Schedule | None, str]:
    groups = training_jobs.find_cheapest(
        problem, arguments.objective, allowed, is_measured_only=arguments.measured_only
    )
    for kind, job in enumerate(problem.jobs):
        if not any(composition[kind] for composition in groups):
            workload, batch = problem.programs[kind]
            reason = f"does not fit into the {problem.memory_mib:g} MiB of {problem.model.name}"
            if arguments.objective == "energy":
                reason = f"the profile has no energy of {workload} at batch {batch} on {problem.model.name}"
                reason += "; choose another --objective"
            return None, f"{job.name}: {reason}"
    best = schedule.solve(problem, groups, arguments.objective, seed=arguments.seed, time_limit_s=time_limit_s)
    return best, f"the search ended after {arguments.time_limit_s:g} s without a plan; raise --time-limit-s"


def _gap(best: Schedule, objective: Objective) -> float | None:
    cost = best.cost(objective)
    return None if best.bound is None or not cost else max(0.0, (cost - best.bound) / cost)


def _describe_schedule(
    problem: TrainingProblem,
    best: Schedule,
    gpus: Sequence[PlannedGpu],
    objective: Objective,
    by_mode: Mapping[str, float],
) -> list[str]:
    """Describe the plan; a `~` marks every predicted figure."""
    gap, name, unit = _gap(best, objective), _NAMES[objective], _UNITS[objective]
    proved = "found by search, not proved" if gap is None else "proved" if gap < _PROVED else f"gap {gap:.1%}"
    is_predicted = any(group.is_predicted for gpu in gpus for group in gpu.groups)
    cost = best.cost(objective)
    assert cost is not None  # groups without the quantity of the objective are not planned
    lines = [["GPU", "from s", "to s", "mode", "jobs"]]
    for number, gpu in enumerate(gpus):
        for group in gpu.groups:
            end = f"{'~' if group.is_predicted else ''}{_round(group.end_s)}"
            jobs = ", ".join(map(_describe_job, group.jobs))
            lines.append([str(number), _round(group.start_s), end, group.mode, jobs])
    return [
        f"{name} {'~' if is_predicted else ''}{_round(cost)} {unit} on "
        f"{format_count(problem.num_gpus, 'GPU')} ({proved}), without start-up times",
        "",
        *align_table(lines, left_columns=(0, 3, 4)),
        "",
        f"{name} in {unit} with serial and one other mode: "
        f"{', '.join(f'{mode} {_round(other)}' for mode, other in by_mode.items())}",
        *(_describe_errors(problem) if is_predicted else ["all figures were measured, none predicted"]),
    ]


def _describe_errors(problem: TrainingProblem) -> list[str]:
    return [
        "~: predicted; the error is unknown for different jobs that share an instance or GPU",
        *(
            f"prediction error in {mode}: median {errors['median']:.1%}, "
            f"at most {errors['max']:.1%} ({format_count(int(errors['num_cells']), 'cell')})"
            for mode, errors in _summarise_errors(problem).items()
        ),
    ]


def _summarise_errors(problem: TrainingProblem) -> dict[str, dict[str, float]]:
    by_mode: dict[str, list[float]] = defaultdict(list)
    for prediction in problem.speeds.held_out:
        by_mode[prediction.row.sharing_mode].append(prediction.error_ratio)
    return {
        mode: {"median": statistics.median(errors), "max": max(errors), "num_cells": len(errors)}
        for mode, errors in sorted(by_mode.items())
    }


def _describe_job(job: PlannedJob) -> str:
    share = job.instance_profile or (f"{job.share_percent:g} %" if job.share_percent else "")
    instance = "" if job.instance is None else f"#{job.instance}"
    error = f" ±{job.error_ratio:.0%}" if job.error_ratio is not None else ""
    rate = f"({'~' if job.is_predicted else ''}{_round(job.rate_per_s)}/s{error})"
    return " ".join(filter(None, [job.name, f"{share}{instance}", rate]))


def _round(value: float) -> str:
    """Round to three significant digits, or to a whole number if the number is 100 or more."""
    return f"{value:.0f}" if abs(value) >= 99.95 else f"{value:.3g}"
