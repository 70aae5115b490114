"""MPS groups over the simulated control program: daemon, server and clients are real processes."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from pipeline.base.domain.driver_programs import Programs
from pipeline.base.domain.machine_state import cpu_device
from pipeline.base.domain.protocols import Slots
from pipeline.base.domain.records import DeviceFacts, Group, Interpreter, Job, PackSettings, Slot
from pipeline.base.system.errors import ConfigError, SharingError
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.clean import processes
from pipeline.clean.journal import Journal, replay
from pipeline.launch.job_group import GroupFiles, JobGroup, JobStart
from pipeline.launch.spawn import Spawner
from pipeline.prepare.mps import client_proof as mps_clients
from pipeline.prepare.mps import control_program as mps_control
from pipeline.prepare.mps import mps_daemon
from pipeline.prepare.mps.control_program import ControlProgram
from pipeline.prepare.sharing.mps import Mps, MpsPercent
from pipeline.simulation.mps.control_program import connect, write_program
from tests.conftest import GPU
from tests.support import fast_programs
from tests.support.killed import run_killed
from tests.support.rows import gpu_settings, workload
from tests.support.rows import group as make_group
from tests.support.waiting import wait_until

H100 = dataclasses.replace(GPU, facts=DeviceFacts(compute_capability=(9, 0), multiprocessors=132))
LOGS, environ = "CUDA_MPS_LOG_DIRECTORY", ControlProgram.environ
CLIENT = """
import os, sys, time
from pipeline.simulation.mps.control_program import connect
time.sleep(float(sys.argv[1]))
connection = connect(os.environ)
print("bypassed" if connection is None else "connected", flush=True)
time.sleep(600)
"""
PARENT_OF_CLIENT = f"import subprocess, sys; subprocess.run([sys.executable, '-S', '-c', {CLIENT!r}, '0'])"


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path, as the group's scratch folder has; at the end no daemon or server of it is alive."""
    path = Path(tempfile.mkdtemp(prefix="mps-", dir="/tmp"))
    try:
        yield path
        assert list_daemons(path) == []
    finally:
        for pid in list_daemons(path):
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(path)


def list_daemons(folder: Path) -> list[int]:
    """Every process whose MPS folder lies below the folder, found without the product's own means."""
    pids = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environ, line = ((process / name).read_bytes().split(b"\0") for name in ("environ", "cmdline"))
        except OSError:
            continue
        is_below = any(item.startswith(f"CUDA_MPS_PIPE_DIRECTORY={folder}".encode()) for item in environ)
        if is_below and b"pipeline.simulation.mps.control_program" in line:
            pids.append(int(process.name))
    return sorted(pids)


@contextmanager
def prepare_group(
    folder: Path,
    group: Group,
    faults: tuple[str, ...] = (),
    sharing: type[Mps] = Mps,
    branch: str = "580",
    **options: Any,
):
    program = write_program(folder, faults=faults, branch=branch)
    fast_programs.use_mps(program)
    with sharing(program=str(program), **options).prepare(group, folder) as slots:
        yield slots


def get_control(slots: Slots) -> mps_daemon.ControlProgram:
    """What a user would ask the daemon of the slots with."""
    pipes = Path(dict(slots.slots[0].environ)["CUDA_MPS_PIPE_DIRECTORY"])
    return mps_daemon.ControlProgram(program=str(pipes.parents[1] / mps_daemon.CONTROL), pipes=pipes)


def get_served_device(control: mps_daemon.ControlProgram) -> str:
    """The device that the daemon was started for."""
    pid = int((control.pipes / "nvidia-cuda-mps-control.pid").read_text())
    return psutil.Process(pid).environ()["CUDA_VISIBLE_DEVICES"]


def get_server(slots: Slots) -> int:
    (server,) = get_control(slots).list_pids("get_server_list")
    return server


def read_daemon_pid(slots: Slots) -> int:
    return int((get_control(slots).pipes / "nvidia-cuda-mps-control.pid").read_text())


def make_programs(folder: Path) -> Programs:
    return Programs(configured={mps_daemon.CONTROL: str(folder / mps_daemon.CONTROL)})


def group_in(folder: Path, *names: str, **changes: Any) -> Group:
    return make_group(*names, gpu=gpu_settings(lock_dir=folder), **changes)


