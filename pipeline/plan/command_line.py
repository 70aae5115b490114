"""Run a command line and return its exit status; explain an error in one line with its remedy.

Arguments are put in an order that Hydra's parser accepts: options, overrides of all jobs, deferred overrides. Hydra
raises its errors instead of printing them if HYDRA_FULL_ERROR is set; processes of a study get the user's environment.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import yaml
from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import BooleanNode, DictConfig, EnumNode, FloatNode, IntegerNode, ListConfig, OmegaConf, StringNode
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, GrammarParseError, OmegaConfBaseException

from pipeline.base.domain.config_choices import list_choices
from pipeline.base.system import entry_points, interrupts, user_command, words
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.interrupts import Interrupted
from pipeline.base.system.paths import config_folders
from pipeline.base.system.secrets import mask_text
from pipeline.plan import option_loader, override_remedy, overrides
from pipeline.plan.config_schema import Config

_IN_A_HOME = re.compile(r"^([\w.@/+-]+=)(~[^\s,:='\"()\[\]{}\\]*)$")
_SEVERAL_VALUES = re.compile(r"Ambiguous value for argument '(.*)'")
_REFUSED_VALUE = re.compile(r"Error merging override (.*)", re.DOTALL)
_SWEPT_OPTION = re.compile(r"Sweeping over Hydra's configuration is not supported : '(?P<key>[^=]*)=(?P<values>.*)'")
_NO_FILE = re.compile(r"In '.*': Could not load '(.*)/(.*)'")
_IN_FILE = re.compile(r"In '(.*)': \w+ raised while composing config")
_NO_FOLDER = re.compile(r"Additional config directory '(.*)' not found")
_IS_PRESENT = re.compile(r"Could not append to config\. An item is already at '(.*?)'")
_NEEDS_PLUS = re.compile(r"Could not override '(.*)'\.")
_DELETION = re.compile(
    r"Could not delete from config\. The value of '(?P<key>.*?)' is"
    r"|Config group override deletion value must be a string : .*key_or_group='(?P<group>.*?)'"
)
_WANTED = {IntegerNode: "a whole number", FloatNode: "a number", BooleanNode: "true or false", StringNode: "a text"}
_CONDITIONS = {"window.epochs": "window=work"}
"""Keys that have an effect only with another setting."""
_MOST_NAMED = 4
_SEARCH_PATH = "Config search path"
_TRACEBACK_VARIABLE = "HYDRA_FULL_ERROR"
_environments: list[str | None] = []
"""Earlier values of the variable, one for each active `raise_errors`, newest last."""
COMPLETION = ("--shell-completion", "-sc")
_MODES = ("cfg", "info", "multirun", "run", "shell_completion")
_INFO = ("--info", "-i")


def run(main: Callable[[], None]) -> int:
    """Run a Hydra program and return its exit status; explain why its configuration cannot be composed.

    Raises:
        SystemExit: a study ended with an exit status other than 0.
    """
    try:
        words_given = [*folder_to_complete(sys.argv[1:]), *sys.argv[1:]]
        sys.argv[1:] = arrange([quote_home(word) for word in user_command.make_overrides(words_given)])
        main()
    except Interrupted as interrupted:
        words.say(str(interrupted))
        return interrupted.exit_status
    except Exception as error:  # noqa: BLE001  Hydra raises exceptions of many types for a wrong command line
        if (signalled := interrupts.find_interruption(error)) is not None:
            words.say(str(signalled))
            return signalled.exit_status
        if set(COMPLETION) & set(sys.argv):
            return 2  # a shell would print the error into the line that the user is typing
        if is_traceback_wanted():
            traceback.print_exc()
        words.say(f"error: {mask_text(explain(error))}")
        return 2
    return 0


def quote_home(argument: str) -> str:
    """Quote `KEY=~/folder`, which Hydra refuses without quotes.

    Raises:
        ConfigError: the argument has no key, for which Hydra reports an unrelated error.
    """
    if re.fullmatch(r"[+~]*(?:[@=].*)?", argument, re.DOTALL):
        raise ConfigError(f"{argument or repr(argument)} names no key; write KEY=VALUE, as in gpu=cpu")
    return _IN_A_HOME.sub(r"\1'\2'", argument)


def explain(error: Exception) -> str:
    """Explain why Hydra refuses a command line or a configuration file.

    Hydra's own message spans many lines and proposes `+` for a misspelt key.
    """
    if isinstance(error, ConfigError):
        return str(error)
    if isinstance(error, MissingConfigException) and error.options:
        group, _, choice = str(error.missing_cfg_file).rpartition("/")
        return _explain_missing(group, choice, error.options)
    if isinstance(error, OverrideParseException):
        return override_remedy.explain_unreadable(str(error.override), explain_refusal)
    if isinstance(error, yaml.MarkedYAMLError) and error.problem == "found unhashable key" and error.problem_mark:
        place = f"{error.problem_mark.name}, line {error.problem_mark.line + 1}"
        return f'{place}: a list is not a key; quote several values: mix: "[M,S],[M,S,S]"'
    cause, text = error.__cause__, str(error)
    if (in_file := _IN_FILE.match(text)) and isinstance(config_error := error.__context__, OmegaConfBaseException):
        if overrides.lacks_header(in_file[1]):
            return overrides.explain_missing_header(in_file[1])
        return f"{in_file[1]}.yaml: {_explain_in_file(config_error, in_file[1])}"
    if isinstance(cause, ConfigAttributeError | ConfigKeyError) and cause.full_key:
        return _explain_unknown(cause.full_key, cause.parent_node)
    if isinstance(cause, OmegaConfBaseException) and (refused := _REFUSED_VALUE.fullmatch(text)):
        if isinstance(cause, GrammarParseError):
            return override_remedy.explain_interpolation(refused[1])
        return f"{refused[1]} {explain_refusal(refused[1].partition('=')[0].lstrip('+'), cause)}"
    return _explain_words(text.partition(_SEARCH_PATH)[0], is_of_hydra=isinstance(error, HydraException))


def _explain_words(text: str, *, is_of_hydra: bool) -> str:
    if "Config group override must be a string or a list" in text:
        help_command = entry_points.spell("run", "--help")
        return (
            "a group needs the name of one choice, such as gpu=cpu, and a GPU by its number is gpu.device=0; "
            f"{help_command} lists all choices"
        )
    if present := _IS_PRESENT.match(text):
        return f"{present[1]} already exists; write {present[1]}=VALUE without the plus"
    if folder := _NO_FOLDER.match(text):
        return _explain_missing_folder(Path(folder[1]))
    if missing := _NO_FILE.match(text):
        return _explain_missing(missing[1], missing[2], list_choices(missing[1]))
    if (unset := _NEEDS_PLUS.match(text)) and (choices := list_choices(unset[1])):
        value = next((word.partition("=")[2] for word in sys.argv if word.startswith(f"{unset[1]}=")), "...")
        alternatives = "" if value in choices else f", one of {', '.join(choices)}"
        return (
            f"{unset[1]}={value} needs a plus; write +{unset[1]}={value if not alternatives else '...'}{alternatives}"
        )
    if swept := _SWEPT_OPTION.match(text):
        return f"{swept['key']} cannot be swept; write a list as '{swept['key']}=[{swept['values']}]'"
    if several := _SEVERAL_VALUES.match(text):
        return override_remedy.explain_several(several[1])
    if deleted := _DELETION.match(text):
        key = deleted["key"] or deleted["group"]
        return f"~{key}=VALUE does not match the value of {key}; write ~{key}"
    lines = [line.strip() for line in text.splitlines()]
    message = "; ".join(line.rstrip(".") for line in lines if line)
    return message if is_of_hydra else f"the configuration cannot be read: {message}"


def _explain_in_file(cause: OmegaConfBaseException, file: str) -> str:
    key = str(cause.full_key or cause.key or "")
    if isinstance(cause, ConfigAttributeError | ConfigKeyError):
        group, _, name = key.rpartition(".")
        schema = cause.parent_node if isinstance(cause.parent_node, DictConfig) else {}
        target = schema.get("_target_") or schema.get("options")
        if target and group == file.rpartition("/")[0]:
            folder = "" if group == "workload" else f"{group}/"
            return (
                f"{key} is not an option of {target}; write in the class, below @dataclass, {name}: TYPE = DEFAULT, "
                f"and in the YAML defaults: [/schema/{folder}MODULE.CLASS@_here_, _self_]"
            )
        return _explain_unknown(key, cause.parent_node)
    return f"{key} {explain_refusal(key, cause)}" if key else str(cause).splitlines()[0]


def _explain_missing(group: str, choice: str, choices: Iterable[str]) -> str:
    if group == "schema":
        return f"/schema/{choice} does not exist; name an option class as /schema/MODULE.CLASS"
    names = sorted(set(choices))
    near = difflib.get_close_matches(choice, names, n=1)
    remedy = f"choose one of {', '.join(names)}" if names else f"{group} has no choices"
    return f"{group}={choice} does not exist; {f'did you mean {near[0]}? Or ' if near else ''}{remedy}"


def _explain_missing_folder(folder: Path) -> str:
    siblings = [path.name for path in folder.parent.iterdir() if path.is_dir()] if folder.parent.is_dir() else []
    near = difflib.get_close_matches(folder.name, siblings, n=1)
    remedy = f"did you mean {folder.parent / near[0]}?" if near else "name a folder with configuration files"
    return f"--config-dir {folder} does not exist; {remedy}"


_OTHER_WORDS = {
    **dict.fromkeys(("mode", "modes", "sharing"), "scenario"),
    **dict.fromkeys(("copies", "jobs"), "degree"),
    "minutes": "advise_minutes",
    "store": "tracking.root",
    "tracking_uri": "tracking.uri",
}
"""Names that users give to keys."""


def explain_unknown_key(key: str, keys: Iterable[str]) -> str:
    """Explain that a key, such as `workload.batchsize`, does not exist; `keys` are the keys of its parent."""
    parent, dot, name = key.rpartition(".")
    names = sorted(set(keys) - {"hydra"})
    near = _list_near(name, names)
    if not parent and (meant := _find_key(name)):
        near = [meant]
    remedy = f"choose one of {', '.join(names)}" if names else f"{parent} has no settings"
    is_short = parent == "workload" and near and not difflib.get_close_matches(name, near)
    flag = f" (for a script: workload.flags.{name})" if is_short else ""
    return f"{key} does not exist; {f'did you mean {parent}{dot}{near[0]}?{flag}' if near else remedy}"


def _list_near(name: str, names: Iterable[str]) -> list[str]:
    """List the most similar name, or else names whose words have these initials: `lr`, `learning_rate`."""
    candidates = list(names)
    initials = [key for key in candidates if "".join(word[:1] for word in key.split("_")) == name]
    return difflib.get_close_matches(name, candidates, n=1) or initials


def explain_unknown_keys(node: Any, prefix: str = "") -> Iterator[str]:
    """Explain each key of a typed configuration that its schema lacks, such as a key that `+KEY` added."""
    if dataclasses.is_dataclass(node):
        field_names = [field.name for field in dataclasses.fields(node)]
        yield from (explain_unknown_key(f"{prefix}{key}", field_names) for key in vars(node) if key not in field_names)
        node = vars(node)
    if isinstance(node, dict):
        for key, value in node.items():
            yield from explain_unknown_keys(value, f"{prefix}{key}.")


def _explain_unknown(key: str, parent: Any) -> str:
    if not isinstance(parent, DictConfig):
        return explain_unknown_key(key, ())
    if OmegaConf.get_type(parent) is dict:
        return f"{key} does not exist; add it with +{key}=VALUE"
    keys = [str(name) for name in parent if name != "_target_"]
    group, _, name = key.rpartition(".")
    if _list_near(name, keys):
        return explain_unknown_key(key, keys)
    if "metric_pattern" in keys:
        return f"{key} is not a setting of scripts; write {group}.flags.{name}=VALUE to pass --{name} VALUE"
    if choices := [choice for choice in list_choices(group) if name in option_loader.list_keys(group, choice)]:
        selected = OmegaConf.select(parent, "name", throw_on_missing=False)
        if choices == ["script"] and any(word.startswith("mix=") for word in sys.argv):
            return f"{key} has no effect with a mix; {user_command.KEYS_OF_A_MIX}"
        some = choices if len(choices) <= _MOST_NAMED else [*choices[:_MOST_NAMED], "others"]
        current = f"{group}={selected}" if selected else f"this {group}"
        return f"{key} does not exist in {current}; add {group}={' or '.join(some)}"
    if other_keys := list(_list_keys_named(name, parent._get_root())):
        return f"{key} does not exist; did you mean {' or '.join(other_keys)}?"
    return explain_unknown_key(key, keys)


def _list_keys_named(name: str, root: Any) -> Iterator[str]:
    """Yield the keys of the configuration with this name, at the top level or one level below."""
    for key in map(str, root):
        node = OmegaConf.select(root, key, throw_on_missing=False, throw_on_resolution_failure=False)
        if key == name:
            yield key
        elif key != "hydra" and isinstance(node, DictConfig) and name in node:
            place = f"{key}.{name}"
            yield f"{place}, with {_CONDITIONS[place]}" if place in _CONDITIONS else place


def explain_refusal(key: str, cause: OmegaConfBaseException) -> str:
    """Explain which values a key accepts after it refused a value, as the predicate of a sentence."""
    message = str(cause).splitlines()[0]
    if "is not a subclass of" in message:
        group = key.partition(".")[0]
        help_command = entry_points.spell("run", "--help-keys", group)
        return f"must be a map; set {key}.NAME=VALUE ({help_command} lists the names)"
    if isinstance(cause.parent_node, ListConfig) and isinstance(cause.key, int):
        type_words = next((words for kind, words in _WANTED.items() if f" to {kind.__name__[:-4]}" in message), None)
        return f"holds {cause.value}; {f'each element must be {type_words}' if type_words else message}"
    if "is not a ListConfig" in message or isinstance(cause.parent_node, ListConfig):
        return f"must be a list; write '{key}=[A,B]'"
    node = cause.child_node
    if isinstance(node, DictConfig) or "not assignable to" in message or "Cannot merge DictConfig" in message:
        return f"must be a map; write {key}.NAME=VALUE or '{key}={{NAME: VALUE}}'"
    if isinstance(node, EnumNode):
        return f"must be one of {', '.join(node.enum_type.__members__)}"
    type_words = next((words for kind, words in _WANTED.items() if isinstance(node, kind)), None)
    return f"cannot have this value: {message}" if type_words is None else f"must be {type_words}"


def is_traceback_wanted() -> bool:
    """Return whether the user has set the variable to request tracebacks."""
    return (_environments[0] if _environments else os.environ.get(_TRACEBACK_VARIABLE)) == "1"


@contextmanager
def raise_errors() -> Iterator[None]:
    """Make Hydra raise its errors in this process."""
    _environments.append(os.environ.get(_TRACEBACK_VARIABLE))
    try:
        with _variable("1"):
            yield
    finally:
        _environments.pop()


@contextmanager
def restore_environment() -> Iterator[None]:
    """Restore the user's environment for processes that start within the context."""
    with _variable(_environments[0] if _environments else os.environ.get(_TRACEBACK_VARIABLE)):
        yield


