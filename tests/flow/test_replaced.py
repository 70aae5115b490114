"""A study and its report replace nothing of other libraries but what stands here, with the reason."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.base.system.paths import PROJECT_DIR
from tests.support import replaced

pytestmark = pytest.mark.covers("pipeline/simulation/install.py")

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
    found = replaced.find_replaced(tmp_path)
    assert found == ALLOWED
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
