"""The exceptions of the project. Each message names the subject, the problem and the remedy."""

import traceback
from collections.abc import Callable
from pathlib import Path


class CollocationError(Exception):
    """Base of every error that this project raises intentionally. Its message contains no secrets."""

    def __init__(self, message: str) -> None:
        from pipeline.base.system.secrets import mask_text  # takes 10 ms, needed only for errors
        from pipeline.base.system.words import escape_controls

        super().__init__(escape_controls(mask_text(message)))


class ConfigError(CollocationError, ValueError):
    """The configuration is invalid or cannot be run. Raised before anything is changed."""


class GpuBusyError(CollocationError):
    """The device is in use by another orchestrator or by processes that do not belong to the study."""


class InUseError(GpuBusyError):
    """The device is in use, and will be free later.

    Attributes:
        holder: description of the device and its user.
        is_over: function that returns whether the device is free.
    """

    def __init__(self, message: str, whom: str, is_over: Callable[[], bool]) -> None:
        self.holder, self.is_over = whom, is_over
        super().__init__(message)


class SharingError(CollocationError):
    """The GPU could not be shared as planned, or a job is not on its planned device."""


class LaunchError(CollocationError):
    """A job could not be started, or did not become ready."""


class ListenerError(CollocationError):
    """A listener is missing or stopped delivering samples."""


class NoSensorError(ListenerError):
    """The device has nothing that a listener could read, such as the GPU's counters on a machine without a GPU."""


class TrackingError(CollocationError):
    """The tracking store could not be opened or written."""


class StoreError(TrackingError):
    """The database of a store cannot be used in its present state. Raised before anything is changed."""


class CommandError(CollocationError):
    """A helper program failed.

    Attributes:
        status: exit status of the program; `None` if it could not be started or exceeded its time limit.
        stderr: output of the program on stderr.
    """

    def __init__(self, argv: list[str], status: int | None, stderr: str) -> None:
        self.argv, self.status, self.stderr = argv, status, stderr
        outcome = "did not complete" if status is None else f"ended with status {status}"
        super().__init__(f"`{' '.join(argv)}` {outcome}: {stderr.strip() or 'no message'}")


def exit_status(error: CollocationError) -> int:
    """Return the exit status of a command: 2 if it was refused before anything was changed, 1 if it failed."""
    return 2 if isinstance(error, ConfigError | GpuBusyError | TrackingError) else 1


def locate(error: BaseException, file: str) -> str | None:
    """Return the last line of a file that an error passed, as `options.py:20`; `None` if it passed none."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f"{Path(file).name}:{lines[-1]}" if lines else None
