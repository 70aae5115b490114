"""The process that loads one place of a GPU: `workloads/occupy.py`, which reads commands from standard input.

The process can use one device and no MPS daemon. It exits when its standard input is closed, also if the self-test is
killed.

On a simulated GPU no kernel runs, and counters come from a model of the load. The self-test changes only a copy of the
machine; the machine itself remains unchanged even if the self-test is killed.
"""

from __future__ import annotations

import dataclasses
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, cast

from pipeline.base.domain.records import Device
from pipeline.base.system.errors import ConfigError, LaunchError
from pipeline.base.system.factory import Spec
from pipeline.base.system.paths import PROJECT_DIR, expand_path
from pipeline.gpu.selftest.load_bounds import IDLE, Load
from pipeline.launch.environ import inherit_environ
from pipeline.prepare.device import refusals
from pipeline.simulation.install import install_driver, write_programs
from pipeline.simulation.machine import codes, readings
from pipeline.simulation.machine.driver import Clients
from pipeline.simulation.machine.state_file import Gpu, StateFile
from pipeline.simulation.mps import control_program

PROGRAM = PROJECT_DIR / "workloads" / "occupy.py"
_START_LIMIT_S = 120.0  # importing torch and creating a CUDA context on a machine without cached files
_STEP_LIMIT_S = 60.0  # the kernel may have to be built first
_END_LIMIT_S = 5.0
_JOB_MIB = 512
_NEIGHBOUR_SLOWDOWN, _KERNEL_S = 1.5, 0.05  # of a simulated job
_REFUSED = 2  # exit status of a program that cannot run as requested


class Loader:
    """A process that runs loads on one device, one at a time.

    Attributes:
        facts: properties of the device that the process reports: `multiprocessors`, `threads_per_multiprocessor`, ...
    """

    def __init__(self, device: Device, process: subprocess.Popen[bytes], errors: IO[bytes]) -> None:
        self._device, self._process, self._errors = device, process, errors
        self._pending = b""
        self.facts: dict[str, Any] = {}

    def wait_for_device(self) -> None:
        """Wait until the process can use the device.

        Raises:
            ConfigError: this installation cannot run the load, because Triton or a torch build for GPUs is missing.
            LaunchError: the process failed or did not respond in time.
        """
        try:
            self.facts = self._answer("device", _START_LIMIT_S)
        except LaunchError as error:
            if self._process.returncode == _REFUSED:
                raise ConfigError(f"{error}; to check only the health without a load, add --health") from error
            raise

    def begin(self, load: Load) -> None:
        """Begin a load of at least one block."""
        self._write(f"{load.blocks} {load.threads}\n")

    def wait_running(self) -> dict[str, Any]:
        """Wait until the kernels of the load run; return their `rounds` of operations."""
        return self._answer("running", _STEP_LIMIT_S)

    def stop(self) -> None:
        """Request the end of the load."""
        self._write("stop\n")

    def wait_done(self) -> dict[str, Any]:
        """Wait for the end of the load; return its `launches`, `kernel_s` and `num_wrong`."""
        return self._answer("done", _STEP_LIMIT_S)

    def end(self) -> None:
        """End the process."""
        with suppress(OSError):
            cast(IO[bytes], self._process.stdin).close()
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_LIMIT_S)
                return

    def _write(self, text: str) -> None:
        stdin = cast(IO[bytes], self._process.stdin)
        try:
            stdin.write(text.encode())
            stdin.flush()
        except OSError:
            raise self._failure("ended") from None

    def _answer(self, key: str, limit_s: float) -> dict[str, Any]:
        deadline = time.monotonic() + limit_s
        stdout = cast(IO[bytes], self._process.stdout)
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            while True:
                while b"\n" in self._pending:
                    line, _, self._pending = self._pending.partition(b"\n")
                    with suppress(ValueError):  # libraries may print other lines
                        message = json.loads(line)
                        if isinstance(message, dict) and key in message:
                            return cast(dict[str, Any], message[key])
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise self._failure(f"sent no {key!r} for {limit_s:g} s")
                if not (chunk := os.read(stdout.fileno(), 65536)):
                    raise self._failure("ended")
                self._pending += chunk

    def _failure(self, event: str) -> LaunchError:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_LIMIT_S)
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors.read().decode(errors="replace").splitlines() if line.strip()]
        return LaunchError(
            f"the load of the self-test on {self._device.name} ({self._device.uuid}) {event} "
            f"(status {self._process.returncode}): {lines[-1] if lines else 'no message'}"
        )


