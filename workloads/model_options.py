"""The options shared by programs with a model: training options, and checks of what a device supports."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from pathlib import Path

from workloads.options import PLACE, Device, option

DataSource = enum.Enum("DataSource", "disk files synthetic_files synthetic_host synthetic_device", start=0)
"""`disk` is the published data set, `files` a folder of image files as for timm. The `synthetic` ones are similar
files, or data of the same shape created in the loader or on the device. For text, `disk` is the text that comes
with Python, `files` a folder of text files."""

StepMode = enum.Enum("StepMode", "eager compile cuda_graph", start=0)
Precision = enum.Enum("Precision", "default tf32 fp32 bf16 fp16", start=0)

# On CPUs, an epoch of a network of the usual size takes hours; so the user must have chosen the CPU.
GPU_ONLY_PX = 224
NO_GPU = (
    "no GPU was found; use gpu=cpu to run it on the CPUs anyway, or gpu=simulated_h100_80gb dry_run=true to see its "
    "plan"
)


@dataclass(kw_only=True)
class Training:
    """Training by steps of a batch."""

    source: DataSource = option(DataSource.disk, help="where the data comes from")
    data_root: str | None = option(None, path=PLACE, help="folder of the data sets")
    batch_size: int = option(least=1, help="batch size")
    step_mode: StepMode = option(
        StepMode.eager, help="how a step is issued: operator by operator, compiled, or replayed as one CUDA graph"
    )
    precision: Precision = option(
        Precision.default,
        help="arithmetic: what torch does by itself (TF32 in convolutions, fp32 in products), TF32 in both, fp32 in "
        "both, autocast to bf16 or fp16",
    )
    loader_workers: int = option(2, least=0, help="data loader processes of each job; 0 loads in the job's own")
    threads: int | None = option(None, least=1, help="CPU threads of each job's framework; its own choice if not given")
    warmup_steps: int = option(10, least=0, help="steps before the barrier, undone before training begins")
    canary: bool = option(
        True,
        help="check each job's products and convolutions before the run ([method.md](method.md#are-the-results-right))",
    )
    validate: bool = option(
        False,
        help="measure accuracy: after each epoch in a `work` window, once at the end of a `steady` one; part of the "
        "time per epoch",
    )
    samples: int | None = None
    learning_rate: float | None = None

    def check(self, device: Device) -> None:
        if self.samples is not None and self.samples < self.batch_size:
            raise ValueError(f"samples={self.samples} are less than one batch of batch_size={self.batch_size}")
        if self.learning_rate is not None and not 0 < self.learning_rate < math.inf:
            raise ValueError(f"learning_rate={self.learning_rate:g} must be above 0, and finite")
        if self.step_mode is StepMode.cuda_graph:
            refuse_graphs_without_gpu(device)
            if self.precision is Precision.fp16:
                raise ValueError(
                    "step_mode=cuda_graph cannot be combined with precision=fp16, whose loss scaling reads the device "
                    "in every step; use bf16"
                )

    def require_root(self) -> Path:
        """Return `data_root`; raise `ValueError` if it is not given."""
        if self.data_root is None:
            raise ValueError("the data set is read from disk; --data-root must name the folder that holds it")
        return Path(self.data_root)

    def find_folder(self, name: str, folder: str, remedy: str) -> Path:
        """Return the folder of a data set below `data_root`, or raise `ValueError` with the given remedy."""
        if self.data_root is None:
            raise ValueError(f"{name} is read from disk, but no folder is given; set data.root=FOLDER, or {remedy}")
        path = Path(self.data_root) / folder
        if not path.is_dir():
            raise ValueError(
                f"{name} is read from {path}, which does not exist; data.root (or workload.data_root) must be the "
                f"folder that holds `{folder}`"
            )
        return path


def refuse_graphs_without_gpu(device: Device) -> None:
    """Raise `ValueError` if the device cannot capture CUDA graphs."""
    if device.is_simulated or not device.is_gpu:
        place, remedy = device.name, "gpu=simulated_h100_80gb dry_run=true"
        if device.is_simulated:
            place, remedy = f"a simulated {device.name}", "dry_run=true"
        raise ValueError(
            f"step_mode=cuda_graph needs a GPU, and this runs on {place}; use {remedy} to see its plan, or "
            "+rehearse=tiny to rehearse an experiment"
        )
