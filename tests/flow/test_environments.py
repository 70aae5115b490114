"""Jobs in environments of their own, as a user starts them: `python run.py env=conda env.file=environment.yml`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path

import pytest

from tests.support.packages import Channel, wheel
from tests.support.run_cases import SHORT, TOY, groups
from tests.support.studies import Study

pytest_plugins = ["tests.support.tracking_fixtures", "tests.support.run_fixtures"]
pytestmark = pytest.mark.covers("pipeline/prepare/env")
for name in ("rattler", "uv"):
    pytest.importorskip(name)

# `rich` is installed where the orchestrator runs, in a version that no channel of the tests has.
SCRIPT = """
import json, sys
from importlib import metadata, util
import rich
json.dump({"rich": rich.VERSION, "prefix": sys.prefix, "mlflow": util.find_spec("mlflow") is not None,
           "project": util.find_spec("pipeline") is not None}, sys.stdout)
"""


@pytest.fixture
def channel(tmp_path: Path) -> Channel:
    channel = Channel(tmp_path / "channel")
    for version in ("0.1", "0.2"):
        channel.add_module("rich", version)
    return channel


@pytest.fixture
def run(program, tmp_path) -> Callable[..., tuple[int, str, str]]:
    """Run run.py to its end; what it builds is in a folder of the test."""
    (tmp_path / "train.py").write_text(SCRIPT)
    program.last = [f"gpu.lock_dir={tmp_path}", "gpu=cpu", "listeners=[host]"]

    def run_in(*arguments: str, **options: bool) -> tuple[int, str, str]:
        return program.run(*arguments, *cache_in(tmp_path, arguments), **options)

    return run_in


def cache_in(folder: Path, arguments: Sequence[str]) -> list[str]:
    is_built = {"env=conda", "env=venv"} & set(arguments)
    return [f"env.cache_root={folder}/cache"] if is_built else []


@pytest.fixture
def begin(study_of, tmp_path) -> Callable[..., Study]:
    """The same in this process, without a store."""
    (tmp_path / "train.py").write_text(SCRIPT)

    def begin_here(*arguments: str) -> Study:
        return study_of(*arguments, "listeners=[host]", *cache_in(tmp_path, arguments))

    return begin_here


@pytest.fixture
def jobs(client) -> Callable[..., list[tuple[dict[str, str], dict[str, str]]]]:
    """The runs of the jobs: their params, and their artifacts by name."""

    def read(name: str = "collocation") -> list[tuple[dict[str, str], dict[str, str]]]:
        rows = []
        for _, children in groups(client, name):
            for run in sorted(children, key=lambda run: run.data.tags["collocation.index"]):
                folder = Path(client.download_artifacts(run.info.run_id, ""))
                rows.append((run.data.params, {path.name: path.read_text() for path in folder.glob("*.*")}))
        return rows

    return read


def printed(artifacts: dict[str, str]) -> dict[str, object]:
    return json.loads(artifacts["stdout.log"])


@pytest.mark.slow
def test_a_script_in_a_conda_environment_runs_with_its_packages_and_not_the_orchestrators(run, jobs, channel, tmp_path):
    channel.environment_yml(tmp_path / "environment.yml", "rich=0.1")
    arguments = ["workload=script", "workload.script=train.py", "env=conda", "env.file=environment.yml", "degree=1"]
    status, _, err = run(*arguments, is_real=True)
    assert status == 0, err
    assert "conda environment of" in err and "is not built yet; py-rattler builds it" in err
    ((params, artifacts),) = jobs()
    report = printed(artifacts)
    assert report["rich"] == "0.1" != metadata.version("rich")
    assert not report["mlflow"] and not report["project"]
    assert Path(str(report["prefix"])).is_relative_to(tmp_path / "cache")
    lock = artifacts["environment.txt"]
    assert "# rich 0.1 0\n" in lock and "@EXPLICIT\n" in lock
    assert len(params["environment_digest"]) == 64
    # From the lock that the run keeps, the same environment is built again: the same digest, so the same group.
    channel.add_module("rich", "0.9")
    (tmp_path / "environment.txt").write_text(lock)
    status, _, err = run(*arguments[:3], "env.file=environment.txt", "degree=1", "resume=true")
    assert status == 0 and "1 of 1 groups are finished" in err


@pytest.mark.slow
def test_both_jobs_of_a_group_have_an_environment_of_their_own(run, jobs, channel, tmp_path):
    for size, version in (("S", "0.1"), ("M", "0.2")):
        channel.environment_yml(tmp_path / f"{size}.yml", f"rich={version}")
    sizes = [f"workload@sizes.{size}=script" for size in "SM"]
    files = [f"sizes.{size}.{key}" for size in "SM" for key in ("script=train.py", f"env_file={size}.yml")]
    status, _, err = run(*sizes, *files, "mix=[S,M]", "scenario=naive", "env=conda", "baseline=never")
    assert status == 0, err
    (small, of_small), (medium, of_medium) = jobs()
    assert (printed(of_small)["rich"], printed(of_medium)["rich"]) == ("0.1", "0.2")
    assert "# rich 0.1 0\n" in of_small["environment.txt"] and "# rich 0.2 0\n" in of_medium["environment.txt"]
    assert small["environment_digest"] != medium["environment_digest"]


@pytest.mark.slow
def test_a_reproduction_builds_each_environment_from_the_lock_of_its_original(run, client, jobs, channel, tmp_path):
    for size, version in (("S", "0.1"), ("M", "0.2")):
        channel.environment_yml(tmp_path / f"{size}.yml", f"rich={version}")
    sizes = [f"workload@sizes.{size}=script" for size in "SM"]
    files = [f"sizes.{size}.{key}" for size in "SM" for key in ("script=train.py", f"env_file={size}.yml")]
    assert run(*sizes, *files, "mix=[M,S]", "scenario=naive", "env=conda", "baseline=never")[0] == 0
    ((original, _),) = groups(client)
    assert original.info.run_name == "naive-M+S"
    before = jobs()
    # Neither the files nor the cache are there any more, and the channel has something newer.
    for size in "SM":
        (tmp_path / f"{size}.yml").unlink()
    shutil.rmtree(tmp_path / "cache")
    channel.add_module("rich", "0.9")
    status, _, err = run(f"reproduce={original.info.run_id}")
    assert status == 0, err
    assert "is not built yet" in err
    assert "differs: packages" not in err and "differs: the plan" not in err
    after = jobs("collocation-reproductions")
    assert [printed(files)["rich"] for _, files in after] == ["0.2", "0.1"]
    assert [params["environment_digest"] for params, _ in after] == [p["environment_digest"] for p, _ in before]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["conda", "venv"])
def test_a_job_of_the_protocol_runs_where_neither_mlflow_nor_the_project_is(begin, channel, tmp_path, kind):
    channel.environment_yml(tmp_path / "conda.yml")
    (tmp_path / "venv.txt").write_text("--no-index\n")
    file = "conda.yml" if kind == "conda" else "venv.txt"
    done = begin(*TOY, "baseline=never", *SHORT, "degree=2", f"env={kind}", f"env.file={file}")
    assert done.status == 0 and "; 1 ok)" in done.err, done.err
    assert done.err.count("is not built yet") == 1
    locks = [(job.folder / "environment.txt").read_text() for job in done.jobs]
    assert len(locks) == 2 and all(f"# environment lock: {kind}\n" in lock for lock in locks)


def test_a_script_in_a_virtual_environment_runs_with_its_packages(begin, tmp_path):
    wheel(tmp_path / "wheels", "rich", "0.3")
    (tmp_path / "requirements.txt").write_text("--no-index\n--find-links wheels\nrich\n")
    script = ["workload=script", "workload.script=train.py", "degree=1"]
    done = begin(*script, "env=venv", "env.file=requirements.txt")
    assert done.status == 0, done.err
    (job,) = done.jobs
    report = json.loads((job.folder / "stdout.log").read_text())
    assert report["rich"] == "0.3" and not report["mlflow"]
    assert "rich==0.3\n" in (job.folder / "environment.txt").read_text()


# A kind that nothing else knows: a class, and a YAML whose keys are its arguments.
KIND = """
import dataclasses
from pipeline.prepare.env.current import CurrentEnv
class PaintedEnv(CurrentEnv):
    def __init__(self, colours):
        self.colours = colours
    def preview(self):
        return dataclasses.replace(super().preview(), environ=(("COLOURS", ",".join(self.colours)),))
    resolve = preview
