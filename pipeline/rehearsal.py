"""A study on simulated GPUs: its machine, which is removed with it unless it is kept, and the memory of its jobs.

Jobs run on the CPU and know nothing of this. What a job would hold on the GPU is declared and charged to the simulated
driver when the job stands at the barrier, where a real job holds its memory as well.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from pipeline.errors import ConfigError, LaunchError, SharingError
from pipeline.gpu import nvml
from pipeline.jobs import JobState
from pipeline.schema import Config, GpuConfig, GpuKind
from pipeline.simulation import codes, models, mps_control
from pipeline.simulation.clients import Clients
from pipeline.simulation.install import installed, write_programs
from pipeline.simulation.state import StateFile, start_ticks
from pipeline.types import Device, Slot

_PREFIX = "colloc-simulated-"


class Rehearsal:
    """The simulated machine of one study.

    Args:
        state_file: the machine.
        model_names: of its GPUs, by index.
        programs: absolute path by the name of the real program.
    """

    def __init__(self, state_file: StateFile, model_names: Sequence[str], programs: Mapping[str, Path]) -> None:
        self._clients = Clients(state_file)
        self._model_names = model_names
        self._programs = tuple((name, str(path)) for name, path in programs.items())

    def find_device(self, config: GpuConfig) -> Device:
        """The simulated GPU that a configuration asks for.

        Raises:
            ConfigError: no such model can be simulated.
        """
        index = self._model_names.index(_model_name(config))
        device = nvml.find_device(str(index))
        assert device is not None
        return dataclasses.replace(device, kind="simulated", programs=self._programs)

    def charge(self, states: Sequence[JobState], slots: Sequence[Slot], program: str, memory_mib: int) -> None:
        """Let each job hold memory on the device of its slot, from now until it ends.

        A job that finds no room gets the error event that it would write on a real GPU, so that its row is `oom`.

        Args:
            states: jobs that stand at the barrier.
            slots: by index of the job.
            program: what the process lists show.
            memory_mib: of each job, in MiB.

        Raises:
            LaunchError: the device of a job has no room for it.
            SharingError: a slot names no device that can be computed on.
        """
        charged: list[str] = []
        for state in states:
            assert state.pid is not None
            slot = slots[state.job.index]
            uuid, limit_mib = slot.visible_devices, _limit_mib(slot)
            if limit_mib is not None and memory_mib > limit_mib:
                message = f"simulated GPU out of memory: {memory_mib} MiB are over the MPS limit of {limit_mib} MiB"
                _report_out_of_memory(state, message)
                raise LaunchError(f"job {state.job.name}: {message}")
            try:
                kind = self._join_mps(state, slots[state.job.index])
                self._clients.hold(uuid, state.pid, program, memory_mib, kind)
            except codes.DriverError as error:
                if start_ticks(state.pid) is None:
                    continue  # it has just ended, which the group notices
                if error.code != codes.MEMORY:
                    raise SharingError(
                        f"job {state.job.name} cannot use the simulated device {uuid}: {error}"
                    ) from error
                beside = charged.count(uuid)
                message = (
                    f"simulated GPU out of memory: no room for {memory_mib} MiB (gpu.job_memory_mib) on {uuid} "
                    f"beside {beside} jobs that hold {beside * memory_mib} MiB"
                )
                _report_out_of_memory(state, message)
                raise LaunchError(f"job {state.job.name}: {message}") from error
            charged.append(uuid)

    def _join_mps(self, state: JobState, slot: Slot) -> str:
        """Make a job the client of the MPS daemon that its environment names, if there is one; returns its kind.

        Raises:
            SharingError: the server of that daemon takes no clients.
        """
        try:
            connection = mps_control.connect(dict(slot.environ), on_behalf_of=state.pid)
        except RuntimeError as error:
            raise SharingError(f"job {state.job.name} cannot become a client of MPS: {error}") from error
        if connection is None:
            return "C"
        connection.close()
        return "M+C"


@contextmanager
def prepared(configs: Sequence[Config]) -> Iterator[Rehearsal | None]:
    """The machine that the configurations rehearse on, beneath pynvml in this process; `None` if they rehearse nothing.

    Raises:
        ConfigError: some configurations are rehearsed and others are not, no such model can be simulated, or there is
            no place for the machine's files.
    """
    simulated = [config.gpu for config in configs if config.gpu.kind is GpuKind.simulated]
    if not simulated:
        yield None
        return
    if len(simulated) < len(configs):
        # NVML can stand for one machine only; and figures of both in one table would be compared.
        raise ConfigError("a study runs on simulated GPUs or on real devices, not on both; run two studies")
    model_names = list(dict.fromkeys(_model_name(gpu) for gpu in simulated))
    with _machine({gpu.machine for gpu in simulated}, model_names) as (state_file, there):
        name = models.find(there[0]).product
        programs = write_programs(programs_folder(state_file.path), state_file.path, device_name=name)
        with installed(state_file.path):
            yield Rehearsal(state_file, there, programs)


def programs_folder(state_file: Path) -> Path:
    """Where the programs of a machine lie: beside it, so that later starts understand a journal that names them."""
    return state_file.with_name(f"{state_file.name}.bin")


@contextmanager
def _machine(kept: set[str | None], model_names: Sequence[str]) -> Iterator[tuple[StateFile, Sequence[str]]]:
    """The machine's file, and the models of its GPUs by index."""
    if len(kept) > 1:
        raise ConfigError("gpu.machine holds for the whole study and cannot be swept; give it one value")
    (path,) = kept
    if path is None:
        with _own_folder() as folder:
            state_file = StateFile(folder / "machine.json")
            state_file.create(model_names)
            yield state_file, model_names
        return
    state_file = StateFile(Path(path).expanduser())
    if not state_file.path.exists():
        state_file.create(model_names, identity=uuid.uuid4().hex)
    there = [gpu.model for gpu in state_file.read().gpus]
    if missing := [name for name in model_names if name not in there]:
        raise ConfigError(
            f"gpu.machine={path} has the GPUs {', '.join(there)}, but not {', '.join(missing)}: choose one of them, or "
            "another file"
        )
    yield state_file, there


