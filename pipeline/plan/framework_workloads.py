"""The options of the framework probe."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from omegaconf import MISSING

from pipeline.base.records import Device
from pipeline.plan.workloads import WorkloadConfig

# By what is asked: the distributions by which it can be installed, of PyPI and of conda-forge; builds of one begin with
# its name. The last three are servers before PyTorch.
_TORCH = "torch|pytorch"
_PACKAGES = {
    "torch": (_TORCH,),
    "jax": ("jax",),
    "cupy": ("cupy",),
    "tensorflow": ("tensorflow",),
    "paddle": ("paddlepaddle",),
    "http": (_TORCH,),
    "ray_serve": ("ray", _TORCH),
    "triton_server": ("nvidia-pytriton", _TORCH),
}


@dataclass
class FrameworkConfig(WorkloadConfig):
    """What a framework sees of its devices, and whether it computes right on each (`workloads/framework.py`).

    Attributes:
        name: follows from the framework.
        framework: text and no choice among enumerated ones, so that a file of environments can be named after it.
        rows: of the factors of the product.
        rounds: products on each device while the other jobs compute theirs.
    """

    NODE: ClassVar[str] = "framework"
    MAY_LACK: ClassVar[bool] = True

    name: str = ""
    script: str = "workloads/framework.py"
    unit: str = "products"
    ends_by_itself: bool = True
    framework: str = MISSING
    rows: int = 128
    rounds: int = 10

    def __post_init__(self) -> None:
        if self.framework != MISSING:
            self.name = self.name or f"framework_{self.framework}"

    def packages(self) -> tuple[str, ...]:
        return _PACKAGES[self.framework]

    def lacks(self, package: str, python: Path) -> str:
        return (
            f"workload {self.name}: {package} is not installed in the environment of {python}; workload=framework_env "
            f"env=venv builds one that has it (workloads/frameworks/environments/{self.framework}.txt), and "
            "env=existing workload.env_prefix=FOLDER uses one that is there"
        )

    def check(self, device: Device, *, device_was_chosen: bool) -> None:
        super().check(device, device_was_chosen=device_was_chosen)
        if self.framework not in _PACKAGES:
            raise self._refused(f"framework={self.framework} must be {', '.join(_PACKAGES)}")
        self._refuse_below(1, "rows", "rounds")
