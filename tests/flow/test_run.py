"""python run.py as a user types it: rows, exit statuses, signals, a killed orchestrator, files that jobs remove."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.base.domain.tags import Tag
from pipeline.base.system.paths import PROJECT_DIR, shorten_path
from pipeline.clean import processes
from tests.support.run_cases import SHORT, TOY, groups
from tests.support.run_program import Program
from tests.support.waiting import wait_for_training, wait_until

pytestmark = pytest.mark.covers("run.py", "pipeline/study", "pipeline/study/executor.py", "pipeline/record/spool.py")

IMPATIENT = PROJECT_DIR / "tests/support/impatient.py"
# Its rate does not depend on how busy the machine is.
KNOWN_RATE = [f"workload.script={PROJECT_DIR / 'tests/toys/stalling.py'}"]


@pytest.mark.torch
@pytest.mark.slow
def test_the_main_job_lands_in_the_store(run, client, tmp_path):
    small = ["workload.image_px=8", "workload.model_args.channels=[8,16,32,64]", "workload.batch_size=100"]
    # A number of epochs, and no time: on a busy machine not one may fit into seconds.
    status, out, err = run(*small, "window=work", "window.epochs=3", is_real=True)
    assert status == 0, err
    by_name = {group.info.run_name: (group, jobs) for group, jobs in groups(client)}
    assert by_name.keys() == {"naive-2x-tiny", "serial-1x-tiny"} and "speed-up" in out
    parent, children = by_name["naive-2x-tiny"]
    losses = [[m.value for m in client.get_metric_history(c.info.run_id, "loss")] for c in children]
    assert list(map(len, losses)) == [3, 3]
    assert "naive-2x-tiny" in out and "mlflow ui --backend-store-uri sqlite:///mlruns/mlflow.db" in out
    assert all(of_child[-1] < of_child[0] for of_child in losses)
    assert parent.info.status == "FINISHED" and [c.info.status for c in children] == ["FINISHED"] * 2
    metrics = parent.data.metrics
    assert metrics["throughput_total_samples_per_s"] > 0
    opens_ns, closes_ns = (int(parent.data.tags[tag]) for tag in (Tag.WINDOW_START_NS, Tag.WINDOW_END_NS))
    spans_ns = [[int(child.data.tags[tag]) for tag in (Tag.START_NS, Tag.END_NS)] for child in children]
    assert [opens_ns, closes_ns] == [min(start for start, _ in spans_ns), max(end for _, end in spans_ns)]
    assert {"overlap_ratio", "start_skew_ms"} <= metrics.keys()
    assert 0 < metrics["orchestrator_cpu_pct"] < 25  # what polls without a rest has its share of a busy machine too
    assert any(name.startswith("system/host/") for name in metrics)
    for child in children:
        assert child.data.metrics["throughput_samples_per_s"] > 0
        assert 0 < child.data.metrics["accuracy_ratio"] <= 1
        assert any(name.startswith("system/host/") for name in child.data.metrics)
    artifacts = {file.path for file in client.list_artifacts(parent.info.run_id)}
    assert {"plan.txt", "config.yaml", "provenance.txt", "group.json", "samples.parquet"} <= artifacts
    assert not (tmp_path / "mlruns/spool").exists()


def test_a_dry_run_writes_nothing(study_of, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    status, out, _ = study_of("-m", "degree=1,2", "dry_run=true")
    assert status == 0
    assert "naive-2x-tiny" in out and "serial-1x-tiny" in out
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.slow
def test_a_dry_run_says_for_programs_too_how_long_the_study_will_take(run):
    def plan():
        status, out, _ = run("-m", *TOY, *SHORT, "degree=2,3", "baseline=never", "dry_run=json")
        assert status == 0
        return json.loads(out)

    before = plan()
    assert before["seconds"] == {
        "at_least": pytest.approx(2 * 0.3),
        "at_most": pytest.approx(2 * (60 + 0.3 + 60)),
        "num_unknown_groups": 2,
    }
    assert run(*TOY, *SHORT)[0] == 0
    after = plan()
    assert after["plan"] == before["plan"] and after["commands"] == []
    seconds = [group["seconds"] for group in after["groups"]]
    assert {group["name"] for group in after["groups"]} == {"naive-2x-toy", "naive-3x-toy"}
    assert len(set(seconds)) == 1 and seconds[0] > 0.3  # three jobs take what two took, as long as nothing is closer
    assert after["seconds"] == {"at_least": sum(seconds), "at_most": sum(seconds), "num_unknown_groups": 0}
    assert "takes about" in run("-m", *TOY, *SHORT, "degree=2", "baseline=never", "dry_run=true")[1]


@pytest.mark.slow
def test_a_sweep_goes_on_past_a_failure_and_resumes_only_what_failed(run, client):
    grid = ["-m", *TOY, *SHORT, "order=listed", "baseline=never"]
    manners = "workload.args=[well],[raises],[out_of_memory]"
    status, out, err = run(*grid, manners)
    assert status == 1
    # A busy machine may let the job stand still, which marks its row.
    assert sorted(line.split()[1].rstrip("*") for line in out.splitlines()[1:4]) == ["failed", "ok", "oom"]
    status, out, err = run(*grid, manners, "resume=true")
    assert status == 1
    assert "2 of 3 groups are finished" in err
    assert [run.data.tags["collocation.result"] for run, _ in groups(client)] == ["ok", "failed", "oom", "failed"]
    assert [run.info.status for run, _ in groups(client)] == ["FINISHED", "FAILED", "FAILED", "FAILED"]


@pytest.mark.slow
def test_figures_follow_when_the_baseline_runs_after_a_resume(run, client):
    grid = ["-m", *TOY, *KNOWN_RATE, *SHORT, "degree=2", "scenario=naive,serial", "order=listed"]
    assert run(*grid, "time_limit_s=0.1")[0] == 1  # a study that was cut has groups without a result
    ((naive, _),) = groups(client)
    assert "speedup_vs_serial_ratio" not in naive.data.metrics
    status, out, err = run(*grid, "resume=true")
    assert status == 0, err
    assert "1 of 2 groups are finished" in err
    assert client.get_run(naive.info.run_id).data.metrics["speedup_vs_serial_ratio"] == pytest.approx(2, rel=0.02)
    assert len(re.findall("^naive-2x-toy ", out, re.MULTILINE)) == 1  # the table holds the whole study


@pytest.mark.slow
def test_with_another_launcher_every_combination_is_a_study_of_its_own(run, client):
    status, _, err = run(
        "-m",
        *TOY,
        *SHORT,
        "baseline=never",
        "hydra/launcher=basic",
        "workload.args=[well],[raises],[well]",
        num_senders=3,
    )
    assert status == 1, err
    assert [run.data.tags["collocation.result"] for run, _ in groups(client)] == ["ok", "failed", "ok"]
    assert len({run.data.tags["collocation.study"] for run, _ in groups(client)}) == 3


@pytest.mark.slow
def test_nohup_survives_the_end_of_the_terminal(start, tmp_path):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        process = start(*TOY, "baseline=never", "window.seconds=1", is_real=True)
    finally:
        signal.signal(signal.SIGHUP, before)
    wait_for_training(tmp_path / "mlruns", process)
    process.send_signal(signal.SIGHUP)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err


@pytest.mark.slow
@pytest.mark.usefixtures("start")  # which makes the store
def test_a_study_ends_with_its_result_whatever_streams_folder_and_warnings_it_was_started_with(client, tmp_path):
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    (folder / "train.py").write_text("import os; print(os.environ['PYTHONWARNINGS'])")
    study = ["gpu=cpu", "degree=1", "baseline=never", f"gpu.lock_dir={tmp_path}", f"tracking.root={tmp_path}/mlruns"]
    argv = ["sh", "-c", 'exec "$0" "$@" <&- >&- 2>&-', sys.executable, PROJECT_DIR / "run.py", *study, "--", "train.py"]
    done = subprocess.run(argv, cwd=folder, env=os.environ | {"PYTHONWARNINGS": "error"}, timeout=300)
    assert done.returncode == 0
    ((parent, _),) = groups(client)
    assert parent.data.tags["collocation.result"] == "ok"
    assert parent.data.tags["collocation.working_folder"] == f"{tmp_path}/caf\\udce9"


def test_a_script_that_runs_out_of_memory_is_a_finding(study_of, tmp_path):
    (tmp_path / "train.py").write_text("raise MemoryError('CUDA out of memory. Tried to allocate 9 GiB')")
    status, out, _ = study_of("workload=script", "baseline=never", "workload.script=train.py")
    assert status == 0
    assert "oom" in out and "Tried to allocate 9 GiB" in out


def test_findings_alone_end_with_status_0(study_of):
    assert study_of(*TOY, "baseline=never", *SHORT, "workload.args=[out_of_memory]").status == 0


@pytest.mark.slow
@pytest.mark.smoke
def test_speed_up_is_recorded_even_when_the_baseline_runs_last(study_of):
    done = study_of("-m", *TOY, *KNOWN_RATE, *SHORT, "degree=2", "scenario=naive,serial", "order=listed")
    assert done.status == 0, done.err
    (naive, _), (serial, _) = done.groups
    assert [row.data.tags["collocation.scenario"] for row in (naive, serial)] == ["naive", "serial"]
    assert naive.data.metrics["speedup_vs_serial_ratio"] == pytest.approx(2, rel=0.02)
    assert "speed-up" in done.out


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["degree=x"], "degree"),
        (["seed=-1"], "seed"),
        (["repeats=1000000"], "repeats=1000000 must be at most 10000"),
        (["gpu.kind=simulated", "gpu.model=a100_40gb", "gpu.count=1000"], "gpu.count=1000 must be from 1 to 64"),
        (["window.seconds=inf"], "finite"),
        (["-m", "listeners=[],[host]"], "cannot be swept"),
        (["wrong_key=1"], "wrong_key"),
        (["scenario=absent"], "scenario=absent does not exist"),
        (["workload=resnet26_cifar10"], "data.root=FOLDER"),
        (["-m", "degree=1,0"], "degree=0 must be from 1"),
        (["-m", "tracking.root=a,b"], "cannot be swept"),
    ],
)
def test_a_wrong_configuration_ends_with_status_2_before_anything_is_touched(study_of, tmp_path, arguments, words):
    status, _, err = study_of(*arguments)
    assert status == 2, err
    assert words in err
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_server_that_is_away_ends_with_status_2_before_anything_is_touched(run, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    status, _, err = run("tracking=server", "tracking.uri=http://me:s3cret@127.0.0.1:9")
    for lock in tmp_path.glob("collocation-*.lock"):
        lock.unlink()  # taken before the store is opened, and empty
    assert status == 2, err
    assert "127.0.0.1:9" in err
    assert "Traceback" not in err and "s3cret" not in err
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.slow
def test_a_second_orchestrator_is_refused(start, tmp_path):
    first = start(*TOY, "baseline=never", "window.seconds=60")
    wait_for_training(tmp_path / "mlruns", first)
    second = start(*TOY, "baseline=never", *SHORT)
    _, err = second.communicate(timeout=300)
    assert second.returncode == 2
    assert f"(pid {first.pid}, started in {tmp_path})" in err
    first.send_signal(signal.SIGINT)
    first.communicate(timeout=300)
    assert first.returncode == 130


@pytest.mark.slow
@pytest.mark.parametrize(("signum", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGUSR1, 138)])
def test_a_signal_ends_everything_and_the_row_says_so(start, client, tmp_path, signum, status):
    is_real = signum == signal.SIGINT  # whose handler is Python's own unless the program is told otherwise
    process = start(
        *TOY, "baseline=never", "window.seconds=60", "workload.args=[forks]", script=IMPATIENT, is_real=is_real
    )
    mark = wait_for_training(tmp_path / "mlruns", process)
    process.send_signal(signum)
    process.communicate(timeout=300)
    assert process.returncode == status
    assert processes.list_marked(mark) == []
    ((parent, children),) = groups(client)
    assert [run.info.status for run in (parent, *children)] == ["KILLED"] * 3
    assert parent.data.tags["collocation.result"] == "interrupted"


@pytest.mark.parametrize("also_the_sender", [pytest.param(False, marks=pytest.mark.slow), True])
def test_after_kill_9_nothing_lives_on_and_the_runs_get_closed(start, run, client, tmp_path, also_the_sender):
    process = start(*TOY, "baseline=never", "window.seconds=60", "workload.args=[forks]", is_real=not also_the_sender)
    mark = wait_for_training(tmp_path / "mlruns", process)
    process.kill()
    if also_the_sender:
        os.kill(process.sender_pid, signal.SIGKILL)
    process.communicate(timeout=300)
    if also_the_sender:
        assert run(*TOY, "baseline=never", *SHORT, script=IMPATIENT)[0] == 0
    else:
        wait_until(lambda: not list(tmp_path.glob("mlruns/spool/*/*/record.json")))
    assert processes.list_marked(mark) == []
    (parent, children), *_ = groups(client)
    assert [run.info.status for run in (parent, *children)] == ["KILLED"] * 3


@pytest.mark.slow
@pytest.mark.parametrize("is_store_gone", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_sender_that_dies_is_replaced_and_what_cannot_be_sent_is_said_last(start, client, tmp_path, is_store_gone):
    process = start(*TOY, "window.seconds=1", *SHORT[1:])
    wait_for_training(tmp_path / "mlruns", process)
    os.kill(process.sender_pid, signal.SIGKILL)
    if is_store_gone:
        (tmp_path / "mlruns/mlflow.db").write_bytes(b"no database")
    _, err = process.communicate(timeout=300)
    assert "; restarting it" in err
    assert process.returncode == int(is_store_gone), err
    if is_store_gone:
        assert " tracking flush --root " in err.splitlines()[-1]
        assert len(list(tmp_path.glob("mlruns/spool/*/*/record.json"))) == 1
    else:
        assert {run.data.tags["collocation.result"] for run, _ in groups(client)} == {"ok"}


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("what", "before"),
    [
        pytest.param("pipeline.launch.spawn.Spawner.start", "", id="a job is started"),
        pytest.param("pipeline.observe.group_row.judge", "no figures: OSError: ", id="figures are computed"),
    ],
)
def test_what_the_machine_refuses_is_the_reason_of_a_row_and_no_error_of_ours(study_of, monkeypatch, what, before):
    def refused(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), "stdout.log")

    monkeypatch.setattr(what, refused)
    done = study_of(*TOY, *SHORT, "baseline=never")
    assert done.status == 1 and "Traceback" not in done.err
    ((group, _),) = done.groups
    assert group.data.tags["collocation.reason"] == f"{before}[Errno 24] Too many open files: 'stdout.log'"
    assert (group.folder / "artifacts/orchestrator_error.txt").is_file()


@pytest.mark.slow
def test_a_users_script_runs_unchanged_and_its_own_mlflow_calls_land_in_its_run(run, client, tmp_path):
    (tmp_path / "train.py").write_text(
        "import sys, mlflow\n"
        "assert __name__ == '__main__'\n"
        "with mlflow.start_run():\n"
        "    mlflow.log_param('argument', sys.argv[1])\n"
        "    for step in range(3): mlflow.log_metric('my_loss', 1 / (1 + step), step=step)\n"
    )
    status, _, err = run("workload=script", "baseline=never", "workload.script=train.py", "workload.args=[hello]")
    assert status == 0, err
    ((parent, children),) = groups(client)
    assert parent.data.metrics["makespan_s"] > 0
    for child in children:
        assert child.data.params["argument"] == "hello"
        assert [m.value for m in client.get_metric_history(child.info.run_id, "my_loss")] == [1, 1 / 2, 1 / 3]


@pytest.mark.slow
def test_a_command_line_of_the_users_own_is_measured_swept_resumed_and_reproduced(run, client, tmp_path):
    (tmp_path / "train.py").write_text("import sys, time\nprint(sys.argv[1:])\ntime.sleep(0.2)\n")
    study = ["workload.flags.batch-size=16,32", "--", "train.py", "--out", "it's"]
    names = {f"{mode}-train-batch-size={size}" for mode in ("naive-2x", "serial-1x") for size in (16, 32)}
    status, out, err = run("-m", "dry_run=true", *study)
    assert status == 0 and all(name in out for name in names), err
    status, out, err = run("-m", "time_limit_s=0.01", *study)
    assert status == 1 and " resume=true -- train.py --out 'it'\"'\"'s'\n" in err
    status, out, err = run("-m", "resume=true", *study)
    assert status == 0 and "1 of 4 groups are finished" in err
    assert all(out.count(f"{name} ") == 1 for name in names)
    stored = groups(client)
    assert {group.info.run_name for group, _ in stored} == names
    for group, jobs in stored:
        for row in (group, *jobs):
            size = row.data.params["flags.batch-size"]
            assert (row.data.params["script"], row.data.params["args"]) == ("train.py", "--out 'it'\"'\"'s'")
            assert f"batch-size={size}" in group.info.run_name
        assert "window_seconds" not in group.data.params and "window_epochs" not in group.data.params
        assert group.data.tags["collocation.command_line"].endswith("-- train.py --out 'it'\"'\"'s'")
    naive = next(group for group, _ in stored if group.info.run_name == "naive-2x-train-batch-size=16")
    assert naive.data.metrics["speedup_vs_serial_ratio"] > 1
    status, _, err = run(f"reproduce={naive.info.run_id}", "dry_run=true")
    assert status == 0 and "digest of the plan" not in err and "the content of" not in err


@pytest.mark.slow
def test_a_mix_of_command_lines_says_what_it_gains_and_builds_on_its_own_record(run, client, tmp_path):
    for name in ("train", "eval"):
        (tmp_path / f"{name}.py").write_text("import sys, time; print(sys.argv[1:]); time.sleep(0.3)")
    status, _, err = run("mix=['train.py --epochs 3',{command:eval.py,flags:{split:test}}]")
    assert status == 0, err
    by_name = {group.info.run_name: group for group, _ in groups(client)}
    assert by_name.keys() == {f"{mode}-train+eval[split=test]" for mode in ("naive", "serial")}
    mix = by_name["naive-train+eval[split=test]"]
    assert mix.data.metrics["speedup_vs_serial_ratio"] > 1
    status, _, err = run(f"reproduce={mix.info.run_id}")
    assert status == 0 and "digest of the plan" not in err and "the content of" not in err


@pytest.mark.smoke
def test_a_script_that_fails_is_a_failed_row(study_of, tmp_path):
    (tmp_path / "train.py").write_text("import sys; sys.exit(3)")
    done = study_of("workload=script", "degree=1", "baseline=never", "workload.script=train.py")
    assert done.status == 1
    assert "status 3" in done.out, done.out
    assert done.groups[0][0].info.status == "FAILED"


@pytest.mark.slow
def test_on_failure_stop_starts_no_further_group(study_of, tmp_path):
    (tmp_path / "train.py").write_text("raise SystemExit('a bug')")
    options = ["baseline=never", "degree=1,2,3", "listeners=[]"]
    inform = "on_end=[sh,-c,'echo $0 > summary.txt',SUMMARY]"
    study = study_of("-m", *options, "on_failure=stop", inform, "--", "train.py")
    assert study.status == 1 and len(study.groups) == 1
    assert ": 3 groups, 1 failed, 2 not finished, in " in (tmp_path / "summary.txt").read_text()
    assert "on_failure=stop: naive-3x-train: failed; the remaining groups are not started" in study.err
    assert len(study_of("-m", *options, "--", "train.py").groups) == 3


@pytest.mark.slow
def test_on_failure_stop_goes_on_after_a_finding(study_of, tmp_path):
    (tmp_path / "train.py").write_text("raise MemoryError('too large')")
    study = study_of("-m", "baseline=never", "degree=1,2", "listeners=[]", "on_failure=stop", "--", "train.py")
    assert study.status == 0 and len(study.groups) == 2


REMOVED = ["degree=1,2", "repeats=1", "baseline=never", "warm_start=false", "listeners=[]"]
REMOVES = "import os, shutil, sys, time\ntime.sleep(0.2)\nif sys.argv[1] in '{when}': {removes}\n"
REMOVES_FOLDER = "shutil.rmtree(os.path.dirname(sys.argv[0]), ignore_errors=True)"


def run_study(tmp_path: Path, template_store: Path, removes: str, *, root: str, when: str = "1") -> list[str]:
    """Run two groups, of which those with these numbers of jobs remove something; return what was printed."""
    folder = tmp_path / "work"
    folder.mkdir()
    shutil.copytree(template_store, folder / root)
    (folder / "train.py").write_text(REMOVES.format(when=when, removes=removes))
    words = [f"tracking.root={root}", f"gpu.lock_dir={tmp_path}", "gpu=cpu", "foreign_load=note", "-m", *REMOVED]
    status, out, err = Program(folder).run(*words, "--", "train.py", "{degree}")
    assert status == 1, err
    assert "Traceback" not in out + err
    return [line.strip() for line in (out + err).splitlines()]


def find_lines(lines: list[str], text: str) -> list[str]:
    return [line for line in lines if text in line]


def test_a_group_fails_whose_script_was_removed_and_the_study_goes_on(tmp_path, study_of):
    (tmp_path / "train.py").write_text(REMOVES.format(when="2", removes="os.remove(sys.argv[0])"))
    study = study_of("-m", *REMOVED, "--", "train.py", "{degree}")
    assert study.status == 1
    reasons = {group.info.run_name: group.data.tags[Tag.REASON] for group, _ in study.groups}
    assert reasons["naive-1x-train"] == f"job 0-train: {tmp_path}/train.py was removed during the study; restore it"
    assert len(find_lines(study.err.splitlines(), "2 groups: 2 failed; to run them: ")) == 1


@pytest.mark.slow
def test_a_study_whose_working_folder_was_removed_says_how_to_resume(tmp_path, template_store):
    lines = run_study(tmp_path, template_store, REMOVES_FOLDER, root="../mlruns", when="2")
    assert find_lines(lines, f"naive-1x-train: job 0-train cannot start in {tmp_path}/work: No such file or directory")
    assert len(find_lines(lines, "failed; to run ")) == 1
    assert f"the working folder {tmp_path}/work was removed during the study; make it again first" in lines
    assert find_lines(lines, "report: ")


@pytest.mark.slow
def test_a_store_that_was_removed_is_said_in_one_line(tmp_path, template_store):
    lines = run_study(tmp_path, template_store, REMOVES_FOLDER, root="mlruns")
    removed = (
        f"error: {tmp_path}/work/mlruns, with the results of this study, was removed while naive-1x-train ran; set "
    )
    assert [line[: len(removed)] for line in find_lines(lines, "error")] == [removed]
    assert len(find_lines(lines, "2 groups: 1 not finished; to run it: ")) == 1
    assert find_lines(lines, "report: ")


def test_a_path_is_shortened_only_below_a_folder_that_exists(tmp_path, monkeypatch):
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    assert shorten_path(tmp_path / "work/a") == Path("a")
    assert shorten_path(tmp_path / "a") == tmp_path / "a"
    (tmp_path / "work").rmdir()
    assert shorten_path(tmp_path / "work/a") == tmp_path / "work/a"
