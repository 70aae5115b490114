"""Scalars into a TensorBoard event file, with the interface of `torch.utils.tensorboard`, without its packages."""

import itertools
import os
import socket
import struct
import time
from pathlib import Path

_NUMBERS = itertools.count()


class SummaryWriter:
    def __init__(self, folder: str) -> None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.{next(_NUMBERS)}"
        self._file = Path(folder, name).open("wb")  # noqa: SIM115  closed by close()
        self._write(b"\x1a\x0dbrain.Event:2")

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        number = _field(1, tag.encode()) + b"\x15" + struct.pack("<f", value)
        self._write(b"\x10" + _varint(step) + _field(5, _field(1, number)))

    def close(self) -> None:
        self._file.close()

    def _write(self, fields: bytes) -> None:
        event = b"\x09" + struct.pack("<d", time.time()) + fields
        length = struct.pack("<Q", len(event))
        self._file.write(length + _checksum(length) + event + _checksum(event))
        self._file.flush()


def _field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    low, high = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + _varint(high) if high else bytes([low])


def _checksum(data: bytes) -> bytes:
    """CRC-32C, masked as in TFRecord files."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
