"""Helper programs, run for real."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipeline.base.system import helper_program, host_info, squeue
from pipeline.base.system.errors import CommandError
from pipeline.base.system.helper_program import run, wait_for_end
from tests.support.job_server import is_alive
from tests.support.programs import write_script
from tests.support.waiting import wait_until

SH = "/bin/sh"


def test_output_status_and_command_line_come_back() -> None:
    done = run([SH, "-c", "echo out; echo err >&2"], timeout_s=10)
    assert (done.status, done.stdout, done.stderr) == (0, "out\n", "err\n")
    assert done.argv == (SH, "-c", "echo out; echo err >&2")


def test_arguments_are_never_read_by_a_shell() -> None:
    assert run(["/bin/echo", "$HOME; exit 3", "a  b"], timeout_s=10).stdout == "$HOME; exit 3 a  b\n"


def test_a_failure_tells_command_status_and_stderr() -> None:
    with pytest.raises(CommandError, match="no such instance") as caught:
        run([SH, "-c", "echo no such instance >&2; exit 6"], timeout_s=10)
    assert (caught.value.status, caught.value.argv[0], caught.value.stderr) == (6, SH, "no such instance")


def test_a_failure_without_stderr_tells_what_was_printed() -> None:
    with pytest.raises(CommandError, match="No devices were found"):
        run([SH, "-c", "echo No devices were found; exit 6"], timeout_s=10)


def test_an_unchecked_failure_is_returned() -> None:
    assert run([SH, "-c", "exit 6"], timeout_s=10, check=False).status == 6


def test_a_program_that_a_signal_ends_has_a_negative_status() -> None:
    assert run([SH, "-c", "kill -9 $$"], timeout_s=10, check=False).status == -signal.SIGKILL


@pytest.mark.parametrize("check", [True, False])
def test_a_missing_program_has_no_status(check: bool) -> None:
    with pytest.raises(CommandError, match="could not be started") as caught:
        run(["/nonexistent/nvidia-smi", "-L"], timeout_s=10, check=check)
    assert caught.value.status is None


def test_a_file_that_is_no_program_has_no_status(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    with pytest.raises(CommandError) as caught:
        run([str(tmp_path / "text")], timeout_s=10)
    assert caught.value.status is None


@pytest.fixture
def time_runs_once_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A file that a program makes once it is as it shall be; its time limit begins then."""
    path = tmp_path / "written"

    def status(process: subprocess.Popen[bytes], timeout_s: float) -> int:
        while not path.exists():
            time.sleep(0.01)
        return wait_for_end(process, timeout_s)

    monkeypatch.setattr(helper_program, "wait_for_end", status)
    return path


@pytest.mark.parametrize("check", [True, False])
def test_at_the_time_limit_the_whole_group_is_killed_and_its_words_are_kept(
    check: bool, time_runs_once_written: Path
) -> None:
    script = f"trap '' TERM; echo stuck >&2; sleep 60 & echo $! >&2; touch {time_runs_once_written}; wait; sleep 60"
    start = time.monotonic()
    with pytest.raises(CommandError, match=r"time limit of 0\.3 s\. stuck") as caught:
        run([SH, "-c", script], timeout_s=0.3, check=check)
    assert time.monotonic() - start < 50
    assert caught.value.status is None
    wait_until(lambda: not is_alive(int(caught.value.stderr.split()[-1])), 60)


def test_one_that_may_not_be_killed_is_an_error_at_the_time_limit_like_any_other(
    monkeypatch: pytest.MonkeyPatch, time_runs_once_written: Path
) -> None:
    """As `sudo`, which is root's process: an ordinary user may not signal it."""

    def refuse_signal(pid: int, signum: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(helper_program, "_REAP_LIMIT_S", 0.1)
    monkeypatch.setattr(os, "killpg", refuse_signal)
    with pytest.raises(
        CommandError, match=r"still running, because it could not be killed, after its time limit of 0\.3 s"
    ) as caught:
        run([SH, "-c", f"echo $$ >&2; touch {time_runs_once_written}; exec sleep 60"], timeout_s=0.3)
    pid = int(caught.value.stderr.split()[-1])
    time.sleep(0.1)
    assert is_alive(pid)
    os.kill(pid, signal.SIGKILL)


def test_an_interruption_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pid_file = tmp_path / "pid"

    def status(process: subprocess.Popen[bytes], timeout_s: float) -> int:
        while not (pid_file.exists() and pid_file.read_text().strip()):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)  # while the program is waited for
        return wait_for_end(process, timeout_s)

    monkeypatch.setattr(helper_program, "wait_for_end", status)
    with pytest.raises(KeyboardInterrupt):
        run([SH, "-c", f"echo $$ > {pid_file}; sleep 60"], timeout_s=50)
    wait_until(lambda: not is_alive(int(pid_file.read_text())), 60)


