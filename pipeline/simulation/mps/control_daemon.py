"""The daemon and the server of a simulated MPS: processes with the files and logs of the real daemon and server.

The behaviour was recorded on one H100 80GB HBM3 (driver 580.159.04, MPS control binary 13000). `releases` has the
differences of other branches, and `command_answers` has the answers. If the command syntax of release 615 (MPS v3) is
selected, the daemon supports none of the commands that this project uses. Standard library only.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.simulation.machine.releases import RELEASES, ControlProgram
from pipeline.simulation.mps.command_answers import Answers, Client, Limits, Partitions, Server

_LOOK_S = 0.02
_SPEAKS_WITHIN_S = 2.0  # limit for a client to send its request; meanwhile, no other client is served
_OF_V3 = ControlProgram(commands=())
_PID_FILE = "nvidia-cuda-mps-control.pid"
_SERVER_MIB = 66  # measured on an H100 80GB, driver 580.159.04


class Daemon:
    """The control daemon: one loop over its sockets. `control_program.write_program` explains the settings."""

    def __init__(self, pipes: Path, logs: Path, settings: Mapping[str, Any]) -> None:
        self._pipes, self._logs = pipes, logs
        self._init_s: float = settings["init_s"]
        self._faults: list[str] = settings["faults"]
        self._machine: str | None = settings["machine"]
        self._version: int = settings["version"]
        self._most_clients: int = settings["most_clients"]
        self._is_legacy: bool = settings["is_legacy"]
        self._uuids: list[str] = settings["visible"]
        self._program = RELEASES[settings["branch"]].mps
        program = self._program if self._is_legacy else _OF_V3
        devices = [device for device in settings["devices"] if device.uuid in self._uuids]
        self._partitions = Partitions(devices, self._version) if settings["is_static"] else None
        self._answers = Answers(program, devices, self._partitions, self, partial(self._log, "Control"))
        self.server: Server | None = None
        self._server_pidfd: int | None = None
        self._pending: list[Client] = []
        # For connections on behalf of another process, the pidfd of that process.
        self._stand_ins: dict[socket.socket, int] = {}
        self._quitting: socket.socket | None = None
        self._selector = selectors.DefaultSelector()

    def listen(self) -> None:
        """Create the files of the pipe folder and accept connections."""
        # The files are world-accessible, as those of the real daemon, because clients of all users use them.
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
        (self._pipes / "log").chmod(0o777)
        if self._program.has_lock_file:
            (self._pipes / "control_lock").touch()
            (self._pipes / "control_lock").chmod(0o666)
        if self._program.pid_mode is not None:
            (self._pipes / _PID_FILE).write_text(str(os.getpid()), encoding="ascii")
            (self._pipes / _PID_FILE).chmod(self._program.pid_mode)
        self._log("Control", f"Starting control daemon using socket {self._pipes}/control")
        self._log(
            "Control", f"To connect CUDA applications to this daemon, set env CUDA_MPS_PIPE_DIRECTORY={self._pipes}"
        )
        if self._program.logs_version:
            self._log("Control", f"CUDA MPS Control binary version: {self._version}")

    def serve(self) -> None:
        """Answer requests until `quit` was received and the last client has ended."""
        while True:
            for key, _ in self._selector.select(_LOOK_S):
                connection = key.fileobj
                if key.data == "server":
                    continue
                if not isinstance(connection, socket.socket):
                    self._forget(key.data)
                elif key.data == "listener":
                    self._accept(connection)
                else:
                    self._client_left(connection)
            self._look_after_server()
            if self._quitting is not None and (self.server is None or not self.server.clients):
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
            case ["CLIENT", other_pid, partition]:
                self._greet(Client(pid, connection), uid, other_pid, partition)
            case ["UI", *command]:
                self._log("Control", "NEW UI")
                self._log("Control", f"Cmd:{' '.join(command)}")
                is_quit = self._is_legacy and command[:1] == ["quit"]
                if is_quit and "ignores_quit" not in self._faults:
                    self._quitting = connection
                    return
                self._reply(connection, [] if is_quit else self._answers.answer(command))
            case _:
                connection.close()

    def _reply(self, connection: socket.socket, lines: Sequence[str]) -> None:
        for line in lines:
            self._log("Control", line)
        with suppress(OSError):
            connection.sendall("".join(f"{line}\n" for line in lines).encode())
        connection.close()
        self._log("Control", "UI closed")

    def _greet(self, client: Client, uid: int, pid: str, partition: str) -> None:
        """Accept a client into the partition named `partition`, or refuse the client.

        If `pid` is a number, the client is the process with this pid instead of the process that connected.
        """
        if self._partitions is not None:
            client.partition = self._partitions.find(partition)
            if client.partition is None:
                self._refuse(client, b"no such partition\n")
                return
        if pid != "-":
            client.pid = int(pid)
            try:
                self._stand_ins[client.connection] = os.pidfd_open(client.pid)
            except ProcessLookupError:  # the process has just ended
                client.connection.close()
                return
        self._new_client(client, uid)

    def _new_client(self, client: Client, uid: int) -> None:
        server, pid = self.server, client.pid
        if self._quitting is not None or (server is not None and server.status == "FAULT"):
            self._refuse(client)
        elif len(self._pending) + len(server.clients if server else ()) >= self._most_clients:
            self._refuse(client, b"too many clients\n")
        elif server is None or server.status == "INITIALIZING":
            self._log("Control", f"NEW CLIENT {pid} from user {uid}: Server is not ready, push client to pending list")
            self._pending.append(client)
            if server is None:
                self.start_server(uid)
        else:
            self._log("Control", f"NEW CLIENT {pid} from user {uid}: Server already exists")
            self._admit(server, client)

    def _refuse(self, client: Client, answer: bytes = b"") -> None:
        with suppress(OSError):
            client.connection.sendall(answer)
        self._disconnect([client.connection])

    def _admit(self, server: Server, client: Client) -> None:
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
        self._disconnect([connection])
        if (server := self.server) is None:
            return
        for client in [client for client in server.clients if client.connection is connection]:
            self._log("Server", f"Client process {client.pid} disconnected")
            self._remove(server, client)

    @staticmethod
    def _remove(server: Server, client: Client) -> None:
        """Remove a client; a server recovers from a fault when its last client is removed."""
        server.clients.remove(client)
        if not server.clients and server.status == "FAULT":
            server.status = "ACTIVE"

    def start_server(self, uid: int) -> None:
        pid = os.fork()
        if pid == 0:
            _serve_until_ended(dies=not {"server_dies", "server_fails"}.isdisjoint(self._faults))
        limits = Limits(self._answers.defaults.percentage, dict(self._answers.defaults.memory))
        self.server = Server(pid, uid, time.monotonic() + self._init_s, limits)
        self._server_pidfd = os.pidfd_open(pid)
        self._selector.register(self._server_pidfd, selectors.EVENT_READ, "server")
        writer = pid if self._program.server_logs_its_start else os.getpid()
        self._log("Control", f"Starting new server {pid} for user {uid}", writer)
        if "server_fails" in self._faults:  # text from a public report
            self._log("Other", "Startup")
            self._log("Other", "Initializing server process")
            self._log("Legacy Server", "Failed to start : invalid argument")
            self._log("Control", "Server encountered a fatal exception. Shutting down")
        if self._machine is not None:
            self._take_memory(pid, self._machine)

    def shut_down_server(self) -> None:
        """Terminate the server, which disconnects its clients."""
        if self.server is not None:
            if self._program.logs_shutdown:
                self._log("Control", f"Try shutting down server {self.server.pid}, backoff is disabled")
            self._log("Server", "Server has been notified to shutdown")
            with suppress(ProcessLookupError):
                os.kill(self.server.pid, signal.SIGTERM)

    def disconnect_clients(self, pid: int) -> bool:
        """Disconnect a process; return whether it was a client."""
        if (server := self.server) is None:
            return False
        clients = [client for client in server.clients if client.pid == pid]
        self._disconnect([client.connection for client in clients])
        for client in clients:
            self._remove(server, client)
        return bool(clients)

    def _take_memory(self, server: int, machine: str) -> None:
        """Allocate the server's memory on its devices; if this fails, terminate the server."""
        from pipeline.simulation.machine.codes import DriverError
        from pipeline.simulation.machine.driver import Clients
        from pipeline.simulation.machine.state_file import StateFile

        try:
            for uuid in self._uuids:
                Clients(StateFile(Path(machine))).hold(uuid, server, "nvidia-cuda-mps-server", _SERVER_MIB)
        except DriverError as error:
            self._log("Server", f"Failed to initialize: {error}")
            os.kill(server, signal.SIGKILL)

    def _look_after_server(self) -> None:
        server = self.server
        if server is None:
            return
        pid, status = os.waitpid(server.pid, os.WNOHANG)
        if pid:
            self._server_ended(server, status)
        elif (
            server.status == "INITIALIZING" and time.monotonic() >= server.ready_s and "never_ready" not in self._faults
        ):
            server.status = "ACTIVE"
            self._log("Control", f"NEW SERVER {server.pid}: Ready")
            self._log("Server", "Server has started")
            for client in self._pending:
                self._admit(server, client)
            self._pending = []

    def _server_ended(self, server: Server, status: int) -> None:
        # If a signal killed the server, even SIGKILL, the real daemon reports status 0 (580.159.04).
        code = 0 if os.WIFSIGNALED(status) else os.waitstatus_to_exitcode(status)
        self._log("Control", f"Server {server.pid} exited with status {code}")
        self.server = None
        if self._server_pidfd is not None:
            self._selector.unregister(self._server_pidfd)
            os.close(self._server_pidfd)
            self._server_pidfd = None
        self._disconnect([client.connection for client in (*self._pending, *server.clients)])
        self._pending = []

    def _disconnect(self, connections: Sequence[socket.socket]) -> None:
        for connection in connections:
            watched = self._stand_ins.pop(connection, None)
            with suppress(KeyError, ValueError):  # ValueError means that the connection is already closed
                self._selector.unregister(connection if watched is None else watched)
            if watched is not None:
                os.close(watched)
            connection.close()

    def _end(self) -> None:
        """Stop the server and remove the files that a real daemon removes; the sockets and the lock file remain."""
        if self.server is not None:
            self.shut_down_server()
            self._server_ended(self.server, os.waitpid(self.server.pid, 0)[1])
        for name in ("log", *([] if self._program.keeps_pid else [_PID_FILE])):
            (self._pipes / name).unlink(missing_ok=True)
        self._log("Control", "Exit with status 0")
        assert self._quitting is not None
        self._quitting.close()

    def _log(self, author: str, text: str, pid: int | None = None) -> None:
        """Write a line to the daemon's log or, if the author is the server, to the server's log."""
        if pid is None:
            pid = os.getpid() if author == "Control" or self.server is None else self.server.pid
        now_s = time.time()
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now_s)) + f".{int(now_s * 1000) % 1000:03}"
        name = "control" if author == "Control" else "server"
        # As in the real daemon, it is not an error if the log cannot be written because its folder was removed.
        level = " INFO" if self._program.logs_levels else ""
        with suppress(OSError), (self._logs / f"{name}.log").open("a", encoding="utf-8") as file:
            file.write(f"[{stamp} {author}{level} {pid:>5}] {text}\n")


def _serve_until_ended(*, dies: bool) -> None:
    """Run until terminated, even if the daemon was killed."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.closerange(3, 4096)  # if the server kept the daemon's sockets open, clients would not notice its death
    if dies:
        os._exit(1)
    while True:
        signal.pause()
