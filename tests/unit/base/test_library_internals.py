"""What is used of other libraries beyond their documented interfaces still has the effect that it is used for."""

from __future__ import annotations

import pynvml

from pipeline.base import library_internals


class _Library:
    """Counts the devices of a machine, for `nvmlDeviceGetCount`."""

    def __init__(self, count: int) -> None:
        self.nvmlDeviceGetCount_v2 = lambda pointer: setattr(pointer._obj, "value", count) or 0


def test_nvml_is_answered_by_another_library_and_then_as_before():
    with library_internals.nvml_answered_by(_Library(3)):
        assert pynvml.nvmlDeviceGetCount() == 3
        with library_internals.nvml_answered_by(_Library(5)):
            assert pynvml.nvmlDeviceGetCount() == 5
        assert pynvml.nvmlDeviceGetCount() == 3