@contextmanager
def client(slot: Slot, *, after_s: float = 0, script: str = CLIENT, says: str | None = "connected", **environ: str):
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", script, str(after_s)],
        env=os.environ | {"PYTHONPATH": str(PROJECT_DIR)} | dict(slot.environ) | environ,
        stdout=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )
    try:
        assert process.stdout is not None
        if says is not None:
            assert process.stdout.readline().strip() == says
        yield process.pid
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


def test_jobs_get_a_ready_server_of_their_own_and_nothing_is_left(folder, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")
    group = group_in(folder, "a", "b")
    journal = Journal(folder, GPU.uuid)
    with prepare_group(folder, group) as slots, ExitStack() as stack:
        assert [slot.visible_devices for slot in slots.slots] == [GPU.uuid] * 2
        pipes = Path(dict(slots.slots[0].environ)["CUDA_MPS_PIPE_DIRECTORY"])
        assert pipes.is_relative_to(folder)
        assert [step.kind for step in journal.read_steps()] == ["mps_daemon"]
        control = mps_daemon.ControlProgram(program=str(folder / "nvidia-cuda-mps-control"), pipes=pipes)
        (server,) = control.list_pids("get_server_list")
        assert control.ask(f"get_server_status {server}") == ["ACTIVE"]
        assert get_served_device(control) == GPU.uuid
        slots.verify({i: stack.enter_context(client(slot)) for i, slot in enumerate(slots.slots)})
        assert len(control.list_pids(f"get_client_list {server}")) == 2
        assert len(list_daemons(folder)) == 2
        stack.close()
    assert list_daemons(folder) == []
    assert not journal.path.exists()


def test_a_child_of_a_job_may_be_the_client(folder):
    with prepare_group(folder, group_in(folder, "a")) as slots, client(slots.slots[0], script=PARENT_OF_CLIENT) as pid:
        slots.verify({0: pid})


@pytest.mark.slow
def test_a_job_that_bypasses_mps_is_an_error_that_names_it(folder, monkeypatch):
    monkeypatch.setattr(mps_clients, "_PROOF_LIMIT_S", 0.3)
    nowhere = {"CUDA_MPS_PIPE_DIRECTORY": "/nonexistent"}
    with prepare_group(folder, group_in(folder, "a", "b")) as slots, ExitStack() as stack:
        first = stack.enter_context(client(slots.slots[0]))
        second = stack.enter_context(client(slots.slots[1], says="bypassed", **nowhere))
        with pytest.raises(SharingError, match=rf"not clients of MPS: 1-b \(pid {second}\); check that"):
            slots.verify({0: first, 1: second})


def test_a_job_that_connects_a_little_late_is_waited_for(folder):
    with prepare_group(folder, group_in(folder, "a")) as slots, client(slots.slots[0], after_s=0.5, says=None) as pid:
        slots.verify({0: pid})


def write_scripts(*names: str) -> tuple[Job, ...]:
    return tuple(Job(index=i, workload=workload(name, ends_by_itself=True)) for i, name in enumerate(names))


def list_unseen(slots: Slots) -> str:
    """What is said of scripts that were not seen as clients so far."""
    try:
        slots.verify.__self__.check_scripts()  # type: ignore[attr-defined]  a method of `MpsSlots`
    except SharingError as error:
        return str(error)
    return ""


@pytest.mark.slow
def test_a_script_is_looked_for_while_it_runs(folder, monkeypatch):
    monkeypatch.setattr(mps_clients, "_WATCH_S", 0.05)
    group = group_in(folder, "a", jobs=write_scripts("a"))
    with prepare_group(folder, group) as slots, client(slots.slots[0], after_s=0.5, says=None) as pid:
        slots.verify({0: pid})
        assert f"0-a (pid {pid})" in list_unseen(slots)  # at the barrier it is none yet
        wait_until(lambda: list_unseen(slots) == "")


def test_a_script_that_never_was_a_client_is_an_error(folder, monkeypatch):
    monkeypatch.setattr(mps_clients, "_WATCH_S", 0.05)
    group = group_in(folder, "a", jobs=write_scripts("a"))
    nowhere = {"CUDA_MPS_PIPE_DIRECTORY": "/nonexistent"}
    with (
        pytest.raises(SharingError, match="not clients of MPS: 0-a"),
        prepare_group(folder, group) as slots,
        ExitStack() as stack,
    ):
        pid = stack.enter_context(client(slots.slots[0], says="bypassed", **nowhere))
        slots.verify({0: pid})
        time.sleep(0.3)


def test_a_fault_of_the_server_is_an_error(folder, monkeypatch):
    monkeypatch.setattr(mps_daemon, "_CLIENTS_END_S", 0.1)
    group = group_in(folder, "a")
    fault = pytest.raises(SharingError, match="status: FAULT")
    with fault, ExitStack() as stack, prepare_group(folder, group, ("fault_on_client",)) as slots:
        stack.enter_context(client(slots.slots[0]))


@pytest.mark.parametrize("branch", ["535", "580"])
def test_a_server_that_died_is_an_error(folder, branch):
    status = "unknown to this control program" if branch == "535" else "Server \\d+ not found"
    says = rf"\(status: {status}; servers now: none\).*; control\.log: Server \d+ exited with status 0$"
    with pytest.raises(SharingError, match=says), prepare_group(folder, group_in(folder, "a"), branch=branch) as slots:
        os.kill(get_server(slots), signal.SIGKILL)
        wait_until(lambda: get_control(slots).list_pids("get_server_list") == [])


def test_the_error_of_the_group_is_not_hidden_by_the_fault(folder, monkeypatch):
    monkeypatch.setattr(mps_daemon, "_CLIENTS_END_S", 0.1)
    group = group_in(folder, "a")
    body = pytest.raises(ValueError, match="the body")
    with body, ExitStack() as stack, prepare_group(folder, group, ("fault_on_client",)) as slots:
        stack.enter_context(client(slots.slots[0]))
        raise ValueError("the body")


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("start_fails", "Failed to start the MPS control daemon"),
        ("no_answer", "time limit"),
        ("server_dies", r"its server exited immediately \(.*\); control\.log: Server \d+ exited with status 1$"),
        (
            "server_fails",
            r"its server exited immediately .*; server\.log: Failed to start : invalid argument; control\.log: Server",
        ),
        ("never_ready", "its server was not ready within 0.5 s"),
    ],
)
def test_a_daemon_that_does_not_become_ready_is_an_error_and_leaves_nothing(folder, monkeypatch, fault, says):
    if fault == "no_answer":  # others answer in time on a busy machine too
        monkeypatch.setattr(mps_control, "_ASK_LIMIT_S", 0.5)
    if fault == "never_ready":
        monkeypatch.setattr(mps_daemon, "_START_LIMIT_S", 0.5)
    monkeypatch.setattr(mps_daemon, "_END_GRACE_S", 0.3)
    refused = pytest.raises(SharingError, match=rf"MPS did not start on {GPU.uuid}: .*{says}")
    with refused, prepare_group(folder, group_in(folder, "a"), (fault,)):
        pytest.fail("it is not ready")
    assert list_daemons(folder) == []
    assert not Journal(folder, GPU.uuid).path.exists()


