"""The state of the simulated machine: one JSON file, changed under a lock, shared by every process.

This module owns the file and contains no driver rules. Returned states omit ended processes and NVML sessions, whose
resources the kernel would have closed, and whatever a restart of the computer has ended.
"""

from __future__ import annotations

import fcntl
import functools
import json
import os
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from pipeline.base.domain import mig_table
from pipeline.base.system import json_decoder, regular_files
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.factory import Spec
from pipeline.base.system.host_info import boot_id, read_process
from pipeline.simulation.machine.codes import DriverError
from pipeline.simulation.machine.releases import RECORDED, RELEASES, Release

MAX_GPUS = 64
"""The number of GPUs of one model in a machine created for a study."""

COUNTER_FAULTS = ("capped", "stuck", "swapped")
"""Faults of counters: capped at the share of the smallest instance (NVIDIA/DCGM#248), 0, or SMACT and GRACT swapped."""

_NAMESPACE = uuid.UUID("6f1d3c5e-0c1b-4b8e-9d43-51f2a7c0de00")
_FIRST_PCI_DEVICE = 6
# Keys of earlier versions; a killed study may have left them in the file of a kept machine.
_REMOVED_SOURCES = frozenset({"pipeline.simulation.machine.replay.Replay"})
# GPUs that keep MIG mode in the InfoROM, so that it survives a restart of the computer. Source: NVIDIA MIG User Guide.
_KEEPS_MIG_MODE = frozenset({"Ampere"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeInstance:
    """A compute instance; `start` and `size` count compute slices of its GPU instance."""

    id: int
    profile_id: int
    start: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuInstance:
    """A GPU instance.

    Attributes:
        start, size: on the GPU's placement axis.
        made_s: when it was created (monotonic, seconds); ignored in comparisons.
    """

    id: int
    profile_id: int
    start: int
    size: int
    compute_instances: tuple[ComputeInstance, ...] = ()
    made_s: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process with a context on a GPU.

    Attributes:
        name: of its program.
        kind: as nvidia-smi prints it: `C` compute, `M+C` client of an MPS server, `G` graphics.
        gpu_instance_id, compute_instance_id: where it runs under MIG.
        start_ticks: its start time, to detect a reused PID; `None` for a fictitious process that never ends.
    """

    pid: int
    name: str
    memory_mib: int
    kind: str = "C"
    gpu_instance_id: int | None = None
    compute_instance_id: int | None = None
    start_ticks: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A process with NVML open, `num_open` times; a client of the driver on every GPU."""

    pid: int
    num_open: int
    start_ticks: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """An injected failure of driver calls.

    Attributes:
        function: name of the C function, such as `nvmlGpuInstanceDestroy`. nvidia-smi calls the same functions for its
            changes, beginning with `nvmlInitWithFlags`.
        code: the returned code. For `nvmlDeviceSetMigMode`, codes 3, 16 and 19 leave the mode pending instead.
        skip: this many calls succeed first.
        times: this many calls fail after them; `None` for all.
        gpu: index of the affected GPU; `None` for all.
    """

    function: str
    code: int
    skip: int = 0
    times: int | None = 1
    gpu: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The faults of a GPU: none, unless written into the file.

    Attributes:
        ecc_uncorrected_now, ecc_uncorrected_ever: errors since the driver was loaded, and over the life of the GPU.
        rows_remapped_correctable, rows_remapped_uncorrectable: number of replaced memory rows.
        recovery_action: the action recommended by the driver, as in nvml.h: 0 none, 1 reset.
        counter_fault: how its counters are wrong in a self-test, one of `COUNTER_FAULTS`.
    """

    ecc_uncorrected_now: int = 0
    ecc_uncorrected_ever: int = 0
    rows_remapped_correctable: int = 0
    rows_remapped_uncorrectable: int = 0
    is_remap_pending: bool = False
    has_remap_failed: bool = False
    recovery_action: int = 0
    counter_fault: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The administrator's settings that affect a GPU's speed: factory settings, unless the file has others.

    `None` if the driver does not report a setting. The clocks are those set by `nvidia-smi -ac`.
    """

    power_limit_w: int | None = None
    graphics_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    is_ecc_on: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU. `compute_mode` is NVML's number; MIG modes are the current one and the one after the next reset.

    `timeslice` is the argument of `nvidia-smi compute-policy --set-timeslice`: 0 default, 1 short, 2 medium, 3 long.
    """

    model: str
    uuid: str
    bus_id: str
    mig_current: bool = False
    mig_pending: bool = False
    compute_mode: int = 0
    timeslice: int = 0
    instances: tuple[GpuInstance, ...] = ()
    processes: tuple[Process, ...] = ()
    health: Health = Health()
    settings: Settings = Settings()


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The whole simulated machine; a GPU's index is its position.

    Attributes:
        mps_faults: of `simulation.mps.control_program.FAULTS`, and `bypass`: the first job of a group runs without MPS.
        dcgm_is_paused: whether DCGM's host engine was told to release the profiling counters.
        sources: classes that provide sensor and counter readings (`simulation.machine.readings`), by precedence.
        branch: of its driver, a key of `RELEASES`.
        boot: id of this computer's boot during which it was last changed; empty if unknown.
    """

    gpus: tuple[Gpu, ...]
    sessions: tuple[Session, ...] = ()
    faults: tuple[Fault, ...] = ()
    mps_faults: tuple[str, ...] = ()
    dcgm_is_paused: bool = False
    sources: tuple[Spec, ...] = ()
    branch: str = RECORDED
    boot: str = ""

    @property
    def release(self) -> Release:
        return RELEASES[self.branch]

    def replace_gpu(self, index: int, gpu: Gpu) -> State:
        return replace(self, gpus=(*self.gpus[:index], gpu, *self.gpus[index + 1 :]))


class Cell:
    """A state under change; its content is written at the end, even if an error ended the change."""

    def __init__(self, state: State) -> None:
        self.state = state

    def meet(self, function: str, gpu: int | None) -> None:
        """Count a call of a C function, for a GPU or none; raise `DriverError` and use up the fault if one applies."""
        for position, fault in enumerate(self.state.faults):
            if fault.function != function or (fault.gpu is not None and fault.gpu != gpu) or fault.times == 0:
                continue
            used = fault if fault.times is None else replace(fault, times=fault.times - 1)
            if fault.skip:
                used = replace(fault, skip=fault.skip - 1)
            before, after = self.state.faults[:position], self.state.faults[position + 1 :]
            self.state = replace(self.state, faults=(*before, used, *after))
            if fault.skip == 0:
                raise DriverError(fault.code)


class StateFile:
    """The file that holds a simulated machine; its lock file has the same name with `.lock` appended.

    Raises `ConfigError` if the file is missing, invalid or not writable, or has an unknown model.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self._lock = self.path.with_name(self.path.name + ".lock")

    def read(self) -> State:
        return _remove_dead(_end_earlier_boots(self._read_all()))

    def faults(self) -> tuple[Fault, ...]:
        """Return its faults, which every driver call needs, without checking processes."""
        return self._read_all().faults

    def _read_all(self) -> State:
        # Files are replaced atomically, so a reader needs no lock.
        try:
            return _from_json(regular_files.read_text(self.path))
        except FileNotFoundError as error:
            raise ConfigError(
                f"there is no simulated machine {self.path}; a study with gpu.machine={self.path} makes it"
            ) from error
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigError(
                f"{self.path} does not hold a simulated machine ({error}); name one that a study made, or a new file"
            ) from error

    @contextmanager
    def change(self) -> Iterator[Cell]:
        """Yield the machine for one change, under the lock."""
        with self._lock_file():
            cell = Cell(self.read())
            try:
                yield cell
            finally:
                self._write(cell.state)

    def create(self, model_names: Iterable[str], faults: Iterable[Fault] = (), branch: str = RECORDED) -> State:
        """Write a machine with these GPUs, replacing any content of the file.

        Its GPUs have the same UUIDs in every machine created this way.
        """
        state = State(
            gpus=tuple(_new_gpu(index, mig_table.find(name)) for index, name in enumerate(model_names)),
            faults=tuple(faults),
            branch=branch,
            boot=boot_id(),
        )
        with self._lock_file():
            self._write(state)
        return state

    def keep(self, model_names: Iterable[str], branch: str = RECORDED) -> State:
        """Return the machine of the file or, if there is none, create one whose GPUs have unique UUIDs."""
        new = [mig_table.find(name) for name in model_names]
        if self.path.exists():
            return self.read()  # without the lock: an invalid file gets no lock file
        with self._lock_file():
            if self.path.exists():
                return self.read()
            # Locks and journals are found by UUID, which must not be that of another machine.
            machine = uuid.uuid4().hex
            gpus = tuple(_new_gpu(index, model, machine) for index, model in enumerate(new))
            state = State(gpus=gpus, branch=branch, boot=boot_id())
            self._write(state)
        return state

    @contextmanager
    def _lock_file(self) -> Iterator[None]:
        try:
            descriptor = os.open(self._lock, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise ConfigError(
                f"the simulated machine {self.path} cannot be locked: {error}; choose a folder that you may write"
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _write(self, state: State) -> None:
        temporary = self.path.with_name(self.path.name + ".new")
        try:
            temporary.write_text(json.dumps(asdict(state), indent=1), encoding="utf-8")
            temporary.replace(self.path)
        except OSError as error:
            raise ConfigError(f"the simulated machine {self.path} cannot be written: {error}") from error


def start_ticks(pid: int) -> int | None:
    """Return the start time of a process in kernel clock ticks; `None` if it does not exist or is a zombie."""
    process = read_process(pid)
    return None if process is None or process.is_zombie else process.start_ticks


def mig_uuid(gpu: Gpu, instance: GpuInstance, ci: ComputeInstance) -> str:
    """Return the UUID of a MIG device, which is the same for equal ids and profiles on a GPU."""
    identity = f"{gpu.uuid}/{instance.id}/{instance.profile_id}/{ci.id}/{ci.profile_id}"
    return f"MIG-{uuid.uuid5(_NAMESPACE, identity)}"


def is_made_for_study(gpu_uuid: str) -> bool:
    """Return whether a GPU belongs to a machine created for a study; kept machines have unique UUIDs."""
    return gpu_uuid in _uuids_of_studies()


@functools.cache
def _uuids_of_studies() -> frozenset[str]:
    names = mig_table.models()
    return frozenset(_gpu_uuid(index, name) for name in names for index in range(MAX_GPUS * len(names)))


def _gpu_uuid(index: int, model_name: str, machine: str = "") -> str:
    return f"GPU-{uuid.uuid5(_NAMESPACE, f'{machine}{model_name}/{index}')}"


def _new_gpu(index: int, model: mig_table.Model, machine: str = "") -> Gpu:
    return Gpu(
        model=model.name,
        uuid=_gpu_uuid(index, model.name, machine),
        bus_id=f"00000000:00:{_FIRST_PCI_DEVICE + index:02X}.0",
    )


def _end_earlier_boots(state: State) -> State:
    """Return the machine without what was ended by restarts of this computer since its last change."""
    boot = boot_id()
    if state.boot == boot:
        return state
    if not state.boot or not boot:
        return replace(state, boot=boot)
    return replace(state, boot=boot, gpus=tuple(map(_restart, state.gpus)), sessions=(), dcgm_is_paused=False)


def _restart(gpu: Gpu) -> Gpu:
    is_on = gpu.mig_pending and mig_table.find(gpu.model).architecture in _KEEPS_MIG_MODE
    return Gpu(
        model=gpu.model,
        uuid=gpu.uuid,
        bus_id=gpu.bus_id,
        mig_current=is_on,
        mig_pending=is_on,
        health=gpu.health,
        settings=Settings(is_ecc_on=gpu.settings.is_ecc_on),  # ECC mode is in the InfoROM
    )


def _remove_dead(state: State) -> State:
    return replace(
        state,
        sessions=tuple(session for session in state.sessions if _is_alive(session.pid, session.start_ticks)),
        gpus=tuple(
            replace(gpu, processes=tuple(p for p in gpu.processes if _is_alive(p.pid, p.start_ticks)))
            for gpu in state.gpus
        ),
    )


def _is_alive(pid: int, began: int | None) -> bool:
    return began is None or start_ticks(pid) == began


@functools.lru_cache(maxsize=4)  # each driver call reads the file, but few change it
def _from_json(text: str) -> State:
    state = json_decoder.decode(State, json.loads(text))
    if state.branch not in RELEASES:
        raise ValueError(f"branch is {state.branch!r}, none of {', '.join(RELEASES)}")
    for gpu in state.gpus:
        if gpu.health.counter_fault not in ("", *COUNTER_FAULTS):
            raise ValueError(f"counter_fault is {gpu.health.counter_fault!r}, none of {', '.join(COUNTER_FAULTS)}")
    return replace(state, sources=tuple(spec for spec in state.sources if spec.target not in _REMOVED_SOURCES))
