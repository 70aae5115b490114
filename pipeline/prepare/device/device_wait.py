"""Wait for a device that another program uses, if the user requested it with `wait=true`."""

from __future__ import annotations

import time

from pipeline.base.system import words
from pipeline.base.system.errors import GpuBusyError, InUseError
from pipeline.base.system.interrupts import Interrupted
from pipeline.base.system.words import format_duration

_LOOK_S = 1.0


class WaitBudget:
    """Total time that a study may wait for its devices.

    Args:
        is_wanted: whether waiting is requested.
        limit_s: value of `wait_limit_s`.
        time_limit_s: time limit of the study, which includes the wait; `None` if there is none.
    """

    def __init__(self, *, is_wanted: bool, limit_s: float, time_limit_s: float | None = None) -> None:
        self._is_wanted, self._limit_s, self._limit = is_wanted, limit_s, "wait_limit_s"
        if time_limit_s is not None and time_limit_s < limit_s:
            self._limit_s, self._limit = time_limit_s, "time_limit_s"
        self._said = ""
        self.waited_s = 0.0

    def wait(self, error: InUseError) -> None:
        """Wait until the device of an error is free; print each holder once.

        Raises:
            InUseError: the same error, if waiting is not requested.
            GpuBusyError: the limit is reached.
            Interrupted: the user or the system ended the wait; the time waited is printed.
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
                    waited = format_duration(self._limit_s)
                    raise GpuBusyError(f"waited {waited} ({self._limit}), but {error}") from error
                time.sleep(min(_LOOK_S, self._remaining_s))
                self.waited_s = waited_s + time.monotonic() - begin_s
        except Interrupted as interrupted:
            waited = format_duration(waited_s + time.monotonic() - begin_s)
            words.say(f"{interrupted} after waiting {waited} for {error.holder}")
            raise

    @property
    def _remaining_s(self) -> float:
        return self._limit_s - self.waited_s
