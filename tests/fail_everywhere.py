"""Fails a study at each of its side effects, one after another, and looks at what is left.

    python -m tests.fail_everywhere --scenario naive mps mps_static mig --how exception sigterm sigkill --stride 1

A side effect is what the orchestrator does to the machine from the moment on which it holds the GPU: a process that it
starts or signals, a file or folder that it writes, renames or removes, a socket that it binds. At the k-th one it gets
an exception, SIGTERM or SIGKILL, for k = 1, 2, ... until a study comes to its end unharmed. Then `pipeline.gpu clean`
is the next start, and the simulated GPU must equal its snapshot, no process of the study may live, no folder be left,
and in the end every MLflow run be terminal. `by_hand` fails `pipeline.gpu create` and `destroy` in the same way: the
GPU is then as it was found or as it was asked for, or becomes that when the command is run again. `acceptance` fails
some checks of `pipeline.gpu acceptance`, one after another. It all runs as a user runs it, but for the audit hook, and
that the processes are forks (`tests/support/forks.py`).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.base.system.paths import PROJECT_DIR
from pipeline.simulation.machine.state_file import Gpu, StateFile
from tests.support import forks

SCENARIOS = ("naive", "timeslice", "mps", "mps_static", "mig", "mig_mps", "mig_parts")
BY_HAND = "by_hand"
ACCEPTANCE = "acceptance"
CHECKS = ("mode", "existing", "jobs", "mps", "kill")
"""Checks of the acceptance that make every kind of change: MIG mode, instances, jobs, daemons, killed children."""
HOWS = ("exception", "sigterm", "sigkill")
_VARIABLE = "FAIL_EVERYWHERE"
_LAST_S = 20.0
_LAYOUT = "1c.3g,2c.3g,1g"
_OPTIONS = {"timeslice": ["scenario.timeslice=short"], "mig_parts": ["scenario.profiles=[1c.3g,2c.3g]"]}
_SCENARIOS = {"mig_parts": "mig"}
"""What is called otherwise in the configuration: `mig_parts` are compute instances of one GPU instance."""
_SHORT = ["baseline=never", "window.seconds=0.2", "window.settle_s=0.05", "limits.ready_s=60", "limits.stop_s=60"]
# In the orchestrator, before run.py or a module of the project: counts what it does, and fails once.
_CHILD = """
import os, runpy, signal, sys
at, how, count_file = int(sys.argv.pop(1)), sys.argv.pop(1), sys.argv.pop(1)
main, count, is_held = os.getpid(), 0, False
WRITES = os.O_WRONLY | os.O_RDWR
NAMES = {"subprocess.Popen", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.kill", "os.killpg", "os.truncate",
         "socket.bind", "shutil.rmtree", "tempfile.mkdtemp"}

def hear(event, arguments):
    global count, is_held
    if event == "open":
        path, flags = str(arguments[0]), arguments[2]
        if path.endswith(".lock") and "collocation-GPU" in path:
            is_held = True
        if not flags & WRITES or path.startswith(("/dev", "/proc", count_file)) or "__pycache__" in path:
            return
        if how == "exception" and "machine.json" in path:
            return  # that is the simulated driver, which a failing call of its own would break
    elif event not in NAMES or (how == "exception" and "machine.json" in str(arguments[0])):
        return
    if event in ("os.mkdir", "os.rename"):
        with open(count_file + ".scratch", "a") as file:
            for path in map(str, arguments[:2]):
                if path.startswith("/tmp/collocation-"):
                    print(path, file=file)
    if not is_held or os.getpid() != main or count < 0:
        return
    count += 1
    if count != at:
        return
    number, count = count, -1
    with open(count_file, "w") as file:
        file.write(f"{number} {event} {arguments[:1]}")
    if how == "exception":
        raise OSError(5, "injected", event)
    os.kill(main, signal.SIGTERM if how == "sigterm" else signal.SIGKILL)

