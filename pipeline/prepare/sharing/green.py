"""Green contexts: as `streams`, but each job has a part of the multiprocessors of its own (docs/one_process.md)."""

from __future__ import annotations

import dataclasses

from pipeline.base.domain.records import Group, HostProgram
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.prepare.sharing.streams import Streams


class Green(Streams):
    """One process with a green context for each job. Options: `pipeline.plan.config_schema.GreenConfig`."""

    def __init__(self, multiprocessors: int | None = None) -> None:
        if multiprocessors is not None and multiprocessors < 1:
            raise ConfigError(f"scenario.multiprocessors={multiprocessors} must be at least 1")
        self._multiprocessors = multiprocessors

    def choose_host(self, group: Group) -> HostProgram:
        """Return the program that hosts the jobs, which splits the multiprocessors and reads them back."""
        host = HostProgram(script=str(PROJECT_DIR / "workloads" / "host_green.py"))
        return dataclasses.replace(host, options=(("multiprocessors", self._multiprocessors),))
