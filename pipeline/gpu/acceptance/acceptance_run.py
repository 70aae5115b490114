"""The list of checks, and their run on a GPU and on its twin."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.base.system import words
from pipeline.base.system.errors import CollocationError, ConfigError
from pipeline.base.system.interrupts import UndoStack
from pipeline.gpu.acceptance import instance_checks, job_checks
from pipeline.gpu.acceptance.kill_check import check_kill
from pipeline.gpu.acceptance.mig_board import MigBoard, UntriedError
from pipeline.simulation.install import install_driver

_ABSENT = "absent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check.

    Attributes:
        promise: what holds if the check finds nothing.
        writes: what it changes, apart from the undo of these changes.
        reads: what it compares.
        is_compared: whether it also runs on the twin; its readings then must not depend on time.
        needs_load: whether it runs jobs, which on a real GPU need torch and Triton.
    """

    name: str
    run: Callable[[MigBoard], dict[str, Any]]
    promise: str
    writes: str
    reads: str
    is_compared: bool = True
    needs_load: bool = False


CHECKS = (
    Check(
        name="mode",
        run=instance_checks.check_mode,
        promise="MIG mode switches on and off, and without it no instance is created",
        writes="MIG mode off and on, unless it was on; a GPU instance that is refused",
        reads="current and pending mode",
    ),
    Check(
        name="profiles",
        run=instance_checks.check_profiles,
        promise="every profile has possible placements, and as many instances of it fit as the driver says",
        writes="nothing",
        reads="slices, placements, SMs and memory of every profile",
    ),
    Check(
        name="placements",
        run=instance_checks.check_placements,
        promise="every profile can be created at each of its placements, with its size, and be destroyed",
        writes="a GPU instance with a full compute instance, for every placement of every profile",
        reads="placement, slices, SMs, memory and name of the instance",
    ),
    Check(
        name="layouts",
        run=instance_checks.check_layouts,
        promise="every maximal layout can be created, and no further instance fits",
        writes="the instances of every maximal layout of 1g, 2g, ...; a further instance that is refused",
        reads="ids and UUIDs of the instances",
    ),
    Check(
        name="compute-instances",
        run=instance_checks.check_compute_instances,
        promise="a GPU instance can be divided into every full set of compute instances, which share its memory",
        writes="a GPU instance of each size, with every set of compute instances that fills it",
        reads="width, SMs, memory and name of each compute instance",
    ),
    Check(
        name="around",
        run=instance_checks.check_placement_around,
        promise="instances can be created around an existing one, at each of its placements, without changing it",
        writes="one instance at each placement, and the largest instances that fit around it",
        reads="ids and placements",
    ),
    Check(
        name="existing",
        run=instance_checks.check_existing_layout,
        promise="jobs get the instances that exist, and a study does not change them",
        writes="the instances of one layout, twice",
        reads="the MIG device of each job, and whether UUIDs return",
    ),
    Check(
        name="refusals",
        run=instance_checks.check_refusals,
        promise="what the driver refuses, it refuses without a change",
        writes="instances of each profile, as many as fit; commands that are refused",
        reads="exit status and text of each refusal",
    ),
    Check(
        name="jobs",
        run=job_checks.check_jobs,
        promise="a job runs on its instance only, which cannot be destroyed meanwhile",
        writes="the instances of one layout; destructions that are refused",
        reads="process lists and memory of each instance",
        needs_load=True,
    ),
    Check(
        name="counters",
        run=job_checks.check_counters,
        promise="the counters of each instance show its load and no other (GPM, DCGM, where there are any)",
        writes="the instances of one layout",
        reads="GRACT, SMACT and occupancy from every listener",
        is_compared=False,
        needs_load=True,
    ),
    Check(
        name="isolation",
        run=job_checks.check_isolation,
        promise="loaded neighbours do not slow a job by more than 5 %, at equal clocks",
        writes="the instances of one layout",
        reads="rate of the job and clock of the GPU, with idle and with loaded neighbours",
        is_compared=False,
        needs_load=True,
    ),
    Check(
        name="mps",
        run=job_checks.check_mps,
        promise="each instance can have its MPS daemon, whose clients are on this instance",
        writes="the instances of one layout, an MPS daemon on two of them",
        reads="servers, clients and process lists",
        is_compared=False,
        needs_load=True,
    ),
    Check(
        name="kill",
        run=check_kill,
        promise="after a kill at any step, the journal restores the GPU",
        writes="MIG mode on, unless it was on; a GPU instance with compute instances, and a second one",
        reads="mode and instances after each kill",
        is_compared=False,
    ),
)


