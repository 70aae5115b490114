"""Samples on disk become series, and a table that can be read again."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pipeline.base.domain.layout import SAMPLE_TABLE
from pipeline.record import sample_series
from pipeline.record.sample_series import About, Series, SeriesKey
from tests.support.tracking_cases import CLOCK, SECOND, START, sample

POWER, MEMORY, OF_JOB, OF_INSTANCE = (
    SeriesKey("nvml", None, None, "power_w"),
    SeriesKey("nvml", None, None, "memory_used_mib"),
    SeriesKey("nvml", 1, None, "memory_used_mib"),
    SeriesKey("dcgm", None, 3, "memory_used_mib"),
)


@pytest.fixture
def samples(tmp_path: Path) -> dict[SeriesKey, Series]:
    path = tmp_path / "samples.jsonl"
    lines = [sample("nvml", second, {"power_w": 70.5 + second, "memory_used_mib": 512.0}) for second in range(4)]
    lines.append(sample("nvml", 2, {"memory_used_mib": 128.0}, job=1))
    lines.append(sample("dcgm", 3, {"memory_used_mib": 256.0}, gi_id=3))
    path.write_text("".join(lines))
    return sample_series.read_samples(path)


def test_the_table_gives_back_what_was_sampled(samples, tmp_path):
    about = About(device="NVIDIA H100 80GB HBM3", instances={3: "1g.10gb"}, is_simulated=True)
    path = sample_series.write_table(samples, CLOCK, tmp_path, about)
    metadata = pq.read_schema(path).metadata[b"collocation"]
    assert json.loads(metadata) == {"device": about.device, "instances": {"3": "1g.10gb"}, "is_simulated": True}
    assert path.name == SAMPLE_TABLE
    assert sample_series.read_table(path, {origin.field for origin in samples}) == samples
    assert sample_series.read_table(path, set()) == {}
    of_memory = sample_series.read_table(path, {"memory_used_mib"})
    assert set(of_memory) == {MEMORY, OF_JOB, OF_INSTANCE}
    assert list(sample_series.read_table(path, {"power_w"})[POWER].t_ns) == [
        START + second * SECOND for second in range(4)
    ]


def test_a_thinned_series_keeps_its_ends(samples):
    long = Series()
    for index in range(1001):
        long.append(index, index / 2)
    points = list(long.thin(100))
    assert len(points) <= 100 and points[0] == (0, 0, 0.0) and points[-1] == (1000, 1000, 500.0)
    assert [value for *_, value in samples[POWER].thin(100)] == [70.5, 71.5, 72.5, 73.5]
