"""Uses of other libraries beyond their documented interfaces.

Each use says why it is needed; `tests/unit/base/test_library_internals.py` fails when a library changes beneath it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def nvml_answered_by(library: Any) -> Iterator[None]:
    """Let pynvml call this library instead of libnvidia-ml. Afterwards pynvml is as it was.

    pynvml keeps every function that it has looked up: those of another library must not be called.
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
