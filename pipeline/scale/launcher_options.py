"""Options of the launchers, `hydra.launcher`. Hydra imports this module at each start; it imports nothing slow."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(kw_only=True)
class SlurmOptions:
    """Options of sbatch (`None`: the cluster's default) and of the launcher.

    Attributes:
        gres: gres of a task, such as `gpu:1`; with a list, the study runs on each gres in a separate job array.
        timeout_min: time limit of a task in minutes.
        array_parallelism: maximum number of tasks that run at the same time.
        setup: further lines of the batch script, such as `module load cuda`.
        additional_parameters: further options of sbatch by name without dashes.
        folder: folder of the batch script and the tasks' output, on a file system that the nodes share.
        signal_delay_s: seconds before the time limit at which Slurm sends SIGTERM to a task.
        wait: whether the launcher waits for the tasks.
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
