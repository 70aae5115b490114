"""The table of rows: aligned, missing values as a dash, columns without values left out."""

from __future__ import annotations

import dataclasses
import re

from pipeline.table import table
from pipeline.types import GroupResult, Result, WindowKind
from tests.rows import FIELDS, group


def test_the_table_shows_what_there_is():
    good = GroupResult(
        group=group("a", "a"),
        result=Result.OK,
        reason="",
        metrics={
            "throughput_total_samples_per_s": 1234.56,
            "overlap_ratio": 0.9,
            "smact_mean_ratio": 0.123,
            "memory_peak_mib": 512.4,
            "power_mean_w": 1.0,
            "energy_per_sample_j": 0.5,
        },
    )
    flagged = dataclasses.replace(good, tags={"collocation.flag": "overlap 0.900 is below 0.95"})
    failed = GroupResult(group=group("b"), result=Result.FAILED, reason="job 0-b: ended with status 3")
    lines = table([flagged, failed], FIELDS).splitlines()
    assert lines[0].split() == ["group", "block", "result", "samples/s", "overlap", "GPU", "MiB", "SMACT", "J/sample"]
    assert lines[1].split() == ["naive-a+a", "1", "ok*", "1234.6", "0.900", "512", "0.12", "0.5000"]
    assert lines[2].split() == ["naive-b", "1", "failed", "-", "-", "-", "-", "-"]
    assert lines[3] == "* naive-a+a: overlap 0.900 is below 0.95"
    assert lines[4] == "naive-b: job 0-b: ended with status 3"


def test_groups_of_one_name_are_told_apart_by_window_and_device():
    pair = group("a", "a")
    other = dataclasses.replace(pair.device, name="NVIDIA A30")
    groups = [pair, dataclasses.replace(pair, device=other), group("a", "a", kind=WindowKind.WORK)]
    rows = [GroupResult(group=each, result=Result.OK, reason="") for each in groups]
    assert [re.split("  +", line) for line in table(rows, FIELDS).splitlines()] == [
        ["group", "window", "device", "block", "result"],
        ["naive-a+a", "steady, 10 s after 1 s", pair.device.name, "1", "ok"],
        ["naive-a+a", "steady, 10 s after 1 s", "NVIDIA A30", "1", "ok"],
        ["naive-a+a", "work, 2 epochs", pair.device.name, "1", "ok"],
    ]
