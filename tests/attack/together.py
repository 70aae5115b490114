"""Two studies at once in one store: what befalls one of them costs the other nothing."""

from __future__ import annotations

import functools
import os
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

from pipeline.base.domain.records import Result
from pipeline.plan import config_schema
from tests.attack.bench import PATIENT, Bench, Outcome
from tests.attack.store_reader import groups_of, read_runs
from tests.support import forks

_WINDOW = ["window.seconds=0.2", "window.settle_s=0.05"]
_KINDS = ("of two experiments", "of one experiment on two machines", "of one experiment on one machine")
_FAULTS = (
    *("nothing", "nothing", "the orchestrator killed", "the sender killed", "the sender stopped"),
    "everything killed",
)
_NUM_GROUPS = 6  # one and two jobs, and one alone, in two blocks
_LATEST_S = 5.0  # after this a study of six groups is nearly over


@functools.cache
def _second(bench: Bench) -> Bench:
    """Another machine for the same store."""
    folder = bench.folder / "second"
    folder.mkdir()
    return Bench(folder)


def attack(bench: Bench, random: Random) -> Outcome:
    """Run two studies; let something befall the second; see that the first is whole, and resume the second."""
    kind, fault, is_new = random.choice(_KINDS), random.choice(_FAULTS), random.random() < 0.5
    number = random.getrandbits(32)
    root = bench.folder / f"store-{number:08x}" if is_new else bench.root
    machines = (bench, _second(bench))
    experiments = [f"together-{number:08x}-rehearsal"] * 2
    if kind == _KINDS[0]:
        experiments[1] = f"b-{experiments[1]}"
    if kind == _KINDS[2]:
        fault = "nothing"
    outcome = Outcome(f"{kind}, of the second {fault}")
    words = ["-m", f"scenario={random.choice(('naive', 'mps', 'mig'))}", "degree=1,2", "repeats=2", *_WINDOW, *PATIENT]
    words += ["foreign_load=note"] if hasattr(config_schema, "ForeignLoad") else []
    studies = [[*words, f"tracking.experiment={experiment}"] for experiment in experiments]
    if kind == _KINDS[2]:
        outcome.problems += _refused(bench, random, studies[0], root)
    else:
        processes = [machines[0].start(*studies[0], root=root)]
        time.sleep(random.choice((0, 0, random.random())))
        processes.append(machines[1].start(*studies[1], root=root))
        _strike(machines[1], processes[1], fault, random, outcome)
        for machine, process in zip(machines, processes, strict=True):
            outcome.problems += machine.end(process)
        outcome.problems += _find_gaps(machines[0], processes[0], experiments[0], root)
        if fault not in ("nothing", "the sender stopped"):
            processes[1] = machines[1].start(*studies[1], "resume=true", root=root)
            outcome.problems += machines[1].end(processes[1])
        may_share = kind == _KINDS[1]
        outcome.problems += _find_gaps(machines[1], processes[1], experiments[1], root, may_share=may_share)
    outcome.problems = [f"{'new' if is_new else 'old'} store: {problem}" for problem in outcome.problems]
    if is_new:
        shutil.rmtree(root)
    return outcome


def _refused(bench: Bench, random: Random, study: list[str], root: Path) -> Iterator[str]:
    """Start a study twice on one machine: one of both is refused, and the other is whole."""
    first = bench.start(*study, root=root)
    mark = bench.mark
    time.sleep(random.uniform(0, 2))
    second = bench.start(*study, root=root)
    statuses = {}
    for process in (second, first):
        yield from bench.end(process)
        statuses[process.pid] = process.returncode
    if sorted(statuses.values()) not in ([0, 1], [0, 2], [0, 0]):  # both, if the first had ended
        yield f"the statuses are {sorted(statuses.values())}"
    bench.mark = mark
    bench.printed = ""
    yield from bench.problems_after(root)


def _strike(bench: Bench, process: forks.Fork, fault: str, random: Random, outcome: Outcome) -> None:
    """Do to a study what is to befall it, at a random time."""
    if fault == "nothing":
        return
    time.sleep(random.uniform(0, _LATEST_S))
    if process.poll() is not None:
        return
    if fault == "everything killed":
        outcome.num_kills += bench.kill_everything(process)
        return
    pid = process.pid if fault == "the orchestrator killed" else bench.sender_pid
    with suppress(ProcessLookupError):
        if fault == "the sender stopped":
            os.kill(pid, signal.SIGSTOP)
            time.sleep(random.uniform(0, 6))
            os.kill(pid, signal.SIGCONT)
        else:
            os.kill(pid, signal.SIGKILL)
            outcome.num_kills += 1


def _find_gaps(
    bench: Bench, process: forks.Fork, experiment: str, root: Path, *, may_share: bool = False
) -> Iterator[str]:
    """Name what a study lacks that nothing befell, or that was resumed.

    Args:
        may_share: that blocks count which the other machine finished, as they do for a study that is resumed.
    """
    if process.returncode != 0:
        yield f"{experiment} ended with {process.returncode}: {bench.printed[-1500:]}"
    yield from bench.problems_after(root)
    uuid = bench.before[0].uuid
    runs = [run for run in groups_of(read_runs(root / "mlflow.db", experiment)) if "result" in run.tags]
    counted = [run for run in runs if Result(run.tags["result"]).is_finding]
    results = Counter((run.tags["digest"], run.tags["gpu_uuid"]) for run in counted)
    if set(results.values()) != {1}:
        yield f"{experiment}: results a group: {results}"
    digests = {digest for digest, of_gpu in results if may_share or of_gpu == uuid}
    if len(digests) != _NUM_GROUPS:
        yield f"{experiment} has results of {len(digests)} of {_NUM_GROUPS} groups"
    if not may_share:
        yield from bench.wrong_figures(experiment, root / "mlflow.db", uuid)
