"""pynvml can be answered by another library than the driver's."""

from __future__ import annotations

import pynvml

from pipeline.simulation.install import replace_nvml


class _Library:
    """Counts the devices of a machine, for `nvmlDeviceGetCount`."""

    def __init__(self, count: int) -> None:
        self.nvmlDeviceGetCount_v2 = lambda pointer: setattr(pointer._obj, "value", count) or 0


def test_nvml_is_answered_by_another_library_and_then_as_before():
    with replace_nvml(_Library(3)):
        assert pynvml.nvmlDeviceGetCount() == 3
        with replace_nvml(_Library(5)):
            assert pynvml.nvmlDeviceGetCount() == 5
        assert pynvml.nvmlDeviceGetCount() == 3
