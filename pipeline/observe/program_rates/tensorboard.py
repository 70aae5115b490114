"""Scalars of TensorBoard's event files, which are TFRecords of protocol buffers (`Event`, `Summary`).

TensorBoard's own reader needs a package that may be installed only for jobs. Checksums are not checked, because the
incomplete record at the end of a killed job's file is recognised by its length. Records with large data, such as
images, are skipped.
"""

from __future__ import annotations

import os
import struct
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from pipeline.base.system import regular_files

PATTERN = "events.out.tfevents.*"
_MAX_RECORD_BYTES = 1 << 16
_FLOAT, _DOUBLE = 1, 2
"""Types of a tensor. Source: tensorflow/core/framework/types.proto; the field numbers below are from its folder."""

Message = dict[int, list[int | bytes]]
"""Fields of a protocol buffer: the values by field number. Numbers of fixed length are stored as bytes."""


def read_scalars(path: Path) -> dict[str, list[tuple[float, float]]]:
    """Read every readable scalar of a file: tag to `(seconds since the epoch, value)`."""
    by_tag: dict[str, list[tuple[float, float]]] = defaultdict(list)
    try:
        for record in _read_records(path):
            event = _parse_message(record)
            for summary in _select_all(event, 5):
                for value in map(_parse_message, _select_all(_parse_message(summary), 1)):
                    number = _parse_scalar(value)
                    if number is not None:
                        tag = _select_first(value, 1).decode(errors="replace")
                        by_tag[tag].append((struct.unpack("<d", _select_first(event, 1))[0], number))
    except (OSError, ValueError, struct.error):
        pass
    return dict(by_tag)


def _read_records(path: Path) -> Iterator[bytes]:
    with os.fdopen(regular_files.open_regular_file(path), "rb") as file:
        while len(head := file.read(12)) == 12:
            (length,) = struct.unpack("<Q", head[:8])
            if length > _MAX_RECORD_BYTES:
                file.seek(length + 4, 1)
            elif len(record := file.read(length + 4)) == length + 4:
                yield record[:-4]
            else:
                return


def _parse_scalar(value: Message) -> float | None:
    """Return the number in a `Summary.Value`: a plain number, or a tensor with one element."""
    if plain := _select_all(value, 2):
        return float(struct.unpack("<f", plain[0])[0])
    for tensor in map(_parse_message, _select_all(value, 8)):
        kind = tensor.get(1, [0])[0]
        form, field = {_FLOAT: ("<f", 5), _DOUBLE: ("<d", 6)}.get(kind if isinstance(kind, int) else 0, ("", 0))
        content = _select_all(tensor, 4) or _select_all(tensor, field)
        if form and content and len(content[0]) == struct.calcsize(form):
            return float(struct.unpack(form, content[0])[0])
    return None


def _parse_message(data: bytes) -> Message:
    """Parse the fields of a message; raise ValueError if the data are not a message."""
    fields: Message = defaultdict(list)
    at = 0
    while at < len(data):
        key, at = _parse_varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _parse_varint(data, at)
            fields[key >> 3].append(value)
            continue
        if kind == 2:
            length, at = _parse_varint(data, at)
        else:
            length = {1: 8, 5: 4}.get(kind, -1)
        if length < 0 or at + length > len(data):
            raise ValueError("no protocol buffer")
        fields[key >> 3].append(data[at : at + length])
        at += length
    return fields


def _parse_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at == len(data):
            raise ValueError("no protocol buffer")
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 0x80:
            return value, at


def _select_all(message: Message, number: int) -> list[bytes]:
    return [value for value in message.get(number, ()) if isinstance(value, bytes)]


def _select_first(message: Message, number: int) -> bytes:
    return next(iter(_select_all(message, number)), b"")
