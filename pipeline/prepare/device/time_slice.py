"""Time slice of a GPU: the time for which each process runs before the next process, if several share the GPU.

The time slice is set through nvidia-smi, read back, and restored afterwards. NVML has no function for the time slice,
so it is parsed from the output of nvidia-smi; if the output does not contain it, nothing is changed.

Sources: `nvidia-smi compute-policy --help` (R525, quoted in NVIDIA/k8s-device-plugin, issue 354). The setting exists
since R455, but not on every GPU (kubernetes-sigs/dra-driver-nvidia-gpu, pull request 1183 and issue 41). NVIDIA does
not publish the durations. A restart of the machine resets the setting.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pipeline.base.domain.driver_programs import Programs
from pipeline.base.domain.records import Commands
from pipeline.base.system import helper_program, study_cache
from pipeline.base.system.errors import CommandError, SharingError
from pipeline.base.system.host_info import boot_id
from pipeline.clean.journal import Journal
from pipeline.clean.kinds import undoes
from pipeline.prepare.device.smi_commands import Smi, await_last_write

log = logging.getLogger(__name__)

VALUES = ("default", "short", "medium", "long")
"""Names of the time slices, in the order of nvidia-smi's numbers for them."""
_READ_LIMIT_S = 10.0
_ABOUT_IT = re.compile(r"time[ _-]?slice", re.IGNORECASE)
_VALUE = re.compile(rf"\b({'|'.join(VALUES)})\b", re.IGNORECASE)


def read(smi: Smi) -> str:
    """Read the time slice of the GPU, one of `VALUES`.

    Raises:
        SharingError: nvidia-smi does not print the time slice.
    """
    try:
        argv = (smi.program, "compute-policy", "-i", smi.uuid, "-l")
        completed = helper_program.run(argv, timeout_s=_READ_LIMIT_S, check=False)
    except CommandError as error:
        raise SharingError(f"the time slice of {smi.uuid} cannot be read: {error}; use scenario=naive") from error
    time_slice = _find_value(completed.stdout) if completed.status == 0 else None
    if time_slice is None:
        raise SharingError(
            f"`{' '.join(completed.argv)}` does not print the time slice: {completed.printed_line or 'no message'} "
            f"(status {completed.status}); use scenario=naive, or a GPU with this setting and driver R455 or newer"
        )
    return time_slice


@study_cache.cache_for_study
def explain_refusal(smi: Smi) -> str | None:
    """Explain why the time slice cannot be read, or return `None`; cached, because many groups call this function."""
    try:
        read(smi)
    except SharingError as error:
        return str(error)
    return None


def list_commands(smi: Smi, target: str, previous: str) -> Commands:
    """List the commands that set the time slice and restore the previous one; no commands if both are equal."""
    if target == previous:
        return Commands()
    return Commands(
        do=(smi.time_slice_command(VALUES.index(target)),), undo=(smi.time_slice_command(VALUES.index(previous)),)
    )


@contextmanager
def hold(target: str, smi: Smi, journal: Journal) -> Iterator[None]:
    """Set this time slice during the body; do nothing if the time slice is already set.

    Raises:
        SharingError: the time slice cannot be read or set, or the command is not permitted; the GPU is unchanged.
    """
    previous = read(smi)
    if previous == target:
        yield
        return
    with journal.guard("time_slice", **smi.to_record(), found=previous, ours=target, boot=boot_id()):
        _set(smi, target)
        yield


@undoes("time_slice", "set the time slice back to {found}")
def restore(programs: Programs, uuid: str, admin: Sequence[str], found: str, ours: str) -> None:
    """Undo `hold`, unless another program has changed the time slice since then."""
    smi = Smi.locate(programs, uuid, admin)
    await_last_write(uuid)
    current = read(smi)
    if current == ours:
        _set(smi, found)
    elif current != found:
        log.warning("the time slice of %s stays %s, because another program set it", uuid, current)


def _set(smi: Smi, target: str) -> None:
    await_last_write(smi.uuid)
    words = smi.time_slice_command(VALUES.index(target))
    output = smi.run(words).printed_line
    if read(smi) != target:
        raise SharingError(
            f"the time slice of {smi.uuid} is not {target} after `{' '.join(words)}` ({output}); ask an administrator "
            "to allow this command, and set gpu.admin, as in 'gpu.admin=[sudo,-n]', or use a GPU that has this setting"
        )


def _find_value(listing: str) -> str | None:
    """Find the value in lines about time slices, else in all lines; formats other than driver 580's are unknown."""
    lines = listing.splitlines()
    for candidate_lines in ([line for line in lines if _ABOUT_IT.search(line)], lines):
        values: set[str] = {word.lower() for line in candidate_lines for word in _VALUE.findall(line)}
        if len(values) == 1:
            return values.pop()
    return None
