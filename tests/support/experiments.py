"""Configurations and plans, composed by the project's sweeper and launcher in this process."""

from __future__ import annotations

import functools
import hashlib
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra._internal import defaults_list
from hydra._internal.callbacks import Callbacks
from hydra._internal.config_repository import ConfigRepository
from hydra.core.config_store import ConfigStore
from hydra.core.default_element import InputDefault
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult
from hydra.types import HydraContext
from omegaconf import DictConfig, open_dict

from hydra_plugins.option_classes import OptionClasses
from pipeline import rehearsal
from pipeline.base.domain.records import Plan
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.plan import config_reader, config_schema, plan_builder
from pipeline.plan import plan_builder as planning
from pipeline.plan.config_schema import Config
from pipeline.plan.inventory import take_inventory


def composed(overrides: Sequence[str]) -> DictConfig:
    """Compose a job as a sweep does; each choice of groups is read once in all tests, and then copied."""
    of_hydra = [override for override in overrides if override.startswith(("hydra.", "hydra/"))]
    return sweeper_of(of_hydra).launcher.compose(list(overrides))


def composed_by_hydra(overrides: Sequence[str]) -> DictConfig:
    """Compose a single run by Hydra, without the keys that only a sweep has."""
    with _initialized(PROJECT_DIR / "conf"):
        config = compose("config", list(overrides))
    with open_dict(config):
        del config["blocks"]
    return config


def configs_of(arguments: Sequence[str], conf: Path = PROJECT_DIR / "conf") -> list[Config]:
    """Return the configurations that `python run.py ARGUMENTS` would plan, one for each combination."""
    sweeper = _sweeper(arguments, conf)
    assert sweeper.config.hydra.mode.name == "MULTIRUN"
    return config_reader.read([sweeper.launcher.compose(overrides) for overrides in sweeper.expand(list(arguments))])


@contextmanager
def planned(configs: list[Config]) -> Iterator[Plan]:
    """Yield the plan for a simulated machine, which exists until the context is left."""
    with rehearsal.prepare_machine(configs) as simulated:
        assert simulated is not None
        plan = planning.build_plan(configs, take_inventory(configs, simulated.find_device), is_sweep=True)
        yield plan_builder.check_plan(plan)


def sweeper_of(arguments: Sequence[str]) -> Any:
    """Return the sweeper of a command line; all tests share the configurations that its launcher composes."""
    return _cached_sweeper(tuple(arguments))


class _Shared(dict[tuple[str, ...], Any]):
    """The configurations that a launcher has composed.

    Workers of one pytest run share them in files, because reading one takes a fiftieth of the time of composing it.
    """

    def __init__(self, arguments: tuple[str, ...]) -> None:
        super().__init__()
        self.arguments = arguments

    def __contains__(self, choices: object) -> bool:
        if not super().__contains__(choices) and (path := self._path(choices)) is not None and path.exists():
            super().__setitem__(choices, pickle.loads(path.read_bytes()))  # type: ignore[index]
        return super().__contains__(choices)

    def __setitem__(self, choices: tuple[str, ...], composed: Any) -> None:
        super().__setitem__(choices, composed)
        if (path := self._path(choices)) is not None:
            new = path.with_suffix(f".{os.getpid()}")
            new.write_bytes(pickle.dumps(composed))
            new.rename(path)

    def _path(self, choices: object) -> Path | None:
        name = hashlib.sha256(repr((self.arguments, choices)).encode()).hexdigest()
        return _common_folder / name if _common_folder is not None else None


_common_folder: Path | None = None


def share_with_other_workers(folder: Path) -> None:
    """Store composed configurations in a folder that all workers of this pytest run share."""
    global _common_folder
    folder.mkdir(exist_ok=True)
    _common_folder = folder


@functools.cache
def _cached_sweeper(arguments: tuple[str, ...]) -> Any:
    sweeper = _sweeper(arguments, PROJECT_DIR / "conf")
    sweeper.launcher.composed = _Shared(arguments)
    return sweeper


def _sweeper(arguments: Sequence[str], conf: Path) -> Any:
    _read_files_once()
    with _initialized(conf):
        config = compose("config", list(arguments), return_hydra_config=True)
        hydra = GlobalHydra.instance().hydra
        context = HydraContext(config_loader=hydra.config_loader, callbacks=Callbacks())  # type: ignore[union-attr]
        return Plugins.instance().instantiate_sweeper(
            hydra_context=context, task_function=lambda _: None, config=config
        )


@contextmanager
def _initialized(conf: Path) -> Iterator[None]:
    _prepare_hydra()
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(conf), version_base="1.3"):
        yield


@functools.cache
def _prepare_hydra() -> None:
    """Prepare Hydra as `run.py` does at its start."""
    config_schema.register()


@functools.cache
def _read_files_once() -> None:
    """Let Hydra compose in half of the time; not in the server of `forks`, whose programs are as they are for users."""
    ConfigRepository.load_config = _load_once(ConfigRepository.load_config)
    # Hydra copies its sources, and with them the store, for each composition; what it loads from the store is a copy.
    ConfigStore.__deepcopy__ = lambda self, _: self
    map_choices = defaults_list._create_interpolation_map

    def map_choices_if_used(overrides: Any, defaults: list[InputDefault], self_added: bool) -> DictConfig | None:
        is_used = any(default.is_interpolation() for default in defaults)
        return map_choices(overrides, defaults, self_added) if is_used else None

    defaults_list._create_interpolation_map = map_choices_if_used


def _load_once(load: Callable[..., ConfigResult | None]) -> Callable[..., ConfigResult | None]:
    """Read each file of the project's configuration once; each composition gets its copy, which it may change."""
    texts: dict[tuple[str, ...], bytes] = {}
    fixed = {"hydra.conf", str(PROJECT_DIR / "conf"), str(PROJECT_DIR / "tests/conf"), ""}  # tests write into others

    def load_config(repository: ConfigRepository, config_path: str) -> ConfigResult | None:
        key = (config_path, *(source.path for source in repository.sources))
        if key not in texts:
            loaded = load(repository, config_path)
            if loaded is None or loaded.path.startswith(OptionClasses.scheme()) or not fixed.issuperset(key[1:]):
                return loaded
            texts[key] = pickle.dumps(loaded)
        return pickle.loads(texts[key])

    return load_config
