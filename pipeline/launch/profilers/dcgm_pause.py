"""Pausing of DCGM's own profiling while a profiler needs the performance counters of the GPU.

Before Hopper, DCGM and every profiler lock the same counters for the complete machine (NVIDIA/DCGM#56). From Hopper on,
DCGM reads its figures through GPM, another unit of the GPU, so both work at the same time (NVIDIA/DCGM#62).
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
# Source: dcgm_structs.h, DCGM_ST_CONNECTION_NOT_VALID (-21). An exit status is its last byte.
_NO_ENGINE = -21 & 0xFF


def check(group: Group, profiler: str) -> None:
    """Raise ConfigError if DCGM's profiling has to be paused for a group but `gpu.admin=null` forbids it."""
    if _has_to_pause(group) and group.gpu.admin is None:
        raise ConfigError(
            f"profiler={profiler} on {group.device.name} needs the GPU's counters, which DCGM may be using, but "
            "gpu.admin=null forbids pausing DCGM; remove the profiler, or set gpu.admin=[]"
        )


def list_commands(group: Group) -> Commands:
    """List the commands that pause and resume DCGM's profiling; none if not needed or if dcgmi is missing."""
    if not _has_to_pause(group):
        return Commands()
    programs = find_group_programs(group)
    return Commands(do=(_make_command(programs, "--pause"),), undo=(_make_command(programs, "--resume"),))


@contextmanager
def pause(group: Group, profiler: str) -> Iterator[None]:
    """Pause DCGM's profiling in this context, if necessary and if a host engine answers.

    Raises:
        ConfigError: `gpu.admin=null` forbids the pause (`check`).
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
            _log.info("DCGM's host engine does not answer, so its profiling is not paused for %s", profiler)
        yield


@undoes("dcgm_profiling", "resume DCGM's profiling")
def resume(programs: Programs) -> None:
    """Resume DCGM's profiling. Safe to repeat, and no error if the host engine has ended, which also ends the pause."""
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
        f"`{' '.join(words)}` failed with status {done.status}: {done.printed_line}; stop DCGM during the study, "
        "because a profiler needs exclusive use of the GPU's counters"
    )


def _has_to_pause(group: Group) -> bool:
    device = group.device
    # A GPU of unknown generation counts as old, because an unnecessary pause does no harm.
    return device.is_gpu and not device.has_gpm and find_group_programs(group).path("dcgmi") is not None
