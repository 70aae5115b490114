"""Remedies for overrides that Hydra cannot read; every proposal is parsed first, so Hydra can read it."""

from __future__ import annotations

import difflib
import itertools
import json
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from pipeline.base.domain.config_choices import list_choices
from pipeline.base.system import entry_points, override_values, user_command
from pipeline.plan import config_schema, option_loader

_KEY = re.compile(r"(?:\+{1,2})?[A-Za-z_$][\w$-]*(?:[./][\w$-]+)*(?:@[A-Za-z_$][\w$.-]*)?")
_FUNCTION = re.compile(r"(\w+)\s*\(")
_FUNCTIONS = ("choice", "glob", "interval", "range", "shuffle", "sort", "tag")
_GROUPS = ("workload", *option_loader.BASES)
_SEVERAL_CHOICES = ("listeners",)
_MOST_SHOWN = 60


def explain_unreadable(override: str, why_refused: Callable[[str, OmegaConfBaseException], str]) -> str:
    """Explain how to correct an unreadable override; `why_refused` explains which values a key accepts."""
    key, is_set, value = override.partition("=")
    shown = _abbreviate(override)
    if not is_set:
        return _explain_word(override)
    if not _KEY.fullmatch(key):
        bare = key.strip().lstrip("~")
        if _KEY.fullmatch(bare) and _reads_as(f"{bare}={value.strip()}"):
            return f"{shown} has spaces around =; write {quote(f'{bare}={value.strip()}')}"
        return f"{shown} has no valid key; write KEY=VALUE, with letters, digits, _ and . in the key"
    name = key.lstrip("+")
    choices = list_choices(name)
    if choices and name not in _SEVERAL_CHOICES:
        return f"{shown} does not exist; choose one of {', '.join(choices)}"
    proposals = [(action, word) for action, structure, word in _list_readings(key, value) if may_take(name, structure)]
    if not proposals:
        return _explain_type(shown, name, value, why_refused)
    return f"{shown} cannot be read; {_join([f'{action} {word}' for action, word in proposals])}"


def explain_several(override: str) -> str:
    """Explain how to set several values: one run for each or, if the key accepts a list, one list."""
    key, _, text = override.partition("=")
    values = _split(text)
    command = f"{entry_points.spell('run', '-m')} {quote(override)}"
    problem = f"{_abbreviate(override)} has {len(values)} values; to run each value, add -m ({command})"
    as_list = (
        f"{key}={override_values.format_override(values)}" if not _reads_as(f"{key}=[{text}]") else f"{key}=[{text}]"
    )
    takes_list = is_known_to_take(
        key.lstrip("+"), [override_values.parse(value) for value in values if _is_readable(value)]
    )
    takes_text = not list_choices(key.lstrip("+")) and is_known_to_take(key.lstrip("+"), text)
    as_text = f"; for one text, write {_quote_text(key, text)}" if takes_text else ""
    return f"{problem}{as_text}" + (f"; for one list, write {quote(as_list)}" if takes_list else "")


def explain_interpolation(override: str) -> str:
    """Explain how to write a text that OmegaConf mistakes for an interpolation."""
    key, _, value = override.partition("=")
    text = re.sub(r"^([\"'])(.*)\1$", r"\2", value, flags=re.DOTALL)
    escaped = _quote_text(key, user_command.escape_interpolations(text))
    return f"{_abbreviate(override)} contains an invalid interpolation; to set this text, write {escaped}"


def note_on_sweep(override: str) -> str | None:
    """Return a note that `-m` runs each value separately if the key also accepts a list; else `None`."""
    key, _, text = override.partition("=")
    name, values = key.lstrip("+"), list(dict.fromkeys(_split(text)))
    if len(values) < 2 or _FUNCTION.match(text) or list_choices(name) or not is_known_to_take(name, values):
        return None
    as_list = quote(f"{key}=[{text}]")
    return f"note: -m starts {len(values)} runs for {override}; for one run with the list, write {as_list}"


def may_take(key: str, value: Any) -> bool:
    """Return whether a key of the configuration may accept a value; true for an unknown key."""
    refusals = list(_list_refusals(key, value))
    return not refusals or None in refusals


def is_known_to_take(key: str, value: Any) -> bool:
    """Return whether a key of the configuration is known to accept a value."""
    return None in _list_refusals(key, value)


def quote(word: str) -> str:
    """Quote a word for a shell; use double quotes if they need fewer escapes."""
    if re.search(r"[\n\r\t]", word):
        escaped = word.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\r", "\\r")
        return "$'" + escaped.replace("\t", "\\t") + "'"
    if shlex.quote(word) == word or re.search(r'["$`!]|\\(?!\')', word) or "'" not in word:
        return shlex.quote(word)
    return f'"{word}"'


def _explain_word(word: str) -> str:
    shown = _abbreviate(word)
    if word.endswith((".py", ".sh")) or "/" in word or Path(word).is_file():
        return f"{shown} is not KEY=VALUE; put two dashes before a script: -- {quote(word)}"
    name, is_divided, value = word.partition(":")
    if is_divided and _KEY.fullmatch(name) and _reads_as(f"{name}={value.strip()}"):
        return f"{shown} is not KEY=VALUE; write {quote(f'{name}={value.strip()}')}"
    bare = word.lstrip("+~")
    if bare == "help":
        return f"{shown} is not KEY=VALUE; see {entry_points.spell('run', '--help')}"
    before = next((option for option, following in itertools.pairwise(sys.argv) if following == word), "")
    key, _, value = before.partition("=")
    if word in list_choices(key) or (word.isdecimal() and value[-1:].isdecimal()):
        return f"{shown} is not KEY=VALUE; join the values of a list by commas: {quote(f'{before},{word}')}"
    if word.startswith("~") or not _KEY.fullmatch(bare):
        return f"{shown} cannot be read; write KEY=VALUE without spaces, as in gpu=cpu"
    return f"{shown} has no value; write {word}=VALUE"


