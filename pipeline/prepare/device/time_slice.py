"""The time slice: for how long each of the processes that share a GPU has it in turn.

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

from pipeline.base.domain.programs import Programs
from pipeline.base.domain.records import Commands
from pipeline.base.system import command, study_cache
from pipeline.base.system.errors import CommandError, SharingError
from pipeline.base.system.host import boot_id
from pipeline.clean.journal import Journal
from pipeline.clean.kinds import undoes
from pipeline.prepare.device.smi import Smi, await_last_write

log = logging.getLogger(__name__)

VALUES = ("default", "short", "medium", "long")
"""In the order of the numbers that nvidia-smi takes."""
_READ_LIMIT_S = 10.0
_ABOUT_IT = re.compile(r"time[ _-]?slice", re.IGNORECASE)
_VALUE = re.compile(rf"\b({'|'.join(VALUES)})\b", re.IGNORECASE)


def read(smi: Smi) -> str:
    """The time slice of the GPU, one of `VALUES`.

    Raises:
        SharingError: nvidia-smi does not tell it.
    """
    try:
        completed = command.run(smi.listing_of_policies(), timeout_s=_READ_LIMIT_S, check=False)
    except CommandError as error:
        raise SharingError(f"reading the time slice of {smi.uuid}: {error}") from error
    found = _value_in(completed.stdout) if completed.status == 0 else None
    if found is None:
        raise SharingError(
            f"`{' '.join(completed.argv)}` does not tell the time slice of the GPU, so nothing was changed: "
            f"{completed.said or 'it said nothing'} (status {completed.status}). The setting came with driver R455, "
            "and not every GPU has it; use scenario=naive"
        )
    return found


@study_cache.cache_for_study
def refusal(smi: Smi) -> str | None:
    """Why the time slice cannot be set, as far as a look tells; asked once in a study, which many groups do."""
    try:
        read(smi)
    except SharingError as error:
        return str(error)
    return None


def commands(smi: Smi, wanted: str, found: str) -> Commands:
    """What sets the time slice, and what sets it back to what was found; nothing if that is the same."""
    if wanted == found:
        return Commands()
    return Commands(do=(smi.time_slice(VALUES.index(wanted)),), undo=(smi.time_slice(VALUES.index(found)),))


@contextmanager
def of(wanted: str, smi: Smi, journal: Journal) -> Iterator[None]:
    """Let the GPU have this time slice for a while. Does nothing if that is so already.

    Raises:
        SharingError: it is not told, cannot be set, or we have no permission; the GPU is as it was.
    """
    found = read(smi)
    if found == wanted:
        yield
        return
    with journal.undoing("time_slice", **smi.recorded(), found=found, ours=wanted, boot=boot_id()):
        _set(smi, wanted)
        yield


@undoes("time_slice", "set the time slice back to {found}")
def set_back(programs: Programs, uuid: str, admin: Sequence[str], found: str, ours: str, boot: str) -> None:
    """Undo `of`. What somebody else, or a restart of the machine, has set since then stays."""
    if boot != boot_id():
        return
    smi = Smi.found(programs, uuid, admin)
    await_last_write(uuid)
    there = read(smi)
    if there == ours:
        _set(smi, found)
    elif there != found:
        log.warning("the time slice of %s is %s, which this project did not set: it stays", uuid, there)


def _set(smi: Smi, wanted: str) -> None:
    await_last_write(smi.uuid)
    words = smi.time_slice(VALUES.index(wanted))
    said = smi.run(words).said
    if read(smi) != wanted:
        raise SharingError(
            f"the time slice of {smi.uuid} is not {wanted} after `{' '.join(words)}`, which said: {said}. Not every "
            "GPU has this setting, and an administrator must allow the command; then say how it is run, as in "
            "'gpu.admin=[sudo,-n]'"
        )


def _value_in(listing: str) -> str | None:
    """The one value in the lines about time slices, else in all lines: the layout is known of driver 580 only."""
    lines = listing.splitlines()
    for about in ([line for line in lines if _ABOUT_IT.search(line)], lines):
        found: set[str] = {word.lower() for line in about for word in _VALUE.findall(line)}
        if len(found) == 1:
            return found.pop()
    return None
