"""A plan as an experiment: each GPU is a group, and each process is a job with its share of the rate.

Equal GPUs are one group, which runs once.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.base.domain import service_figures, sharing_modes
from pipeline.base.system import entry_points
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.base.system.words import format_count
from pipeline.importer import experiment_file
from pipeline.importer.experiment_file import Program, Value, override_value
from pipeline.plan.option_loader import list_keys
from pipeline.planner.deployment import Gpu, Instance, Plan
from pipeline.planner.profile_table import SIMULATED
from pipeline.prepare.mig import layouts, profiles

REPEATS = 5
"""The number of blocks that a comparison needs."""
_WINDOW_S, _LONGEST_WINDOW_S = 30.0, 600.0
_FEWEST_REQUESTS = 10
_PERCENTILE = 99.0
_BATCHES = ("max_batch", "batch_size")
"""Keys for the batch size; the first key that a workload has is set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuGroup:
    """Equal GPUs of a plan.

    Attributes:
        gpus: positions of the GPUs in the plan.
        gpu: one of the GPUs.
        sizes: name of each job in the mix.
        instance_of: position of each job's instance.
    """

    gpus: tuple[int, ...]
    gpu: Gpu
    sizes: tuple[str, ...]
    instance_of: tuple[int, ...]

    @property
    def scenario(self) -> str:
        """The sharing mode of the jobs."""
        if self.gpu.mode == "mig":
            return sharing_modes.MIG_MPS.name
        if self.gpu.mode == "naive":
            return sharing_modes.NAIVE.name
        is_limited = any(instance.share_pct is not None for instance in self.gpu.instances)
        return sharing_modes.MPS_PERCENT.name if is_limited else sharing_modes.MPS.name

    @property
    def profiles(self) -> tuple[str, ...]:
        """The profile of each instance, named by slices if possible, to fit the GPU of a rehearsal too."""
        if self.gpu.mode != "mig":
            return ()
        model = profiles.load_model(self.gpu.model, self.gpu.driver_branch)
        by_slices = {profile.name: f"{profile.compute_slices}g" for profile in layouts.list_slice_profiles(model)}
        return tuple(by_slices.get(instance.profile or "", instance.profile or "") for instance in self.gpu.instances)


def deal_rates(plan: Plan) -> dict[tuple[int, int], float]:
    """Return the rate of one process of each instance, by position of GPU and instance.

    A service's rate is split among its instances by throughput or, if a throughput is unknown, by processes.
    """
    required = {service.name: service.rate_per_s for service in plan.services}
    places: dict[str, list[tuple[int, int, Instance]]] = defaultdict(list)
    for number, gpu in enumerate(plan.deployment.gpus):
        for position, instance in enumerate(gpu.instances):
            places[instance.service].append((number, position, instance))
    rates = {}
    for service, placed in places.items():
        if service in required:
            is_known = all(instance.throughput_per_s for _, _, instance in placed)
            weights = [
                (instance.throughput_per_s or 0.0) if is_known else instance.processes for *_, instance in placed
            ]
            for (number, position, instance), weight in zip(placed, weights, strict=True):
                rate = required[service] * weight / sum(weights) / instance.processes
                rates[number, position] = float(f"{rate:.6g}")
    return rates


def group_gpus(plan: Plan) -> list[GpuGroup]:
    """Return the groups of a plan in its order, without empty GPUs."""
    rates = deal_rates(plan)
    names: dict[str, dict[tuple[object, ...], str]] = defaultdict(dict)  # by model: each is exported separately
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
    groups = []
    for numbers in alike.values():
        gpu = plan.deployment.gpus[numbers[0]]
        instance_of = tuple(place for place, instance in enumerate(gpu.instances) for _ in range(instance.processes))
        sizes = tuple(of_gpu[numbers[0]][place] for place in instance_of)
        groups.append(GpuGroup(gpus=tuple(numbers), gpu=gpu, sizes=sizes, instance_of=instance_of))
    return groups


def _name(instance: Instance, rate_per_s: float | None, names: dict[tuple[object, ...], str]) -> str:
    """Name the processes of an instance in a mix; equal processes share a name. `names` are the names so far."""
    key = (instance.service, instance.batch, rate_per_s, instance.latency_p99_ms is None)
    if key not in names:
        label = re.sub(r"\W", "_", instance.service.split()[0])
        label = label if experiment_file.NAME.fullmatch(label) else f"service_{label}"
        alternatives = (f"{label}_{number}" for number in range(2, len(names) + 3))
        names[key] = next(name for name in (label, *alternatives) if name not in names.values())
    return names[key]


def build_programs(plan: Plan, groups: Sequence[GpuGroup], workloads: Mapping[str, str]) -> dict[Program, str]:
    """Return the program of each name in the mixes; ConfigError if a service is not a workload."""
    rates, objectives = deal_rates(plan), {service.name: service.objective_ms for service in plan.services}
    window_s = _window_s(plan)
    programs: dict[str, Program] = {}
    for group in groups:
        for name, place in zip(group.sizes, group.instance_of, strict=True):
            instance = group.gpu.instances[place]
            rate = rates.get((group.gpus[0], place))
            if name not in programs:
                objective = _objective(instance, rate, objectives.get(instance.service), window_s)
                programs[name] = _program(name, instance, rate, objective, workloads)
    return {program: name for name, program in programs.items()}


