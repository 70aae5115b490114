"""The samples of a group are at hand, and their file can be read while it is written."""

from __future__ import annotations

import threading

from pipeline.base.domain.samples import Sample
from pipeline.observe.sample_figures import SampleLog
from pipeline.record import sample_series
from pipeline.record.sample_series import SeriesKey


def test_samples_are_kept_in_memory_and_in_the_file(tmp_path):
    log = SampleLog(tmp_path / "samples.jsonl")
    samples = [Sample(source="nvml", t_ns=t, values={"power_w": 70.0 + t}, gi_id=t % 2 or None) for t in range(10)]
    for sample in samples:
        log.put(sample)
    assert log.samples == samples
    read = sample_series.read_samples(tmp_path / "samples.jsonl")  # not closed yet: a killed orchestrator loses none
    assert list(read[SeriesKey("nvml", None, None, "power_w")].values) == [70.0, 72.0, 74.0, 76.0, 78.0]
    assert list(read[SeriesKey("nvml", None, 1, "power_w")].t_ns) == [1, 3, 5, 7, 9]
    log.close()


def test_lines_of_several_threads_stay_whole(tmp_path):
    file = SampleLog(tmp_path / "samples.jsonl")

    def write(source: str) -> None:
        for t in range(200):
            file.put(Sample(source=source, t_ns=t, values={"x": float(t)}))

    threads = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    file.close()
    read = sample_series.read_samples(tmp_path / "samples.jsonl")
    assert {origin.source for origin in read} == set("abcd")
    assert all(list(found.t_ns) == list(range(200)) for found in read.values())
