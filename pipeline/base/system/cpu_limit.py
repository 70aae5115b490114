"""The limit of CPU time of this process (`ulimit -t`): a part of it is left for an end in order.

At the soft limit the kernel sends SIGXCPU, which `interrupts` handles; at the hard one SIGKILL, and where both are the
same, nothing else. So the soft limit of this process is lowered. What it starts gets the limits that it was given.
"""

from __future__ import annotations

import resource
from contextlib import suppress

_MOST_S = 10
"""CPU time that is kept; a tenth of the limit if that is less. To end two jobs that ignore SIGTERM took 2.2 s."""
_given: tuple[int, int] | None = None


def reserve_time() -> None:
    """Lower the soft limit of this process, if it is killed at it otherwise. Only programs call this."""
    global _given
    soft, hard = resource.getrlimit(resource.RLIMIT_CPU)
    if hard != resource.RLIM_INFINITY and soft == hard > 1:
        _given = soft, hard
        resource.setrlimit(resource.RLIMIT_CPU, (hard - max(1, min(_MOST_S, hard // 10)), hard))


def hand_on_limit(pid: int) -> None:
    """Give a child that has just been started the limits that this process was given."""
    if _given is not None:
        with suppress(OSError):  # it has ended
            resource.prlimit(pid, resource.RLIMIT_CPU, _given)
