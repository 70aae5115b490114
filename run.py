"""Measure what GPU jobs gain by running together: `python run.py --help` shows what can be chosen."""

import sys

from pipeline import interrupts, outcome, sender

if __name__ == "__main__":
    interrupts.install()
    sender.start_early(sys.argv[1:])

import hydra  # below, because the sender imports MLflow meanwhile
from omegaconf import DictConfig

from pipeline import schema

schema.register()


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(config: DictConfig) -> None:
    """Run one configuration; a sweep comes through `hydra_plugins/study.py` instead."""
    from pipeline import study

    study.execute([config], is_sweep=False)


if __name__ == "__main__":
    try:
        main()
        sys.exit(outcome.exit_status())
    except interrupts.Interrupted as interrupted:
        sys.exit(interrupted.exit_status)
    except SystemExit as end:
        # Hydra ends with 1 for a configuration that it refuses; ours for that is 2.
        sys.exit(2 if end.code == 1 and not outcome.has_started() else end.code)
    finally:
        sender.end_early()
