"""Studies that go on, that stop at their goal, and groups that are measured again."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
import subprocess
import time
import venv
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pipeline.base.domain.records import Result
from pipeline.base.domain.tags import Tag, stored_name
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.record.shards.overview import read_overview
from pipeline.report.read import rows
from tests.support.programs import commit_all
from tests.support.run_cases import SHORT, TOY, groups

pytestmark = pytest.mark.covers("pipeline/record/resume.py", "pipeline/study")


# Nine epochs of 0.1 s: in as many seconds a busy machine may not do a step.
WORK = ["window=work", "window.epochs=9", *SHORT[2:]]
STUDY = ["-m", *TOY, *WORK, "degree=2", "repeats=2", "listeners.host.interval_ms=200"]
BLOCK = ["-m", *TOY, *SHORT]
# Of a run, what no two starts share, and the flag, which says how evenly this machine let the jobs run.
PASSING = ("study", "spool_id", "command_line", "first_losses", "rates", "pid", "flag")


def read_facts(run):
    """What a run must share with the same run of another study: everything but times, ids and measured values."""
    tags = {key: value for key, value in run.data.tags.items() if key.startswith("collocation.")}
    values = {
        key: value
        for key, value in tags.items()
        if key.removeprefix("collocation.") not in PASSING and not key.endswith("_ns")
    }
    metrics = sorted(key for key in run.data.metrics if not key.startswith("system/"))
    return run.info.run_name, run.info.status, values, run.data.params, metrics


def list_findings(client, experiment):
    """The findings of a study, and what its jobs say."""
    stored = [
        (*read_facts(run), sorted((read_facts(child) for child in children), key=str))
        for run, children in groups(client, experiment)
        if Result(run.data.tags["collocation.result"]).is_finding
    ]
    return sorted(stored, key=str)


def kill_after(process, num_groups, *, inside):
    """Kill a study after so many groups, before the next begins or while its jobs run; how many it has ended by then.

    On a busy machine these may be more.
    """
    assert process.stderr is not None
    ended = 0
    for line in process.stderr:
        ended += line.startswith("    ok")
        if ended == num_groups and (not inside or line.startswith(f"[{num_groups + 1}/")):
            break
    if inside:
        time.sleep(0.3)  # its jobs start, or are in their window
    process.kill()
    _, rest = process.communicate(timeout=300)
    return ended + len(re.findall("^    ok", rest, re.MULTILINE))


@pytest.mark.slow
def test_a_killed_and_resumed_study_has_the_rows_of_an_uninterrupted_one(start, run, client):
    assert run(*STUDY, "tracking.experiment=whole")[0] == 0
    cut = [*STUDY, "tracking.experiment=cut", "resume=true"]
    ended = kill_after(start(*cut), 1, inside=True)
    ended += kill_after(start(*cut), 1, inside=False)
    status, out, err = run(*cut)
    assert status == 0, err
    assert ended >= 2 and f"resume: {ended} of 4 groups are finished" in err
    assert ended == 4 or ("[4/4] block 2 of 2" in err and "; 4 ok)" in err)
    assert list_findings(client, "cut") == list_findings(client, "whole")
    assert len(list_findings(client, "whole")) == 4
    in_table = [line.split()[:-1] for line in out.splitlines() if re.match("(naive-2x|serial-1x)-toy ", line)]
    assert [[word for word in words if word == "2"] for words in in_table] == [["2"], ["2"]]  # blocks
    # The gain is taken from the blocks of both starts.
    assert re.search(r"2 x toy.*, naive: .*\(2 blocks\)", out)
    assert re.search(r"to settle what is open: .* repeats=5 resume=true$", out, re.MULTILINE)


@pytest.mark.slow
def test_after_a_reboot_the_block_that_was_begun_starts_again(start, run, client, tmp_path):
    (tmp_path / "boot_id").write_text("another-boot\n")
    kill_after(start(*STUDY), 3, inside=True)
    process = start(*STUDY, "resume=true", script=PROJECT_DIR / "tests/support/rebooted.py")
    _, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    assert "resume: 2 of 4 groups are finished" in err
    boots = {}
    for group, _ in groups(client):
        if group.data.tags["collocation.result"] == "ok":
            boots.setdefault(group.data.tags["collocation.block"], []).append(group.data.tags["collocation.boot_id"])
    assert [boot == "another-boot" for boot in boots["1"]] == [False, False]
    assert [boot == "another-boot" for boot in boots["2"]] == [False, True, True]


@pytest.mark.slow
def test_results_of_another_plan_stay_are_not_used_and_are_counted(run, client):
    assert run(*BLOCK, "degree=2")[0] == 0
    status, _, err = run(*BLOCK, "degree=2,3", "resume=true")
    assert status == 0, err
    assert "resume: 2 of 3 groups are finished" in err
    assert "another plan" not in err
    before = [group.to_dictionary() for group, _ in groups(client)]
    status, _, err = run(*BLOCK, "degree=2", "seed=1", "resume=true")
    assert status == 0, err
    assert "resume: 0 of 2 groups are finished" in err
    assert "3 results of another plan" in err and "'collocation'" in err
    assert [group.to_dictionary() for group, _ in groups(client)][:3] == before


@pytest.mark.slow
def test_a_study_that_was_cut_prints_the_command_that_goes_on(run, client, tmp_path):
    status, _, err = run(*STUDY, "time_limit_s=0.1")
    assert status == 1
    (line,) = [line for line in err.splitlines() if "; to run them: " in line]
    what, _, command = line.partition("; to run them: ")
    assert what == "4 groups: 3 not finished"
    words = shlex.split(command)
    assert words[1:3] == [str(PROJECT_DIR / "run.py"), "-m"] and words[-1] == "resume=true"
    assert words.count("resume=true") == 1
    before = sorted(tmp_path.rglob("*"))
    done = subprocess.run([*words, "dry_run=true"], cwd=tmp_path, capture_output=True, timeout=600, text=True)
    assert done.returncode == 0 and "resume: 1 of 4 groups are finished" in done.stderr
    out = done.stdout
    assert out.startswith("3 groups on ") and out.count("-2x-toy") + out.count("-1x-toy") == 3
    assert sorted(tmp_path.rglob("*")) == before
    assert run(*words[2:], "time_limit_s=null")[0] == 0
    assert len(groups(client)) == 4


@pytest.mark.slow
def test_after_ctrl_c_the_command_that_goes_on_is_printed(start):
    process = start(*STUDY)
    before = ""
    for line in process.stderr:
        before += line
        if line.startswith("[2/4]"):
            break
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 130
    num_remaining = 4 - len(re.findall("^    ok", before + err, re.MULTILINE))
    assert f"4 groups: {num_remaining} not finished; to run them: " in err and "resume=true" in err


@pytest.mark.slow
def test_what_has_changed_since_a_result_is_said_by_file_and_package(run, client, tmp_path):
    def install(version):
        (site,) = (tmp_path / "env").glob("lib/python*/site-packages")
        for old in site.glob("tiny-*"):
            shutil.rmtree(old)
        info = site / f"tiny-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: tiny\nVersion: {version}\n")

    venv.create(tmp_path / "env", symlinks=True)
    install("1.0")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/train.py").write_text("import model\nprint(model.WIDTH)\n")
    (tmp_path / "mine/model.py").write_text("WIDTH = 1\n")
    commit = commit_all(tmp_path / "mine")
    (tmp_path / "mine/model.py").write_text("WIDTH = 2\n")
    study = ["workload=script", "workload.script=mine/train.py", "env=existing", f"env.prefix={tmp_path}/env"]
    study += ["degree=1", "baseline=never", "listeners=[host]"]
    status, _, err = run(*study)
    assert status == 0, err
    ((group, (job,)),) = groups(client)
    for tags in (group.data.tags, job.data.tags):
        assert (tags["mlflow.source.git.commit"], tags["collocation.program_changed"]) == (commit, "true")
    diff = Path(client.download_artifacts(group.info.run_id, "uncommitted.diff")).read_text()
    assert "-WIDTH = 1\n+WIDTH = 2\n" in diff

    install("2.0")
    _, _, err = run(*study, "resume=true", "dry_run=true")
    assert "resume: 0 of 1 groups are finished" in err
    assert "1 result of another plan in experiment 'collocation' not used" in err
    assert ": packages: tiny==1.0 now tiny==2.0\n" in err and "model.py" not in err
    assert "resume=accept_environment uses it" in err
    status, _, err = run(*study, "resume=accept_environment")
    assert (status, len(groups(client))) == (0, 1) and "resume: 1 of 1 groups are finished" in err

    (tmp_path / "mine/model.py").write_text("WIDTH = 3\n")
    _, _, err = run(*study, "resume=accept_environment", "dry_run=true")
    assert "resume: 0 of 1 groups are finished" in err
    assert ": the content of model.py has changed\n" in err and "uses it" not in err
    _, _, err = run(*study, "resume=maybe")
    assert "resume=maybe must be one of false, true, accept_environment" in err


AUTOMATIC = [*TOY, *SHORT, "listeners=[]", "degree=2", "repeats=auto"]


def count_blocks(root):
    """The blocks of a study that status and report take for complete."""
    progress, study = read_overview(root, "collocation"), rows.read([root], "collocation")
    assert progress.is_done and len(study.rows) == study.num_planned == 2 * len(progress.shards)
    return len(progress.shards)


@pytest.mark.slow
def test_a_study_stops_at_its_goal_is_complete_and_goes_on_for_a_narrower_one(run, tmp_path):
    status, _, err = run(*AUTOMATIC, "precision_goal_pct=100")
    assert status == 0, err
    (stopped,) = re.findall("stopped after (.*) blocks: the goal is reached, 1 speed-up is known within 100 %", err)
    ended = int(stopped)  # blocks in which this machine was too busy for a valid row do not count
    assert 5 <= ended == count_blocks(tmp_path / "mlruns")
    assert f"[{2 * ended}/40] block {ended} of at most 20" in err and f"[{2 * ended + 1}/40]" not in err
    assert "not finished" not in err

    status, _, err = run(*AUTOMATIC, "precision_goal_pct=100", "resume=true")
    assert status == 0, err
    assert f"resume: {2 * ended} of 40 groups are finished" in err and "] block" not in err
    assert "the stored blocks reach the goal of 100 %" in err and f"stopped after {ended} blocks" in err

    narrower = [*AUTOMATIC, "precision_goal_pct=0.0001", f"repeats_max={ended + 1}", "resume=true"]
    status, _, err = run(*narrower, "time_limit_s=0.000001")
    assert status == 1
    assert f"{2 * ended + 2} groups: at most 2 not finished; to run them:" in err

    status, _, err = run(*narrower)
    assert status == 0, err
    assert f"block {ended + 1} of at most {ended + 1}" in err
    assert f"out of reach within repeats_max={ended + 1}: 2 toy, naive:" in err
    assert "1 of 1 speed-up is not known within 0.0001 %: 2 toy, naive:" in err
    assert count_blocks(tmp_path / "mlruns") == ended + 1


if TYPE_CHECKING:
    from mlflow import MlflowClient
SCRIPT = "import json, sys\nprint(sys.argv[1])\n"


def read_digest(run: Any) -> str:
    return str(run.data.tags[stored_name(Tag.DIGEST)])


def read_contents(client: MlflowClient, experiment: str) -> list[object]:
    """Everything that the store holds of an experiment."""
    return [run.to_dictionary() for parent, children in groups(client, experiment) for run in (parent, *children)]


@pytest.mark.slow
def test_a_baseline_of_a_sweep_is_run_again_beside_its_original(run, client):
    assert run("-m", *TOY, *SHORT, "degree=2", "repeats=2", "seed=7")[0] == 0
    before = read_contents(client, "collocation")
    original, (job,) = next(
        (parent, children)
        for parent, children in groups(client)
        if parent.info.run_name == "serial-1x-toy" and parent.data.params["block"] == "2"
    )
    status, out, err = run(f"reproduce={job.info.run_id}", "dry_run=true")
    assert status == 0, err
    assert "serial-1x-toy" in out and "block 2" in out and f"({original.info.run_id})" in err
    assert client.get_experiment_by_name("collocation-reproductions") is None

    status, out, err = run(f"reproduce={job.info.run_id}", "listeners=[host]")
    assert status == 0, err
    ((again, (same_job,)),) = groups(client, "collocation-reproductions")
    files = [Path(client.download_artifacts(run.info.run_id, "job.json")) for run in (job, same_job)]
    assert [json.loads(spec.read_text())["block"] for spec in files] == [2, 2]
    assert again.data.tags["collocation.reproduces"] == original.info.run_id
    assert read_digest(again) == read_digest(original)
    assert again.data.params == original.data.params
    assert read_contents(client, "collocation") == before
    (line,) = [line.split() for line in out.splitlines() if line.startswith("throughput_total_samples_per_s")]
    then, now = (run.data.metrics["throughput_total_samples_per_s"] for run in (original, again))
    assert [float(figure) for figure in line[1:]] == [
        pytest.approx(then, rel=1e-3),
        pytest.approx(now, rel=1e-3),
        pytest.approx(now / then, abs=1e-3),
    ]


@pytest.mark.slow
def test_a_group_of_a_study_with_only_some_of_its_groups_is_planned_again(run, client):
    only = 'only=["naive-1x-toy-environ.A=2"]'
    status, _, err = run("-m", *TOY, *SHORT, "degree=1", "baseline=never", "workload.environ.A=1,2", only)
    assert status == 0, err
    ((original, _),) = groups(client)
    status, _, err = run(f"reproduce={original.info.run_id}", "dry_run=true")
    assert status == 0, err


@pytest.mark.torch
@pytest.mark.slow
def test_what_is_not_as_it_was_is_said_before_it_runs_or_refused(run, client, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    assert run("workload=script", "workload.script=train.py", "workload.args=[hello]", "degree=1")[0] == 0
    ((original, _),) = groups(client)
    (file,) = tmp_path.glob(f"mlruns/artifacts/*/{original.info.run_id}/artifacts/record.json")
    record = json.loads(file.read_text())
    record["device"], record["facts"]["git_commit"] = "NVIDIA A100-SXM4-40GB", "0123456789"
    file.write_text(json.dumps(record))
    script.write_text(SCRIPT + "# changed\n")
    # The lock lies with the job's run.
    (locks,) = tmp_path.glob("mlruns/artifacts/**/environment.txt")
    text = locks.read_text()
    torch = next(line for line in text.splitlines() if line.startswith("torch=="))
    locks.write_text(text.replace(torch + "\n", "torch==1.0\n"))

    before = sorted(tmp_path.rglob("*"))
    status, _, err = run(f"reproduce={original.info.run_id}", "reproduce_strict=true")
    assert status == 2
    for words in (
        "device: NVIDIA A100-SXM4-40GB, now",
        "git commit: 0123456789, now",
        "the content of train.py has changed; the original is artifact script-train.py",
        f"packages: torch==1.0 now {torch}",
    ):
        assert words in err
    assert [path for path in sorted(tmp_path.rglob("*")) if "spool" not in path.parts] == before

    status, out, err = run(f"reproduce={original.info.run_id}")
    assert status == 0, err
    assert err.index("differs: git commit") < err.index("[1/1]")
    assert "makespan_s" in out


@pytest.mark.slow
def test_two_scripts_of_one_name_are_both_kept_and_told_apart(run, client, tmp_path):
    for folder in "ab":
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "train.py").write_text(f"print({folder!r})\n")
    sizes = [(size, f"{folder}/train.py") for size, folder in (("S", "a"), ("M", "b"))]
    overrides = [
        word for size, path in sizes for word in (f"workload@sizes.{size}=script", f"sizes.{size}.script={path}")
    ]
    assert run(*overrides, "mix=[S,M]", "scenario=naive", "baseline=never")[0] == 0
    ((original, _),) = groups(client)
    scripts = {file.path for file in client.list_artifacts(original.info.run_id) if file.path.startswith("script-")}
    assert scripts == {"script-0-train.py", "script-1-train.py"}

    again = [f"reproduce={original.info.run_id}", "dry_run=true"]
    _, _, err = run(*again)
    assert "train.py" not in err
    (config,) = tmp_path.glob("mlruns/artifacts/**/config.yaml")
    content = config.read_bytes()
    for damaged in (b"\xff\x00" + content, b"- 3", b"workload: 3", b"{", content.replace(b"script", b"scrip"), b""):
        config.write_bytes(damaged)
        status, _, err = run(*again)
        assert status == 2 and "Traceback" not in err
        assert "is damaged" in err or "cannot be reproduced by this version" in err or "has no schema with" in err
    config.write_bytes(content)
    (tmp_path / "b/train.py").write_text("print('c')\n")
    _, _, err = run(*again)
    assert err.count("the content of train.py has changed") == 1
    assert "the content of train.py has changed; the original is artifact script-1-train.py" in err


@pytest.mark.slow
def test_a_secret_reaches_the_program_and_no_file_and_is_given_again(run, client, tmp_path):
    (tmp_path / "train.py").write_text(
        "import os, sys\nassert [os.environ['HF_TOKEN'][::-1], sys.argv[2][::-1]] == ['terc3s'] * 2\n"
    )
    secrets = ["workload.environ.HF_TOKEN=s3cret", "workload.args=[--password,s3cret,s3cret,--lr,1]"]
    assert run("workload=script", "workload.script=train.py", *secrets, "degree=1")[0] == 0
    ((original, _),) = groups(client)
    assert original.data.params["args"] == "--password '<hidden>' '<hidden>' --lr 1"
    # By another process: one that closes a file of sqlite loses the locks of its own connections to it.
    assert subprocess.run(["grep", "-r", "s3cret", tmp_path], capture_output=True).stdout == b""

    again = f"reproduce={original.info.run_id}"
    status, _, err = run(again, secrets[0])
    assert status == 2 and "pass them again: workload.args=..." in err and "HF_TOKEN" not in err
    status, _, err = run(again, secrets[0], "workload.args=[--password,s3cret,s3cret,--lr,2]")
    assert status == 2 and "workload.args may differ from the original only in its secrets" in err
    status, _, err = run(again, *secrets)
    assert status == 0, err
    ((second, _),) = groups(client, "collocation-reproductions")
    assert read_digest(second) == read_digest(original)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["reproduce=absent"], "run absent is not in"),
        (["reproduce=absent", "degree=3"], "cannot change degree;"),
        (["-m", "reproduce=absent", "degree=1,2"], "remove -m"),
        (["reproduce=absent", "tracking.root=nowhere"], "contains no store"),
        (["reproduce=absent", "tracking=server", "tracking.uri=http://127.0.0.1:1"], "gave no valid reply"),
    ],
)
def test_what_cannot_be_reproduced_is_refused_before_anything_is_touched(run, tmp_path, arguments, words):
    before = sorted(tmp_path.rglob("*"))
    status, _, err = run(*arguments)
    assert status == 2, err
    assert words in err and "Traceback" not in err
    assert sorted(tmp_path.rglob("*")) == before
