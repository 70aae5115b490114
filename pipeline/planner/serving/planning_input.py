"""The command line of planning: demand, profiles, GPU models, margin and solver."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

from pipeline.base.domain import mig_table
from pipeline.base.system.errors import ConfigError
from pipeline.planner import profile_table
from pipeline.planner.profile_table import Profile
from pipeline.planner.serving import demand, problem
from pipeline.planner.serving.problem import INTERVAL, NONE, Model, Problem
from pipeline.prepare.mig import profiles

# With this limit, a plan for a thousand services takes less than a minute, including reading and writing.
TIME_LIMIT_S = 40.0


def add_arguments(parser: argparse.ArgumentParser, time_limit_s: float = TIME_LIMIT_S) -> None:
    """Add demand, GPUs, margin, and the arguments of `add_solver_arguments`."""
    parser.add_argument("services", type=Path, help="the services with rates and objectives, in YAML")
    parser.add_argument(
        "--gpu",
        action="append",
        metavar="GPU",
        help=f"model (such as {profiles.SIMULATED}a100_80gb), or index or UUID of a GPU (default: the profile's "
        "models); may be repeated",
    )
    parser.add_argument(
        "--margin",
        default=NONE,
        metavar=f"{INTERVAL}|{NONE}|SHARE",
        help="plan with the low end of the measured interval, or reduce the throughput by a share such as 0.1",
    )
    add_solver_arguments(parser, time_limit_s)


def add_solver_arguments(parser: argparse.ArgumentParser, time_limit_s: float) -> None:
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


def check_time_limit(time_limit_s: float) -> None:
    """Raise ConfigError if a time limit is not above 0 and finite."""
    if not 0 < time_limit_s < math.inf:
        raise ConfigError(f"--time-limit-s {time_limit_s:g}: must be above 0 and finite; write 60 for a minute")


def read(arguments: argparse.Namespace) -> tuple[Problem, Profile]:
    """Return the problem and profile of a command line; ConfigError if either is invalid."""
    margin = check_margin(arguments.margin)
    check_time_limit(arguments.time_limit_s)
    stated = demand.read(arguments.services)
    table = profile_table.read(arguments.profile)
    models = find_models(arguments.gpu or table.gpu_models, table, stated.limits, arguments.driver_branch)
    return problem.build(stated, table, models, margin), table


def check_margin(margin: str) -> str:
    """Return the margin; ConfigError if `problem.build` does not support it."""
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


def find_models(
    selectors: Sequence[str], table: Profile, limits: demand.Limits, driver_branch: int | None
) -> list[Model]:
    """Find GPU models by name, by the name in the profile, or by index or UUID of a GPU."""
    if driver_branch is not None and driver_branch < 1:
        raise ConfigError(f"--driver-branch {driver_branch}: must be above 0; write 470 for driver 470.82.01")
    models: list[Model] = []
    for selector in selectors:
        name, mig = _find(selector, table, driver_branch)
        if name in [model.name for model in models]:
            raise ConfigError(f"--gpu {selector}: model {name} is named twice; name it once")
        models.append(Model(name=name, mig=mig, limit=limits.gpus.get(name)))
    return models


def _find(selector: str, table: Profile, driver_branch: int | None) -> tuple[str, profiles.MigGpu | None]:
    name = mig_table.find_model_name(selector)
    if selector.startswith(profiles.SIMULATED) or name in mig_table.models():
        return mig_table.find(name).name, profiles.load_model(name, driver_branch)
    if name in table.gpu_models:
        return name, None
    device, mig = profiles.look_up(selector)
    return mig_table.find_model_name(device), mig
