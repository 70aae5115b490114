"""Any script as a job: started with the group, measured from outside, its end our end."""

from __future__ import annotations

import errno
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.base.system.paths import PROJECT_DIR
from tests.support.job_server import JobServer, is_alive, wait_until
from workloads import script as runner

SCRIPT_WORKLOAD = PROJECT_DIR / "workloads" / "script.py"


@pytest.fixture
def server() -> Iterator[JobServer]:
    with JobServer() as running:
        yield running


@pytest.fixture
def write(tmp_path):
    """Write a user's script and return its path."""

    def write_script(code: str) -> Path:
        path = tmp_path / "train.py"
        path.write_text(code)
        return path

    return write_script


def test_the_script_sees_what_it_would_see_by_itself(server, write, tmp_path):
    script = write("""
import json, os, sys, time
environ = [os.environ.get(name) for name in ("COLLOCATION_JOB", "MINE")]
print(json.dumps([sys.argv, sys.path[0], os.getcwd(), environ, os.getpgid(0), time.monotonic_ns()]))
""")
    server.start(SCRIPT_WORKLOAD, script, "--epochs", "3", cwd=tmp_path, environ={"MINE": "1"})
    start_ns = server.go(delay_s=0.1)
    assert server.receive() == {"type": "bye", "status": "ok"}
    status, output, _ = server.end()
    *seen, t_ns = json.loads(output)
    assert status == 0
    assert seen == [[str(script), "--epochs", "3"], str(tmp_path), str(tmp_path), [None, "1"], server.process.pid]
    assert t_ns > start_ns
    assert [phase["name"] for phase in server.events("phase")] == ["setup", "ready", "train"]


def test_when_output_was_written_is_noted_if_asked_for(server, write):
    spec = json.loads((server.folder / "job.json").read_text())
    (server.folder / "job.json").write_text(json.dumps(spec | {"watches_output": True}))
    script = write("import time; print('one', flush=True); time.sleep(0.5); print('three')")
    with (server.folder / "stdout.log").open("w") as out:
        server.start(SCRIPT_WORKLOAD, script, stdout=out)
    server.go()
    assert server.end()[0] == 0
    first, *_ = server.events("written")
    assert first["stdout"] == len("one\n")
    (process,), (ended,) = server.events("process"), server.events("process_ended")
    assert process["pid"] != server.process.pid
    assert 0.5e9 < ended["t_ns"] - process["t_ns"] < time.monotonic_ns() - process["t_ns"]


def test_a_failing_script_fails_the_job_with_its_own_status(server, write):
    script = write("import sys; sys.exit(3)")
    server.start(SCRIPT_WORKLOAD, script)
    server.go()
    assert server.receive() == {"type": "bye", "status": "error"}
    assert server.end()[0] == 3
    (error,) = server.events("error")
    expected = ("ScriptError", f"{script} ended with status 3", 3)
    assert (error["type"], error["message"], error["status"]) == expected


LEAVES = """
import subprocess, sys
print(subprocess.Popen(sys.argv[1:], env={}, start_new_session=True).pid)
"""


def test_a_script_that_leaves_its_work_in_the_background_fails_and_the_work_is_ended(server, write):
    script = write(LEAVES)
    server.start(SCRIPT_WORKLOAD, script, "/bin/sh", "-c", "trap '' TERM; sleep 60; :")
    server.go()
    status, output, _ = server.end()
    (error,) = server.events("error")
    message = f"{script} ended but left 1 process running ({int(output)} sh), now killed; let it wait for its children"
    assert (status, error["type"], error["message"]) == (1, "LeftRunningError", message)
    assert not is_alive(int(output))


def test_a_helper_may_end_a_little_after_its_script(server, write):
    server.start(SCRIPT_WORKLOAD, write(LEAVES), "/bin/sleep", "0.3")
    server.go()
    assert server.end()[0] == 0
    (ended,) = server.events("process_ended")
    assert time.monotonic_ns() - ended["t_ns"] > 0.2e9


def test_a_killed_script_is_told_from_one_that_failed(server, write):
    script = write("import os; os.kill(os.getpid(), 9)")
    server.start(SCRIPT_WORKLOAD, script)
    server.go()
    assert server.end()[0] == 128 + 9
    assert server.events("error")[0]["message"] == f"{script} was killed by signal 9"


