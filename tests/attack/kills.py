"""Processes of a study, of whatever kind, are killed, stopped or interrupted; then the study is resumed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random

from tests.attack.bench import ENDING_SIGNALS, SHORT, Bench, Outcome, name_of
from tests.support import forks

SCENARIOS = ("naive", "mps", "mig", "mig_mps", "serial")
_ORCHESTRATOR, _SENDER, _EVERYTHING = "orchestrator", "sender", "everything at one instant"
_FORKED, _HELPERS = "workload.preload=workloads.client", "listeners=[host,nvml,smi,dcgm]"
VICTIMS: dict[str, tuple[int, tuple[str, ...], tuple[str, ...]]] = {
    _ORCHESTRATOR: (5, SCENARIOS, ()),
    _SENDER: (2, SCENARIOS, ()),
    _EVERYTHING: (2, SCENARIOS, ()),
    "job": (2, SCENARIOS, ()),
    "forked job": (1, SCENARIOS, (_FORKED,)),
    "fork server": (2, SCENARIOS, (_FORKED,)),
    "MPS daemon": (2, ("mps", "mig_mps"), ()),
    "MPS server": (2, ("mps", "mig_mps"), ()),
    "helper program": (2, SCENARIOS, (_HELPERS,)),
}
"""How often each kind of process is the victim, under which modes, and what it takes that there is one."""
_INTERLEAVED = ["workload=toy_held", "window=interleaved", "window.slice_s=0.1"]
_HOW = {
    _ORCHESTRATOR: [*ENDING_SIGNALS, *[signal.SIGKILL] * len(ENDING_SIGNALS)],
    _SENDER: [signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP],
}
_HOW_OTHERS = [signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP]
_LATEST_S = 4.0  # after this a study of one or two groups is over
_POLL_S = 0.02


def attack(bench: Bench, random: Random) -> Outcome:
    """Signal one to three processes of a study; look; sometimes go on with `resume`."""
    (victim,) = random.choices(list(VICTIMS), [weight for weight, _, _ in VICTIMS.values()])
    _, scenarios, words = VICTIMS[victim]
    scenario = random.choice(scenarios)
    experiment = f"kills-{random.getrandbits(32):08x}-rehearsal"
    study = [f"scenario={scenario}", f"degree={random.randint(1, 2)}", *SHORT, *words]
    study.append(f"tracking.experiment={experiment}")
    if scenario in ("naive", "mps") and not words and random.random() < 0.4:
        study = ["-m", "degree=1,2,3", *(word for word in study if not word.startswith("degree=")), *_INTERLEAVED]
    elif random.random() < 0.3:
        study = ["-m", *study, f"repeats={random.randint(1, 2)}"]
    outcome = Outcome(f"of {victim}" if victim == _EVERYTHING else f"of the {victim}")
    process = bench.start(*study)
    possible = [kind for kind, (_, modes, needs) in VICTIMS.items() if scenario in modes and set(needs) <= {*words}]
    sent: list[int] = []  # to the orchestrator
    for kind in (victim, *random.choices(possible, k=random.randrange(3))):
        sent += _signal(bench, process, kind, random, outcome)
    outcome.problems += bench.end(process)
    if sent and signal.SIGKILL not in sent:
        outcome.problems += _disorder(bench, process, sent)
    outcome.problems += bench.problems_after()
    outcome.problems += bench.wrong_figures(experiment)
    if victim == _EVERYTHING or random.random() < 0.3:
        outcome.what += ", resumed"
        again = bench.start(*study, "resume=true")
        outcome.problems += bench.end(again)
        outcome.problems += bench.problems_after()
        outcome.problems += bench.wrong_figures(experiment)
        twice = {digest: number for digest, number in bench.results_of(experiment).items() if number != 1}
        if twice:
            outcome.problems.append(f"results a group: {twice}")
    return outcome


def _disorder(bench: Bench, process: forks.Fork, sent: Sequence[int]) -> Iterator[str]:
    """Name what is wrong after signals that end a study in order, before anybody cleans up."""
    names = " and ".join(name_of(signum) for signum in sent)
    status = process.returncode
    assert status is not None
    if status < 0 or (status > 128 and status - 128 not in sent):
        yield f"after {names} the exit status is {status}"
    if bench.snapshot() != bench.before or bench.journals():
        yield f"after {names} the machine is {bench.snapshot()}, with steps to undo in {bench.journals()}"


def _signal(bench: Bench, process: forks.Fork, victim: str, random: Random, outcome: Outcome) -> list[int]:
    """Wait until there is such a process, and a random time more; then signal it; return what the orchestrator got."""
    signum = random.choice(_HOW.get(victim, _HOW_OTHERS))
    if victim in (_ORCHESTRATOR, _SENDER, _EVERYTHING):
        time.sleep(random.uniform(0, _LATEST_S) * random.random())
        pid = bench.sender_pid if victim == _SENDER else process.pid
        if victim == _ORCHESTRATOR and signum != signal.SIGKILL:
            bench.wait_until_handling(process)
        if process.poll() is not None:
            return []
    else:
        pids = _wait_for(bench, process, victim)
        if not pids:
            return []
        pid = random.choice(pids)
        time.sleep(random.choice((0, 0.05, 0.3)) * random.random())
    if victim == _EVERYTHING:
        outcome.num_kills += bench.kill_everything(process)
        return [signal.SIGKILL]
    with suppress(ProcessLookupError):
        os.kill(pid, signum)
        outcome.num_kills += signum != signal.SIGSTOP
        if signum == signal.SIGSTOP:
            time.sleep(random.uniform(0, 2))
            # A job that stays stopped is ended by the deadlines of the study.
            last = random.choice((signal.SIGCONT, signal.SIGKILL, *([0] if "job" in victim else [])))
            os.kill(pid, last)
            outcome.num_kills += last == signal.SIGKILL
        return [signum] if victim == _ORCHESTRATOR else []
    return []


def _wait_for(bench: Bench, process: forks.Fork, victim: str) -> list[int]:
    """The processes of a kind, as soon as there are any; none if the study ends before."""
    while process.poll() is None:
        commands = bench.commands()
        if pids := [pid for pid, command in commands.items() if _kind(pid, command, commands) == victim]:
            return pids
        time.sleep(_POLL_S)
    return []


def _kind(pid: int, command: str, commands: dict[int, str]) -> str | None:
    if "toys/toy.py" in command:
        return "job"
    if "simulation.nvidia_smi" in command or "simulation.dcgmi" in command:
        return "helper program"
    for server, below in (("workloads/fork_server.py", "forked job"), ("mps.control -d", "MPS server")):
        if server in command:
            is_child = server in commands.get(_parent(pid), "")
            return below if is_child else {"forked job": "fork server", "MPS server": "MPS daemon"}[below]
    return None


def _parent(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return 0
    return int(text[text.rindex(")") + 2 :].split()[1])
