"""What a framework, or a server, sees of the devices that it was given, and whether it computes right on each.

    python workloads/framework.py --framework jax
    CUDA_VISIBLE_DEVICES=MIG-...,MIG-... python workloads/framework.py --framework torch

As a job or by hand. A framework that is not installed, sees nothing or computes wrong is an answer, and no error of
this program. What it found is printed, and kept as `probe.json` in the job's output folder.
"""

from __future__ import annotations

import argparse
import functools
import json
import logging
import os
import resource
import stat
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

if __name__ == "__main__":  # by its path: workloads/__init__.py
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from workloads import client, program
from workloads.frameworks import computing, serving
from workloads.frameworks.computing import CPU, Framework, NotInstalledError, Seen
from workloads.frameworks.options import Framework as Options
from workloads.frameworks.task import Task

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
"""What `works` says; `in part`: right on the devices that it sees, which are fewer than it was given."""
FILE = "probe.json"
_MOST_WORDS = 600

_log = logging.getLogger(__name__)


@dataclass
class Probe:
    """What was found.

    Attributes:
        given: the devices of CUDA_VISIBLE_DEVICES; `None` where it is not set, so that all are there.
        seen: what the framework tells of its devices.
        works: `YES`, `NO`, `PARTLY` or `NOT_INSTALLED`.
        why: in words, unless it works.
        wrong: whether that is a wrong result.
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
        """Return it as params of a run."""
        told: dict[str, object] = {}
        if self.version is not None:  # it was asked
            told = {"framework_version": self.version, "devices_seen": len(self.seen), "seen": self.seen_words}
        given = None if self.given is None else len(self.given)
        every = {**told, "devices_given": given, "works": self.works, "why": self.why or None}
        return {key: value for key, value in every.items() if value is not None}

    @property
    def seen_words(self) -> str:
        """Return the devices for readers: `2 of NVIDIA H100 MIG 1g.10gb, 9728 MiB`."""
        words = [each.words for each in self.seen]
        alike = dict.fromkeys(words)
        told = [f"{words.count(each)} of {each}" if words.count(each) > 1 else each for each in alike]
        return "; ".join(told) or "nothing"


parse = functools.partial(program.parse, Options)


def main() -> None:
    """Ask as the command line says."""
    logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(message)s")
    args = parse()
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
    """Ask, compute once, wait for the group, and compute again while the others do."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:  # NVIDIA's MIG guide asks for more than 1024 where a process uses several instances
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    probe = Probe(args.framework, given_devices())
    task = Task.of(args.rows)
    said_before = _end_of_stderr()
    job.phase("import")
    framework = _asked(probe, lambda: FRAMEWORKS[args.framework]())
    try:
        if framework is not None:
            probe.version = framework.version
            job.phase("build")
            _asked(probe, lambda: _see(probe, framework, said_before))
            if not probe.why:
                _asked(probe, lambda: _compute(probe, framework, task, 1))
        job.ready()
        job.phase("measure")
        if framework is not None and probe.seen and not probe.why:
            _asked(probe, lambda: _compute(probe, framework, task, args.rounds))
            _judge(probe)
    finally:
        if framework is not None:
            framework.close()
    return probe


def given_devices() -> list[str] | None:
    """Return what CUDA_VISIBLE_DEVICES names; `None` if it is not set."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return None if named is None else [each for each in named.split(",") if each]


def _asked(probe: Probe, question: Callable[[], Framework | None]) -> Framework | None:
    """Return the answer; what goes wrong is the answer as well, in the framework's own words."""
    try:
        return question()
    except NotInstalledError as error:
        probe.works, probe.why = NOT_INSTALLED, str(error)
    except Exception as error:  # noqa: BLE001  whatever a framework raises is what is to be found out
        _log.info("%s", error, exc_info=error)
        probe.why = _brief(f"{type(error).__name__}: {error}")
    return None


def _see(probe: Probe, framework: Framework, said_before: int | None) -> None:
    probe.seen = list(framework.devices())
    is_cpu_meant = bool(probe.seen) and not probe.given  # as on a simulated GPU, or by hand on a machine without one
    if not is_cpu_meant and all(each.kind == CPU for each in probe.seen):
        own = framework.why_no_gpu() or _of_gpus(_stderr_since(said_before)) or "it does not say why"
        probe.why = _brief(f"it sees no GPU: {own}")


def _compute(probe: Probe, framework: Framework, task: Task, rounds: int) -> None:
    for _ in range(rounds):
        for position, device in enumerate(probe.seen):
            if difference := task.difference(*framework.compute(position, task.left, task.right)):
                probe.wrong, probe.why = True, f"on device {position} ({device.name}) {difference}"
                return


def _judge(probe: Probe) -> None:
    if probe.why:
        return
    num_given = len(probe.given or ())
    if len(probe.seen) < num_given:
        probe.works, probe.why = PARTLY, f"it sees {len(probe.seen)} of the {num_given} devices that it was given"
    else:
        probe.works = YES


def _end_of_stderr() -> int | None:
    """Return how much was written to the error output, where it is a file, as that of a job is."""
    with suppress(OSError):
        if stat.S_ISREG(os.fstat(2).st_mode):
            return os.fstat(2).st_size
    return None


def _stderr_since(position: int | None) -> str:
    """Return what libraries wrote to the error output since then."""
    if position is None:
        return ""
    with suppress(OSError), Path("/proc/self/fd/2").open("rb") as file:
        file.seek(position)
        return file.read().decode(errors="replace")
    return ""


def _of_gpus(text: str) -> str:
    """Return the last line that speaks of GPUs; empty if none does."""
    lines = [line.strip() for line in text.splitlines() if "cuda" in line.lower() or "gpu" in line.lower()]
    return lines[-1] if lines else ""


def _brief(words: str) -> str:
    return " ".join(words.split())[:_MOST_WORDS]


if __name__ == "__main__":
    main()
