"""Measure what GPU jobs gain by running together: `python run.py --help` shows what can be chosen."""

import gc
import sys

from pipeline.base import startup
from pipeline.record import invocation, sender

if __name__ == "__main__":
    gc.set_threshold(100_000)  # nearly all that is imported and composed stays: looking for garbage took a tenth of it
    startup.begin()
    invocation.begin()
    sender.start_early(sys.argv[1:])

from pipeline.plan import help as explained  # below, because the sender imports MLflow meanwhile

if __name__ == "__main__":
    explained.exit_if_asked(sys.argv[1:])

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

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
def main(config: DictConfig) -> int:
    """Run one configuration; a sweep comes through `hydra_plugins/study.py` instead."""
    from pipeline.study.execution import execute

    chosen = HydraConfig.get()
    if chosen.mode is RunMode.RUN and (launcher := chosen.runtime.choices["hydra/launcher"]) != "study":
        words.say(f"error: hydra/launcher={launcher} launches sweeps, and this is none; add -m")
        sys.exit(2)
    if chosen.mode is RunMode.RUN and chosen.sweeper.blocks:
        words.say("error: hydra.sweeper.blocks make a sweep: add -m, or hydra: {mode: MULTIRUN} to the experiment file")
        sys.exit(2)
    status = execute([config], is_sweep=False)
    if chosen.mode is RunMode.RUN and status != 0:
        sys.exit(status)  # Hydra drops what is returned to it
    return status


if __name__ == "__main__":
    try:
        sys.exit(startup.check_output(command_line.run(main)))
    finally:
        sender.end_early()
        gc.freeze()  # the process ends: nobody needs what a last search for garbage would free
