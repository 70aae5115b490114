"""Time slice of a GPU: how long each of the processes that share it runs in turn.

Set through nvidia-smi, read back, and set back to what was found. NVML does not know it, so it is read from what
nvidia-smi lists; a list that does not tell it is refused before anything is changed.

Sources: `nvidia-smi compute-policy --help` (R525, quoted in NVIDIA/k8s-device-plugin, issue 354); R455 brought it, and
some GPUs do not have it (kubernetes-sigs/dra-driver-nvidia-gpu, pull request 1183 and issue 41). How long each is,
NVIDIA does not say. It is not kept over a restart.
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
"""In the order of the numbers that nvidia-smi takes."""
_READ_LIMIT_S = 10.0
_ABOUT_IT = re.compile(r"time[ _-]?slice", re.IGNORECASE)
_VALUE = re.compile(rf"\b({'|'.join(VALUES)})\b", re.IGNORECASE)


def read(smi: Smi) -> str:
    """Read the time slice of the GPU, one of `VALUES`.

    Raises:
        SharingError: nvidia-smi does not tell it.
    """
    try:
        completed = helper_program.run(smi.policy_command(), timeout_s=_READ_LIMIT_S, check=False)
    except CommandError as error:
        raise SharingError(f"the time slice of {smi.uuid} cannot be read: {error}") from error
    time_slice = _find_value(completed.stdout) if completed.status == 0 else None
    if time_slice is None:
        raise SharingError(
            f"`{' '.join(completed.argv)}` does not show the time slice of the GPU, which needs driver R455 and not "
            f"every GPU has: {completed.printed_line or 'no message'} (status {completed.status}); use scenario=naive"
        )
    return time_slice


@study_cache.cache_for_study
def explain_refusal(smi: Smi) -> str | None:
    """Explain why the time slice cannot be read; asked once in a study, which many groups do."""
    try:
        read(smi)
    except SharingError as error:
        return str(error)
    return None


def list_commands(smi: Smi, target: str, previous: str) -> Commands:
    """List the commands that set the time slice and set it back; none if both are the same."""
    if target == previous:
        return Commands()
    return Commands(
        do=(smi.time_slice_command(VALUES.index(target)),), undo=(smi.time_slice_command(VALUES.index(previous)),)
    )


@contextmanager
def hold(target: str, smi: Smi, journal: Journal) -> Iterator[None]:
    """Let the GPU have this time slice for a while; do nothing if that is already so.

    Raises:
        SharingError: it is not told, cannot be set, or we have no permission; the GPU is as it was.
    """
    previous = read(smi)
    if previous == target:
        yield
        return
    with journal.guard("time_slice", **smi.to_record(), found=previous, ours=target, boot=boot_id()):
        _set(smi, target)
        yield


@undoes("time_slice", "set the time slice back to {found}")
def restore(programs: Programs, uuid: str, admin: Sequence[str], found: str, ours: str, boot: str) -> None:
    """Undo `hold`; a time slice that somebody else, or a restart, has set since then stays."""
    if boot != boot_id():
        return
    smi = Smi.locate(programs, uuid, admin)
    await_last_write(uuid)
    current = read(smi)
    if current == ours:
        _set(smi, found)
    elif current != found:
        log.warning("the time slice of %s stays %s, as another program set it", uuid, current)


def _set(smi: Smi, target: str) -> None:
    await_last_write(smi.uuid)
    words = smi.time_slice_command(VALUES.index(target))
    output = smi.run(words).printed_line
    if read(smi) != target:
        raise SharingError(
            f"the time slice of {smi.uuid} is not {target} after `{' '.join(words)}` ({output}), and not every GPU has "
            "this setting; have an administrator allow the command, and set gpu.admin, as in 'gpu.admin=[sudo,-n]'"
        )


def _find_value(listing: str) -> str | None:
    """Find the one value in the lines about time slices, else in all lines: only the layout of driver 580 is known."""
    lines = listing.splitlines()
    for about in ([line for line in lines if _ABOUT_IT.search(line)], lines):
        values: set[str] = {word.lower() for line in about for word in _VALUE.findall(line)}
        if len(values) == 1:
            return values.pop()
    return None
