"""How long a process was kept from running by others: what a busy machine adds to the times that it shows."""

from pathlib import Path


def waited_ms() -> float:
    """Milliseconds that the threads of this process, together, could have run and waited for a CPU; 0 if unknown."""
    try:
        return sum(int(file.read_text().split()[1]) for file in Path("/proc/self/task").glob("*/schedstat")) / 1e6
    except FileNotFoundError:  # a kernel that does not count it
        return 0.0