def _explain_type(shown: str, name: str, value: str, why_refused: Callable[[str, OmegaConfBaseException], str]) -> str:
    function = _FUNCTION.match(value)
    if function is not None:
        near = difflib.get_close_matches(function[1], _FUNCTIONS, n=1)
        remedy = f"write {near[0]}(...)" if near else f"use one of {', '.join(_FUNCTIONS)}"
        return f"{shown} is not a valid function call; {remedy}"
    refusals = [refusal for refusal in _list_refusals(name, value) if refusal is not None]
    return f"{shown} {why_refused(name, refusals[0])}"


def _list_readings(key: str, value: str) -> Iterator[tuple[str, Any, str]]:
    parts = _split(value)
    if (structure := _read_structure(value)) is not None:
        action = "write the map as" if isinstance(structure, dict) else "write the list as"
        yield action, structure, quote(f"{key}={override_values.format_override(structure)}")
    elif len(parts) > 1:
        yield "write the list as", parts, quote(f"{key}={override_values.format_override(parts)}")
    text = user_command.escape_interpolations(value[1:-1] if re.fullmatch(r"([\"']).*\1", value, re.DOTALL) else value)
    yield "write the text as", text, _quote_text(key, text)
    if structure is None and len(parts) > 1:
        values = ",".join(part if _is_readable(part) else override_values.format_override(part) for part in parts)
        yield f"for {len(parts)} runs write -m", parts[0], quote(f"{key}={values}")


def _quote_text(key: str, text: str) -> str:
    """Return an override that sets a text, with the shell and Hydra quotes that need the fewest escapes."""
    if re.search(r'["$`!\\]', text) and not re.search(r"[\n\r\t']", text):
        return shlex.quote(f"{key}={override_values.format_override(text, is_double=True)}")
    return quote(f"{key}={override_values.format_override(text)}")


def _read_structure(value: str) -> Any:
    text = value.strip()
    if not text.startswith(("{", "[")):
        return None
    closed = text.rstrip(", ") + "".join({"{": "}", "[": "]"}[mark] for mark in reversed(_open_brackets(text)))
    for candidate in dict.fromkeys((text, closed)):
        for read in (override_values.parse, json.loads, yaml.safe_load):
            try:
                structure = read(candidate)
            except (ValueError, yaml.YAMLError):
                continue
            if isinstance(structure, dict | list) and None not in _list_leaves(structure):
                return structure
    if text.startswith("[") and text.endswith("]"):
        return [part for part in _split(text[1:-1]) if part]
    return None


def _list_leaves(structure: Any) -> list[Any]:
    """Collect the values in nested maps and lists; a missing value, as in `{a}`, is `None`."""
    parts = structure.values() if isinstance(structure, dict) else structure
    return (
        [leaf for part in parts for leaf in _list_leaves(part)] if isinstance(structure, dict | list) else [structure]
    )


def _open_brackets(text: str) -> list[str]:
    brackets = list[str]()
    for mark in re.sub(r"\"[^\"]*\"|'[^']*'", "", text):
        if mark in "[{":
            brackets.append(mark)
        elif mark in "]}" and brackets:
            brackets.pop()
    return brackets


def _split(text: str) -> list[str]:
    parts = re.findall(r"(?:\"[^\"]*\"|'[^']*'|\[[^\]]*\]|\{[^}]*\}|\([^)]*\)|[^,])+", text)
    return [part.strip() for part in parts]


def _is_readable(value: str) -> bool:
    return _reads_as(f"key={value}")


def _reads_as(override: str) -> bool:
    key, _, value = override.partition("=")
    try:
        override_values.parse(value)
    except ValueError:
        return False
    return _KEY.fullmatch(key) is not None


def _list_refusals(key: str, value: Any) -> Iterator[OmegaConfBaseException | None]:
    """Yield each node's reason to refuse a value, or `None` if it accepts the value; skip nodes without the key."""
    group, _, below = key.partition(".")
    if group == "sizes":
        group, (_, _, below) = "workload", below.partition(".")
    refusals = list[OmegaConfBaseException | None]()
    if list_choices(key):
        is_taken = key in _SEVERAL_CHOICES or not isinstance(value, list | dict)
        yield None if is_taken else OmegaConfBaseException("a choice")
        return
    is_of_choice = group in _GROUPS and bool(below)
    for node in option_loader.list_kinds(group) if is_of_choice else [config_schema.Config]:
        try:
            OmegaConf.update(OmegaConf.structured(node), below if is_of_choice else key, value)
            refusals.append(None)
        except OmegaConfBaseException as error:
            if not isinstance(error, ConfigAttributeError | ConfigKeyError):
                refusals.append(error)
    # A key that no node has yields nothing; a map accepts any key.
    yield from sorted(refusals, key=lambda refusal: refusal is not None)


def _join(proposals: list[str]) -> str:
    return proposals[0] if len(proposals) == 1 else f"{', '.join(proposals[:-1])}, or {proposals[-1]}"


def _abbreviate(text: str) -> str:
    shown = text.replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    return shown if len(shown) <= _MOST_SHOWN else f"{shown[:_MOST_SHOWN]}..."
