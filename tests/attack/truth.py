"""Jobs whose rate, step time and energy are known, under faults: each figure is right to 2 %, missing, or marked."""

from __future__ import annotations

import json
import os
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Any

from pipeline.base.paths import PROJECT_DIR
from pipeline.base.tags import GROUP, JOB, PREFIX
from pipeline.plan import schema
from tests import fail_everywhere, forks
from tests.attack.bench import Bench, Outcome
from tests.toys import known
from tests.toys.meter import WATTS

EXACT = 0.02
"""How far a figure may be from the truth without a mark."""
_JOB = PROJECT_DIR / "tests/toys/known.py"
_STEPS = [
    f"workload.script={_JOB}",
    "window.seconds=3",
    "window.settle_s=0.3",
    "limits.ready_s=200",
    "limits.stop_s=60",
]
_METER = ["listeners=[host,meter]", "listeners.host.interval_ms=500"]
# The clock of the orchestrator is read from the same file as that of its jobs.
_CLOCKED = f"""
import os, runpy, sys
sys.path.insert(0, {str(PROJECT_DIR)!r})
from tests.toys.known import follow_clock
follow_clock()
sys.argv[0] = {str(PROJECT_DIR / "run.py")!r}
runpy.run_path(sys.argv[0], run_name="__main__")
"""
_RUNS = """
SELECT runs.run_uuid, runs.name FROM runs JOIN experiments USING (experiment_id)
JOIN tags ON tags.run_uuid = runs.run_uuid AND tags.key = '{role}' AND tags.value = '{value}'
WHERE experiments.name = '{experiment}'
"""
_ROLE = f"{PREFIX}role"


@dataclass(slots=True)
class _Study:
    """A study of one group, with what happens to it while it runs.

    Attributes:
        arguments: of `run.py`.
        happen: does it, from when the study has started to its end.
        may_fail: that it has no result is an answer, too.
    """

    what: str
    arguments: list[str]
    happen: Callable[[Bench, forks.Fork], None] | None = None
    environ: dict[str, str] = field(default_factory=dict)
    is_clocked: bool = False
    may_fail: bool = True


def attack(bench: Bench, random: Random) -> Outcome:
    """Run one group under one fault and hold its row against the truth."""
    study = random.choice([_in_steps, _suspended, _metered, _with_wrong_lines, _logged, _logged, _apart])(bench, random)
    experiment = f"truth-{random.getrandbits(32):08x}"
    outcome = Outcome(study.what)
    code = None
    if study.is_clocked:
        code = bench.folder / "clocked.py"
        code.write_text(_CLOCKED)
    words = [*study.arguments, "scenario=naive", "baseline=never", f"tracking.experiment={experiment}"]
    words += ["foreign_load=note"] if hasattr(schema, "ForeignLoad") else []  # the machine is busy with attacks
    with _environment(study.environ):
        process = bench.start(*words, code=code)
        if study.happen is not None:
            study.happen(bench, process)
        outcome.problems += bench.end(process)
    outcome.problems += bench.problems_after()
    outcome.problems += _untruths(bench, experiment, may_fail=study.may_fail)
    return outcome


def _in_steps(_: Bench, random: Random) -> _Study:
    return _Study("nothing happens", [f"degree={random.randint(1, 2)}", *_STEPS, *_METER], may_fail=False)


def _suspended(_: Bench, random: Random) -> _Study:
    wait_s, length_s = random.uniform(0, 4), random.choice((0.2, 1, 4))

    def suspend(bench: Bench, process: forks.Fork) -> None:
        _wait_for_jobs(bench, process)
        time.sleep(wait_s)
        stopped = [process.pid, *bench.commands()]
        for pid in stopped:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        time.sleep(length_s)
        for pid in reversed(stopped):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    return _Study(f"all is suspended for {length_s:g} s", [f"degree={random.randint(1, 2)}", *_STEPS, *_METER], suspend)


def _metered(_: Bench, random: Random) -> _Study:
    fault = random.choice(["reset", "silent", "once", "gaps", "hangs", "raises"])
    options = f"listeners.meter.options={{fault: {fault}, at_s: {random.uniform(0.5, 5):.2f}}}"
    return _Study(f"a meter: {fault}", ["degree=1", *_STEPS, *_METER, options])


def _with_wrong_lines(_: Bench, random: Random) -> _Study:
    kind = random.choice(["each_twice", "ahead", "huge", "epochs", "noise"])
    return _Study(f"wrong lines: {kind}", ["degree=1", *_STEPS, *_METER, f"workload.args=['--lines={kind}']"])


def _logged(bench: Bench, random: Random) -> _Study:
    by, step_s = random.choice(["mlflow", "tensorboard", "output"]), random.choice((0, 3600, 10, -10, -3600))
    wait_s, clock = random.uniform(0, 5), bench.folder / "clock"
    clock.write_text("0")

    def set_clock(bench: Bench, process: forks.Fork) -> None:
        _wait_for_jobs(bench, process)
        time.sleep(wait_s)
        clock.with_suffix(".new").write_text(str(step_s))
        clock.with_suffix(".new").rename(clock)

    words = _script(by, degree=random.randint(1, 2), seconds=6)
    what = f"rates through {by}, the clock set by {step_s} s"
    return _Study(what, words, set_clock, {"KNOWN_CLOCK": str(clock)}, is_clocked=True)


def _apart(_: Bench, random: Random) -> _Study:
    by = random.choice(["mlflow", "tensorboard", "output"])
    return _Study("jobs that log one after another", _script(by, degree=2, seconds=1.5, late=2.5))


