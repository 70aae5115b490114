"""Programs in a container: namespaces of their own, with another host name, boot and machine-id if these are asked for.

Whoever kills the first process of a container kills all of it at one instant.
"""

from __future__ import annotations

import functools
import subprocess
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_SHOWN = {"boot_id": Path("/proc/sys/kernel/random/boot_id"), "machine_id": Path("/etc/machine-id")}
_UNSHARE = ["unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
# HOST, then FILE OVER_WHICH pairs up to `--`, then the program.
_ENTER = """
[ -z "$1" ] || hostname "$1"; shift
while [ "$1" != -- ]; do mount --bind "$1" "$2" || exit 125; shift 2; done; shift
exec "$@"
"""


@dataclass(frozen=True, slots=True)
class Identity:
    """By what programs tell a machine; empty is what the real one has.

    Attributes:
        boot_id, machine_id: as the files of the kernel and of systemd have them.
    """

    host: str = ""
    boot_id: str = ""
    machine_id: str = ""


SAME = Identity()


def make_identity(names: set[str]) -> Identity:
    """Make an identity with new values of these attributes."""
    values = {"host": f"c{uuid.uuid4().hex[:11]}", "boot_id": str(uuid.uuid4()), "machine_id": uuid.uuid4().hex}
    return Identity(**{name: value for name, value in values.items() if name in names})


@functools.cache
def is_possible() -> bool:
    """Tell whether this user may make containers."""
    argv = [*_UNSHARE, "sh", "-c", "hostname attack && mount --bind /dev/null /proc/uptime"]
    try:
        return subprocess.run(argv, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def start(*argv: object, identity: Identity, folder: Path, cwd: Path, env: Mapping[str, str]) -> subprocess.Popen[str]:
    """Start `python ARGV` in a container.

    Args:
        identity: of its machine.
        folder: for the files that it is shown in place of the real ones.
    """
    shown = []
    for name, place in _SHOWN.items():
        if (value := getattr(identity, name)) and place.exists():
            (file := folder / f"{name}-{value}").write_text(f"{value}\n", encoding="ascii")
            shown += [str(file), str(place)]
    enter = [*_UNSHARE, "sh", "-c", _ENTER, "sh", identity.host, *shown, "--"]
    return subprocess.Popen(
        [*enter, sys.executable, *map(str, argv)],
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(*argv: object, identity: Identity, folder: Path, cwd: Path, env: Mapping[str, str]) -> tuple[int, str]:
    """Run a program to its end; return its exit status and what it wrote."""
    with start(*argv, identity=identity, folder=folder, cwd=cwd, env=env) as process:
        out, err = process.communicate(timeout=300)
    return process.returncode, out + err
