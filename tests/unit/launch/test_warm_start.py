"""Jobs that are forked: they are what they would be if they had been started from nothing."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import signal
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.base.domain.records import Interpreter
from pipeline.base.system.errors import LaunchError
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.clean import processes
from pipeline.launch import warm_start
from pipeline.launch.environ import inherit_environ
from pipeline.launch.spawn import Process, Spawner
from pipeline.launch.warm_start import ForkServer, Starter, WarmStart
from tests.support.job_server import is_alive
from tests.support.rows import workload
from tests.support.waiting import wait_until

PYTHON = Interpreter(python=Path(sys.executable))
FACTS = """
import json, os, signal, sys, multiprocessing, __main__
def of_child(queue):
    queue.put(os.environ["COLOUR"])
if __name__ == "__main__":
    colours = []
    for method in ("fork", "spawn"):
        context = multiprocessing.get_context(method)
        queue = context.Queue()
        child = context.Process(target=of_child, args=(queue,))
        child.start()
        colours.append(queue.get(timeout=300))
        child.join()
    print(json.dumps({
        "argv": sys.argv, "main": __main__.__file__, "path": sys.path[0], "environ": dict(os.environ),
        "leads": os.getpid() == os.getsid(0) == os.getpgrp(), "cpus": sorted(os.sched_getaffinity(0)),
        "stdin": os.readlink("/proc/self/fd/0"), "cwd": os.getcwd(), "colours": colours,
        "descriptors": sum(not os.path.realpath(f"/proc/self/fd/{name}").startswith("/memfd:COLLOCATION_GROUP=")
                           for name in os.listdir("/proc/self/fd")),
        "sigint": str(signal.getsignal(signal.SIGINT)),
    }))
    print("to the log", file=sys.stderr)
