"""Where a row comes from, without what nobody else may know."""

from __future__ import annotations

import sys

from pipeline.record import provenance


def test_the_command_line_is_recorded_without_passwords(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["run.py", "degree=2", "tracking.uri=https://me:s3cret@mlflow.example.org/x"])
    facts = provenance.collect({})
    assert facts["command_line"] == "run.py degree=2 tracking.uri=https://mlflow.example.org/x"