sys.addaudithook(hear)
sys.path[0] = os.getcwd()
if sys.argv[1] == "-m":
    sys.argv[:] = sys.argv[2:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
else:
    sys.argv[0] = os.path.abspath("run.py")
    runpy.run_path(sys.argv[0], run_name="__main__")
"""


@dataclasses.dataclass
class Tally:
    """What was tried: points, and where an exception left the next start something to undo."""

    points: int = 0
    left_to_clean: list[str] = dataclasses.field(default_factory=list)
    problems: list[str] = dataclasses.field(default_factory=list)


class Bench:
    """One simulated machine and one store, on which studies fail one after another."""

    def __init__(self, folder: Path, template_store: Path | None = None, model: str = "a100_40gb") -> None:
        self.folder, self.machine, self.root = folder, folder / "machine.json", folder / "mlruns"
        if template_store is not None:
            shutil.copytree(template_store, self.root)
        (folder / "child.py").write_text(_CHILD)
        StateFile(self.machine).keep([model], "615")
        (folder / "locks").mkdir()

    def study(self, scenario: str, at: int, how: str, mark: str) -> subprocess.CompletedProcess[str]:
        """Run one group that fails at its `at`-th side effect; at 0 it does not."""
        arguments = [
            f"scenario={_SCENARIOS.get(scenario, scenario)}",
            *_OPTIONS.get(scenario, []),
            "degree=2",
            *_SHORT,
            "workload=toy",
            "listeners=[host,nvml]",
        ]
        places = [f"gpu.machine={self.machine}", f"gpu.lock_dir={self.folder / 'locks'}", f"tracking.root={self.root}"]
        gpu = ["--config-dir", str(PROJECT_DIR / "tests/conf"), "gpu=simulated_a100_40gb"]
        argv = [self.folder / "child.py", at, how, self.reached, *gpu, *arguments, *places]
        with forks.start(*argv, env=os.environ | {_VARIABLE: mark, "TMPDIR": str(self.folder)}) as process:
            self.sender_pid = process.sender_pid
            out, err = process.communicate(timeout=600)
        return subprocess.CompletedProcess(argv, process.returncode, out, err)

    @property
    def reached(self) -> Path:
        """Where a study says which side effect it failed at."""
        return self.folder / "reached"

    def snapshot(self) -> tuple[Gpu, ...]:
        """The GPUs of the machine as they are, without processes that have ended."""
        return StateFile(self.machine).read().gpus

    def journals(self, suffix: str = ".journal") -> list[Path]:
        """Journals that hold a step; `.by-hand` are those of what was made to stay."""
        return [path for path in (self.folder / "locks").rglob(f"*{suffix}") if path.stat().st_size]

    def clean(self) -> subprocess.CompletedProcess[str]:
        """The next start."""
        return self.command("clean")

    def command(self, *words: str, at: int = 0, how: str = "") -> subprocess.CompletedProcess[str]:
        """A command of `pipeline.gpu`, which fails at its `at`-th side effect, if that is not 0."""
        gpu = ["-m", "pipeline.gpu", *words, "--machine", self.machine, "--lock-dir", self.folder / "locks"]
        return forks.run(*([self.folder / "child.py", at, how, self.reached] if at else []), *gpu)

    def try_by_hand(self, command: str, at: int, how: str, before: object, layout: object, tally: Tally) -> bool:
        """Fail `create`, or `destroy` of what was made, at one point; whether it got as far. Ends as `before`."""
        self.reached.unlink(missing_ok=True)
        words, expected = (["create", _LAYOUT], layout) if command == "create" else (["destroy"], before)
        if command == "destroy":
            self.command("create", _LAYOUT)
        done = self.command(*words, at=at, how=how)
        is_reached = self.reached.exists()
        where = f"{command}, {how} at {self.reached.read_text() if is_reached else 'no point'}"
        if is_reached:
            tally.points += 1
            if how != "sigkill" and self.journals(".journal"):
                tally.left_to_clean.append(where)
            snapshot = self.snapshot()
            # Every other time nobody cleans up before the command is run again.
            if at % 2 and (cleaned := self.clean()).returncode != 0:
                tally.problems.append(f"{where}: clean ended with {cleaned.returncode}: {cleaned.stdout}")
            if at % 2 and command == "create" and self.snapshot() != (layout if self.journals(".by-hand") else before):
                tally.problems.append(f"{where}: after cleaning the GPU is {self.snapshot()}")
            if at % 2 and command == "destroy" and self.snapshot() != snapshot:
                tally.problems.append(f"{where}: clean took what was made by hand: {self.snapshot()}")
            is_made = command == "create" and bool(self.journals(".by-hand"))
            done = self.command(*words)
            if done.returncode != (2 if is_made else 0):
                tally.problems.append(f"{where}: again ended with {done.returncode}: {done.stdout}{done.stderr}")
        elif done.returncode != 0:
            tally.problems.append(f"{where} ended with {done.returncode}: {done.stdout}{done.stderr}")
        if self.snapshot() != expected or self.journals(".journal"):
            tally.problems.append(f"{where}: the GPU is {self.snapshot()}")
        self.command("destroy")
        if self.snapshot() != before or self.journals(".by-hand"):
            tally.problems.append(f"{where}: after destroy the GPU is {self.snapshot()}")
        return is_reached

    def try_acceptance(self, check: str, at: int, how: str, before: object, tally: Tally) -> bool:
        """Fail a check of the acceptance at one point; whether it got as far. The GPU is then as before."""
        self.reached.unlink(missing_ok=True)
        done = self.command("acceptance", "--only", check, "--out", str(self.folder / "out"), at=at, how=how)
        if not self.reached.exists():
            if done.returncode != 0:
                tally.problems.append(f"{check} unharmed ended with {done.returncode}: {done.stdout}{done.stderr}")
            return False
        tally.points += 1
        where = f"{check}, {how} at {self.reached.read_text()}"
        if how != "sigkill" and (self.snapshot() != before or self.journals()):
            tally.left_to_clean.append(where)
        self._clean_and_compare(where, before, tally)
        if journals := self.journals():
            tally.problems.append(f"{where}: {journals} is left")
        return True

    def try_point(self, scenario: str, at: int, how: str, before: object, tally: Tally) -> bool:
        """Fail at one point and look; returns whether the study got as far as that."""
        self.reached.unlink(missing_ok=True)
        mark = uuid.uuid4().hex
        done = self.study(scenario, at, how, mark)
        if not self.reached.exists():
            if done.returncode != 0:
                tally.problems.append(f"{scenario} unharmed ended with {done.returncode}: {done.stderr[-500:]}")
            return False
        tally.points += 1
        where = f"{scenario}, {how} at {self.reached.read_text()}"
        if how != "sigkill" and (self.snapshot() != before or self.journals()):
            tally.left_to_clean.append(where)
            if how == "sigterm":
                tally.problems.append(f"{where}: not undone before the next start")
        living = self._living(mark)
        self._clean_and_compare(where, before, tally)
        if living := self._living(mark):
            tally.problems.append(f"{where}: alive are {living}")
        return True

    def _clean_and_compare(self, where: str, before: object, tally: Tally) -> None:
        """Note what the next start leaves: another GPU than before, or scratch folders."""
        if (cleaned := self.clean()).returncode != 0:
            tally.problems.append(f"{where}: clean ended with {cleaned.returncode}: {cleaned.stdout}{cleaned.stderr}")
        if self.snapshot() != before:
            tally.problems.append(f"{where}: the GPU is {self.snapshot()}")
        if folders := [path for path in self._scratch_folders() if path.exists()]:
            tally.problems.append(f"{where}: {folders} is left")

    def _scratch_folders(self) -> list[Path]:
        """The folders for sockets and pipes that studies of this bench made."""
        names = self.reached.with_name(f"{self.reached.name}.scratch").read_text().splitlines()
        return [Path(name) for name in dict.fromkeys(names)]

    def _living(self, mark: str) -> list[str]:
        """Processes of a study, once those that end by themselves had the time to."""
        deadline = time.monotonic() + _LAST_S
        while (lines := find_marked_processes(mark) + _find_sender(self.sender_pid)) and time.monotonic() < deadline:
            time.sleep(0.1)
        return lines

    def unfinished_runs(self) -> list[str]:
        """MLflow runs that are not terminal, after everything that waits in the spool was sent."""
        return unfinished_runs(self.root)


def unfinished_runs(root: Path) -> list[str]:
    """The same of any store."""
    done = forks.run("-m", "pipeline.tracking", "flush", "--root", root)
    problems = [] if done.returncode == 0 else [f"flush: {done.stderr[-500:]}"]
    running = query(root / "mlflow.db", "SELECT name, status FROM runs WHERE status = 'RUNNING'")
    return problems + [f"{name}: {status}" for name, status in running]


_QUERY = """
import json, sqlite3, sys
rows = sqlite3.connect(f"file:{sys.argv[1]}?mode=rw", uri=True, timeout=300).execute(sys.argv[2]).fetchall()
json.dump(rows, sys.stdout)
"""


def query(database: Path, statement: str) -> list[list[Any]]:
    """The rows of a query, by a process of its own: ours may open a store as a plain file, and would lose its locks."""
    done = forks.run("-c", _QUERY, database, statement)
    if done.returncode != 0:
        raise RuntimeError(f"{statement}: {done.stderr}")
    rows: list[list[Any]] = json.loads(done.stdout)
    return rows


def find_marked_processes(mark: str) -> list[str]:
    lines = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if f"{_VARIABLE}={mark}".encode() in (entry / "environ").read_bytes():
                lines.append(f"{entry.name} {(entry / 'cmdline').read_bytes().replace(bytes(1), b' ').decode()[:200]}")
        except OSError:
            continue
    return lines


def _find_sender(pid: int) -> list[str]:
    """A process whose environment does not tell, because it was forked."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return []
    return [f"{pid} the sender"] if command else []  # one that has ended and is not reaped has no command


def fail_everywhere(
    bench: Bench, scenario: str, how: str, *, first: int = 1, stride: int = 1, most: int | None = None
) -> Tally:
    """Fail at every `stride`-th side effect of a group, from the `first` one on; at `most` of them, if given."""
    tally = Tally()
    before = bench.snapshot()
    at = first
    while tally.points != most and bench.try_point(scenario, at, how, before, tally):
        at += stride
    tally.problems += [f"{scenario}, {how}: {run}" for run in bench.unfinished_runs()]
    return tally


def fail_by_hand(bench: Bench, how: str, *, first: int = 1, stride: int = 1, most: int | None = None) -> Tally:
    """Fail `create` and `destroy` at every `stride`-th side effect; at `most` of them each, if given."""
    tally = Tally()
    before = bench.snapshot()
    bench.command("create", _LAYOUT)
    snapshot = bench.snapshot()
    bench.command("destroy")
    for command in ("create", "destroy"):
        end = None if most is None else tally.points + most
        at = first
        while tally.points != end and bench.try_by_hand(command, at, how, before, snapshot, tally):
            at += stride
    return tally


def fail_acceptance(
    bench: Bench, checks: Sequence[str], how: str, *, first: int = 1, stride: int = 1, most: int | None = None
) -> Tally:
    """Fail checks of the acceptance at every `stride`-th side effect; at `most` of them each, if given."""
    tally, before = Tally(), bench.snapshot()
    for check in checks:
        end = None if most is None else tally.points + most
        at = first
        while tally.points != end and bench.try_acceptance(check, at, how, before, tally):
            at += stride
    return tally


def main() -> int:
    """Print a line for each scenario and way to fail; the exit status says whether anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    choices = (*SCENARIOS, BY_HAND, ACCEPTANCE)
    parser.add_argument("--scenario", nargs="+", choices=choices, default=choices)
    parser.add_argument("--how", nargs="+", choices=HOWS, default=HOWS)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--stride", type=int, default=1)
    options = parser.parse_args()
    is_wrong = False
    for scenario in options.scenario:
        for how in options.how:
            with tempfile.TemporaryDirectory(prefix="fail-") as folder:
                points = {"first": options.first, "stride": options.stride}
                bench = Bench(Path(folder))
                if scenario == ACCEPTANCE:
                    tally = fail_acceptance(bench, CHECKS, how, **points)
                elif scenario == BY_HAND:
                    tally = fail_by_hand(bench, how, **points)
                else:
                    tally = fail_everywhere(bench, scenario, how, **points)
            row = {"scenario": scenario, "how": how} | dataclasses.asdict(tally)
            print(json.dumps(row), flush=True)
            is_wrong = is_wrong or bool(tally.problems)
    return int(is_wrong)


if __name__ == "__main__":
    sys.exit(main())