def test_a_signal_that_comes_while_a_program_is_made_leaves_no_process() -> None:
    code = """
import os, signal, subprocess
from pipeline.base.system import helper_program, interrupts
interrupts.install()
make, made = subprocess.Popen, []
def interrupted(*args, **kwargs):
    made.append(make(*args, **kwargs))
    os.kill(os.getpid(), signal.SIGTERM)
    return made[0]
subprocess.Popen = interrupted
try:
    helper_program.run(["/bin/sleep", "60"], timeout_s=50)
except interrupts.Interrupted:
    print(made[0].poll())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == f"{-signal.SIGKILL}\n", done.stderr


def test_a_daemon_left_behind_keeps_nobody_waiting_and_lives(tmp_path: Path) -> None:
    start = time.monotonic()
    done = run([SH, "-c", "sleep 60 & echo $!"], timeout_s=50)
    daemon = int(done.stdout)
    try:
        assert time.monotonic() - start < 50
        time.sleep(0.1)
        assert is_alive(daemon)
    finally:
        os.kill(daemon, signal.SIGKILL)


def test_more_output_than_a_pipe_holds_does_not_block() -> None:
    done = run(
        [sys.executable, "-c", "import sys; sys.stdout.write('x' * 300000); sys.stderr.write('y' * 300000)"],
        timeout_s=20,
    )
    assert (len(done.stdout), len(done.stderr)) == (300_000, 300_000)


def test_stdin_is_what_is_given_or_empty() -> None:
    assert run(["/bin/cat"], timeout_s=10, stdin="get_server_list\n").stdout == "get_server_list\n"
    assert run(["/bin/cat"], timeout_s=10).stdout == ""


def test_the_environment_is_exactly_what_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INHERITED", "1")
    assert run(["/usr/bin/env"], timeout_s=10, environ={"ONLY": "this"}).stdout == "ONLY=this\n"
    assert "INHERITED=1\n" in run(["/usr/bin/env"], timeout_s=10).stdout


def test_output_that_is_not_text_is_replaced() -> None:
    assert run([SH, "-c", r"printf 'a\377b'"], timeout_s=10).stdout == "a�b"


def test_the_program_has_a_session_of_its_own() -> None:
    session = run([sys.executable, "-c", "import os; print(os.getsid(0))"], timeout_s=20).stdout
    assert int(session) != os.getsid(0)


def test_a_process_that_was_waited_for_before_has_its_status() -> None:
    process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    process.wait()
    assert wait_for_end(process, 1) == 3


V2 = "30 20 0:26 / {sys}/cgroup rw - cgroup2 cgroup2 rw\n"
V1 = (
    "35 31 0:32 / {sys}/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "34 31 0:31 / {sys}/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
)
# A container that sees the hierarchy from its own group on, but not the name of that group.
V1_OF_DOCKER = "35 31 0:32 /docker/abc {sys}/cgroup/memory ro - cgroup cgroup rw,memory\n"
V2_BESIDE_V1 = "41 31 0:38 / {sys}/cgroup/unified rw - cgroup2 cgroup2 rw\n"
EVENTS = "low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n"
CONTROL = "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n"


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Say which control groups this process is in, and where they are mounted."""
    monkeypatch.setattr(host_info, "_PROC", tmp_path / "proc")

    def make(groups: str, mounts: str) -> None:
        write(tmp_path / "proc/self/cgroup", f"{groups}\n")
        write(tmp_path / "proc/self/mountinfo", mounts.format(sys=tmp_path / "sys"))

    return make


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("groups", "mounts", "file", "text", "count"),
    [
        ("0::/user.slice/job 1", V2, "sys/cgroup/user.slice/job 1/memory.events", EVENTS, 2),
        ("0::/", V2, "sys/cgroup/memory.events", EVENTS, 2),
        (
            "4:memory:/slurm/job_1\n2:cpu:/\n0::/",
            V1 + V2_BESIDE_V1,
            "sys/cgroup/memory/slurm/job_1/memory.oom_control",
            CONTROL,
            5,
        ),
        ("4:cpu,memory:/docker/abc", V1_OF_DOCKER, "sys/cgroup/memory/memory.oom_control", CONTROL, 5),
        ("0::/", V2, "proc/vmstat", "nr_free_pages 7\noom_kill 9\n", 9),
        ("0::/a", V2, "proc/vmstat", "nr_free_pages 7\noom_kill 9\n", None),
        ("0::/a", V2, "sys/cgroup/a/memory.events", "oom_kill many\n", None),
        ("4:memory:/a", V1, "sys/cgroup/memory/a/memory.oom_control", "under_oom 0\n", None),
    ],
)
def test_the_count_is_that_of_the_group_of_this_process(machine, tmp_path, groups, mounts, file, text, count):
    machine(groups, mounts)
    write(tmp_path / file, text)
    assert host_info.count_oom_kills() == count


