"""Normalised GPUs of a transition: full names, ids for all GPUs, and figures from the new plan."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

from pipeline.base.domain import mig_table
from pipeline.base.system.errors import ConfigError
from pipeline.planner.deployment import Gpu, Instance, Plan, mig_gpu
from pipeline.planner.transition.rooms import Kind, configuration_of
from pipeline.prepare.mig import layouts


def spell_out(gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """Return the GPUs with the full names of models and profiles."""
    return tuple(
        dataclasses.replace(
            gpu,
            model=mig_table.find_model_name(gpu.model) if is_divisible(gpu) else gpu.model,
            instances=tuple(
                dataclasses.replace(
                    instance, profile=instance.profile and layouts.resolve(mig_gpu(gpu), instance.profile).name
                )
                for instance in gpu.instances
            ),
        )
        for gpu in gpus
    )


def is_divisible(gpu: Gpu) -> bool:
    """Return whether the GPU's model supports MIG."""
    return mig_table.find_model_name(gpu.model) in mig_table.models()


def assign_ids(gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """Assign the first unused numbers to GPUs without an id."""
    free = list_free_names(gpus)
    return tuple(gpu if gpu.id is not None else dataclasses.replace(gpu, id=next(free)) for gpu in gpus)


def list_free_names(gpus: Sequence[Gpu]) -> Iterator[str]:
    """Return the numbers from 0 that are not used as ids."""
    taken = {gpu.id for gpu in gpus}
    return (name for name in map(str, itertools.count()) if name not in taken)


def update_figures(gpus: Sequence[Gpu], tomorrow: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """Replace the figures of current instances by the figures of equal instances in the new plan."""
    known: dict[object, Instance] = {}
    for gpu in tomorrow:
        for instance in gpu.instances:
            key = _figure_key(gpu, instance)
            known[key] = min(known.get(key, instance), instance, key=lambda same: same.throughput_per_s or 0.0)

    def later(gpu: Gpu, instance: Instance) -> Instance:
        later_instance = known.get(_figure_key(gpu, instance))
        return instance if later_instance is None else dataclasses.replace(later_instance, start=instance.start)

    return tuple(
        dataclasses.replace(gpu, instances=tuple(later(gpu, instance) for instance in gpu.instances)) for gpu in gpus
    )


def _figure_key(gpu: Gpu, instance: Instance) -> tuple[object, ...]:
    """Return the key of equal figures: the instance, and without MIG all instances on its GPU."""
    beside = () if gpu.mode == "mig" else sorted(str(configuration_of(neighbour)) for neighbour in gpu.instances)
    return get_kind(gpu), gpu.mode, configuration_of(instance), tuple(beside)


def refuse_unknown(name: str, plan: Plan) -> None:
    """Raise ConfigError if an instance has no throughput, or its service has no rate."""
    services = {service.name for service in plan.services}
    for number, gpu in enumerate(plan.deployment.gpus):
        for position, instance in enumerate(gpu.instances):
            where = f"{name}: gpus[{number}].instances[{position}]"
            if instance.throughput_per_s is None:
                raise ConfigError(f"{where}: throughput_per_s of {instance.service} is missing; add it")
            if instance.service not in services:
                raise ConfigError(
                    f"{where}: service {instance.service} has no rate; list the service with its rate under services"
                )


def get_kind(gpu: Gpu) -> Kind:
    """Return the kind of a GPU."""
    return Kind(gpu.model, gpu.driver_branch)
