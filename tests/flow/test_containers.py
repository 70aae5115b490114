"""Jobs in images: `env=apptainer`, with a program that plays Apptainer, and with Charliecloud where it is installed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.base.system.paths import PROJECT_DIR
from tests.support.container_programs import write_apptainer, write_image
from tests.support.run_cases import SHORT, TOY
from tests.support.studies import Study

pytest_plugins = ["tests.support.run_fixtures"]
pytestmark = pytest.mark.covers("pipeline/prepare/env", "pipeline/launch")

SCRIPT = """
import json, os, sys
if "--fail" in sys.argv:
    raise RuntimeError("no such layer")
json.dump({"cwd": os.getcwd(), "home": os.environ.get("PYTHONNOUSERSITE"), "path": os.environ["PATH"]}, sys.stdout)
"""


@pytest.fixture
def begin(study_of, tmp_path, monkeypatch) -> Callable[..., Study]:
    """Run a study with an image whose text is the PATH in it."""
    programs, image = tmp_path / "programs", tmp_path / "train.sif"
    programs.mkdir()
    write_apptainer(programs)
    write_image(image)
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")

    def begin_here(*arguments: str) -> Study:
        return study_of("listeners=[host]", "env=apptainer", "env.image=train.sif", "env.python=python", *arguments)

    return begin_here


def test_an_unmodified_script_runs_in_an_image(begin, tmp_path):
    done = begin("workload=script", "workload.script=train.py", "degree=2")
    assert done.status == 0, done.err
    for job in done.jobs:
        printed = json.loads((job.folder / "stdout.log").read_text())
        assert printed == {"cwd": str(tmp_path), "home": "1", "path": (tmp_path / "train.sif").read_text().strip()}
    lines = (done.jobs[0].folder / "environment.txt").read_text().splitlines()
    assert lines[0] == "# environment lock: container" and lines[3].startswith("# image: train.sif sha256:")
    assert done.jobs[0].data.params["env"] == "container"


@pytest.mark.slow
def test_a_script_in_its_own_folder_runs_there_in_an_image(begin):
    done = begin("workload=script", "workload.script=train.py", "workload.run_in=job_folder", "degree=1")
    (job,) = done.jobs
    assert json.loads((job.folder / "stdout.log").read_text())["cwd"].endswith("-naive-1x-train/jobs/0/output")


@pytest.mark.slow
def test_jobs_of_the_protocol_are_released_at_one_instant_in_their_images(begin):
    done = begin(*TOY, *SHORT, "baseline=never", "degree=2")
    assert done.status == 0 and "; 1 ok)" in done.err, done.err
    ((group, _),) = done.groups
    assert group.data.metrics["throughput_total_samples_per_s"] > 0
    assert group.data.metrics["overlap_ratio"] > 0.9


@pytest.mark.slow
def test_a_container_that_clears_the_jobs_variables_is_named(begin):
    command = "env.command=[env,-u,COLLOCATION_JOB,apptainer,exec,--nv,'{binds}',--pwd,'{cwd}','{image}']"
    done = begin("workload=script", "workload.script=train.py", "degree=1", command)
    assert done.status == 1 and "env may hide the job's variables: remove options such as --cleanenv" in done.err, (
        done.err
    )


@pytest.mark.slow
def test_a_script_that_fails_in_an_image_has_its_own_error(begin):
    done = begin("workload=script", "workload.script=train.py", "workload.args=[--fail]", "degree=1")
    assert done.status == 1 and "RuntimeError: no such layer" in done.err


@pytest.mark.slow
def test_another_image_is_another_environment(begin, tmp_path):
    digests = []
    for comment in ("", "another layer\n"):
        with (tmp_path / "train.sif").open("a") as file:
            file.write(comment)
        done = begin("workload=script", "workload.script=train.py", "degree=1")
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
def test_an_image_that_cannot_run_jobs_is_refused(begin, arguments, words):
    done = begin("workload=script", "workload.script=train.py", "dry_run=true", *arguments)
    assert done.status == 2 and words in done.err


@pytest.mark.slow
def test_jobs_in_images_do_not_share_a_process(begin):
    done = begin("workload=tiny", "scenario=streams", "degree=2", "dry_run=true")
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
