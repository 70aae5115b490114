"""The project as a user installs it: a wheel in an environment of its own, studies in a folder with other modules.

The environment finds the packages that the wheel needs where this interpreter has them, so that nothing is downloaded.
"""

from __future__ import annotations

import os
import re
import sqlite3
import stat
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from pipeline.base.system.paths import PROJECT_DIR

pytestmark = [pytest.mark.slow, pytest.mark.covers("collocate.py", "setup.py")]
SCRIPT = """
import os, sys, time
import pipeline, workloads
ours = [path for path in sys.path if "gpu_collocation" in path]
print(pipeline.WHOSE, workloads.WHOSE, ours, os.environ.get("PYTHONPATH"))
time.sleep(0.3)
"""
SHORT = ["window.seconds=0.5", "window.settle_s=0.1", "baseline=never", "listeners=host", "foreign_load=note"]


def call(argv, **options):
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600, **options)
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """An environment with the wheel, whose package can only be read."""
    folder = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "--quiet"]
    call([*pip, "wheel", "--no-deps", "--no-build-isolation", f"--wheel-dir={folder}", str(PROJECT_DIR)])
    call([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")])
    (site,) = (folder / "venv/lib").glob("python*/site-packages")
    (site / "libraries.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    (wheel,) = folder.glob("*.whl")
    assert wheel.stat().st_size < 2_000_000
    call([*pip, f"--python={folder / 'venv'}", "install", "--no-deps", str(wheel)])
    assert {path.name.partition("-")[0] for path in site.iterdir()} == {"gpu_collocation", "libraries.pth"}
    files = [path for path in (site / "gpu_collocation").rglob("*") if not path.is_symlink()]
    for path in files:
        path.chmod(path.stat().st_mode & ~(stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH))
    yield folder / "venv"
    for path in files:
        path.chmod(path.stat().st_mode | stat.S_IWUSR)
    assert not [path for path in (site / "gpu_collocation").rglob("*") if path not in files]


@pytest.fixture
def collocate(environment, tmp_path):
    """Runs the command in a folder with modules that have the names of ours; what it prints."""
    for name in ("pipeline", "workloads", "listeners", "conf"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("WHOSE = 'mine'\n")
    for name in ("script.py", "train_timm.py", "fork_server.py", "client.py"):
        (tmp_path / "workloads" / name).write_text("raise SystemExit('not the module of the project')\n")
    (tmp_path / "train.py").write_text(SCRIPT)
    environ = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environ["PATH"] = f"{environment / 'bin'}{os.pathsep}{environ['PATH']}"

    def run(program, *words):
        place = [f"gpu.lock_dir={tmp_path}"] if program == "run" else []
        return call([str(environment / "bin/collocate"), program, *place, *words], cwd=tmp_path, env=environ)

    return run


def read_outputs(folder: Path) -> list[str]:
    return [path.read_text() for path in folder.glob("mlruns/artifacts/**/stdout.log")]


def test_a_script_has_its_own_modules_and_its_results_lie_where_the_user_is(collocate, tmp_path):
    printed = collocate("run", "gpu=cpu", "degree=2", "baseline=never", "--", "train.py")
    assert "report: collocate report --experiment=collocation\n" in printed
    assert read_outputs(tmp_path) == ["mine mine [] None\n"] * 2
    with sqlite3.connect(tmp_path / "mlruns/mlflow.db") as store:
        tags = dict(
            store.execute("SELECT t.key, t.value FROM tags t JOIN runs r USING (run_uuid) WHERE r.name LIKE 'naive%'")
        )
        (run_id,) = store.execute("SELECT run_uuid FROM runs WHERE name LIKE 'naive%'").fetchone()
    assert [value for value in tags.values() if re.match(r"collocate run gpu.lock_dir=\S+ gpu=cpu degree=2 ", value)]
    again = collocate("run", "gpu=cpu", "degree=2", "baseline=never", "resume=true", "--", "train.py")
    assert "resume: 1 of 1 groups are finished" in again
    assert "collocation-reproductions" in collocate("run", f"reproduce={run_id}")
    assert "index.html" in collocate("report", "--no-log")
    assert (tmp_path / "reports/collocation/index.html").is_file()
    assert "clean" in collocate("gpu", "status", "--lock-dir", str(tmp_path))
    assert "study: done" in collocate("tracking", "status")
    assert "trace.json" in collocate("timeline")


def test_workloads_of_the_project_run_warm_and_on_simulated_gpus(collocate, tmp_path):
    printed = collocate("run", "gpu=cpu", "workload=tiny", "degree=2", *SHORT)
    assert re.search(r"^naive-2x-tiny +ok", printed, re.MULTILINE), printed
    printed = collocate(
        "run", "-m", "scenario=naive,mig", "gpu=simulated_a100_40gb", "degree=2", "baseline=never", "--", "train.py"
    )
    assert re.search(r"^mig-2x-train .* ok", printed, re.MULTILINE), printed
    assert re.search(r"^naive-2x-train .* ok", printed, re.MULTILINE), printed
    assert "collocate report --experiment=collocation-rehearsal" in printed


def test_workers_of_several_gpus_find_their_modules(collocate, tmp_path):
    machine = ["gpu=simulated_a100_40gb", "gpu.count=2", "gpu.machine=machine.json"]
    printed = collocate(
        "run", "-m", "hydra/launcher=gpus", *machine, "repeats=2", "degree=2", "baseline=never", "--", "train.py"
    )
    assert len(read_outputs(tmp_path)) == 4, printed


def test_what_is_written_goes_to_the_folder_of_the_user(collocate, tmp_path):
    columns = "Experiment,Workload,Status,Run,Devices,Collocation,File,Listeners,Params"
    table = f"{columns}\n1,1,,,0,-,train.py,smi+top,\n"
    (tmp_path / "table.csv").write_text(table)
    printed = collocate("importer", "radt", "table.csv")
    assert (tmp_path / "conf/experiment/table.yaml").is_file()
    assert f"run it: collocate run --config-dir {tmp_path}/conf +experiment=table" in printed
