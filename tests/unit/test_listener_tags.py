"""The tags of a group say which listener is missing, and which source a listener has chosen."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.base.domain.records import ListenerSpec, Required
from pipeline.base.domain.samples import FieldTable
from pipeline.base.system.errors import ListenerError, NoSensorError
from pipeline.base.system.factory import Spec
from pipeline.base.system.interrupts import UndoStack
from pipeline.study import group_execution

SPEC = ListenerSpec(name="activity", build=Spec(target="none"), interval_ms=1000, required=Required.NO)


class Source:
    """A listener that has chosen its source, or that raises an error."""

    def __init__(self, source: str, error: ListenerError | None = None) -> None:
        self.table = FieldTable(source=source, fields=())
        self.error = error

    @contextmanager
    def observe(self, *_: object) -> Iterator[None]:
        if self.error is not None:
            raise self.error
        yield


def observed(listener: Source, spec: ListenerSpec = SPEC) -> tuple[dict[str, str], list[str]]:
    """Return the tags and the warnings."""
    execution: Any = object.__new__(group_execution.GroupExecution)
    execution.tags, execution.helpers, warnings = {}, [], []
    execution.record = SimpleNamespace(sink=None)
    execution.resources = SimpleNamespace(warn_once=warnings.append)
    with UndoStack() as stack:
        execution._observe(spec, listener, None, stack)
    return execution.tags, warnings


def test_a_chosen_source_is_in_the_tags() -> None:
    assert observed(Source("dcgm")) == ({"collocation.listener.activity": "source: dcgm"}, [])
    assert observed(Source("activity")) == ({}, [])


def test_a_missing_source_is_in_the_tags_and_a_warning() -> None:
    tags, warnings = observed(Source("gpm", ListenerError("no counters; install them")))
    assert tags == {"collocation.listener.activity": "absent: no counters; install them"}
    assert warnings == ["left out: no counters; install them"]


def test_a_device_that_cannot_have_the_sensor_is_no_warning() -> None:
    tags, warnings = observed(Source("gpm", NoSensorError("no GPU; leave it out")))
    assert tags == {"collocation.listener.activity": "absent: no GPU; leave it out"} and warnings == []


def test_a_required_listener_is_an_error_on_any_device() -> None:
    with pytest.raises(NoSensorError):
        observed(Source("gpm", NoSensorError("no GPU")), dataclasses.replace(SPEC, required=Required.YES))
