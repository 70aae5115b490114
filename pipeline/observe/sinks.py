"""Where samples go: to a file, to memory, or to several places at once (`pipeline.base.protocols.Sink`)."""

from __future__ import annotations

import dataclasses
import json
import threading
from pathlib import Path

from pipeline.base.protocols import Sink
from pipeline.base.samples import Sample


class SampleFile:
    """Keeps samples on disk, so that a killed orchestrator loses none: one JSON object a line."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")
        self._lock = threading.Lock()

    def put(self, sample: Sample) -> None:
        line = json.dumps(dataclasses.asdict(sample)) + "\n"
        with self._lock:
            self._file.write(line)
            self._file.flush()

    def close(self) -> None:
        self._file.close()


class History:
    """Keeps samples in memory, in the order of their arrival: for the row, the timeline and the live view."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []

    def put(self, sample: Sample) -> None:
        self.samples.append(sample)


class Tee:
    """Gives each sample to several sinks."""

    def __init__(self, *sinks: Sink) -> None:
        self._sinks = sinks

    def put(self, sample: Sample) -> None:
        for sink in self._sinks:
            sink.put(sample)
