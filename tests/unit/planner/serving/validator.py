"""Checks a serving plan from the files alone: it shares no code with the planner, nor with its tables of partitions."""

from __future__ import annotations

import csv
import json
import math
import random
from collections import Counter
from itertools import combinations, combinations_with_replacement, product
from pathlib import Path

import yaml

from pipeline.base.system.paths import PROJECT_DIR
from pipeline.planner.profile_table import Profile, Row, write

TABLE = json.loads((PROJECT_DIR / "pipeline/base/domain/mig_profiles.json").read_text(encoding="utf-8"))["gpus"]
KEYS = {"a30_24gb": "A30-24GB", "a100_40gb": "A100-40GB", "a100_80gb": "A100-80GB", "h100_80gb": "H100-80GB-SXM"}
KEYS |= {"rtxpro6000_96gb": "RTXPRO6000-96GB"}


def is_legal(model, driver_branch, placed):
    """Whether instances, (name, start) each, fit on a GPU."""
    gpu = TABLE[KEYS[model]]
    profiles = {profile["name"]: profile for profile in gpu["gi_profiles"]}
    used, compute = [], 0
    for name, start in placed:
        width = next(
            (placement["size"] for placement in profiles[name]["placements"] if placement["start"] == start), None
        )
        if width is None:
            return False
        used += range(start, start + width)
        compute += profiles[name]["compute_slices"]
    names = Counter(name for name, _ in placed)
    slices = {(profiles[name]["compute_slices"], profiles[name]["memory_slices"]) for name in names}
    return (
        len(used) == len(set(used))
        and all(0 <= memory_slice < gpu["memory_slices"] for memory_slice in used)
        and compute <= gpu["compute_slices"]
        and all(count <= profiles[name]["max_instances"] for name, count in names.items())
        and not (driver_branch and driver_branch < 510 and slices >= {(3, 4), (4, 4)})
    )


def list_layouts(model, driver_branch, names):
    """Every legal multiset of these profiles to which none can be added, sorted."""
    gpu = TABLE[KEYS[model]]
    places = [
        (profile["name"], place["start"])
        for profile in gpu["gi_profiles"]
        if profile["name"] in names
        for place in profile["placements"]
    ]
    maximal_layouts = set()
    for size in range(1, gpu["compute_slices"] + 1):
        legal = {
            tuple(sorted(name for name, _ in combination))
            for combination in combinations(places, size)
            if is_legal(model, driver_branch, combination)
        }
        maximal_layouts = {
            old for old in maximal_layouts if not any(Counter(old) <= Counter(new) for new in legal)
        } | legal
    return maximal_layouts


def read_profile(path):
    with Path(path).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def get_memory(profile, branch):
    """The memory of an instance: of the newest listing up to a driver, else the smallest that any listing has."""
    listed = [(listing.get("branch"), round(listing["gib"] * 16) * 64) for listing in profile["memory_gib"]]
    if branch is None:
        return profile["memory_mib"]
    dated = [(dated_branch, mib) for dated_branch, mib in listed if dated_branch and dated_branch <= branch]
    return max(dated)[1] if dated else min(mib for _, mib in listed)


def get_admitted_throughput(service, row, margin=0.0, branch=None):
    """The throughput to plan with of a row, or 0 if its latency, its memory or the driver does not allow it."""
    latency = float(row.get("latency_p99_ms") or row["latency_mean_ms"] or math.inf)
    if latency >= service["latency_share"] * service["objective_ms"]:
        return 0.0
    key = KEYS[row["gpu_model"]]
    profile = next(
        (gi_profile for gi_profile in TABLE[key]["gi_profiles"] if gi_profile["name"] == row["instance_profile"]), None
    )
    if profile and branch and branch < profile.get("min_branch", 0):
        return 0.0
    capacity = get_memory(profile, branch) if profile else math.inf
    return 0.0 if float(row.get("memory_mib") or 0) > capacity else float(row["throughput_per_s"]) * (1 - margin)


