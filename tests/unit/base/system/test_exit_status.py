"""An exit status means the same of every command: 2 if nothing was touched, 1 if something failed."""

from __future__ import annotations

import pytest

import pipeline.gpu.__main__ as gpu
import pipeline.planner.__main__ as planner
from pipeline.base.system.errors import (
    CollocationError,
    CommandError,
    ConfigError,
    GpuBusyError,
    InUseError,
    SharingError,
    TrackingError,
)

REFUSED = [ConfigError("no"), GpuBusyError("no"), InUseError("no", "a study", lambda: False), TrackingError("no")]
FAILED = [SharingError("no"), CommandError(["nvidia-smi"], 1, "no"), CollocationError("no")]


@pytest.mark.parametrize(
    ("error", "status"), [*((error, 2) for error in REFUSED), *((error, 1) for error in FAILED)], ids=repr
)
def test_it_says_whether_anything_was_touched(
    error: CollocationError, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(_: object) -> None:
        raise error

    monkeypatch.setattr(gpu, "show_profiles", fails)
    monkeypatch.setattr(planner, "_load", lambda function, _: fails if "answer" in function else id)
    assert gpu.main(["profiles"]) == planner.main(["serve"]) == status
    assert capsys.readouterr().err == 2 * f"error: {error}\n"
