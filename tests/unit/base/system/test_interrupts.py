"""Signals become one exception, never in the middle of a step, and the first error of a stack wins."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest

import pipeline.gpu.__main__ as gpu
import pipeline.planner.__main__ as planner
from pipeline.base.system import startup
from pipeline.base.system.errors import (
    CollocationError,
    CommandError,
    ConfigError,
    GpuBusyError,
    InUseError,
    SharingError,
    TrackingError,
)
from pipeline.base.system.interrupts import UndoStack
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.launch.environ import inherit_environ

SCRIPT = """
import os, signal, sys
from pipeline.base.system import interrupts
interrupts.install()
log = []
try:
    with interrupts.hold_interrupts():
        os.kill(os.getpid(), signal.{first})
        log.append("step finished")
    log.append("not reached")
except interrupts.Interrupted as error:
    os.kill(os.getpid(), signal.SIGINT)
    log.append(f"cleaned {{error.exit_status}}")
print(log)
"""


@pytest.mark.parametrize(("first", "status"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGUSR1", 138)])
def test_a_signal_waits_for_the_end_of_a_held_step_and_later_ones_are_ignored(first, status):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(first=first)], capture_output=True, text=True, timeout=120
    )
    assert done.stdout.strip() == str(["step finished", f"cleaned {status}"]), done.stderr


def test_where_nobody_catches_it_the_process_ends_with_its_status_and_no_traceback():
    code = "import os; from pipeline.base.system import interrupts; interrupts.install(); os.kill(os.getpid(), 2)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (130, "interrupted by SIGINT\n")


# Each signal in a fork: the status by which it ended, or None where it ran to its end.
ENDS_BY = """
import json, os, resource, signal, sys, time
from pipeline.base.system import interrupts
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
for number in {ignored}:
    signal.signal(number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, {blocked})
statuses = {{}}
for number in {sent}:
    sys.stdout.flush()
    if (pid := os.fork()) == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        interrupts.install()
        os.kill(os.getpid(), number)
        time.sleep({wait_s})
        os._exit(0)
    statuses[int(number)] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
print(json.dumps(statuses))
"""


def ends_by(sent: str, ignored: str = "()", blocked: str = "()", wait_s: float = 60) -> dict[int, int]:
    """How a program ends that gets a signal, by its number: its status, negative where the kernel ended it."""
    code = ENDS_BY.format(sent=sent, ignored=ignored, blocked=blocked, wait_s=wait_s)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    return {int(number): status for number, status in json.loads(done.stdout).items()}


def test_a_study_whose_interruption_a_library_caught_ends_before_its_next_group():
    code = """
import os
from pipeline.base.system import interrupts
from pipeline.study import executor
interrupts.install()
try:
    os.kill(os.getpid(), 2)
except BaseException:
    print("caught", flush=True)
list(executor.run(["a group"], resources=None))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (130, "caught\n", "interrupted by SIGINT\n")


def test_every_signal_that_would_end_the_process_ends_it_in_order():
    ignored_signals = (signal.SIGPIPE, signal.SIGXFSZ)  # Python ignores them
    faults = (
        signal.SIGSEGV,
        signal.SIGBUS,
        signal.SIGFPE,
        signal.SIGILL,
        signal.SIGABRT,
        signal.SIGSYS,
        signal.SIGTRAP,
    )
    endings = ends_by(
        "sorted(signal.valid_signals() - {signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU})", wait_s=0.02
    )
    expected = {
        number: -number if number in (*faults, signal.SIGKILL) else 128 + number
        for number in endings.keys()
        - {*ignored_signals, signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH}
    }
    assert endings == dict.fromkeys(endings, 0) | expected
    assert {signal.SIGUSR1, signal.SIGXCPU, signal.SIGALRM, signal.SIGQUIT, signal.SIGRTMIN + 3} <= expected.keys()


def test_what_the_starter_ignored_ends_nothing_and_what_it_blocked_does():
    sent = "(signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM)"
    endings = ends_by(sent, ignored="(signal.SIGHUP, signal.SIGUSR1)", blocked=sent, wait_s=0.02)
    assert endings == {signal.SIGHUP: 0, signal.SIGUSR1: 0, signal.SIGUSR2: 140, signal.SIGTERM: 143}


def test_children_have_default_actions_and_none_blocked_whatever_the_starter_did():
    code = (
        "import signal, subprocess; from pipeline.base.system import interrupts\n"
        "for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGRTMIN): signal.signal(number, signal.SIG_IGN)\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR2})\n"
        "interrupts.install()\n"
        "show = ['grep', '-E', 'Sig(Blk|Ign)', '/proc/self/status']\n"
        "subprocess.run(show)\n"
        "with interrupts.inherit_ignored():\n    subprocess.run(show)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    of_libc = 3 << 31  # 32 and 33, which a program that `make` has started may ignore, and nobody can set
    masks = [int(line.split()[1], 16) & ~of_libc for line in done.stdout.splitlines()]
    ignored = sum(1 << number - 1 for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGRTMIN))
    assert masks == [0, 0, 0, ignored], done.stdout + done.stderr


