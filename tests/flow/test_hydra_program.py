"""run.py is a program of Hydra like any other, and replaces nothing of other libraries."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from pipeline.base.system.paths import PROJECT_DIR
from tests.support import forks, replaced

pytestmark = pytest.mark.covers("run.py", "hydra_plugins", "pipeline/simulation/install.py")

RUN = PROJECT_DIR / "run.py"
COMPLETE = """
eval "$(python run.py -sc install=bash)"
COMP_LINE="$1" COMP_POINT=${#1} COMP_WORDS=($1)
COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 ))
hydra_bash_completion
printf '%s\\n' "${COMPREPLY[@]}"
"""
LAUNCHER = """
import os, subprocess, sys
from dataclasses import dataclass

from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import run_job, setup_globals
from hydra.plugins.launcher import Launcher
from omegaconf import open_dict



class OutsideLauncher(Launcher):
    def __init__(self, word):
        self.word = word

    def setup(self, *, hydra_context, task_function, config):
        self.context, self.config, self.task_function = hydra_context, config, task_function

    def launch(self, job_overrides, initial_job_idx):
        setup_globals()
        code = "import os; print('a child has', os.environ.get('HYDRA_FULL_ERROR'))"
        subprocess.run([sys.executable, "-c", code])
        returns = []
        for number, overrides in enumerate(job_overrides, initial_job_idx):
            job = self.context.config_loader.load_sweep_config(self.config, list(overrides))
            with open_dict(job):
                job.hydra.job.id, job.hydra.job.num = f"{self.word}-{number}", number
            HydraConfig.instance().set_config(job)
            print(self.word, *overrides, flush=True)
            returns.append(
                run_job(
                    hydra_context=self.context,
                    task_function=self.task_function,
                    config=job,
                    job_dir_key="hydra.sweep.dir",
                    job_subdir_key="hydra.sweep.subdir",
                )
            )
        return returns


@dataclass
class OutsideConf:
    _target_: str = "hydra_plugins.outside.OutsideLauncher"
    word: str = "outside"


