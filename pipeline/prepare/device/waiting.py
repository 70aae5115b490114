"""Waiting for a device that somebody else uses, where the user asked for it."""

from __future__ import annotations

import time

from pipeline.base import words
from pipeline.base.errors import GpuBusyError, InUseError
from pipeline.base.words import duration

_LOOK_S = 1.0


class Patience:
    """How long a start may wait for its devices, in all."""

    def __init__(self, *, is_wanted: bool, limit_s: float) -> None:
        self._is_wanted, self._limit_s = is_wanted, limit_s
        self._begin_s: float | None = None
        self._said = ""

    def wait(self, error: InUseError) -> None:
        """Wait until nobody uses the device any more that an error is about; says once for whom.

        Raises:
            InUseError: the error, where waiting is not wanted.
            GpuBusyError: the limit is reached.
        """
        if not self._is_wanted:
            raise error
        if self._begin_s is None:
            self._begin_s = time.monotonic()
        if error.whom != self._said:
            words.say(f"waiting for {error.whom}; at most {duration(self._left_s())}, Ctrl-C ends it")
            self._said = error.whom
        while not error.is_over():
            if self._left_s() <= 0:
                raise GpuBusyError(f"waited {duration(self._limit_s)} (wait_limit_s) in vain: {error}") from error
            time.sleep(min(_LOOK_S, max(0.0, self._left_s())))

    def _left_s(self) -> float:
        assert self._begin_s is not None
        return self._begin_s + self._limit_s - time.monotonic()