"""


@pytest.mark.slow
def test_a_kind_of_environment_is_a_class_and_a_yaml_and_can_be_reproduced(run, client, jobs, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "painted.py").write_text(KIND)
    (tmp_path / "conf/env").mkdir(parents=True)
    (tmp_path / "conf/env/painted.yaml").write_text("_target_: painted.PaintedEnv\ncolours: [blue]\n")
    kinds = f"--config-dir={tmp_path}/conf"
    script = [kinds, "workload=script", "workload.script=train.py", "degree=1"]
    (tmp_path / "train.py").write_text("import os; print(os.environ['COLOURS'])")
    status, _, err = run(*script, "env=painted", "env.colours=[deep,red]")
    assert status == 0, err
    ((original, _),) = groups(client)
    assert run(kinds, f"reproduce={original.info.run_id}")[0] == 0
    rows = [*jobs(), *jobs("collocation-reproductions")]
    assert [files["stdout.log"] for _, files in rows] == ["deep,red\n"] * 2
    status, _, err = run(*script, "env=painted", "+env.size=3")
    assert status == 2 and "_target_=painted.PaintedEnv does not accept these arguments" in err
    status, _, err = run(*script, "env=painted", "workload.env_file=painted.py")
    assert status == 2 and "has no effect with this env" in err


def test_the_lock_of_the_orchestrators_own_environment_is_kept_with_each_job(begin):
    done = begin(*TOY, *SHORT, "degree=1")
    assert done.status == 0, done.err
    (job,) = done.jobs
    assert "# environment lock: current\n" in (job.folder / "environment.txt").read_text()
    assert job.data.params["environment_digest"]


def test_a_dry_run_says_what_would_be_built_and_builds_nothing(begin, channel, tmp_path):
    channel.environment_yml(tmp_path / "environment.yml")
    before = sorted(tmp_path.rglob("*"))
    status, out, _ = begin(*TOY, "baseline=never", "env=conda", "env.file=environment.yml", "dry_run=true")
    assert status == 0 and "is not built yet; py-rattler builds it before the study starts" in out
    assert sorted(tmp_path.rglob("*")) == before


def test_a_solve_that_fails_is_one_refusal_and_nothing_was_started(begin, channel, tmp_path):
    channel.environment_yml(tmp_path / "environment.yml", "rich=7")
    status, out, err = begin(*TOY, "baseline=never", "env=conda", "env.file=environment.yml")
    assert status == 2 and out == ""
    assert err.count("error: ") == 1 and "No candidates were found for rich 7" in err and "Traceback" not in err
    assert not (tmp_path / "mlruns/spool").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["env=existing"], "env=existing names no environment"),
        (["env=existing", "env.prefix=wheels"], "the environment has no interpreter"),
        (["workload.env_prefix=wheels"], "choose env=existing"),
        (["env=venv", "env.file=gone.txt"], "gone.txt does not exist"),
        (["workload.env_file=environment.yml"], "choose env=conda or env=venv"),
        (["env=conda", "env.file=environment.yml", "window.seconds=-1"], "window.seconds"),
    ],
)
def test_what_cannot_be_is_refused_before_an_environment_is_built(begin, channel, tmp_path, arguments, words):
    channel.environment_yml(tmp_path / "environment.yml")
    (tmp_path / "wheels").mkdir()
    status, _, err = begin(*TOY, "baseline=never", *arguments)
    assert status == 2 and words in err and "builds it" not in err
    assert not (tmp_path / "cache").exists()
