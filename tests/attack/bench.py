"""A simulated machine and a store that outlive the studies on them, and what must hold after every attack."""

from __future__ import annotations

import os
import re
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.base.paths import PROJECT_DIR
from tests import fail_everywhere, forks

EXIT_STATUSES = frozenset({0, 1, 2, 130, 143})
"""Those that README.md documents."""
TOY = ["--config-dir", str(PROJECT_DIR / "tests/conf"), "workload=toy", "listeners=[host,nvml]"]
SHORT = ["window.seconds=0.2", "window.settle_s=0.05", "limits.ready_s=20", "limits.stop_s=5"]
LIMIT_S = 120.0
"""No attack keeps a study from ending for longer: its own deadlines, of `SHORT`, are far below."""
# What a log of an expected failure may hold: the one that says which line of ours has an error.
_TRACEBACK = re.compile(r"Traceback \(most recent call last\)")


@dataclass(slots=True)
class Outcome:
    """What one attack did, in words that count alike in a summary, and what did not hold."""

    what: str
    problems: list[str] = field(default_factory=list)


class Bench(fail_everywhere.Bench):
    """The bench of `fail_everywhere`, with studies of any arguments."""

    def __init__(self, folder: Path, template_store: Path | None = None) -> None:
        super().__init__(folder, template_store)
        self.before = self.snapshot()
        self.mark = ""

    def start(self, *arguments: str, code: Path | None = None) -> forks.Fork:
        """Start a study on the machine."""
        self.mark = uuid.uuid4().hex
        places = [f"gpu.machine={self.machine}", f"gpu.lock_dir={self.folder / 'locks'}", f"tracking.root={self.root}"]
        first = [word for word in arguments if word == "-m"]  # Hydra wants it there
        others = [word for word in arguments if word != "-m"]
        argv = [code or PROJECT_DIR / "run.py", *first, *TOY, "gpu=simulated_a100_40gb", *others, *places]
        environ = os.environ | {fail_everywhere._VARIABLE: self.mark, "TMPDIR": str(self.folder)}
        process = forks.start(*argv, cwd=self.folder, env=environ)
        self.sender_pid = process.sender_pid
        return process

    def pids(self) -> list[int]:
        """The living processes of the last study."""
        return [int(line.split()[0]) for line in fail_everywhere._marked(self.mark)]

    def end(self, process: forks.Fork) -> Iterator[str]:
        """Wait for the end of a study; what is wrong with how it ended."""
        try:
            _, err = process.communicate(timeout=LIMIT_S)
        except TimeoutError:
            process.kill()
            yield f"a study did not end within {LIMIT_S:g} s"
            return
        if process.returncode >= 0 and process.returncode not in EXIT_STATUSES:
            yield f"exit status {process.returncode}"
        if _TRACEBACK.search(err):
            yield f"a traceback: {err[-1500:]}"

    def problems_after(self) -> Iterator[str]:
        """What does not hold after the next start: the machine, processes, runs."""
        cleaned = self.clean()
        if cleaned.returncode != 0:
            yield f"clean ended with {cleaned.returncode}: {cleaned.stdout}{cleaned.stderr}"
        deadline = time.monotonic() + 20
        while (living := self.pids()) and time.monotonic() < deadline:
            time.sleep(0.1)
        if living:
            yield f"alive are {fail_everywhere._marked(self.mark)}"
        if self.snapshot() != self.before:
            yield f"the machine is {self.snapshot()}"
        if self.journals():
            yield f"steps are left to undo in {self.journals()}"
        if (self.root / "mlflow.db").exists():
            yield from self.unfinished_runs()

    def results_of(self, experiment: str) -> Counter[str]:
        """How many results each group of an experiment has in the store."""
        from pipeline.record.store import results

        return Counter(each.digest for each in results.find_finished(self.root, experiment) if each.result.is_finding)
