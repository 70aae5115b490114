"""The CPU time limit of this process (`ulimit -t`), some of which is reserved for cleanup.

At the soft limit the kernel sends SIGXCPU, which `interrupts` handles; at the hard limit it sends SIGKILL. If both
limits are equal, it sends only SIGKILL. The soft limit of this process is therefore lowered; its child processes get
the original limits.
"""

from __future__ import annotations

import resource
from contextlib import suppress

_MOST_S = 10
"""Reserved CPU time; at most a tenth of the limit. Ending two jobs that ignore SIGTERM took 2.2 s."""
_given: tuple[int, int] | None = None


def reserve_time() -> None:
    """Lower the soft limit of this process if reaching it would mean SIGKILL. Only programs call this."""
    global _given
    soft, hard = resource.getrlimit(resource.RLIMIT_CPU)
    if hard != resource.RLIM_INFINITY and soft == hard > 1:
        _given = soft, hard
        resource.setrlimit(resource.RLIMIT_CPU, (hard - max(1, min(_MOST_S, hard // 10)), hard))


def hand_on_limit(pid: int) -> None:
    """Give a newly started child the original limits of this process."""
    if _given is not None:
        with suppress(OSError):  # the child has ended
            resource.prlimit(pid, resource.RLIMIT_CPU, _given)