def _script(by: str, *, degree: int, seconds: float, late: float = 0.0) -> list[str]:
    source = "workload.metric_pattern=([0-9.]+) samples/s" if by == "output" else f"workload.metric={known.METRIC}"
    program = [f"--by={by}", f"--seconds={seconds:g}", f"--late={late:g}", "--index={job}"]
    arguments = ",".join(f"'{word}'" for word in program)
    quoted = source.replace("=(", "='(", 1) + "'" if by == "output" else source
    script = ["workload=script", f"workload.script={_JOB}", f"workload.args=[{arguments}]", quoted]
    return [*script, f"degree={degree}", "workload.run_in=job_folder", *_METER]


class _environment:  # noqa: N801  a context, like those of contextlib
    """Variables of the studies that start within."""

    def __init__(self, environ: dict[str, str]) -> None:
        self._environ = environ

    def __enter__(self) -> None:
        os.environ.update(self._environ)

    def __exit__(self, *error: object) -> None:
        for name in self._environ:
            os.environ.pop(name, None)


def _wait_for_jobs(bench: Bench, process: forks.Fork) -> None:
    while process.poll() is None and not any(_JOB.name in command for command in bench.commands().values()):
        time.sleep(0.05)


def _untruths(bench: Bench, experiment: str, *, may_fail: bool) -> Iterator[str]:
    """Name the figures of a study that are neither right nor marked."""
    if not (bench.root / "mlflow.db").exists() or not (groups := _runs(bench, experiment, GROUP)):
        yield "no group was measured"
        return
    for run_id, name in groups:
        tags, metrics = _read(bench, run_id)
        if tags.get(f"{PREFIX}result") != "ok" or f"{PREFIX}window_start_ns" not in tags:
            if not may_fail:
                yield f"{name}: {tags.get(f'{PREFIX}result')}: {tags.get(f'{PREFIX}reason')}"
            continue
        marks = " ".join(tags.get(f"{PREFIX}{name}", "") for name in ("invalid", "flag", "damaged_events"))
        is_marked = bool(tags.get(f"{PREFIX}invalid") or "damaged" in marks or "line" in marks)
        window = tuple(int(tags[f"{PREFIX}window_{edge}_ns"]) for edge in ("start", "end"))
        seconds = (window[1] - window[0]) / 1e9
        expected: dict[str, tuple[float, float]] = {}
        if "energy_j" in metrics:
            expected["energy_j"] = WATTS * seconds, metrics["energy_j"]
        for job_id, job in _jobs(bench, run_id):
            stamps, job_metrics = _truth(bench, experiment, job_id), _read(bench, job_id)[1]
            for figure, value in _true_figures(stamps, window, is_logged="window_s" in metrics).items():
                if figure in job_metrics:
                    expected[f"{figure} of {job}"] = value, job_metrics[figure]
        if os.environ.get("ATTACK_SHOW"):
            print(name, marks, expected, {key: value for key, value in tags.items() if "absent" in key})
        for figure, (true, measured) in expected.items():
            if not is_marked and abs(measured - true) > EXACT * abs(true):
                told = f"{figure} is {measured:.6g} and was {true:.6g}, in {seconds:.3g} s"
                yield f"{name}: {told}; marks: {marks.strip() or 'none'}"


def _true_figures(stamps: list[Any], window: tuple[int, ...], *, is_logged: bool) -> dict[str, float]:
    """Compute the rate in a window, and the median time of a step, from what a job kept itself."""
    begin, end = window
    if is_logged:
        spans = [(max(0, min(now, end) - max(before, begin)), value) for (before, _), (now, value) in pairwise(stamps)]
        total = sum(length for length, _ in spans)
        return {"throughput_samples_per_s": sum(n * value for n, value in spans) / total} if total else {}
    inside = [(t_ns, done) for t_ns, done in stamps if begin <= t_ns <= end]
    if len(inside) < 2:
        return {}
    (first_ns, first), (last_ns, last) = inside[0], inside[-1]
    # What is cut by the edges of the window is a step on either side.
    rate = (last - first) / (last_ns - first_ns) * 1e9 if last_ns - first_ns > 0.9 * (end - begin) else first / first_ns
    steps_ms = [(now - before) / 1e6 for (before, _), (now, _) in pairwise(inside)]
    return {"throughput_samples_per_s": rate, "step_time_p50_ms": statistics.median(steps_ms)}


def _runs(bench: Bench, experiment: str, role: str) -> list[list[str]]:
    statement = _RUNS.format(role=_ROLE, value=role, experiment=experiment)
    return fail_everywhere.query(bench.root / "mlflow.db", statement)


def _jobs(bench: Bench, parent: str) -> list[list[str]]:
    statement = (
        "SELECT runs.run_uuid, runs.name FROM runs JOIN tags USING (run_uuid) "
        f"JOIN tags role ON role.run_uuid = runs.run_uuid AND role.key = '{_ROLE}' AND role.value = '{JOB}' "
        f"WHERE tags.key = 'mlflow.parentRunId' AND tags.value = '{parent}'"
    )
    return fail_everywhere.query(bench.root / "mlflow.db", statement)


def _read(bench: Bench, run_id: str) -> tuple[dict[str, str], dict[str, float]]:
    """Read the tags and the metrics of a run."""
    database, of_run = bench.root / "mlflow.db", f"WHERE run_uuid = '{run_id}'"
    tags = fail_everywhere.query(database, f"SELECT key, value FROM tags {of_run}")
    return dict(tags), dict(fail_everywhere.query(database, f"SELECT key, value FROM latest_metrics {of_run}"))


def _truth(bench: Bench, experiment: str, run_id: str) -> list[Any]:
    files = (bench.root / "artifacts" / experiment / run_id).rglob("truth.json")
    return json.loads(next(files).read_text()) if files else []