@pytest.mark.slow
@pytest.mark.parametrize("branch", ["535", "550", "615"])
def test_the_program_of_each_branch_runs_a_group(folder, branch):
    group = group_in(folder, "a", "b")
    with prepare_group(folder, group, branch=branch) as slots, ExitStack() as stack:
        control = get_control(slots)
        status = 'Unknown command "get_server_status"' if branch == "535" else "ACTIVE"
        assert control.ask(f"get_server_status {get_server(slots)}") == [status]
        slots.verify({i: stack.enter_context(client(slot)) for i, slot in enumerate(slots.slots)})
        stack.close()
    assert list_daemons(folder) == []


def test_a_server_that_no_program_tells_to_be_ready_is_refused(folder, monkeypatch):
    monkeypatch.setattr(mps_daemon, "_START_LIMIT_S", 0.5)
    says = "its server was not ready within 0.5 s; this control program has no get_server_status"
    with (
        pytest.raises(SharingError, match=says),
        prepare_group(folder, group_in(folder, "a"), ("never_ready",), branch="535"),
    ):
        pytest.fail("it is not ready")


def test_without_status_and_log_nothing_is_waited_for(folder, monkeypatch):
    monkeypatch.setattr(ControlProgram, "environ", lambda self, **more: environ(self, **more) | {LOGS: "/nonexistent"})
    group = group_in(folder, "a")
    says = r"has no get_server_status, and there is no control\.log; use driver R550 or newer"
    with pytest.raises(SharingError, match=says), prepare_group(folder, group, branch="535"):
        pytest.fail("nobody knows whether it is ready")