"""


@pytest.fixture
def server() -> Iterator[ForkServer]:
    running = ForkServer(PYTHON, "workloads.client")
    running.wait_ready()
    yield running
    running.close()


def start(
    starter: Starter,
    folder: Path,
    code: str,
    *words: str,
    cpus: tuple[int, ...] = (),
    starts_in: Path | None = None,
    **variables: str,
):
    """Start a program; returns its process, its mark, and the files of its output and errors."""
    mark = uuid.uuid4().hex
    folder.mkdir(parents=True, exist_ok=True)
    script = folder.parent / "script.py"
    script.write_text(textwrap.dedent(code))
    environ = inherit_environ() | {processes.MARK_VARIABLE: mark} | variables
    out, err = folder / "out", folder / "err"
    return starter.start([str(script), *words], environ, out, err, cpus, starts_in), mark, out, err


def end(process: Process) -> int:
    descriptor = os.pidfd_open(process.pid)
    try:
        # Far longer than a training takes on a busy machine; one that waits for threads that it lacks never ends.
        assert select.select([descriptor], [], [], 180)[0], "did not end"
    finally:
        os.close(descriptor)
    status = process.status()
    process.reap()
    return status


def run_and_read(starter: Starter, folder: Path, code: str, **choices: Any) -> str:
    """What a program prints, which ends well."""
    process, _, out, err = start(starter, folder / "job", code, **choices)
    assert end(process) == 0, err.read_text()
    return out.read_text()


def test_a_forked_job_is_as_one_that_was_started_from_nothing(server, tmp_path):
    reports = []
    for name, starter in (("cold", Spawner(PYTHON)), ("warm", server)):
        process, mark, out, err = start(
            starter, tmp_path / name, FACTS, "--x", "a b", starts_in=tmp_path, COLOUR="blue"
        )
        assert end(process) == 0, err.read_text()
        assert err.read_text() == "to the log\n"
        facts = json.loads(out.read_text())
        assert facts["environ"].pop(processes.MARK_VARIABLE) == mark
        reports.append(facts)
    cold, warm = reports
    assert warm == cold
    assert warm["leads"]
    assert warm["cwd"] == str(tmp_path)
    assert warm["cpus"] == sorted(os.sched_getaffinity(0))
    assert warm["colours"] == ["blue", "blue"]


@pytest.mark.parametrize(
    ("code", "status", "words"),
    [
        ("raise SystemExit", 0, ""),
        ("import sys; sys.exit(3)", 3, ""),
        ("import sys; sys.exit('no data')", 1, "no data\n"),
        ("1 / 0", 1, "ZeroDivisionError: division by zero\n"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -9, ""),
        ("import os; os._exit(7)", 7, ""),
        ("import atexit; atexit.register(print, 'bye')", 0, ""),
    ],
)
def test_it_ends_as_its_program_does(server, tmp_path, code, status, words):
    process, _, out, err = start(server, tmp_path / "job", code)
    assert end(process) == status
    assert err.read_text().endswith(words) if words else err.read_text() == ""
    assert out.read_text() == ("bye\n" if "atexit" in code else "")


def test_it_and_its_children_are_found_by_their_mark(server, tmp_path):
    code = "import os, time; os.fork(); print('here', flush=True); time.sleep(60)"
    process, mark, out, _ = start(server, tmp_path / "job", code)
    wait_until(lambda: out.read_text().count("here") == 2)
    assert len(processes.list_marked(mark)) == 2
    assert process.pid in processes.list_marked(mark)
    assert processes.end(mark, 5.0) == 2
    assert end(process) == -signal.SIGTERM
    assert processes.list_marked(mark) == []


def test_random_numbers_differ_between_jobs_that_do_not_seed(tmp_path):
    server = ForkServer(PYTHON, "numpy")
    try:
        server.wait_ready()
        code = "import numpy, random; print(numpy.random.random(), random.random(), random.random())"
        words = []
        for number in range(2):
            process, _, out, err = start(server, tmp_path / str(number), code)
            assert end(process) == 0, err.read_text()
            words += out.read_text().split()
        assert len(set(words)) == 6
    finally:
        server.close()


def test_what_cannot_be_set_up_is_an_error_and_leaves_no_process(server, tmp_path):
    environ = {processes.MARK_VARIABLE: uuid.uuid4().hex}
    with pytest.raises(LaunchError, match=r"FileNotFoundError.*/nowhere/out"):
        server.start(["x.py"], environ, Path("/nowhere/out"), tmp_path / "err", ())
    process, *_ = start(server, tmp_path / "job", "print(1)")
    assert end(process) == 0


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("no_such_module", "ModuleNotFoundError"),
        ("tests.toys.starts_a_thread", "its imports started 1 threads"),
    ],
)
def test_what_cannot_fork_starts_its_jobs_from_nothing_and_says_so(module, words, caplog):
    job = dataclasses.replace(workload("w"), preload=module)
    with WarmStart() as warm:
        warm.begin(job, PYTHON)
        assert warm.starter(job, PYTHON) == Spawner(PYTHON)
        assert warm.starter(job, PYTHON) == Spawner(PYTHON)
    assert [words in record.getMessage() for record in caplog.records] == [True]


def test_libraries_that_would_start_a_thread_when_they_are_imported_are_kept_from_it(monkeypatch):
    monkeypatch.delenv("JE_ARROW_MALLOC_CONF", raising=False)
    job = dataclasses.replace(workload("w"), preload="pyarrow")
    with WarmStart() as warm:
        assert isinstance(warm.starter(job, PYTHON), ForkServer)


def test_some_workloads_start_from_nothing():
    job = dataclasses.replace(workload("w"), preload="workloads.client")
    with WarmStart() as warm:
        assert isinstance(warm.starter(job, PYTHON), ForkServer)
        assert warm.starter(job, PYTHON) is warm.starter(job, PYTHON)
        assert warm.starter(workload("w"), PYTHON) == Spawner(PYTHON)
        assert warm.starter(dataclasses.replace(job, environ=(("A", "1"),)), PYTHON) == Spawner(PYTHON)
        other = Interpreter(python=Path("/no/such/python"))
        assert warm.starter(job, other) == Spawner(other)
    with WarmStart(enabled=False) as warm:
        assert warm.starter(job, PYTHON) == Spawner(PYTHON)


def test_a_server_that_was_killed_is_replaced_by_cold_starts(server, tmp_path, caplog):
    job = dataclasses.replace(workload("w"), preload="workloads.client")
    with WarmStart() as warm:
        starter = warm.starter(job, PYTHON)
        assert isinstance(starter, ForkServer)
        process, mark, *_ = start(starter, tmp_path / "job", "import time; time.sleep(60)")
        os.kill(starter.pid, signal.SIGKILL)
        wait_until(lambda: not is_alive(starter.pid))
        with pytest.raises(LaunchError):
            process.status()
        process.reap()
        assert warm.starter(job, PYTHON) == Spawner(PYTHON)
        assert "start cold" in caplog.text
        assert processes.end(mark, 5.0) == 1


def test_nothing_is_imported_once_it_rests(tmp_path, monkeypatch):
    imported = tmp_path / "imported"
    (tmp_path / "slow_import.py").write_text(f"import time; time.sleep(1); open({str(imported)!r}, 'w')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    quick, slow = (dataclasses.replace(workload("w"), preload=module) for module in ("workloads.client", "slow_import"))
    with WarmStart() as warm:
        for job in (quick, slow):
            warm.begin(job, PYTHON)
        assert isinstance(warm.starter(quick, PYTHON), ForkServer)
        assert not imported.exists()
        warm.await_imports()
        assert imported.exists()
        assert isinstance(warm.starter(slow, PYTHON), ForkServer)


def test_a_server_that_did_not_answer_is_not_asked_again(tmp_path, monkeypatch):
    monkeypatch.setattr(warm_start, "_ANSWER_LIMIT_S", 0.3)
    job = dataclasses.replace(workload("w"), preload="workloads.client")
    with WarmStart() as warm:
        starter = warm.starter(job, PYTHON)
        assert isinstance(starter, ForkServer)
        os.kill(starter.pid, signal.SIGSTOP)
        with pytest.raises(LaunchError, match="does not answer: timed out"):
            start(starter, tmp_path / "job", "print(1)")
        os.kill(starter.pid, signal.SIGCONT)
        assert warm.starter(job, PYTHON) == Spawner(PYTHON)


def make_sleep_request(mark: str, folder: Path) -> dict[str, object]:
    """A request for a job that only sleeps."""
    (folder / "sleep.py").write_text("import time; time.sleep(60)")
    environ = inherit_environ() | {processes.MARK_VARIABLE: mark}
    files = {"stdout": str(folder / "out"), "stderr": str(folder / "err")}
    return {"argv": [str(folder / "sleep.py")], "environ": environ, **files}


# What the orchestrator has asked for, and not read the answer to, when it is killed.
ASKED = {
    "nothing": "",
    "an answer that lies there": "send(); assert select.select([server._control], [], [], 30)[0]",
    "an answer that is still to come": "os.kill(server.pid, signal.SIGSTOP); send()",
}


@pytest.mark.slow
@pytest.mark.parametrize("message", ASKED)
def test_neither_server_nor_jobs_outlive_a_killed_orchestrator(tmp_path, message):
    marks = [uuid.uuid4().hex for _ in range(2)]
    code = f"""
