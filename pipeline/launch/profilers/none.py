"""No profiler: jobs are started without another program."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from pipeline.base.domain.records import Commands, Device, Group
from pipeline.base.system.errors import ConfigError


class NoProfiler:
    """Profiler that puts nothing before the command of a job."""

    name = "none"

    def __init__(self, program: str | None = None, options: Sequence[str] = ()) -> None:
        for key, value in {"program": program, "options": list(options)}.items():
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
