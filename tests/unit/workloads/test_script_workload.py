"""Scripts as jobs, and programs that read the command line that a plan writes for them."""

from __future__ import annotations

import enum
import errno
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from pipeline.base.system.paths import PROJECT_DIR
from pipeline.plan import config_reader, groups, option_loader
from tests.support.job_server import JobServer, is_alive
from tests.support.programs import write_script
from workloads import program
from workloads import script as runner
from workloads.options import PLACE, option

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
    server.launch(SCRIPT_WORKLOAD, script)
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
    server.launch(SCRIPT_WORKLOAD, script, "/bin/sh", "-c", "trap '' TERM; sleep 60; :")
    status, output, _ = server.end()
    (error,) = server.events("error")
    message = f"{script} ended but left 1 process running ({int(output)} sh), now killed; let it wait for its children"
    assert (status, error["type"], error["message"]) == (1, "LeftRunningError", message)
    assert not is_alive(int(output))


def test_a_helper_may_end_a_little_after_its_script(server, write):
    server.launch(SCRIPT_WORKLOAD, write(LEAVES), "/bin/sleep", "0.3")
    assert server.end()[0] == 0
    (ended,) = server.events("process_ended")
    assert time.monotonic_ns() - ended["t_ns"] > 0.2e9


def test_a_killed_script_is_told_from_one_that_failed(server, write):
    script = write("import os; os.kill(os.getpid(), 9)")
    server.launch(SCRIPT_WORKLOAD, script)
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


def test_stop_ends_the_script_and_the_job_succeeds_whatever_its_status(server, write):
    server.launch(SCRIPT_WORKLOAD, write(WAITS))
    assert server.process.stdout.readline() == "waiting\n"
    server.send(type="stop")
    assert server.end()[0] == 0


def test_a_script_that_ignores_sigterm_is_killed(server, write, tmp_path):
    waits = "import signal, time\nsignal.signal(15, signal.SIG_IGN)\nprint('waiting', flush=True)\ntime.sleep(60)"
    impatient = tmp_path / "impatient.py"
    impatient.write_text("from workloads import script\nscript._STOP_S = 0.2\nscript.main()\n")
    server.launch(impatient, write(waits))
    assert server.process.stdout.readline() == "waiting\n"
    server.send(type="stop")
    assert server.end()[0] == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGRTMIN + 2])
def test_signals_are_passed_on(server, write, number):
    server.launch(SCRIPT_WORKLOAD, write(WAITS))
    assert server.process.stdout.readline() == "waiting\n"
    server.process.send_signal(number)
    assert server.end()[0] == 40 + number


def test_no_signal_stays_blocked_in_the_script(server, write):
    script = write("import signal; print(signal.pthread_sigmask(signal.SIG_BLOCK, ()))")
    server.launch(SCRIPT_WORKLOAD, script)
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
    server.launch(SCRIPT_WORKLOAD, script)
    status, _, errors = server.end()
    (error,) = server.events("error")
    assert (status, error["type"], error["message"]) == (126, "ScriptError", f"{script} cannot be started: {reason}")
    assert errors == f"{error['message']}\n"


def test_what_keeps_a_program_from_its_start_is_not_put_on_its_first_line(tmp_path):
    (path := tmp_path / "train.sh").write_text("#!/bin/sh\n")
    error = runner._cannot_start(str(path), OSError(errno.E2BIG, "Argument list too long"))
    assert str(error) == f"{path} cannot be started: Argument list too long"


def test_a_shell_script_may_write_to_a_reader_that_has_gone(server, tmp_path):
    script = write_script(tmp_path / "train.sh", "{ echo line; sleep 0.2; echo line; echo on >&2; } | head -1")
    server.launch(SCRIPT_WORKLOAD, script)
    assert server.end() == (0, "line\n", "")


def test_a_dead_orchestrator_takes_the_script_along(server, write):
    server.launch(SCRIPT_WORKLOAD, write(WAITS.replace("sys.exit(40 + number)", "pass")))
    server.process.stdout.readline()
    server.hang_up()
    assert server.end()[0] == -signal.SIGKILL  # its output is closed by every process that could write to it


