"""A study is killed in a container and resumed on another host, boot or driver: no row is compared across them.

Unfinished blocks begin again, finished ones stay, and what the dead container left open is closed, or named.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

from pipeline.base.domain.records import Result
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.plan import config_schema
from pipeline.simulation.machine.state_file import Settings, StateFile
from tests.attack import container
from tests.attack.bench import PATIENT, Bench, Outcome
from tests.attack.store_reader import StoredRun, groups_of, read_runs
from tests.support import forks

_JOB = PROJECT_DIR / "tests/toys/paced.py"
_WINDOW = ["window.seconds=0.2", "window.settle_s=0.05"]
_FINDINGS = {result.value for result in Result if result.is_finding}
_FACTS = (
    *("gpu_uuid", "boot_id", "driver_version", "power_limit_w", "ecc_mode"),
    *("graphics_clock_setting_mhz", "memory_clock_setting_mhz"),
)
_IDENTITIES: tuple[set[str], ...] = (
    set(),
    {"host"},
    {"host", "machine_id"},
    {"boot_id"},
    {"host", "boot_id"},
    {"machine_id", "boot_id"},
    {"host", "machine_id", "boot_id"},
)
_BEFORE = Settings(power_limit_w=400, graphics_clock_mhz=1410)
_SETTINGS = {
    "nothing": ("615", {}),
    "driver": ("580", {}),
    "power limit": ("615", {"power_limit_w": 300}),
    "ECC": ("615", {"is_ecc_on": False}),
    "clock": ("615", {"graphics_clock_mhz": 1005}),
    "driver and ECC": ("590", {"is_ecc_on": False}),
}
"""The branch of the driver after the kill, and the settings of the GPU that are others then."""
_TOLERANCE = 0.001
_NUM_GROUPS = 6  # of two modes in three blocks
_LATEST_S = 1.0  # after a group has begun, in which some end


def attack(bench: Bench, random: Random) -> Outcome:
    """Kill a study, change the machine, and resume."""
    names, settings = random.choice(_IDENTITIES), random.choice(list(_SETTINGS))
    experiment = f"machines-{random.getrandbits(32):08x}-rehearsal"
    pace = bench.folder / "pace"
    pace.write_text("4")
    study = ["-m", f"scenario=serial,{random.choice(('naive', 'mps', 'mig'))}", "degree=2", "repeats=3"]
    study += [f"workload.script={_JOB}", f"workload.args=[{pace}]", *_WINDOW, *PATIENT]
    study += [f"tracking.experiment={experiment}"]
    study += ["foreign_load=note"] if hasattr(config_schema, "ForeignLoad") else []
    outcome = Outcome(f"another {', '.join(sorted(names)) or 'container'}, {settings} of the GPU changed")
    _set_up(bench, _BEFORE)
    process = bench.start_in_container(*study)
    _wait_for_group(bench, process, random.randint(1, _NUM_GROUPS))
    time.sleep(random.uniform(0, _LATEST_S))
    if process.poll() is None:
        process.kill()
        outcome.num_kills += 1
    outcome.problems += bench.end(process)
    branch, changed = _SETTINGS[settings]
    _set_up(bench, dataclasses.replace(_BEFORE, **changed), branch)
    pace.write_text("12")
    identity = container.make_identity(names)
    again = bench.start_in_container(*study, "resume=true", identity=identity)
    outcome.problems += bench.end(again)
    if again.returncode != 0:
        outcome.problems.append(f"resumed, it ended with {again.returncode}: {bench.printed[-1500:]}")
    is_elsewhere = {"host", "machine_id", "boot_id"} <= names
    outcome.problems += _open_runs(bench, identity, experiment, is_elsewhere=is_elsewhere)
    outcome.problems += _mixed_states(groups_of(read_runs(bench.root / "mlflow.db", experiment)))
    outcome.problems += bench.wrong_figures(experiment)
    _set_up(bench, Settings())
    outcome.problems += bench.problems_after()
    return outcome


def _wait_for_group(bench: Bench, process: forks.Process, number: int) -> None:
    """Wait until so many groups have begun, or the study has ended: the spool has a folder for each."""
    begun, before = set[Path](), set(_list_groups(bench))
    while process.poll() is None and len(begun) < number:
        begun |= set(_list_groups(bench)) - before
        time.sleep(0.02)


def _list_groups(bench: Bench) -> Iterator[Path]:
    return (bench.root / "spool").glob("*/[0-9]*-*")


def _set_up(bench: Bench, settings: Settings, branch: str = "615") -> None:
    """Give the GPU settings and a driver, as its administrator may."""
    with StateFile(bench.machine).change() as cell:
        gpu = dataclasses.replace(cell.state.gpus[0], settings=settings)
        cell.state = dataclasses.replace(cell.state.replace_gpu(0, gpu), branch=branch)


def _open_runs(bench: Bench, identity: container.Identity, experiment: str, *, is_elsewhere: bool) -> Iterator[str]:
    """Name runs that nobody closes, nor says so."""
    status, printed = bench.flush_in_container(identity)
    running = [run.name for run in read_runs(bench.root / "mlflow.db", experiment) if run.status == "RUNNING"]
    if is_elsewhere and (running or status):
        if status != 1 or "--close-lost" not in printed:
            yield f"of what the other host left open, flush says, with status {status}: {printed[-1500:]}"
        status, printed = bench.flush_in_container(identity, "--close-lost")
        running = [run.name for run in read_runs(bench.root / "mlflow.db", experiment) if run.status == "RUNNING"]
    if status != 0:
        yield f"flush ended with {status}: {printed[-1500:]}"
    if running:
        yield f"still running, and flush ended with {status}: {running}"


def _mixed_states(groups: Sequence[StoredRun]) -> Iterator[str]:
    """Name what was not begun again, or begun again without need, and comparisons across states."""
    finding_runs = [run for run in groups if run.tags.get("result") in _FINDINGS]
    shards: dict[str, list[StoredRun]] = defaultdict(list)
    for run in finding_runs:
        shards[run.tags["plan_shard"]].append(run)
    for shard, runs in shards.items():
        members = {run.tags["digest"] for run in runs}
        by_state: dict[tuple[str | None, ...], list[str]] = defaultdict(list)
        for run in runs:
            by_state[_state(run)].append(run.tags["digest"])
        for digests in by_state.values():
            if len(digests) > len(set(digests)):
                yield f"shard {shard}: a group has several results of one state"
        complete_states = [state for state, digests in by_state.items() if set(digests) == members]
        if not complete_states:
            yield f"shard {shard} is whole in no state: {_counts(by_state)}"
        elif len(by_state) > 1 and complete_states[0] == next(iter(by_state)):
            yield f"shard {shard} was finished and begun again: {_counts(by_state)}"
        yield from _wrong_speedups(shard, runs)


def _wrong_speedups(shard: str, runs: Sequence[StoredRun]) -> Iterator[str]:
    """Name the speed-ups that are not over the serial rows of the same state."""
    for run in runs:
        if (speedup := run.metrics.get("speedup_vs_serial_ratio")) is None or run.name.startswith("serial"):
            continue
        serial = [row for row in runs if row.name.startswith("serial") and _state(row) == _state(run)]
        alone = [rate for row in serial for rate in _rates(row)]
        if not alone:
            yield f"shard {shard}: {run.name} has speed-up {speedup:.3g} over rows of another state"
            continue
        slowest, fastest = (sum(_rates(run)) / rate for rate in (max(alone), min(alone)))
        if not slowest * (1 - _TOLERANCE) <= speedup <= fastest * (1 + _TOLERANCE):
            yield f"shard {shard}: {run.name} has speed-up {speedup:.3g}, which is {slowest:.3g} to {fastest:.3g}"


def _rates(run: StoredRun) -> list[float]:
    return [job["throughput_samples_per_s"] for job in json.loads(run.tags["rates"]).values()]


def _state(run: StoredRun) -> tuple[str | None, ...]:
    return tuple(run.tags.get(fact) for fact in _FACTS)


def _counts(by_state: dict[tuple[str | None, ...], list[str]]) -> str:
    return ", ".join(f"{len(set(digests))} groups of {state}" for state, digests in by_state.items())