def text_of(plan: Plan, name: str, source: str, workloads: Mapping[str, str]) -> str:
    """Return the text of the experiment file; ConfigError for several models, or if a service is not a workload."""
    models = sorted({gpu.model for gpu in plan.deployment.gpus})
    if len(models) != 1:
        raise ConfigError(
            f"{source}: has GPUs of {len(models)} models ({', '.join(models) or 'none'}), but an experiment needs one; "
            "choose one model with --gpu MODEL"
        )
    groups = group_gpus(plan)
    head = (
        f"{format_count(len(groups), 'group')} for {format_count(len(plan.deployment.gpus), 'GPU')} ({models[0]}), "
        f"exported from {source} by `{entry_points.spell('planner', 'export')}`."
        f"{f' Planned: {SIMULATED}.' if plan.is_simulated else ''}"
    )
    return experiment_file.format_file(
        [{"mix": override_value(group.sizes), **_sharing(group)} for group in groups],
        build_programs(plan, groups, workloads),
        head=head,
        defaults=[],
        settings={
            "baseline": "never",
            "repeats": REPEATS,
            "window": {"seconds": _window_s(plan)},
            "tracking": {"experiment": name},
        },
    )


def select_model(plan: Plan, model: str) -> Plan:
    """Keep the GPUs of one model, with their share of the rates."""
    gpus = tuple(gpu for gpu in plan.deployment.gpus if gpu.model == model)
    rates: dict[str, float] = defaultdict(float)
    for (number, position), rate in deal_rates(plan).items():
        instance = plan.deployment.gpus[number].instances[position]
        rates[instance.service] += rate * instance.processes if plan.deployment.gpus[number].model == model else 0.0
    services_left = tuple(dataclasses.replace(s, rate_per_s=rates[s.name]) for s in plan.services if rates.get(s.name))
    return dataclasses.replace(plan, deployment=dataclasses.replace(plan.deployment, gpus=gpus), services=services_left)


def _window_s(plan: Plan) -> float:
    gpus = plan.deployment.gpus
    rates = [
        rate for (gpu, place), rate in deal_rates(plan).items() if gpus[gpu].instances[place].latency_p99_ms is not None
    ]
    needed_s = 1.1 * service_figures.min_requests(_PERCENTILE) / min(rates, default=math.inf)
    return min(_LONGEST_WINDOW_S, max(_WINDOW_S, float(math.ceil(needed_s))))


def find_without_p99(plan: Plan) -> tuple[str, ...]:
    """Return services that were planned by p99 latency, but have a process with too few requests for a p99."""
    gpus, window_s = plan.deployment.gpus, _window_s(plan)
    placed = ((gpus[gpu].instances[place], rate) for (gpu, place), rate in deal_rates(plan).items())
    names = (i.service for i, rate in placed if i.latency_p99_ms is not None and not _has_p99(rate, window_s))
    return tuple(dict.fromkeys(names))


def _has_p99(rate_per_s: float, window_s: float) -> bool:
    return int(rate_per_s * window_s) >= service_figures.min_requests(_PERCENTILE)


def _objective(
    instance: Instance, rate_per_s: float | None, objective_ms: float | None, window_s: float
) -> dict[str, Value]:
    """Return the latency objective, and its percentile if the percentile was planned and can be measured."""
    if rate_per_s is None or objective_ms is None:
        return {}
    is_of_p99 = instance.latency_p99_ms is not None and _has_p99(rate_per_s, window_s)
    percentile: dict[str, Value] = {service_figures.OBJECTIVE_PERCENTILE: _PERCENTILE} if is_of_p99 else {}
    return {service_figures.OBJECTIVE: objective_ms, **percentile}


def rehearsal_s(plan: Plan) -> int:
    """Return the window of a rehearsal in which every process gets requests."""
    return max(1, math.ceil(_FEWEST_REQUESTS / min(deal_rates(plan).values(), default=math.inf)))


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
            f"service {instance.service}: conf/workload has no {choice}.yaml; name its workload, for example "
            f"--workload {instance.service.split()[0]}=infer_bert_base"
        )
    options_there = list_keys("workload", choice)
    batch = next((key for key in _BATCHES if key in options_there), None)
    answers_requests = service_figures.RATE in options_there
    options_set: dict[str, Value] = {}
    for option in options:
        key, has_value, setting = option.partition("=")
        if not has_value:
            raise ConfigError(
                f"service {instance.service}: option {option!r} of workload {choice} is not of the form KEY=VALUE; "
                "write both parts"
            )
        options_set[key] = setting
    if instance.batch is not None and batch is not None:
        options_set[batch] = instance.batch
    if answers_requests and rate_per_s is None and instance.batch is not None:
        options_set["outstanding"] = instance.batch  # as many clients as requests in a batch
    if answers_requests and rate_per_s is not None:
        options_set |= {"arrival": "poisson", service_figures.RATE: rate_per_s, **objective}
    return Program(workload=choice, values=tuple(options_set.items()), name=name)


def _sharing(group: GpuGroup) -> dict[str, Any]:
    shares = [group.gpu.instances[place].share_pct for place in group.instance_of]
    options: dict[str, Any] = {"scenario": group.scenario}
    if group.scenario == sharing_modes.MIG_MPS.name:
        options["scenario.profiles"] = override_value(group.profiles)
        options["scenario.instance_of"] = override_value(group.instance_of)
    if any(share is not None for share in shares):
        limits = tuple(100.0 if share is None else share for share in shares)
        options["scenario.active_thread_pct"] = override_value(limits)
    return options
