"""Committed experiments as plans, through the project's own sweeper and launcher, in this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra._internal.callbacks import Callbacks
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.types import HydraContext

from pipeline import rehearsal
from pipeline.base.paths import PROJECT_DIR
from pipeline.base.records import Plan
from pipeline.plan import feasible, read, schema
from pipeline.plan import plan as planning
from pipeline.plan.inventory import take
from pipeline.plan.schema import Config


def configs_of(arguments: Sequence[str], conf: Path = PROJECT_DIR / "conf") -> list[Config]:
    """What `python run.py ARGUMENTS` would plan, one configuration a combination."""
    schema.register()
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(conf), version_base="1.3"):
        config = compose("config", list(arguments), return_hydra_config=True)
        assert config.hydra.mode.name == "MULTIRUN"
        hydra = GlobalHydra.instance().hydra
        context = HydraContext(config_loader=hydra.config_loader, callbacks=Callbacks())  # type: ignore[union-attr]
        sweeper: Any = Plugins.instance().instantiate_sweeper(
            hydra_context=context, task_function=lambda _: None, config=config
        )
        return read.read([sweeper.launcher.compose(overrides) for overrides in sweeper.expand(list(arguments))])


@contextmanager
def planned(arguments: Sequence[str], conf: Path = PROJECT_DIR / "conf") -> Iterator[Plan]:
    """The plan on a simulated machine, which is there as long as this lasts."""
    configs = configs_of(arguments, conf)
    with rehearsal.prepared(configs) as simulated:
        assert simulated is not None
        plan = planning.build_plan(configs, take(configs, simulated.find_device), is_sweep=True)
        yield feasible.checked(plan)
