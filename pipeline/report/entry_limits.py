"""Limits of a process that reads a stranger's bundle; they need no root."""

from __future__ import annotations

import ctypes
import os
import resource
import sys
from pathlib import Path

_LIMITS = {
    resource.RLIMIT_AS: 6 << 30,
    resource.RLIMIT_CPU: 120,
    resource.RLIMIT_FSIZE: 1 << 28,
    resource.RLIMIT_CORE: 0,
}
"""Address space in bytes, CPU time in seconds, size of a written file and of a core dump in bytes."""
_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000  # source: linux/sched.h
_REFUSED = ("socket.", "subprocess.Popen", "os.exec", "os.posix_spawn", "os.fork", "os.system")
"""Begins of the audit events that are refused. Source: Python's audit event table."""


class RefusedError(PermissionError):
    """The process tried to use the network, or to start a program."""


def enter() -> None:
    """Limit this process from now on. Its network is closed by a namespace where that is allowed."""
    for limit, most in _LIMITS.items():
        _, hard = resource.getrlimit(limit)
        least = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(limit, (least, least))
    unshare, user, group = ctypes.CDLL(None).unshare, os.geteuid(), os.getegid()
    # Without root, it needs a user namespace, in which this user stays who it is. If both fail, the hook alone refuses.
    if unshare(_NEW_NETWORK) != 0 and unshare(_NEW_USER | _NEW_NETWORK) == 0:
        maps = {"setgroups": "deny", "uid_map": f"{user} {user} 1", "gid_map": f"{group} {group} 1"}
        for name, text in maps.items():
            Path(f"/proc/self/{name}").write_text(text)
    sys.addaudithook(_refuse)


def _refuse(event: str, _arguments: tuple[object, ...]) -> None:
    if event.startswith(_REFUSED):
        raise RefusedError(f"{event} is refused while a bundle is evaluated")