def wrap_program(folder: Path, script: str) -> str:
    """Put a program before the simulated one, which is `$real` in the script of a shell; `$line` is the question."""
    real = write_program(folder)
    program = folder / "wrapped"
    program.write_text(f'#!/bin/sh\nreal={real}\ncase "$1" in -*) exec $real "$@";; esac\nread -r line\n{script}\n')
    program.chmod(0o755)
    return str(program)


PASS_ON = 'printf "%s\\n" "$line" | exec $real'


@pytest.mark.slow
def test_answers_that_the_daemon_drops_are_asked_for_again(folder):
    """As real ones do while a server exits: nothing is printed, and the exit status is 1."""
    dropped = f'count={folder}/"${{line%% *}}"; if [ ! -e "$count" ]; then : > "$count"; exit 1; fi; {PASS_ON}'
    program = wrap_program(folder, dropped)
    group = group_in(folder, "a")
    with Mps(program=program).prepare(group, folder) as slots:
        assert {"get_server_list", "start_server", "get_server_status"} <= {path.name for path in folder.iterdir()}
        assert slots.slots


@pytest.mark.slow
def test_a_start_that_is_refused_says_so_at_once(folder):
    refusal = "Insufficient privileges for UID 1000. Only the root user may start server for another user."
    script = f'case "$line" in start_server*) echo "{refusal}"; exit 0;; esac; {PASS_ON}'
    program = wrap_program(folder, script)
    says = rf"there is no server; the reply to start_server was: {re.escape(refusal)} \(docs/mps"
    begin = time.monotonic()
    with (
        pytest.raises(SharingError, match=says),
        Mps(program=program).prepare(group_in(folder, "a"), folder),
    ):
        pytest.fail("there is no server")
    assert time.monotonic() - begin < mps_daemon._APPEAR_LIMIT_S


@pytest.mark.slow
def test_a_server_that_ends_unseen_and_unlogged_is_not_waited_for(folder, monkeypatch):
    monkeypatch.setattr(mps_daemon, "_APPEAR_LIMIT_S", 0.3)
    program = wrap_program(folder, f'case "$line" in start_server*) exit 0;; esac; {PASS_ON}')
    with (
        pytest.raises(SharingError, match=r"there is no server \(docs/mps\.md"),
        Mps(program=program).prepare(group_in(folder, "a"), folder),
    ):
        pytest.fail("there is no server")


def test_a_daemon_that_does_not_quit_is_ended_by_signals(folder, monkeypatch):
    monkeypatch.setattr(mps_daemon, "_END_GRACE_S", 0.2)
    with prepare_group(folder, group_in(folder, "a"), faults=("ignores_quit",)):
        assert len(list_daemons(folder)) == 2
    assert list_daemons(folder) == []


def test_the_server_of_a_killed_daemon_is_ended(folder):
    with (
        pytest.raises(SharingError, match="the MPS daemon is gone"),
        prepare_group(folder, group_in(folder, "a")) as slots,
    ):
        pipes = Path(dict(slots.slots[0].environ)["CUDA_MPS_PIPE_DIRECTORY"])
        server = get_server(slots)
        os.kill(int((pipes / "nvidia-cuda-mps-control.pid").read_text()), signal.SIGKILL)
        wait_until(lambda: list_daemons(folder) == [server])
    assert list_daemons(folder) == []


def test_clients_that_stay_are_disconnected_before_the_daemon_quits(folder, monkeypatch):
    monkeypatch.setattr(mps_daemon, "_CLIENTS_END_S", 0.1)
    with ExitStack() as stack:
        with prepare_group(folder, group_in(folder, "a")) as slots:
            stack.enter_context(client(slots.slots[0]))
        log = (folder / "mps/log/control.log").read_text()
        assert re.search(r"Cmd:terminate_client \d+ \d+\n.*\] 0\n(.*\n)*.*Exit with status 0", log)


