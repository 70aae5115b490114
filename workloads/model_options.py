"""The options shared by programs with a model: training options, and checks whether a device supports them."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from pathlib import Path

from workloads.options import PLACE, Device, option, refuse_missing_gpu

DataSource = enum.Enum("DataSource", "disk files synthetic_files synthetic_host synthetic_device", start=0)
"""The source of training data.

For images, `disk` is the published data set, and `files` is a folder of image files as for timm. For text, `disk` is
the text that is included in Python, and `files` is a folder of text files. `synthetic_files` are files that resemble
the data set's; `synthetic_host` and `synthetic_device` are data of the same shape, created in the loader or on the
device.
"""

StepMode = enum.Enum("StepMode", "eager compile cuda_graph", start=0)
Precision = enum.Enum("Precision", "default tf32 fp32 bf16 fp16", start=0)

# With images of at least this size, a study runs on CPUs only if the user chose the CPU, because an epoch takes hours.
GPU_ONLY_PX = 224
NO_GPU = "no GPU was found; set gpu=cpu to use the CPUs, or gpu=simulated_h100_80gb dry_run=true to print the plan"
SHARES_DROPOUT = "eager steps of one process share the random numbers of dropout; use workload.step_mode=cuda_graph"


@dataclass(kw_only=True)
class Training:
    """The options of training, with one batch per step."""

    source: DataSource = option(DataSource.disk, help="source of the data")
    data_root: str | None = option(None, path=PLACE, help="folder of the data sets")
    batch_size: int = option(least=1, help="batch size")
    step_mode: StepMode = option(
        StepMode.eager, help="how a step is issued: operator by operator, compiled, or replayed as one CUDA graph"
    )
    precision: Precision = option(
        Precision.default,
        help="arithmetic: torch's default (TF32 in convolutions, fp32 in matrix products), TF32 or fp32 in both, or "
        "autocast to bf16 or fp16",
    )
    loader_workers: int = option(2, least=0, help="data loader processes of each job; 0: load in the job's own process")
    threads: int | None = option(None, least=1, help="CPU threads of each job; `null`: the framework chooses")
    warmup_steps: int = option(10, least=0, help="steps before the barrier; their updates are undone before training")
    canary: bool = option(
        True,
        help="check matrix products and convolutions before the run ([method.md](method.md#are-the-results-right))",
    )
    validate: bool = option(
        False,
        help="measure accuracy: with `window=work` after each epoch, within the window; else once at the end",
    )
    samples: int | None = None
    learning_rate: float | None = None

    def check(self, device: Device) -> None:
        if self.samples is not None and self.samples < self.batch_size:
            raise ValueError(f"samples={self.samples} is less than batch_size={self.batch_size}; use more samples")
        if self.learning_rate is not None and not 0 < self.learning_rate < math.inf:
            raise ValueError(f"learning_rate={self.learning_rate:g} must be greater than 0, and finite")
        if self.step_mode is StepMode.cuda_graph:
            refuse_missing_gpu(device, "step_mode=cuda_graph")
            if self.precision is Precision.fp16:
                raise ValueError("step_mode=cuda_graph cannot be combined with precision=fp16; use precision=bf16")

    def explain_own_launch(self) -> str:
        if self.source is DataSource.synthetic_device or self.loader_workers == 0:
            return ""
        return "its data loader fills its queue during a pause; set data.source=synthetic_device"

    def explain_own_process(self) -> str:
        if self.source is DataSource.synthetic_device:
            return ""
        if self.loader_workers:
            return "its data loader starts processes; set workload.loader_workers=0 or data.source=synthetic_device"
        if self.source in (DataSource.files, DataSource.synthetic_files):
            return "its images are transformed with the random generators of the process; use data.source=disk"
        return ""

    def require_root(self) -> Path:
        """Return `data_root`; raise `ValueError` if it is not given."""
        if self.data_root is None:
            raise ValueError("--data-root is missing; set it to the folder of the data sets")
        return Path(self.data_root)

    def find_folder(self, name: str, folder: str, remedy: str) -> Path:
        """Return the folder of a data set below `data_root`, or raise `ValueError` with the given remedy."""
        if self.data_root is None:
            raise ValueError(f"{name} is read from disk, but data.root is not set; set data.root=FOLDER, or {remedy}")
        path = Path(self.data_root) / folder
        if not path.is_dir():
            raise ValueError(
                f"{name} is read from {path}, which does not exist; set data.root (or workload.data_root) to the "
                f"folder that contains {folder}"
            )
        return path
