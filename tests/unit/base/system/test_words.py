"""Progress of commands on a terminal."""

from __future__ import annotations

import io
import sys
import threading

import pytest

from pipeline.base.system import words


class _Terminal(io.StringIO):
    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__()
        self.is_terminal, self.has_line = is_terminal, threading.Event()

    def isatty(self) -> bool:
        return self.is_terminal

    def flush(self) -> None:
        self.has_line.set()


@pytest.mark.parametrize(
    ("is_terminal", "patience_s", "printed"),
    [(True, 0.05, "reading mlruns ...\n"), (True, 60.0, ""), (False, 0.05, "")],
    ids=["slow at a terminal", "quick at a terminal", "slow in a pipe"],
)
def test_a_silent_activity_is_named_at_a_terminal_only(
    is_terminal: bool, patience_s: float, printed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = _Terminal(is_terminal=is_terminal)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(words, "_PATIENCE_S", patience_s)
    words.say("begins")
    stream.has_line.clear()
    with words.announce("reading mlruns"):
        stream.has_line.wait(30.0 if printed else 0.2)
    assert stream.getvalue() == f"begins\n{printed}"
