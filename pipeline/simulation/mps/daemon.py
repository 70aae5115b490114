"""The daemon and the server of a simulated MPS: real processes, with the files, logs and answers of the real ones.

Recorded on one H100 80GB HBM3 (driver 580.159.04, MPS control binary 13000). Where neither a recording nor a document
says what the real daemon answers, the answer is the one for an unknown command or nothing: so it answers all commands
that this project knows where the command syntax of release 615 (MPS v3) was chosen. Standard library only.
"""

from __future__ import annotations

import os
import re
import selectors
import signal
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.simulation.mps.partitions import Partitions

_LOOK_S = 0.02
_SPEAKS_WITHIN_S = 2.0  # whoever connects; meanwhile nobody else is answered
# Commands of the real daemon that this one does not know. Source: MPS documentation, release 615, mpsv2-interface.
_NOT_SIMULATED = re.compile(
    "ps|device_query|get_device_client_list"
    "|(get|set)_((default_)?(active_thread_percentage|device_pinned_mem_limit)|default_client_priority)"
)
_SERVER_MIB = 66  # of an H100 80GB, driver 580.159.04


@dataclass(slots=True)
class _Client:
    pid: int
    connection: socket.socket
    partition: str | None = None


@dataclass(slots=True)
class _Server:
    """The server as its daemon knows it."""

    pid: int
    uid: int
    ready_s: float
    status: str = "INITIALIZING"
    clients: list[_Client] = field(default_factory=list)


