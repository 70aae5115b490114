"""How the studies of this process went, for the exit status: Hydra drops what its task function returns."""

from __future__ import annotations

_statuses: list[int] = []
_composed = False
_started = False


def study_begins() -> None:
    """Say that a study begins: the configuration is composed."""
    global _composed
    _composed = True


def group_begins() -> None:
    """Say that a group begins."""
    global _started
    _started = True


def study_ended(status: int) -> None:
    """Keep the exit status of one study."""
    _statuses.append(status)


def is_composed() -> bool:
    """Whether a study has begun: what fails before it lies in the command line or in a file of the configuration."""
    return _composed


def has_started() -> bool:
    """Whether a group has begun: from then on the exit status speaks of groups, before it of the configuration."""
    return _started


def exit_status() -> int:
    """The worst status of the studies that this process ran."""
    return max(_statuses, default=0)