import sys
sys.path.insert(0, {str(PROJECT_DIR)!r})
from pathlib import Path
from tests.unit.launch.test_warm_start import *
first, second = (make_sleep_request(mark, Path({str(tmp_path)!r})) for mark in {marks})
def send():
    server._control.sendall((json.dumps(second) + "\\n").encode())
server = ForkServer(PYTHON, "workloads.client")
server.wait_ready()
pid = server._ask(**first)["pid"]
{ASKED[message]}
print(server.pid, pid, flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as orchestrator:
        assert orchestrator.stdout is not None
        pids = [int(word) for word in orchestrator.stdout.readline().split()]
        assert len(pids) == 2
        assert all(map(is_alive, pids))
        orchestrator.kill()
    os.kill(pids[0], signal.SIGCONT)
    try:
        wait_until(lambda: not any(map(is_alive, pids)))
        wait_until(lambda: not any(map(processes.list_marked, marks)))
    finally:
        for mark in marks:
            processes.end(mark, 0.1)


@pytest.fixture(scope="module")
def timm_server() -> Iterator[ForkServer]:
    """One that forks trainings: its imports take seconds."""
    running = ForkServer(PYTHON, "workloads.timm_imports")
    running.wait_ready()
    yield running
    running.close()


@pytest.mark.torch
@pytest.mark.slow
def test_losses_are_the_same_and_so_are_the_threads(timm_server, tmp_path):
    """A real training, whose parallel operations would hang if the server had run one."""
    reports = {}
    script = str(PROJECT_DIR / "workloads" / "train_timm.py")
    words = "--model resnet10t --dataset cifar10 --source synthetic_host --image-px 32 --num-classes 10 --batch-size 8"
    more = "--samples 16 --epochs 2 --warmup-steps 1 --loader-workers 1 --device cpu --seed 5"
    for name, starter in (("cold", Spawner(PYTHON)), ("warm", timm_server)):
        out = tmp_path / name
        environ = inherit_environ() | {processes.MARK_VARIABLE: uuid.uuid4().hex}
        process = starter.start([script, *words.split(), *more.split()], environ, out, tmp_path / "err", ())
        assert end(process) == 0, (tmp_path / "err").read_text()
        reports[name] = [line.split(", loss ")[1] for line in out.read_text().splitlines() if "loss" in line]
    assert len(reports["cold"]) == 2
    assert reports["warm"] == reports["cold"]


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("variable", [None, "1"])
def test_torch_gets_the_threads_that_it_would_have_had(request, tmp_path, monkeypatch, variable):
    with contextlib.ExitStack() as servers:
        if variable is None:
            server = request.getfixturevalue("timm_server")
        else:
            monkeypatch.setenv("OMP_NUM_THREADS", variable)
            server = servers.enter_context(contextlib.closing(ForkServer(PYTHON, "torch")))
            server.wait_ready()
        cold, warm = (
            run_and_read(starter, tmp_path, "import torch; print(torch.get_num_threads())")
            for starter in (Spawner(PYTHON), server)
        )
        assert cold == warm


BLAS = """
import numpy, scipy.linalg, threadpoolctl
(numpy.ones((300, 300)) @ numpy.ones((300, 300))).sum()
libraries = [library for library in threadpoolctl.threadpool_info() if library["user_api"] == "blas"]
print(sorted((library["prefix"], library["num_threads"]) for library in libraries))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "variables"),
    [
        ("numpy", {}),
        ("scipy.linalg", {}),  # which imports numpy
        ("scipy.linalg", {"OPENBLAS_NUM_THREADS": "1"}),
        ("scipy.linalg", {"OMP_NUM_THREADS": "1,1"}),
    ],
)
def test_numpy_gets_the_threads_that_it_would_have_had(tmp_path, monkeypatch, module, variables):
    pytest.importorskip("threadpoolctl")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with contextlib.closing(ForkServer(PYTHON, module)) as server:
        server.wait_ready()
        assert run_and_read(server, tmp_path, BLAS) == run_and_read(Spawner(PYTHON), tmp_path, BLAS)
