"""A Hydra launcher that runs the jobs of any Hydra application as the trials of a pack (docs/pack.md).

An application uses it with one line, `hydra/launcher=pack` on its command line or `override /hydra/launcher: pack` in
the defaults of its configuration. Each job of `-m` becomes a trial: the application's own command line with the
overrides of the job and a folder of its own.
"""

# This file cannot use `from __future__ import annotations`, for the reason in `study.py`.
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobStatus, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict

from pipeline.base.system.paths import PROJECT_DIR

_TRIALS = "pack_trials.txt"
_FLAGS = ("--config-name", "-cn", "--config-dir", "-cd", "--config-path", "-cp")
"""Options of an application's command line that its trials need too."""
_OF_THE_SWEEP = ("hydra/launcher", "hydra/sweeper", "hydra.launcher", "hydra.sweeper", "hydra.sweep", "hydra.mode")
"""Overrides that only the sweep needs."""


class PackLauncher(Launcher):
    """A launcher that writes the trials to a file of the sweep's folder, and starts a pack.

    It gives no return values, so a sweeper that optimises cannot use it.
    """

    def __init__(self, scenario: str, most: int, check_pct: float, resume: bool, words: list[str]) -> None:
        self.settings = [f"scenario={scenario}", f"pack.most={most}", f"pack.check_pct={check_pct:g}", *words]
        if resume:
            self.settings.append("resume=true")

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.hydra_context, self.config = hydra_context, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run all jobs; exit with the status of the pack if a trial failed, after all have ended."""
        setup_globals()
        folder = Path(str(self.config.hydra.sweep.dir)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        common = [*_list_flags(sys.argv[1:]), *self.list_common_overrides()]
        trials = [
            [*_spell_application(), *common, *words, f"hydra.run.dir={folder / self.name_folder(words, number)}"]
            for number, words in enumerate(job_overrides, initial_job_idx)
        ]
        file = folder / _TRIALS
        file.write_text("".join(f"{shlex.join(trial)}\n" for trial in trials), encoding="utf-8")
        command = [sys.executable, str(PROJECT_DIR / "collocate.py"), "pack", "--jobs", str(file), *self.settings]
        if status := subprocess.run([*command, "workload.run_in=caller"], check=False).returncode:
            sys.exit(status)
        return [
            JobReturn(overrides=list(words), status=JobStatus.COMPLETED, _return_value=None) for words in job_overrides
        ]

    def list_common_overrides(self) -> Iterator[str]:
        """Yield the overrides of Hydra itself that each trial needs too, such as `hydra.job.chdir=true`."""
        for word in self.config.hydra.overrides.hydra:
            key = word.lstrip("+~").partition("=")[0]
            if not any(f"{key}.".startswith(f"{prefix}.") for prefix in _OF_THE_SWEEP):
                yield word

    def name_folder(self, words: Sequence[str], number: int) -> str:
        """Return the folder of a job below that of the sweep: `hydra.sweep.subdir`."""
        config = self.hydra_context.config_loader.load_sweep_config(self.config, list(words))
        with open_dict(config):
            config.hydra.job.id, config.hydra.job.num = str(number), number
        HydraConfig.instance().set_config(config)
        return str(config.hydra.sweep.subdir)


def _spell_application() -> list[str]:
    """Return the words that start the application: a script, or `-m` and a module."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is not None:
        return ["-m", spec.name.removesuffix(".__main__")]
    return [str(Path(sys.argv[0]).absolute())]


def _list_flags(words: Sequence[str]) -> Iterator[str]:
    """Yield the options for the configuration on a command line, with their values."""
    for place, word in enumerate(words):
        if word.partition("=")[0] in _FLAGS:
            yield from (word,) if "=" in word else words[place : place + 2]


@dataclass
class PackLauncherConf:
    """`hydra.launcher` with `hydra/launcher=pack`.

    Attributes:
        scenario: sharing mode, `naive` or `mps`.
        most: most trials at a time.
        check_pct: share of the time in which one trial runs alone, in per cent; 0 for none.
        resume: run only the trials that have not ended; needs a fixed `hydra.sweep.dir`.
        words: further words of `collocate pack`, such as `["gpu=1"]`.
    """

    _target_: str = "hydra_plugins.pack.PackLauncher"
    scenario: str = "naive"
    most: int = 32
    check_pct: float = 5.0
    resume: bool = False
    words: list[str] = field(default_factory=list)


ConfigStore.instance().store(group="hydra/launcher", name="pack", node=PackLauncherConf, provider="collocation")
