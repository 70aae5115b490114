"""What this project uses of other libraries beyond their documented interfaces: everything of that kind stands here.

Each use says why it is needed; `tests/unit/base/test_library_internals.py` fails when a library changes beneath it.
"""

from __future__ import annotations

import os
import pickle
import sys
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

from pipeline.base import invocation
from pipeline.base.errors import ConfigError

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override
    from omegaconf import DictConfig

_files: dict[tuple[object, ...], bytes] = {}
_SCHEMAS = "/schema/"
_without_blocks = ContextVar("_without_blocks", default=False)


def let_hydra_raise() -> None:
    """Let Hydra's errors reach `run.py`, which says them in one line.

    Hydra prints them over many lines and exits with 1; a refused configuration exits with 2 here.
    """
    from hydra._internal import utils

    utils.run_and_report = lambda func: func()


def let_options_stand_anywhere() -> None:
    """Let options of Hydra stand between overrides, as in `gpu=cpu --config-dir DIR +experiment=NAME`.

    Its parser takes overrides in one place only, and says what is wrong with an option over many lines.
    """
    program: Any = sys.modules["hydra.main"]  # the module; `hydra.main` is what it decorates with
    made = program.get_args_parser

    def refuse(message: str) -> NoReturn:
        raise ConfigError(
            f"{message}; {invocation.spell('run', '--help')} prints what can be chosen, --hydra-help the options"
        )

    def get_args_parser() -> ArgumentParser:
        parser: ArgumentParser = made()
        setattr(parser, "parse_args", parser.parse_intermixed_args)  # noqa: B010
        setattr(parser, "error", refuse)  # noqa: B010
        return parser

    program.get_args_parser = get_args_parser


def share_config_store() -> None:
    """Let Hydra share its store of structured configs, which it only reads, instead of copying it.

    It copies it for every question it asks: 90 copies are half of the time of `--help`, and one is a tenth of every
    composition of a sweep.
    """
    from hydra.core.config_store import ConfigStore

    setattr(ConfigStore, "__deepcopy__", lambda self, memo: self)  # noqa: B010


def let_hydra_compose_once() -> None:
    """Let Hydra keep the configuration that it composes to learn its mode, where that is the one that it runs.

    It composes it again otherwise, which takes 100 ms.
    """
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from hydra.types import RunMode

    load = ConfigLoaderImpl.load_configuration
    kept: dict[tuple[str, ...], DictConfig] = {}

    def load_once(
        self: ConfigLoaderImpl,
        config_name: str | None,
        overrides: list[str],
        run_mode: RunMode,
        from_shell: bool = True,
        validate_sweep_overrides: bool = True,
    ) -> DictConfig:
        given = tuple(override for override in overrides if override != "hydra.mode=RUN")  # Hydra adds what it learnt
        if validate_sweep_overrides:
            known = kept.pop(given, None) if run_mode is RunMode.RUN else None
            return known or load(self, config_name, overrides, run_mode, from_shell)
        try:
            kept[given] = load(self, config_name, list(overrides), RunMode.RUN)
        except Exception:  # noqa: BLE001  a sweep, or wrong, which Hydra says
            return load(self, config_name, overrides, run_mode, from_shell, validate_sweep_overrides=False)
        return kept[given]

    setattr(ConfigLoaderImpl, "load_configuration", load_once)  # noqa: B010


