"""The framework probe: whatever a framework answers is an answer, and what it computes is compared with the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from pipeline.base.system.paths import PROJECT_DIR
from workloads import client, framework, program
from workloads.frameworks.computing import CPU, GPU, Matrix, NotInstalledError, Seen, Task, require_module
from workloads.frameworks.options import Framework

TWO = "MIG-1,MIG-2"
INSTANCE = Seen(GPU, "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "MIG-1", 9728)


class Answering:
    """A framework that sees what it is told to see; on the device `broken` it computes wrong."""

    version = "1.2"

    def __init__(self, *seen: Seen, broken: int | None = None, raises: Exception | None = None) -> None:
        self.seen, self.broken, self.raises, self.closed, self.computed = seen, broken, raises, 0, 0

    def devices(self) -> Sequence[Seen]:
        return self.seen

    def why_no_gpu(self) -> str:
        return "no CUDA-capable device is detected"

    def compute(self, position: int, a: Matrix, b: Matrix) -> tuple[Matrix, float]:
        self.computed += 1
        if self.raises is not None:
            raise self.raises
        product = [row[:] for row in Task.make(len(a)).product]
        product[0][0] += position == self.broken
        return product, sum(map(sum, product))

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def ask(monkeypatch):
    """Probe a framework with these devices given; what it says, and the framework."""

    def probe_backend(devices: str | None, backend: Answering | Exception) -> framework.Probe:
        def make() -> Answering:
            if isinstance(backend, Exception):
                raise backend
            return backend

        monkeypatch.setitem(framework.FRAMEWORKS, "jax", make)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if devices is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", devices)
        args = program.parse(Framework, ["--framework", "jax", "--rows", "4", "--rounds", "3"])
        return framework.run(args, client.NullJob())

    return probe_backend


def test_who_computes_right_on_all_that_was_given_works(ask):
    backend = Answering(INSTANCE, INSTANCE)
    probe = ask(TWO, backend)
    assert (probe.works, probe.why, probe.wrong) == ("yes", "", False)
    assert (backend.computed, backend.closed) == (2 * (1 + 3), 1)
    assert probe.facts == {
        "framework_version": "1.2",
        "devices_seen": 2,
        "seen": "2 of NVIDIA H100 80GB HBM3 MIG 1g.10gb, 9728 MiB",
        "devices_given": 2,
        "works": "yes",
    }


@pytest.mark.parametrize(
    ("devices", "backend", "works", "why"),
    [
        (TWO, Answering(INSTANCE), "in part", "it sees 1 of 2 given devices"),
        (TWO, Answering(), "no", "it sees no GPU: no CUDA-capable device is detected"),
        (TWO, Answering(Seen(CPU, "CPU")), "no", "it sees no GPU: no CUDA-capable device is detected"),
        ("", Answering(Seen(CPU, "CPU")), "yes", ""),  # a simulated GPU
        ("", Answering(), "no", "it sees no GPU: no CUDA-capable device is detected"),  # it knows no CPU
        (None, Answering(Seen(CPU, "CPU")), "yes", ""),
        (TWO, Answering(INSTANCE, raises=RuntimeError("no kernel\nimage")), "no", "RuntimeError: no kernel image"),
        (TWO, NotInstalledError("No module named 'jax'"), "not installed", "No module named 'jax'"),
        (TWO, ImportError("libcudart.so.12"), "no", "ImportError: libcudart.so.12"),
    ],
)
def test_whatever_comes_is_an_answer_in_its_own_words(ask, devices, backend, works, why):
    probe = ask(devices, backend)
    assert (probe.works, probe.why, probe.wrong) == (works, why, False)


def test_a_wrong_product_is_a_wrong_result_and_says_where(ask):
    probe = ask(TWO, Answering(INSTANCE, INSTANCE, broken=1))
    assert (probe.works, probe.wrong) == ("no", True)
    assert probe.why.startswith(f"on device 1 ({INSTANCE.name}) 1 of 16 elements of the product are wrong: ")


def test_every_partial_sum_of_the_task_is_exact_in_fp32():
    task = Task.make()
    assert sum(abs(element) for row in task.product for element in row) < 2**24
    assert task.describe_difference(task.product, task.total) == ""
    assert "the sum is" in task.describe_difference(task.product, task.total + 1)
    assert "rows" in task.describe_difference(task.product[:-1], task.total)


def test_what_is_missing_within_a_framework_is_no_missing_framework(tmp_path, monkeypatch):
    (tmp_path / "half_installed.py").write_text("import not_there_at_all\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="not_there_at_all"), require_module("half_installed"):
        import half_installed  # noqa: F401
    with pytest.raises(NotInstalledError, match="no_such_framework"), require_module("no_such_framework"):
        import no_such_framework.part  # noqa: F401


@pytest.mark.torch
@pytest.mark.slow
def test_a_server_before_torch_answers_right_by_hand():
    pytest.importorskip("torch")
    argv = [sys.executable, PROJECT_DIR / "workloads/framework.py", "--framework=http", "--rows=8", "--rounds=1"]
    done = subprocess.run(argv, capture_output=True, text=True, env=os.environ | {"CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert (answer["works"], answer["seen"][0]["kind"]) == ("yes", "cpu")


def test_environments_are_named_after_what_is_asked():
    folder = Path(PROJECT_DIR, "workloads/frameworks/environments")
    for place in (folder, folder / "cpu"):
        assert {path.stem for path in place.glob("*.txt")} == set(framework.FRAMEWORKS)
