"""Scripts and text models from the command line to the store: files, figures, failures and secrets."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from pipeline.record.store import results
from tests.conftest import TOYS
from tests.support.programs import commit_all
from tests.support.run_cases import groups

pytestmark = pytest.mark.covers(
    "pipeline/observe/logged_rate.py",
    "pipeline/observe/output_rates.py",
    "pipeline/observe/output_lines.py",
    "pipeline/base/system/secrets.py",
    "workloads",
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


COUNTS = """
import itertools, time
for number in itertools.count():
    time.sleep(0.1)
    print(f"epoch 1, step {number}")
"""
ENDLESS = """
import os, sys, time
open(os.environ["COLLOCATION_OUTPUT_DIR"] + "/checkpoint.pt", "w").close()
while True:
    time.sleep(0.1)
    if len(sys.argv) > 1: print(f"step, {float(sys.argv[1]):.1f} samples/s")
"""


@pytest.fixture
def search(run, tmp_path):
    """A search of one and two copies of a script that never ends."""
    (tmp_path / "endless.py").write_text(ENDLESS)
    fixed = ["+experiment=advise", "degree=2", "repeats=1", "window.logged_s=1", *script("endless")]
    return lambda *words: run(*fixed, *words)


def test_a_search_measures_the_speed_that_an_endless_script_prints(search, client, tmp_path):
    status, out, err = search("workload.args=[7]", "advise_minutes=0.2")
    assert status == 0, err
    assert "endless prints its speed, which is measured without start-up" in err
    assert "run 2 copies side by side (naive): 2.00 times the work an hour" in " ".join(out.split())
    assert len(groups(client, "advise")) == 2
    for row, _ in groups(client, "advise"):
        assert row.data.tags["collocation.rate_pattern"] == "([0-9.]+) samples/s"
        assert row.data.params["window"] == "logged" and "makespan_s" not in row.data.metrics
    assert list(tmp_path.rglob("stdout.log")) and not list(tmp_path.rglob("checkpoint.pt"))
    status, out, err = search("workload.args=[7]", "advise_minutes=0.3", "resume=true")
    assert "resume: 2 of 4 groups are finished" in err and len(groups(client, "advise")) == 2
    assert "2.00 times the work an hour" in out


@pytest.mark.slow
def test_a_later_block_of_a_search_starts_the_most_copies_and_stops_some(run, client, tmp_path):
    (tmp_path / "counts.py").write_text(COUNTS)
    fixed = ["+experiment=advise", "degree=2,4", "repeats=2", "window.logged_s=1", *script("counts")]
    status, out, err = run(*fixed, "advise_minutes=1")
    assert status == 0, err
    assert "counts prints the numbers of its steps, whose rise is measured without start-up" in err
    assert "Measured is the rise of the step numbers that counts prints" in out
    rows = [row.data for row, _ in groups(client, "advise") if row.data.params["block"] == "2"]
    launches = [row.tags.get("collocation.launch") for row in rows]
    assert len(rows) > 1 and launches.count(None) == 1 and len(set(launches)) == 2
    assert all(row.metrics["window_s"] >= 1 and "overlap_ratio" not in row.metrics for row in rows)


def test_a_search_ends_if_a_script_neither_ends_nor_prints_its_speed(search):
    status, out, _ = search("advise_minutes=0.06")
    assert status == 1
    assert "No answer: in " in out and ", the job alone did not end, and printed too few step numbers or speeds." in out
    assert "Shorten its run (fewer steps), add minutes, or let it print lines such as step 120." in out


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
    named = next(line for line in out.splitlines() if "last lines of job" in line)
    path = tmp_path / named.partition("(")[2].rstrip("):")
    assert "no column named loss" in path.read_text()
    for row, children in done.groups:
        assert row.data.tags["collocation.result"] == "failed"
        assert sorted(child.data.tags["collocation.result"] for child in children) == ["failed", "ok"]


SCRIPT = """\
import os, sys
from helper import KEY
API_KEY = "s3cr3t-script"
assert [len(API_KEY), len(KEY["api_key"]), len(os.environ["HF_TOKEN"]), len(sys.argv[2])] == [13, 13, 12, 11]
if "fail" in sys.argv:
    sys.exit(f"no access for {os.environ['HF_TOKEN']}, password={sys.argv[2]}; https://me:s3cr3t-tail@h/x")
