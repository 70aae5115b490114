"""Profilers of NVIDIA Nsight, which are started before each job and whose reports become artifacts of the jobs.

A profiler slows its job down, so groups with a profiler are compared only with each other. The profiler is the leading
process of its job: it starts the program, writes its report into the job's folder, and returns the program's exit
status.
"""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from pipeline.base.domain.driver_programs import Programs, find_group_programs
from pipeline.base.domain.records import Commands, Device, Group
from pipeline.base.system import helper_program, words
from pipeline.base.system.errors import CommandError, ConfigError, SharingError
from pipeline.base.system.option_fields import option
from pipeline.base.system.paths import expand_path
from pipeline.clean.journal import Journal
from pipeline.clean.kinds import undoes
from pipeline.launch.profilers.none import ARGUMENTS, ProfilerOptions

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


def _make_command(programs: Programs, action: str) -> tuple[str, ...]:
    return (programs.find("dcgmi"), "profile", action)


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


_REPORT = "profile"


@dataclass
class _Nsight(ProfilerOptions):
    """A profiler of NVIDIA Nsight, one process per job.

    Raises:
        ConfigError: an option sets the path of the report, which this class sets.
    """

    name: ClassVar[str]
    suffix: ClassVar[str]
    product: ClassVar[str]
    places: ClassVar[tuple[str, ...]]
    own_options: ClassVar[tuple[str, ...]]

    def __post_init__(self) -> None:
        self._options = tuple(map(str, self.options))
        for argument in self._options:
            if argument.split("=")[0] in self.own_options:
                raise ConfigError(
                    f"profiler.options={words.format_list(self._options)} sets {argument}, which this project sets "
                    f"itself; remove {argument}"
                )

    def check(self, group: Group) -> None:
        self._find_program()
        check(group, self.name)

    def list_setting_commands(self, group: Group) -> Commands:
        return list_commands(group)

    def prepare(self, group: Group) -> AbstractContextManager[None]:
        return pause(group, self.name)

    def notes(self, device: Device) -> tuple[str, ...]:
        cost = (
            f"profiler={self.name}: every figure includes the cost of the profiler; these groups are compared only "
            "with each other"
        )
        if device.is_gpu and not device.is_simulated:
            return (cost,)
        return (cost, f"profiler={self.name}: no job computes on a GPU here, so the reports contain no kernels")

    def report(self, folder: Path) -> Path | None:
        path = folder / f"{_REPORT}{self.suffix}"
        return path if path.is_file() and path.stat().st_size else None

    def _find_program(self) -> str:
        if self.program is not None:
            path = shutil.which(expand_path("profiler.program", self.program))
            if path is None:
                raise ConfigError(
                    f"profiler.program={self.program} is neither the path of an executable nor a program on PATH; "
                    f"correct the key, or install {self.product}"
                )
            return str(Path(path).absolute())
        path = next(filter(None, map(shutil.which, [self.name, *self._list_installed()])), None)
        if path is None:
            looked = ", ".join(["PATH", *self.places])
            raise ConfigError(
                f"profiler={self.name} needs {self.product}, but {self.name} is not in {looked}; install it, or set "
                f"profiler.program=/path/to/{self.name}"
            )
        return str(Path(path).absolute())

    def _list_installed(self) -> list[str]:
        paths = [str(path) for place in self.places for path in Path("/").glob(place.lstrip("/"))]
        return sorted(paths, key=lambda path: [int(number) for number in re.findall(r"\d+", path)], reverse=True)


@dataclass
class Nsys(_Nsight):
    """Nsight Systems: start and end of each kernel, copy and CUDA call of the job.

    Source: Nsight Systems user guide, "CLI Profile Command Switch Options": a report is `<output>.nsys-rep`; `%` begins
    a placeholder in its name.
    """

    name = "nsys"
    suffix = ".nsys-rep"
    product = "NVIDIA Nsight Systems"
    places = ("/usr/local/cuda/bin/nsys", "/opt/nvidia/nsight-systems*/*/bin/nsys")
    own_options = ("-o", "--output", "-f", "--force-overwrite")
    # These traces need no privileges.
    options: list[str] = option(ARGUMENTS, ["--trace=cuda,nvtx", "--sample=none", "--cpuctxsw=none"])

    def prefix(self, folder: Path) -> tuple[str, ...]:
        output = f"--output={_escape(folder / _REPORT)}"
        return (self._find_program(), "profile", output, "--force-overwrite=true", *self._options)


@dataclass
class Ncu(_Nsight):
    """Nsight Compute: counters of single kernels, each of which is replayed several times, alone on the GPU.

    Source: Nsight Compute CLI, "Command Line Options" and "Multi-Process Support": a report is `<export>.ncu-rep`; `%`
    begins a placeholder in its name; profiled processes on one machine take turns, kernel by kernel.
    """

    name = "ncu"
    suffix = ".ncu-rep"
    product = "NVIDIA Nsight Compute"
    places = ("/usr/local/cuda/bin/ncu", "/opt/nvidia/nsight-compute/*/ncu")
    own_options = ("-o", "--export", "-f", "--force-overwrite", "--target-processes")
    # ncu slows each kernel down many times, and by default locks the clocks for all users of the GPU.
    options: list[str] = option(ARGUMENTS, ["--launch-count", "100", "--clock-control", "none"])

    def notes(self, device: Device) -> tuple[str, ...]:
        turns = (
            "profiler=ncu: each profiled kernel is replayed alone, and the kernels of several jobs take turns, so "
            "throughput and utilisation of these groups do not show the effect of sharing the GPU"
        )
        return (*super().notes(device), turns)

    def prefix(self, folder: Path) -> tuple[str, ...]:
        output = ("--export", _escape(folder / _REPORT), "--force-overwrite")
        return (self._find_program(), "--target-processes", "all", *output, *self._options)


def _escape(path: Path) -> str:
    return str(path).replace("%", "%%")
