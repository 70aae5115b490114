"""The options of the framework probe (`workloads/framework.py`)."""

from __future__ import annotations

from dataclasses import dataclass

from workloads.options import option

# The distributions on PyPI and conda-forge that each framework needs. In `A|B`, either is enough. The name of a special
# build begins with the name of the distribution, as in cupy-cuda12x. The last three are servers in front of PyTorch.
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
    """List the devices that a framework sees, and compute on each device."""

    script = "workloads/framework.py"
    work_unit = "products"
    ends_by_itself = True
    may_lack_packages = True

    # A text instead of an enumeration, because the path of an environment file interpolates this value.
    framework: str = option(choices=tuple(_PACKAGES), help="framework to probe; determines the workload's name")
    rows: int = option(128, least=1, help="rows of the multiplied matrices")
    rounds: int = option(10, least=1, help="products on each device while other jobs compute")

    def derive_name(self) -> str:
        return f"framework_{self.framework}"

    def packages(self) -> tuple[str, ...]:
        """Return the distributions that the options need; in `A|B`, either is enough."""
        return _PACKAGES.get(self.framework, ())

    def describe_lack(self, package: str, python: str) -> str:
        return (
            f"{package} is not installed in the environment of {python}; build an environment with "
            f"workload=framework_env env=venv (from workloads/frameworks/environments/{self.framework}.txt), or use "
            "an existing one with env=existing workload.env_prefix=FOLDER"
        )

    def small(self) -> Framework:
        return Framework(framework=self.framework)
