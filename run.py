"""Measure how much GPU jobs gain by running together: `python run.py --help` lists the choices."""

import gc
import sys
from typing import NoReturn

from pipeline.base.system import startup
from pipeline.record import invocation, tracking_sender

if __name__ == "__main__":
    gc.set_threshold(100_000)  # imports create little garbage; collecting it took a tenth of the time
    startup.begin()
    invocation.begin()
    tracking_sender.start_early(sys.argv[1:])

from pipeline.plan import help_text as explained  # after the sender's start, which imports MLflow concurrently

if __name__ == "__main__":
    explained.exit_if_asked(sys.argv[1:])

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from pipeline.base.system import words
from pipeline.plan import command_line, config_schema

config_schema.register()


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(config: DictConfig) -> int:
    """Run one configuration; `hydra_plugins/study.py` or another launcher runs the configurations of a sweep."""
    from pipeline.study.execution import execute

    chosen = HydraConfig.get()
    is_single = chosen.mode is RunMode.RUN
    if is_single and (launcher := chosen.runtime.choices["hydra/launcher"]) != "study":
        _refuse(f"hydra/launcher={launcher} is for sweeps; add -m")
    if is_single and OmegaConf.select(config, "blocks"):
        _refuse("this experiment is a sweep; add -m")
    with command_line.restore_environment():
        status = execute([config], is_sweep=False)
    if is_single and status != 0:
        sys.exit(status)  # Hydra ignores the returned value
    return status


def _refuse(reason: str) -> NoReturn:
    words.say(f"error: {reason}")
    sys.exit(2)


def _run() -> None:
    with command_line.raise_errors():
        main()


if __name__ == "__main__":
    try:
        sys.exit(startup.check_output(command_line.run(_run)))
    finally:
        tracking_sender.end_early()
        gc.freeze()  # saves the search for garbage at exit