@dataclass(slots=True, kw_only=True)
class CheckResult:
    """The result of one check.

    Attributes:
        broken: what does not hold.
        differences: readings in which the GPU differs from its twin: name, reading of the GPU, reading of the twin.
        untried: reason why the check was not run; `None` if it was.
    """

    check: Check
    readings: dict[str, Any] = field(default_factory=dict)
    twin_readings: dict[str, Any] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    differences: list[tuple[str, Any, Any]] = field(default_factory=list)
    untried: str | None = None
    seconds: float = 0.0

    @property
    def verdict(self) -> str:
        if self.untried is not None:
            return "not tried"
        if self.broken:
            return "broken"
        return "differs" if self.differences else "holds"


def select_checks(names: Sequence[str]) -> tuple[Check, ...]:
    """Return the checks with these names, all if there is no name; `ConfigError` if a name is unknown."""
    known = {check.name: check for check in CHECKS}
    if unknown := [name for name in names if name not in known]:
        raise ConfigError(f"--only {','.join(unknown)} names no check; choose among {', '.join(known)}")
    return tuple(known[name] for name in known if not names or name in names)


def run_checks(board: MigBoard, twin: MigBoard | None, checks: Sequence[Check]) -> tuple[list[CheckResult], str | None]:
    """Run checks on a GPU and on its twin, and restore the GPU.

    Returns the results, and why the GPU is not as before, or `None` if it is.

    Raises:
        SharingError: MIG mode cannot be switched on, for want of permission; nothing was changed.
    """
    before, results = board.control.read(), list[CheckResult]()
    is_begun = False
    try:
        with UndoStack() as stack:
            if not board.was_on:
                stack.enter_context(board.journal.guard("mig_mode", **board.control.to_mode_record()))
            printed = board.switch_mode(is_on=True).printed_line
            is_begun = True
            if twin is not None:
                with install_driver(_find_machine(twin)):
                    twin.switch_mode(is_on=True)
            ready = board.control.read()
            if not ready.is_on:
                broken = f"MIG mode was not switched on; nvidia-smi printed: {printed}"
                results.append(CheckResult(check=CHECKS[0], broken=[broken]))
            for number, check in enumerate(checks, start=1):
                words.say(f"check {number} of {len(checks)}: {check.name}")
                board.record.check = check.name
                if ready.is_on and board.control.read() == ready:
                    results.append(_run_check(check, board, twin))
                elif check.name not in [result.check.name for result in results]:
                    untried = "the GPU is not in the state in which checks begin"
                    results.append(CheckResult(check=check, untried=untried))
            board.record.check = "end"
    except CollocationError as error:
        if not is_begun:
            raise
        return results, str(error)
    after = board.control.read()
    return results, None if after == before else f"the GPU was {before}, and is {after}"


def _run_check(check: Check, board: MigBoard, twin: MigBoard | None) -> CheckResult:
    result, began_s = CheckResult(check=check), time.monotonic()
    result.readings, result.untried = _read(check, board)
    result.broken, board.broken = board.broken, []
    result.seconds = time.monotonic() - began_s
    if twin is not None and check.is_compared and result.untried is None:
        with install_driver(_find_machine(twin)):
            result.twin_readings, _ = _read(check, twin)
        result.broken += [f"(simulated driver) {text}" for text in twin.broken]
        twin.broken = []
        result.differences = list(_compare(check.name, result.readings, result.twin_readings))
    return result


def _read(check: Check, board: MigBoard) -> tuple[dict[str, Any], str | None]:
    """Run a check; return its readings, or none and the reason why it cannot be tried."""
    readings: dict[str, Any] = {}
    try:
        with board.case(check.name):
            readings = check.run(board)
    except UntriedError as error:
        return {}, str(error)
    return readings, None


def _find_machine(twin: MigBoard) -> Path:
    assert twin.machine is not None, "a twin is simulated"
    return twin.machine


def _compare(name: str, reading: Any, twin_reading: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield each difference of two readings; what one of them does not know is none."""
    if reading is None or twin_reading is None or reading == twin_reading:
        return
    if isinstance(reading, Mapping) and isinstance(twin_reading, Mapping):
        for key in dict.fromkeys((*reading, *twin_reading)):
            yield from _compare(f"{name}: {key}", reading.get(key, _ABSENT), twin_reading.get(key, _ABSENT))
    elif isinstance(reading, list) and isinstance(twin_reading, list) and len(reading) == len(twin_reading):
        for number, pair in enumerate(zip(reading, twin_reading, strict=True)):
            yield from _compare(f"{name}, {number}", *pair)
    else:
        yield name, reading, twin_reading
