"""The parent's half of the job protocol: one listening socket a group, one connection a job.

Everything is driven by one selector in the main thread, which blocks until something happens: no polling, no
thread a job. `workloads/client.py` is the other half.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import time
from collections.abc import Callable
from pathlib import Path

PROTOCOL = 1
_LONGEST_S = 86_400.0  # of one wait: epoll takes at most 2^31 ms


class Connection:
    """The control connection of one process; `index` is known after its `hello`."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self.index: int | None = None
        self._buffer = b""

    def receive(self) -> tuple[list[dict[str, object]], bool]:
        """The complete messages that have arrived, and whether the other side has closed."""
        closed = True
        try:
            while data := self.socket.recv(65536):
                self._buffer += data
        except BlockingIOError:
            closed = False
        except OSError:
            pass
        *lines, self._buffer = self._buffer.split(b"\n")
        messages = []
        for line in lines:
            # The socket lies in a private folder, but a job may still write nonsense.
            with contextlib.suppress(ValueError):
                messages.append(json.loads(line))
        return [message for message in messages if isinstance(message, dict)], closed

    def send(self, **message: object) -> None:
        """Send one message; a job that is gone is noticed by its exit, not here."""
        with contextlib.suppress(OSError):
            self.socket.sendall((json.dumps(message) + "\n").encode())


class Channel:
    """Socket, selector and the process descriptors of one group.

    Args:
        path: of the socket; at most 107 bytes.
        on_message: called with the job's index and each message.
        on_exit: called with the job's index once its process has ended, after its last message.
    """

    def __init__(
        self, path: Path, on_message: Callable[[int, dict[str, object]], None], on_exit: Callable[[int], None]
    ) -> None:
        self._on_message, self._on_exit = on_message, on_exit
        self._path = path
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.setblocking(False)
        self._listener.bind(str(path))
        self._listener.listen(128)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._connections: dict[int, Connection] = {}

    def watch(self, index: int, pid: int) -> None:
        """Wake up when this process ends."""
        self._selector.register(os.pidfd_open(pid), selectors.EVENT_READ, index)

    def send(self, index: int, **message: object) -> None:
        if index in self._connections:
            self._connections[index].send(**message)

    def pump(self, until: Callable[[], bool], deadline_ns: int) -> bool:
        """Handle what happens until the condition holds (true) or the deadline passes (false)."""
        while not until():
            timeout_s = (deadline_ns - time.monotonic_ns()) / 1e9
            if timeout_s <= 0:
                return False
            for key, _ in self._selector.select(min(timeout_s, _LONGEST_S)):
                if key.fileobj is self._listener:
                    self._accept()
                elif isinstance(key.data, Connection):
                    self._read(key.data)
                else:
                    self._ended(key)
        return True

    def close(self) -> None:
        for key in list(self._selector.get_map().values()):
            self._selector.unregister(key.fileobj)
            if isinstance(key.data, Connection):
                key.data.socket.close()
            elif key.fileobj is not self._listener:
                os.close(key.fd)
        self._listener.close()
        self._selector.close()
        self._path.unlink(missing_ok=True)

    def _accept(self) -> None:
        sock, _ = self._listener.accept()
        sock.setblocking(False)
        connection = Connection(sock)
        self._selector.register(sock, selectors.EVENT_READ, connection)

    def _read(self, connection: Connection) -> None:
        if connection.socket.fileno() == -1:
            return  # closed while an earlier event of the same round was handled
        messages, closed = connection.receive()
        for message in messages:
            if message.get("type") == "hello" and isinstance(message.get("index"), int):
                connection.index = int(str(message["index"]))
                self._connections[connection.index] = connection
            if connection.index is not None:
                self._on_message(connection.index, message)
        if closed:
            self._selector.unregister(connection.socket)
            connection.socket.close()
            if connection.index is not None and self._connections.get(connection.index) is connection:
                del self._connections[connection.index]

    def _ended(self, key: selectors.SelectorKey) -> None:
        """A process has ended; what it said before that may still lie in its socket."""
        for other in list(self._selector.get_map().values()):
            if isinstance(other.data, Connection):
                self._read(other.data)
        self._selector.unregister(key.fileobj)
        os.close(key.fd)
        self._on_exit(int(key.data))
