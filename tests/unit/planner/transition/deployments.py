"""Random deployments of the same services, to go from one to another."""

from __future__ import annotations

import functools
import random

from pipeline.planner.deployment import Deployment, Gpu, Instance, Plan, Service, total_per_s
from pipeline.prepare.mig import layouts, profiles

_SHARE_FILLED = 0.95
_PER_SLICE = 10.0


@functools.cache
def _layouts(model: str, branch: int | None) -> tuple[layouts.Placed, ...]:
    return layouts.list_maximal_layouts(profiles.load_model(model, branch))


def random_plan(chance: random.Random, model: str, num_gpus: int, num_services: int, branch: int | None = None) -> Plan:
    """GPUs of random layouts with random services, whose rates are what they get or a little less."""
    gpus = []
    for _ in range(num_gpus):
        layout = chance.choice(_layouts(model, branch))
        instances = [
            Instance(
                profile=profile.name,
                start=start,
                service=f"s{chance.randrange(num_services)}",
                throughput_per_s=_PER_SLICE * profile.compute_slices,
            )
            for profile, start in layout
            if chance.random() < _SHARE_FILLED
        ]
        if instances:
            gpus.append(Gpu(model=model, driver_branch=branch, instances=tuple(instances)))
    deployment = Deployment(gpus=tuple(gpus))
    rates = {name: total * chance.uniform(0.9, 1) for name, total in total_per_s(deployment.gpus).items()}
    return Plan(deployment=deployment, services=tuple(Service(name=n, rate_per_s=rate) for n, rate in rates.items()))


def equalize_rates(one: Plan, other: Plan) -> tuple[Plan, Plan]:
    """Both with the smaller of their rates, so that little is to spare on the way."""
    totals = [total_per_s(plan.deployment.gpus) for plan in (one, other)]
    names = totals[0].keys() & totals[1].keys()
    rates = {name: min(total[name] for total in totals) for name in names}

    def set_rates(plan: Plan) -> Plan:
        gpus = [
            Gpu(
                model=gpu.model,
                driver_branch=gpu.driver_branch,
                instances=tuple(instance for instance in gpu.instances if instance.service in names),
            )
            for gpu in plan.deployment.gpus
        ]
        services = tuple(Service(name=name, rate_per_s=rate) for name, rate in sorted(rates.items()))
        return Plan(deployment=Deployment(gpus=tuple(gpu for gpu in gpus if gpu.instances)), services=services)

    return set_rates(one), set_rates(other)
