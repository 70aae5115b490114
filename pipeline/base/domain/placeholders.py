"""Placeholders in the arguments of a program, as in `--out={output_dir}`: what differs between the jobs of a group."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from pipeline.base.system.errors import ConfigError

KNOWN = ("output_dir", "job", "degree")
"""Folder for the files of a job; its index in the group, from 0; number of jobs that run at the same time."""

# In doubled braces it is the text itself. `${NAME}` is a variable of a shell, `{"a": 1}` and `{epoch:02d}` are others'.
_BRACED = re.compile(r"(?<!\$)\{(?P<name>[A-Za-z_]\w*)\}")
_PLACEHOLDER = re.compile(rf"\{{\{{(?P<text>[A-Za-z_]\w*)\}}\}}|{_BRACED.pattern}")


def refuse_unknown(workload: str, arguments: Iterable[str]) -> None:
    """Refuse a placeholder that does not exist, by a ConfigError."""
    for argument in arguments:
        for match in _PLACEHOLDER.finditer(argument):
            name = match["name"]
            if name is not None and name not in KNOWN:
                known = ", ".join(f"{{{placeholder}}}" for placeholder in KNOWN)
                raise ConfigError(
                    f"workload {workload}, argument {argument}: {{{name}}} is not a placeholder; use {known}, or "
                    f"{{{{{name}}}}} for the text itself"
                )


def escape(argument: str) -> str:
    """Escape the placeholders of an argument, so that `fill` returns this very text."""
    return _BRACED.sub(r"{{\g<name>}}", argument)


def fill(argument: str, values: Mapping[str, object]) -> str:
    """Fill the placeholders of an argument with values."""
    return _PLACEHOLDER.sub(lambda match: _fill_one(match, values), argument)


def _fill_one(match: re.Match[str], values: Mapping[str, object]) -> str:
    if match["text"] is not None:
        return f"{{{match['text']}}}"
    return str(values.get(match["name"], match[0]))
