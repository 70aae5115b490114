"""`gpu.exclusive_process`: only the MPS server may compute on the GPU, so that bypassing MPS fails loudly.

Set through nvidia-smi, read back through NVML, and set back to what was found.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pipeline import command
from pipeline.errors import CommandError, ConfigError, SharingError
from pipeline.gpu import nvml
from pipeline.journal import Journal
from pipeline.types import Group

_COMMAND_LIMIT_S = 60.0
_EXCLUSIVE = "exclusive_process"


def refuse(group: Group, why: str) -> None:
    """Check that a sharing mode that cannot use it was not told to.

    Raises:
        ConfigError: `gpu.exclusive_process` is set.
    """
    if group.config.gpu.exclusive_process and not group.sequential:
        raise ConfigError(f"gpu.exclusive_process is for scenario=mps and mps_percent; scenario={group.scenario} {why}")


def refuse_one_process_only(group: Group) -> None:
    """Check that several processes may compute on the device.

    Raises:
        ConfigError: its compute mode forbids it.
    """
    mode = dict(group.device.details).get("compute_mode", "default")
    most = {"exclusive_process": 1, "exclusive_thread": 1, "prohibited": 0}.get(mode)
    at_once = 1 if group.sequential else group.degree
    if most is not None and at_once > most:
        device = group.device
        raise ConfigError(
            f"scenario={group.scenario} needs {at_once} processes at once on {device.name} ({device.uuid}), whose "
            f"compute mode {mode} allows {most}; an administrator can change that: "
            f"nvidia-smi -i {device.uuid} -c DEFAULT"
        )


def commands(uuid: str, program: str, admin: tuple[str, ...], found: str) -> tuple[tuple[str, ...], ...]:
    """What sets the mode, and what sets it back to what was found."""
    return tuple((*admin, program, "-i", uuid, "-c", mode.upper()) for mode in (_EXCLUSIVE, found))


@contextmanager
def exclusive(uuid: str, program: str, admin: tuple[str, ...], journal: Journal) -> Iterator[None]:
    """Let only one process compute on the GPU for a while. Does nothing if that is so already.

    Raises:
        SharingError: it was not set, or not set back.
        JournalError: the journal cannot be written.
    """
    found = nvml.compute_mode(uuid)
    if found == _EXCLUSIVE:
        yield
        return
    with journal.undoing("compute_mode", uuid=uuid, program=program, admin=list(admin), mode=found):
        set_mode(uuid, program, list(admin), _EXCLUSIVE)
        yield


def set_mode(uuid: str, program: str, admin: list[str], mode: str) -> None:
    """Set the compute mode, unless it is that already. Undoes `exclusive`, and is safe to repeat.

    Raises:
        SharingError: the mode is another one afterwards.
    """
    if nvml.compute_mode(uuid) == mode:
        return
    argv = [*admin, program, "-i", uuid, "-c", mode.upper()]
    try:
        done = command.run(argv, timeout_s=_COMMAND_LIMIT_S, check=False)
    except CommandError as error:
        raise SharingError(f"the compute mode of {uuid}: {error}") from error
    if nvml.compute_mode(uuid) != mode:
        said = " / ".join(line.strip() for line in f"{done.stdout}\n{done.stderr}".splitlines() if line.strip())
        raise SharingError(
            f"the compute mode of {uuid} is not {mode} after `{' '.join(argv)}`, which said: {said}. An administrator "
            "must allow this command; then say how it is run, as in 'gpu.admin=[sudo,-n]'"
        )
