"""A Hydra sweep as one study: all combinations of the sweep are composed and passed to one plan and one executor.

Hydra's basic launcher would run each combination as a separate study, with its own baselines and without an estimate of
the time. Hydra loads plugins only from the namespace package `hydra_plugins` (no `__init__.py`) next to `run.py`.

A combination is a list of overrides with one value for each key, from these layers. A layer wins over those below it:
they lose its keys, and the keys below its keys.

    layer                     comes from
    command line              the user
    `hydra.sweeper.instead`   `+rehearse=tiny`, which reduces any experiment
    block                     `blocks` of an experiment file, a list of grids; each is crossed with the command line
    `hydra.sweeper.preset`    `+duration=minutes`
    files                     `conf/`

Exceptions: a block keeps the options of its workload that all workloads on the command line have too; a block with a
mix keeps its window against the preset. `hydra.sweeper.small` is no layer: it reduces the workloads of composed
combinations (`pipeline/plan/job_entries.py`).

The launchers `gpus` and `slurm` assign the shards of the study to workers (launcher `worker`), and `beside` measures
the effect of work on other GPUs. Any other launcher runs every combination as a separate study.
"""

# This file cannot use `from __future__ import annotations`: to resolve annotations that are text, dataclasses needs the
# module in sys.modules, but Hydra executes this file without adding it there.
import functools
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hydra.conf import HydraConf
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus, setup_globals
from hydra.errors import HydraException
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict

from pipeline.base.system import override_values, user_command, words
from pipeline.base.system.errors import ConfigError
from pipeline.plan import command_line, job_entries, override_remedy, overrides
from pipeline.record import invocation
from pipeline.scale.slurm import SlurmOptions

_PROGRAMS = ("workload.", "sizes.")
_EITHER = {"degree": "mix", "mix": "degree"}
"""The two keys that set the number of jobs, of which a block has one."""


class StudySweeper(Sweeper):
    """A sweeper that expands the command line and the blocks to combinations, and launches all of them at once."""

    def __init__(self, instead: dict[str, Any], small: dict[str, Any], preset: dict[str, Any]) -> None:
        self.instead, self.small, self.preset = instead, small, preset

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.hydra_context, self.config = hydra_context, config
        self.blocks = overrides.read_blocks(config)
        for name, grid in {"instead": self.instead, "preset": self.preset}.items():
            overrides.refuse_mistakes(grid, f"hydra.sweeper.{name}", config)
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> Any:
        assert self.launcher is not None
        combinations = self.expand(arguments)
        if not invocation.get_current().has_launcher:  # for a worker, the launcher has printed the notes already
            for note in filter(None, map(override_remedy.note_on_sweep, arguments)):
                words.say(note)
        with command_line.restore_environment():
            returns = self.launcher.launch(combinations, initial_job_idx=0)
        # Other launchers may run studies in separate processes; `return_value` raises the error of a failed one.
        _exit_unless_0(max((study.return_value or 0 for study in returns), default=0))
        return [returns]

    def expand(self, arguments: list[str]) -> list[list[str]]:
        """Return the overrides of every combination, from the layers that the module lists."""
        assert self.hydra_context is not None and self.config is not None
        parser = OverridesParser.create(config_loader=self.hydra_context.config_loader)
        typed = [override for override in parser.parse_overrides(list(arguments)) if not _is_of_blocks(override)]
        typed, blocks = _select_modes(typed, self.blocks)
        groups = overrides.GLOBAL_GROUPS
        swept = [override for override in typed if override.is_sweep_override() and override.key_or_group in groups]
        if swept:
            group = swept[0].key_or_group
            raise ConfigError(f"{swept[0].input_line} cannot be swept; start a study for each {group}")
        keys = [override.get_key_element().lstrip("+~") for override in typed]
        if "window" in self.preset and "window=work" in arguments:
            duration = self.config.hydra.runtime.choices.duration
            raise ConfigError(f"window=work runs whole epochs, but +duration={duration} measures windows; remove one")
        instead = _drop_overridden(keys, self.instead)
        combinations: list[list[str]] = []
        for block in _select_blocks(keys, blocks) or [{}]:
            preset = _drop_overridden([*keys, *instead, *block], self.preset)
            if "mix" in block:  # the result is the total time of its work, which a steady window does not have
                preset.pop("window", None)
            remaining = _drop_overridden([*keys, *instead], block, functools.partial(self._is_option, typed))
            grid = {**preset, **remaining, **instead}
            combinations += overrides.list_combinations(
                [*parser.parse_overrides([_as_override(*item) for item in grid.items()]), *typed]
            )
        if not combinations:
            none = next((word for word in arguments if "glob(" in word or "range(" in word), " ".join(arguments))
            raise ConfigError(f"{none} matches no value; use existing values")
        return combinations

    def _is_option(self, typed: Sequence[Override], key: str) -> bool:
        """Return whether this is an option of a block's workload that the workloads on the command line have too.

        For example, `workload=resnet152_imagenet` keeps a block's `workload.step_mode`. The options of another GPU or
        scenario, such as a device or a profile, need not make sense for a new one.
        """
        parent, _, name = key.rpartition(".")
        choices = [choice for choice in typed if key.startswith(f"{user_command.place_of(choice.get_key_element())}.")]
        if not key.startswith(_PROGRAMS) or not choices:
            return False
        composed = (self._compose_choices(*words) for words in overrides.list_combinations(choices))
        return all(name in (OmegaConf.select(config, parent) or {}) for config in composed)

    @functools.lru_cache  # noqa: B019  one sweeper a program
    def _compose_choices(self, *words: str) -> DictConfig:
        assert self.hydra_context is not None and self.config is not None
        return self.hydra_context.config_loader.load_sweep_config(self.config, list(words))


