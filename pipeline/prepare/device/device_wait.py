"""Waiting for a device that somebody else uses, if the user asked for it."""

from __future__ import annotations

import time

from pipeline.base.system import words
from pipeline.base.system.errors import GpuBusyError, InUseError
from pipeline.base.system.interrupts import Interrupted
from pipeline.base.system.words import format_duration

_LOOK_S = 1.0


class WaitBudget:
    """Time that a start may wait for its devices, in all.

    Args:
        limit_s: `wait_limit_s`.
        time_limit_s: of the study, which the wait is a part of; `None` if it has none.
    """

    def __init__(self, *, is_wanted: bool, limit_s: float, time_limit_s: float | None = None) -> None:
        self._is_wanted, self._limit_s, self._limit = is_wanted, limit_s, "wait_limit_s"
        if time_limit_s is not None and time_limit_s < limit_s:
            self._limit_s, self._limit = time_limit_s, "time_limit_s"
        self._said = ""
        self.waited_s = 0.0

    def wait(self, error: InUseError) -> None:
        """Wait until nobody uses the device any more that an error is about; says once for whom.

        Raises:
            InUseError: the error, where waiting is not wanted.
            GpuBusyError: the limit is reached.
            Interrupted: the user or the system ends the wait, which is said.
        """
        if not self._is_wanted:
            raise error
        if error.holder != self._said:
            words.say(f"waiting for {error.holder}; at most {format_duration(self._remaining_s)}, Ctrl-C ends it")
            self._said = error.holder
        begin_s, waited_s = time.monotonic(), self.waited_s
        try:
            while not error.is_over():
                if self._remaining_s <= 0:
                    raise GpuBusyError(f"after {format_duration(self._limit_s)} ({self._limit}): {error}") from error
                time.sleep(min(_LOOK_S, self._remaining_s))
                self.waited_s = waited_s + time.monotonic() - begin_s
        except Interrupted as interrupted:
            waited = format_duration(waited_s + time.monotonic() - begin_s)
            words.say(f"{interrupted} after waiting {waited} for {error.holder}")
            raise

    @property
    def _remaining_s(self) -> float:
        return self._limit_s - self.waited_s
