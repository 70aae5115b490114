"""Jobs in environments and images of their own, as a user starts them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path

import pytest

from pipeline.base.system.paths import PROJECT_DIR
from tests.support.container_programs import write_apptainer, write_image
from tests.support.packages import Channel, wheel
from tests.support.run_cases import SHORT, TOY, groups
from tests.support.studies import Study

pytestmark = pytest.mark.covers("pipeline/prepare/env", "pipeline/launch")

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
        return program.run(*arguments, *list_cache(tmp_path, arguments), **options)

    return run_in


def list_cache(folder: Path, arguments: Sequence[str]) -> list[str]:
    is_built = {"env=conda", "env=venv"} & set(arguments)
    return [f"env.cache_root={folder}/cache"] if is_built else []


@pytest.fixture
def begin(study_of, tmp_path) -> Callable[..., Study]:
    """The same in this process, without a store."""
    (tmp_path / "train.py").write_text(SCRIPT)

    def begin_here(*arguments: str) -> Study:
        return study_of(*arguments, "listeners=[host]", *list_cache(tmp_path, arguments))

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


IMAGE_SCRIPT = """
import json, os, sys
if "--fail" in sys.argv:
    raise RuntimeError("no such layer")
json.dump({"cwd": os.getcwd(), "home": os.environ.get("PYTHONNOUSERSITE"), "path": os.environ["PATH"]}, sys.stdout)
"""


@pytest.fixture
def begin_in_image(study_of, tmp_path, monkeypatch) -> Callable[..., Study]:
    """Run a study with an image whose text is the PATH in it."""
    programs, image = tmp_path / "programs", tmp_path / "train.sif"
    programs.mkdir()
    write_apptainer(programs)
    write_image(image)
    (tmp_path / "train.py").write_text(IMAGE_SCRIPT)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")

    def begin_here(*arguments: str) -> Study:
        return study_of("listeners=[host]", "env=apptainer", "env.image=train.sif", "env.python=python", *arguments)

    return begin_here


def test_an_unmodified_script_runs_in_an_image(begin_in_image, tmp_path):
    done = begin_in_image("workload=script", "workload.script=train.py", "degree=2")
    assert done.status == 0, done.err
    for job in done.jobs:
        printed = json.loads((job.folder / "stdout.log").read_text())
        assert printed == {"cwd": str(tmp_path), "home": "1", "path": (tmp_path / "train.sif").read_text().strip()}
    lines = (done.jobs[0].folder / "environment.txt").read_text().splitlines()
    assert lines[0] == "# environment lock: container" and lines[3].startswith("# image: train.sif sha256:")
    assert done.jobs[0].data.params["env"] == "container"


@pytest.mark.slow
def test_a_script_in_its_own_folder_runs_there_in_an_image(begin_in_image):
    done = begin_in_image("workload=script", "workload.script=train.py", "workload.run_in=job_folder", "degree=1")
    (job,) = done.jobs
    assert json.loads((job.folder / "stdout.log").read_text())["cwd"].endswith("-naive-1x-train/jobs/0/output")


@pytest.mark.slow
def test_jobs_of_the_protocol_are_released_at_one_instant_in_their_images(begin_in_image):
    done = begin_in_image(*TOY, *SHORT, "baseline=never", "degree=2")
    assert done.status == 0 and "; 1 ok)" in done.err, done.err
    ((group, _),) = done.groups
    assert group.data.metrics["throughput_total_samples_per_s"] > 0
    assert group.data.metrics["overlap_ratio"] > 0.9


@pytest.mark.slow
def test_a_container_that_clears_the_jobs_variables_is_named(begin_in_image):
    command = "env.command=[env,-u,COLLOCATION_JOB,apptainer,exec,--nv,'{binds}',--pwd,'{cwd}','{image}']"
    done = begin_in_image("workload=script", "workload.script=train.py", "degree=1", command)
    assert done.status == 1 and "env may hide the job's variables: remove options such as --cleanenv" in done.err, (
        done.err
    )


@pytest.mark.slow
def test_a_script_that_fails_in_an_image_has_its_own_error(begin_in_image):
    done = begin_in_image("workload=script", "workload.script=train.py", "workload.args=[--fail]", "degree=1")
    assert done.status == 1 and "RuntimeError: no such layer" in done.err


def test_another_image_is_another_environment(begin_in_image, tmp_path):
    digests = []
    for comment in ("", "another layer\n"):
        with (tmp_path / "train.sif").open("a") as file:
            file.write(comment)
        done = begin_in_image("workload=script", "workload.script=train.py", "degree=1")
        digests.append(done.jobs[0].data.params["environment_digest"])
    assert len(set(digests)) == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["env.image=null"], "this env names no image; set env.image=FILE.sif"),
        (["env.image=other.sif"], "other.sif is not a file; make one with: apptainer build FILE SOURCE"),
        (["env.image=docker://python"], "is an address; make a file with: apptainer build FILE docker://python"),
        (["env.command=[]"], "env.command is empty; leave it out for apptainer"),
        (["env.command=[apptainer,exec]"], "env.command has no '{image}'; add this word"),
        (["env.command=[apptainer,'{folder}','{image}']"], "env.command: '{folder}' is unknown; use '{image}'"),
        (["env.command=[apptainer,'-B={binds}','{image}']"], "make '{binds}' a word of its own"),
        (["env.bind=[--bind]"], "env.bind has no '{folder}'; add this word"),
        (
            ["env.command=[ship,exec,'{image}']"],
            "env.command: ship is not on PATH; install the program, or load its module",
        ),
        (["env.python=python9"], "python9 cannot run jobs in it"),
        (["env.command=[sh,-c,'echo a >&2; echo b >&2; exit 9','{image}']"], "status 9: a b; check that env.command"),
        (["workload.env_prefix=/opt"], "env_prefix=/opt has no effect with this env; choose env=existing"),
    ],
)
def test_an_image_that_cannot_run_jobs_is_refused(begin_in_image, arguments, words):
    done = begin_in_image("workload=script", "workload.script=train.py", "dry_run=true", *arguments)
    assert done.status == 2 and words in done.err


@pytest.mark.slow
def test_jobs_in_images_do_not_share_a_process(begin_in_image):
    done = begin_in_image("workload=tiny", "scenario=streams", "degree=2", "dry_run=true")
    assert (
        done.status == 2
        and "workload tiny cannot share a process, because its container is that of one job" in done.err
    )


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("ch-run") is None or shutil.which("mksquashfs") is None, reason="needs charliecloud and squashfs-tools"
)
def test_jobs_run_in_an_image_of_charliecloud(study_of, tmp_path, monkeypatch):
    """The image has the folders of this machine's Python and of the project as empty folders to bind to."""
    shared = [Path("/usr"), Path("/tmp"), Path(sys.base_prefix), PROJECT_DIR, Path(sys.prefix)]
    if not tmp_path.is_relative_to("/tmp") and not tmp_path.is_relative_to("/dev"):
        shared.append(tmp_path)
    for folder in map(Path, (*shared, "/etc", "/dev", "/proc", "/sys", "/tmp", "/root", "/home", "/run", "/var/tmp")):
        (tmp_path / "root" / folder.relative_to("/")).mkdir(parents=True, exist_ok=True)
    for name in ("bin", "lib", "lib64"):
        (tmp_path / "root" / name).symlink_to(f"usr/{name}")
    for name in ("passwd", "group", "hosts", "resolv.conf"):
        (tmp_path / "root/etc" / name).touch()
    subprocess.run(["mksquashfs", "root", "train.sqfs", "-quiet", "-no-progress"], cwd=tmp_path, check=True)
    monkeypatch.setenv("USER", "user")
    (tmp_path / "train.py").write_text("import os; print(*sorted(os.listdir('/')))")
    binds = ",".join(f"'--bind={folder}:{folder}'" for folder in dict.fromkeys(shared))
    # Charliecloud binds /dev, and $TMPDIR as /tmp, and makes no mount points below them.
    command = f"env.command=['ch-run',{binds},'--cd={{cwd}}','{{image}}','--']"
    images = ["env=apptainer", "env.image=train.sqfs", command]
    images += [f"env.python={sys.executable}", "listeners=[host]"]
    done = study_of("workload=script", "workload.script=train.py", "degree=2", *images)
    assert done.status == 0, done.err
    inside = (tmp_path / "root").iterdir()
    assert (done.jobs[0].folder / "stdout.log").read_text().split() == sorted(folder.name for folder in inside)
    done = study_of(*TOY, *SHORT, "baseline=never", "degree=2", *images)
    assert done.status == 0 and "; 1 ok)" in done.err, done.err
