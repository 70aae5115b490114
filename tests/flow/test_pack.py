"""Packs: every trial runs to its end once, also after kills; failures, memory and Ctrl-C."""

from __future__ import annotations

import random
import re
import signal
import time
from collections import Counter

import pytest

from tests.support.run_cases import groups

pytestmark = pytest.mark.covers(
    "pipeline/study/pack_run.py", "pipeline/study/pack_trials.py", "pipeline/launch/job_group.py"
)

TRIAL = """
import argparse, os, pathlib, sys, time
parser = argparse.ArgumentParser()
parser.add_argument("--x", type=int)
parser.add_argument("--seconds", type=float, default=0.5)
parser.add_argument("--fail", type=int, default=-1)
parser.add_argument("--log")
options = parser.parse_args()

def note(event):
    with open(options.log, "a") as log:
        log.write(f"{event} {options.x}\\n")

note("begin")
for _ in range(int(options.seconds / 0.05)):
    time.sleep(0.05)
    print("20.0 it/s", flush=True)
if options.x == options.fail:
    sys.exit(3)
pathlib.Path("result.txt").write_text(str(options.x))
note("end")
os._exit(0)
"""
OOM = """
import fcntl, os, sys, time

def work(seconds):
    for _ in range(int(seconds / 0.1)):
        time.sleep(0.1)
        print("10.0 it/s", flush=True)

work(0.8)
descriptor = os.open(sys.argv[2], os.O_RDWR | os.O_CREAT)
try:
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    sys.exit("RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB")
work(2.5)
"""


@pytest.fixture
def log(tmp_path):
    (tmp_path / "trial.py").write_text(TRIAL)
    return tmp_path / "log.txt"


def pack(log, *words, num=8, options=()):
    return ["+experiment=pack", *options, "--", "trial.py", "--log", str(log), "--x", f"{{1..{num}}}", *words]


def count(log):
    return Counter(log.read_text().splitlines()) if log.exists() else Counter()


@pytest.mark.smoke
def test_each_trial_is_a_run_with_its_folder_and_status_and_a_failure_stops_no_other(run, client, tmp_path, log):
    status, out, err = run(*pack(log, "--fail", "3", num=5))
    assert status == 1, err
    assert count(log) == Counter([f"begin {x}" for x in range(1, 6)] + [f"end {x}" for x in range(1, 6) if x != 3])
    ((group, trials),) = groups(client, "pack")
    assert group.data.tags["collocation.pack"].startswith("5 trials in ")
    statuses = {
        trial.data.params["args"].split("--x ")[1]: trial.data.tags["collocation.exit_status"] for trial in trials
    }
    assert statuses == {f"{x} --fail 3": "3" if x == 3 else "0" for x in range(1, 6)}
    for trial in trials:
        names = [file.path for file in client.list_artifacts(trial.info.run_id, "output")]
        assert names == ([] if trial.data.tags["collocation.exit_status"] == "3" else ["output/result.txt"])
    assert "4 ok, 1 failed" in out and "5 of 5 ended" in err
    assert not (tmp_path / "result.txt").exists()
    status, out, err = run(*pack(log, "--fail", "3", num=5, options=["resume=true"]))
    assert status == 1 and "resume: 5 of 5 trials have ended" in err, err
    assert "4 ok, 1 failed" in out and "trial 2-trial " in out and "ended with status 3" in out
    assert count(log).total() == 9


def resume_until_over(start, words, draw_pause_s):
    """Kill a pack again and again until it ends by itself; return its exit status, errors and the number of kills."""
    place = words.index("--")
    for num_kills in range(500):
        process = start(*words[:place], "resume=true", *words[place:])
        deadline = time.monotonic() + draw_pause_s()
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        if process.poll() is None:
            process.kill()
        _, err = process.communicate(timeout=60)
        if process.returncode >= 0:
            return process.returncode, err, num_kills
    raise AssertionError("the pack never ended")


@pytest.mark.slow
def test_after_kills_no_trial_runs_twice_or_never(start, client, log):
    draw = random.Random(0)
    words = pack(log, "--seconds", "1", num=16)
    status, err, num_kills = resume_until_over(start, words, lambda: draw.uniform(2.0, 7.0))
    assert status == 0, err
    ends = {event: number for event, number in count(log).items() if event.startswith("end")}
    assert ends == {f"end {x}": 1 for x in range(1, 17)} and num_kills > 0
    results = Counter(trial.data.tags["collocation.result"] for _, trials in groups(client, "pack") for trial in trials)
    assert results["ok"] == 16


def test_ctrl_c_ends_the_trials_and_the_rest_runs_after_it(start, run, log, client):
    process = start(*pack(log, "--seconds", "0.8", num=6))
    deadline = time.monotonic() + 60
    while not any(event.startswith("end") for event in count(log)) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    ended = {event for event in count(log) if event.startswith("end")}
    status, out, err = run(*pack(log, "--seconds", "0.8", num=6, options=["resume=true"]))
    assert status == 0 and f"resume: {len(ended)} of 6 trials have ended" in err, err
    assert "6 ok" in out
    status, out, err = run(*pack(log, "--seconds", "0.8", num=6, options=["resume=true"]))
    assert status == 0 and "resume: 6 of 6 trials have ended" in err, err
    assert "6 ok" in out
    assert all(count(log)[f"end {x}"] == 1 for x in range(1, 7))


def test_a_trial_without_memory_beside_others_starts_again_alone(run, client, tmp_path):
    (tmp_path / "oom.py").write_text(OOM)
    words = ["+experiment=pack", "--", "oom.py", "{1..3}", str(tmp_path / "lock")]
    status, _, err = run(*words)
    assert status == 0, err
    assert "out of memory; it starts again alone at the end" in err
    ((_, trials),) = groups(client, "pack")
    assert {trial.data.tags["collocation.result"] for trial in trials} == {"ok"}
    files = [client.list_artifacts(trial.info.run_id, "output/first_attempt") for trial in trials]
    assert any("output/first_attempt/stderr.log" in [file.path for file in of_trial] for of_trial in files)


def test_a_file_of_commands_is_a_pack(run, client, tmp_path, log):
    lines = [f"trial.py --log {log} --seconds 0.2 --x {x}" for x in (1, 2, 2)]
    (tmp_path / "trials.txt").write_text("# three\n" + "\n".join(lines) + "\n")
    status, _, err = run("+experiment=pack", "pack.trials=trials.txt", "pack.most=2")
    assert status == 0, err
    assert count(log)["end 1"] == 1 and count(log)["end 2"] == 2


@pytest.mark.slow
def test_the_parts_of_a_pack_run_on_two_gpus_and_go_on_after_ctrl_c(program, start, log):
    program.last[1] = "gpu=simulated_h100_80gb"
    gpus = ["-m", "gpu.count=2", "gpu.machine=machine.json", "hydra/launcher=gpus", "pack.part=1/2,2/2"]
    words = pack(log, "--seconds", "1.5", num=9, options=gpus)
    process = start(*words)
    deadline = time.monotonic() + 120
    while not any(event.startswith("end") for event in count(log)) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    num_ended = sum(event.startswith("end") for event in count(log))
    process = start(*words[:1], "resume=true", *words[1:])
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert all(count(log)[f"end {x}"] == 1 for x in range(1, 10)) and 0 < num_ended < 9
    ended = [int(number) for number in re.findall(r"resume: (\d+) of \d trials have ended", err)]
    assert sum(ended) == num_ended and "GPU 0 shard" in err and "GPU 1 shard" in err
