"""Profilers of NVIDIA Nsight, which are started before each job and whose reports become artifacts of the jobs.

A profiler slows its job down, so groups with a profiler are compared only with each other. The profiler is the leading
process of its job: it starts the program, writes its report into the job's folder, and returns the program's exit
status.
"""

from __future__ import annotations

import re
import shutil
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from pipeline.base.domain.records import Commands, Device, Group
from pipeline.base.system import words
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.option_fields import option
from pipeline.base.system.paths import expand_path
from pipeline.launch.profilers import dcgm_pause
from pipeline.launch.profilers.none import ARGUMENTS, ProfilerOptions

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
        dcgm_pause.check(group, self.name)

    def list_setting_commands(self, group: Group) -> Commands:
        return dcgm_pause.list_commands(group)

    def prepare(self, group: Group) -> AbstractContextManager[None]:
        return dcgm_pause.pause(group, self.name)

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
