"""Scripts as users have them, through `python run.py`: their files, their figures, their failures."""

from __future__ import annotations

import shutil

import pytest

from tests.conftest import TOYS
from tests.support.run_cases import groups

pytest_plugins = ["tests.support.tracking_fixtures", "tests.support.run_fixtures"]
pytestmark = pytest.mark.covers(
    "pipeline/observe/logged_rate.py", "pipeline/observe/output_rates.py", "pipeline/observe/output_lines.py"
)


@pytest.fixture
def toys(tmp_path):
    """The five scripts beside the store, and one that writes a file, together with its copies if it is told so."""
    for name in ("with_a_bug", "tensorboard_files", "event_writer", "hf_trainer", "loader_workers"):
        shutil.copy(TOYS / f"{name}.py", tmp_path)
    (tmp_path / "writes.py").write_text(
        "import os, pathlib, sys, time\n"
        "mine = pathlib.Path(os.environ['COLLOCATION_OUTPUT_DIR'])\n"
        "def wait_for_all(name):\n"
        "    if len(sys.argv) < 3: return\n"
        "    mine.with_name(name).touch()\n"
        "    while not all((job / name).exists() for job in mine.parents[1].iterdir()): time.sleep(0.01)\n"
        "wait_for_all('begun')\n"
        "open(sys.argv[1], 'w').write(str(mine))\n"
        "wait_for_all('written')\n"
    )


def script(name: str) -> list[str]:
    return ["workload=script", f"workload.script={name}.py"]


@pytest.mark.smoke
def test_a_file_that_two_copies_write_is_named(study_of, toys):
    done = study_of(*script("writes"), "workload.args=[mine.txt,together]", "baseline=never")
    assert done.status == 0, done.err
    assert "changed while 2 jobs ran: mine.txt; separate them by workload.run_in=job_folder" in done.err
    ((row, _),) = done.groups
    assert row.data.tags["collocation.shared_files"] == "changed while 2 jobs ran: mine.txt"


@pytest.mark.slow
@pytest.mark.parametrize(
    "folder", [["workload.args=['{output_dir}/mine.txt']"], ["workload.run_in=job_folder", "workload.args=[mine.txt]"]]
)
def test_copies_with_folders_of_their_own_keep_their_files(study_of, toys, tmp_path, folder):
    done = study_of(*script("writes"), *folder, "baseline=never")
    assert done.status == 0, done.err
    assert "changed while" not in done.err and not (tmp_path / "mine.txt").exists()
    texts = {(child.folder / "output/mine.txt").read_text() for child in done.jobs}
    assert {text[-len("jobs/0/output") :] for text in texts} == {"jobs/0/output", "jobs/1/output"}


@pytest.mark.slow
def test_speed_up_by_a_metric_in_tensorboard_files(study_of, toys):
    metric = "workload.metric=train/samples_per_second"
    long = "workload.args=['--steps=60']"  # so that the two meet on a busy machine as well
    done = study_of("-m", *script("tensorboard_files"), metric, long, "degree=2")
    assert done.status == 0, done.err
    assert "measured while all jobs log" in done.err and "changed while" not in done.err
    rows = {row.data.tags["collocation.scenario"]: row.data for row, _ in done.groups}
    total = {scenario: row.metrics["throughput_total_samples_per_s"] for scenario, row in rows.items()}
    assert rows["naive"].params["window"] == "logged"
    assert total["naive"] > total["serial"]
    assert rows["naive"].metrics["speedup_vs_serial_ratio"] == pytest.approx(total["naive"] / total["serial"])


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "metric"),
    [("hf_trainer", "train_samples_per_second"), ("loader_workers", "train/samples_per_second")],
)
def test_a_metric_that_a_program_logs_through_mlflow(run, client, toys, name, metric):
    if name == "hf_trainer":
        pytest.importorskip("accelerate")
    status, out, err = run(*script(name), f"workload.metric={metric}", "degree=1", "workload.run_in=job_folder")
    assert status == 0, err + out
    ((row, (child,)),) = groups(client)
    assert row.data.metrics["throughput_total_samples_per_s"] > 0
    assert child.data.params["job.throughput_from"].startswith("MLflow, ")
    assert child.data.metrics[metric] > 0


@pytest.mark.slow
def test_a_failing_script_shows_the_end_of_its_errors_and_hides_no_other(study_of, toys, tmp_path):
    mix = ["+workload@sizes.A=script", "sizes.A.script=writes.py", "sizes.A.args=['{output_dir}/x']"]
    mix += ["+workload@sizes.B=script", "sizes.B.script=with_a_bug.py", "sizes.B.args=['--steps','0']"]
    done = study_of(*mix, "mix=[B,A]", "baseline=always", "order=listed")
    out, err = done.out, done.err
    assert done.status == 1
    assert "jobs/*/stdout.log, stderr.log" in err
    assert out.count("KeyError: 'table.csv has no column named loss'") == 2  # the reason of both rows, and the lines
    assert 'raise KeyError(f"{path} has no column named loss")' in out
    assert out.count(" succeeded: ") == 2
    named = next(line for line in out.splitlines() if "last lines of stderr of" in line)
    path = tmp_path / named.partition("(")[2].rstrip("):")
    assert "no column named loss" in path.read_text()
    for row, children in done.groups:
        assert row.data.tags["collocation.result"] == "failed"
        assert sorted(child.data.tags["collocation.result"] for child in children) == ["failed", "ok"]
