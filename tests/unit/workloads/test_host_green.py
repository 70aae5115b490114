"""Green contexts: how multiprocessors are split, and what is tried before jobs are built. The driver is a fake."""

# ruff: noqa: N802  the names of the driver
from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from workloads import host_green
from workloads.host_green import Driver, Resource
from workloads.tenants import UnsupportedError

NUM, STEP = 132, 8  # multiprocessors of an H100


class FakeCuda:
    """A driver that splits as an H100 did: in parts of multiples of 8, as many as fit."""

    def __init__(self) -> None:
        self.contexts: list[int] = []

    def cuDeviceGetDevResource(self, device: int, total: Any, kind: int) -> int:
        total._obj.num_multiprocessors, total._obj.step = NUM, STEP
        return 0

    def cuDevSmResourceSplitByCount(self, parts: Any, num: Any, total: Any, rest: Any, flags: int, count: int) -> int:
        rounded = -(-count // STEP) * STEP
        num._obj.value = min(num._obj.value, NUM // rounded)
        for number in range(num._obj.value):
            parts[number].num_multiprocessors = rounded
        return 0

    def cuDevResourceGenerateDesc(self, description: Any, part: Any, number: int) -> int:
        description._obj.value = part._obj.num_multiprocessors
        return 0

    def cuGreenCtxCreate(self, context: Any, description: Any, device: int, flags: int) -> int:
        self.contexts.append(description.value)
        context._obj.value = description.value
        return 0

    def cuGreenCtxGetDevResource(self, context: Any, got: Any, kind: int) -> int:
        got._obj.num_multiprocessors = context.value
        return 0

    def cuGreenCtxStreamCreate(self, stream: Any, context: Any, flags: int, priority: int) -> int:
        stream._obj.value = 4096 + context.value
        return 0

    def cuDriverGetVersion(self, version: Any) -> int:
        return 35

    def cuGetErrorName(self, status: int, text: Any) -> None:
        text._obj.value = b"CUDA_ERROR_INSUFFICIENT_DRIVER"


@pytest.fixture
def driver() -> Driver:
    made = Driver.__new__(Driver)
    made._library = FakeCuda()
    return made


def test_the_structure_has_the_size_of_the_drivers() -> None:
    assert ctypes.sizeof(Resource) == 144  # cuda.h


@pytest.mark.parametrize(
    ("num", "requested", "got"),
    [
        (1, 120, [120]),
        (1, 33, [40]),
        (2, 60, [64, 64]),
        (3, None, [40, 40, 40]),
        (7, None, [16] * 7),
        (3, 40, [40] * 3),
    ],
)
def test_parts_are_disjoint_and_their_size_is_read_back(driver, num, requested, got) -> None:
    made = [driver.make_stream(0, part) for part in driver.split(0, num, requested)]
    assert [number for _, number in made] == got == driver._library.contexts
    assert all(stream == 4096 + number for stream, number in made)


def test_parts_that_do_not_fit_are_refused(driver) -> None:
    words = "3 parts of 44 multiprocessors do not fit into 132, which are split in steps of 8; use a lower"
    with pytest.raises(UnsupportedError, match=words):
        driver.split(0, 3, 44)


def test_a_driver_without_green_contexts_or_with_an_error_is_unsupported(driver) -> None:
    with pytest.raises(UnsupportedError, match="no function cuAbsent; green contexts need driver 550"):
        driver.call("cuAbsent")
    with pytest.raises(UnsupportedError, match="cuDriverGetVersion failed: CUDA_ERROR_INSUFFICIENT_DRIVER"):
        driver.read_version()


@pytest.mark.torch
@pytest.mark.slow
def test_operations_of_each_library_have_finite_results_of_moderate_size() -> None:
    for name, compute in host_green.list_operations("cpu"):
        first, again = compute(), compute()
        assert first.isfinite().all() and first.equal(again), name
        assert 0.1 < float(first.abs().max()) < 100, name


@pytest.fixture
def attempt(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[bool], Any]], None]:
    """Try one operation, which is told whether it runs in the green context."""
    torch = pytest.importorskip("torch")

    def run(compute: Callable[[bool], Any]) -> None:
        calls: list[bool] = []

        def once() -> Any:
            calls.append(bool(calls))
            return compute(calls[-1])

        monkeypatch.setattr(host_green, "list_operations", lambda device: [("a product", once)])
        monkeypatch.setattr(host_green, "Driver", lambda: SimpleNamespace(read_version=lambda: 13000))
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
        monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
        host_green.try_operations(None)  # type: ignore[arg-type]

    return run


@pytest.mark.torch
@pytest.mark.slow
def test_an_operation_that_fails_or_differs_makes_the_mode_unsupported(attempt) -> None:
    import torch

    def fail(is_green: bool) -> torch.Tensor:
        if is_green:
            raise RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED_CUDART\nsearch for it")
        return torch.ones(3)

    attempt(lambda is_green: torch.ones(3) + 1e-4 * is_green)
    with pytest.raises(UnsupportedError, match="a product computes wrong values in a green context"):
        attempt(lambda is_green: torch.ones(3) + is_green)
    with pytest.raises(UnsupportedError) as failed:
        attempt(fail)
    text = str(failed.value)
    assert text.startswith(
        "a product fails in a green context: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED_CUDART (torch "
    )
    assert "driver API 13000)" in text and "\n" not in text
