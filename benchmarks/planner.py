"""Time, memory and number of GPUs of the planner, for ParvaGPU's scenarios and for synthetic services.

    python -m benchmarks.planner                      # the scenarios, 100 services, transitions, 1,000 services
    python -m benchmarks.planner --services 100 --seed 3

Each command runs in a separate process. The synthetic services are generated from a seed, and their figures are
invented. Their throughputs grow with the size of an instance, less or more than proportionally, at several batch sizes
and numbers of processes; their rates are around the throughput of a whole GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from pipeline.base.system.paths import PROJECT_DIR
from pipeline.planner import profile_table
from pipeline.planner.profile_table import Profile, Row
from pipeline.prepare.mig import layouts, profiles

PARVAGPU = PROJECT_DIR / "tests/data/parvagpu"
GPU = "a100_80gb"
# Parameters of the ratio of a rate to the throughput of a whole GPU; its mean is about 1.5.
_RATE_MU, _RATE_SIGMA = 0.3, 0.6


def make_profile(num_services: int, seed: int) -> tuple[dict[str, Any], Profile]:
    """Synthetic services in the format of a services file, and the rows of their profile."""
    chance = random.Random(seed)  # noqa: S311  made-up figures, no secret
    sizes = {
        slice_profile.name: slice_profile.compute_slices
        for slice_profile in layouts.list_slice_profiles(profiles.load_model(GPU))
    }
    services, rows = [], []
    for number in range(num_services):
        name, base, power = f"service{number:04d}", chance.lognormvariate(4, 1), chance.uniform(0.7, 1.3)
        for instance, slices in sizes.items():
            for batch in (1, 4, 16):
                for processes in (1, 2, 3):
                    rate = base * slices**power * batch**0.3 * processes**0.2 * chance.uniform(0.95, 1.05)
                    row = Row(
                        workload=name,
                        gpu_model=GPU,
                        sharing_mode="mig" if processes == 1 else "mig_mps",
                        instance_profile=instance,
                        processes=processes,
                        batch=batch,
                        throughput_per_s=rate,
                        latency_mean_ms=1000 * batch * processes / rate,
                        latency_p99_ms=1300 * batch * processes / rate,
                    )
                    rows.append(row)
        whole = base * 7**power * 16**0.3 * 3**0.2
        rate_per_s = round(whole * chance.lognormvariate(_RATE_MU, _RATE_SIGMA), 3)
        services.append({"name": name, "rate_per_s": rate_per_s, "objective_ms": round(60000 / base, 3)})
    return {"services": services}, Profile(rows=tuple(rows))


def scenario(number: int) -> dict[str, Any]:
    """Return the services of a scenario of ParvaGPU; the first scenario has number 0."""
    names = sorted(path.stem for path in PARVAGPU.glob("*.csv") if not path.name.startswith("slo_"))
    tables = (PARVAGPU / f"slo_{what}.csv" for what in ("rate_per_s", "latency_ms"))
    rates, objectives = (path.read_text(encoding="utf-8").splitlines()[number].split(",") for path in tables)
    services = [
        {"name": name, "rate_per_s": float(rate), "objective_ms": float(objective)}
        for name, rate, objective in zip(names, rates, objectives, strict=True)
        if rate != "N/A"
    ]
    return {"services": services, "latency_share": 0.45}


def time_command(command: str, folder: Path, demand: dict[str, Any], *options: str) -> tuple[dict[str, Any], str]:
    """Run a command of the planner; return its output and its time."""
    services = folder / "services.yaml"
    services.write_text(yaml.safe_dump(demand), encoding="utf-8")
    about = ("--profile", str(folder / "profile.csv"), "--gpu", f"simulated_{GPU}")
    return time_call(folder, command, str(services), *options, *about)


def time_call(folder: Path, *arguments: str) -> tuple[dict[str, Any], str]:
    """Run a command with all its arguments; return its output and its time."""
    argv = [sys.executable, "-m", "pipeline.planner", *arguments, "--json"]
    begin = time.monotonic()
    with (folder / "answer.json").open("w+") as out:
        process = subprocess.Popen(argv, stdout=out)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        if process.returncode != 0:
            raise RuntimeError(f"`{' '.join(argv)}` ended with status {process.returncode}")
        seconds, cpu_s = time.monotonic() - begin, usage.ru_utime + usage.ru_stime
        return json.load(out), f"{seconds:.1f} s, {cpu_s:.1f} s of CPU time, {usage.ru_maxrss / 1024:.0f} MiB"


def time_parvagpu(folder: Path) -> None:
    """Plan the four scenarios."""
    profile_table.write(folder / "profile.csv", profile_table.read_parvagpu(PARVAGPU))
    begin = time.monotonic()
    for number in range(4):
        plan, took = time_command("serve", folder, scenario(number))
        print(f"ParvaGPU {number + 1}: {_planned(plan)}, {took}")
    print(f"ParvaGPU, all four: {time.monotonic() - begin:.1f} s")


def time_services(folder: Path, num_services: int, seed: int, methods: bool) -> None:
    """Plan synthetic services exactly, and compare with other methods."""
    demand, profile = make_profile(num_services, seed)
    profile_table.write(folder / "profile.csv", profile)
    plan, took = time_command("serve", folder, demand)
    print(f"{num_services} services, {len(profile.rows)} rows: {_planned(plan)}, {took}")
    if methods:
        compared, _ = time_command("compare", folder, demand)
        for row in compared["methods"]:
            over = (
                "no plan"
                if row["num_gpus"] is None
                else f"{row['num_gpus'] / compared['bound'] - 1:.1%} over the bound"
            )
            print(f"  {row['method']:10} {row['num_gpus'] or '-':>5} GPUs, {over}, {row['seconds']:.2f} s")


def time_change(folder: Path, num_services: int, seed: int) -> None:
    """Plan with the fewest changes after every rate has changed by up to 10 %."""
    demand, profile = make_profile(num_services, seed)
    profile_table.write(folder / "profile.csv", profile)
    today = folder / "today.json"
    time_command("serve", folder, demand, "--out", str(today))
    chance = random.Random(seed)  # noqa: S311  made-up figures, no secret
    for service in demand["services"]:
        service["rate_per_s"] *= chance.uniform(0.9, 1.1)
    plan, took = time_command("serve", folder, demand, "--from", str(today))
    change = plan["details"]["changes"]
    proved = "proved to be the least" if change["is_least"] else f"at least {change['at_least']} changes are needed"
    print(
        f"{num_services} services, rates changed: {_planned(plan)}; {change['num_kept']} instances kept, "
        f"{change['num_created']} created, {change['num_removed']} removed, {proved}; {took}"
    )


def time_transition(folder: Path, num_services: int, seed: int) -> None:
    """Plan the transition from a plan of synthetic services to a plan for other rates, with no common instances."""
    demand, profile = make_profile(num_services, seed)
    profile_table.write(folder / "profile.csv", profile)
    plans = [str(folder / "today.json"), str(folder / "tomorrow.json")]
    chance = random.Random(seed)  # noqa: S311  made-up figures, no secret
    num_gpus = []
    for path in plans:
        num_gpus.append(str(time_command("serve", folder, demand, "--out", path)[0]["num_gpus"]))
        for service in demand["services"]:
            service["rate_per_s"] *= chance.uniform(0.7, 1.3)
    for spare in (1, 8):
        transition, took = time_call(folder, "transition", *plans, "--spare", str(spare))
        print(
            f"transition from {num_gpus[0]} to {num_gpus[1]} GPUs, {spare} spare: {len(transition['steps'])} steps, at "
            f"most {transition['longest_chain']} one after another, checked; {took}"
        )


def _planned(plan: dict[str, Any]) -> str:
    gap = "nothing proved" if plan["gap"] is None else f"gap {plan['gap']:.2%}"
    return f"{plan['num_gpus']} GPUs, {plan['status']}, {gap}"


def main(argv: Sequence[str] | None = None) -> None:
    """Run the measurements and print them."""
    parser = argparse.ArgumentParser(description="Time, memory and GPUs of the planner.")
    parser.add_argument("--services", type=int, help="plan only this number of synthetic services")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        if options.services:
            time_services(folder, options.services, options.seed, methods=True)
            return
        time_parvagpu(folder)
        time_services(folder, 100, options.seed, methods=True)
        time_change(folder, 100, options.seed)
        time_transition(folder, 72, options.seed)
        time_services(folder, 1000, options.seed, methods=False)


if __name__ == "__main__":
    main()
