"""The faults that a user asks for in `gpu.faults`, checked word by word."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

import pynvml

from pipeline.errors import ConfigError
from pipeline.simulation import mps_control
from pipeline.simulation.nvml_library import NvmlLibrary
from pipeline.simulation.state import Fault

_CODES = {
    name.removeprefix("NVML_ERROR_"): code
    for name, code in vars(pynvml).items()
    if name.startswith("NVML_ERROR_") and isinstance(code, int)
}
_NUMBERS = {"skip": 0, "times": 1, "gpu": 0}  # and the least that each may be
# Ways in which MPS can fail; `bypass` is one of the job and not of the daemon.
_MPS_FAULTS = {f"mps_{name}": name for name in sorted({*mps_control.FAULTS, "bypass"})}


def parse(entries: Sequence[Any], num_gpus: int) -> tuple[tuple[Fault, ...], tuple[str, ...]]:
    """What shall fail.

    Args:
        entries: of `gpu.faults`: dictionaries with the attributes of `Fault`, whose `code` may be one of NVML's names,
            and names of faults of MPS.
        num_gpus: of the machine.

    Returns:
        Calls of the driver, and the faults of MPS as `State.mps_faults` names them.

    Raises:
        ConfigError: an entry is no such fault; says what it could be.
    """
    calls, of_mps = [], []
    for position, entry in enumerate(entries):
        if isinstance(entry, str) and entry in _MPS_FAULTS:
            of_mps.append(_MPS_FAULTS[entry])
        else:
            calls.append(_fault(position, entry, num_gpus))
    return tuple(calls), tuple(of_mps)


def _fault(position: int, entry: Any, num_gpus: int) -> Fault:
    where = f"gpu.faults[{position}]"
    if not isinstance(entry, dict) or not {"function", "code"} <= entry.keys() <= {"function", "code", *_NUMBERS}:
        raise ConfigError(
            f"{where}={entry}: must be a dictionary of function and code and, if wanted, skip, times and gpu, "
            "as {function: nvmlGpuInstanceDestroy, code: IN_USE}; or the name of a fault of MPS: "
            f"{', '.join(_MPS_FAULTS)}"
        )
    function = str(entry["function"])
    code: Any = _CODES.get(str(entry["code"]), entry["code"])
    if function not in (known := NvmlLibrary.functions()):
        near = difflib.get_close_matches(function, known) or ["one as nvmlGpuInstanceDestroy"]
        raise ConfigError(f"{where}: the simulated driver is never asked for {function}; perhaps {' or '.join(near)}")
    if isinstance(code, bool) or code not in _CODES.values():
        raise ConfigError(
            f"{where}: code={code} is not an error of NVML; give its number or one of {', '.join(_CODES)}"
        )
    for key, least in _NUMBERS.items():
        value = entry.get(key)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
            raise ConfigError(f"{where}: {key}={value} must be a whole number, at least {least}")
    gpu = entry.get("gpu")
    if gpu is not None and gpu >= num_gpus:
        raise ConfigError(f"{where}: gpu={gpu}, but the machine has {num_gpus} GPUs, counted from 0")
    return Fault(
        function=function,
        code=code,
        skip=entry.get("skip") or 0,
        times=entry.get("times", 1),
        gpu=gpu,
    )
