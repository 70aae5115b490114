"""Recorded output of `nvidia-smi` on a real H100, to compare with a simulated GPU or with another real one."""

from __future__ import annotations

import re
import shlex

from tests.conftest import DATA

RECORDINGS = DATA / "h100"
# Texts that may differ: times and UUIDs.
_MASKS = (
    (re.compile(r"^\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4} {7}$", re.M), "<now>"),
    (re.compile(r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{3}"), "<now>"),
    (re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"), "<uuid>"),
)
# Recordings that are the same on every H100 without MIG, whatever its load.
IDLE = (
    "mig_lci.txt",
    "mig_lgi.txt",
    "mig_lgip.txt",
    "mig_lgip_i0.txt",
    "mig_lgip_i9.txt",
    "policy.txt",
    "query_bad.txt",
    "query_i9.txt",
    "smi_L.txt",
)


def masked(text: str) -> str:
    for pattern, name in _MASKS:
        text = pattern.sub(name, text)
    return text


def recording(name: str) -> tuple[list[str], str, int]:
    """Return arguments, output and exit status of a recording."""
    command, *lines = (RECORDINGS / name).read_text().splitlines(keepends=True)
    arguments = shlex.split(command.removeprefix("$ nvidia-smi"))
    return arguments, "".join(lines[:-1]), int(lines[-1].removeprefix("exit "))