def test_where_nothing_can_be_read_there_is_no_count(machine, tmp_path):
    assert host_info.count_oom_kills() is None
    machine("0::/a", V2)
    assert host_info.count_oom_kills() is None


@pytest.fixture
def put_programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Put programs of these lines of shell script on PATH."""

    def put(**lines: str) -> None:
        for name, line in lines.items():
            write_script(tmp_path / name, line)
        monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")

    return put


def test_tasks_have_their_states_whatever_a_user_has_set_to_see_less(put_programs, monkeypatch, tmp_path: Path) -> None:
    listing = "12 3 RUNNING None\\n12 4 PENDING Nodes required for job are DOWN\\n\\n15 N/A PENDING Priority"
    put_programs(squeue=f"echo $@ $SQUEUE_PARTITION $SLURM_CONF > {tmp_path}/asked; printf '{listing}\\n'")
    monkeypatch.setenv("SQUEUE_PARTITION", "other")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    assert squeue.read_states({"15", "12"}) == {"12_3": "RUNNING", "12_4": "PENDING Nodes required for job are DOWN"}
    arguments = (tmp_path / "asked").read_text()
    assert "--jobs=12,15 " in arguments and arguments.endswith(" /etc/slurm.conf\n") and "other" not in arguments


def test_of_arrays_that_slurm_has_forgotten_nothing_is_left(put_programs) -> None:
    put_programs(squeue="echo slurm_load_jobs error: Invalid job id specified >&2; exit 1")
    assert squeue.read_states({"12"}) == {}


def test_a_slurm_that_is_absent_or_does_not_answer_is_an_error(put_programs, monkeypatch, tmp_path: Path) -> None:
    put_programs(squeue="echo Unable to contact slurm controller >&2; exit 1")
    with pytest.raises(CommandError, match="Unable to contact"):
        squeue.read_states({"12"})
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    with pytest.raises(CommandError, match="squeue"):
        squeue.read_states({"12"})


def test_another_cluster_does_not_answer_for_the_tasks_of_this_one(put_programs) -> None:
    put_programs(squeue="echo 12 3 RUNNING None", scontrol="echo 'ClusterName             = c1'")
    assert squeue.read_cluster_states("c1", {"12"}) == {"12_3": "RUNNING"}
    with pytest.raises(CommandError, match="this is cluster c1, not c2"):
        squeue.read_cluster_states("c2", {"12"})


def test_how_tasks_ended_is_known_from_the_queue_and_once_it_forgot_from_accounting(put_programs) -> None:
    queue = "12 1 RUNNING None\\n12 2 TIMEOUT TimeLimit\\n12 3 COMPLETED None\\n"
    accounted = "12_2|FAILED\\n12_5|CANCELLED by 0\\n12_6|RUNNING\\n12_[7-9]|PENDING\\n"
    put_programs(squeue=f"case $* in *--states=all*) printf '{queue}';; esac", sacct=f"printf '{accounted}'")
    ended = {"12_2": "TIMEOUT TimeLimit", "12_3": "COMPLETED"}
    assert squeue.list_end_states({"12"}) == {"12_5": "CANCELLED by 0", **ended}
    assert squeue.read_states({"12"}) == {}
    put_programs(sacct="echo Slurm accounting storage is disabled >&2; exit 1")
    assert squeue.list_end_states({"12"}) == ended
