"""The command line of a worker: what the user typed, with the keys that a launcher decides."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pipeline.base.domain import layout
from pipeline.base.domain.records import Device, Plan
from pipeline.base.system import user_command
from pipeline.base.system.errors import ConfigError
from pipeline.plan.config_schema import AUTO_DEVICE, Config, GpuConfig
from pipeline.plan.inventory import take_inventory
from pipeline.plan.plan_builder import build_plan
from pipeline.study.study_request import StudyRequest

_NAME_THEM = "name the GPUs with 'hydra.launcher.devices=[0,1]'"
_INSTEAD = {"gpus": _NAME_THEM, "beside": _NAME_THEM, "slurm": "ask for it with hydra.launcher.gres"}


def make_command(typed: Sequence[str], decided: Mapping[str, object]) -> list[str]:
    """Return a command line with the decided keys in the place of typed ones."""
    options, arguments = user_command.drop_keys(typed, (*user_command.OF_LAUNCHERS, *decided))
    return [*options, *(user_command.make_override(key, value) for key, value in decided.items()), *arguments]


def make_plan(request: StudyRequest, find_device: Callable[[GpuConfig], Device]) -> Plan:
    """Return the plan of a study before workers make theirs; environments and data may be absent."""
    return build_plan(
        request.configs, take_inventory(request.configs, find_device, needs_data=False), is_sweep=request.is_sweep
    )


def name_plan_file(root: Path) -> str:
    """Return the file in which the workers of this start agree on their plan."""
    return str(root / layout.PLANS / f"{layout.make_stamp()}.json")


def refuse_decided_keys(configs: Sequence[Config], launcher: str) -> None:
    """Refuse a device or a shard chosen by the user, as the launcher hands them out."""
    for config in configs:
        if config.gpu.device != AUTO_DEVICE:
            raise ConfigError(
                f"gpu.device={config.gpu.device} conflicts with hydra/launcher={launcher}; {_INSTEAD[launcher]}, "
                "or leave the launcher out"
            )
        if config.shard is not None:
            raise ConfigError(
                f"shard conflicts with hydra/launcher={launcher}, which assigns the shards; leave one of them out"
            )
