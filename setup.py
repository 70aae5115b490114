"""Lay the clone out as one package, `gpu_collocation`; all else is in pyproject.toml.

`pipeline`, `workloads`, `conf` and so on are names that a user's own code may have, so none of them stands in
site-packages. The package's folder is the clone's: `gpu_collocation/run.py` is `run.py`.
"""

from setuptools import find_namespace_packages, setup
from setuptools.command.editable_wheel import editable_wheel

PACKAGE = "gpu_collocation"
FOLDERS = ["pipeline", "listeners", "workloads", "hydra_plugins"]
packages = find_namespace_packages(include=[pattern for name in FOLDERS for pattern in (name, f"{name}.*")])
packages = [name for name in packages if "__pycache__" not in name]


class LinkClone(editable_wheel):
    """An editable installation, in which the packages of a clone also keep their own names."""

    def run(self) -> None:
        """Write the links."""
        self.distribution.packages = [*self.distribution.packages, *packages]
        super().run()


setup(
    packages=[PACKAGE, *(f"{PACKAGE}.{name}" for name in packages)],
    package_dir={PACKAGE: "."},
    cmdclass={"editable_wheel": LinkClone},
)
