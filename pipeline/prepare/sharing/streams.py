"""Streams: the jobs of a group are tenants of one process, each in a thread and on a CUDA stream of its own.

The jobs share a context, an interpreter and the fate of their process, so only the jobs of one user can share like this
(docs/one_process.md). On CPUs and simulated GPUs, the tenants are threads without streams.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.base.domain.protocols import Slots
from pipeline.base.domain.records import Group, HostProgram
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.prepare.device import compute_mode, refusals
from pipeline.prepare.sharing.naive import Naive

# torch hands out 32 streams in turn, and a tenant may take a second one for its warm-up.
MOST_TENANTS = 16


class Streams(Naive):
    """One process for all jobs of a group, without settings of the GPU."""

    def check(self, group: Group) -> None:
        refusals.refuse_mig(group)
        compute_mode.refuse_exclusive(group)
        compute_mode.refuse_forbidden(group, at_once=1)
        if len(group.jobs) > MOST_TENANTS:
            raise ConfigError(
                f"scenario={group.scenario}: one process hosts at most {MOST_TENANTS} jobs, not {len(group.jobs)}; use "
                "a lower degree"
            )
        refuse_own_processes(group)
        refuse_differences(group)

    @contextmanager
    def prepare(self, group: Group, scratch: Path) -> Iterator[Slots]:
        host = self.choose_host(group, scratch)
        with super().prepare(group, scratch) as shared:
            yield Slots([dataclasses.replace(slot, host=host) for slot in shared.slots], shared.verify)

    def choose_host(self, group: Group, scratch: Path) -> HostProgram:
        """Return the program that hosts the jobs; `scratch` is the temporary folder of the group."""
        return HostProgram(script=str(PROJECT_DIR / "workloads" / "host_streams.py"))


def refuse_own_processes(group: Group) -> None:
    """Raise ConfigError for a group with a program, or a setting, that needs a process for each job."""
    for job in group.jobs:
        if reason := job.workload.own_process:
            use = ", or" if "; use " in reason else "; use"  # the reason may name a remedy
            raise ConfigError(
                f"scenario={group.scenario}: workload {job.workload.name} cannot share a process, because "
                f"{reason}{use} scenario=mps or naive"
            )
    settings = {
        f"profiler={group.profiler.name}": not group.profiler.is_none,
        f"pin_cpus={group.pin_cpus}": bool(group.pin_cpus),
    }
    for setting in (setting for setting, is_set in settings.items() if is_set):
        raise ConfigError(
            f"scenario={group.scenario}: {setting} applies to the process of a job, but all jobs share one; remove "
            f"{setting}"
        )


def refuse_differences(group: Group) -> None:
    """Raise ConfigError for jobs whose settings of their process, or of all eager steps in it, differ."""
    params = [dict(job.workload.params) for job in group.jobs]
    of_process: dict[str, list[object]] = {
        "environment": [job.workload.env for job in group.jobs],
        "workload.environ": [job.workload.environ for job in group.jobs],
    }
    # A captured graph keeps the arithmetic with which it was captured.
    eager = [param for param in params if param.get("step_mode") not in (None, "cuda_graph")]
    of_steps: dict[str, list[object]] = {
        f"workload.{key}": [param[key] for param in eager if key in param]
        for key in ("precision", "autotune", "threads")
    }
    for key, values in (of_process | of_steps).items():
        if len(set(values)) > 1:
            raise ConfigError(
                f"scenario={group.scenario}: {key} applies to a whole process, but differs between the jobs; make it "
                "equal, or use scenario=mps or naive"
            )
