"""A plan as an experiment of this project: each GPU a group, each process a job that is sent its part of the rate.

GPUs that are planned alike are one group, which is run once.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.base.domain import modes, services
from pipeline.base.system import entry_points
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.base.system.words import counted
from pipeline.importer import experiment_file
from pipeline.importer.experiment_file import Program, Value, override_value
from pipeline.plan.schema import list_keys
from pipeline.planner.deployment import Gpu, Instance, Plan
from pipeline.planner.profile import SIMULATED
from pipeline.prepare.mig import partitions, profiles

REPEATS = 5
"""Blocks, which a comparison needs."""
_WINDOW_S, _LONGEST_WINDOW_S = 30.0, 600.0
_FEWEST_REQUESTS = 10
_PERCENTILE = 99.0
_BATCHES = ("max_batch", "batch_size")
"""How many requests or samples a step takes at most: the first that a workload has; a script has neither."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """GPUs that are planned alike.

    Attributes:
        gpus: their positions in the plan.
        gpu: one of them.
        sizes: what the mix calls each of its jobs.
        instance_of: for each job, the position of its instance in the GPU of the plan.
    """

    gpus: tuple[int, ...]
    gpu: Gpu
    sizes: tuple[str, ...]
    instance_of: tuple[int, ...]

    @property
    def scenario(self) -> str:
        """How its jobs share the GPU."""
        if self.gpu.mode == "mig":
            return modes.MIG_MPS.name
        if self.gpu.mode == "naive":
            return modes.NAIVE.name
        is_limited = any(instance.share_pct is not None for instance in self.gpu.instances)
        return modes.MPS_PERCENT.name if is_limited else modes.MPS.name

    @property
    def profiles(self) -> tuple[str, ...]:
        """Of each instance: by slices where these name it, so that it follows the GPU that a rehearsal takes."""
        if self.gpu.mode != "mig":
            return ()
        model = profiles.load_model(self.gpu.model, self.gpu.driver_branch)
        by_slices = {profile.name: f"{profile.compute_slices}g" for profile in partitions.slice_profiles(model)}
        return tuple(by_slices.get(each.profile or "", each.profile or "") for each in self.gpu.instances)


def rates_per_s(plan: Plan) -> dict[tuple[int, int], float]:
    """The planned rate of one process of each instance, by position of GPU and instance; of services alone.

    A service's rate is dealt to its instances by their throughput; where one is not known, by their processes.
    """
    wanted = {service.name: service.rate_per_s for service in plan.services}
    places: dict[str, list[tuple[int, int, Instance]]] = defaultdict(list)
    for number, gpu in enumerate(plan.deployment.gpus):
        for position, instance in enumerate(gpu.instances):
            places[instance.service].append((number, position, instance))
    found = {}
    for service, mine in places.items():
        if service in wanted:
            is_known = all(instance.throughput_per_s for _, _, instance in mine)
            weights = [(instance.throughput_per_s or 0.0) if is_known else instance.processes for *_, instance in mine]
            for (number, position, instance), weight in zip(mine, weights, strict=True):
                rate = wanted[service] * weight / sum(weights) / instance.processes
                found[number, position] = float(f"{rate:.6g}")
    return found


def groups_of(plan: Plan) -> list[Group]:
    """The groups of a plan, in its order. A GPU on which nothing runs is in none."""
    rates = rates_per_s(plan)
    names: dict[str, dict[tuple[object, ...], str]] = defaultdict(dict)  # by model, of which each is exported alone
    alike: dict[tuple[object, ...], list[int]] = defaultdict(list)
    of_gpu: dict[int, tuple[str, ...]] = {}
    for number, gpu in enumerate(plan.deployment.gpus):
        if not gpu.instances:
            continue
        of_gpu[number] = tuple(
            _name(instance, rates.get((number, position)), names[gpu.model])
            for position, instance in enumerate(gpu.instances)
        )
        kinds = tuple((i.profile, i.processes, i.share_pct) for i in gpu.instances)
        alike[gpu.model, gpu.mode, kinds, of_gpu[number]].append(number)
    made = []
    for numbers in alike.values():
        gpu = plan.deployment.gpus[numbers[0]]
        instance_of = tuple(place for place, instance in enumerate(gpu.instances) for _ in range(instance.processes))
        sizes = tuple(of_gpu[numbers[0]][place] for place in instance_of)
        made.append(Group(gpus=tuple(numbers), gpu=gpu, sizes=sizes, instance_of=instance_of))
    return made


def _name(instance: Instance, rate_per_s: float | None, names: dict[tuple[object, ...], str]) -> str:
    """What a mix calls the processes of an instance: equal ones by one name, which no others have; `names` keeps it."""
    key = (instance.service, instance.batch, rate_per_s, instance.latency_p99_ms is None)
    if key not in names:
        label = re.sub(r"\W", "_", instance.service.split()[0])
        label = label if experiment_file.NAME.fullmatch(label) else f"service_{label}"
        others = (f"{label}_{number}" for number in range(2, len(names) + 3))
        names[key] = next(name for name in (label, *others) if name not in names.values())
    return names[key]


def programs_of(plan: Plan, groups: Sequence[Group], workloads: Mapping[str, str]) -> dict[Program, str]:
    """The program that each name of the mixes stands for.

    Args:
        plan: what is to run.
        groups: of the plan.
        workloads: the choice of `conf/workload` for services of other names.

    Raises:
        ConfigError: a service is no workload, or an option of it cannot be read.
    """
    rates, objectives = rates_per_s(plan), {service.name: service.objective_ms for service in plan.services}
    window_s = _window_s(plan)
    found: dict[str, Program] = {}
    for group in groups:
        for name, place in zip(group.sizes, group.instance_of, strict=True):
            instance = group.gpu.instances[place]
            rate = rates.get((group.gpus[0], place))
            if name not in found:
                objective = _objective(instance, rate, objectives.get(instance.service), window_s)
                found[name] = _program(name, instance, rate, objective, workloads)
    return {program: name for name, program in found.items()}


def text_of(plan: Plan, name: str, source: str, workloads: Mapping[str, str]) -> str:
    """The text of the experiment file.

    Args:
        plan: with at least one GPU, all of one model.
        name: of the experiment.
        source: the file of the plan.
        workloads: as for `programs_of`.

    Raises:
        ConfigError: it has no GPU or GPUs of several models, or as `programs_of`.
    """
    models = sorted({gpu.model for gpu in plan.deployment.gpus})
    if len(models) != 1:
        raise ConfigError(
            f"{source}: it has GPUs of {len(models)} models ({', '.join(models) or 'it has none'}), and an experiment "
            "runs on one; choose one with --gpu MODEL"
        )
    groups = groups_of(plan)
    head = (
        f"{counted(len(groups), 'group')} for {counted(len(plan.deployment.gpus), 'GPU')} ({models[0]}), exported from "
        f"{source} by `{entry_points.spell('planner', 'export')}`."
        f"{f' Planned: {SIMULATED}.' if plan.is_simulated else ''}"
    )
    return experiment_file.text_of(
        [{"mix": override_value(group.sizes), **_sharing(group)} for group in groups],
        programs_of(plan, groups, workloads),
        head=head,
        defaults=[],
        settings={
            "baseline": "never",
            "repeats": REPEATS,
            "window": {"seconds": _window_s(plan)},
            "tracking": {"experiment": name},
        },
    )


def only_model(plan: Plan, model: str) -> Plan:
    """The plan with the GPUs of one model left, the rates of services shared out as among all of them."""
    gpus = tuple(gpu for gpu in plan.deployment.gpus if gpu.model == model)
    kept: dict[str, float] = defaultdict(float)
    for (number, position), rate in rates_per_s(plan).items():
        instance = plan.deployment.gpus[number].instances[position]
        kept[instance.service] += rate * instance.processes if plan.deployment.gpus[number].model == model else 0.0
    services_left = tuple(dataclasses.replace(s, rate_per_s=kept[s.name]) for s in plan.services if kept.get(s.name))
    return dataclasses.replace(plan, deployment=dataclasses.replace(plan.deployment, gpus=gpus), services=services_left)


def _window_s(plan: Plan) -> float:
    """Long enough for a p99 of each process of which one is planned, unless that takes too long."""
    gpus = plan.deployment.gpus
    rates = [
        rate
        for (gpu, place), rate in rates_per_s(plan).items()
        if gpus[gpu].instances[place].latency_p99_ms is not None
    ]
    needed_s = 1.1 * services.min_requests(_PERCENTILE) / min(rates, default=math.inf)
    return min(_LONGEST_WINDOW_S, max(_WINDOW_S, float(math.ceil(needed_s))))


def without_p99(plan: Plan) -> tuple[str, ...]:
    """Services that were planned by a p99 of which a process gets too few requests to measure one."""
    gpus, window_s = plan.deployment.gpus, _window_s(plan)
    placed = ((gpus[gpu].instances[place], rate) for (gpu, place), rate in rates_per_s(plan).items())
    found = (i.service for i, rate in placed if i.latency_p99_ms is not None and not _has_p99(rate, window_s))
    return tuple(dict.fromkeys(found))


def _has_p99(rate_per_s: float, window_s: float) -> bool:
    return int(rate_per_s * window_s) >= services.min_requests(_PERCENTILE)


def _objective(
    instance: Instance, rate_per_s: float | None, objective_ms: float | None, window_s: float
) -> dict[str, Value]:
    """The latency that is good, and of how many requests where that was planned and can be measured."""
    if rate_per_s is None or objective_ms is None:
        return {}
    is_of_p99 = instance.latency_p99_ms is not None and _has_p99(rate_per_s, window_s)
    percentile: dict[str, Value] = {services.OBJECTIVE_PERCENTILE: _PERCENTILE} if is_of_p99 else {}
    return {services.OBJECTIVE: objective_ms, **percentile}


def rehearsal_s(plan: Plan) -> int:
    """How long the window of a rehearsal must be so that every process is asked something."""
    return max(1, math.ceil(_FEWEST_REQUESTS / min(rates_per_s(plan).values(), default=math.inf)))


def _program(
    name: str,
    instance: Instance,
    rate_per_s: float | None,
    objective: Mapping[str, Value],
    workloads: Mapping[str, str],
) -> Program:
    choice, *options = workloads.get(instance.service, instance.service).split()
    if not (PROJECT_DIR / f"conf/workload/{choice}.yaml").is_file():
        raise ConfigError(
            f"service {instance.service}: conf/workload has no {choice}; say which workload it is, as "
            f"--workload {instance.service.split()[0]}=infer_bert_base"
        )
    options_there = list_keys("workload", choice)
    batch = next((key for key in _BATCHES if key in options_there), None)
    answers_requests = services.RATE in options_there
    values: dict[str, Value] = {}
    for option in options:
        key, has_value, value = option.partition("=")
        if not has_value:
            raise ConfigError(f"service {instance.service}: {option!r} is no KEY=VALUE of workload {choice}")
        values[key] = value
    if instance.batch is not None and batch is not None:
        values[batch] = instance.batch
    if answers_requests and rate_per_s is None and instance.batch is not None:
        values["outstanding"] = instance.batch  # fewer clients would never fill a batch
    if answers_requests and rate_per_s is not None:
        values |= {"arrival": "poisson", services.RATE: rate_per_s, **objective}
    return Program(workload=choice, values=tuple(values.items()), name=name)


def _sharing(group: Group) -> dict[str, Any]:
    """The scenario of a group and its options, as a block has them."""
    shares = [group.gpu.instances[place].share_pct for place in group.instance_of]
    said: dict[str, Any] = {"scenario": group.scenario}
    if group.scenario == modes.MIG_MPS.name:
        said["scenario.profiles"] = override_value(group.profiles)
        said["scenario.instance_of"] = override_value(group.instance_of)
    if any(share is not None for share in shares):
        limits = tuple(100.0 if share is None else share for share in shares)
        said["scenario.active_thread_pct"] = override_value(limits)
    return said
