"""`profiler=nsys` and `profiler=ncu` as a user types them, with programs that play the profilers."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.base.system.paths import PROJECT_DIR
from pipeline.clean import processes
from pipeline.simulation.machine.state_file import StateFile
from tests.support import forks, run_cases
from tests.support.programs import write_script
from tests.support.run_cases import TOY, groups
from tests.support.run_program import Program
from tests.support.studies import Study
from tests.support.trace_format import problems
from tests.support.waiting import wait_until

pytestmark = pytest.mark.covers("pipeline/launch/profilers")
SHORT = [*run_cases.SHORT, "listeners=[host]"]


@pytest.fixture
def profilers(tmp_path) -> Path:
    """A folder with programs that play nsys and ncu."""
    return write_profilers(tmp_path / "bin")


def write_profilers(folder: Path) -> Path:
    folder.mkdir()
    for name in ("nsys", "ncu"):
        text = (PROJECT_DIR / "tests/toys/profiler.py").read_text(encoding="utf-8")
        write_script(folder / name, text, sys.executable)
    return folder


@pytest.fixture
def program(program, profilers) -> Program:
    program.environ = {"FAKE_PROFILER": "", "PATH": f"{profilers}:{os.environ['PATH']}"}
    return program


@pytest.fixture
def simulated(program) -> Program:
    """The same on a simulated A100."""
    program.last = [word.replace("gpu=cpu", "gpu=simulated_a100_40gb") for word in map(str, program.last)]
    return program


@pytest.fixture
def profiled(study_of, profilers, monkeypatch) -> Callable[..., Study]:
    """Run a study in this process, with profilers of this manner."""

    def run_here(*arguments: str, manner: str = "") -> Study:
        monkeypatch.setenv("FAKE_PROFILER", manner)
        monkeypatch.setenv("PATH", f"{profilers}:{os.environ['PATH']}")
        return study_of(*arguments)

    return run_here


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("name", "suffix"), [("nsys", "nsys-rep"), ("ncu", "ncu-rep")])
def test_the_report_of_each_job_is_among_its_files(profiled, name, suffix):
    done = profiled(*TOY, "baseline=never", *SHORT, f"profiler={name}")
    assert done.status == 0, done.err
    assert f"naive-2x-toy-{name}" in done.out
    assert f"profiler={name}: every figure includes the cost of the profiler" in done.err
    assert ("do not show the effect of sharing" in done.err) == (name == "ncu")
    ((group, jobs),) = done.groups
    assert group.data.tags["collocation.profiler"] == group.data.params["profiler"] == name
    assert len(jobs) == 2
    for job in jobs:
        assert job.data.tags["collocation.profiler"] == name
        assert job.data.metrics["throughput_samples_per_s"] > 0
        words = (job.folder / f"profile.{suffix}").read_text().split()
        assert words[-1] != "--only" and str(PROJECT_DIR / "tests/toys/toy.py") in words
    assert problems(json.loads((group.folder / "artifacts/timeline.json").read_text())) == []


@pytest.mark.slow
def test_a_missing_profiler_is_refused_before_anything_is_touched(profiled, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    status, _, err = profiled(*TOY, "baseline=never", "profiler=nsys", f"profiler.program={tmp_path}/nothing")
    assert status == 2
    assert f"profiler.program={tmp_path}/nothing is neither the path of an executable" in err
    assert "NVIDIA Nsight Systems" in err
    (tmp_path / "nothing").write_text("not executable")
    assert profiled(*TOY, "baseline=never", "profiler=ncu", f"profiler.program={tmp_path}/nothing").status == 2
    (tmp_path / "nothing").unlink()
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("manner", "reason"),
    [
        ("fails", "nsys ended with status 7 after the job: the report could not be written"),
        ("fails_at_once", "nsys ended with status 9 before the job sent a message: no permission for the counters"),
    ],
)
def test_a_profiler_that_fails_is_the_reason_of_the_row(profiled, manner, reason):
    done = profiled(*TOY, *SHORT, "degree=1", "profiler=nsys", manner=manner)
    assert done.status == 1, done.err
    ((group, _),) = done.groups
    assert group.data.tags["collocation.result"] == "failed"
    assert reason in group.data.tags["collocation.reason"]
    assert "collocation.no_report" not in group.data.tags  # that is for jobs that ended well


@pytest.mark.slow
def test_a_profiler_without_a_report_is_said_in_the_row(profiled):
    done = profiled(*TOY, "baseline=never", *SHORT, "profiler=ncu", manner="no_report")
    assert done.status == 0
    warning = "ncu wrote no report for 0-toy, 1-toy"
    assert warning in done.err
    ((group, _),) = done.groups
    assert warning in group.data.tags["collocation.no_report"]
    assert group.data.tags["collocation.result"] == "ok"


@pytest.mark.slow
@pytest.mark.parametrize("manner", ["dies_before_hello", "dies_before_ready", "raises", "ends_before_ready"])
def test_a_job_that_goes_wrong_below_a_profiler_is_a_failed_row(profiled, manner):
    done = profiled(*TOY, "baseline=never", *SHORT, f"workload.args=[{manner}]", "profiler=nsys")
    assert done.status == 1, done.err
    ((group, _),) = done.groups
    assert group.data.tags["collocation.result"] == "failed"
    reason = {"raises": "something went wrong", "ends_before_ready": "ended before it was ready"}.get(
        manner, "nsys ended"
    )
    assert reason in group.data.tags["collocation.reason"]


def test_a_script_is_measured_without_the_time_that_its_profiler_takes(profiled, tmp_path):
    (tmp_path / "script.py").write_text("import time; time.sleep(0.3)")
    script = ["workload=script", "workload.script=script.py", "degree=1"]
    done = profiled(*script, "profiler=nsys", *SHORT[2:], manner="slow")
    assert done.status == 0, done.err
    (job,) = done.jobs
    assert job.data.metrics["makespan_s"] >= 0.3
    report = (job.folder / "profile.nsys-rep").read_text()
    assert int(job.data.tags["collocation.end_ns"]) < int(report.split()[-1])


@pytest.mark.slow
def test_profiled_groups_have_profiled_baselines_and_are_not_finished_by_others(run, client):
    grid = ["-m", *TOY, *SHORT, "degree=2"]
    assert run(*grid)[0] == 0
    status, _, err = run(*grid, "profiler=nsys", "resume=true")
    assert status == 0 and "0 of 2 groups are finished" in err
    names = [group.info.run_name for group, _ in groups(client)]
    assert sorted(names) == ["naive-2x-toy", "naive-2x-toy-nsys", "serial-1x-toy", "serial-1x-toy-nsys"]
    both = [group for group, _ in groups(client) if group.info.run_name.startswith("naive")]
    assert all("speedup_vs_serial_ratio" in group.data.metrics for group in both)


@pytest.mark.slow
@pytest.mark.parametrize("manner", ["", "ignores_term"])
def test_an_interrupt_ends_the_profilers_and_what_they_started(program, client, tmp_path, manner):
    study = [*TOY, "baseline=never", "window.seconds=60", "profiler=nsys", "listeners=[host]"]
    program.environ["FAKE_PROFILER"] = manner
    process = program.start(*study, script=PROJECT_DIR / "tests/support/impatient.py")
    wait_until(lambda: len(list(tmp_path.glob("mlruns/spool/*/*/jobs/*/events.jsonl"))) == 2, process=process)
    (record,) = tmp_path.glob("mlruns/spool/*/*/record.json")
    mark = json.loads(record.read_text())["spool_id"]
    wait_until(lambda: len(processes.list_marked(mark)) >= 4)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=300)
    assert process.returncode == 143
    assert processes.list_marked(mark) == []
    ((group, _),) = groups(client)
    assert group.data.tags["collocation.result"] == "interrupted"


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["naive", "mps", "mig"])
def test_dcgm_pauses_on_a_gpu_before_hopper(simulated, client, tmp_path, scenario):
    arguments = [
        *TOY,
        *SHORT,
        "baseline=never",
        f"scenario={scenario}",
        "profiler=nsys",
        f"gpu.machine={tmp_path}/machine.json",
    ]
    status, out, err = simulated.run(*arguments, "dry_run=true")
    assert status == 0, err
    assert "dcgmi profile --pause" in out and "dcgmi profile --resume" in out
    status, out, err = simulated.run(*arguments)
    assert status == 0, err
    assert not StateFile(tmp_path / "machine.json").read().dcgm_is_paused
    ((group, _),) = groups(client, "collocation-rehearsal")
    assert group.data.tags["collocation.simulated"] == "true"


@pytest.mark.slow
def test_a_killed_study_leaves_dcgm_paused_and_the_next_one_resumes_it(simulated, tmp_path):
    machine = tmp_path / "machine.json"
    arguments = [*TOY, "baseline=never", "profiler=ncu", f"gpu.machine={machine}", "listeners=[host]"]
    process = simulated.start(*arguments, "window.seconds=60")
    wait_until(lambda: machine.exists() and StateFile(machine).read().dcgm_is_paused, process=process)
    process.kill()
    process.communicate()
    assert StateFile(machine).read().dcgm_is_paused
    status, _, err = simulated.run(*arguments[:-1], *SHORT, "profiler=none")
    assert status == 0, err
    assert "undid 1 step of" in err
    assert not StateFile(machine).read().dcgm_is_paused


@pytest.mark.slow
def test_a_study_over_two_starts_is_one_trace(run, tmp_path):
    assert run(*TOY, *SHORT, "degree=1")[0] == 0
    assert run(*TOY, "baseline=never", *SHORT, "degree=2", "profiler=nsys")[0] == 0
    argv = ["-m", "pipeline.timeline", "--root", str(tmp_path / "mlruns"), "--out", "all.json"]
    environ = os.environ | {"PYTHONPATH": str(PROJECT_DIR)}
    done = forks.run(*argv, cwd=tmp_path, env=environ)
    assert (done.returncode, done.stderr) == (0, "")
    assert "2 groups in all.json" in done.stdout
    trace = json.loads((tmp_path / "all.json").read_text())
    assert problems(trace) == []
    assert len({event["pid"] for event in trace["traceEvents"]}) == 2  # one a start
    names = [event["name"] for event in trace["traceEvents"] if event["ph"] == "X"]
    assert names.count("measured") == 2 and "naive-1x-toy" in names and "naive-2x-toy-nsys" in names
    done = forks.run(*argv, "--experiment", "nothing", cwd=tmp_path, env=environ)
    assert done.returncode == 2
    assert done.stderr.startswith("error: experiment 'nothing' in ")
