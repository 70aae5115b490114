"""Requests that a job answered: `requests.bin`, records of a fixed size, appended by `workloads/client.py`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.base.system import regular_files
from pipeline.launch.damages import Damages
from pipeline.launch.job_state import WHOLE_TIME, Lifetime

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

RECORD = (
    *((name, "<i8") for name in ("intended_ns", "sent_ns", "begun_ns", "first_token_ns", "done_ns")),
    *((name, "<i4") for name in ("tokens", "batch")),
)
"""The fields of a record, in order. An instant is 0 if it never came: the request was not begun or not answered, or its
answer has no tokens."""

RECORD_BYTES = sum(int(kind[-1]) for _, kind in RECORD)


MOST_REQUESTS = 1 << 24
"""Limit for one job; a file with more is not read, because a portion of the requests would not show their rate."""

_AT_ONCE = 1 << 18
_IMPOSSIBLE = "impossible instants or counts"


class Requests:
    """Requests in the order of their intended instants.

    Args:
        columns: the fields of all requests.
        chosen: indices of the selected requests; `None` for all.

    Attributes:
        damages: complete but impossible or repeated records, such as an answer before its request, which are left out.
    """

    def __init__(
        self,
        columns: Mapping[str, NDArray[np.int64]],
        row_numbers: NDArray[np.int64] | None = None,
        damages: Damages | None = None,
    ) -> None:
        self._columns, self._chosen = columns, row_numbers
        self.damages = Damages("request") if damages is None else damages

    def __len__(self) -> int:
        return len(self._columns["intended_ns"] if self._chosen is None else self._chosen)

    def __getitem__(self, name: str) -> NDArray[np.int64]:
        """Return a field of all requests, in nanoseconds of CLOCK_MONOTONIC, or a count."""
        column = self._columns[name]
        return column if self._chosen is None else column[self._chosen]

    def where(self, mask: NDArray[np.bool_]) -> Requests:
        """Return the selected requests; their fields are copied only on access."""
        import numpy as np

        numbers = np.flatnonzero(mask)
        return Requests(self._columns, numbers if self._chosen is None else self._chosen[numbers])

    @property
    def first_and_last_ns(self) -> tuple[int, ...]:
        """Instants of the first and the last answer; empty without answers."""
        done = self["done_ns"]
        done = done[done > 0]
        return (int(done.min()), int(done.max())) if len(done) else ()

    @property
    def is_answered(self) -> NDArray[np.bool_]:
        is_done: NDArray[np.bool_] = self["done_ns"] > 0
        return is_done


def read(path: Path, lifetime: Lifetime = WHOLE_TIME) -> Requests | None:
    """Return all requests of a job; `None` if the job recorded none or the file cannot be read.

    Raises:
        ValueError: the file has more than `MOST_REQUESTS` requests.
    """
    try:
        num_records = regular_files.measure_size(path) // RECORD_BYTES  # a killed job may leave an incomplete record
        if num_records > MOST_REQUESTS:
            raise ValueError(
                f"{path.name} has {num_records} requests, more than the limit of {MOST_REQUESTS}; choose a shorter "
                "window"
            )
        return _read(path, num_records, lifetime) if num_records else None
    except OSError:
        return None


def _read(path: Path, num_records: int, lifetime: Lifetime) -> Requests:
    import numpy as np

    columns = {name: np.empty(num_records, kind) for name, kind in RECORD}
    damages, num_read, num_kept = Damages("request"), 0, 0
    with os.fdopen(regular_files.open_regular_file(path), "rb") as file:
        while num_read < num_records and (data := file.read(min(_AT_ONCE, num_records - num_read) * RECORD_BYTES)):
            portion = np.frombuffer(data, np.dtype(list(RECORD)), len(data) // RECORD_BYTES)
            can_be = _find_possible(portion, lifetime)
            num_right = int(np.count_nonzero(can_be))
            for name, column in columns.items():
                column[num_kept : num_kept + num_right] = portion[name][can_be]
            damages.add(_IMPOSSIBLE, num_read + int(can_be.argmin()) + 1, len(portion) - num_right)
            num_kept += num_right
            num_read += len(portion)
    intended = columns["intended_ns"][:num_kept]
    order = None if (np.diff(intended) >= 0).all() else np.argsort(intended, kind="stable")
    for name in columns:
        columns[name] = columns[name][:num_kept] if order is None else columns[name][order]
    is_repeated = _find_repeated(columns)
    damages.add("a record that came before", 0, int(np.count_nonzero(is_repeated)))
    return Requests(columns, np.flatnonzero(~is_repeated) if is_repeated.any() else None, damages)


def count_written(path: Path) -> int:
    """Count the requests that a running job has written by now."""
    try:
        return path.lstat().st_size // RECORD_BYTES
    except OSError:
        return 0


def _find_repeated(columns: Mapping[str, NDArray[np.int64]]) -> NDArray[np.bool_]:
    """Return whether a record equals an earlier one and is one too many for its batch.

    Requests that were sent at one instant and answered together are equal, but a batch, which its instants identify,
    has no more of them than its size. Requests without an answer belong to no batch.
    """
    import numpy as np

    if (np.diff(columns["intended_ns"]) > 0).all():
        return np.zeros(len(columns["intended_ns"]), bool)
    fields = [columns[name] for name, _ in RECORD]
    copy = _count_equal_before(np.lexsort(fields), fields)  # 0 for the first of equal records
    batch = [columns[name] for name in ("begun_ns", "done_ns", "batch")]
    is_too_many = _count_equal_before(np.lexsort((copy, *batch)), batch) >= columns["batch"]
    return (columns["done_ns"] > 0) & (copy > 0) & is_too_many


def _count_equal_before(order: NDArray[np.intp], fields: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return the number of records before each record, in an order by these fields, that have the same fields."""
    import numpy as np

    is_first = np.append(True, np.any([np.diff(field[order]) != 0 for field in fields], axis=0))
    positions = np.arange(len(order))
    counts = np.empty(len(order), np.int64)
    counts[order] = positions - np.maximum.accumulate(np.where(is_first, positions, 0))
    return counts


def _find_possible(records: NDArray[np.void], lifetime: Lifetime) -> NDArray[np.bool_]:
    """Return whether the instants are in order and within the job's lifetime, and the counts are valid.

    Some servers do not report when they begin an answer or when its first token is available.
    """
    import numpy as np

    intended_ns, sent_ns, begun_ns, first_ns, done_ns = (records[name] for name, _ in RECORD[:5])
    follow = (intended_ns > 0) & (intended_ns <= sent_ns)
    follow &= (intended_ns >= lifetime.begin_ns) & (
        np.maximum(sent_ns, np.maximum(begun_ns, done_ns)) <= lifetime.end_ns
    )
    begun_or_sent = np.where(begun_ns > 0, begun_ns, sent_ns)
    follow &= np.where(begun_ns > 0, sent_ns <= begun_ns, begun_ns == 0)
    follow &= np.where(done_ns > 0, begun_or_sent <= done_ns, done_ns == 0)
    follow &= np.where(
        first_ns > 0, (begun_or_sent <= first_ns) & ((first_ns <= done_ns) | (done_ns == 0)), first_ns == 0
    )
    can: NDArray[np.bool_] = follow & (records["tokens"] >= 0) & (records["batch"] >= 1)
    return can
