"""The command line of a user's program, after `--` or in an entry of `mix`, and its conversion to Hydra overrides."""

from __future__ import annotations

import itertools
import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from pipeline.base.system import override_values
from pipeline.base.system.errors import ConfigError

OF_LAUNCHERS = (
    "hydra/launcher",
    "hydra.launcher",
    "gpu.device",
    "gpu.models",
    "shard",
    "resume",
    "time_limit_s",
    "plan_file",
    "dry_run",
)
"""Keys, including keys below them, that a launcher sets for its workers. They do not affect results."""

OF_THE_STUDY = frozenset({"baseline", "degree", "dry_run", "mix", "co_runners", "repeats", "scenario"})
"""Keys of the project that are unlikely to be keys of a user's program."""

KEYS_OF_A_MIX = (
    "give each command of the mix its keys: "
    """'mix=[{command: "a.py --lr 1", metric_pattern: "([0-9.]+) it/s", work_unit: steps},{command: ...}]'"""
)
"""The remedy for keys of a script that are set for a mix of command lines."""

_SEPARATOR = "--"
_PLAIN = re.compile(r"[A-Za-z0-9_./:-]+")
_PYTHON = re.compile(r"python(3(\.\d+)?)?")
_VARIABLE = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
# Python options without a value, options that are followed by the program, and options with a value.
_FLAGS = "bBdEhiIOPqsSuvVx"
_OPTION_OF_PYTHON = re.compile(rf"-(?:[{_FLAGS}]+|[{_FLAGS}]*[cmWX].*)", re.DOTALL)
_WITH_PROGRAM = re.compile(rf"-[{_FLAGS}]*([cm])(.*)", re.DOTALL)
_LACKING = {
    "": ("script", "train.py --epochs 3"),
    "m": ("module", "-m package.train"),
    "c": ("code", "-c 'print(1)'"),
}
_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")
_FLAG = re.compile(r"\+*([\w@./]+\.flags\.[^=]+)=")
# Keys that the command line after `--` sets.
_SAID = frozenset({"workload", "workload.script", "workload.args", "mix"})
_OF_CHOSEN = re.compile(r"mix=\[(.*,)?workload[,\]]")
"""A mix that contains the program of `workload`, which a command line may name."""


