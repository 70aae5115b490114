"""The process that loads a place: what it is told, what it says, and how it ends."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.base.domain.records import Device
from pipeline.base.system.errors import ConfigError, LaunchError
from pipeline.gpu.selftest import loaders
from pipeline.gpu.selftest.load_bounds import Load
from workloads import occupy

DEVICE = Device(kind="nvidia", uuid="GPU-of-a-test", name="a GPU")
# Says what it was given, as the real one says what it does.
STAND_IN = """
import json, os, sys
def tell(**what): print(json.dumps(what), flush=True)
print("a library greets", flush=True)
tell(device={"multiprocessors": 132, "sees": os.environ["CUDA_VISIBLE_DEVICES"],
             "has_mps": os.path.exists(os.environ["CUDA_MPS_PIPE_DIRECTORY"] + "/control")})
for line in sys.stdin:
    if line == "13 32\\n":
        sys.exit("CUDA error: an illegal memory access was encountered")
    tell(running=line.split())
    sys.stdin.readline()
    tell(done={"launches": 3, "num_wrong": 1})
"""


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "stand_in.py"
    program.write_text(STAND_IN)
    monkeypatch.setattr(loaders, "PROGRAM", program)
    folder = tmp_path / "scratch"
    folder.mkdir()
    return folder


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_a_load_begins_runs_and_ends_as_it_is_told(scratch: Path) -> None:
    with loaders.start_loader(DEVICE, scratch) as loader:
        loader.wait_for_device()
        assert loader.facts == {"multiprocessors": 132, "sees": DEVICE.uuid, "has_mps": False}
        for _ in range(2):
            loader.begin(Load(blocks=66, threads=32))
            loader.wait_running()
            loader.stop()
            assert loader.wait_done() == {"launches": 3, "num_wrong": 1}
        pid = loader._process.pid
    assert not is_alive(pid)


def test_one_that_breaks_is_an_error_with_its_last_words(scratch: Path) -> None:
    with loaders.start_loader(DEVICE, scratch) as loader:
        loader.wait_for_device()
        loader.begin(Load(blocks=13, threads=32))
        with pytest.raises(LaunchError, match=r"on a GPU .* ended \(status 1\): CUDA error: an illegal"):
            loader.wait_running()
        with pytest.raises(LaunchError, match="ended"):
            loader.begin(Load(blocks=1, threads=32))


def test_it_does_not_survive_an_error_here(scratch: Path) -> None:
    with pytest.raises(ZeroDivisionError), loaders.start_loader(DEVICE, scratch) as loader:
        loader.wait_for_device()
        pid = loader._process.pid
        raise ZeroDivisionError
    assert not is_alive(pid)


def test_one_that_cannot_run_with_what_is_installed_is_refused(scratch: Path) -> None:
    loaders.PROGRAM.write_text("import sys; print('no Triton', file=sys.stderr); sys.exit(2)")
    with loaders.start_loader(DEVICE, scratch) as loader, pytest.raises(ConfigError, match="no Triton"):
        loader.wait_for_device()


@pytest.mark.torch
@pytest.mark.slow
def test_the_real_one_needs_a_gpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["occupy.py"])
    with pytest.raises(SystemExit) as ended:
        occupy.main()
    assert ended.value.code == 2
    assert "torch finds no GPU" in capsys.readouterr().err


@pytest.fixture
def pipe() -> Iterator[tuple[occupy.Lines, int]]:
    reading, writing = os.pipe()
    yield occupy.Lines(reading), writing
    os.close(reading)


def test_a_line_or_the_end_of_the_input_ends_a_load(pipe: tuple[occupy.Lines, int]) -> None:
    lines, writing = pipe
    os.write(writing, b"132 512\nst")
    assert lines.next() == "132 512"
    assert not lines.is_there(), "half a line is none"
    os.write(writing, b"op\n")
    assert lines.is_there()
    assert lines.next() == "stop"
    assert not lines.is_there()
    os.close(writing)
    assert lines.is_there()
    assert lines.next() is None


def test_the_interpreter_is_that_of_the_project(scratch: Path) -> None:
    with loaders.start_loader(DEVICE, scratch) as loader:
        assert loader._process.args == [sys.executable, str(loaders.PROGRAM)]
