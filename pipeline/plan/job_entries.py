"""The jobs of one configuration: copies of its workload, or a mix of sizes and command lines; small workloads."""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from pipeline.base.system import user_command
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.paths import expand_path
from pipeline.base.system.words import format_list
from pipeline.plan import brace_expansion, command_line, option_loader
from pipeline.plan.config_schema import BRACES, Config
from pipeline.plan.script_options import ScriptConfig
from pipeline.plan.workload_config import WorkloadConfig

_OF_A_WORKLOAD = re.compile(r"(?P<place>workload|sizes\.(?P<size>[^.]+))(\.(?P<below>.+))?")
_DEFAULT_DEGREE = 2
_MODES_OF_PACKS = ("naive", "mps")
_MAX_DEGREE = 10_000
Entries = list[tuple[str | None, WorkloadConfig]]
"""Workload of each job, with its size; the size is `None` for other workloads."""
WORKLOAD = "workload"
"""Entry of a mix that stands for the program of the key `workload`."""
COMMAND = "command"
"""Key of a command line in a mix entry; an entry also has the keys of a script."""


def list_jobs(config: Config) -> Entries:
    """Return the workload of each measured job, with its size if it has one.

    Raises:
        ConfigError: the mix is empty, both a degree and a mix are set, or an entry of the mix cannot be read.
    """
    if config.pack.trials is not None:
        return [(None, trial) for trial in _list_trials(config, config.pack.trials)]
    if config.mix is None:
        degree = _DEFAULT_DEGREE if config.degree is None else config.degree
        if not 1 <= degree <= _MAX_DEGREE:
            raise ConfigError(f"degree={degree} must be from 1 to {_MAX_DEGREE}")
        return [(None, config.workload)] * degree
    if not config.mix:
        raise ConfigError("mix=[] names no job; add sizes or command lines, as in mix=[S,M]")
    if config.degree is not None:
        raise ConfigError(
            f"mix={format_list(config.mix)} and degree={config.degree} both set the number of jobs; remove degree, and "
            "repeat an entry of the mix for more copies"
        )
    return [_read_entry(entry, config) for entry in config.mix]


def _list_trials(config: Config, source: str) -> list[ScriptConfig]:
    """Return the program of each trial of a pack; equal ones are one object."""
    if config.mix is not None or config.degree is not None or config.scenario.name not in _MODES_OF_PACKS:
        raise ConfigError(
            f"pack.trials={source} lists the jobs, which run under scenario=naive or mps; remove mix, degree and "
            "other sharing modes"
        )
    workload = config.workload
    if not isinstance(workload, ScriptConfig):
        raise ConfigError(f"pack.trials={source} runs scripts, not workload={workload.name}; write -- train.py")
    if source == BRACES:
        commands = brace_expansion.expand_words([workload.script, *workload.argument_words()])
    else:
        path = expand_path("pack.trials", source)
        try:
            commands = brace_expansion.read_commands(path.read_text(encoding="utf-8"), source)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise ConfigError(f"pack.trials={source} cannot be read: {reason}; check the path") from error
        commands = [[program, *args] for program, args in (_parse_command(words, source) for words in commands)]
    trials: dict[tuple[str, ...], ScriptConfig] = {}
    for words in map(tuple, commands):
        if words not in trials:
            name = workload.name if source == BRACES else ""
            trials[words] = dataclasses.replace(workload, name=name, script=words[0], args=[*words[1:]])
    first, step = _parse_part(config.pack.part, len(commands))
    return [trials[tuple(words)] for words in commands[first - 1 :: step]]


def _parse_part(part: str | None, num_trials: int) -> tuple[int, int]:
    """Return the number of the first trial of a part, and the number of parts."""
    if part is None:
        return 1, 1
    first, _, number = part.partition("/")
    if not (first.isdecimal() and number.isdecimal() and 1 <= int(first) <= int(number) <= num_trials):
        raise ConfigError(f"pack.part={part} is no part of {num_trials} trials; write I/N, as in pack.part=1/2,2/2")
    return int(first), int(number)


def _parse_command(words: list[str], source: str) -> tuple[str, list[str]]:
    return user_command.parse_program(words, f"a line of {source}")


def split_loads(config: Config) -> tuple[Entries, Entries]:
    """Split the jobs into measured jobs and loads, which run until a program that cannot be stopped ends.

    Without such a program, no job is a load, because all jobs have one steady window; nor if jobs run in turn.
    """
    entries = list_jobs(config)
    if config.scenario.sequential or not any(workload.ends_by_itself for _, workload in entries):
        return entries, []
    loads = [entry for entry in entries if entry[1].is_load]
    return [entry for entry in entries if not entry[1].is_load], loads


