"""The process that loads one place of a GPU: `workloads/occupy.py`, which reads commands from standard input.

The process can use one device and no MPS daemon. It exits when its standard input is closed, also if the self-test is
killed.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, cast

from pipeline.base.domain.records import Device
from pipeline.base.system.errors import ConfigError, LaunchError
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.gpu.selftest.load_plan import Load
from pipeline.launch.environ import inherit_environ
from pipeline.prepare.device import refusals

PROGRAM = PROJECT_DIR / "workloads" / "occupy.py"
_START_LIMIT_S = 120.0  # importing torch and creating a CUDA context on a machine without cached files
_STEP_LIMIT_S = 60.0  # the kernel may have to be built first
_END_LIMIT_S = 5.0
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

    @property
    def pid(self) -> int:
        return self._process.pid

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

    def _failure(self, how: str) -> LaunchError:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_LIMIT_S)
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors.read().decode(errors="replace").splitlines() if line.strip()]
        return LaunchError(
            f"the load of the self-test on {self._device.name} ({self._device.uuid}) {how} "
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