@contextmanager
def start_loader(device: Device, scratch: Path, environ: Mapping[str, str] | None = None) -> Iterator[Loader]:
    """Start a process that can use only this device, and end it with the context; `scratch` is its temporary folder.

    `environ` has variables that replace the usual ones, such as the pipe folder of an MPS daemon.

    Raises:
        LaunchError: the process cannot be started.
    """
    usual = inherit_environ() | dict(refusals.isolate_from_mps(scratch)) | {"CUDA_VISIBLE_DEVICES": device.uuid}
    with tempfile.TemporaryFile(dir=scratch) as errors:
        try:
            process = subprocess.Popen(
                [sys.executable, str(PROGRAM)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=usual | dict(environ or {}),
                start_new_session=True,
            )
        except OSError as error:
            raise LaunchError(f"could not start {sys.executable}: {error.strerror}") from error
        with process:
            loader = Loader(device, process, errors)
            try:
                yield loader
            finally:
                loader.end()


_SOURCE = f"{readings.__name__}.{readings.Occupied.__name__}"


class Rehearsal:
    """A copy of a simulated machine whose counters show the load of each device."""

    def __init__(self, file: StateFile, programs: dict[str, Path]) -> None:
        self._file = file
        self._programs = tuple((name, str(path)) for name, path in programs.items())
        self._loads: dict[int, tuple[int, int, int, int]] = {}

    def attach(self, device: Device) -> Device:
        """Return the device with the simulated programs of the copy."""
        return dataclasses.replace(device, kind="simulated", programs=self._programs)

    @contextmanager
    def start_loader(self, device: Device, _scratch: Path) -> Iterator[SimulatedLoader]:
        """Start the replacement of the process that loads a device."""
        self.set_load(device, IDLE)
        yield SimulatedLoader(self._file, device, self.set_load)

    def set_load(self, device: Device, load: Load) -> None:
        """Set the load that the counters of a device show."""
        place = readings.WHOLE if device.gi_id is None else device.gi_id
        self._loads[place] = (place, load.blocks, load.threads, count_multiprocessors(device) or 0)
        source = Spec(target=_SOURCE, options=(("loads", tuple(self._loads.values())),))
        with self._file.change() as cell:
            cell.state = dataclasses.replace(cell.state, sources=(source,))


class SimulatedLoader:
    """Replacement for `Loader` on a simulated GPU: no kernel runs, and `show` makes the counters show a load."""

    def __init__(self, file: StateFile, device: Device, show: Callable[[Device, Load], None]) -> None:
        self._file, self._device, self._show = file, device, show
        self.facts: dict[str, Any] = {
            "multiprocessors": count_multiprocessors(device) or 1,
            "threads_per_multiprocessor": readings.threads_each(self._gpu),
        }

    @property
    def _gpu(self) -> Gpu:
        return next(gpu for gpu in self._file.read().gpus if gpu.uuid == self._device.gpu_uuid)

    def wait_for_device(self) -> None:
        """Return at once: a simulated device is always ready."""

    def begin(self, load: Load) -> None:
        """Show this load from now on."""
        self._show(self._device, load)

    def wait_running(self) -> dict[str, Any]:
        """Return what a real load reports, at once."""
        return {"rounds": 1}

    def stop(self) -> None:
        """Show an idle device from now on."""
        self._show(self._device, IDLE)

    def wait_done(self) -> dict[str, Any]:
        """Return the result of a load; a GPU with the fault `shared` slows it if other instances have processes."""
        gpu = self._gpu
        is_slowed = gpu.health.mig_fault == "shared" and len({p.gpu_instance_id for p in gpu.processes}) > 1
        return {"num_wrong": 0, "kernel_s": _KERNEL_S * (_NEIGHBOUR_SLOWDOWN if is_slowed else 1)}


@contextmanager
def start_simulated_job(file: StateFile, device: Device, environ: Mapping[str, str]) -> Iterator[SimulatedLoader]:
    """Start a process that holds memory of a simulated MIG device, as a client of the MPS daemon in its variables.

    Raises:
        LaunchError: the device or the daemon refuses the process.
    """
    argv = [sys.executable, "-I", "-S", "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, env=dict(environ), start_new_session=True) as process:
        try:
            connection = control_program.connect(environ, on_behalf_of=process.pid)
            kind = "C" if connection is None else "M+C"
            if connection is not None:
                connection.close()
            Clients(file).hold(device.uuid, process.pid, "python3", _JOB_MIB, kind)
            yield SimulatedLoader(file, device, lambda *_: None)
        except (RuntimeError, codes.DriverError) as error:
            raise LaunchError(f"a job cannot use the simulated device {device.uuid}: {error}") from error
        finally:
            process.kill()


def count_multiprocessors(device: Device) -> int | None:
    """Return the device's number of multiprocessors as the driver reports it; `None` if unknown."""
    return device.facts.multiprocessors


@contextmanager
def copy_machine(model: str, machine: Path | str | None, scratch: Path) -> Iterator[Rehearsal]:
    """Copy a simulated machine, or create one of a model, and install its driver in this process."""
    file = StateFile(scratch / "machine.json")
    if machine is None:
        file.create([model])
    else:
        shutil.copyfile(expand_path("--machine", str(machine)), file.path)
    programs = write_programs(scratch / "bin", file.path)
    with install_driver(file.path):
        yield Rehearsal(file, programs)
