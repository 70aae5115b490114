"""Masking of secrets: every text from a user is masked here before it is recorded or printed.

Programs get their arguments and variables unchanged; records have `HIDDEN` in place of a secret.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipeline.base.system import override_values
from pipeline.base.system.secrecy import HIDDEN, LOGIN_OPTIONS, Secrecy, is_harmless, secrecy_of
from pipeline.base.system.secret_texts import find_label, has_label, is_label, mask_diff, mask_source, mask_text

__all__ = ["HIDDEN", "collect_secrets", "mask", "mask_diff", "mask_source", "mask_text", "mask_words", "strip_logins"]

_NAME = r"[A-Za-z_][\w.\-]*"
_GIVEN = re.compile(rf"(?P<before>[+~-]*(?P<name>{_NAME})=)(?P<value>.+)", re.DOTALL)
_FLAG = re.compile(rf"--?(?P<name>{_NAME})")
_HEADER = re.compile(rf"(?P<name>{_NAME}):|[Bb]earer")
_SETTERS = frozenset({"setenv", "setx", "set", "ENV", "ARG"})  # NAME VALUE
_LOGINS = (
    re.compile(r"(?<=://)(?!git@)[^/@\s]+@"),
    re.compile(r"(?P<kept>https?://[^\s\"']*?)/t/[^/\s]+(?=/)"),  # a folder named `t` is not a token
)
_LEAST_KNOWN = 6  # minimum characters: a shorter secret would hide parts of other words


def mask(value: Any, name: str = "") -> Any:
    """Replace the secrets in a configuration value with the key `name`, and in everything it contains."""
    return _mask(value, secrecy_of(name))


def mask_words(words: Sequence[str], *, has_headers: bool = True) -> list[str]:
    """Replace the secrets in the words of a command line; with `has_headers`, a value follows `NAME:`."""
    masked = list[str]()
    secrecy, is_first, options, before = Secrecy.NONE, False, "", ""
    for word in words:
        # A flag may take several values; the first may begin with a dash.
        if secrecy is not Secrecy.NONE and not word.startswith("--" if is_first else "-"):
            masked.append(word if is_harmless(word, secrecy) else HIDDEN)
            is_first = False
            continue
        options = LOGIN_OPTIONS.get(word.rpartition("/")[2], options)
        secrecy, is_first = _secrecy_of_next(word, before, options, has_headers=has_headers), True
        glued = re.match(rf"(?:{options})=?(?=[^-])", word) if options else None
        if glued is not None and secrecy is Secrecy.NONE:
            masked.append(f"{glued[0]}{HIDDEN}")
        elif (assignment := _GIVEN.fullmatch(word)) is not None:
            masked.append(f"{assignment['before']}{_mask_given(assignment['value'], assignment['name'])}")
        else:
            masked.append(_mask_line(word))
        before = word
    return masked


def _secrecy_of_next(word: str, before: str, options: str, *, has_headers: bool) -> Secrecy:
    if options and re.fullmatch(options, word):
        return Secrecy.CERTAIN
    if (flag := _FLAG.fullmatch(word)) is not None:
        return secrecy_of(flag["name"])
    if before in _SETTERS and re.fullmatch(_NAME, word):
        return secrecy_of(word)
    if has_headers and (header := _HEADER.fullmatch(word)) is not None:
        secrecy = secrecy_of(header["name"] or word)
        return secrecy if secrecy is not Secrecy.AMBIGUOUS else Secrecy.NONE
    return Secrecy.NONE


def collect_secrets(words: Sequence[str], environ: Mapping[str, str]) -> frozenset[str]:
    """Collect the secrets in a program's arguments and environment, which are then masked anywhere in its output."""
    candidates = {value for name, value in environ.items() if mask(value, name) != value}
    for word, masked in zip(words, mask_words(words), strict=True):
        if masked == HIDDEN:
            candidates.add(word)
        elif masked != word and masked.endswith(f"={HIDDEN}"):
            candidates.add(word.partition("=")[2])
    return frozenset(value for value in candidates if len(value) >= _LEAST_KNOWN)


