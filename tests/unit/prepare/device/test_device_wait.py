"""Waiting for a device: for as long as somebody uses it, no longer than the user allows, and said once."""

from __future__ import annotations

import signal

import pytest

from pipeline.base.system.errors import GpuBusyError, InUseError
from pipeline.base.system.interrupts import Interrupted
from pipeline.prepare.device import device_wait
from pipeline.prepare.device.device_wait import WaitBudget


def in_use(*looks: bool, by: str = "alice") -> InUseError:
    answers = iter(looks)
    return InUseError("busy; wait=true", f"GPU 0, which is held by {by}", lambda: next(answers, looks[-1]))


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(device_wait, "_LOOK_S", 0.001)


def test_it_waits_until_the_device_is_free_and_says_once_for_whom(capsys):
    patience = WaitBudget(is_wanted=True, limit_s=60.0)
    patience.wait(in_use(False, False, True))
    patience.wait(in_use(False, True))  # taken again before we came
    patience.wait(in_use(True, by="bob"))
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(";")[0] for line in lines] == [
        "waiting for GPU 0, which is held by alice",
        "waiting for GPU 0, which is held by bob",
    ]
    assert "at most 60 s, Ctrl-C ends it" in lines[0]


def test_the_limit_is_for_all_waits_together():
    patience = WaitBudget(is_wanted=True, limit_s=0.05)
    with pytest.raises(GpuBusyError, match=r"waited 0 s \(wait_limit_s\), but busy"):
        patience.wait(in_use(False))
    with pytest.raises(GpuBusyError, match=r"\(wait_limit_s\), but busy"):
        patience.wait(in_use(False))


def test_the_time_limit_of_the_study_holds_while_it_waits_and_counts_what_was_waited():
    patience = WaitBudget(is_wanted=True, limit_s=60.0, time_limit_s=0.05)
    with pytest.raises(GpuBusyError, match=r"waited 0 s \(time_limit_s\), but busy"):
        patience.wait(in_use(False))
    assert patience.waited_s >= 0.05


def test_a_signal_ends_the_wait_which_is_said(capsys):
    def look() -> bool:
        raise Interrupted(signal.SIGTERM)

    with pytest.raises(Interrupted):
        WaitBudget(is_wanted=True, limit_s=60.0).wait(InUseError("busy", "GPU 0, which is held by alice", look))
    *_, line = capsys.readouterr().err.splitlines()
    assert line == "interrupted by SIGTERM after waiting 0 s for GPU 0, which is held by alice"


def test_who_does_not_want_to_wait_is_refused():
    error = in_use(True)
    with pytest.raises(InUseError) as refused:
        WaitBudget(is_wanted=False, limit_s=60.0).wait(error)
    assert refused.value is error