class Daemon:
    """The control daemon: one loop over its sockets. `control.write_program` says what its settings mean."""

    def __init__(self, pipes: Path, logs: Path, settings: Mapping[str, Any]) -> None:
        self._pipes, self._logs = pipes, logs
        self._init_s: float = settings["init_s"]
        self._faults: list[str] = settings["faults"]
        self._machine: str | None = settings["machine"]
        self._version: int = settings["version"]
        self._most_clients: int = settings["most_clients"]
        self._is_legacy: bool = settings["is_legacy"]
        self._uuids: list[str] = settings["visible"]
        own = [device for device in settings["devices"] if device.uuid in self._uuids]
        self._partitions = Partitions(own, self._version) if settings["is_static"] else None
        self._server: _Server | None = None
        self._pending: list[_Client] = []
        # Connections of whoever speaks for another process, and what tells the end of that process.
        self._stand_ins: dict[socket.socket, int] = {}
        self._quitting: socket.socket | None = None
        self._selector = selectors.DefaultSelector()

    def listen(self) -> None:
        """Make the files of the pipe folder and accept connections from now on."""
        # World-accessible, as the real daemon makes them: its multi-user clients connect through the same files.
        for name, mode in (("control", 0o666), ("control_privileged", 0o755)):
            path = self._pipes / name
            path.unlink(missing_ok=True)
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            listener.bind(str(path))
            path.chmod(mode)
            listener.listen(64)
            self._selector.register(listener, selectors.EVENT_READ, "listener")
        (self._pipes / "log").unlink(missing_ok=True)
        os.mkfifo(self._pipes / "log")
        (self._pipes / "nvidia-cuda-mps-control.pid").write_text(str(os.getpid()), encoding="ascii")
        for name, mode in (("control_lock", 0o666), ("log", 0o777), ("nvidia-cuda-mps-control.pid", 0o666)):
            (self._pipes / name).chmod(mode)
        self._log("Control", f"Starting control daemon using socket {self._pipes}/control")
        self._log(
            "Control", f"To connect CUDA applications to this daemon, set env CUDA_MPS_PIPE_DIRECTORY={self._pipes}"
        )
        self._log("Control", f"CUDA MPS Control binary version: {self._version}")

    def serve(self) -> None:
        """Answer until `quit` and the end of the last client."""
        while True:
            for key, _ in self._selector.select(_LOOK_S):
                connection = key.fileobj
                if not isinstance(connection, socket.socket):
                    self._forget(key.data)
                elif key.data == "listener":
                    self._accept(connection)
                else:
                    self._client_left(connection)
            self._look_after_server()
            if self._quitting is not None and (self._server is None or not self._server.clients):
                self._end()
                return

    def _accept(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        self._log("Control", "Accepting connection...")
        if "no_answer" in self._faults:
            self._selector.register(connection, selectors.EVENT_READ, "client")
            return
        pid, uid, _gid = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        connection.settimeout(_SPEAKS_WITHIN_S)
        words: list[str] = []
        with suppress(OSError, UnicodeDecodeError):
            words = connection.makefile("r", encoding="utf-8").readline().split()
        match words:
            case ["CLIENT", whom, partition]:
                self._greet(_Client(pid, connection), uid, whom, partition)
            case ["UI", *command]:
                self._log("Control", "NEW UI")
                self._log("Control", f"Cmd:{' '.join(command)}")
                if command == ["quit"] and self._is_legacy and "ignores_quit" not in self._faults:
                    self._quitting = connection
                    return
                self._reply(connection, self._answer(command))
            case _:
                connection.close()

    def _reply(self, connection: socket.socket, lines: Sequence[str]) -> None:
        for line in lines:
            self._log("Control", line)
        with suppress(OSError):
            connection.sendall("".join(f"{line}\n" for line in lines).encode())
        connection.close()
        self._log("Control", "UI closed")

    def _greet(self, client: _Client, uid: int, whom: str, partition: str) -> None:
        """Take a client, or the process for which it speaks, into the partition that it names."""
        if self._partitions is not None:
            client.partition = self._partitions.find(partition)
            if client.partition is None:
                self._refuse(client, b"no such partition\n")
                return
        if whom != "-":
            client.pid = int(whom)
            try:
                self._stand_ins[client.connection] = os.pidfd_open(client.pid)
            except ProcessLookupError:  # it has just ended
                client.connection.close()
                return
        self._new_client(client, uid)

    def _new_client(self, client: _Client, uid: int) -> None:
        server, pid = self._server, client.pid
        if self._quitting is not None or (server is not None and server.status == "FAULT"):
            self._refuse(client)
        elif len(self._pending) + len(server.clients if server else ()) >= self._most_clients:
            self._refuse(client, b"too many clients\n")
        elif server is None or server.status == "INITIALIZING":
            self._log("Control", f"NEW CLIENT {pid} from user {uid}: Server is not ready, push client to pending list")
            self._pending.append(client)
            if server is None:
                self._start_server(uid)
        else:
            self._log("Control", f"NEW CLIENT {pid} from user {uid}: Server already exists")
            self._admit(server, client)

    def _refuse(self, client: _Client, answer: bytes = b"") -> None:
        with suppress(OSError):
            client.connection.sendall(answer)
        self._disconnect([client.connection])

    def _admit(self, server: _Server, client: _Client) -> None:
        server.clients.append(client)
        connection = client.connection
        if connection in self._stand_ins:
            self._selector.register(self._stand_ins[connection], selectors.EVENT_READ, connection)
        else:
            self._selector.register(connection, selectors.EVENT_READ, "client")
        with suppress(OSError):
            connection.sendall(b"accepted\n")
        self._log("Server", f"Client {{PID: {client.pid}, Context ID: 1}} connected")
        if "fault_on_client" in self._faults:
            server.status = "FAULT"

    def _client_left(self, connection: socket.socket) -> None:
        with suppress(OSError):
            if connection.recv(64):
                return
        self._forget(connection)

    def _forget(self, connection: socket.socket) -> None:
        """A client has ended."""
        self._disconnect([connection])
        if (server := self._server) is None:
            return
        for client in [client for client in server.clients if client.connection is connection]:
            self._log("Server", f"Client process {client.pid} disconnected")
            self._take_out(server, client)

    @staticmethod
    def _take_out(server: _Server, client: _Client) -> None:
        """A server recovers from a fault when its last client is gone."""
        server.clients.remove(client)
        if not server.clients and server.status == "FAULT":
            server.status = "ACTIVE"

    def _start_server(self, uid: int) -> None:
        pid = os.fork()
        if pid == 0:
            _be_server(dies="server_dies" in self._faults)
        self._server = _Server(pid, uid, time.monotonic() + self._init_s)
        self._log("Control", f"Starting new server {pid} for user {uid}")
        if self._machine is not None:
            self._take_memory(pid, self._machine)

    def _take_memory(self, server: int, machine: str) -> None:
        """Let the server hold what it holds on the device; it ends where it cannot."""
        from pipeline.simulation.machine.clients import Clients
        from pipeline.simulation.machine.codes import DriverError
        from pipeline.simulation.machine.state import StateFile

        try:
            for uuid in self._uuids:
                Clients(StateFile(Path(machine))).hold(uuid, server, "nvidia-cuda-mps-server", _SERVER_MIB)
        except DriverError as error:
            self._log("Server", f"Failed to initialize: {error}")
            os.kill(server, signal.SIGKILL)

    def _look_after_server(self) -> None:
        server = self._server
        if server is None:
            return
        pid, status = os.waitpid(server.pid, os.WNOHANG)
        if pid:
            self._log("Control", f"Server {pid} exited with status {os.waitstatus_to_exitcode(status)}")
            self._server = None
            self._disconnect([client.connection for client in (*self._pending, *server.clients)])
            self._pending = []
        elif (
            server.status == "INITIALIZING" and time.monotonic() >= server.ready_s and "never_ready" not in self._faults
        ):
            server.status = "ACTIVE"
            self._log("Control", f"NEW SERVER {server.pid}: Ready")
            self._log("Server", "Server has started")
            for client in self._pending:
                self._admit(server, client)
            self._pending = []

    def _disconnect(self, connections: Sequence[socket.socket]) -> None:
        for connection in connections:
            watched = self._stand_ins.pop(connection, None)
            with suppress(KeyError, ValueError):  # ValueError: it was closed already
                self._selector.unregister(connection if watched is None else watched)
            if watched is not None:
                os.close(watched)
            connection.close()

    def _end(self) -> None:
        """Stop the server, then remove what a daemon that quits removes: its sockets and the lock stay."""
        if self._server is not None:
            self._log("Control", f"Try shutting down server {self._server.pid}, backoff is disabled")
            self._log("Server", "Server has been notified to shutdown")
            with suppress(ProcessLookupError):
                os.kill(self._server.pid, signal.SIGTERM)
            _, status = os.waitpid(self._server.pid, 0)
            code = 0 if os.waitstatus_to_exitcode(status) == -signal.SIGTERM else os.waitstatus_to_exitcode(status)
            self._log("Control", f"Server {self._server.pid} exited with status {code}")
        for name in ("log", "nvidia-cuda-mps-control.pid"):
            (self._pipes / name).unlink(missing_ok=True)
        self._log("Control", "Exit with status 0")
        assert self._quitting is not None
        self._quitting.close()

    def _answer(self, words: list[str]) -> list[str]:
        """What the daemon prints for a command; an unknown or wrong one has an answer like every other."""
        server = self._server
        unknown = [f'Unknown command "{" ".join(words)}"']
        if not self._is_legacy:
            return unknown
        if self._partitions is not None:
            clients = server.clients if server else []
            found = self._partitions.answer(words, {client.partition or "" for client in clients})
            if found is not None:
                return found
        match words:
            case ["get_server_list"]:
                return [str(server.pid)] if server else []
            case ["start_server", "-uid", wanted] if wanted.isdecimal():
                if server is None:
                    self._start_server(int(wanted))
                return []
            case ["get_server_status" | "get_client_list", pid] | ["terminate_client", pid, _]:
                if server is None or pid != str(server.pid):
                    return [f"Server {pid} not found"]
                return self._answer_of_server(server, words)
            case ["quit"]:
                return []
            case [command, *_] if _NOT_SIMULATED.fullmatch(command):
                return [f"The simulated MPS does not know {command}"]
        return unknown

    def _answer_of_server(self, server: _Server, words: list[str]) -> list[str]:
        match words:
            case ["get_server_status", _]:
                return [server.status]
            case ["terminate_client", _, pid]:
                gone = [client for client in server.clients if str(client.pid) == pid]
                self._disconnect([client.connection for client in gone])
                for client in gone:
                    self._take_out(server, client)
                return ["0"] if gone else [f"Client {pid} not found"]
        return [str(client.pid) for client in server.clients]

    def _log(self, who: str, text: str) -> None:
        pid = os.getpid() if who == "Control" or self._server is None else self._server.pid
        now_s = time.time()
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now_s)) + f".{int(now_s * 1000) % 1000:03}"
        # As the real one: a log that cannot be written (its folder was removed) stops nobody.
        with suppress(OSError), (self._logs / f"{who.lower()}.log").open("a", encoding="utf-8") as file:
            file.write(f"[{stamp} {who:<7} {pid:>5}] {text}\n")


def _be_server(*, dies: bool) -> None:
    """The server process: it lives until it is told to end, also when its daemon was killed."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.closerange(3, 4096)  # or clients of a killed daemon would never learn that it is gone
    if dies:
        os._exit(1)
    while True:
        signal.pause()
