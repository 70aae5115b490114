"""A group's processes are found by their mark, also when they left their session or lost their parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid

from pipeline.clean import processes

STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
ORPHAN = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {STUBBORN!r}], start_new_session=True, stdout=-1, stderr=-3)
child.stdout.readline()
print(child.pid, flush=True)
"""


def test_an_orphan_that_ignores_term_is_found_and_ended():
    mark = uuid.uuid4().hex
    environ = os.environ | {processes.MARK_VARIABLE: mark}
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        done = subprocess.run([sys.executable, "-c", ORPHAN], env=environ, capture_output=True, text=True, timeout=120)
        pid = int(done.stdout)
        assert processes.list_marked(mark) == [pid]
        assert processes.end(mark, grace_s=0.3) == 1
        assert processes.list_marked(mark) == []
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_a_polite_process_gets_the_time_to_end():
    mark = uuid.uuid4().hex
    polite = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"], env=os.environ | {processes.MARK_VARIABLE: mark}
    )
    while processes.list_marked(mark) != [polite.pid]:
        time.sleep(0.01)
    processes.end(mark, grace_s=60)
    assert polite.wait(timeout=60) == -signal.SIGTERM


def test_what_sheds_its_mark_when_it_is_told_to_end_is_ended_all_the_same():
    mark = uuid.uuid4().hex
    script = "trap 'exec env -i sleep 60' TERM; echo up; while :; do sleep 0.05; done"
    environ = os.environ | {processes.MARK_VARIABLE: mark}
    with subprocess.Popen(["/bin/sh", "-c", script], env=environ, stdout=subprocess.PIPE) as shedding:
        assert shedding.stdout is not None and shedding.stdout.readline() == b"up\n"
        processes.end(mark, grace_s=1)
        assert shedding.wait(timeout=60) == -signal.SIGKILL


def test_what_is_started_meanwhile_is_ended_too():
    mark = uuid.uuid4().hex
    environ = os.environ | {processes.MARK_VARIABLE: mark}
    child = f'{sys.executable} -c "import time; time.sleep(60)"'
    script = f"trap '{child} & exit 0' TERM; echo up; while :; do sleep 0.05; done"
    with subprocess.Popen(["/bin/sh", "-c", script], env=environ, stdout=subprocess.PIPE) as starting:
        assert starting.stdout is not None and starting.stdout.readline() == b"up\n"
        begin = time.monotonic()
        assert processes.end(mark, grace_s=60) > 1
        assert processes.list_marked(mark) == []
        assert time.monotonic() - begin < 60  # it was told to end like the others