def strip_logins(text: str) -> str:
    """Remove user names, passwords and conda tokens from the URLs in a text, which then remain usable."""
    login, token = _LOGINS
    return token.sub(r"\g<kept>", login.sub("", text))


def find_hidden_keys(value: Any, place: str = "") -> Iterator[str]:
    """Yield the keys of hidden values in a recorded configuration, as on the command line; one key per list."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from find_hidden_keys(part, f"{place}.{key}" if place else str(key))
    elif HIDDEN in str(value):
        yield place


def _mask(value: Any, secrecy: Secrecy) -> Any:
    if isinstance(value, Mapping):
        return _mask_map(value, secrecy)
    if isinstance(value, list | tuple):
        return _mask_list(value, secrecy)
    if value is None or isinstance(value, bool):
        return value
    if secrecy is not Secrecy.NONE:
        return value if is_harmless(str(value), secrecy) else HIDDEN
    return _mask_line(value) if isinstance(value, str) else value


def _mask_map(values: Mapping[Any, Any], secrecy: Secrecy) -> dict[Any, Any]:
    """Replace the secrets in a map; in a map whose name means secrets, replace all values."""
    inherited = secrecy if secrecy is not Secrecy.AMBIGUOUS else Secrecy.NONE
    masked = {key: _mask(value, max(inherited, secrecy_of(str(key)))) for key, value in values.items()}
    label = secrecy_of(find_label((str(key), value) for key, value in values.items()))
    if label is not Secrecy.NONE:  # Kubernetes and web forms write a name and its value this way
        for key, value in values.items():
            if is_label(str(key)) or has_label(str(key)):
                masked[key] = _mask(value, max(inherited, label) if has_label(str(key)) else Secrecy.NONE)
    return masked


def _mask_list(values: Sequence[Any], secrecy: Secrecy) -> Any:
    if secrecy is not Secrecy.NONE:
        return values if all(_mask(value, secrecy) == value for value in values) else HIDDEN
    if len(values) == 2 and isinstance(values[0], str) and re.fullmatch(_NAME, values[0]) and secrecy_of(values[0]):
        return [values[0], mask(values[1], values[0])]  # a name and its value
    if any(isinstance(value, Mapping | list | tuple) for value in values):
        return [_mask(value, Secrecy.NONE) for value in values]
    words = [str(value) for value in values]
    pairs = zip(values, words, mask_words(words), strict=True)
    return [value if masked == word else masked for value, word, masked in pairs]


def _mask_given(text: str, name: str) -> str:
    """Replace the secrets in the value of a word such as an override; a word without secrets stays the same."""
    secrecy = secrecy_of(name)
    if secrecy is not Secrecy.NONE:
        return text if is_harmless(text, secrecy) else HIDDEN
    if not re.search(r"[\[{'\"]", text):
        return _mask_line(text)
    names = re.findall(_NAME, text)
    if mask_text(text) == text and not any(secrecy_of(name) or name in LOGIN_OPTIONS for name in names):
        return text
    try:
        value = override_values.parse(text)
    except ValueError:
        return HIDDEN
    masked = mask(value, name)
    return text if masked == value else override_values.format_override(masked)


def _mask_line(text: str) -> str:
    """Replace the secrets in a text; in a command line, shell quotes determine where a word ends."""
    if not re.search(r"\s", text):
        return mask_text(text)
    masked_text = mask_text(text)
    try:
        words = shlex.split(masked_text)
    except ValueError:  # a quote is not closed, so the end of a value is unknown
        return HIDDEN if masked_text != text else text
    masked = mask_words(words, has_headers=False)  # the text may also be YAML
    return masked_text if masked == words else shlex.join(masked)