ConfigStore.instance().store(group="hydra/launcher", name="outside", node=OutsideConf)
"""


@pytest.mark.slow
def test_the_composed_configuration_is_printed(tmp_path):
    done = forks.run(RUN, "degree=3", "--cfg", "job", "window.seconds=7", cwd=tmp_path)
    config = yaml.safe_load(done.stdout)
    assert done.returncode == 0 and not done.stderr
    assert (config["degree"], config["window"]["seconds"], config["blocks"]) == (3, 7, None)
    done = forks.run(RUN, "--cfg=job", "--package", "window", "+experiment=robroek_settings", cwd=tmp_path)
    assert yaml.safe_load(done.stdout).keys() == {
        *("kind", "seconds", "settle_s", "epochs", "logged_s", "most_s", "slice_s", "slice_settle_s")
    }
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_hydra_informs_about_itself(tmp_path):
    done = forks.run(RUN, "degree=3", "--info", "gpu=cpu", cwd=tmp_path)
    assert done.returncode == 0 and "StudySweeper" in done.stdout and "degree: 3" in done.stdout
    done = forks.run(RUN, "--info", "defaults", "+experiment=robroek_quick", cwd=tmp_path)
    assert done.returncode == 0 and "experiment/robroek_quick" in done.stdout


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("degree=2 scenario=mi", ["scenario=mig", "scenario=mig_mps"]),
        ("-m +experiment=robroek_resnet", ["+experiment=robroek_resnet_bs128", "+experiment=robroek_resnet_bs32"]),
        ("degre=2 scenario=mi", ["scenario=mig", "scenario=mig_mps"]),
        ("gpu=nosuch window.se", [""]),
    ],
)
def test_a_shell_completes_what_is_typed(typed, completed):
    done = subprocess.run(
        ["/bin/bash", "--norc", "-c", COMPLETE, "bash", f"python run.py {typed}"],
        cwd=PROJECT_DIR,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (sorted(done.stdout.splitlines()), done.stderr) == (completed, "")


def launch(folder: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a sweep with a launcher that lies in a folder of the user's own."""
    (folder / "plugins/hydra_plugins").mkdir(parents=True, exist_ok=True)
    (folder / "plugins/hydra_plugins/outside.py").write_text(LAUNCHER)
    (folder / "empty").mkdir(exist_ok=True)
    return subprocess.run(
        [sys.executable, RUN, "hydra/launcher=outside", "gpu=simulated_a100_40gb", *arguments],
        cwd=folder / "empty",
        env={**os.environ, "PYTHONPATH": str(folder / "plugins"), **environ},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.slow
def test_a_launcher_of_others_runs_each_job_as_a_study_of_its_own(tmp_path):
    done = launch(tmp_path, "-m", "degree=1,2", "hydra.launcher.word=mine", "dry_run=true", HYDRA_FULL_ERROR="0")
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert [line for line in lines if line.startswith(("mine", "a child", "1 group", "2 groups"))] == [
        "a child has 0",
        "mine gpu=simulated_a100_40gb degree=1 dry_run=True",
        next(line for line in lines if line.startswith("1 group")),
        "mine gpu=simulated_a100_40gb degree=2 dry_run=True",
        next(line for line in lines if line.startswith("2 groups")),
    ]


@pytest.mark.slow
def test_a_job_that_another_launcher_starts_may_have_blocks_and_fail(tmp_path):
    grids = "blocks=[{scenario: mig, degree: '9,1'}]"
    done = launch(tmp_path, "-m", grids, "scenario.profile=1g", "dry_run=true")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "scenario.profile does not exist in scenario=naive" in done.stderr
    done = launch(tmp_path, "-m", grids, "dry_run=true")
    assert done.returncode == 2 and "mig-1x-tiny" in done.stdout
    assert done.stderr.startswith("error: 9 MIG instances do not fit") and done.stderr.count("\n") == 1
    done = launch(tmp_path, "degree=2")
    assert done.stderr == "error: hydra/launcher=outside is for sweeps; add -m\n"


ALLOWED = {
    # The simulated machine: pynvml loads libnvidia-ml by its name and offers no way to give it another library.
    "pynvml:nvmlLib": "object of us: pipeline.simulation.nvml.library.NvmlLibrary",
}
AT_MOST = 3
# What `record.store.server` hides from MLflow while it imports it, and what MLflow then takes from there.
QUICK = ("gpu=simulated_a100_40gb", "window.seconds=0.3", "window.settle_s=0", "tracking.root=mlruns")


def run(folder: Path, *arguments: str) -> None:
    """Run a program of this project in a folder, watched."""
    environ = replaced.watch(folder)
    environ["PYTHONPATH"] += f":{PROJECT_DIR}"
    subprocess.run(
        [sys.executable, *arguments], cwd=folder, env={**os.environ, **environ}, check=True, capture_output=True
    )


@pytest.mark.slow
def test_nothing_of_other_libraries_is_replaced_but_what_is_allowed(tmp_path):
    (tmp_path / "train.py").write_text("import time; time.sleep(0.6)\n")
    run(tmp_path, str(PROJECT_DIR / "run.py"), "-m", "degree=1,2", *QUICK, "--", "train.py")
    run(tmp_path, "-m", "pipeline.report", "--root", "mlruns", "--experiment", "collocation-rehearsal", "--no-log")
    assert len(list(tmp_path.glob("*.json"))) >= 3, "the study, the process that talks to MLflow, the report"
    replacements = replaced.find_replaced(tmp_path)
    assert replacements == ALLOWED
    assert len(ALLOWED) <= AT_MOST


PROGRAM = """
import functools, time, yaml
from omegaconf import DictConfig, OmegaConf, grammar_parser
from sqlalchemy import engine

time.sleep(0.6)
open("/dev/null").close()
def ours(*args): ...
class Ours: ...
load = OmegaConf.load
OmegaConf.load = yaml.dump = ours
DictConfig.__deepcopy__ = property(ours)
grammar_parser.parse = functools.cache(grammar_parser.parse)
engine.Engine = Ours
yaml.library = Ours()
time.sleep(0.6)
open("/dev/null").close()
OmegaConf.load = load
"""


@pytest.mark.slow
def test_what_is_replaced_is_seen(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    run(tmp_path, "program.py")
    assert replaced.find_replaced(tmp_path) == {
        "omegaconf.omegaconf:OmegaConf.load": "function of us: ours",
        "omegaconf.dictconfig:DictConfig.__deepcopy__": "function of us: ours",
        "omegaconf.grammar_parser:parse": "_lru_cache_wrapper of omegaconf.grammar_parser: parse",
        "yaml:dump": "function of us: ours",
        "yaml:library": "object of us: __main__.Ours",
        "sqlalchemy.engine:Engine": "class of us: __main__.Ours",
    }