def list_faults(plan, services, rows, limits=None, margin=0.0):
    """What is wrong with a plan, as its JSON: empty if nothing is.

    Args:
        plan: as `serve --json` prints it.
        services: name, rate_per_s, objective_ms and latency_share of each.
        rows: of the profile, as `read_profile` gives them.
        limits: as in the file of the services.
        margin: share of the throughput that must not be counted on.
    """
    problems = []
    limits = limits or {}
    by_name = {service["name"]: service for service in services}
    served_rates = Counter()
    for number, gpu in enumerate(plan["gpus"]):
        instances = gpu["instances"]
        if not instances:
            problems.append(f"GPU {number} is empty")
        if gpu["mode"] == "mig":
            placed = [(instance["profile"], instance["start"]) for instance in instances]
            if not is_legal(gpu["model"], gpu["driver_branch"], placed):
                problems.append(f"GPU {number}: {placed} is not legal")
        for instance in instances:
            key = (
                gpu["model"],
                instance["profile"] or "",
                instance["processes"],
                instance["batch"],
                instance["service"],
            )
            row = next((row for row in rows if cell(row) == key), None)
            if row is None:
                problems.append(f"GPU {number}: {key} has no row")
                continue
            throughput = get_admitted_throughput(by_name[instance["service"]], row, margin, gpu["driver_branch"])
            if not throughput:
                problems.append(f"GPU {number}: {key} breaks latency or memory")
            served_rates[instance["service"]] += throughput
        services_of_gpu = {instance["service"] for instance in instances}
        if len(services_of_gpu) > limits.get("services_per_gpu", math.inf):
            problems.append(f"GPU {number}: {len(services_of_gpu)} services")
        problems += [
            f"GPU {number}: {group} together"
            for group in limits.get("apart", [])
            if len(services_of_gpu & set(group)) > 1
        ]
    models = Counter(gpu["model"] for gpu in plan["gpus"])
    problems += [f"{models[name]} of {name}" for name, most in limits.get("gpus", {}).items() if models[name] > most]
    problems += [
        f"{name} gets {served_rates[name]} of {service['rate_per_s']}"
        for name, service in by_name.items()
        if served_rates[name] < service["rate_per_s"] * (1 - 1e-9)
    ]
    if plan["num_gpus"] != len(plan["gpus"]) or (plan["bound"] or 0) > plan["num_gpus"]:
        problems.append(f"num_gpus {plan['num_gpus']}, bound {plan['bound']}, {len(plan['gpus'])} GPUs")
    return problems


def cell(row):
    batch = int(row["batch"]) if row.get("batch") else None
    return row["gpu_model"], row["instance_profile"], int(row["processes"]), batch, row["workload"]


def find_fewest_gpus(services, rows, models, limits=None, most=4, margin=0.0):
    """The fewest GPUs by trying everything, `None` if more than `most`; for small problems.

    Args:
        services, rows, limits, margin: as of `list_faults`.
        models: of GPUs, each with its driver's branch or `None`.
        most: how many GPUs are tried.
    """
    limits = limits or {}
    vectors = {
        (model, shares)
        for model, branch in models.items()
        for shares, _, _ in _uses(services, rows, model, branch, limits, margin)
    }
    useful = [one for one in vectors if not any(_is_better(other, one) for other in vectors)]
    for count in range(1, most + 1):
        for chosen in combinations_with_replacement(useful, count):
            used = Counter(model for model, _ in chosen)
            if any(used[name] > limit for name, limit in limits.get("gpus", {}).items()):
                continue
            if all(sum(column) >= 1 - 1e-9 for column in zip(*(shares for _, shares in chosen), strict=True)):
                return count
    return None


def get_slices(model, profile):
    """Compute and memory slices of an instance of a model, or of the undivided GPU."""
    gpu = TABLE[KEYS[model]]
    if not profile:
        return gpu["compute_slices"], gpu["memory_slices"]
    row = next(row for row in gpu["gi_profiles"] if row["name"] == profile)
    return row["compute_slices"], row["memory_slices"]


def count_slices(plan):
    """Compute and memory slices of all instances of a plan, as its JSON."""
    sizes = [get_slices(gpu["model"], instance["profile"]) for gpu in plan["gpus"] for instance in gpu["instances"]]
    return tuple(map(sum, zip(*sizes, strict=True)))