def list_co_runners(config: Config) -> Entries:
    """Return the workload of each co-runner: copies of `workload`, or sizes.

    Raises:
        ConfigError: no job is measured, or a co-runner cannot be stopped.
    """
    request = config.co_runners
    if request is None or request == 0 or request == []:
        return []
    setting = f"co_runners={format_list(request) if isinstance(request, list) else request}"
    if config.scenario.sequential:
        raise ConfigError(
            f"{setting} cannot run with scenario={config.scenario.name}, which runs one job at a time; "
            "remove co_runners"
        )
    if config.degree == 0 or config.mix == []:
        raise ConfigError(f"{setting} needs measured jobs; set degree=1 or a mix")
    if type(request) is int and request > 0:
        entries: Entries = [(None, config.workload)] * request
    elif isinstance(request, list) and all(isinstance(entry, str) and entry in config.sizes for entry in request):
        entries = [(entry, config.sizes[entry]) for entry in request]
    else:
        raise ConfigError(
            f"{setting} must be a number of copies of the workload, or a list of sizes: "
            f"{format_list(sorted(config.sizes))}"
        )
    for _, workload in entries:
        if workload.ends_by_itself:
            raise ConfigError(
                f"{setting}: {workload.name} cannot be stopped; choose a workload of the project or a program that "
                "uses the job protocol"
            )
    return entries


def refuse_unread(typed: Iterable[str], configs: Sequence[Config], composed: Sequence[DictConfig]) -> None:
    """Refuse typed settings of a workload that no combination runs or refers to, because they have no effect.

    Args:
        typed: the words of the command line.
        configs: the configurations of all combinations.
        composed: the same configurations with their interpolations.

    Raises:
        ConfigError: a word chooses an unused workload or sets a key of an unused workload.
    """
    run = set().union(*map(_list_places, configs))
    for word in typed:
        key, is_set, value = word.partition("=")
        match = _OF_A_WORKLOAD.fullmatch(user_command.place_of(key))
        if (
            match is None
            or not is_set
            or word.startswith("~")
            or match["place"] in run
            or _is_referred_to(match["place"], composed)
        ):
            continue
        if size := match["size"]:
            raise ConfigError(
                f"{word} has no effect, because no job has the size {size}; add the size, as in 'mix=[{size}]'"
            )
        mix = next(config.mix for config in configs if config.mix)
        size = next((entry for entry in mix if isinstance(entry, str) and entry in configs[0].sizes), None)
        place = f"sizes.{size}.{match['below']}" if match["below"] else f"workload@sizes.{size}"
        is_of_script = value == "script" or match["below"] in {field.name for field in fields(ScriptConfig)}
        remedy = user_command.KEYS_OF_A_MIX if is_of_script else "remove one of these keys"
        instead = f"set {place}={value} instead" if size else remedy
        raise ConfigError(f"{word} has no effect with mix={format_list(mix)}; {instead}")


def _list_places(config: Config) -> set[str]:
    names = [*(config.mix or []), *(config.co_runners if isinstance(config.co_runners, list) else [])]
    places = {f"sizes.{name}" for name in names if isinstance(name, str)}
    is_run = not config.mix or type(config.co_runners) is int or WORKLOAD in names
    return places | {WORKLOAD} if is_run else places


def _is_referred_to(place: str, composed: Sequence[DictConfig]) -> bool:
    refers = re.compile(rf"\$\{{[^}}]*\b{re.escape(place)}\b")
    return any(refers.search(str(OmegaConf.to_container(config))) for config in composed)


def _read_entry(entry: Any, config: Config) -> tuple[str | None, WorkloadConfig]:
    if isinstance(entry, str) and entry in config.sizes:
        return entry, config.sizes[entry]
    if entry == WORKLOAD:
        return None, config.workload
    if isinstance(entry, dict):
        return None, _read_script(entry)
    if not isinstance(entry, str):
        raise ConfigError(
            f"mix: {entry} is not a job; use a size, a quoted command line, or a map with command or script"
        )
    words = _split(entry)
    script, args = user_command.parse_program(words, f"the entry '{entry}' of mix")
    if len(words) == 1 and "/" not in script and not script.endswith(".py"):
        raise ConfigError(
            f"mix: {entry} is neither one of the sizes {format_list(sorted(config.sizes))} nor a command line; add the "
            f"size with +workload@sizes.{entry}=WORKLOAD"
        )
    return None, ScriptConfig(script=script, args=args)


