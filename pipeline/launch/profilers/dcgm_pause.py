"""DCGM's own profiling, paused while a profiler needs the counters of the GPU, and resumed afterwards.

Before Hopper, DCGM and every profiler lock the same counters of the whole machine (NVIDIA/DCGM#56). From Hopper on,
DCGM reads its figures through GPM, another unit of the GPU, and both work at once (NVIDIA/DCGM#62).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pipeline.base.domain.driver_programs import Programs, find_group_programs
from pipeline.base.domain.records import Commands, Group
from pipeline.base.system import helper_program
from pipeline.base.system.errors import CommandError, ConfigError, SharingError
from pipeline.clean.journal import Journal
from pipeline.clean.kinds import undoes

_log = logging.getLogger(__name__)
_COMMAND_LIMIT_S = 30.0
_FIRST_WITH_GPM = (9, 0)  # Source: DCGM API reference, Profiling: Hopper and newer read GPM
# Source: dcgm_structs.h, DCGM_ST_CONNECTION_NOT_VALID (-21), of which a process keeps the last byte.
_NO_ENGINE = -21 & 0xFF


def check(group: Group, profiler: str) -> None:
    """Raise ConfigError if profiling has to be paused for a group, and `gpu.admin=null` forbids it."""
    if _has_to_pause(group) and group.gpu.admin is None:
        raise ConfigError(
            f"profiler={profiler} on {group.device.name} needs the counters that DCGM may hold, and gpu.admin=null "
            "forbids pausing it; leave the profiler out, or set gpu.admin=[]"
        )


def list_commands(group: Group) -> Commands:
    """List the commands that pause and resume DCGM's profiling; none if not needed or without dcgmi."""
    if not _has_to_pause(group):
        return Commands()
    programs = find_group_programs(group)
    return Commands(do=(_make_command(programs, "--pause"),), undo=(_make_command(programs, "--resume"),))


@contextmanager
def pause(group: Group, profiler: str) -> Iterator[None]:
    """Keep DCGM from the counters for a while, if it would be in the way and a host engine answers.

    Raises:
        ConfigError: as `check`.
        SharingError: the host engine did not pause, or did not resume.
        JournalError: the journal cannot be written.
    """
    check(group, profiler)
    if not _has_to_pause(group):
        yield
        return
    programs = find_group_programs(group)
    journal = Journal(group.gpu.lock_dir, group.device.uuid, programs)
    with journal.guard("dcgm_profiling"):
        if not _run(_make_command(programs, "--pause")):
            _log.info("no host engine of DCGM answers: nothing is paused for %s", profiler)
        yield


@undoes("dcgm_profiling", "let DCGM profile again")
def resume(programs: Programs) -> None:
    """Let DCGM profile again. Safe to repeat; content with a host engine that is gone, and its pause with it."""
    _run(_make_command(programs, "--resume"))


def _make_command(programs: Programs, what: str) -> tuple[str, ...]:
    return (programs.find("dcgmi"), "profile", what)


def _run(words: Sequence[str]) -> bool:
    try:
        done = helper_program.run(words, timeout_s=_COMMAND_LIMIT_S, check=False)
    except CommandError as error:
        raise SharingError(f"DCGM's profiling was not changed: {error}") from error
    if done.status == 0:
        return True
    if done.status == _NO_ENGINE:
        return False
    raise SharingError(
        f"`{' '.join(words)}` failed with status {done.status}: {done.printed_line}; stop DCGM during the study, as a "
        "profiler needs the counters of the GPU for itself"
    )


def _has_to_pause(group: Group) -> bool:
    device = group.device
    # A GPU that does not tell its compute capability counts as old, because to pause in vain does no harm.
    capability = tuple(map(int, dict(device.details).get("compute_capability", "0.0").split(".")))
    return device.is_gpu and capability < _FIRST_WITH_GPM and find_group_programs(group).path("dcgmi") is not None
