"""No profiler: jobs are started without another program."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from pipeline.base.domain.records import Commands, Device, Group
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.option_fields import option

ARGUMENTS = "arguments of the profiler, passed verbatim"


@dataclass
class ProfilerOptions:
    """Options of a profiler."""

    program: str | None = option("path of the profiler, if not on PATH or in its usual folder", None, values="path")
    options: list[str] = option(ARGUMENTS, [])


@dataclass
class NoProfiler(ProfilerOptions):
    """Profiler that puts nothing before the command of a job."""

    name = "none"

    def __post_init__(self) -> None:
        for key, value in {"program": self.program, "options": list(self.options)}.items():
            if value:
                raise ConfigError(
                    f"profiler.{key}={value} has no effect without a profiler; choose profiler=nsys or profiler=ncu"
                )

    def check(self, group: Group) -> None: ...

    def list_setting_commands(self, group: Group) -> Commands:
        return Commands()

    def prepare(self, group: Group) -> AbstractContextManager[None]:
        return nullcontext()

    def notes(self, device: Device) -> tuple[str, ...]:
        return ()

    def prefix(self, folder: Path) -> tuple[str, ...]:
        return ()

    def report(self, folder: Path) -> Path | None:
        return None
