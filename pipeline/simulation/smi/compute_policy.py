"""`nvidia-smi compute-policy`: shows and sets the time slice of processes that share a GPU.

The list was recorded on an H100 80GB (driver 580.159.04). The name of the setting, and the message for GPUs that do not
have it (status 3), are from public transcripts: the help text of R525 (NVIDIA/k8s-device-plugin, issue 354) and a Tesla
P4 (kubernetes-sigs/dra-driver-nvidia-gpu, issue 41). The success message is this project's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipeline.simulation.machine import codes
from pipeline.simulation.machine.codes import DriverError
from pipeline.simulation.machine.driver import Driver
from pipeline.simulation.simulated_program import RefusedError, say
from pipeline.simulation.smi.smi_tables import Numbered

SET = "--set-timeslice"
_VALUES = ("Default", "Short", "Medium", "Long")
_RULE = "+-------------------------------------+"
_HEADER = (
    _RULE,
    "| GPU compute policies:               |",
    "| GPU     Name           Value        |",
    "|=====================================|",
)


def run(driver: Driver, options: Mapping[str, str | None], gpus: Sequence[Numbered]) -> None:
    """Apply the options to these GPUs, or list their settings."""
    value = options.get(SET)
    if value is None:
        rows = [f"|{index:>4}   {'Timeslice':<16}{_VALUES[gpu.timeslice]:<14}|" for index, gpu in gpus]
        return say(*_HEADER, *rows, _RULE)
    if value not in map(str, range(len(_VALUES))):
        raise RefusedError(f"{SET} must be 0, 1, 2 or 3, not {value}.", codes.INVALID_ARGUMENT)
    name = _VALUES[int(value)]
    for index, _ in gpus:
        try:
            driver.set_timeslice(index, int(value))
        except DriverError as error:
            message = f"Failed to set timeslice policy with value {name} for GPU {index} : {error}\n"
            message += f"Failed to set timeslice for requested devices : {error}"
            raise RefusedError(message, error.code) from error
        say(f"Timeslice policy of GPU {index} is {name}.")
    return None