def divide(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split arguments into the project's arguments and the user's command line, which begins with `--`."""
    words = list(arguments)
    place = words.index(_SEPARATOR) if _SEPARATOR in words else len(words)
    return words[:place], words[place:]


def key_of(word: str) -> str:
    """Return the key that an argument sets; the argument itself if it is not an override."""
    return word.partition("=")[0].lstrip("+~")


def place_of(key: str) -> str:
    """Return the configuration path that a key sets: `sizes.S` for `workload@sizes.S`."""
    return key.lstrip("+~").rpartition("@")[2]


def sets(word: str, keys: Collection[str]) -> bool:
    """Return whether an argument overrides one of these keys or a key below one."""
    return "=" in word and any(key_of(word) == key or key_of(word).startswith(f"{key}.") for key in keys)


def drop_keys(arguments: Sequence[str], keys: Collection[str]) -> tuple[list[str], list[str]]:
    """Drop overrides of these keys and of keys below them; return the other arguments and the user's command line."""
    options, command_line = divide(arguments)
    return [word for word in options if not sets(word, keys)], command_line


def make_overrides(arguments: Sequence[str]) -> list[str]:
    """Replace a user's command line by overrides.

    Raises:
        ConfigError: `--` is the last word, two programs are named, a flag is given twice, or a word is not UTF-8.
    """
    for word in arguments:
        if word != word.encode("utf-8", "replace").decode():
            raise ConfigError(f"the argument {word!r} is not UTF-8; if it names a file, rename the file")
    options, command_line = divide(arguments)
    flags = Counter(match[1] for word in options if (match := _FLAG.match(word)))
    if twice := [flag for flag, times in flags.items() if times > 1]:
        raise ConfigError(f"{twice[0]} is given twice; remove one, or run both values with -m {twice[0]}=A,B")
    if not command_line:
        return options
    conflicting = [
        word for word in options if key_of(word) in _SAID and word != "workload=script" and not _OF_CHOSEN.match(word)
    ]
    if conflicting:
        raise ConfigError(f"{conflicting[0]} and `{shlex.join(command_line)}` both name a program; remove one")
    script, args = parse_program(command_line[1:], "the command line after --")
    values = [
        "workload=script",
        f"workload.script={_quote(script)}",
        f"workload.args=[{','.join(map(_quote, args))}]",
    ]
    return [*(value for value in values if value not in options), *options]


def parse_program(words: Sequence[str], subject: str) -> tuple[str, list[str]]:
    """Return program and arguments of a command line; for `python train.py --epochs 3`, the script and its arguments.

    If the arguments of `python` begin with an option, such as `-m package.train`, the program is `python`.

    Raises:
        ConfigError: the command line names no program, or names an interpreter by its path; the message begins with
            `subject`.
    """
    if not words or not words[0].strip():
        raise ConfigError(f"{subject} is empty; write a command line such as train.py --epochs 3")
    if _OPTION_OF_PYTHON.fullmatch(words[0]):
        words = ["python", *words]
    program, *args = words
    if program.startswith("-"):
        raise ConfigError(f"{subject}, {shlex.join(words)}, names no program; write train.py {program}")
    if (variable := _VARIABLE.fullmatch(program)) is not None:
        if variable[1].islower():  # variables have capitals
            raise ConfigError(f"{subject} begins with {program}; write {shlex.quote(program)} before --")
        assignment = make_override(f"workload.environ.{variable[1]}", variable[2])
        raise ConfigError(
            f"{subject} begins with the variable {variable[1]}; write {shlex.quote(assignment)} before --"
        )
    if not _PYTHON.fullmatch(Path(program).name):
        return program, args
    if program != Path(program).name:
        raise ConfigError(
            f"{subject}, {shlex.join(words)}, names an interpreter by its path; "
            f"write python, and set env=existing env.prefix={program}"
        )
    option, runs = _parse_python(args)
    if not runs.strip():
        missing, example = _LACKING[option]
        raise ConfigError(f"{subject}, {shlex.join(words)}, names no {missing}; write {program} {example}")
    # `python` with options is the program itself; it is the interpreter of the job's environment.
    return ("python", args) if args[0].startswith("-") else (args[0], args[1:])


def _parse_python(args: Sequence[str]) -> tuple[str, str]:
    words = iter(args)
    for word in words:
        if (option := _WITH_PROGRAM.fullmatch(word)) is not None:
            return option[1], option[2] or next(words, "")
        if word in _WITH_VALUE:
            next(words, None)
        elif not word.startswith("-"):
            return "", word
    return "", ""


def list_source_files(script: str, args: Iterable[str]) -> list[str]:
    """Return the Python files in a command line: the script, or the script that a launcher such as torchrun starts."""
    return [word.rpartition("=")[2] for word in (script, *args) if word.endswith(".py")]


def list_modules(script: str, args: Sequence[str]) -> list[str]:
    """Return the modules that a command line runs: `python -m package.train`, `torchrun -m package.train`."""
    if script == "python":
        option, program = _parse_python(args)
        return [program] if option == "m" and program else []
    return [name for option, name in itertools.pairwise((script, *args)) if option == "-m"]


def name_program(script: str, args: Sequence[str]) -> str:
    """Return a program's name, from its file or module: `train` for `train.py` and `torchrun train.py`."""
    files = list_source_files(script, args)
    if not files and script == "python" and (named := list_modules(script, args)):
        return named[0].rpartition(".")[2]
    return Path(files[0]).stem if files else Path(script).name


def make_override(key: str, value: object) -> str:
    """Return an override in Hydra's grammar that sets a key to exactly this value; null for `None`."""
    if value is None:
        return f"{key}=null"
    return f"{key}={value if _PLAIN.fullmatch(str(value)) else _quote(str(value))}"


def _quote(word: str) -> str:
    return override_values.format_override(escape_interpolations(word))


def escape_interpolations(text: str) -> str:
    """Escape interpolations in a text for OmegaConf, including the backslashes before them."""
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", text)
