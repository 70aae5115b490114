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
from omegaconf import DictConfig

from pipeline import outcome
from pipeline.base import library_internals, words
from pipeline.plan import command_line, schema

schema.register()
library_internals.share_config_store()
library_internals.let_hydra_raise()
library_internals.let_options_stand_anywhere()
library_internals.let_sweeps_set_what_their_choices_have()
library_internals.let_hydra_compose_once()
library_internals.parse_once()


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(config: DictConfig) -> None:
    """Run one configuration; a sweep comes through `hydra_plugins/study.py` instead."""
    from pipeline import study

    chosen = HydraConfig.get()
    if chosen.mode is RunMode.RUN and (launcher := chosen.runtime.choices["hydra/launcher"]) != "study":
        words.say(f"error: hydra/launcher={launcher} launches sweeps, and this is none; add -m")
        outcome.exit_status = 2
        return
    if chosen.mode is RunMode.RUN and chosen.sweeper.blocks:
        words.say("error: hydra.sweeper.blocks make a sweep: add -m, or hydra: {mode: MULTIRUN} to the experiment file")
        outcome.exit_status = 2
        return
    study.execute([config], is_sweep=False)


if __name__ == "__main__":
    try:
        status = command_line.run(main)
        sys.exit(status if outcome.has_started else startup.check_output(status))
    finally:
        sender.end_early()
        gc.freeze()  # the process ends: nobody needs what a last search for garbage would free
