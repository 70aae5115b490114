"""The table of rows: aligned, missing values as a dash, columns without values left out."""

from __future__ import annotations

import dataclasses
import re

from pipeline import terminal
from pipeline.types import GroupResult, Result, WindowKind
from tests.rows import group


def test_the_table_shows_what_there_is():
    good = GroupResult(
        group=group("a", "a"),
        result=Result.OK,
        reason="",
        metrics={"throughput_total_samples_per_s": 1234.56, "overlap_ratio": 0.9},
    )
    flagged = dataclasses.replace(good, tags={"collocation.flag": "overlap 0.900 is below 0.95"})
    failed = GroupResult(group=group("b"), result=Result.FAILED, reason="job 0-b: ended with status 3")
    lines = terminal.table([flagged, failed]).splitlines()
    assert lines[0].split() == ["group", "block", "result", "samples/s", "overlap"]
    assert lines[1].split() == ["naive-a+a", "1", "ok*", "1234.6", "0.900"]
    assert lines[2].split() == ["naive-b", "1", "failed", "-", "-"]
    assert lines[3] == "* naive-a+a: overlap 0.900 is below 0.95"
    assert lines[4] == "naive-b: job 0-b: ended with status 3"


def test_groups_of_one_name_are_told_apart_by_window_and_device():
    pair = group("a", "a")
    other = dataclasses.replace(pair.device, name="NVIDIA A30")
    groups = [pair, dataclasses.replace(pair, device=other), group("a", "a", kind=WindowKind.WORK)]
    rows = [GroupResult(group=each, result=Result.OK, reason="") for each in groups]
    assert [re.split("  +", line) for line in terminal.table(rows).splitlines()] == [
        ["group", "window", "device", "block", "result"],
        ["naive-a+a", "steady, 10 s", pair.device.name, "1", "ok"],
        ["naive-a+a", "steady, 10 s", "NVIDIA A30", "1", "ok"],
        ["naive-a+a", "work, 2 epochs", pair.device.name, "1", "ok"],
    ]
