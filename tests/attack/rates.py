"""Programs of known rate in every form of window: each rate is right, or its row is marked (`timed_rows.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from pipeline.base.system.paths import PROJECT_DIR
from tests.attack import timed_rows
from tests.attack.bench import Bench, Outcome

_COMMON = ["workload=toy_held", f"workload.script={PROJECT_DIR / 'tests/toys/timed.py'}", "listeners=[]"]
_COMMON += ["foreign_load=note", "limits.ready_s=200", "limits.stop_s=60"]
_STRESSOR = ["+workload@sizes.T=stressor_turns", "sizes.T.resources=[host_cores]", "sizes.T.dials=[0.1]"]
_STRESSOR += ["sizes.T.threads=1", f"sizes.T.turn_s={timed_rows.TURN_S}", "sizes.T.rounds=5"]
_STRESSOR += [f"sizes.T.turn_settle_s={timed_rows.TURN_SETTLE_S}"]
_WINDOW = ["baseline=never", "window.seconds=3", "window.settle_s=0.3"]


@dataclass(frozen=True, slots=True)
class _Program:
    """Arguments of `timed.py`, and the forms that it may be measured in; `is_steady`: rows should have no mark."""

    what: str
    arguments: str
    forms: Sequence[str]
    is_steady: bool = False


FORMS = {
    "steady": ["scenario=naive", "degree=2", *_WINDOW],
    "streams": ["scenario=streams", "degree=2", *_WINDOW],
    "interleaved": ["-m", "scenario=naive", "degree=1,2,3", "window=interleaved", *_WINDOW[:1], "window.seconds=4"],
    "interleaved streams": [
        *("-m", "scenario=streams", "degree=1,2", "window=interleaved", *_WINDOW[:1], "window.seconds=4")
    ],
    "turns": ["scenario=naive", *_STRESSOR, "mix=[workload,T]", *_WINDOW],
    "repeats=auto": [
        *("scenario=naive", "degree=2", "repeats=auto", "precision_goal_pct=100", "repeats_max=5"),
        *("window.seconds=1", "window.settle_s=0.1"),
    ],
}
"""The arguments of each form of window."""
_SLICED = ("interleaved", "interleaved streams")
PROGRAMS = (
    _Program("steps", "'--step-ms=10'", list(FORMS), is_steady=True),
    _Program("short pauses", "'--steps=20','--step-ms=5','--pause-s=0.02'", list(FORMS), is_steady=True),
    _Program("pauses", "'--steps={steps}','--step-ms={ms}','--pause-s={pause_s}'", ("steady", "streams", *_SLICED)),
    _Program("work while held", "'--kind=threads'", ("streams", *_SLICED)),
    _Program("a service", "'--kind=requests'", ("steady", "streams", "turns"), is_steady=True),
    _Program("requests that come twice", "'--kind=requests','--times=2'", ("steady", "turns")),
    _Program("a job that is starved", "'--kind=starved'", ("turns",)),
)


def attack(bench: Bench, random: Random) -> Outcome:
    """Measure one program in one form, and hold its rows against the truth."""
    program, form = random.choice([(program, form) for program in PROGRAMS for form in program.forms])
    experiment = f"rates-{random.getrandbits(32):08x}-rehearsal"
    pauses = {"steps": random.choice((10, 30, 100)), "ms": random.choice((5, 10))}
    arguments = program.arguments.format(**pauses, pause_s=random.choice((0.05, 0.1, 0.3, 0.5)))
    unit = ["workload.work_unit=requests"] if "requests" in program.arguments else []
    words = [*_COMMON, *unit, f"workload.args=[{arguments}]", *FORMS[form]]
    words += [f"tracking.experiment={experiment}"]
    outcome = Outcome(f"{form}: {program.what}")
    outcome.problems += bench.end(bench.start(*words))
    judgement = timed_rows.judge(bench.root, experiment, is_steady=program.is_steady)
    outcome.problems += judgement.problems
    outcome.num_figures = judgement.num_compared
    if program.is_steady:
        outcome.num_steady, outcome.marks = judgement.num_rows, judgement.marks
    return outcome
