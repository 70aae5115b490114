"""A study on simulated GPUs: its machine, which is temporary or kept in a file, and the GPU memory of its jobs.

Jobs run on the CPU, without the simulation. The GPU memory of each job is configured, and the simulated driver counts
it as used when the job is at the barrier, because a real job has allocated its memory at the barrier.
"""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from pipeline.base.domain import mig_table
from pipeline.base.domain.records import Device, Result, Slot
from pipeline.base.system.command_parser import choose_remedy
from pipeline.base.system.errors import ConfigError, SharingError
from pipeline.base.system.paths import expand_path
from pipeline.clean import temporary_folder
from pipeline.launch.job_state import JobState
from pipeline.plan.config_schema import AUTO_DEVICE, Config, GpuConfig, GpuKind
from pipeline.prepare.device import nvml
from pipeline.prepare.device.device_choice import choose, list_selectable, read_grant
from pipeline.simulation.install import install_driver, write_programs
from pipeline.simulation.machine import codes
from pipeline.simulation.machine.driver import Clients
from pipeline.simulation.machine.releases import RECORDED, RELEASES
from pipeline.simulation.machine.state_file import MAX_GPUS, StateFile, start_ticks
from pipeline.simulation.mps import control_program

_PREFIX = "colloc-simulated-"
_OUT_OF_MEMORY = "OutOfMemoryError: simulated GPU out of memory"


class Rehearsal:
    """A simulated machine that pynvml reads in this process, with programs that have the names of the real programs."""

    def __init__(self, state_file: StateFile, programs: Mapping[str, Path]) -> None:
        self._state_file = state_file
        self._clients = Clients(state_file)
        self._programs = tuple((name, str(path)) for name, path in programs.items())

    @property
    def file(self) -> Path:
        """The file that contains the machine."""
        return self._state_file.path.absolute()

    def find_device(self, config: GpuConfig) -> Device:
        """Return the simulated GPU of a configuration; `device` selects among the GPUs of the configured model."""
        name = _find_model(config)
        gpus = self._state_file.read().gpus
        uuids = [gpu.uuid for gpu in gpus if gpu.model == name]
        if len(uuids) < config.count:
            models = ", ".join(gpu.model for gpu in gpus)
            raise ConfigError(
                f"gpu.machine={config.machine} has {len(uuids)} {name}, not {config.count}; set gpu.model and "
                f"gpu.count to match its GPUs ({models}), or set gpu.machine to another file"
            )
        of_model = [device for device in nvml.list_devices() if device.uuid in uuids]
        counted = [dataclasses.replace(device, index=index) for index, device in enumerate(of_model)]
        remedy = "; gpu.count=NUMBER simulates more"
        key, selector = _select_gpu(config)
        selected = choose(key, selector, list_selectable(selector, counted), remedy)
        index = next(
            device_of_machine.index for device_of_machine in of_model if device_of_machine.uuid == selected.gpu_uuid
        )
        device = dataclasses.replace(selected, index=index)
        return dataclasses.replace(device, kind="simulated", programs=self._programs)

    def charge(
        self, states: Sequence[JobState], slots: Sequence[Slot], programs: Sequence[str], memory_mib: int
    ) -> None:
        """Charge each job's memory to each device of its slot, until the job ends.

        Stops at the first job whose device has too little memory, or that has a fault from the machine's state. The
        state of this job then has the error that the job would get on a real GPU. `states` are jobs at the barrier,
        `programs` are their names in process lists, and `slots` has the slot of each job at the job's index.

        Raises:
            SharingError: a device of a slot cannot run jobs, or a job cannot become an MPS client.
        """
        charged: list[str] = []
        held_mib = Counter[tuple[str, int]]()  # a process may host several jobs
        for state, program in zip(states, programs, strict=True):
            pid = state.working_pid
            assert pid is not None
            slot = slots[state.job.index]
            uuid, limit_mib = slot.visible_devices, _read_limit(slot)
            if limit_mib is not None and memory_mib > limit_mib:
                reason = f"{memory_mib} MiB exceed the MPS limit of {limit_mib} MiB"
                state.notice(Result.OOM, f"{_OUT_OF_MEMORY}: {reason}")
                return
            try:
                bypasses = state.job.index == 0 and "bypass" in self._state_file.read().mps_faults
                kind = "C" if bypasses else self._join_mps(state, slot)
                if state.went_wrong:
                    return
                for uuid in slot.device_uuids:
                    held_mib[uuid, pid] += memory_mib
                    self._clients.hold(uuid, pid, program, held_mib[uuid, pid], kind)
            except (RuntimeError, codes.DriverError) as error:
                if start_ticks(pid) is None:
                    continue  # the job has just ended, which the group detects
                if isinstance(error, RuntimeError):
                    raise SharingError(f"job {state.job.name} cannot become a client of MPS: {error}") from error
                if error.code != codes.MEMORY:
                    raise SharingError(
                        f"job {state.job.name} cannot use the simulated device {uuid}: {error}"
                    ) from error
                num_jobs = charged.count(uuid)
                reason = (
                    f"no room for {memory_mib} MiB (gpu.job_memory_mib) on {uuid}, "
                    f"where {num_jobs} jobs use {num_jobs * memory_mib} MiB"
                )
                state.notice(Result.OOM, f"{_OUT_OF_MEMORY}: {reason}")
                return
            charged += slot.device_uuids

    def _join_mps(self, state: JobState, slot: Slot) -> str:
        """Make a job a client of the MPS daemon in its environment, if any; return the kind of its process.

        Raises:
            RuntimeError: the daemon refuses the job.
        """
        connection = control_program.connect(dict(slot.environ), on_behalf_of=state.working_pid)
        if connection is None:
            return "C"
        connection.close()
        if "fault_on_client" in self._state_file.read().mps_faults:
            # On a GPU, the job's CUDA calls would fail from now on; on the CPU, the job must be failed explicitly.
            fault = "simulated fatal fault of an MPS client: its server is in the state FAULT"
            state.notice(Result.FAILED, f"MpsClientFault: {fault}")
        return "M+C"


