"""The state of the simulated machine: one JSON file, which all processes share and change under a lock.

Only this module reads and writes the file; it contains no driver rules. Returned states do not contain processes that
have ended, their NVML sessions, and settings that a restart of the computer has reset.
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
"""The number of GPUs of each model in a machine created for a study."""

COUNTER_FAULTS = ("capped", "stuck", "swapped")
"""Faults of counters: `capped` at the share of the smallest instance (NVIDIA/DCGM#248), `stuck` at 0, or SMACT and
GRACT `swapped`."""

MIG_FAULTS = (
    *("displaced", "overlapping", "narrow", "small", "unlisted"),
    *("destroys_filled", "destroys_used", "renamed", "crosstalk", "shared"),
)
"""Faults of MIG, by which a driver breaks its rules without an error.

An instance is created at another free start (`displaced`) or over another one (`overlapping`). Compute instances have
the least width (`narrow`), a MIG device half its memory (`small`). The last placement is not listed (`unlisted`). An
instance is destroyed although it has compute instances (`destroys_filled`) or a process (`destroys_used`). A new MIG
device has a new UUID (`renamed`). A process is listed on every MIG device (`crosstalk`), or slows jobs on other
instances (`shared`).
"""

_NAMESPACE = uuid.UUID("6f1d3c5e-0c1b-4b8e-9d43-51f2a7c0de00")
_FIRST_PCI_DEVICE = 6
# Architectures that store MIG mode in the InfoROM, so that it survives a restart. Source: NVIDIA MIG User Guide.
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
        start, size: first memory slice, and number of memory slices.
        made_s: time of creation (monotonic, seconds); ignored in comparisons.
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
        name: name of the program.
        kind: type that nvidia-smi prints: `C` compute, `M+C` client of an MPS server, `G` graphics.
        gpu_instance_id, compute_instance_id: ids of the MIG device on which the process runs.
        start_ticks: start time, to detect a reused PID; `None` for a fictitious process that never ends.
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
    """A process that has opened NVML `num_open` times; it is a client of every GPU."""

    pid: int
    num_open: int
    start_ticks: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """An injected failure of driver calls.

    Attributes:
        function: name of the C function, such as `nvmlGpuInstanceDestroy`. For changes, nvidia-smi calls the same
            functions, first `nvmlInitWithFlags`.
        code: returned code. With codes 3, 16 and 19, `nvmlDeviceSetMigMode` does not fail, but the mode stays pending.
        skip: number of calls that succeed before the first failure.
        times: number of calls that fail after these; `None` for all.
        gpu: index of the affected GPU; `None` for all GPUs.
    """

    function: str
    code: int
    skip: int = 0
    times: int | None = 1
    gpu: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The hardware faults of a GPU; by default, a GPU has none.

    Attributes:
        ecc_uncorrected_now, ecc_uncorrected_ever: errors since the driver was loaded, and over the life of the GPU.
        rows_remapped_correctable, rows_remapped_uncorrectable: number of replaced memory rows.
        recovery_action: action that the driver recommends, as in nvml.h: 0 none, 1 reset.
        counter_fault: fault of the counters in a self-test, one of `COUNTER_FAULTS`; empty for none.
        mig_fault: fault of MIG, one of `MIG_FAULTS`; empty for none.
    """

    ecc_uncorrected_now: int = 0
    ecc_uncorrected_ever: int = 0
    rows_remapped_correctable: int = 0
    rows_remapped_uncorrectable: int = 0
    is_remap_pending: bool = False
    has_remap_failed: bool = False
    recovery_action: int = 0
    counter_fault: str = ""
    mig_fault: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The administrator's settings that affect a GPU's speed; the defaults are factory settings.

    A setting that the driver does not report is `None`. The clocks are those set by `nvidia-smi -ac`.
    """

    power_limit_w: int | None = None
    graphics_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    is_ecc_on: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU.

    Attributes:
        mig_current, mig_pending: current MIG mode, and MIG mode after the next reset.
        compute_mode: NVML's number of the compute mode.
        timeslice: argument of `nvidia-smi compute-policy --set-timeslice`: 0 default, 1 short, 2 medium, 3 long.
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
    """The simulated machine; a GPU's index is its position in `gpus`.

    Attributes:
        mps_faults: faults from `simulation.mps.control_program.FAULTS`, and `bypass`: the first job of a group runs
            without MPS.
        dcgm_is_paused: whether DCGM's host engine has released the profiling counters.
        sources: sources of readings (`simulation.machine.readings`), in order of precedence.
        branch: branch of the driver, a key of `RELEASES`.
        boot: id of this computer's boot during which the machine was last changed; empty if unknown.
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
    """A state during a change; after the change, it is written to the file, even if an error was raised."""

    def __init__(self, state: State) -> None:
        self.state = state

    def meet(self, function: str, gpu: int | None) -> None:
        """Count a call of a C function, for one GPU or `None`; raise `DriverError` if a fault applies to this call."""
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
    """The file of a simulated machine; its lock file has the same name with `.lock` appended.

    Raises:
        ConfigError: the file is missing, invalid or not writable, or has an unknown model.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self._lock = self.path.with_name(self.path.name + ".lock")

    def read(self) -> State:
        return _remove_dead(_end_earlier_boots(self._read_all()))

    def faults(self) -> tuple[Fault, ...]:
        """Return the injected faults; as every driver call needs them, processes are not checked."""
        return self._read_all().faults

    def _read_all(self) -> State:
        # Files are replaced atomically, so a reader needs no lock.
        try:
            return _from_json(regular_files.read_text(self.path))
        except FileNotFoundError as error:
            raise ConfigError(
                f"there is no simulated machine {self.path}; a study with gpu.machine={self.path} creates it"
            ) from error
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigError(
                f"{self.path} does not contain a simulated machine ({error}); use a file that a study created, or a "
                "new file"
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

        The UUIDs of the GPUs are the same in every machine that this method creates.
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
        """Return the machine in the file; if the file does not exist, create a machine whose GPUs have unique UUIDs."""
        new = [mig_table.find(name) for name in model_names]
        if self.path.exists():
            return self.read()  # read without the lock, so that no lock file is created next to an invalid file
        with self._lock_file():
            if self.path.exists():
                return self.read()
            # Locks and journals are found by UUID, so another machine must not have the same UUID.
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
            raise ConfigError(
                f"the simulated machine {self.path} cannot be written: {error}; check free space and permissions"
            ) from error


def start_ticks(pid: int) -> int | None:
    """Return the start time of a process in kernel clock ticks; `None` if the process does not exist or is a zombie."""
    process = read_process(pid)
    return None if process is None or process.is_zombie else process.start_ticks


def mig_uuid(gpu: Gpu, instance: GpuInstance, ci: ComputeInstance) -> str:
    """Return the UUID of a MIG device; on one GPU, equal ids and profiles have equal UUIDs."""
    identity = f"{gpu.uuid}/{instance.id}/{instance.profile_id}/{ci.id}/{ci.profile_id}"
    if gpu.health.mig_fault == "renamed":
        identity += f"/{instance.made_s}"
    return f"MIG-{uuid.uuid5(_NAMESPACE, identity)}"


def is_made_for_study(gpu_uuid: str) -> bool:
    """Return whether a GPU belongs to a machine created for one study; GPUs of kept machines have unique UUIDs."""
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
    """Return the machine as it is after restarts of this computer since the machine's last change."""
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
        settings=Settings(is_ecc_on=gpu.settings.is_ecc_on),  # the InfoROM stores ECC mode
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


@functools.lru_cache(maxsize=4)  # each driver call reads the file, but few calls change it
def _from_json(text: str) -> State:
    state = json_decoder.decode(State, json.loads(text))
    if state.branch not in RELEASES:
        raise ValueError(f"branch {state.branch!r} is not one of {', '.join(RELEASES)}")
    for gpu in state.gpus:
        for name, faults in (("counter_fault", COUNTER_FAULTS), ("mig_fault", MIG_FAULTS)):
            if (fault := getattr(gpu.health, name)) not in ("", *faults):
                raise ValueError(f"{name} {fault!r} is not one of {', '.join(faults)}")
    return state
