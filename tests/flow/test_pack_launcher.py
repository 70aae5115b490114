"""A user's own Hydra application, whose multirun is a pack with one line of configuration."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.covers("hydra_plugins/pack.py")

APPLICATION = """
import hydra

@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(config):
    if config.lr < 0:
        raise ValueError("lr is negative")
    with open("result.txt", "w") as file:
        file.write(f"{config.lr} {config.model.depth} {config.seed}")

main()
"""

DEVICE = 'hydra.launcher.words=["gpu=simulated_a100_40gb","wait=true"]'


@pytest.fixture
def application(tmp_path: Path) -> Path:
    """A Hydra application with a group of models, in a folder with a space."""
    folder = tmp_path / "my app"
    (folder / "conf" / "model").mkdir(parents=True)
    (folder / "app.py").write_text(APPLICATION)
    (folder / "conf" / "config.yaml").write_text("defaults: [{model: small}, _self_]\nlr: 0.1\nseed: 0\n")
    for name, depth in {"small": 2, "large": 9}.items():
        (folder / "conf" / "model" / f"{name}.yaml").write_text(f"depth: {depth}\n")
    return folder


def start(application: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "app.py", "-m", "hydra/launcher=pack", "hydra.job.chdir=true", DEVICE, *words]
    return subprocess.run(
        command,
        cwd=application,
        capture_output=True,
        text=True,
        check=False,
    )


def read_results(folder: Path) -> list[str]:
    return sorted(path.read_text() for path in folder.glob("*/result.txt"))


def test_each_job_of_a_multirun_is_a_trial_with_its_overrides_and_folder(application: Path) -> None:
    done = start(application, "lr=0.1,0.2", "model=small,large", "seed=7", "hydra.sweep.dir=sweep")
    assert done.returncode == 0, done.stderr
    sweep = application / "sweep"
    assert read_results(sweep) == ["0.1 2 7", "0.1 9 7", "0.2 2 7", "0.2 9 7"]
    assert "4 ok" in done.stderr + done.stdout
    assert (sweep / "0" / ".hydra" / "overrides.yaml").read_text().splitlines() == [
        "- lr=0.1",
        "- model=small",
        "- seed=7",
    ]
    assert (application / "mlruns" / "mlflow.db").exists()


def test_a_failed_job_ends_the_multirun_after_all_and_resume_runs_the_others(application: Path) -> None:
    words = ("lr=0.1,-1,0.3", "hydra.sweep.dir=sweep")
    done = start(application, *words)
    assert done.returncode == 1 and read_results(application / "sweep") == ["0.1 2 0", "0.3 2 0"]
    again = start(application, *words, "hydra.launcher.resume=true")
    assert "resume: 3 of 3 trials have ended" in again.stderr
