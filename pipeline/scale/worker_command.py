"""The command line of a worker: the user's command line with the keys that a launcher sets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pipeline.base.domain import layout
from pipeline.base.domain.records import Device, Plan
from pipeline.base.system import user_command
from pipeline.base.system.errors import ConfigError
from pipeline.plan.config_schema import AUTO_DEVICE, AUTO_REPEATS, Config, GpuConfig
from pipeline.plan.inventory import take_inventory
from pipeline.plan.plan_builder import build_plan
from pipeline.study.study_request import StudyRequest

_NAME_THEM = "name the GPUs with 'hydra.launcher.devices=[0,1]'"
_INSTEAD = {"gpus": _NAME_THEM, "beside": _NAME_THEM, "slurm": "request the GPU with hydra.launcher.gres"}


def make_command(typed: Sequence[str], decided: Mapping[str, object]) -> list[str]:
    """Return a command line in which the launcher's keys replace typed keys."""
    options, arguments = user_command.drop_keys(typed, (*user_command.OF_LAUNCHERS, *decided))
    return [*options, *(user_command.make_override(key, value) for key, value in decided.items()), *arguments]


def make_plan(request: StudyRequest, find_device: Callable[[GpuConfig], Device]) -> Plan:
    """Return a study's plan for the launcher; environments and data may be missing on this machine."""
    return build_plan(
        request.configs, take_inventory(request.configs, find_device, needs_data=False), is_sweep=request.is_sweep
    )


def name_plan_file(root: Path) -> str:
    """Return the file with which the workers of this start verify that their plans are equal."""
    return str(root / layout.PLANS / f"{layout.make_stamp()}.json")


def refuse_decided_keys(configs: Sequence[Config], launcher: str) -> None:
    """Refuse a device or shard that the user chose, because the launcher assigns them; refuse `repeats=auto`.

    Blocks of several GPUs count once for each GPU, so the intervals of one more block would not be narrower.
    """
    for config in configs:
        if config.repeats == AUTO_REPEATS:
            raise ConfigError(
                f"repeats=auto conflicts with hydra/launcher={launcher}, because repeats=auto needs all blocks on one "
                "GPU; set repeats=NUMBER, or remove hydra/launcher"
            )
        if config.gpu.device != AUTO_DEVICE:
            raise ConfigError(
                f"gpu.device={config.gpu.device} conflicts with hydra/launcher={launcher}; {_INSTEAD[launcher]}, "
                "or remove hydra/launcher"
            )
        if config.shard is not None:
            raise ConfigError(
                f"shard={config.shard} conflicts with hydra/launcher={launcher}, which assigns the shards; remove shard"
            )
