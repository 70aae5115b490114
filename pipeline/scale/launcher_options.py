"""Options of the launchers, `hydra.launcher`. Imports nothing of the project: Hydra reads them at every start."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(kw_only=True)
class SlurmOptions:
    """Options of sbatch, `None` for the cluster's defaults, and of the launcher.

    Attributes:
        gres: the GPU of a task; of several, the study is measured on each, by a job array of its own.
        timeout_min: of a task.
        array_parallelism: tasks at a time.
        setup: lines of the batch script, such as `module load cuda`.
        additional_parameters: further options of sbatch, by their names without dashes.
        folder: of the batch script and of the tasks' output; on a file system that the nodes share.
        signal_delay_s: time before its limit at which a task is told to end.
        wait: whether to wait for the tasks.
    """

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    gres: Any = "gpu:1"
    cpus_per_task: int | None = None
    mem: str | None = None
    timeout_min: int | None = None
    array_parallelism: int | None = None
    setup: list[str] = field(default_factory=list)
    additional_parameters: dict[str, Any] = field(default_factory=dict)
    folder: str = "slurm"
    signal_delay_s: int = 120
    wait: bool = True
