"""Choices of the configuration groups: the files of `conf/`, and a simulated GPU for each model with MIG profiles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipeline.base.domain import mig_table
from pipeline.base.system.paths import config_folders


def list_choices(group: str, arguments: Sequence[str] | None = None) -> list[str]:
    """Return the sorted choices of a group, also of `config_folders(arguments)`; empty if it is not a group."""
    choices = {path.stem for folder in config_folders(arguments) for path in (folder / group).glob("*.yaml")}
    return sorted(choices | (make_simulated_gpus().keys() if group == "gpu" else set()))


def make_simulated_gpus() -> dict[str, dict[str, Any]]:
    """Return the settings of each choice `gpu=simulated_MODEL`, which needs no hardware; jobs train on the CPU."""
    settings = {"kind": "simulated", "idle_power_s": 0, "waiting_power_s": 0}  # a simulated GPU has no power sensor
    return {f"{mig_table.SIMULATED}{name}": settings | {"model": name} for name in mig_table.models()}
