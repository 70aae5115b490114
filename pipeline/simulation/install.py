"""Installation of the simulated driver: its library under pynvml, its programs in a folder.

Nothing here looks for a program on PATH, changes user or starts a process: a simulated device cannot reach a real
driver.
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

# Set here, not in PYTHONPATH, so that no other package of this name can come first.
_START = "import sys; sys.path.insert(0, {project!r}); from {module} import main; sys.exit(main(sys.argv[1:]))"
_PROGRAMS = {"nvidia-smi": "pipeline.simulation.smi.nvidia_smi", "dcgmi": "pipeline.simulation.dcgmi"}


@contextmanager
def install_driver(state_file: Path) -> Iterator[NvmlLibrary]:
    """Connect pynvml, in this process, to the machine in this file; undo this on exit.

    Sessions still open at the end are closed.
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
    """Make pynvml call this library instead of libnvidia-ml; undo this on exit.

    pynvml finds its library by name only and caches every function that it has looked up; cached functions of another
    library must not be called. No documented interface gives it another library.
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

    They ignore their environment. The folder is created if it does not exist.
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
