"""Faults that a test puts into the state: which calls of the driver fail, and how often."""

from __future__ import annotations

from dataclasses import replace

from pipeline.simulation.machine.codes import DriverError
from pipeline.simulation.machine.state import Cell, Fault


def meet(cell: Cell, function: str, gpu: int | None) -> None:
    """Count a call, and fail if a fault concerns it.

    Args:
        cell: the machine; what is left of its faults is noted in it.
        function: the C function.
        gpu: index of the GPU that the call is about; `None` if it is about none.

    Raises:
        DriverError: the call fails.
    """
    for position, fault in enumerate(cell.state.faults):
        if fault.function != function or (fault.gpu is not None and fault.gpu != gpu) or fault.times == 0:
            continue
        used = _used(fault)
        cell.state = replace(
            cell.state, faults=(*cell.state.faults[:position], used, *cell.state.faults[position + 1 :])
        )
        if fault.skip == 0:
            raise DriverError(fault.code)


def _used(fault: Fault) -> Fault:
    if fault.skip:
        return replace(fault, skip=fault.skip - 1)
    return fault if fault.times is None else replace(fault, times=fault.times - 1)