@pytest.mark.slow
def test_the_daemon_of_somebody_else_is_left_alone(folder):
    foreign = Path(tempfile.mkdtemp(prefix="foreign-", dir="/tmp"))
    program = write_program(foreign)
    environ = os.environ | {"CUDA_MPS_PIPE_DIRECTORY": str(foreign)}
    subprocess.run([program, "-d"], env=environ, check=True)
    try:
        connection = connect(environ)
        assert connection is not None
        with connection:  # `quit` waits for it, even if this test fails
            before = list_daemons(foreign)
            with prepare_group(folder, group_in(folder, "a")):
                pass
            journal = Journal(folder, GPU.uuid, Programs(configured={mps_daemon.CONTROL: str(program)}))
            journal.add("mps_daemon", pipes=str(folder / "mps/pipe"))
            replay(journal)
            assert len(before) == 2
            assert list_daemons(foreign) == before
            connection.settimeout(0.1)
            with pytest.raises(TimeoutError):
                connection.recv(1)  # still connected
    finally:
        subprocess.run([program, "quit"], env=environ, check=True, timeout=60)
        shutil.rmtree(foreign)


@pytest.mark.slow
def test_several_daemons_run_at_once(folder):
    with prepare_group(folder, group_in(folder, "a")) as first:
        journal = Journal(folder, "MIG-1")
        program = str(folder / "nvidia-cuda-mps-control")
        with mps_daemon.run_daemon("MIG-1", folder, program, journal, number=1) as second:
            assert second.server != get_server(first)
            assert get_served_device(second.control) == "MIG-1"
        assert not journal.path.exists()
        assert get_control(first).ask(f"get_server_status {get_server(first)}") == ["ACTIVE"]


def run_group(folder: Path, *, is_killed_inside: bool = False) -> None:
    with Mps(program=str(folder / "nvidia-cuda-mps-control")).prepare(group_in(folder, "a"), folder):
        if is_killed_inside:
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_killed_at_any_step_a_replay_leaves_no_process(folder):
    write_program(folder, init_s=0)
    left_behind = 0
    for fatal in range(1, 100):
        status = run_killed(partial(run_group, folder), fatal, ("subprocess.Popen", "os.mkdir", "os.remove"))
        left_behind += bool(list_daemons(folder))
        journal = Journal(folder, GPU.uuid, make_programs(folder))
        replay(journal)
        assert list_daemons(folder) == [], f"killed at step {fatal}"
        assert not journal.path.exists()
        shutil.rmtree(folder / "mps", ignore_errors=True)  # which goes with the group's scratch folder
        if status == 0:
            break
        assert os.WIFSIGNALED(status)
    assert fatal > 10, "there were hardly any steps"
    assert left_behind > 3, "the kills hardly ever left a daemon behind"


@pytest.mark.slow
@pytest.mark.parametrize(("is_folder_gone", "knows_program"), [(True, True), (False, True), (False, False)])
def test_a_replay_ends_the_daemon_with_or_without_its_folder_and_program(folder, is_folder_gone, knows_program):
    write_program(folder)
    run_killed(partial(run_group, folder, is_killed_inside=True), 0, ())
    assert len(list_daemons(folder)) == 2
    if is_folder_gone:
        shutil.rmtree(folder / "mps")
    (step,) = replay(Journal(folder, GPU.uuid, make_programs(folder) if knows_program else Programs(simulated={})))
    assert step.kind == "mps_daemon"
    assert list_daemons(folder) == []


def test_a_process_that_got_the_pid_of_the_daemon_is_not_ended(folder):
    pipes = folder / "mps/pipe"
    pipes.mkdir(parents=True)
    with subprocess.Popen(["/bin/sleep", "60"], env={"CUDA_MPS_PIPE_DIRECTORY": str(pipes)}) as bystander:
        (pipes / "nvidia-cuda-mps-control.pid").write_text(str(bystander.pid))
        mps_daemon.end_daemon(Programs(simulated={}), pipes=str(pipes))
        assert bystander.poll() is None
        bystander.kill()


def test_ending_the_jobs_of_a_group_does_not_end_its_daemon(folder, monkeypatch):
    monkeypatch.setenv(processes.MARK_VARIABLE, "group-1")
    with prepare_group(folder, group_in(folder, "a")) as slots:
        before = list_daemons(folder)
        processes.end("group-1", grace_s=0.1)
        assert list_daemons(folder) == before == sorted([get_server(slots), read_daemon_pid(slots)])


JOB = f"""
import os, sys, time
sys.path.insert(0, {str(PROJECT_DIR)!r})
from pipeline.simulation.mps.control_program import connect
from workloads import client
with client.attach() as job:
    connection = connect(os.environ)
    assert os.environ["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "50"
    job.ready()
    while not job.stopping:
        time.sleep(0.01)
        job.step(samples=1, epoch=1)
"""


