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
from dataclasses import dataclass
from pathlib import Path

from pipeline.base.domain.protocols import Slots
from pipeline.base.domain.records import Group, HostProgram
from pipeline.base.domain.work_units import REQUESTS
from pipeline.base.domain.workload import Workload
from pipeline.base.system import study_cache
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.option_fields import option
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.prepare.sharing.streams import Streams

_TEXT_PROGRAMS = "workloads.text_imports"
"""The preload module of programs with models of text, which have no convolutions."""

# The step of the number of multiprocessors in a part. Source: NVIDIA, CUDA Driver API, green contexts; on an H100,
# parts had such numbers (docs/one_process.md). Clusters can allow fewer parts, which only the driver knows.
_STEP, _STEP_SINCE = 8, (9, 0)


@study_cache.cache_for_study
def get_answers() -> dict[str, str]:
    """Return the faults that the trials of the study found, by their settings and versions; empty text if none."""
    return {}


@dataclass
class Green(Streams):
    """One process with a green context for each job."""

    multiprocessors: int | None = option(
        "multiprocessors of each job ([one_process.md](one_process.md#green-contexts)); `null`: equal parts", None
    )

    def __post_init__(self) -> None:
        if self.multiprocessors is not None and self.multiprocessors < 1:
            raise ConfigError(f"scenario.multiprocessors={self.multiprocessors} must be at least 1")

    def check(self, group: Group) -> None:
        super().check(group)
        total, capability = group.device.facts.multiprocessors, group.device.facts.compute_capability
        if total is None or capability is None or capability < _STEP_SINCE:
            return
        num_jobs = len(group.jobs)
        largest = total // num_jobs // _STEP * _STEP
        count = -(-(self.multiprocessors or _STEP) // _STEP) * _STEP  # rounded up, as the driver does
        if count > largest:
            remedy = f"scenario.multiprocessors={largest} or less" if largest else f"{total // _STEP} jobs or fewer"
            raise ConfigError(
                f"scenario={group.scenario}: {num_jobs} x {count} multiprocessors (a part has a multiple of {_STEP}) "
                f"exceed the {total} of {group.device.name}; use {remedy}"
            )

    @contextmanager
    def prepare(self, group: Group, scratch: Path) -> Iterator[Slots]:
        file = _locate_answers(scratch)
        file.write_text(json.dumps(get_answers()), encoding="utf-8")
        try:
            with super().prepare(group, scratch) as slots:
                yield slots
        finally:
            with contextlib.suppress(OSError, ValueError):  # the host program was ended while it wrote
                get_answers().update(json.loads(file.read_text(encoding="utf-8")))

    def choose_host(self, group: Group, scratch: Path) -> HostProgram:
        """Return the program that hosts the jobs, which splits the multiprocessors and reads them back."""
        host = HostProgram(script=str(PROJECT_DIR / "workloads" / "host_green.py"))
        options = {
            "multiprocessors": self.multiprocessors,
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
