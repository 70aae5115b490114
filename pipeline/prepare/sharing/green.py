"""Green contexts: as `streams`, but each job has a part of the multiprocessors of its own (docs/one_process.md).

Before the jobs are built, the host program tries their operations in green contexts. Its answers are kept for the later
groups of the study, because a trial takes seconds.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.base.domain.protocols import Slots
from pipeline.base.domain.records import Group, HostProgram
from pipeline.base.domain.work_units import REQUESTS
from pipeline.base.domain.workload import Workload
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.prepare.sharing.streams import Streams

_TEXT_PROGRAMS = "workloads.text_imports"
"""The preload module of programs with models of text, which have no convolutions."""

_answers: dict[str, str] = {}
"""Faults by the settings and versions of their trials; empty text if all operations work."""


class Green(Streams):
    """One process with a green context for each job. Options: `pipeline.plan.config_schema.GreenConfig`."""

    def __init__(self, multiprocessors: int | None = None) -> None:
        if multiprocessors is not None and multiprocessors < 1:
            raise ConfigError(f"scenario.multiprocessors={multiprocessors} must be at least 1")
        self._multiprocessors = multiprocessors

    @contextmanager
    def prepare(self, group: Group, scratch: Path) -> Iterator[Slots]:
        file = _locate_answers(scratch)
        file.write_text(json.dumps(_answers), encoding="utf-8")
        try:
            with super().prepare(group, scratch) as slots:
                yield slots
        finally:
            with contextlib.suppress(OSError, ValueError):  # the host program was ended while it wrote
                _answers.update(json.loads(file.read_text(encoding="utf-8")))

    def choose_host(self, group: Group, scratch: Path) -> HostProgram:
        """Return the program that hosts the jobs, which splits the multiprocessors and reads them back."""
        host = HostProgram(script=str(PROJECT_DIR / "workloads" / "host_green.py"))
        options = {
            "multiprocessors": self._multiprocessors,
            "trials": tuple(sorted({choose_trial(job.workload) for job in group.jobs})),
            "answers": str(_locate_answers(scratch)),
        }
        return dataclasses.replace(host, options=tuple(options.items()))


def choose_trial(workload: Workload) -> tuple[tuple[str, object], ...]:
    """Return the settings of the operations that a program needs (`workloads/green_trial.py`); if unknown, of all."""
    params, has_images = dict(workload.params), workload.preload != _TEXT_PROGRAMS
    settings = {
        "convolutions": has_images,
        "batch_norm": has_images and workload.work_unit != REQUESTS,  # a service normalises with constants
        "precision": params.get("precision", "default"),
        "channels_last": params.get("channels_last") != "false",
    }
    return tuple(settings.items())


def _locate_answers(scratch: Path) -> Path:
    return scratch / "green.json"