@contextmanager
def _variable(value: str | None) -> Iterator[None]:
    before = os.environ.pop(_TRACEBACK_VARIABLE, None)
    os.environ.update({} if value is None else {_TRACEBACK_VARIABLE: value})
    try:
        yield
    finally:
        os.environ.pop(_TRACEBACK_VARIABLE, None)
        os.environ.update({} if before is None else {_TRACEBACK_VARIABLE: before})


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
    option = re.match(r"unrecognized arguments: (--([A-Za-z][\w.-]*))", message)
    following = re.search(rf"(?:^|\n){option[1]}[=\n]([^\n=-]+)(?:\n|$)", "\n".join(arguments)) if option else None
    remedy = "options of your program follow its name; " if option else ""
    if option and following and (key := _find_key(option[2].replace("-", "_"))):
        remedy = f"write {key}={following[1]}, or "
    raise ConfigError(f"{message}; {remedy}see {help_command} and --hydra-help")


def _find_key(word: str) -> str | None:
    """Return the key that a user meant by an option: the same, another word for it, or one that is spelled alike."""
    keys = [option.name for option in dataclasses.fields(Config)]
    alike = difflib.get_close_matches(word, [*keys, *_OTHER_WORDS], n=1, cutoff=0.75)
    if word.partition(".")[0] in keys:
        return word
    alike = alike or [part for part in word.split("_") if part in _OTHER_WORDS]  # of `max_copies`
    return _OTHER_WORDS.get(alike[0], alike[0]) if alike else None


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
