"""Probe which GPUs a framework or server sees, and whether it computes correctly on each GPU.

    python workloads/framework.py --framework jax
    CUDA_VISIBLE_DEVICES=MIG-...,MIG-... python workloads/framework.py --framework torch

The program runs as a job or by hand. If a framework is not installed, sees no device or computes wrong results, this is
an outcome of the probe, not an error of this program. The outcome is printed and written to `probe.json` in the job's
output folder.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import resource
import stat
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

if __name__ == "__main__":  # reason: see workloads/__init__.py
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from workloads import client, program
from workloads.frameworks import computing, serving
from workloads.frameworks.computing import CPU, Framework, NotInstalledError, Seen, Task
from workloads.frameworks.options import Framework as Options

FRAMEWORKS: dict[str, Callable[[], Framework]] = {
    "torch": computing.Torch,
    "jax": computing.Jax,
    "cupy": computing.Cupy,
    "tensorflow": computing.Tensorflow,
    "paddle": computing.Paddle,
    "http": serving.OverHttp,
    "ray_serve": serving.RayServe,
    "triton_server": serving.TritonServer,
}
YES, NO, PARTLY, NOT_INSTALLED = "yes", "no", "in part", "not installed"
"""Values of `works`. `in part`: the framework computes correctly, but sees fewer devices than it was given."""
FILE = "probe.json"
_MOST_WORDS = 600

_log = logging.getLogger(__name__)


@dataclass
class Probe:
    """The outcome of a probe.

    Attributes:
        given: devices of CUDA_VISIBLE_DEVICES; `None` if the variable is not set, so that every device is visible.
        seen: the devices as the framework describes them.
        works: result of the probe: `YES`, `NO`, `PARTLY` or `NOT_INSTALLED`.
        why: reason why the framework does not work on every given device; empty if it works.
        wrong: whether this reason is a wrong result.
    """

    framework: str
    given: list[str] | None
    version: str | None = None
    seen: list[Seen] = field(default_factory=list)
    works: str = NO
    why: str = ""
    wrong: bool = False

    @property
    def facts(self) -> dict[str, object]:
        """The outcome as params of a run."""
        num_given = None if self.given is None else len(self.given)
        facts: dict[str, object] = {}
        if self.version is not None:  # the framework was imported
            facts = {"framework_version": self.version, "devices_seen": len(self.seen), "seen": self.description}
        facts |= {"devices_given": num_given, "works": self.works, "why": self.why or None}
        return {name: fact for name, fact in facts.items() if fact is not None}

    @property
    def description(self) -> str:
        """The devices as text: `2 of NVIDIA H100 MIG 1g.10gb, 9728 MiB`."""
        counts = Counter(device.description for device in self.seen)
        return "; ".join(f"{count} of {name}" if count > 1 else name for name, count in counts.items()) or "nothing"


def main() -> None:
    """Run the probe given on the command line."""
    logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(message)s")
    args = program.parse(Options)
    with client.attach() as job:
        probe = run(args, job)
        _log.info("%s", json.dumps(asdict(probe), indent=1))
        if folder := os.environ.get("COLLOCATION_OUTPUT_DIR"):
            Path(folder, FILE).write_text(json.dumps(asdict(probe), indent=1) + "\n", encoding="utf-8")
        job.param(**probe.facts)
        if probe.wrong:
            job.wrong(probe.why)
    if job.attached:
        program.leave()


def run(args: argparse.Namespace, job: client.NullJob) -> Probe:
    """List devices, compute once, wait at the group's barrier, and compute again while the other jobs compute."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:  # NVIDIA's MIG guide requires more than 1024 descriptors if a process uses several instances
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    probe = Probe(args.framework, read_visible_devices())
    task = Task.make(args.rows)
    stderr_size = _measure_stderr()
    job.phase("import")
    framework = _attempt(probe, lambda: FRAMEWORKS[args.framework]())
    try:
        if framework is not None:
            probe.version = framework.version
            job.phase("build")
            _attempt(probe, lambda: _see(probe, framework, stderr_size))
            if not probe.why:
                _attempt(probe, lambda: _compute(probe, framework, task, 1))
        job.ready()
        job.phase("measure")
        if framework is not None and probe.seen and not probe.why:
            _attempt(probe, lambda: _compute(probe, framework, task, args.rounds))
            _judge(probe)
    finally:
        if framework is not None:
            framework.close()
    return probe


def read_visible_devices() -> list[str] | None:
    """Return the devices of CUDA_VISIBLE_DEVICES; `None` if the variable is not set."""
    names = os.environ.get("CUDA_VISIBLE_DEVICES")
    return None if names is None else list(filter(None, names.split(",")))


def _attempt(probe: Probe, action: Callable[[], Framework | None]) -> Framework | None:
    """Return the result of an action; if the framework raises an error, store the message in the probe."""
    try:
        return action()
    except NotInstalledError as error:
        probe.works, probe.why = NOT_INSTALLED, str(error)
    except Exception as error:  # noqa: BLE001  whatever a framework raises is a finding
        _log.info("%s", error, exc_info=error)
        probe.why = _brief(f"{type(error).__name__}: {error}")
    return None


def _see(probe: Probe, framework: Framework, stderr_size: int | None) -> None:
    probe.seen = list(framework.devices())
    is_cpu_meant = bool(probe.seen) and not probe.given  # on a simulated GPU, or by hand on a machine without a GPU
    if not is_cpu_meant and all(device.kind == CPU for device in probe.seen):
        reason = framework.why_no_gpu() or _last_gpu_line(_read_stderr(stderr_size)) or "it gives no reason"
        probe.why = _brief(f"it sees no GPU: {reason}")


def _compute(probe: Probe, framework: Framework, task: Task, rounds: int) -> None:
    for _ in range(rounds):
        for position, device in enumerate(probe.seen):
            if difference := task.describe_difference(*framework.compute(position, task.a, task.b)):
                probe.wrong, probe.why = True, f"on device {position} ({device.name}) {difference}"
                return


def _judge(probe: Probe) -> None:
    if probe.why:
        return
    num_given = len(probe.given or ())
    if len(probe.seen) < num_given:
        probe.works, probe.why = PARTLY, f"it sees {len(probe.seen)} of {num_given} given devices"
    else:
        probe.works = YES


def _measure_stderr() -> int | None:
    with suppress(OSError):
        if stat.S_ISREG(os.fstat(2).st_mode):
            return os.fstat(2).st_size
    return None


def _read_stderr(position: int | None) -> str:
    if position is None:
        return ""
    with suppress(OSError), Path("/proc/self/fd/2").open("rb") as file:
        file.seek(position)
        return file.read().decode(errors="replace")
    return ""


def _last_gpu_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if "cuda" in line.lower() or "gpu" in line.lower()]
    return lines[-1] if lines else ""


def _brief(words: str) -> str:
    return " ".join(words.split())[:_MOST_WORDS]


if __name__ == "__main__":
    main()
