"""A simulated machine and a store that outlive the studies on them, and what must hold after every attack."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from pipeline.base.domain.records import Result
from pipeline.base.domain.tags import GROUP, Tag, stored_name
from pipeline.base.system.paths import PROJECT_DIR
from tests import fail_everywhere
from tests.attack import container, figures
from tests.support import forks

ENDING_SIGNALS = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU),
    *(signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF, signal.SIGIO, signal.SIGPWR, signal.SIGSTKFLT),
    *(signal.SIGRTMIN, signal.SIGRTMIN + 3, signal.SIGRTMAX),
)
"""Those that end a program which does not handle them, and a study in order: signal(7)."""
EXIT_STATUSES = frozenset({0, 1, 2, *(128 + signum for signum in ENDING_SIGNALS)})
"""Those that README.md documents."""
TOY = ["--config-dir", str(PROJECT_DIR / "tests/conf"), "workload=toy", "listeners=[host,nvml]"]
SHORT = ["window.seconds=0.2", "window.settle_s=0.05", "limits.ready_s=20", "limits.stop_s=5"]
PATIENT = ["limits.ready_s=200", "limits.stop_s=200"]
"""Of a study that must end well, also on a machine that has much else to do."""
_RUN = uuid.uuid4().hex
"""How the marks begin of the studies that this process starts."""
_POLL_S = 0.05
LIMIT_S = 300.0
"""No attack keeps a study from ending for longer: its own deadlines, of `SHORT`, are far below, also under load."""
# What a log of an expected failure may hold: the one that says which line of ours has an error.
_TRACEBACK = re.compile(r"Traceback \(most recent call last\)")
_RESULTS = f"""
SELECT digest.value, result.value FROM runs
JOIN experiments USING (experiment_id)
JOIN tags role ON role.run_uuid = runs.run_uuid AND role.key = '{Tag.ROLE}' AND role.value = '{GROUP}'
JOIN tags digest ON digest.run_uuid = runs.run_uuid AND digest.key = '{stored_name(Tag.DIGEST)}'
JOIN tags result ON result.run_uuid = runs.run_uuid AND result.key = '{Tag.RESULT}'
WHERE experiments.name = '{{}}'
"""


@dataclass(slots=True)
class Outcome:
    """What one attack did, in words that count alike in a summary, and what did not hold.

    Attributes:
        num_kills: signals that reached a living process, without those that stop it for a while.
        num_inputs: command lines, files and environments that were made up.
        num_figures: figures without a mark that were held against the truth.
        num_steady, marks: rows of programs that give no reason for a mark, and the marks of such rows.
    """

    what: str
    problems: list[str] = field(default_factory=list)
    num_kills: int = 0
    num_inputs: int = 0
    num_figures: int = 0
    num_steady: int = 0
    marks: list[str] = field(default_factory=list)


def name_of(signum: int) -> str:
    """Name a signal; most of the real-time ones have no name of their own."""
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"SIGRTMIN+{signum - signal.SIGRTMIN}"


def kill_studies() -> None:
    """Kill all that this process started, and what that started; call it again until nobody starts more."""
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            process.kill()
    for line in fail_everywhere.find_marked_processes(_RUN):  # those whose parent had ended
        with suppress(ProcessLookupError):
            os.kill(int(line.partition(" ")[0]), signal.SIGKILL)


class Bench(fail_everywhere.Bench):
    """The bench of `fail_everywhere`, with studies of any arguments.

    Attributes:
        environ: variables for the studies that start from now on.
        printed, errors: what the last study wrote until its end.

    Nothing here opens a store: other processes read it (`fail_everywhere.query`).
    """

    def __init__(self, folder: Path, template_store: Path | None = None) -> None:
        super().__init__(folder, template_store)
        self.before = self.snapshot()
        self.mark = self.printed = self.errors = ""
        self.environ: dict[str, str] = {}

    def start(self, *arguments: str, code: Path | None = None, root: Path | None = None) -> forks.Fork:
        """Start a study on the machine, with a store and a spool in `root` if not in those of the bench."""
        process = forks.start(*self._argv(arguments, code, root), cwd=self.folder, env=self._mark_environment())
        self.sender_pid = process.sender_pid
        return process

    def start_real(self, *arguments: str) -> subprocess.Popen[str]:
        """The same from nothing: the environment then tells also the processes that it forks."""
        self.sender_pid = 0
        return forks.start_real(*self._argv(arguments), cwd=self.folder, env=self._mark_environment())

    def start_in_container(
        self, *arguments: str, identity: container.Identity = container.SAME
    ) -> subprocess.Popen[str]:
        """The same in a container that looks like a machine of this identity; `kill` ends all of it at one instant."""
        self.sender_pid = 0
        places = {"identity": identity, "folder": self.folder, "cwd": self.folder, "env": self._mark_environment()}
        return container.start(*self._argv(arguments), **places)

    def flush_in_container(self, identity: container.Identity, *words: str) -> tuple[int, str]:
        """Send what waits in the spool, as that machine; return the exit status and what was said."""
        argv = ["-m", "pipeline.tracking", "flush", "--root", self.root, *words]
        return container.run(*argv, identity=identity, folder=self.folder, cwd=PROJECT_DIR, env=os.environ)

    def wait_for(self, process: forks.Process, program: str) -> None:
        """Wait until a program with this in its command line runs in the last study, or that has ended."""
        while process.poll() is None and not any(program in command for command in self.commands().values()):
            time.sleep(_POLL_S)

    def _argv(self, arguments: Sequence[str], code: Path | None = None, root: Path | None = None) -> list[object]:
        places = [f"gpu.machine={self.machine}", f"gpu.lock_dir={self.folder / 'locks'}"]
        argv = [code or PROJECT_DIR / "run.py", *TOY, "gpu=simulated_a100_40gb", *arguments, *places]
        return [*argv, f"tracking.root={root or self.root}"]

    def _mark_environment(self) -> dict[str, str]:
        """The environment by which the processes of a new study are told."""
        self.mark = f"{_RUN}-{uuid.uuid4().hex}"
        return os.environ | {fail_everywhere._VARIABLE: self.mark, "TMPDIR": str(self.folder)} | self.environ

    def commands(self) -> dict[int, str]:
        """The living processes of the last study, with their command lines."""
        processes = (line.partition(" ") for line in fail_everywhere.find_marked_processes(self.mark))
        return {int(pid): command for pid, _, command in processes}

    def pids(self, process: forks.Process) -> list[int]:
        """List the living processes of the last study: the orchestrator, and the sender, which may be forks, first."""
        return list(dict.fromkeys([process.pid, *filter(None, [self.sender_pid]), *self.commands()]))

    @staticmethod
    def wait_until_handling(process: forks.Process) -> None:
        """Wait until a program of ours handles SIGTERM: before that it has not begun."""
        while process.poll() is None:
            with suppress(OSError, StopIteration):
                lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
                caught = next(line for line in lines if line.startswith("SigCgt:")).split()[1]
                if int(caught, 16) >> (signal.SIGTERM - 1) & 1:
                    return
            time.sleep(_POLL_S)

    def kill_everything(self, process: forks.Process) -> int:
        """Kill all processes of the last study, and those that came meanwhile; return how many."""
        killed: set[int] = set()
        while remaining_pids := [pid for pid in self.pids(process) if pid not in killed]:
            for pid in remaining_pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            killed.update(remaining_pids)
        return len(killed)

    def end(self, process: forks.Process, limit_s: float = LIMIT_S) -> Iterator[str]:
        """Wait for the end of a study; what is wrong with how it ended."""
        self.printed = self.errors = ""
        try:
            self.printed, self.errors = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            living = self.commands()
            process.kill()
            yield f"a study did not end within {limit_s:g} s; alive were {living}"
            return
        if process.returncode >= 0 and process.returncode not in EXIT_STATUSES:
            yield f"exit status {process.returncode}: {self.errors[-1500:]}"
        if traceback := _TRACEBACK.search(self.errors):
            shown = self.errors[traceback.start() :]
            yield f"a traceback: {shown if len(shown) < 3000 else f'{shown[:1000]} ... {shown[-2000:]}'}"

    def problems_after(self, root: Path | None = None) -> Iterator[str]:
        """What does not hold after the next start: the machine, processes, runs."""
        cleaned = self.clean()
        if cleaned.returncode != 0:
            yield f"clean ended with {cleaned.returncode}: {cleaned.stdout}{cleaned.stderr}"
        deadline = time.monotonic() + 60
        while (living := self.commands()) and time.monotonic() < deadline:
            time.sleep(0.1)
        if living:
            yield f"alive are {living}"
        if self.snapshot() != self.before:
            yield f"the machine is {self.snapshot()}"
        if self.journals():
            yield f"steps are left to undo in {self.journals()}"
        root = root or self.root
        if (root / "mlflow.db").exists():
            yield from fail_everywhere.unfinished_runs(root)
            if (checked := fail_everywhere.query(root / "mlflow.db", "PRAGMA integrity_check")) != [["ok"]]:
                yield f"the store is damaged: {checked}"

    def wrong_figures(
        self, experiment: str, database: Path | None = None, gpu_uuid: str | None = None
    ) -> Iterator[str]:
        """What the last study printed and the store has otherwise, after all of it was sent."""
        yield from figures.differences(self.printed, database or self.root / "mlflow.db", experiment, gpu_uuid)

    def results_of(self, experiment: str, database: Path | None = None) -> Counter[str]:
        """How many results each group of an experiment has in the store."""
        rows = fail_everywhere.query(database or self.root / "mlflow.db", _RESULTS.format(experiment))
        return Counter(digest for digest, result in rows if Result(result).is_finding)
