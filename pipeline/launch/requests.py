"""The requests that a job answered: `requests.bin`, records of a fixed size, appended by `workloads/client.py`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.base import regular_files

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

RECORD = (
    *((name, "<i8") for name in ("intended_ns", "sent_ns", "begun_ns", "first_token_ns", "done_ns")),
    *((name, "<i4") for name in ("tokens", "batch")),
)
"""The fields of a record, in their order. An instant is 0 that never came: a request was not begun, or not answered, or
its answer has no tokens."""

RECORD_BYTES = sum(int(kind[-1]) for _, kind in RECORD)


class Requests:
    """Requests in the order of their intended instants.

    Attributes:
        damaged: number of whole records that cannot be, such as an answer before its request: they are left out.
    """

    def __init__(self, records: NDArray[np.void], damaged: int = 0) -> None:
        self.damaged = damaged
        self._records = records

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, name: str) -> NDArray[np.int64]:
        """A field of all requests, in nanoseconds of CLOCK_MONOTONIC, or a count."""
        values: NDArray[np.int64] = self._records[name]
        return values

    def where(self, chosen: NDArray[np.bool_]) -> Requests:
        return Requests(self._records[chosen])

    @property
    def first_and_last_ns(self) -> tuple[int, ...]:
        """When the first and the last answer was there; empty without answers."""
        done = self["done_ns"][self.is_answered]
        return (int(done.min()), int(done.max())) if len(done) else ()

    @property
    def is_answered(self) -> NDArray[np.bool_]:
        answered: NDArray[np.bool_] = self["done_ns"] > 0
        return answered


def read(path: Path) -> Requests | None:
    """All requests of a job; `None` of a job that recorded none, or whose file cannot be read."""
    try:
        data = regular_files.read_bytes(path)
    except OSError:
        return None
    import numpy as np

    whole = len(data) // RECORD_BYTES  # a job that is killed leaves a torn last record
    if not whole:
        return None
    found = np.frombuffer(data, np.dtype(list(RECORD)), whole)
    can_be = _can_be(found)
    if not can_be.all():
        found = found[can_be]
    return Requests(found[np.argsort(found["intended_ns"], kind="stable")], whole - len(found))


def number_written(path: Path) -> int:
    """How many requests a running job has written by now."""
    try:
        return path.lstat().st_size // RECORD_BYTES
    except OSError:
        return 0


def _can_be(found: NDArray[np.void]) -> NDArray[np.bool_]:
    """Whether the instants that there are follow each other, and the counts are counts.

    When an answer was begun, and when it began to come, is not known of every server.
    """
    import numpy as np

    intended, sent, begun, first, done = (found[name] for name, _ in RECORD[:5])
    follow = (intended > 0) & (intended <= sent)
    begun_or_sent = np.where(begun > 0, begun, sent)
    follow &= np.where(begun > 0, sent <= begun, begun == 0)
    follow &= np.where(done > 0, begun_or_sent <= done, done == 0)
    follow &= np.where(first > 0, (begun_or_sent <= first) & ((first <= done) | (done == 0)), first == 0)
    can: NDArray[np.bool_] = follow & (found["tokens"] >= 0) & (found["batch"] >= 1)
    return can