def test_a_missing_script_is_an_error_before_the_job_is_ready(server, tmp_path):
    server.start(SCRIPT_WORKLOAD, tmp_path / "nothing.py")
    assert server.receive() == {"type": "bye", "status": "error"}
    assert server.end()[0] == 1
    (error,) = server.events("error")
    assert error["type"] == "FileNotFoundError"
    assert "nothing.py: no such script" in error["message"]


WAITS = """
import signal, sys, time
def end(number, frame):
    sys.exit(40 + number)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGRTMIN + 2):
    signal.signal(number, end)
print("waiting", flush=True)
time.sleep(60)
"""


def test_stop_ends_the_script(server, write):
    server.start(SCRIPT_WORKLOAD, write(WAITS))
    server.go()
    assert server.process.stdout.readline() == "waiting\n"
    server.send(type="stop")
    assert server.end()[0] == 40 + signal.SIGTERM


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGRTMIN + 2])
def test_signals_are_passed_on(server, write, number):
    server.start(SCRIPT_WORKLOAD, write(WAITS))
    server.go()
    assert server.process.stdout.readline() == "waiting\n"
    server.process.send_signal(number)
    assert server.end()[0] == 40 + number


def test_no_signal_stays_blocked_in_the_script(server, write):
    script = write("import signal; print(signal.pthread_sigmask(signal.SIG_BLOCK, ()))")
    server.start(SCRIPT_WORKLOAD, script)
    server.go()
    assert server.end()[1] == "set()\n"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("echo hi\n", "Exec format error; begin it with a line such as #!/bin/sh, or write `sh` before it"),
        (
            "#!/bin/bash\r\n",
            "No such file or directory; check the interpreter in its first line, '#!/bin/bash\\r'",
        ),
    ],
)
def test_a_program_without_an_interpreter_is_an_error_that_says_so(server, tmp_path, text, reason):
    script = tmp_path / "train.sh"
    script.write_text(text)
    script.chmod(0o755)
    server.start(SCRIPT_WORKLOAD, script)
    server.go()
    status, _, errors = server.end()
    (error,) = server.events("error")
    assert (status, error["type"], error["message"]) == (126, "ScriptError", f"{script} cannot be started: {reason}")
    assert errors == f"{error['message']}\n"


def test_what_keeps_a_program_from_its_start_is_not_put_on_its_first_line(tmp_path):
    (path := tmp_path / "train.sh").write_text("#!/bin/sh\n")
    error = runner._cannot_start(str(path), OSError(errno.E2BIG, "Argument list too long"))
    assert str(error) == f"{path} cannot be started: Argument list too long"


def test_a_shell_script_may_write_to_a_reader_that_has_gone(server, tmp_path):
    script = tmp_path / "train.sh"
    script.write_text("#!/bin/sh\n{ echo line; sleep 0.2; echo line; echo on >&2; } | head -1\n")
    script.chmod(0o755)
    server.start(SCRIPT_WORKLOAD, script)
    server.go()
    assert server.end() == (0, "line\n", "")


def test_a_dead_orchestrator_takes_the_script_along(server, write):
    server.start(SCRIPT_WORKLOAD, write(WAITS.replace("sys.exit(40 + number)", "pass")))
    server.go()
    server.process.stdout.readline()
    server.hang_up()
    assert server.end()[0] == -signal.SIGKILL  # its output is closed by every process that could write to it


def test_by_hand_it_runs_the_script_and_ends_with_its_status(write):
    done = subprocess.run([sys.executable, SCRIPT_WORKLOAD, write("print('hi'); raise SystemExit(5)")],
                          capture_output=True, text=True)  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (5, "hi\n", "")
    assert subprocess.run([sys.executable, SCRIPT_WORKLOAD], capture_output=True).returncode == 2


def test_waiting_costs_no_processor_time(server, write):
    server.start(SCRIPT_WORKLOAD, write(WAITS))
    server.go()
    server.process.stdout.readline()
    stat = Path(f"/proc/{server.process.pid}/stat")
    before = stat.read_text().split()[13:15]
    assert not wait_until(lambda: server.process.poll() is not None, timeout_s=0.5)
    assert stat.read_text().split()[13:15] == before
