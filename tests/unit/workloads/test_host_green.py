"""Green contexts: how multiprocessors are split, and what is tried before jobs are built. The driver is a fake."""

# ruff: noqa: N802  the names of the driver
from __future__ import annotations

import ctypes
import json
from pathlib import Path
from typing import Any

import pytest

from workloads import green_trial, host_green
from workloads.green_contexts import Driver, Resource
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
    fake_driver = Driver.__new__(Driver)
    fake_driver._library = FakeCuda()
    return fake_driver


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
    streams = [driver.make_stream(0, part) for part in driver.split(0, num, requested)]
    assert [number for _, number in streams] == got == driver._library.contexts
    assert all(stream == 4096 + number for stream, number in streams)


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
@pytest.mark.parametrize("precision", ["default", "bf16"])
def test_operations_of_each_library_repeat_and_are_told_from_wrong_values(precision: str) -> None:
    from workloads.training import canary

    settings = {"convolutions": True, "batch_norm": True, "precision": precision, "channels_last": True}
    names = []
    for name, compute in green_trial.list_operations("cpu", **settings):  # type: ignore[arg-type]
        names.append(name)
        first, again = compute(), compute()
        assert green_trial.are_close(again, first), name
        for position in range(len(first)):  # also if only one gradient was never computed
            wrong = [part * (number != position) for number, part in enumerate(first)]
            assert not green_trial.are_close(wrong, first), (name, position)
    assert len(names) == 8 + len(canary.PRODUCTS)


@pytest.mark.torch
def test_services_of_texts_need_neither_convolutions_nor_batch_normalisation() -> None:
    from workloads.training import canary

    settings = {"convolutions": False, "batch_norm": False, "precision": "tf32", "channels_last": True}
    names = [name for name, _ in green_trial.list_operations("cpu", **settings)]  # type: ignore[arg-type]
    assert [names[0], *names[-2:]] == ["a matrix product", "layer normalisation", "attention"]
    assert names[1:-2] == [f"a product of {m} x {k} and {k} x {n} matrices" for m, k, n in canary.PRODUCTS]


@pytest.mark.slow
@pytest.mark.torch
def test_missing_values_are_wrong() -> None:
    import torch

    assert not green_trial.are_close([torch.tensor([torch.nan])], [torch.ones(1)])


class NoMemory(green_trial.StreamContext):
    """A context on the CPU, without memory."""

    def __init__(self) -> None: ...

    def issue(self, compute: Any) -> Any:
        return compute()

    def capture(self, compute: Any) -> Any:
        raise type("OutOfMemoryError", (RuntimeError,), {})("CUDA out of memory")

    def wait(self) -> None: ...


def test_lack_of_memory_is_no_fault_of_green_contexts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(green_trial.signal, "alarm", lambda seconds: None)
    with pytest.raises(RuntimeError, match="out of memory") as raised:
        green_trial.try_operations(iter([("addition", lambda: 2)]), NoMemory(), [NoMemory()], int.__eq__)
    assert not isinstance(raised.value, UnsupportedError)


def test_an_answer_is_found_once(tmp_path: Path) -> None:
    file, tried = tmp_path / "answers.json", []
    file.write_text("{}")

    def find() -> str:
        tried.append(1)
        return "batch normalisation did not finish"

    for _ in range(2):
        assert host_green.remember(file, "3 x 40, torch 2.11", find) == "batch normalisation did not finish"
    assert len(tried) == 1
    assert host_green.remember(file, "3 x 40, torch 2.12", lambda: "") == ""


def test_the_reason_has_the_versions_and_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "answers.json").write_text("{}")
    options = {"multiprocessors": 40, "trials": [], "answers": str(tmp_path / "answers.json")}
    tried = []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1")
    monkeypatch.setattr(host_green, "_describe_versions", lambda: "torch 2.11.0, cuDNN 91900")
    monkeypatch.setattr(host_green, "find_fault", lambda command, limit_s: tried.append(command) or "it hangs")
    for num_contexts in (3, 3, 2):
        with pytest.raises(UnsupportedError) as refused:
            host_green.refuse_faults(options, num_contexts)
        assert str(refused.value) == "it hangs (torch 2.11.0, cuDNN 91900); use scenario=streams or mps"
    assert [json.loads(command[1])["num_contexts"] for command in tried] == [3, 2]
