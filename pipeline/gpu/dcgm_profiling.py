"""DCGM's own profiling, paused while a profiler needs the counters of the GPU, and resumed afterwards.

Before Hopper, DCGM and every profiler lock the same counters of the whole machine (NVIDIA/DCGM#56). From Hopper on,
DCGM reads its figures through GPM, another unit of the GPU, and both work at once (NVIDIA/DCGM#62).
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline import command
from pipeline.errors import CommandError, ConfigError, SharingError
from pipeline.journal import Journal
from pipeline.protocols import Profiler
from pipeline.types import Group

_log = logging.getLogger(__name__)
_COMMAND_LIMIT_S = 30.0
_FIRST_WITH_GPM = (9, 0)  # Source: DCGM API reference, Profiling: Hopper and newer read GPM
# Source: dcgm_structs.h, DCGM_ST_CONNECTION_NOT_VALID (-21), of which a process keeps the last byte.
_NO_ENGINE = -21 & 0xFF


def commands(group: Group, profiler: Profiler) -> tuple[tuple[str, ...], ...]:
    """What pauses and resumes DCGM's profiling for a group; nothing where neither is needed or there is no dcgmi.

    Raises:
        ConfigError: it is needed, and `gpu.admin=null` forbids to change anything.
    """
    device = group.device
    if not device.is_gpu or not profiler.uses_counters or _capability(group) >= _FIRST_WITH_GPM:
        return ()
    program = dict(device.programs).get("dcgmi") if device.is_simulated else shutil.which("dcgmi")
    if program is None:
        return ()
    if group.gpu.admin is None:
        raise ConfigError(
            f"profiler={profiler.name} on {device.name} needs the counters that DCGM may hold, and gpu.admin=null "
            "forbids to pause it; leave the profiler out, or say gpu.admin=[]"
        )
    path = str(Path(program).absolute())
    return ((path, "profile", "--pause"), (path, "profile", "--resume"))


@contextmanager
def paused(group: Group, profiler: Profiler) -> Iterator[None]:
    """DCGM takes no counters for a while, if it would be in the way. Nothing happens where no host engine answers.

    Raises:
        SharingError: the host engine did not pause, or did not resume.
        JournalError: the journal cannot be written.
    """
    words = commands(group, profiler)
    if not words:
        yield
        return
    program = words[0][0]
    journal = Journal(group.gpu.lock_dir, group.device.uuid)
    with journal.undoing("dcgm_profiling", program=program):
        if not _tell(program, "--pause"):
            _log.info("no host engine of DCGM answers: nothing is paused for %s", profiler.name)
        yield


def resume(program: str) -> None:
    """Let DCGM profile again. Safe to repeat; content with a host engine that is gone, and its pause with it.

    Raises:
        SharingError: it did not.
    """
    _tell(program, "--resume")


def _tell(program: str, what: str) -> bool:
    """Returns whether a host engine was there to hear it."""
    try:
        done = command.run([program, "profile", what], timeout_s=_COMMAND_LIMIT_S, check=False)
    except CommandError as error:
        raise SharingError(f"DCGM's profiling ({what}): {error}") from error
    if done.status == 0:
        return True
    if done.status == _NO_ENGINE:
        return False
    said = " / ".join(line.strip() for line in f"{done.stdout}\n{done.stderr}".splitlines() if line.strip())
    raise SharingError(
        f"`{program} profile {what}` ended with status {done.status} and said: {said}. A profiler and DCGM cannot "
        f"both have the GPU's counters; try the command by hand, or stop DCGM for the time of the study"
    )


def _capability(group: Group) -> tuple[int, ...]:
    """Compute capability; that of a GPU that does not tell counts as old, because to pause in vain does no harm."""
    text = dict(group.device.details).get("compute_capability", "0.0")
    return tuple(int(part) for part in text.split("."))
