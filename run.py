"""Measure what GPU jobs gain by running together: `python run.py --help` shows what can be chosen."""

import gc
import sys

from pipeline.base import startup
from pipeline.record import sender

if __name__ == "__main__":
    gc.set_threshold(100_000)  # nearly all that is imported and composed stays: looking for garbage took a tenth of it
    startup.begin()
    sender.start_early(sys.argv[1:])

from pipeline.plan import help as explained  # below, because the sender imports MLflow meanwhile

if __name__ == "__main__":
    explained.exit_if_asked(sys.argv[1:])

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from pipeline import outcome
from pipeline.base import words
from pipeline.plan import command_line, hydra_errors, schema

schema.register()


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(config: DictConfig) -> int:
    """Run one configuration; a sweep comes through `hydra_plugins/study.py` instead, or through another launcher."""
    from pipeline import study

    chosen = HydraConfig.get()
    if chosen.mode is RunMode.RUN and (launcher := chosen.runtime.choices["hydra/launcher"]) != "study":
        return _refuse(f"hydra/launcher={launcher} launches sweeps, and this is none; add -m")
    if chosen.mode is RunMode.RUN and OmegaConf.select(config, "blocks"):
        return _refuse("blocks make a sweep; add -m, or hydra: {mode: MULTIRUN} to the experiment file")
    with hydra_errors.user_environment():
        return study.execute([config], is_sweep=False)


def _refuse(reason: str) -> int:
    words.say(f"error: {reason}")
    outcome.exit_status = 2
    return 2


def _run() -> None:
    with hydra_errors.raised():
        main()


if __name__ == "__main__":
    try:
        status = command_line.run(_run)
        sys.exit(status if outcome.has_started else startup.check_output(status))
    finally:
        sender.end_early()
        gc.freeze()  # the process ends: nobody needs what a last search for garbage would free
