"""`reproduce=RUN` as a user types it: the same group again, what is not as it was, and the two side by side."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pipeline.base.domain.tags import Tag, stored_name
from tests.support.run_cases import SHORT, TOY, groups

if TYPE_CHECKING:
    from mlflow import MlflowClient

pytest_plugins = ["tests.support.tracking_fixtures", "tests.support.run_fixtures"]
pytestmark = pytest.mark.covers("pipeline/study/reproduce")

SCRIPT = "import json, sys\nprint(sys.argv[1])\n"


def digest_of(run: Any) -> str:
    return str(run.data.tags[stored_name(Tag.DIGEST)])


def contents(client: MlflowClient, experiment: str) -> list[object]:
    """Everything that the store holds of an experiment."""
    return [run.to_dictionary() for parent, children in groups(client, experiment) for run in (parent, *children)]


@pytest.mark.slow
def test_a_baseline_of_a_sweep_is_run_again_beside_its_original(run, client):
    assert run("-m", *TOY, *SHORT, "degree=2", "repeats=2", "seed=7")[0] == 0
    before = contents(client, "collocation")
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
    assert digest_of(again) == digest_of(original)
    assert again.data.params == original.data.params
    assert contents(client, "collocation") == before
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
    assert digest_of(second) == digest_of(original)


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
