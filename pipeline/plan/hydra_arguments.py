"""Order of arguments for Hydra's parser: options, then overrides of all jobs of a sweep, then deferred overrides."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NoReturn

from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from pipeline.base.system import entry_points
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.paths import config_folders

COMPLETION = ("--shell-completion", "-sc")
_MODES = ("cfg", "info", "multirun", "run", "shell_completion")
_INFO = ("--info", "-i")


def arrange(arguments: Sequence[str]) -> list[str]:
    """Put options before overrides, because Hydra's parser accepts no option between two overrides.

    Raises:
        ConfigError: Hydra does not accept an option, its value, or its combination with another option.
    """
    parser = get_args_parser()  # Hydra has no public function that returns its options
    parser.error = partial(_refuse, arguments)  # type: ignore[method-assign]
    options_given = vars(parser.parse_intermixed_args(list(_complete_info(arguments))))
    overrides = options_given.pop("overrides")
    if len(modes := [f"--{mode.replace('_', '-')}" for mode in _MODES if options_given[mode]]) > 1:
        raise ConfigError(f"{' and '.join(modes)} exclude each other; remove one")
    if options_given["resolve"] and not (options_given["cfg"] or options_given["help"]):
        raise ConfigError("--resolve has an effect only with --cfg; add --cfg job")
    options = {f"--{name.replace('_', '-')}": value for name, value in options_given.items() if value}
    words = [name if value is True else f"{name}={value}" for name, value in options.items()]
    return [*words, *defer_settings(overrides)]


def folder_to_complete(arguments: Sequence[str]) -> list[str]:
    """Return `--config-dir` of a line that a shell completes, because Hydra reads no options of that line."""
    if not set(COMPLETION) & set(arguments):
        return []
    typed = config_folders(os.environ.get("COMP_LINE", "").split())[1:]
    return [f"--config-dir={folder.expanduser()}" for folder in typed[-1:]]


def defer_settings(overrides: Sequence[str]) -> list[str]:
    """Defer settings of swept choices to the jobs: `-m scenario=mig,mig_mps scenario.profile=1g`.

    Before Hydra composes the jobs, it composes all unswept overrides with the group's default choice, and refuses a
    key that the default lacks. Hydra omits swept overrides in this step, so settings become sweeps over one value.
    """
    parser = OverridesParser.create()
    places = tuple(_places(overrides, parser))
    is_setting = [word.lstrip("+~").startswith(places) if places else False for word in overrides]
    settled = [word for word, is_one in zip(overrides, is_setting, strict=True) if not is_one]
    return settled + [_defer(word, parser) for word, is_one in zip(overrides, is_setting, strict=True) if is_one]


def _refuse(arguments: Sequence[str], message: str) -> NoReturn:
    help_command = entry_points.spell("run", "--help")
    option = re.match(r"unrecognized arguments: (--([A-Za-z][\w.]*))", message)
    following = re.search(rf"(?:^|\n){option[1]}[=\n]([^\n=-]+)(?:\n|$)", "\n".join(arguments)) if option else None
    remedy = f"write {option[2]}={following[1]}, or " if option and following else ""
    raise ConfigError(f"{message}; {remedy}see {help_command} and --hydra-help")


def _complete_info(arguments: Sequence[str]) -> Iterator[str]:
    """Add the value `all` to each `--info` without a value, which the next word shows."""
    for word, following in zip(arguments, [*arguments, "-"][1:], strict=True):
        yield f"{_INFO[0]}=all" if word in _INFO and ("=" in following or following.startswith("-")) else word


def _places(overrides: Sequence[str], parser: OverridesParser) -> Iterator[str]:
    for word in overrides:
        if ("," in word or "(" in word) and (override := _parse(word, parser)) and override.is_sweep_override():
            yield f"{override.package or override.key_or_group.replace('/', '.')}."


def _defer(word: str, parser: OverridesParser) -> str:
    override, (key, _, value) = _parse(word, parser), word.partition("=")
    if override is None or override.is_sweep_override():
        return word
    # choice() accepts no null; `overrides.list_combinations` counts the two nulls as one value.
    deferred = f"{key}=null,null" if override.value() is None else f"""{key}=choice({value or "''"})"""
    return word if _parse(deferred, parser) is None else deferred


def _parse(word: str, parser: OverridesParser) -> Override | None:
    try:
        return parser.parse_override(word)
    except HydraException:  # Hydra reports the error later
        return None