def find_fewest_slices(services, rows, models, num_gpus, limits=None, margin=0.0):
    """The fewest compute slices, and then memory slices, of any plan on so many GPUs, by trying everything.

    Arguments as of `find_fewest_gpus`.
    """
    limits = limits or {}
    uses = {use for model, branch in models.items() for use in _uses(services, rows, model, branch, limits, margin)}
    uses = _undominated(uses)
    plans = {((0.0,) * len(services), (0, 0), ())}
    for _ in range(num_gpus):
        reachable_plans = set()
        for (shares_before, size, used), (shares, more, model) in product(plans, uses):
            together = tuple(min(1.0, round(a + b, 12)) for a, b in zip(shares_before, shares, strict=True))
            gpus = tuple(sorted((*used, *model)))
            if gpus.count(model[0]) <= limits.get("gpus", {}).get(model[0], math.inf):
                reachable_plans.add((together, (size[0] + more[0], size[1] + more[1]), gpus))
        plans = _undominated(reachable_plans)
    return min(size for shares_before, size, _ in plans if all(share >= 1 - 1e-9 for share in shares_before))


def _uses(services, rows, model, branch, limits, margin):
    """Each way to use one GPU: the shares that it gives, the slices that are taken, and its model."""
    names = [service["name"] for service in services]
    best = _best_shares(services, rows, model, branch, margin)
    profiles = {profile for _, profile in best if profile}
    undivided = [("",)] if any(not profile for _, profile in best) else []
    for layout in [*list_layouts(model, branch, profiles), *undivided]:
        ways = [
            combinations_with_replacement(range(-1, len(names)), count) for _, count in sorted(Counter(layout).items())
        ]
        for way in product(*ways):
            services_of_gpu = {names[who] for combination in way for who in combination if who >= 0}
            if any(len(services_of_gpu & set(group)) > 1 for group in limits.get("apart", [])):
                continue
            if len(services_of_gpu) > limits.get("services_per_gpu", math.inf):
                continue
            total, taken = Counter(), [0, 0]
            for profile, combination in zip(sorted(Counter(layout)), way, strict=True):
                for who in combination:
                    if who >= 0:
                        total[who] += best[who, profile]
                        taken = [a + b for a, b in zip(taken, get_slices(model, profile), strict=True)]
            shares = tuple(min(1.0, round(total[number], 12)) for number in range(len(names)))
            yield shares, tuple(taken), (model,)


def _undominated(uses):
    """Without those beside which another one of the same models gives as much and takes as few slices."""
    needed_uses = []
    for shares, size, models in sorted(uses, key=lambda use: (use[1], [-share for share in use[0]])):
        is_needed = not any(
            models == other_models and all(a >= b for a, b in zip(other, shares, strict=True))
            for other, _, other_models in needed_uses
        )
        if is_needed:
            needed_uses.append((shares, size, models))
    return set(needed_uses)


def _best_shares(services, rows, model, branch, margin):
    """The share of its rate that each service, by position, gets at most of an instance."""
    best = Counter()
    for number, service in enumerate(services):
        for row in rows:
            if row["workload"] == service["name"] and row["gpu_model"] == model:
                key = number, row["instance_profile"]
                best[key] = max(
                    best[key], get_admitted_throughput(service, row, margin, branch) / service["rate_per_s"]
                )
    return best


def _is_better(one, other):
    return one != other and one[0] == other[0] and all(a >= b for a, b in zip(one[1], other[1], strict=True))


MODELS = ("a30_24gb", "a100_40gb", "a100_80gb", "h100_80gb", "rtxpro6000_96gb")


def plain_profiles(model):
    """Name, compute slices and memory of each of its plain profiles."""
    profiles = TABLE[KEYS[model]]["gi_profiles"]
    return [
        (profile["name"], profile["compute_slices"], profile["memory_mib"])
        for profile in profiles
        if not profile["attributes"]
    ]


def draw_rows(chance, workload, model):
    """Return the rows of a workload for some instances, one or two processes and one or two batch sizes."""
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
    rows = [row for name in names for model in models for row in draw_rows(chance, name, model)]
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
