"""Samples go to every sink, and a file of them can be read while it is written."""

from __future__ import annotations

import threading

from pipeline.base.samples import Sample
from pipeline.observe.sinks import History, SampleFile, Tee
from pipeline.record import series
from pipeline.record.series import SeriesKey


def test_a_tee_gives_each_sample_to_the_file_and_to_the_history(tmp_path):
    file, history = SampleFile(tmp_path / "samples.jsonl"), History()
    sink = Tee(file, history)
    samples = [Sample(source="nvml", t_ns=t, values={"power_w": 70.0 + t}, gi_id=t % 2 or None) for t in range(10)]
    for sample in samples:
        sink.put(sample)
    assert history.samples == samples
    read = series.read_samples(tmp_path / "samples.jsonl")  # not closed yet: a killed orchestrator loses none
    assert list(read[SeriesKey("nvml", None, None, "power_w")].values) == [70.0, 72.0, 74.0, 76.0, 78.0]
    assert list(read[SeriesKey("nvml", None, 1, "power_w")].t_ns) == [1, 3, 5, 7, 9]
    file.close()


def test_lines_of_several_threads_stay_whole(tmp_path):
    file = SampleFile(tmp_path / "samples.jsonl")

    def write(source: str) -> None:
        for t in range(200):
            file.put(Sample(source=source, t_ns=t, values={"x": float(t)}))

    threads = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    file.close()
    read = series.read_samples(tmp_path / "samples.jsonl")
    assert {origin.source for origin in read} == set("abcd")
    assert all(list(found.t_ns) == list(range(200)) for found in read.values())
