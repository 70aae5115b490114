"""A process that hosts jobs, each in a green context: `python workloads/host_green.py FILE` (`tenants.py`).

Before the jobs are built, their operations are tried in as many green contexts (`green_trial.py`). If one of them
hangs, fails, or computes other values than on the whole device, the group is skipped.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":  # reason: see workloads/__init__.py
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from workloads import green_trial, host_streams, tenants
from workloads.green_contexts import Driver, make_streams
from workloads.tenants import UnsupportedError

if TYPE_CHECKING:
    import torch

_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM)  # no operation raises these signals


class GreenContexts(host_streams.Streams):
    """A stream in a green context for each tenant."""

    def __init__(self, streams: Sequence[torch.cuda.Stream], requested: int | None, got: Sequence[int]) -> None:
        super().__init__(streams)
        self._requested, self._got = requested, got

    def describe(self, position: int) -> dict[str, object]:
        # Also in place of the number that torch reports, which is that of the device.
        return {"multiprocessors": self._got[position], "multiprocessors_requested": self._requested or "equal parts"}


def find_fault(command: Sequence[str], limit_s: int) -> str:
    """Run a trial of green contexts (`green_trial.py`) as a child process; return what does not work, or `""`.

    The child has the session of this process, so it ends with it; if an operation hangs, a signal ends the child.

    Raises:
        RuntimeError: the trial itself failed; its error is in the output.
    """
    done = subprocess.run([sys.executable, *command], stdout=subprocess.PIPE, text=True, check=False)
    messages = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    last = messages[-1] if messages else {}
    if "fault" in last:
        return str(last["fault"])
    if done.returncode == 0:
        return ""
    if done.returncode > 0 or -done.returncode in _FROM_OUTSIDE or "operation" not in last:
        raise RuntimeError(f"the trial of green contexts ended with status {done.returncode}; its error is above")
    if done.returncode == -signal.SIGALRM:
        return f"{last['operation']} did not finish within {limit_s} s"
    return f"{last['operation']} ended its process with signal {-done.returncode}"


def remember(file: Path, key: str, find: Callable[[], str]) -> str:
    """Return the answer that the file has for a key; if it has none, find the answer and write it."""
    answers: dict[str, str] = json.loads(file.read_text(encoding="utf-8"))
    if key not in answers:
        answers[key] = find()
        file.write_text(json.dumps(answers), encoding="utf-8")
    return answers[key]


def refuse_faults(options: dict[str, Any], num_contexts: int) -> None:
    """Raise `UnsupportedError` if operations of the jobs do not work in green contexts, as tried once in a study."""
    spec = {name: options[name] for name in ("multiprocessors", "trials")} | {"num_contexts": num_contexts}
    command, versions = [green_trial.__file__, json.dumps(spec)], _describe_versions()
    key = f"{command[-1]} {os.environ['CUDA_VISIBLE_DEVICES']} {versions}"
    fault = remember(Path(options["answers"]), key, lambda: find_fault(command, green_trial.LIMIT_S))
    if fault:
        raise UnsupportedError(f"{fault} ({versions}); use scenario=streams or mps")


def _describe_versions() -> str:
    import torch

    cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    return f"torch {torch.__version__}, CUDA {torch.version.cuda}, cuDNN {cudnn}, driver API {Driver().read_version()}"


def make_place(options: dict[str, Any], num_tenants: int) -> tenants.Place:
    """Return green contexts, or threads only if there is no GPU."""
    if not host_streams.has_gpu():
        return tenants.Place()
    # Without a context in this process, so that the trial also runs on a GPU that accepts one process.
    Driver().split(0, num_tenants, options["multiprocessors"])
    refuse_faults(options, num_tenants)
    streams = make_streams(num_tenants, options["multiprocessors"])
    return GreenContexts(
        [stream for stream, _ in streams], options["multiprocessors"], [number for _, number in streams]
    )


if __name__ == "__main__":
    tenants.run_tenants(make_place)
