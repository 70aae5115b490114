"""What a real H100 answered to `nvidia-smi`, to compare with a simulated one, and with a real one."""

from __future__ import annotations

import re
import shlex

from tests.conftest import DATA

RECORDINGS = DATA / "h100"
# What may differ: instants, UUIDs, and what only hardware knows. There the simulated one says that it is not available.
_MASKS = (
    (re.compile(r"^\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4} {7}$", re.M), "<now>"),
    (re.compile(r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{3}"), "<now>"),
    (re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"), "<uuid>"),
)
# What an H100 with MIG off answers whatever else it does.
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
    """Arguments, output and exit status."""
    command, *lines = (RECORDINGS / name).read_text().splitlines(keepends=True)
    arguments = shlex.split(command.removeprefix("$ nvidia-smi"))
    return arguments, "".join(lines[:-1]), int(lines[-1].removeprefix("exit "))