@contextmanager
def prepare_machine(configs: Sequence[Config]) -> Iterator[Rehearsal | None]:
    """Make pynvml read the simulated machine of the configurations; yield `None` if no configuration is simulated.

    Raises:
        ConfigError: only some configurations are simulated, their machines differ, the model cannot be simulated, or
            the machine's files cannot be written.
    """
    simulated = [config.gpu for config in configs if config.gpu.kind is GpuKind.simulated]
    if not simulated:
        yield None
        return
    if len(simulated) < len(configs):
        # pynvml can read only one machine, and a table must not compare real with simulated figures.
        raise ConfigError("a study runs on simulated GPUs or on real devices, not on both; run two studies")
    for key in ("machine", "driver"):
        if len({getattr(gpu, key) for gpu in simulated}) > 1:
            raise ConfigError(f"gpu.{key} cannot be swept; run one study for each value")
    machine, driver = simulated[0].machine, simulated[0].driver
    if driver not in (None, *RELEASES):
        raise ConfigError(f"gpu.driver={driver} must be one of {', '.join(RELEASES)}")
    path = None if machine is None else expand_path("gpu.machine", machine).resolve()
    model_names = _list_models(simulated)
    # A dry run leaves no files, so it does not create the file of a kept machine.
    if path is not None and (path.exists() or not configs[0].dry_run):
        branch = StateFile(path).keep(model_names, driver or RECORDED).branch
        if driver not in (None, branch):
            raise ConfigError(
                f"gpu.machine={machine} describes a machine with driver {branch}, but gpu.driver={driver}; set "
                "gpu.machine to another file, or remove gpu.driver"
            )
        with open_machine(path) as rehearsal:
            yield rehearsal
        return
    with temporary_folder.hold_scratch(_PREFIX) as folder:
        state_file = StateFile(folder / "machine.json")
        state_file.create(model_names, branch=driver or RECORDED)
        with install_driver(state_file.path):
            yield Rehearsal(state_file, _write_programs(state_file, folder / "bin"))


@contextmanager
def open_machine(path: Path) -> Iterator[Rehearsal]:
    """Make pynvml read the machine in the file `gpu.machine`; the file stays unchanged."""
    state_file = StateFile(path.expanduser().resolve())
    with install_driver(state_file.path):
        yield Rehearsal(state_file, write_programs_beside(state_file))


def write_programs_beside(state_file: StateFile) -> dict[str, Path]:
    """Write the programs of a kept machine to the folder next to its file; return their paths by name."""
    return _write_programs(state_file, state_file.path.with_name(f"{state_file.path.name}.bin"))


def _write_programs(state_file: StateFile, folder: Path) -> dict[str, Path]:
    state_file.read()
    try:
        return write_programs(folder, state_file.path)
    except OSError as error:
        raise ConfigError(
            f"programs of the simulated machine cannot be written to {folder}: {error}; set "
            f"{choose_remedy('gpu.machine', '--machine')} to another file"
        ) from error


def _list_models(gpus: Sequence[GpuConfig]) -> list[str]:
    counts: dict[str, int] = {}
    for gpu in gpus:
        if not 1 <= gpu.count <= MAX_GPUS:
            raise ConfigError(f"gpu.count={gpu.count} must be from 1 to {MAX_GPUS}")
        name = _find_model(gpu)
        counts[name] = max(gpu.count, counts.get(name, 1))
    return [name for name, count in counts.items() for _ in range(count)]


def _select_gpu(config: GpuConfig) -> tuple[str, str]:
    """Return the key that selects a simulated GPU, and its value; by default the GPU that a scheduler granted."""
    if config.device != AUTO_DEVICE:
        return "gpu.device", config.device
    return read_grant() if "SLURM_JOB_ID" in os.environ else ("gpu.device", "0")


def _read_limit(slot: Slot) -> int | None:
    limit = dict(slot.environ).get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT")
    if limit is None:
        return None
    number = limit.removeprefix("0=").removesuffix("B")
    return int(number[:-1]) * (1024 if number.endswith("G") else 1)


def _find_model(config: GpuConfig) -> str:
    if config.model is None:
        raise ConfigError(f"gpu.kind=simulated needs gpu.model=NAME, one of {', '.join(mig_table.models())}")
    return mig_table.find(config.model).name


def remove_abandoned() -> None:
    """Remove the temporary machines of killed studies."""
    temporary_folder.remove_abandoned(_PREFIX)
