"""The command line of a worker: what the user typed, with what a launcher decides for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pipeline.base.domain import layout
from pipeline.base.domain.records import Device, Plan
from pipeline.base.system import user_command
from pipeline.base.system.errors import ConfigError
from pipeline.plan.inventory import take
from pipeline.plan.plan_builder import build_plan
from pipeline.plan.schema import AUTO_DEVICE, Config, GpuConfig
from pipeline.study.study_request import StudyRequest

_NAME_THEM = "name the GPUs with 'hydra.launcher.devices=[0,1]'"
_INSTEAD = {"gpus": _NAME_THEM, "beside": _NAME_THEM, "slurm": "ask for it with hydra.launcher.gres"}


def command(typed: Sequence[str], decided: Mapping[str, object]) -> list[str]:
    """The words of a command line, with what is decided in the place of what was typed; the rest of it is left out."""
    kept, theirs = user_command.drop_keys(typed, (*user_command.OF_LAUNCHERS, *decided))
    return [*kept, *(user_command.make_override(key, value) for key, value in decided.items()), *theirs]


def planned(asked: StudyRequest, find_device: Callable[[GpuConfig], Device]) -> Plan:
    """The plan of a study before workers make theirs: environments are not built, data need not be there."""
    return build_plan(asked.configs, take(asked.configs, find_device, needs_data=False), is_sweep=asked.is_sweep)


def new_plan_file(root: Path) -> str:
    """Where the workers of this start agree on their plan."""
    return str(root / layout.PLANS / f"{layout.make_stamp()}.json")


def refuse_what_is_decided(configs: Sequence[Config], launcher: str) -> None:
    """Refuse by a ConfigError a device or a unit that the user chose and the launcher hands out."""
    for config in configs:
        if config.gpu.device != AUTO_DEVICE:
            raise ConfigError(
                f"gpu.device={config.gpu.device} and hydra/launcher={launcher} both say where to run: "
                f"{_INSTEAD[launcher]}, or leave the launcher out"
            )
        if config.unit is not None:
            raise ConfigError(
                f"unit and hydra/launcher={launcher} exclude each other: the launcher hands out the units"
            )
