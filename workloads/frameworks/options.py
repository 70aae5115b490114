"""The options of the framework probe (`workloads/framework.py`)."""

from __future__ import annotations

from dataclasses import dataclass

from workloads.options import option

# For each framework, its distributions on PyPI and conda-forge. Any of them will do; builds of one begin with its name.
# The last three are servers in front of PyTorch.
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


@dataclass(kw_only=True)
class Framework:
    """List the devices that a framework sees, and compute on each."""

    script = "workloads/framework.py"
    work_unit = "products"
    ends_by_itself = True
    may_lack_packages = True

    # A text and no enumeration, so that a file of environments can be named after it.
    framework: str = option(choices=tuple(_PACKAGES), help="framework to probe; it sets the name")
    rows: int = option(128, least=1, help="rows of the multiplied matrices")
    rounds: int = option(10, least=1, help="products on each device while other jobs compute")

    def derive_name(self) -> str:
        return f"framework_{self.framework}"

    def packages(self) -> tuple[str, ...]:
        """Return the distributions that the options need; `A|B` means either."""
        return _PACKAGES.get(self.framework, ())

    def describe_lack(self, package: str, python: str) -> str:
        return (
            f"{package} is not installed in the environment of {python}; workload=framework_env env=venv builds one "
            f"that has it (workloads/frameworks/environments/{self.framework}.txt), and env=existing "
            "workload.env_prefix=FOLDER uses one that is there"
        )

    def small(self) -> Framework:
        return Framework(framework=self.framework)
