"""The samples of a group in memory and in a file (`pipeline.base.domain.protocols.Sink`)."""

from __future__ import annotations

import dataclasses
import json
import threading
from pathlib import Path

from pipeline.base.domain.samples import Sample


class SampleLog:
    """Samples in the order of arrival, also stored as JSON lines in a file, which survives a killed orchestrator."""

    def __init__(self, path: Path) -> None:
        self.samples: list[Sample] = []
        self._file = path.open("a", encoding="utf-8")
        self._lock = threading.Lock()

    def put(self, sample: Sample) -> None:
        line = json.dumps(dataclasses.asdict(sample)) + "\n"
        with self._lock:
            self._file.write(line)
            self._file.flush()
            self.samples.append(sample)

    def close(self) -> None:
        self._file.close()