def parse_once() -> None:
    """Let OmegaConf keep what it parsed: a file as long as it stays as it is, and the text of an interpolation.

    A sweep reads the same files for every choice of groups, and resolves the same interpolations for every combination:
    together that is a third of what it takes to compose one with an experiment of hundreds of blocks.
    """
    from omegaconf import OmegaConf, _utils, base, grammar_parser

    load = OmegaConf.load

    def load_once(file_: Any) -> Any:
        is_open = hasattr(file_, "fileno")
        found = os.fstat(file_.fileno()) if is_open else Path(file_).stat()
        name = file_.name if is_open else str(file_)
        key = name, found.st_ino, found.st_mtime_ns, found.st_size, _without_blocks.get()
        if key not in _files:
            content: Any = load(file_)
            if _without_blocks.get() and OmegaConf.select(content, "hydra.sweeper.blocks") is not None:
                del content["hydra"]["sweeper"]["blocks"]
            _files[key] = pickle.dumps(content)
        return pickle.loads(_files[key])  # noqa: S301  what this process wrote

    setattr(OmegaConf, "load", load_once)  # noqa: B010
    parse = lru_cache(maxsize=4096)(grammar_parser.parse)
    for module in (base, _utils):
        setattr(module, "parse", parse)  # noqa: B010


@contextmanager
def files_without_blocks() -> Iterator[None]:
    """What is loaded meanwhile lacks `hydra.sweeper.blocks`, which a job of a sweep has no use for.

    Hydra copies hundreds of them a dozen times while it composes one job.
    """
    token = _without_blocks.set(True)
    try:
        yield
    finally:
        _without_blocks.reset(token)


def combinations(overrides: Sequence[Override]) -> list[list[str]]:
    """The overrides of every combination of a grid, in the order of Hydra's own sweeper."""
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

    return [list(job) for batch in BasicSweeper.split_arguments(list(overrides), None) for job in batch]


def loader_of(folder: Path) -> Any:
    """What reads the files of a folder of configuration."""
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from hydra._internal.utils import create_config_search_path

    return ConfigLoaderImpl(create_config_search_path(str(folder)))


def schema_of(loader: Any, group: str, choice: str) -> str:
    """The schema that a choice of a group extends, be it through others of the group; empty without one."""
    schemas = (name for name, _ in _extended(loader, group, choice) if name.startswith(_SCHEMAS))
    return next(schemas, "").removeprefix(_SCHEMAS)


def values_of(loader: Any, group: str, choice: str) -> dict[str, Any]:
    """What a choice of a group says, with the choices and the schema that it extends, unresolved."""
    from hydra.core.config_store import ConfigStore
    from omegaconf import OmegaConf

    values: dict[str, Any] = {}
    for path, content in _extended(loader, group, choice):
        if content is None:
            content = ConfigStore.instance().load(f"{path[1:]}.yaml").node
        plain: Any = OmegaConf.to_container(content)
        values |= plain
    return values


def _extended(loader: Any, group: str, choice: str) -> Iterator[tuple[str, DictConfig | None]]:
    """What a choice extends, the furthest first, then itself: the path and the content of each, `None` of a schema."""
    if (found := loader.repository.load_config(f"{group}/{choice}")) is None:
        return
    for default in found.defaults_list or ():
        path = str(getattr(default, "path", None) or "_self_")
        if path.startswith(_SCHEMAS):
            yield path, None
        elif path != "_self_":
            yield from _extended(loader, group, path)
    yield f"{group}/{choice}", found.config


def set_values(overrides: Sequence[Override], config: DictConfig) -> None:
    """Set the values of overrides in a composed configuration, with the errors of Hydra's own composition.

    Composing it anew reads and merges files, which takes 100 ms; this takes 5 ms.
    """
    from hydra._internal.config_loader_impl import ConfigLoaderImpl

    ConfigLoaderImpl._apply_overrides_to_config(list(overrides), config)