def test_a_handler_of_somebody_else_stays():
    code = (
        "import os, signal; from pipeline.base.system import interrupts\n"
        "signal.signal(signal.SIGPROF, lambda *_: print('profiled'))\n"
        "interrupts.install()\nos.kill(os.getpid(), signal.SIGPROF)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout) == (0, "profiled\n")


@pytest.mark.slow
def test_at_its_limit_of_cpu_time_a_program_still_ends_in_order_and_its_children_have_the_whole():
    code = (
        "import resource, subprocess, sys; from pipeline.base.system import interrupts, startup\n"
        "resource.setrlimit(resource.RLIMIT_CPU, (2, 2)); startup.reserve_cpu_time(); interrupts.install()\n"
        "child = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE)\n"
        "startup.hand_on_limit(child.pid)\n"
        "print(resource.prlimit(child.pid, resource.RLIMIT_CPU), flush=True)\n"
        "while True: pass"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (128 + signal.SIGXCPU, "(2, 2)\n")
    assert "interrupted by SIGXCPU\n" in done.stderr


@pytest.mark.parametrize(
    "body", ["time.sleep(60)", "with interrupts.hold_interrupts():\n    time.sleep(0.5)\n    held = True"]
)
def test_a_signal_that_comes_in_a_destructor_is_not_lost(body):
    code = (
        "import os, time; from pipeline.base.system import interrupts; interrupts.install()\n"
        "class Dies:\n    def __del__(self):\n        os.kill(os.getpid(), 15)\n        time.sleep(0)\n"
        f"Dies()\n{body}\ntime.sleep(60)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (143, "interrupted by SIGTERM\n")


def test_what_else_a_destructor_raises_is_shown():
    code = (
        "from pipeline.base.system import interrupts; interrupts.install()\n"
        "class Dies:\n    def __del__(self):\n        raise OSError('of its own')\n"
        "Dies()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0 and "OSError: of its own" in done.stderr


def test_a_destructor_that_fails_while_an_interruption_is_dealt_with_is_shown_and_interrupts_nothing():
    code = (
        "import os, time; from pipeline.base.system import interrupts; interrupts.install()\n"
        "class Dies:\n    def __del__(self):\n        raise OSError('of its own')\n"
        "try:\n    os.kill(os.getpid(), 15)\n    time.sleep(60)\n"
        "finally:\n    Dies()\n    time.sleep(0.3)\n    print('cleaned')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout) == (143, "cleaned\n") and "OSError: of its own" in done.stderr


@contextmanager
def fail_in_undo(name, undone):
    try:
        yield
    finally:
        undone.append(name)
        raise OSError(f"cannot undo {name}")


def test_a_library_that_breaks_while_it_is_interrupted_shows_no_traceback():
    code = (
        "import os; from pipeline.base.system import interrupts; interrupts.install()\n"
        "try:\n    os.kill(os.getpid(), 2)\nfinally:\n    unbound"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (130, "interrupted by SIGINT\n")


def test_the_first_error_wins_and_names_the_failed_cleanups():
    undone: list[str] = []
    with pytest.raises(ValueError, match="the body") as caught, UndoStack() as stack:
        stack.enter_context(fail_in_undo("a", undone))
        stack.enter_context(fail_in_undo("b", undone))
        raise ValueError("the body")
    assert undone == ["b", "a"]
    notes = "\n".join(caught.value.__notes__)
    assert "cannot undo a" in notes and "cannot undo b" in notes


def test_a_cleanup_that_fails_alone_is_raised():
    with pytest.raises(OSError, match="cannot undo a"), UndoStack() as stack:
        stack.enter_context(fail_in_undo("a", []))


REFUSED = [ConfigError("no"), GpuBusyError("no"), InUseError("no", "a study", lambda: False), TrackingError("no")]
FAILED = [SharingError("no"), CommandError(["nvidia-smi"], 1, "no"), CollocationError("no")]


@pytest.mark.parametrize(
    ("error", "status"), [*((error, 2) for error in REFUSED), *((error, 1) for error in FAILED)], ids=repr
)
def test_it_says_whether_anything_was_touched(
    error: CollocationError, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(_: object) -> None:
        raise error

    monkeypatch.setattr(gpu, "show_profiles", fails)
    monkeypatch.setattr(planner, "_load", lambda function, _: fails if "answer" in function else id)
    assert gpu.main(["profiles"]) == planner.main(["serve"]) == status
    assert capsys.readouterr().err == 2 * f"error: {error}\n"


BEGINS = "import os, sys; from pipeline.base.system import startup; startup.begin()\n"


def run(code: str, redirected: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
    """Run code behind redirections of a shell, whose own streams are pipes."""
    argv = ["sh", "-c", f'exec "$0" -c "$1" {redirected}', sys.executable, code]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, env=os.environ | environ, cwd=PROJECT_DIR)


@pytest.mark.parametrize("redirected", [">&-", "2>&-", "<&-", "<&- >&- 2>&-", ">/dev/full", ">/dev/full 2>/dev/full"])
def test_streams_that_cannot_be_used_fail_nothing_and_no_file_takes_their_place(redirected, tmp_path):
    code = BEGINS + (
        f"kept = open({str(tmp_path / 'kept')!r}, 'w')\n"
        "print('said', flush=True); print('complained', file=sys.stderr); sys.stdin.read()\n"
        "os.system('echo child; echo child >&2')\n"
        "sys.exit(40 + (kept.fileno() > 2))"
    )
    done = run(code, redirected)
    assert (done.returncode, (tmp_path / "kept").read_text()) == (41, ""), done.stderr
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr


def test_output_without_a_reader_is_lost_in_silence_and_what_is_started_has_none_either():
    code = BEGINS + (
        "reads, writes = os.pipe(); os.close(reads); os.dup2(writes, 1)\n"
        "print('x' * 100_000); sys.exit(startup.check_output(os.system('echo child')))"
    )
    done = run(code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("code", "usual", "status"), [("0", 0, 1), ("sys.exit(0)", 0, 1), ("2", 2, 2), ("sys.exit(3)", 3, 3)]
)
def test_output_that_cannot_be_written_is_said_once_and_is_a_failure_of_what_it_is_the_result_of(code, usual, status):
    main = "import sys; from pipeline.base.system import startup\n"
    main += f"def main():\n    print('x' * 100_000)\n    return {code}\n"
    done = run(f"{main}startup.run(main)", ">/dev/full")
    assert done.returncode == status
    assert done.stderr == "error: standard output cannot be written: No space left on device\n"
    assert run(f"{main}startup.run(main)").returncode == usual


def test_output_that_another_program_has_made_non_blocking_arrives_whole():
    reads, writes = os.pipe()
    fcntl.fcntl(writes, fcntl.F_SETFL, os.O_NONBLOCK)
    code = BEGINS + "print('x' * 1_000_000)"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=writes, stderr=subprocess.PIPE, cwd=PROJECT_DIR
    ) as child:
        os.close(writes)
        with os.fdopen(reads, "rb") as file:
            assert len(file.read()) == 1_000_001
        assert child.wait(30) == 0, child.stderr.read()


def test_what_an_encoding_has_no_sign_for_is_shown_in_another_way():
    done = run(BEGINS + r"print('\u00b5', '\udce9'); print('\u00b5', file=sys.stderr)", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stdout, done.stderr) == (0, "\\xb5 \\udce9\n", "\\xb5\n")


def test_warnings_of_libraries_are_no_errors_here_and_the_variable_is_for_the_jobs():
    code = BEGINS + (
        "import warnings; warnings.warn('old', DeprecationWarning); warnings.warn('shown')\n"
        "from pipeline.launch.environ import inherit_environ\n"
        "print(os.environ.get('PYTHONWARNINGS'), inherit_environ()['PYTHONWARNINGS'])"
    )
    done = run(code, PYTHONWARNINGS="error")
    assert (done.returncode, done.stdout) == (0, "None error\n"), done.stderr
    assert "DeprecationWarning: old" not in done.stderr and "UserWarning: shown" in done.stderr
    assert run(f"import warnings; warnings.simplefilter('error')\n{BEGINS}warnings.warn('shown')").returncode == 0


def test_a_job_is_given_no_variable_that_was_not_there(monkeypatch):
    monkeypatch.setattr(startup, "job_variables", {})
    monkeypatch.delenv("PYTHONWARNINGS", raising=False)
    assert "PYTHONWARNINGS" not in inherit_environ()


def test_without_a_working_directory_a_program_ends_with_one_line(tmp_path):
    code = f"import sys; sys.path.insert(0, {str(PROJECT_DIR)!r})\n{BEGINS}"
    gone = tmp_path / "gone"
    gone.mkdir()
    argv = ["sh", "-c", 'rmdir "$PWD"; exec "$0" -c "$1"', sys.executable, code]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, cwd=gone)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("error: the working directory cannot be used: No such file")