"""
SECRETS = (
    *("environ.HF_TOKEN=s3cr3t-token", "environ.URL='https://h/?sig=s3cr3t-sig&v=1'", "flags.db_password=s3cr3t-flag"),
    "environ.DSN='Server=h;Password=s3cr3t-dsn'",
)
WORDS = ("--password", "s3cr3t-word", "-H", "Authorization: Bearer s3cr3t-header", "ghp_" + "s3cr3T" * 6)


@pytest.mark.slow
def test_no_secret_is_in_the_store_nor_said(run, client, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    (tmp_path / "helper.py").write_text('KEY = {"api_key": "s3cr3t-helper"}\n')
    commit_all(tmp_path, "train.py")
    script.write_text(SCRIPT.replace('"s3cr3t-script"', '"s3cr3t-edited"'))
    arguments = ["degree=1", "gpu=cpu", *(f"+workload.{secret}" for secret in SECRETS)]
    status, out, err = run(*arguments, "--", "train.py", *WORDS, "fail")
    assert status == 1
    assert "s3cr3t" not in (out + err).lower()
    assert "no access for <hidden>, password=<hidden>; https://<hidden>@h/x" in out
    assert "to run it: " in err and "(with your own values for <hidden>)" in err
    # By another process: one that closes a file of sqlite loses the locks of its own connections to it.
    store = ["grep", "-rlEi", "--exclude=stderr.log", "s3cr3t", str(tmp_path / "mlruns")]
    assert subprocess.run(store, capture_output=True, text=True).stdout == ""
    ((group, (job,)),) = groups(client)
    assert group.data.tags["collocation.reason"].count("<hidden>") == 3
    assert job.data.params["environ.URL"] == "https://h/?sig=<hidden>&v=1"
    assert job.data.params["environ.DSN"] == "Server=h;Password=<hidden>"


@pytest.mark.slow
def test_a_script_that_was_kept_without_its_secrets_is_not_run(run, client, tmp_path):
    script, code = tmp_path / "train.py", 'password = "s3cr3t-script"\nassert len(password) == 13\n'
    script.write_text(code)
    assert run("degree=1", "--", "train.py")[0] == 0
    ((group, _),) = groups(client)
    again = f"reproduce={group.info.run_id}"
    status, _, err = run(again, "dry_run=true")
    assert status == 0 and f"script-train.py was recorded without its secrets; {script} runs instead" in err
    (stored_script,) = tmp_path.glob("mlruns/artifacts/**/script-train.py")
    assert stored_script.read_text() == code.replace("s3cr3t-script", "<hidden>")
    script.write_text(stored_script.read_text())
    status, _, err = run(again)
    assert status == 2 and err.count("\n") == 1
    assert f"{script} contains <hidden> in place of its secrets" in err
    script.write_text(f"{code}# changed\n")
    status, _, err = run(again, "dry_run=true")
    assert status == 0 and "the original is artifact script-train.py, without its secrets" in err


@pytest.mark.torch
@pytest.mark.slow
def test_text_models_are_measured_in_sequences_and_tokens(run, client, tmp_path):
    small = [
        "workload.sequence_tokens=16",
        "workload.model_args.num_hidden_layers=1",
        f"workload.cache_root={tmp_path}/c",
    ]
    window = ["window.seconds=1", "window.settle_s=0.1", "workload.warmup_steps=1"]
    status, out, err = run("workload=tiny_text", "degree=2", *small, *window)
    assert status == 0, err
    assert "sequences/s" in out and "tokens/s" in out
    by_name = {group.info.run_name: (group, jobs) for group, jobs in groups(client)}
    assert by_name.keys() == {"naive-2x-tiny_text", "serial-1x-tiny_text"}
    group, jobs = by_name["naive-2x-tiny_text"]
    rate = group.data.metrics["throughput_total_sequences_per_s"]
    assert group.data.metrics["throughput_total_tokens_per_s"] == pytest.approx(16 * rate)
    assert group.data.metrics["speedup_vs_serial_ratio"] > 0, "the losses of the first steps are those of the job alone"
    for job in jobs:
        assert 0 < job.data.metrics["accuracy_ratio"] <= 1
        assert job.data.metrics["canary_checked_count"] > 5
        assert (job.data.params["task"], job.data.params["job.tokens_per_sequence"]) == ("classification", "16")
    assert len([path for path in (tmp_path / "c").iterdir() if path.is_dir()]) == 2, "a tokeniser and the tokens"


@pytest.mark.torch
@pytest.mark.slow
def test_training_beside_inference_keeps_what_each_counts(run, tmp_path):
    import pandas as pd

    model = "{layers: [1, 1], channels: [8, 16], stem_chs: 8, stem_type: ''}"
    status, _, err = run(
        *("mix=[T,I]", "+workload@sizes.T=tiny", "+workload@sizes.I=infer_tiny"),
        *(f"sizes.T.model_args={model}", f"sizes.I.model_args={model}", "sizes.T.image_px=8", "sizes.I.image_px=8"),
        *("sizes.I.arrival=poisson", "sizes.I.rate_per_s=200", "sizes.I.objective_ms=1000"),
        *("window.seconds=1", "window.settle_s=0.2", "baseline=never"),
    )
    assert status == 0, err
    rows = results.load(tmp_path / "mlruns", "collocation").set_index("run_id")
    together = rows[rows["group.params.scenario"] == "naive"]
    assert len(together) == 2
    service = together[together["params.work_unit"] == "requests"].iloc[0]
    training = together[together["params.work_unit"] == "samples"].iloc[0]
    assert service["metrics.throughput_requests_per_s"] > 0
    assert service["metrics.goodput_requests_per_s"] > 0
    assert training["metrics.throughput_samples_per_s"] > 0
    assert pd.isna(service["metrics.throughput_samples_per_s"])
    assert service["group.metrics.latency_mean_worst_ms"] == service["metrics.latency_mean_ms"]
    assert not list(Path(tmp_path).rglob("requests.bin"))
    (table,) = Path(tmp_path).rglob("requests.parquet")
    due = pd.read_parquet(table)["intended_ns"]
    assert due.is_monotonic_increasing
    # They were to be sent at the rate that was asked for, whatever a busy machine has answered of them.
    assert len(due) > 100
    assert (len(due) - 1) / ((due.iloc[-1] - due.iloc[0]) / 1e9) == pytest.approx(200, rel=0.3)
