"""Random small problems of serving, as the files that a user would write."""

from __future__ import annotations

import random

import yaml

from pipeline.planner.profile_table import Profile, Row, write
from tests.unit.planner.serving.validator import KEYS, TABLE

MODELS = ("a30_24gb", "a100_40gb", "a100_80gb", "h100_80gb", "rtxpro6000_96gb")


def plain_profiles(model):
    """Name, compute slices and memory of each of its plain profiles."""
    profiles = TABLE[KEYS[model]]["gi_profiles"]
    return [(each["name"], each["compute_slices"], each["memory_mib"]) for each in profiles if not each["attributes"]]


def rows_of(chance, workload, model):
    """What was measured of a workload: some of the instances, one or two processes, one or two batch sizes."""
    base, power = chance.uniform(20, 60), chance.uniform(0.6, 1.1)
    profiles = plain_profiles(model)
    for name, slices, memory_mib in chance.sample(profiles, chance.randint(2, min(4, len(profiles)))):
        for processes in (1, 2):
            for batch in chance.sample([1, 8], chance.randint(1, 2)):
                rate = round(base * slices**power * batch**0.3 * processes**0.2 * chance.uniform(0.9, 1.1), 1)
                low = round(rate * chance.uniform(0.8, 0.99), 1)
                mean = round(1000 * batch * processes / rate, 2)
                yield Row(
                    workload=workload,
                    gpu_model=model,
                    sharing_mode="mig" if processes == 1 else "mig_mps",
                    instance_profile=name,
                    processes=processes,
                    batch=batch,
                    throughput_per_s=rate,
                    throughput_low_per_s=low,
                    throughput_high_per_s=rate + 1,
                    latency_mean_ms=mean,
                    latency_p99_ms=chance.choice([None, round(1.5 * mean, 2)]),
                    memory_mib=chance.choice([None, round(memory_mib * chance.uniform(0.3, 1.15))]),
                )
    if chance.random() < 0.2:
        yield Row(
            workload=workload,
            gpu_model=model,
            sharing_mode="mps",
            processes=3,
            batch=4,
            throughput_per_s=round(base * 9, 1),
            throughput_low_per_s=round(base * 8, 1),
            latency_mean_ms=5.0,
        )


def random_case(seed, folder):
    """A problem.

    Returns:
        Services, rows as `validator.read_profile` gives them are in the files; models with their driver's branch;
        limits; the share of throughput that is not counted on; and the arguments of `serve`.
    """
    chance = random.Random(seed)
    models = chance.sample(MODELS, chance.choice([1, 1, 2]))
    branch = chance.choice([None, 470, 550])
    names = ["bert", "vgg16", "yolo"][: chance.randint(1, 3)]
    rows = [row for name in names for model in models for row in rows_of(chance, name, model)]
    services = [
        {
            "name": name,
            "rate_per_s": round(
                chance.uniform(0.2, 2.5) * max(r.throughput_per_s for r in rows if r.workload == name), 1
            ),
            "objective_ms": chance.choice([80, 300, 2000]),
            "latency_share": chance.choice([0.45, 1.0]),
        }
        for name in names
    ]
    limits = {}
    if len(names) == 2 and chance.random() < 0.6:
        limits = chance.choice([{"services_per_gpu": 1}, {"apart": [names]}, {"gpus": {models[0]: 2}}])
    elif chance.random() < 0.2:
        limits = {"gpus": {models[0]: chance.randint(0, 3)}}
    margin = chance.choice([0.0, 0.0, 0.2])
    profile, demand = folder / f"profile{seed}.csv", folder / f"services{seed}.yaml"
    write(profile, Profile(rows=tuple(rows)))
    demand.write_text(yaml.safe_dump({"services": services, "limits": limits}))
    argv = [str(demand), "--profile", str(profile), "--margin", str(margin)]
    for model in models:
        argv += ["--gpu", f"simulated_{model}"]
    argv += [] if branch is None else ["--driver-branch", str(branch)]
    return services, profile, dict.fromkeys(models, branch), limits, margin, argv