def _is_of_blocks(override: Override) -> bool:
    is_one = override.key_or_group.partition(".")[0] == overrides.BLOCKS
    if is_one and override.is_sweep_override():
        raise ConfigError(f"{override.input_line} is not a list of grids; write 'blocks=[{{degree: 2}},...]'")
    return is_one


def _select_blocks(keys: Sequence[str], blocks: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Return the blocks that allow the number of jobs on the command line; if there are none, return all blocks.

    In the latter case, composing a block fails later, with an error message.
    """
    for key, other in _EITHER.items():
        taking = [block for block in blocks if other not in block]
        if key in keys and taking and len(taking) < len(blocks):
            words.say(f"note: {key} skips the {len(blocks) - len(taking)} of {len(blocks)} blocks that set {other}")
            return taking
    return blocks


def _select_modes(
    typed: list[Override], blocks: Sequence[Mapping[str, Any]]
) -> tuple[list[Override], Sequence[Mapping[str, Any]]]:
    """Select the blocks of the sharing modes on the command line, if one of these blocks sets options of its mode.

    A block of another mode would measure the chosen mode without such options. For example, `scenario=mps_percent`
    selects the percentages of an experiment that also has static partitions.

    Returns:
        The overrides without `scenario`, and the selected blocks with the chosen ones of their modes; unchanged if a
        mode is in no block.
    """
    choices = [override for override in typed if override.key_or_group == "scenario" and not override.is_delete()]
    modes = {word.partition("=")[2] for combination in overrides.list_combinations(choices) for word in combination}
    in_blocks = [[mode for mode in str(block.get("scenario", "")).split(",") if mode in modes] for block in blocks]
    selected = [
        {**block, "scenario": ",".join(block_modes)}
        for block, block_modes in zip(blocks, in_blocks, strict=True)
        if block_modes
    ]
    has_options = any(key.startswith("scenario.") for block in selected for key in block)
    if not has_options or not modes.issubset(mode for block_modes in in_blocks for mode in block_modes):
        return typed, blocks
    if len(selected) < len(blocks):
        words.say(f"note: scenario skips the {len(blocks) - len(selected)} of {len(blocks)} blocks of other modes")
    return [override for override in typed if override not in choices], selected


def _drop_overridden(
    keys: Sequence[str], block: Mapping[str, Any], is_kept: Callable[[str], bool] = lambda _: False
) -> dict[str, Any]:
    """Return a block without the overridden keys and the keys below them, except for those that are kept.

    For example, `scenario` also drops `scenario.profile`, because a new scenario may not have this key.
    """
    prefixes = tuple(f"{user_command.place_of(key)}." for key in keys)
    return {
        key: grid
        for key, grid in block.items()
        if not f"{user_command.place_of(key)}.".startswith(prefixes) or is_kept(key)
    }


def _as_override(key: str, value: Any) -> str:
    """Return an override. A text is used unchanged, and may have several values; a list is one value."""
    return f"{key}={value if isinstance(value, str) else override_values.format_override(value)}"


def _exit_unless_0(status: int) -> None:
    """Exit with the status of a failed study, because Hydra ignores return values."""
    if status != 0:
        sys.exit(status)


class StudyLauncher(Launcher):
    """A launcher that composes all combinations and passes them to `pipeline.study`."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.hydra_context, self.config = hydra_context, config
        self.is_group: dict[str, bool] = {}
        self.composed: dict[tuple[str, ...], tuple[bytes, HydraConf | None]] = {}

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run the study; raise `SystemExit` if its exit status is not 0."""
        setup_globals()
        _exit_unless_0(self.execute([self.compose(list(overrides)) for overrides in job_overrides]))
        return [JobReturn(overrides=list(o), status=JobStatus.COMPLETED, _return_value=0) for o in job_overrides]

    def execute(self, configs: Sequence[DictConfig]) -> int:
        from pipeline.study.execution import execute

        return execute(configs, is_sweep=True)

    def compose(self, words: list[str]) -> DictConfig:
        """Return the configuration of one combination.

        Composing files takes 100 ms, but many combinations of a sweep choose the same files. So each choice is composed
        once, and values are set in a copy. The copy is unpickled, which is the fastest way (1 ms).
        """
        loader = self.hydra_context.config_loader
        parsed = OverridesParser.create(config_loader=loader).parse_overrides(words)
        choices = [override for override in parsed if self.chooses_a_group(override)]
        key = tuple(sorted(str(override.input_line) for override in choices))
        if key not in self.composed:
            composed = loader.load_sweep_config(self.config, list(key))
            HydraConfig.instance().set_config(composed)
            with open_dict(composed):
                del composed["hydra"], composed[overrides.BLOCKS]
            self.composed[key] = pickle.dumps(composed), HydraConfig.instance().cfg
        text, hydra_conf = self.composed[key]
        config: DictConfig = pickle.loads(text)  # noqa: S301  pickled above
        values = [o for o in parsed if o not in choices and not o.get_key_element().startswith("hydra.")]
        try:
            overrides.set_values(values, config)
        except HydraException as error:
            if not choices:
                raise
            combination = " ".join(str(override.input_line) for override in choices)
            has_blocks = bool(OmegaConf.select(self.config, overrides.BLOCKS))
            remedy = "" if has_blocks else "; put settings of single combinations into blocks of an experiment file"
            raise ConfigError(
                f"{command_line.explain(error)} (in the combination with {combination}{remedy})"
            ) from error
        if settings := self.config.hydra.sweeper.get("small"):
            fixed = {user_command.place_of(word.partition("=")[0]) for word in self.config.hydra.overrides.task}
            job_entries.make_small(config, fixed | set(self.config.hydra.sweeper.instead), settings)
        if b"${hydra:" in text or any("${hydra:" in str(override.value()) for override in values):
            HydraConfig.instance().cfg = hydra_conf  # HydraConfig may have the combination that was composed last
            OmegaConf.resolve(config)
        return config

    def chooses_a_group(self, override: Override) -> bool:
        """Return whether an override chooses a file of `conf/` instead of setting a value."""
        group = override.key_or_group
        if group not in self.is_group:
            # `get_group_options` of the loader would copy all sources first, which takes ten times as long.
            sources = [source for source in self.hydra_context.config_loader.get_sources() if source.is_group(group)]
            self.is_group[group] = any(source.list(group, ObjectType.CONFIG) for source in sources)
        return self.is_group[group]


class GpusLauncher(StudyLauncher):
    """A launcher that assigns the shards of a study to the GPUs of this host."""

    def __init__(self, devices: Any) -> None:
        self.devices = devices

    def execute(self, configs: Sequence[DictConfig]) -> int:
        from pipeline.scale import local_gpus

        return self.run_with_workers(configs, local_gpus.run)

    def run_with_workers(self, configs: Sequence[DictConfig], engine: Callable[..., int]) -> int:
        """Run the study with an engine that starts workers on the GPUs."""
        from pipeline.study.execution import execute

        return execute(configs, is_sweep=True, engine=functools.partial(engine, devices_option=self.devices))


class BesideLauncher(GpusLauncher):
    """A launcher that measures the shards of a study on one GPU, alone and while other GPUs of the host work."""

    def execute(self, configs: Sequence[DictConfig]) -> int:
        from pipeline.scale import interference

        return self.run_with_workers(configs, interference.run)


class WorkerLauncher(GpusLauncher):
    """A launcher that runs the shards that its parent process requests, one after another."""

    def execute(self, configs: Sequence[DictConfig]) -> int:
        from pipeline.scale import worker

        return worker.run(configs)


class SlurmLauncher(StudyLauncher):
    """A launcher that assigns the shards of a study to the tasks of a Slurm job array."""

    def __init__(self, **options: Any) -> None:
        self.options = SlurmOptions(**options)

    def execute(self, configs: Sequence[DictConfig]) -> int:
        from pipeline.scale import slurm
        from pipeline.study.execution import execute

        return execute(configs, is_sweep=True, engine=functools.partial(slurm.run, options=self.options))


@dataclass
class SweeperConf:
    """`hydra.sweeper`.

    Attributes:
        instead: overrides with precedence over the overrides of blocks.
        small: how workloads are made small: `stand_in` is the option class that replaces programs without an option
            class, and `sets` has values by key.
        preset: overrides with precedence over the files; those of blocks have precedence. A mix keeps its window.
    """

    _target_: str = "hydra_plugins.study.StudySweeper"
    _convert_: str = "all"  # plain dicts, so that OmegaConf does not resolve values twice
    instead: dict[str, Any] = field(default_factory=dict)
    small: dict[str, Any] = field(default_factory=dict)
    preset: dict[str, Any] = field(default_factory=dict)


@dataclass(kw_only=True)
class SlurmLauncherConf(SlurmOptions):
    """`hydra.launcher` with `hydra/launcher=slurm`."""

    _target_: str = "hydra_plugins.study.SlurmLauncher"
    _convert_: str = "all"


ConfigStore.instance().store(group="hydra/sweeper", name="study", node=SweeperConf, provider="collocation")
# `devices` has GPUs by index or UUID, or is `all` for all free GPUs. The launcher `beside` measures the first GPU.
for _name, _launcher, _options in (
    ("study", StudyLauncher, {}),
    ("gpus", GpusLauncher, {"devices": "all"}),
    ("beside", BesideLauncher, {"devices": "all"}),
    ("worker", WorkerLauncher, {"devices": "all"}),
):
    _node = {"_target_": f"hydra_plugins.study.{_launcher.__name__}", **_options}
    ConfigStore.instance().store(group="hydra/launcher", name=_name, node=_node, provider="collocation")
ConfigStore.instance().store(group="hydra/launcher", name="slurm", node=SlurmLauncherConf, provider="collocation")
