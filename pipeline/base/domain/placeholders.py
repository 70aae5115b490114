"""Placeholders in the arguments of a program, such as `--out={output_dir}`, for values that differ between jobs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from pipeline.base.system.errors import ConfigError

KNOWN = ("output_dir", "job", "degree")
"""Output folder of the job; its index in the group, from 0; number of jobs that run at the same time."""

# Doubled braces escape a placeholder. `${NAME}` is shell syntax; `{"a": 1}` and `{epoch:02d}` belong to other programs.
_BRACED = re.compile(r"(?<!\$)\{(?P<name>[A-Za-z_]\w*)\}")
_PLACEHOLDER = re.compile(rf"\{{\{{(?P<text>[A-Za-z_]\w*)\}}\}}|{_BRACED.pattern}")


def refuse_unknown(workload: str, arguments: Iterable[str]) -> None:
    """Raise `ConfigError` for an unknown placeholder."""
    for argument in arguments:
        for match in _PLACEHOLDER.finditer(argument):
            name = match["name"]
            if name is not None and name not in KNOWN:
                known = ", ".join(f"{{{placeholder}}}" for placeholder in KNOWN)
                raise ConfigError(
                    f"workload {workload}, argument {argument}: {{{name}}} is not a placeholder; use {known}, or "
                    f"{{{{{name}}}}} for the literal text {{{name}}}"
                )


def escape(argument: str) -> str:
    """Escape the placeholders of an argument; `fill` then returns the original text."""
    return _BRACED.sub(r"{{\g<name>}}", argument)


def fill(argument: str, values: Mapping[str, object]) -> str:
    """Fill the placeholders of an argument with their values."""
    return _PLACEHOLDER.sub(lambda match: _fill_one(match, values), argument)


def _fill_one(match: re.Match[str], values: Mapping[str, object]) -> str:
    if match["text"] is not None:
        return f"{{{match['text']}}}"
    return str(values.get(match["name"], match[0]))
