"""`python -m pipeline.planner train`: which training jobs run together, how and in which order."""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.base.domain import modes
from pipeline.base.domain.answer import Answer
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.words import aligned, counted
from pipeline.planner import files, profile
from pipeline.planner.profile import Profile, marks
from pipeline.planner.serving import asked
from pipeline.planner.serving.services import Limits
from pipeline.planner.training import as_plan, schedule
from pipeline.planner.training import jobs as training
from pipeline.planner.training.jobs import Group, Problem, Run
from pipeline.planner.training.schedule import Schedule

_UNITS = {"makespan": "s", "completion": "s", "energy": "J"}
_TIME_LIMIT_S = 20.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Jobs, profile, GPUs and objective."""
    parser.add_argument("jobs", type=Path, help="what is to be trained, in YAML")
    parser.add_argument(
        "--profile", type=Path, action="append", required=True, metavar="FILE", help="may be given again"
    )
    parser.add_argument(
        "--gpu", metavar="GPU", help="model, or index or UUID of a GPU; that of the profile if not given"
    )
    parser.add_argument("--gpus", type=int, metavar="N", help="how many there are, instead of what the file says")
    parser.add_argument("--driver-branch", type=int, metavar="N", help="of the model's driver; a current one")
    parser.add_argument("--objective", choices=list(_UNITS), default="makespan", help="what is to be small; makespan")
    parser.add_argument(
        "--modes", metavar="LIST", help="that may be used, besides serial; those of which the profile has something"
    )
    parser.add_argument("--measured-only", action="store_true", help="use no speed that was not measured as such")
    parser.add_argument("--seed", type=int, default=0, help="of the search for the mean completion; 0")
    parser.add_argument(
        "--time-limit-s", type=float, default=_TIME_LIMIT_S, metavar="S", help=f"of the solver; {_TIME_LIMIT_S:g}"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="the plan to write, in JSON")


def answer(arguments: argparse.Namespace) -> Answer:
    """The plan, or which job makes that there is none."""
    if not arguments.time_limit_s > 0:
        raise ConfigError(f"--time-limit-s {arguments.time_limit_s:g}: must be above 0")
    table = profile.read(arguments.profile)
    allowed = _modes(arguments.modes, table)
    selectors = [arguments.gpu] if arguments.gpu else list(table.gpu_models)
    if len(selectors) != 1:
        raise ConfigError(f"{table.source}: it has rows of {', '.join(selectors)}; choose one with --gpu")
    (model,) = asked.find_models(selectors, table, Limits(), arguments.driver_branch)
    problem = training.read(arguments.jobs, arguments.gpus, model, table)
    found, why = _solved(problem, arguments, allowed, arguments.time_limit_s)
    note = marks(is_simulated=table.is_simulated)
    if found is None:
        infeasible = {
            "version": as_plan.VERSION,
            "status": "infeasible",
            "reasons": [why],
            "is_simulated": table.is_simulated,
        }
        return Answer(data=infeasible, text="\n".join([f"no plan: {why}", *note]), status=1)
    brief_s = arguments.time_limit_s / 10  # of what the plan is compared with
    others: dict[str, float] = {}
    for mode in allowed:
        alone, _ = _solved(problem, arguments, list(dict.fromkeys([modes.SERIAL.name, mode])), brief_s)
        if alone is not None and (value := alone.value(arguments.objective)) is not None:
            others[mode] = value
            found = min(found, replace(alone, bound=found.bound), key=partial(_value, arguments.objective))
    data = _data(problem, found, arguments.objective, others)
    data |= {"profile_digest": table.digest, "is_simulated": table.is_simulated}
    if arguments.out is not None:
        files.write_json(arguments.out, data)
    text = "\n".join([*note, in_words(problem, found, arguments.objective, others)])
    if arguments.modes is None and (left := [mode for mode in training.MODES if mode not in allowed]):
        text += f"\nnothing was measured under {', '.join(left)}, so none is planned; --modes adds what is predicted"
    return Answer(data=data, text=text)


def _value(objective: training.Objective, found: Schedule) -> float:
    value = found.value(objective)
    return math.inf if value is None else value


def _modes(text: str | None, table: Profile) -> list[str]:
    """What may be used; a mode of which nothing was measured is not worth the few per cent that it is predicted."""
    if text is None:
        measured = {row.sharing_mode for row in table.rows}
        return [mode for mode in training.MODES if mode == modes.SERIAL.name or mode in measured]
    names = [name.strip() for name in text.split(",") if name.strip()]
    if unknown := [name for name in names if name not in training.MODES]:
        raise ConfigError(f"--modes: there is no mode {unknown[0]}; there are {', '.join(training.MODES)}")
    return list(dict.fromkeys([modes.SERIAL.name, *names]))


def _solved(
    problem: Problem, arguments: argparse.Namespace, allowed: Sequence[str], time_limit_s: float
) -> tuple[Schedule | None, str]:
    """The best schedule with some modes, or why there is none."""
    groups = training.cheapest(problem, arguments.objective, allowed, is_measured_only=arguments.measured_only)
    for kind, job in enumerate(problem.jobs):
        if not any(composition[kind] for composition in groups):
            workload, batch = problem.programs[kind]
            if arguments.objective == "energy":
                return (
                    None,
                    f"{job.name}: the profile has no energy of {workload} at batch {batch} on {problem.model.name}",
                )
            return None, f"{job.name}: it does not fit into the {problem.memory_mib:g} MiB of {problem.model.name}"
    found = schedule.solve(problem, groups, arguments.objective, seed=arguments.seed, time_limit_s=time_limit_s)
    return found, f"none was found within {arguments.time_limit_s:g} s; give more time with --time-limit-s"


def _gap(found: Schedule, objective: training.Objective) -> float | None:
    value = found.value(objective)
    if found.bound is None or not value:
        return None
    return max(0.0, (value - found.bound) / value)


def in_words(problem: Problem, found: Schedule, objective: training.Objective, others: dict[str, float]) -> str:
    """The plan for people; a `~` stands before every figure that was predicted."""
    gap, unit = _gap(found, objective), _UNITS[objective]
    names = {"makespan": "makespan", "completion": "mean completion", "energy": "energy"}
    proved = "a search, nothing proved" if gap is None else "proved" if gap < 1e-4 else f"gap {gap:.1%}"
    value = found.value(objective)
    is_predicted = any(run.is_predicted for gpu in found.gpus for group in gpu for run in group.runs)
    mark = "~" if is_predicted else ""
    on = f"on {counted(problem.num_gpus, 'GPU')} ({proved}), start-up not counted"
    head = f"{names[objective]} {mark}{value:.6g} {unit} {on}"
    lines = [["GPU", "from s", "to s", "mode", "jobs"]]
    for number, gpu in enumerate(found.gpus):
        start_s = 0.0
        for group in gpu:
            end_s = start_s + group.duration_s
            about = "~" if any(run.is_predicted for run in group.runs) else ""
            lines.append([str(number), f"{start_s:.6g}", f"{about}{end_s:.6g}", group.mode, _jobs(problem, group)])
            start_s = end_s
    compared = [f"{mode} {value:.6g}" for mode, value in others.items()]
    said = [
        head,
        "",
        *aligned(lines, left=(0, 3, 4)),
        "",
        f"{names[objective]} in {unit} with one mode beside serial: {', '.join(compared)}",
    ]
    return "\n".join([*said, *_of_predictions(problem, is_predicted=is_predicted)])


def _of_predictions(problem: Problem, *, is_predicted: bool) -> list[str]:
    """How far predictions are off, by mode."""
    if not is_predicted:
        return ["every figure was measured as such"]
    said = ["~: predicted; mixes of different jobs that share a place were not measured, and their error is not known"]
    for mode, errors in _errors(problem).items():
        said.append(
            f"predicting a measured cell of {mode} from the others is {errors['median']:.1%} off in the median, "
            f"{errors['max']:.1%} at most ({counted(int(errors['num_cells']), 'cell')})"
        )
    return said


def _errors(problem: Problem) -> dict[str, dict[str, float]]:
    found: dict[str, list[float]] = {}
    for each in problem.speeds.left_out:
        found.setdefault(each.row.sharing_mode, []).append(each.error_ratio)
    return {
        mode: {"median": statistics.median(errors), "max": max(errors), "num_cells": len(errors)}
        for mode, errors in sorted(found.items())
    }


def _jobs(problem: Problem, group: Group) -> str:
    return ", ".join(_job(problem, run) for run in group.runs)


def _job(problem: Problem, run: Run) -> str:
    where = run.place.instance_profile or (f"{run.place.share_percent:g} %" if run.place.share_percent else "")
    instance = "" if run.instance is None else f"#{run.instance}"
    rate = f"{'~' if run.is_predicted else ''}{run.rate_per_s:.4g}/s"
    error = f" ±{run.error_ratio:.0%}" if run.error_ratio is not None else ""
    return " ".join(filter(None, [problem.jobs[run.kind].name, f"{where}{instance}", f"({rate}{error})"]))


def _data(problem: Problem, found: Schedule, objective: training.Objective, others: dict[str, float]) -> dict[str, Any]:
    gap = _gap(found, objective)
    gpus = []
    for gpu in found.gpus:
        start_s, groups = 0.0, []
        for group in gpu:
            groups.append(_group(problem, group, start_s))
            start_s += group.duration_s
        gpus.append({"model": problem.model.name, "groups": groups})
    return {
        "version": as_plan.VERSION,
        "objective": objective,
        "status": "optimal" if gap is not None and gap < 1e-4 else "feasible",
        "bound": found.bound,
        "gap": gap,
        "num_gpus": problem.num_gpus,
        "makespan_s": found.makespan_s,
        "mean_completion_s": found.mean_completion_s,
        "energy_j": found.energy_j,
        "with_one_mode_beside_serial": others,
        "prediction_error_ratio": _errors(problem),
        "gpus": gpus,
    }


def _group(problem: Problem, group: Group, start_s: float) -> dict[str, Any]:
    return {
        "start_s": start_s,
        "end_s": start_s + group.duration_s,
        "mode": group.mode,
        "instances": list(group.instances),
        "jobs": [
            {
                "name": problem.jobs[run.kind].name,
                "workload": problem.programs[run.kind][0],
                "batch": problem.programs[run.kind][1],
                "instance": run.instance,
                "instance_profile": run.place.instance_profile,
                "share_percent": run.place.share_percent,
                "end_s": start_s + run.end_s,
                "rate_per_s": run.rate_per_s,
                "is_predicted": run.is_predicted,
                "error_ratio": run.error_ratio,
            }
            for run in group.runs
        ],
    }