def test_by_hand_it_runs_the_script_and_ends_with_its_status(write):
    done = subprocess.run([sys.executable, SCRIPT_WORKLOAD, write("print('hi'); raise SystemExit(5)")],
                          capture_output=True, text=True)  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (5, "hi\n", "")
    assert subprocess.run([sys.executable, SCRIPT_WORKLOAD], capture_output=True).returncode == 2


def test_waiting_costs_no_processor_time(server, write):
    server.launch(SCRIPT_WORKLOAD, write(WAITS))
    server.process.stdout.readline()
    stat = Path(f"/proc/{server.process.pid}/stat")
    before = stat.read_text().split()[13:15]
    time.sleep(0.5)
    assert server.process.poll() is None
    assert stat.read_text().split()[13:15] == before


OF_A_FILE = {
    file.stem: next(iter(option_loader._NAMED.findall(file.read_text())), None)
    for file in sorted((PROJECT_DIR / "conf/workload").glob("*.yaml"))
}
FILES = {kind: name for name, kind in OF_A_FILE.items() if kind is not None}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("kind", FILES)
def test_a_program_gets_the_options_that_were_planned(compose, kind):
    needed = ["workload.command='serve {port}'"] if kind.endswith("Server") else []
    needed += ["workload.model=m"] if kind.endswith("OpenAIServer") else []
    (config,) = config_reader.read(compose([f"workload={FILES[kind]}", "data.root=/data", *needed]))
    planned = config.workload.complete().program_options()
    written = [word.replace("{{port}}", "{port}") for word in groups._make_flags(planned)]  # as the launcher fills it
    args = program.parse(type(config.workload).__mro__[1], written)
    for name, value in planned.items():
        read_back = getattr(args, name)
        if isinstance(read_back, Path):
            read_back = str(read_back)
        expected = value.name if isinstance(value, enum.Enum) else value
        assert read_back == (expected.replace("{{port}}", "{port}") if isinstance(expected, str) else expected), name


Colour = enum.Enum("Colour", "red blue")


@dataclass(kw_only=True)
class Paint:
    """Paint a wall."""

    colour: Colour | None = option(None, help="of the paint")
    layers: list[int] = option([1], help="per cent of each")
    metres: int = option(least=2, help="of the wall")
    folder: str | None = option(None, path=PLACE, help="where")
    budget: float | None = option(None, is_flag=False, help="for the study")

    def check(self, device):
        if self.metres == 13 and not device.is_gpu:
            raise ValueError("metres=13 needs a GPU")


def test_flags_have_the_types_of_the_fields():
    args = program.parse(Paint, ["--metres", "3", "--colour", "blue", "--layers", "4", "5", "--folder", "a"])
    assert (args.metres, args.colour, args.layers, args.folder) == (3, "blue", [4, 5], Path("a"))
    assert (args.options.colour, args.options.budget) == (Colour.blue, None)
    assert (args.seed, args.device, args.epochs) == (0, "auto", 1)
    assert not hasattr(args, "budget")
    assert program.record_options(args) == {"colour": "blue", "layers": [4, 5], "metres": 3, "seed": 0}


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        ([], "required: --metres"),
        (["--metres", "x"], "invalid int value"),
        (["--metres", "1"], "metres=1 must be at least 2"),
        (["--metres", "2", "--colour", "green"], "invalid choice: 'green'"),
        (["--metres", "13", "--device", "cpu"], "metres=13 needs a GPU"),
        (["--metres", "2", "--epochs", "-1"], "epochs=-1 must not be negative"),
        (["--metres", "2", "--budget", "1"], "unrecognized arguments: --budget"),
    ],
)
def test_a_wrong_command_line_ends_with_status_2(flags, why, capsys):
    with pytest.raises(program.UsageError) as ended:
        program.parse(Paint, flags)
    assert ended.value.code == 2 and why in capsys.readouterr().err
