"""The run of checks on a GPU and on its twin, and their results."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeline.base.system import words
from pipeline.base.system.errors import CollocationError, ConfigError
from pipeline.base.system.interrupts import UndoStack
from pipeline.gpu.acceptance.checks import CHECKS, Check
from pipeline.gpu.acceptance.mig_board import MigBoard, UntriedError

_ABSENT = "absent"


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
    checks = {check.name: check for check in CHECKS}
    if unknown := [name for name in names if name not in checks]:
        raise ConfigError(f"--only {','.join(unknown)} names no check; choose among {', '.join(checks)}")
    return tuple(checks[name] for name in checks if not names or name in names)


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
                with twin.use_driver():
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
        with twin.use_driver():
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
