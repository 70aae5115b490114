"""`python -m pipeline.planner train`: a schedule of training jobs."""

from __future__ import annotations

import argparse
import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pipeline.base.domain import sharing_modes
from pipeline.base.system import json_decoder
from pipeline.base.system.command_parser import CommandAnswer
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.words import align_table, format_count
from pipeline.planner import input_files, profile_table
from pipeline.planner.profile_table import Profile, list_marks
from pipeline.planner.serving import planning_input
from pipeline.planner.serving.demand import Limits
from pipeline.planner.training import schedule, training_plan
from pipeline.planner.training import training_jobs as training
from pipeline.planner.training.schedule import Schedule
from pipeline.planner.training.training_jobs import Objective, Problem
from pipeline.planner.training.training_plan import PlannedGpu, PlannedJob

_NAMES = {"makespan": "makespan", "completion": "mean completion", "energy": "energy"}
_UNITS = {"makespan": "s", "completion": "s", "energy": "J"}
_TIME_LIMIT_S = 20.0
_PROVED = 1e-4
"""The gap below which a plan counts as proved."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add jobs, profile, GPUs and objective."""
    parser.add_argument("jobs", type=Path, help="the training jobs, in YAML")
    parser.add_argument("--gpu", metavar="GPU", help="model, index or UUID of a GPU (default: the profile's model)")
    parser.add_argument("--gpus", type=int, metavar="N", help="number of GPUs (default: gpus of the file)")
    parser.add_argument("--objective", choices=list(_UNITS), default="makespan", help="quantity to minimise (makespan)")
    parser.add_argument("--modes", metavar="LIST", help="sharing modes besides serial (default: modes of the profile)")
    parser.add_argument("--measured-only", action="store_true", help="use measured speeds only, no predictions")
    planning_input.add_solver_arguments(parser, _TIME_LIMIT_S)
    parser.add_argument("--out", type=Path, metavar="FILE", help="the plan to write, in JSON")


def answer(arguments: argparse.Namespace) -> CommandAnswer:
    """Return the plan, or the reason why no plan exists."""
    planning_input.check_time_limit(arguments.time_limit_s)
    table = profile_table.read(arguments.profile)
    allowed = _choose_modes(arguments.modes, table)
    selectors = [arguments.gpu] if arguments.gpu else list(table.gpu_models)
    if len(selectors) != 1:
        raise ConfigError(
            f"{table.source}: has rows of several GPU models ({', '.join(selectors)}); choose one model with --gpu"
        )
    (model,) = planning_input.find_models(selectors, table, Limits(), arguments.driver_branch)
    problem, objective = training.read(arguments.jobs, arguments.gpus, model, table), arguments.objective
    best, reason = _solve(problem, arguments, allowed, arguments.time_limit_s)
    note = list_marks(is_simulated=table.is_simulated)
    if best is None:
        infeasible = {
            "version": training_plan.VERSION,
            "status": "infeasible",
            "reasons": [reason],
            "is_simulated": table.is_simulated,
        }
        return CommandAnswer(data=infeasible, text="\n".join([f"no plan: {reason}", *note]), status=1)
    by_mode: dict[str, float] = {}
    for mode in allowed:
        alone, _ = _solve(problem, arguments, [sharing_modes.SERIAL.name, mode], arguments.time_limit_s / 10)
        if alone is not None and (cost := alone.cost(objective)) is not None:
            by_mode[mode] = cost
            if cost < (best.cost(objective) or math.inf):
                best = replace(alone, bound=best.bound)
    gpus = [training_plan.plan_gpu(problem, groups) for groups in best.gpus]
    gap = _gap(best, objective)
    data = {
        "version": training_plan.VERSION,
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
    lines = [*note, *_describe(problem, best, gpus, objective, by_mode)]
    if arguments.modes is None and (unused := [mode for mode in training.MODES if mode not in allowed]):
        lines.append(f"not in the profile, not considered: {', '.join(unused)}; --modes adds them with predictions")
    return CommandAnswer(data=data, text="\n".join(lines))


def _choose_modes(text: str | None, table: Profile) -> list[str]:
    """Return the modes of --modes, else the measured modes, because predicted modes gain a few per cent at most."""
    if text is None:
        measured = {row.sharing_mode for row in table.rows}
        return [mode for mode in training.MODES if mode == sharing_modes.SERIAL.name or mode in measured]
    names = [name.strip() for name in text.split(",") if name.strip()]
    if unknown := [name for name in names if name not in training.MODES]:
        raise ConfigError(f"--modes: unknown mode {unknown[0]}; choose among {', '.join(training.MODES)}")
    return list(dict.fromkeys([sharing_modes.SERIAL.name, *names]))


def _solve(
    problem: Problem, arguments: argparse.Namespace, allowed: Sequence[str], time_limit_s: float
) -> tuple[Schedule | None, str]:
    groups = training.find_cheapest(problem, arguments.objective, allowed, is_measured_only=arguments.measured_only)
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


def _describe(
    problem: Problem, best: Schedule, gpus: Sequence[PlannedGpu], objective: Objective, by_mode: Mapping[str, float]
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


def _describe_errors(problem: Problem) -> list[str]:
    return [
        "~: predicted; the error is unknown for different jobs that share an instance or GPU",
        *(
            f"prediction error in {mode}: median {errors['median']:.1%}, "
            f"at most {errors['max']:.1%} ({format_count(int(errors['num_cells']), 'cell')})"
            for mode, errors in _summarise_errors(problem).items()
        ),
    ]


def _summarise_errors(problem: Problem) -> dict[str, dict[str, float]]:
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
