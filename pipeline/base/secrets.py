"""What must not be published: values that go by the name of a secret, and passwords in addresses.

Programs get them as they were given; what is recorded has `HIDDEN` in their place.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipeline.base import override_values

HIDDEN = "<hidden>"

_SEPARATED = re.compile(r"[^A-Za-z]+|(?<=[a-z])(?=[A-Z])")
_ANYWHERE = frozenset({"secret", "password", "passwd", "passphrase", "credentials", "apikey"})
_AT_THE_END = frozenset({"token", "key", "pwd"})  # TOKENIZERS_PARALLELISM and SSH_KEY_FILE are none
_NAME = r"[A-Za-z_][\w.\-]*"
_VALUE = r"""(?:"[^"]*"|'[^']*'|\S)+"""
# `--token VALUE` in a text, `name=VALUE` and `name: VALUE`.
_FLAG_IN_TEXT = re.compile(rf"(?P<before>(?<![\w-])--?(?P<name>{_NAME})[\"']?[\s,]+)(?!--)(?P<value>{_VALUE})")
_GIVEN_IN_TEXT = re.compile(rf"(?P<before>(?P<name>{_NAME})[\"']?(?:=|:\s*))(?P<value>{_VALUE})")
_GIVEN = re.compile(rf"(?P<before>[+~-]*(?P<name>{_NAME})=)(?P<value>.+)", re.DOTALL)
_FLAG = re.compile(rf"--?(?P<name>{_NAME})")
# The `git` of `ssh://git@host` is no secret, and without it nobody gets in.
_IN_ADDRESS = re.compile(r"(?<=://)(?!git@)[^/@\s]+(?=@)")


def is_of_secret(name: str) -> bool:
    """Whether what goes by this name is a secret: `HF_TOKEN`, `--api-key`, `workload.environ.DB_PASSWORD`."""
    words = [word.lower() for word in _SEPARATED.split(name) if word]
    if words == ["pwd"]:  # the working directory of a shell
        return False
    return bool(words) and (not _ANYWHERE.isdisjoint(words) or words[-1] in _AT_THE_END)


def hidden_in_text(text: str) -> str:
    """A text, such as a part of a command line, without the secrets in it."""
    for pattern in (_GIVEN_IN_TEXT, _FLAG_IN_TEXT):
        text = pattern.sub(
            lambda found: f"{found['before']}{HIDDEN}" if is_of_secret(found["name"]) else found[0], text
        )
    return _IN_ADDRESS.sub(HIDDEN, text)


def hidden_in_words(words: Sequence[str]) -> list[str]:
    """The words of a command line without the secrets among them."""
    found: list[str] = []
    is_value = is_first = False
    for word in words:
        given, flag = _GIVEN.fullmatch(word), _FLAG.fullmatch(word)
        if is_value and not word.startswith("--" if is_first else "-"):  # a flag may take several
            found.append(HIDDEN)
            is_first = False
            continue
        if given:
            found.append(f"{given['before']}{_hidden_in_given(given['value'], given['name'])}")
        else:
            found.append(_in_scalar(word))
        is_value = is_first = flag is not None and is_of_secret(flag["name"])
    return found


def _hidden_in_given(text: str, name: str) -> str:
    """What a word gives to a name, as an override does: as it was typed if there is no secret in it."""
    if is_of_secret(name):
        return HIDDEN
    if not any(is_of_secret(each) for each in re.findall(_NAME, text)):
        return hidden_in_text(text)
    try:
        value = override_values.parsed(text)
    except ValueError:
        return HIDDEN
    hidden = hidden_in(value, name)
    return text if hidden == value else override_values.as_text(hidden)


def hidden_in(value: Any, name: str = "") -> Any:
    """A value of the configuration, by its name, and all that is in it, without secrets."""
    if isinstance(value, Mapping):
        return {key: hidden_in(each, str(key)) for key, each in value.items()}
    if value is None or isinstance(value, bool) or value in ("", []):
        return value
    if is_of_secret(name):
        return HIDDEN
    if isinstance(value, list | tuple):
        if len(value) == 2 and re.fullmatch(_NAME, str(value[0])) and is_of_secret(str(value[0])):
            return [value[0], hidden_in(value[1], value[0])]  # a name and its value
        if any(isinstance(each, Mapping | list | tuple) for each in value):
            return [hidden_in(each) for each in value]
        words = [str(each) for each in value]
        pairs = zip(value, words, hidden_in_words(words), strict=True)
        return [each if hidden == word else hidden for each, word, hidden in pairs]
    return _in_scalar(value)


def _in_scalar(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        words = shlex.split(value)
    except ValueError:  # where a value in it ends is not known
        return HIDDEN if hidden_in_text(value) != value else value
    if len(words) < 2:
        return hidden_in_text(value)
    hidden = hidden_in_words(words)
    return hidden_in_text(value) if hidden == words else shlex.join(hidden)


def places_of_hidden(value: Any, place: str = "") -> Iterator[str]:
    """Where a recorded configuration lacks what was hidden: keys as on the command line; a list as a whole."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from places_of_hidden(each, f"{place}.{key}" if place else str(key))
    elif HIDDEN in str(value):
        yield place