def replace_environment(entry: Any, file: Path) -> dict[str, Any]:
    """Return a mix entry, which must not be a size, with another environment file."""
    return {**({COMMAND: entry} if isinstance(entry, str) else entry), "env_file": str(file)}


def _read_script(entry: dict[str, Any]) -> ScriptConfig:
    keys = sorted(field.name for field in fields(ScriptConfig))
    if unknown := sorted(set(entry) - {COMMAND, *keys}):
        raise ConfigError(f"mix: {unknown[0]} is not a key of an entry; use {COMMAND}, {', '.join(keys)}")
    values = dict(entry)
    if COMMAND in values:
        command = str(values.pop(COMMAND))
        script, args = user_command.parse_program(_split(command), f"command={command} of an entry of mix")
        if conflicting := sorted({"script", "args"} & values.keys()):
            raise ConfigError(f"mix: {COMMAND} and {conflicting[0]} of an entry exclude each other; remove one")
        values |= {"script": script, "args": args}
    if values.get("script", MISSING) == MISSING:
        raise ConfigError(
            f"mix: the entry with {', '.join(map(str, entry)) or 'nothing'} names no program; add {COMMAND} or script"
        )
    try:
        typed = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(ScriptConfig), values))
    except OmegaConfBaseException as error:
        key = str(error.full_key)
        raise ConfigError(f"mix: {key} {command_line.explain_refusal(key, error)}") from error
    assert isinstance(typed, ScriptConfig)
    return typed


def _split(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError as error:
        raise ConfigError(f"mix: {command} cannot be split into words ({error}); check its quotes") from error


def make_small(config: DictConfig, fixed: Collection[str], replacements: Mapping[str, Any]) -> None:
    """Replace the workloads of a configuration by small ones.

    Args:
        config: a composed configuration.
        fixed: keys that stay unchanged, such as the command line's: options of a workload, or a program.
        replacements: `stand_in`, the option class that replaces programs without an option class, and `sets`, values
            by key; a key that a small workload lacks is ignored.

    Raises:
        ConfigError: a workload cannot be read, or the small workload lacks a fixed key.
    """
    for place in ("workload", *(f"sizes.{name}" for name in config.sizes)):
        node = OmegaConf.select(config, place)
        if OmegaConf.get_type(node) is dict:
            continue
        try:
            workload = OmegaConf.to_object(node)
        except MissingMandatoryValue as error:
            raise ConfigError(f"{error.full_key} is missing; set {error.full_key}=VALUE") from error
        except OmegaConfBaseException as error:
            raise ConfigError(f"{error.full_key}: {str(error).splitlines()[0]}") from error
        assert isinstance(workload, WorkloadConfig)
        if workload.options is None and place in fixed:
            continue
        options = _shrink(workload) if workload.options else option_loader.load(replacements["stand_in"])()
        small = OmegaConf.structured(options)
        for key, value in replacements["sets"].items():
            if key.startswith(f"{place}.") and key.removeprefix(f"{place}.") in small:
                OmegaConf.update(small, key.removeprefix(f"{place}."), value)
        for key in (key.removeprefix(f"{place}.") for key in fixed if key.startswith(f"{place}.")):
            try:
                OmegaConf.update(small, key, OmegaConf.select(node, key))
            except OmegaConfBaseException as error:
                keys = [str(name) for name in small]
                raise ConfigError(command_line.explain_unknown_key(f"{place}.{key}", keys)) from error
        OmegaConf.update(config, place, option_loader.open_maps(small), merge=False, force_add=True)


def _shrink(workload: WorkloadConfig) -> WorkloadConfig:
    with workload.hook("small"):
        options = workload.small()
        if not dataclasses.is_dataclass(options) or isinstance(options, type):
            raise ValueError(f"small returned {options!r}, not a workload; return replace(self, KEY=VALUE)")
        small = option_loader.join(options)
        try:
            OmegaConf.structured(small)
        except OmegaConfBaseException as error:
            raise ValueError(f"small: {error.full_key}: {str(error).splitlines()[0]}") from error
    if any(getattr(workload, option.name, None) != getattr(small, option.name) for option in small.option_fields()):
        small.refuse_values("small: ")
    return small