@pytest.mark.slow
def test_a_whole_group_runs_under_mps_and_nothing_is_left(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/nonexistent")
    script = tmp_path / "job.py"
    script.write_text(JOB)
    program = dataclasses.replace(workload("a"), argv=(str(script),))
    jobs = tuple(Job(index=i, workload=program) for i in range(2))
    group = group_in(folder, "a", jobs=jobs)
    window = dataclasses.replace(group.window, seconds=0.2, settle_s=0.1)
    starter = Spawner(Interpreter(python=Path(sys.executable)))
    files = GroupFiles(folder=tmp_path, scratch=folder, mark=folder.name)
    with prepare_group(folder, group, sharing=MpsPercent) as slots:
        starts = [JobStart(job=job, slot=slots.slots[job.index], starter=starter) for job in jobs]
        running = JobGroup(starts, files, group.limits)
        with running:
            assert running.wait_ready()
            slots.verify(running.pids())
            running.measure(window)
        assert [state.ended_well for state in running.states] == [True] * 2
        assert get_control(slots).ask(f"get_server_status {get_server(slots)}") == ["ACTIVE"]
    assert processes.list_marked(folder.name) == []
    assert list_daemons(folder) == []


def get_variables(sharing: Mps, group: Group, position: int) -> dict[str, str]:
    control = mps_daemon.ControlProgram(program="/x", pipes=Path("/p"))
    server = mps_daemon.MpsDaemon(control=control, logs=Path("/l"), server=1)
    places = [Slot(visible_devices=GPU.uuid)] * group.degree
    clients = sharing.as_clients(places, [server] * group.degree, group)
    return dict(clients.__enter__().slots[position].environ)


def test_options_reach_the_jobs_by_position():
    group = make_group("a", "b", "c")
    plain = get_variables(Mps(), group, 0)
    assert set(plain) == {"CUDA_DEVICE_ORDER", "CUDA_MPS_PIPE_DIRECTORY"}
    sharing = MpsPercent(active_thread_pct=(50, 25, 12.5), pinned_mem_limit="10G", priority=(0, 1, 1))
    sharing.check(group)
    third = get_variables(sharing, group, 2)
    assert third["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "12.5"
    assert third["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=10G"
    assert third["CUDA_MPS_CLIENT_PRIORITY"] == "1"
    assert get_variables(sharing, group, 0)["CUDA_MPS_CLIENT_PRIORITY"] == "0"
    assert get_variables(MpsPercent(active_thread_pct=40), group, 1)["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "40"
    assert get_variables(MpsPercent(), group, 1)["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "33.3333"


@pytest.mark.parametrize("share", [0, -1, 100.5, 400, (50, 0), "half", True, float("nan")])
def test_a_share_that_the_daemon_would_ignore_is_refused(share):
    with pytest.raises(ConfigError, match=r"active_thread_pct=.*greater than 0 and at most 100"):
        MpsPercent(active_thread_pct=share)


@pytest.mark.parametrize(
    "options", [{"priority": 2}, {"priority": (0, -1)}, {"pinned_mem_limit": "0G"}, {"pinned_mem_limit": "10"}]
)
def test_values_that_mps_does_not_know_are_refused(options):
    with pytest.raises(ConfigError, match=f"scenario.{next(iter(options))}="):
        Mps(**options)


@pytest.mark.parametrize(
    "sharing", [MpsPercent(active_thread_pct=(50, 50)), Mps(priority=(1,)), Mps(pinned_mem_limit=("1G", "1G"))]
)
def test_a_list_of_another_length_than_the_jobs_is_refused_before_anything_happens(folder, sharing):
    group = group_in(folder, "a", "b", "c")
    with pytest.raises(ConfigError, match="for 3 jobs"):
        sharing.check(group)
    with pytest.raises(ConfigError, match="for 3 jobs"), sharing.prepare(group, folder):
        pass
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("device", "options", "says"),
    [
        (cpu_device(), {}, "needs an NVIDIA GPU"),
        (dataclasses.replace(GPU, mig_enabled=True), {}, "MIG mode is on.*nvidia-smi -i 0 -mig 0"),
        (GPU, {}, "nvidia-cuda-mps-control, which is not on PATH"),
        (GPU, {"program": "/nonexistent"}, "/nonexistent is not executable"),
    ],
)
def test_a_device_that_mps_cannot_share_is_refused_with_the_remedy(folder, monkeypatch, device, options, says):
    monkeypatch.setenv("PATH", "/nonexistent")
    group = group_in(folder, "a", device=device)
    with pytest.raises((ConfigError, SharingError), match=says), Mps(**options).prepare(group, folder):
        pass
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(("cuda", "most"), [("12.8", 48), ("13.0", 48), ("13.1", 60), (None, 64)])
def test_more_jobs_than_mps_takes_clients_are_refused(folder, cuda, most):
    device = dataclasses.replace(GPU, facts=DeviceFacts(cuda_version=cuda))
    Mps().check(group_in(folder, *map(str, range(most)), device=device))
    with (
        pytest.raises(ConfigError, match=rf"most {most} clients on one GPU, not {most + 1}") if cuda else nullcontext()
    ):
        Mps().check(group_in(folder, *map(str, range(most + 1)), device=device))


@pytest.mark.slow
def test_the_program_is_found_on_path_but_never_for_a_simulated_gpu(folder, monkeypatch):
    write_program(folder)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    group = group_in(folder, "a")
    with Mps().prepare(group, folder) as slots:
        assert list_daemons(folder) == sorted([get_server(slots), read_daemon_pid(slots)])
    simulated = dataclasses.replace(group, device=dataclasses.replace(GPU, kind="simulated"))
    with (
        pytest.raises(SharingError, match="needs nvidia-cuda-mps-control, which is not on PATH"),
        Mps().prepare(simulated, folder),
    ):
        pass


def test_a_folder_too_deep_for_sockets_is_refused(folder):
    deep = folder / ("x" * 90)
    deep.mkdir()
    with pytest.raises(SharingError, match="longer than 107 bytes"), prepare_group(deep, group_in(folder, "a")):
        pass


# Share in per cent -> multiprocessors of an H100, and whether its bf16 products were wrong, as measured.
MEASURED = json.loads(
    '{"clean": {"5": 8, "10": 12, "13": 16, "25": 32, "50": 66, "90": 118, "95": 124, "100": 132},'
    '"faulty": {"14": 18, "16": 20, "18": 22, "20": 26, "22": 28, "28": 36, "30": 38, "33": 42, "36": 46, "40": 52,'
    '"42": 54, "45": 58, "52": 68, "55": 72, "60": 78, "66": 86, "70": 92, "75": 98, "80": 104, "85": 112, "89": 116}}'
)


@pytest.mark.parametrize("kind", ["clean", "faulty"])
def test_shares_are_warned_about_as_they_were_measured(kind):
    for share, multiprocessors in MEASURED[kind].items():
        (warning,) = MpsPercent(active_thread_pct=float(share)).warnings(make_bf16_group(H100)) or ("",)
        assert (f"{multiprocessors} of 132" in warning) == (kind == "faulty"), share


def make_bf16_group(device: Any, precision: str = "bf16", degree: int = 1) -> Group:
    program = dataclasses.replace(workload("a"), params=(("precision", precision),))
    jobs = tuple(Job(index=i, workload=program) for i in range(degree))
    return make_group("a", device=device, jobs=jobs)


def test_a_warning_is_given_where_it_was_measured_and_not_elsewhere():
    natural = MpsPercent()
    assert len(natural.warnings(make_bf16_group(H100, degree=7))) == 7  # 100/7 per cent
    assert natural.warnings(make_bf16_group(H100, "fp32", degree=7)) == ()
    assert natural.warnings(make_bf16_group(GPU, degree=7)) == ()  # of which the capability is not known
    assert "fp16 and bf16" in natural.warnings(make_group(*"abcdefg", device=H100))[0]  # precision not known
    assert "wrong on this GPU" in MpsPercent(active_thread_pct=40).warnings(make_bf16_group(H100))[0]


@pytest.mark.slow
def test_in_a_pack_one_trial_proves_all_and_trials_that_fail_early_prove_nothing(folder, monkeypatch):
    monkeypatch.setattr(mps_clients, "_WATCH_S", 0.05)
    group = group_in(folder, "a", jobs=write_scripts("a", "b", "c"), pack=PackSettings(most=2, check_share=0.0))
    with prepare_group(folder, group) as slots:
        slots.verify({0: 2**22 + 1})
        with client(slots.slots[1], after_s=0.5, says=None) as pid:
            slots.verify({1: pid})
            assert "0-a" in list_unseen(slots)
            wait_until(lambda: list_unseen(slots) == "")
        slots.verify({2: 2**22 + 2})
        assert list_unseen(slots) == ""
