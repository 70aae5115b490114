"""Installation of the simulated driver: pynvml calls its library, and its programs are written to a folder.

This module does not search PATH for a program, change the user or start a process, so a simulated device cannot affect
a real driver.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.base.system.paths import PROJECT_DIR
from pipeline.simulation.mps import control_program

if TYPE_CHECKING:
    from pipeline.simulation.nvml.library import NvmlLibrary

# The path is set in the program instead of PYTHONPATH, so that no other package of this name can come first.
_START = "import sys; sys.path.insert(0, {project!r}); from {module} import main; sys.exit(main(sys.argv[1:]))"
_PROGRAMS = {"nvidia-smi": "pipeline.simulation.nvidia_smi", "dcgmi": "pipeline.simulation.dcgmi"}


@contextmanager
def install_driver(state_file: Path) -> Iterator[NvmlLibrary]:
    """Make pynvml in this process use the machine in this file; restore pynvml on exit.

    NVML sessions that are still open on exit are closed.
    """
    from pipeline.simulation.nvml.library import NvmlLibrary

    library = NvmlLibrary(state_file)
    with replace_nvml(library):
        try:
            yield library
        finally:
            library.close_all()


@contextmanager
def replace_nvml(library: Any) -> Iterator[None]:
    """Make pynvml call this library instead of libnvidia-ml; restore pynvml on exit.

    This sets private variables of pynvml, which finds its library only by name and has no documented interface for
    another library. Functions that pynvml has cached are removed, so that no function of the other library is called.
    """
    import pynvml

    functions = pynvml._nvmlGetFunctionPointer_cache
    before = pynvml.nvmlLib, dict(functions)
    functions.clear()
    pynvml.nvmlLib = library
    try:
        yield
    finally:
        pynvml.nvmlLib = before[0]
        functions.clear()
        functions.update(before[1])


def write_programs(folder: Path, state_file: Path) -> dict[str, Path]:
    """Write the programs that show and change the machine of this file; return their absolute paths by name.

    The programs ignore their environment. The folder is created if it does not exist.
    """
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    programs = {}
    for name, module in _PROGRAMS.items():
        argv = [sys.executable, "-E", "-s", "-S", "-P", "-c", _START.format(project=str(PROJECT_DIR), module=module)]
        programs[name] = folder / name
        control_program.write_executable(
            programs[name], f"exec {shlex.join([*argv, '--state-file', str(state_file.absolute())])}"
        )
    programs[control_program.MPS_CONTROL] = control_program.write_program(folder, machine=state_file)
    return programs