def _limit_mib(slot: Slot) -> int | None:
    """What a job may allocate under MPS, in MiB; `None` without a limit."""
    limit = dict(slot.environ).get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT")
    if limit is None:
        return None
    number = limit.removeprefix("0=").removesuffix("B")
    return int(number[:-1]) * (1024 if number.endswith("G") else 1)


def _model_name(config: GpuConfig) -> str:
    if config.model is None:
        raise ConfigError(f"gpu.kind=simulated needs gpu.model=NAME, one of {', '.join(models.models())}")
    return models.find(config.model).name


def _report_out_of_memory(state: JobState, message: str) -> None:
    event = {"event": "error", "t_ns": time.monotonic_ns(), "type": "OutOfMemoryError", "message": message}
    # The job waits at the barrier, so nothing of its own comes between.
    with (state.folder / "events.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(event) + "\n")


@contextmanager
def _own_folder() -> Iterator[Path]:
    """A folder for the machine's files, locked while it is in use; also removes those that killed studies left."""
    try:
        parent = Path(tempfile.gettempdir())
        remove_abandoned()
        # It is locked before it has the name that others look for, so nobody takes it for abandoned.
        unnamed = Path(tempfile.mkdtemp(prefix="new-"))
        lock = os.open(unnamed, os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder = unnamed.rename(parent / f"{_PREFIX}{unnamed.name.removeprefix('new-')}")
    except OSError as error:
        raise ConfigError(f"there is no place for a simulated machine in {tempfile.gettempdir()}: {error}") from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def remove_abandoned() -> None:
    """Remove the machines of killed studies that were to go with them."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        _remove_if_abandoned(folder)


def _remove_if_abandoned(folder: Path) -> None:
    with suppress(OSError):  # another user's, or locked by a study that runs
        lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)
