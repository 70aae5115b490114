"""The orchestrator's half of the job protocol: one listening socket per group, one connection per job.

A process may host several jobs; it then has a connection for each of them.

One selector in the main thread blocks until an event arrives; there is no polling and no thread per job.
`workloads/client.py` is the other half.

A job may write arbitrary data. In each round, a limited number of bytes is therefore read from each connection. A
connection that breaks the protocol is closed, and its job is reported.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import selectors
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path

from pipeline.base.system import host_info

PROTOCOL = 1
_LONGEST_S = 86_400.0  # longest timeout of one wait: epoll accepts at most 2^31 ms
_CHUNK_BYTES = 1 << 16  # most bytes that are read from one connection in one round
# A message of `workloads/client.py` has at most 100 bytes, and a job sends three.
_MAX_LINE_BYTES = 4096
_MAX_BYTES = 1 << 20
_MAX_CONNECTIONS = 16  # most simultaneous connections of one job, or of all processes outside the jobs
_SHOWN_BYTES = 20
_CREDENTIALS = struct.Struct("3i")  # PID, user and group. Source: struct ucred, unix(7)

log = logging.getLogger(__name__)

Message = dict[str, object]


class Connection:
    """The control connection of one process.

    Attributes:
        owners: indices of the jobs that the process belongs to; empty if unknown.
        index: index of the job that the process speaks for; `None` before its `hello`.
        is_closed: whether the process closed the connection.
        fault: description of how the process broke the protocol; `None` if it did not.
    """

    def __init__(self, sock: socket.socket, owners: frozenset[int] = frozenset()) -> None:
        self.socket, self.owners = sock, owners
        self.index: int | None = None
        self.is_closed = False
        self.fault: str | None = None
        self._buffer = b""
        self._num_bytes = 0

    def receive(self) -> list[Message] | None:
        """Read a limited number of bytes; return the complete messages, or `None` if there was nothing to read."""
        try:
            data = self.socket.recv(_CHUNK_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        self.is_closed = not data
        self._num_bytes += len(data)
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        messages: list[Message] = []
        for line in lines:
            message = _parse_message(line)
            if message is None:
                self.fault = f"sent an invalid message over its control socket: {line[:_SHOWN_BYTES]!r}"
                return messages
            messages.append(message)
        if len(self._buffer) > _MAX_LINE_BYTES:
            self.fault = f"sent a line of more than {_MAX_LINE_BYTES} bytes over its control socket"
        elif self._num_bytes > _MAX_BYTES:
            self.fault = f"sent more than {_MAX_BYTES} bytes over its control socket"
        return messages

    def send(self, **message: object) -> None:
        """Send one message. A failed send is ignored, because the exit of a job is detected separately."""
        with contextlib.suppress(OSError):
            self.socket.sendall((json.dumps(message) + "\n").encode())


class Channel:
    """Socket, selector and process descriptors of one group.

    Args:
        path: path of the socket; at most 107 bytes.
        on_message: called with the job's index and each message.
        on_exit: called with the job's index after its process has ended and its last message was handled.
        on_fault: called with the job's index and a description of how it broke the protocol. The job's connections are
            closed by then.
    """

    def __init__(
        self,
        path: Path,
        on_message: Callable[[int, Message], None],
        on_exit: Callable[[int], None],
        on_fault: Callable[[int, str], None],
    ) -> None:
        self._on_message, self._on_exit, self._on_fault = on_message, on_exit, on_fault
        self._path = path
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.setblocking(False)
        self._listener.bind(str(path))
        self._listener.listen(128)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._connections: dict[int, Connection] = {}  # connections of the jobs that have sent hello, by index
        self._jobs: dict[int, frozenset[int]] = {}  # indices of the jobs, by the PID of their leading process
        self._refused: set[int] = set()  # jobs that broke the protocol
        self._refused_strangers = 0

    def watch(self, index: int, pid: int) -> None:
        self._jobs[pid] = self._jobs.get(pid, frozenset()) | {index}
        self._selector.register(os.pidfd_open(pid), selectors.EVENT_READ, index)

    def forget(self, pid: int) -> None:
        """Forget the process of an ended job, whose PID may be reused."""
        self._jobs.pop(pid, None)

    def send(self, index: int, **message: object) -> None:
        if index in self._connections:
            self._connections[index].send(**message)

    def pump(self, until: Callable[[], bool], deadline_ns: int) -> bool:
        """Handle events until the condition holds (returns true) or the deadline passes (returns false)."""
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
                    self._handle_exit(key)
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
        try:
            sock, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):  # the client has closed the connection
            return
        sock.setblocking(False)
        connection = Connection(sock, self._find_owners(sock))
        self._selector.register(sock, selectors.EVENT_READ, connection)
        most = _MAX_CONNECTIONS * max(1, len(connection.owners))
        if connection.owners and connection.owners <= self._refused:
            self._drop(connection)
        elif sum(other.owners == connection.owners for other in self._list_connections()) > most:
            connection.fault = f"opened more than {_MAX_CONNECTIONS} connections to its control socket at a time"
            self._refuse(connection)

    def _read(self, connection: Connection) -> bool:
        """Handle the messages that have arrived; return whether there may be more."""
        if connection.socket.fileno() == -1:
            return False  # closed while an earlier event of the same round was handled
        messages = connection.receive()
        for message in messages or ():
            if (fault := self._check_message(connection, message)) is not None:
                connection.fault = fault
                break
            assert connection.index is not None
            self._on_message(connection.index, message)
        if connection.fault is not None:
            self._refuse(connection)
        elif connection.is_closed:
            self._drop(connection)
        return messages is not None and connection.socket.fileno() != -1

    def _check_message(self, connection: Connection, message: Message) -> str | None:
        index = message.get("index")
        if message.get("type") != "hello":
            return None if connection.index is not None else "sent a message over its control socket before its hello"
        if type(index) is not int or not any(index in indices for indices in self._jobs.values()):
            return f"sent a hello over its control socket as job {repr(index)[:_SHOWN_BYTES]}, which does not exist"
        speakers = connection.owners if connection.index is None else {connection.index}
        if speakers and index not in speakers:
            return f"sent a hello over its control socket as job {index}"
        connection.index = index
        self._connections[index] = connection
        return None

    def _refuse(self, connection: Connection) -> None:
        """Close a connection that broke the protocol, and report its job.

        The job that owns the process is reported rather than the job that the process claims to be. Of a process that
        hosts several jobs, it is the job of the connection, or all jobs if the connection is of none.
        """
        indices, index = connection.owners, connection.index
        if index is not None and (not indices or index in indices):
            indices = frozenset([index])
        self._drop(connection)
        if not indices:
            level = logging.WARNING if self._refused_strangers == 0 else logging.DEBUG
            log.log(level, "a process outside all jobs %s; its connection was closed", connection.fault)
            self._refused_strangers += 1
            return
        self._refused |= indices
        for other in self._list_connections():
            if other.owners and (other.owners <= indices or other.index in indices):
                self._drop(other)
        for index in sorted(indices):
            self._on_fault(index, str(connection.fault))

    def _drop(self, connection: Connection) -> None:
        self._selector.unregister(connection.socket)
        connection.socket.close()
        if connection.index is not None and self._connections.get(connection.index) is connection:
            del self._connections[connection.index]

    def _handle_exit(self, key: selectors.SelectorKey) -> None:
        """Handle the end of a process, and first the last messages in its socket."""
        for connection in self._list_connections():
            if connection.index in (None, key.data):
                while self._read(connection):
                    """The loop ends: the job sends no more, and each connection has a limit of bytes."""
        self._selector.unregister(key.fileobj)
        os.close(key.fd)
        self._on_exit(int(key.data))

    def _list_connections(self) -> list[Connection]:
        return [key.data for key in self._selector.get_map().values() if isinstance(key.data, Connection)]

    def _find_owners(self, sock: socket.socket) -> frozenset[int]:
        """Return the indices of the jobs whose process opened a connection.

        The result is empty if the process has neither the session nor a parent process of a job.
        """
        credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, _, _ = _CREDENTIALS.unpack(credentials)
        while pid > 1:
            if pid in self._jobs:
                return self._jobs[pid]
            if (process := host_info.read_process(pid)) is None:
                break
            if process.session in self._jobs:
                return self._jobs[process.session]
            pid = process.parent
        return frozenset()


def _parse_message(line: bytes) -> Message | None:
    if len(line) > _MAX_LINE_BYTES:
        return None
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) else None
