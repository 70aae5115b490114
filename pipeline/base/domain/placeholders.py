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


def check(workload: str, arguments: Iterable[str]) -> None:
    """Refuse a placeholder that does not exist, by a ConfigError."""
    for argument in arguments:
        for found in _PLACEHOLDER.finditer(argument):
            name = found["name"]
            if name is not None and name not in KNOWN:
                known = ", ".join(f"{{{each}}}" for each in KNOWN)
                raise ConfigError(
                    f"workload {workload}, argument {argument}: there is no placeholder {{{name}}}; there are {known}; "
                    f"the text itself is written {{{{{name}}}}}"
                )


def as_text(argument: str) -> str:
    """The argument in which nothing is a placeholder: what `filled` makes this very text of."""
    return _BRACED.sub(r"{{\g<name>}}", argument)


def filled(argument: str, values: Mapping[str, object]) -> str:
    """The argument with the values of its placeholders."""
    return _PLACEHOLDER.sub(lambda found: _value(found, values), argument)


def _value(found: re.Match[str], values: Mapping[str, object]) -> str:
    if found["text"] is not None:
        return f"{{{found['text']}}}"
    return str(values.get(found["name"], found[0]))
