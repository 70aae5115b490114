"""Jobs whose rate, step time and energy are known, under faults: each figure is right to 2 %, missing, or marked."""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from random import Random

from pipeline.base.system.factory import Spec
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.plan import config_schema
from pipeline.simulation.machine.state_file import Fault, State, StateFile
from tests.attack import true_rows
from tests.attack.bench import Bench, Outcome
from tests.attack.true_rows import Faults
from tests.support import forks
from tests.toys import known

_JOB = PROJECT_DIR / "tests/toys/known.py"
_PATIENT = ["limits.ready_s=200", "limits.stop_s=60"]
_STEADY = [f"workload.script={_JOB}", "window.seconds=3", "window.settle_s=0.3", *_PATIENT]
_EPOCHS = [f"workload.script={_JOB}", "window=work", "window.epochs=4", *_PATIENT]
_METER = ["listeners=[host,meter]", "listeners.host.interval_ms=500"]
_OF_NVML = ("nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetPowerUsage")
_NVML_ERRORS = {"times out": 10, "is lost": 15, "fails": 999}
"""What NVML answers, as nvml.h numbers it: nvmlReturn_t."""
# The clock of the orchestrator is read from the same file as that of its jobs.
_CLOCKED = f"""
import os, runpy, sys
sys.path.insert(0, {str(PROJECT_DIR)!r})
from tests.toys.known import follow_clock
follow_clock()
sys.argv[0] = {str(PROJECT_DIR / "run.py")!r}
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@dataclass(slots=True)
class _Study:
    """A study of one group, with what happens to it while it runs.

    Attributes:
        arguments: of `run.py`.
        faults: for the judge.
        happen: does it, from when the jobs have started to its end.
        sensor: of the simulated GPU, if not the meter is asked.
    """

    what: str
    arguments: list[str]
    faults: Faults
    happen: Callable[[Bench, forks.Process], None] | None = None
    environ: dict[str, str] = field(default_factory=dict)
    is_clocked: bool = False
    sensor: Spec | None = None


def attack(bench: Bench, random: Random) -> Outcome:
    """Run one group under one fault and hold its row against the truth."""
    kinds = (_untouched, _suspended, _metered, _sensed, _with_wrong_lines, _logged, _logged, _stray, _apart)
    study = random.choice(kinds)(bench, random, time.monotonic_ns())
    experiment = f"truth-{random.getrandbits(32):08x}-rehearsal"
    outcome, code = Outcome(study.what), None
    if study.is_clocked:
        code = bench.folder / "clocked.py"
        code.write_text(_CLOCKED)
    words = [*study.arguments, "scenario=naive", "baseline=never", f"tracking.experiment={experiment}"]
    words += ["foreign_load=note"] if hasattr(config_schema, "ForeignLoad") else []  # the machine is busy with attacks
    bench.environ = study.environ
    with _sensors(bench, study.sensor):
        loads = [os.getloadavg()[0]]
        process = bench.start(*words, code=code)
        bench.environ = {}
        if study.happen is not None:
            bench.wait_for(process, _JOB.name)
            study.happen(bench, process)
        outcome.problems += bench.end(process)
        loads.append(os.getloadavg()[0])
    outcome.problems += bench.problems_after()
    is_quiet = max(loads) < len(os.sched_getaffinity(0))
    judgement = true_rows.judge(bench.root, experiment, study.faults, is_quiet=is_quiet)
    outcome.problems += judgement.problems
    outcome.num_figures = judgement.num_compared
    return outcome


def _untouched(_: Bench, random: Random, begin_ns: int) -> _Study:
    words = random.choice((_STEADY, [*_EPOCHS, "workload.args=['--by=epochs']"]))
    words = [f"degree={random.randint(1, 2)}", *words, *_with_meter(begin_ns)]
    return _Study("nothing happens", words, Faults(begin_ns, are_none=True))


def _suspended(_: Bench, random: Random, begin_ns: int) -> _Study:
    wait_s, length_s = random.uniform(0, 4), random.choice((0.2, 1, 4))
    faults = Faults(begin_ns)

    def suspend(bench: Bench, process: forks.Process) -> None:
        time.sleep(wait_s)
        stopped = bench.pids(process)
        for pid in stopped:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        since_ns = time.monotonic_ns()
        time.sleep(length_s)
        faults.outages.append((since_ns, time.monotonic_ns()))
        for pid in reversed(stopped):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    words = [f"degree={random.randint(1, 2)}", *_STEADY, *_with_meter(begin_ns)]
    return _Study(f"all is suspended for {length_s:g} s", words, faults, suspend)


def _metered(_: Bench, random: Random, begin_ns: int) -> _Study:
    fault = random.choice(("reset", "silent", "once", "gaps", "hangs", "raises"))
    options = _with_meter(begin_ns, fault, random.uniform(0.5, 5))
    return _Study(f"a meter: {fault}", ["degree=1", *_STEADY, *options], Faults(begin_ns))


def _sensed(_: Bench, random: Random, begin_ns: int) -> _Study:
    fault = random.choice(("nothing", "reset", "hangs", *_NVML_ERRORS))
    wait_s, function = random.uniform(0, 4), random.choice(_OF_NVML)
    times = random.choice((1, 5, None))

    def fail(bench: Bench, _: forks.Process) -> None:
        time.sleep(wait_s)
        options = [("begin_ns", begin_ns)]
        if fault in ("reset", "hangs"):
            options.append((f"{fault}_ns", time.monotonic_ns()))
            _change(bench, sources=(_sensor(*options),))
        elif fault in _NVML_ERRORS:
            _change(bench, faults=(Fault(function=function, code=_NVML_ERRORS[fault], times=times),))

    words = ["degree=1", *_STEADY, "listeners=[host,nvml]", "listeners.nvml.interval_ms=200"]
    sensor = _sensor(("begin_ns", begin_ns))
    return _Study(f"NVML: {fault}", words, Faults(begin_ns, may_fail=fault != "nothing"), fail, sensor=sensor)


def _with_wrong_lines(_: Bench, random: Random, begin_ns: int) -> _Study:
    kind, by = random.choice(
        [(kind, "steps") for kind in ("each_twice", "ahead", "huge", "noise")]
        + [(kind, "epochs") for kind in ("epochs_twice", "validation", "each_twice", "ahead")]
    )
    words = ["degree=1", *(_STEADY if by == "steps" else _EPOCHS), f"workload.args=['--by={by}','--lines={kind}']"]
    return _Study(f"wrong lines of {by}: {kind}", [*words, *_with_meter(begin_ns)], Faults(begin_ns))


def _logged(bench: Bench, random: Random, begin_ns: int) -> _Study:
    by, step_s = random.choice(("mlflow", "tensorboard", "output")), random.choice((0, 3600, 10, -10, -3600))
    wait_s, clock = random.uniform(0, 5), bench.folder / "clock"
    clock.write_text("0")

    def set_clock(_: Bench, __: forks.Process) -> None:
        time.sleep(wait_s)
        clock.with_suffix(".new").write_text(str(step_s))
        clock.with_suffix(".new").rename(clock)

    words = [*_script(by, degree=random.randint(1, 2), seconds=6), *_with_meter(begin_ns)]
    faults = Faults(begin_ns, may_lack_rates=step_s != 0, may_fail=step_s != 0)
    what = f"rates through {by}, the clock set by {step_s} s"
    return _Study(what, words, faults, set_clock, {"KNOWN_CLOCK": str(clock)}, is_clocked=True)


def _stray(_: Bench, random: Random, begin_ns: int) -> _Study:
    when = random.choice(("before", "after"))
    words = [*_script("mlflow", degree=random.randint(1, 2), seconds=6, more=[f"--stray={when}"])]
    what = f"rates through MLflow with times {when} the run"
    return _Study(what, [*words, *_with_meter(begin_ns)], Faults(begin_ns, may_lack_rates=True, may_fail=True))


def _apart(_: Bench, random: Random, begin_ns: int) -> _Study:
    by = random.choice(("mlflow", "tensorboard", "output"))
    more, what = random.choice(
        ((["--late=2.5"], "jobs that run"), (["--late=2.5", "--degree=2"], "jobs that run together and log"))
    )
    words = [*_script(by, degree=2, seconds=1.5, more=more), *_with_meter(begin_ns)]
    return _Study(f"{what} one after another", words, Faults(begin_ns, may_lack_rates=True, may_fail=True))


def _with_meter(begin_ns: int, fault: str = "", at_s: float = 0.0) -> list[str]:
    options = f"begin_ns: {begin_ns}, fault: '{fault}', at_s: {at_s:.2f}"
    return [*_METER, f"listeners.meter.options={{{options}}}"]


def _script(by: str, *, degree: int, seconds: float, more: list[str] | None = None) -> list[str]:
    program = [f"--by={by}", f"--seconds={seconds:g}", "--index={job}", *(more or [])]
    arguments = ",".join(f"'{word}'" for word in program)
    rate = "workload.metric_pattern='([0-9.]+) samples/s'" if by == "output" else f"workload.metric={known.METRIC}"
    script = ["workload=script", f"workload.script={_JOB}", f"workload.args=[{arguments}]", rate]
    return [*script, f"degree={degree}", "workload.run_in=job_folder"]


def _sensor(*options: tuple[str, int]) -> Spec:
    return Spec(target="tests.toys.meter.Sensor", options=tuple(options))


def _change(bench: Bench, **values: object) -> State:
    with StateFile(bench.machine).change() as cell:
        before = cell.state
        cell.state = dataclasses.replace(cell.state, **values)  # type: ignore[arg-type]
    return before


@contextmanager
def _sensors(bench: Bench, sensor: Spec | None) -> Iterator[None]:
    """Have the simulated GPU read what a sensor reads."""
    if sensor is None:
        yield
        return
    before = _change(bench, sources=(sensor,))
    try:
        yield
    finally:
        _change(bench, sources=before.sources, faults=before.faults)