def let_sweeps_set_what_their_choices_have() -> None:
    """Let a sweep over choices of a group set keys that these have: `-m scenario=mig,mig_mps scenario.profile=1g`.

    Before it expands a sweep, Hydra composes what all jobs have in common, with the group's default in the place of the
    choices, and refuses a key that the default lacks. So these keys are left to the jobs.
    """
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.types import RunMode

    load = ConfigLoaderImpl.load_configuration

    def load_common(
        self: ConfigLoaderImpl,
        config_name: str | None,
        overrides: list[str],
        run_mode: RunMode,
        from_shell: bool = True,
        validate_sweep_overrides: bool = True,
    ) -> DictConfig:
        given = OverridesParser.create(config_loader=self).parse_overrides(overrides)
        swept = [each for each in given if each.is_sweep_override() and self.get_group_options(each.key_or_group)]
        places = tuple(f"{each.package or each.key_or_group.replace('/', '.')}." for each in swept)
        left = [each for each in given if each.key_or_group.startswith(places)] if places else []
        if run_mode is RunMode.RUN or not left:
            return load(self, config_name, overrides, run_mode, from_shell, validate_sweep_overrides)
        common = [word for word, each in zip(overrides, given, strict=True) if each not in left]
        composed = load(self, config_name, common, run_mode, from_shell, validate_sweep_overrides)
        composed.hydra.overrides.task = [each.input_line for each in given if not each.is_hydra_override()]
        return composed

    setattr(ConfigLoaderImpl, "load_configuration", load_common)  # noqa: B010


def as_yaml(values: Any) -> str:
    """Plain values as `OmegaConf.to_yaml` writes a configuration of them.

    It would build that configuration first, which takes eight times as long as writing it.
    """
    import yaml
    from omegaconf._utils import get_omega_conf_dumper

    return str(
        yaml.dump(values, default_flow_style=False, allow_unicode=True, sort_keys=False, Dumper=get_omega_conf_dumper())
    )


@contextmanager
def nvml_answered_by(library: Any) -> Iterator[None]:
    """Let pynvml call this library instead of libnvidia-ml. Afterwards pynvml is as it was.

    pynvml keeps every function that it has looked up: those of another library must not be called.
    """
    import pynvml

    functions = pynvml._nvmlGetFunctionPointer_cache
    before = pynvml.nvmlLib, dict(functions)
    functions.clear()
    pynvml.nvmlLib = library
    try:
        yield
    finally:
        pynvml.nvmlLib = before[0]
        functions.clear()
        functions.update(before[1])


@contextmanager
def fonts_without_layout() -> Iterator[None]:
    """Let Matplotlib leave the tables by which text is laid out away from the fonts in a PDF.

    Its text is laid out already, and fontTools would read, prune and write them for each figure: a font of DejaVu takes
    50 instead of 120 ms without.
    """
    from fontTools.subset import Options

    before = Options._drop_tables_default
    setattr(Options, "_drop_tables_default", [*before, "GDEF", "GPOS", "GSUB", "MATH", "kern"])  # noqa: B010
    try:
        yield
    finally:
        setattr(Options, "_drop_tables_default", before)  # noqa: B010


@contextmanager
def without(modules: Sequence[str], *, stand_ins: Sequence[str] = ()) -> Iterator[None]:
    """Let libraries that are imported meanwhile take these modules for not installed.

    MLflow goes without some of what it imports, and never says so. One that is in use already is left as it is.

    Args:
        modules: that are optional.
        stand_ins: modules that are not optional. They and what lies below them are empty; any name that is looked for
            in them is an empty class.
    """
    hidden = [name for name in modules if name not in sys.modules]
    finder = _StandIns([name for name in stand_ins if name not in sys.modules])
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in hidden:
            del sys.modules[name]
        for name in finder.made:
            del sys.modules[name]
            parent, _, last = name.rpartition(".")
            vars(sys.modules.get(parent, finder)).pop(last, None)  # or `parent.last` would be the empty one still


class _StandIns(MetaPathFinder, Loader):
    """Finds empty modules."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names, self.made = names, list[str]()

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        if not any(f"{name}.".startswith(f"{each}.") for each in self._names):
            return None
        self.made.append(name)
        return ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Empty(spec.name)

    def exec_module(self, module: ModuleType) -> None: ...


class _Empty(ModuleType):
    def __getattr__(self, name: str) -> type[Exception]:
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (Exception,), {"__module__": self.__name__})  # some of them are caught
        setattr(self, name, made)
        return made
