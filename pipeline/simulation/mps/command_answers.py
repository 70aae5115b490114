"""The answers of a simulated MPS daemon to the commands of its control program, with the texts of real daemons.

Standard library only. `releases` lists the commands of each branch.

Titles of static SM partitions, and replies to their commands that fail, were recorded from the control programs of
595.99.02 and 615.71.09 on a machine without a GPU. Rows and successful replies follow NVIDIA's MPS documentation,
release 615 (common-tasks, mpsv2-interface); earlier control programs differ slightly (public programs that parse them
on H100s: sgl-project/sglang-omni, `mps/control.py`; NVIDIA-ISAAC-ROS/isaac_ros_common,
`isaac_ros_gpu_partitioning`).
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pipeline.simulation.machine.releases import ControlProgram

if TYPE_CHECKING:
    import socket

_NO_SUCH_CLIENT = "201"  # recorded from 580.159.04
# Numbers at the beginning of a word, as C parses them.
_WHOLE, _DECIMAL = re.compile(r"[+-]?\d+"), re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?")
_LIMIT_COMMAND = re.compile("(get|set)_(default_)?(active_thread_percentage|device_pinned_mem_limit)")
_LIMIT = re.compile(r"(\d+)([GM])")


@dataclass(slots=True)
class Client:
    """A client process and its connection; `partition` is the id of the client's static partition."""

    pid: int
    connection: socket.socket
    partition: str | None = None


@dataclass(slots=True)
class Limits:
    """Limits of one server, or defaults for later servers: active thread percentage, and memory by device."""

    percentage: float = 100.0
    memory: dict[int, str] = field(default_factory=dict)


@dataclass(slots=True)
class Server:
    """The daemon's record of a server."""

    pid: int
    uid: int
    ready_s: float
    limits: Limits
    status: str = "INITIALIZING"
    clients: list[Client] = field(default_factory=list)


class ServerControl(Protocol):
    """The methods of the daemon that commands use."""

    @property
    def server(self) -> Server | None: ...

    def start_server(self, uid: int) -> None: ...

    def shut_down_server(self) -> None: ...

    def disconnect_clients(self, pid: int) -> bool: ...


class Answers:
    """The answers of one daemon.

    `answer` returns the lines of the answer to a command line, which is given as words. `log` is called with text that
    the daemon writes only to its log.
    """

    def __init__(
        self,
        program: ControlProgram,
        devices: Sequence[Device],
        partitions: Partitions | None,
        control: ServerControl,
        log: Callable[[str], None],
    ) -> None:
        self._program, self._devices, self._partitions = program, devices, partitions
        self._control, self._log = control, log
        self.defaults = Limits()
        self._priority = 0

    def answer(self, words: Sequence[str]) -> list[str]:
        name, *arguments = words or [""]
        if name in self._program.commands:
            if name in ("sm_partition", "lspart"):
                return self._answer_on_partitions(list(words))
            if match := _LIMIT_COMMAND.fullmatch(name):
                return self._answer_on_limits(match, arguments)
            return list(getattr(self, f"_{name}")(arguments))
        return [f'Unknown command "{name}"']

    def _answer_on_partitions(self, words: list[str]) -> list[str]:
        if self._partitions is None:
            return ["Static partitioning mode is not enabled"]
        clients = self._control.server.clients if self._control.server else []
        return self._partitions.answer(words, {client.partition or "" for client in clients})

    def _find(self, arguments: Sequence[str]) -> Server | None:
        server = self._control.server
        return server if server is not None and server.pid == _read_number(arguments) else None

    def _get_server_list(self, arguments: list[str]) -> list[str]:
        return [str(self._control.server.pid)] if self._control.server else []

    def _get_server_status(self, arguments: list[str]) -> list[str]:
        if not arguments or _WHOLE.match(arguments[0]) is None:
            return ["A server PID is required"]
        server = self._find(arguments)
        return [server.status] if server else _report_absence(arguments)

    def _start_server(self, arguments: list[str]) -> list[str]:
        if arguments[:1] != ["-uid"] or _WHOLE.match("".join(arguments[1:2])) is None:
            invalid_uids = arguments[1:2] if arguments[:1] == ["-uid"] and self._program.names_wrong_user else []
            return [*(f"Invalid UID: {word}" for word in invalid_uids), self._program.start_usage]
        if self._control.server is None:
            self._control.start_server(_read_number(arguments[1:]))
        return []

    def _shutdown_server(self, arguments: list[str]) -> list[str]:
        if (server := self._find(arguments)) is None:
            return _report_absence(arguments)
        if server.clients and "-f" not in arguments:
            self._log(f"Server {server.pid} has {len(server.clients)} active worker threads. Server will not shutdown.")
        else:
            self._control.shut_down_server()
        return []

    def _get_client_list(self, arguments: list[str]) -> list[str]:
        server = self._find(arguments)
        return [str(client.pid) for client in server.clients] if server else _report_absence(arguments)

    def _get_device_client_list(self, arguments: list[str]) -> list[str]:
        if arguments and _WHOLE.match(arguments[0]) and self._find(arguments) is None:
            return _report_absence(arguments)
        if (server := self._control.server) is None:
            return []
        clients = [f"{client.pid}.1" for client in server.clients]  # number of the context within the process
        lines = ([f"[{index}] 00:00.0, {device.name}", *clients] for index, device in enumerate(self._devices))
        return [line for device_lines in lines for line in device_lines]

    def _ps(self, arguments: list[str]) -> list[str]:
        if arguments[:1] == ["-p"] and self._find(arguments[1:]) is None:
            return [*_report_absence(arguments[1:]), *_report_absence(arguments[1:]), ""]
        if (server := self._control.server) is None:
            return ["Server not found"]
        rows = [("PID", "ID", "SERVER", "DEVICE", "NAMESPACE", "COMMAND")] if server.clients else []
        uuid = self._devices[0].uuid[:22] if self._devices else ""
        for number, client in enumerate(server.clients, start=1):
            namespace, name = _namespace_and_name(client.pid)
            rows.append((str(client.pid), str(number), str(server.pid), uuid, namespace, name))
        return [f"{a:<10}{b:<10}{c:<15}{d:<26}{e:<15}{f:<15}" for a, b, c, d, e, f in rows]

    def _device_query(self, arguments: list[str]) -> list[str]:
        pids = [word for word in arguments if _WHOLE.match(word)]
        if pids and self._find(pids) is None:
            return _report_absence(pids)
        titles = [] if pids else ["Default"]
        titles += [f"Server {self._control.server.pid}"] if self._control.server else []
        table = [_device_row("Device Ordinal", "PCI IDs", "UUID", "Name", "Attributes")]
        for index, device in enumerate(self._devices):
            table.append(_device_row(str(index), device.pci, device.uuid, device.name, "N/A"))
        lines = [line for title in titles for line in ("", title, *table)]
        return lines[1:]

    def _terminate_client(self, arguments: list[str]) -> list[str]:
        if self._find(arguments) is None:
            return [*_report_absence(arguments), f"{_report_absence(arguments)[0]}!", "1"]
        return ["0" if self._control.disconnect_clients(_read_number(arguments[1:])) else _NO_SUCH_CLIENT]

    def _answer_on_limits(self, command: re.Match[str], arguments: list[str]) -> list[str]:
        verb, scope, quantity = command.groups()
        limits = self.defaults
        if scope is None:
            if (server := self._find(arguments)) is None:
                return _report_absence(arguments)
            limits, arguments = server.limits, arguments[1:]
        if quantity == "device_pinned_mem_limit":
            return _set_memory(limits, arguments) if verb == "set" else self._memory(limits, arguments)
        return self._set_percentage(limits, arguments) if verb == "set" else [f"{limits.percentage:.1f}"]

    def _set_percentage(self, limits: Limits, arguments: list[str]) -> list[str]:
        number = _DECIMAL.match("".join(arguments[:1]))
        share = float(number[0]) if number else 0.0
        if 0 < share <= 100:
            limits.percentage = share
        else:
            self._log("Invalid percentage, expected between (0.0, 100.0]")
        return [f"{limits.percentage:.1f}"]

    def _memory(self, limits: Limits, arguments: list[str]) -> list[str]:
        if (limit := limits.memory.get(_read_number(arguments))) is None:
            self._log("No default pinned memory limit set for the device!")
            return []
        return [limit]

    def _get_default_client_priority(self, arguments: list[str]) -> list[str]:
        return [str(self._priority)]

    def _set_default_client_priority(self, arguments: list[str]) -> list[str]:
        if arguments and _WHOLE.match(arguments[0]):
            if _read_number(arguments) not in (0, 1):
                return ["Invalid priority value - must be 0 or 1!"]
            self._priority = _read_number(arguments)
        return []


def _read_number(words: Sequence[str]) -> int:
    """Return the number at the beginning of the first word, as C's atoi parses it."""
    number = _WHOLE.match("".join(words[:1]))
    return int(number[0]) if number else 0


def _report_absence(arguments: Sequence[str]) -> list[str]:
    return [f"Server {_read_number(arguments)} not found"]


def _set_memory(limits: Limits, arguments: list[str]) -> list[str]:
    """Set a limit; an invalid value removes it, and gigabytes are rounded down."""
    if len(arguments) > 1:
        limits.memory.pop(_read_number(arguments), None)
        if limit := _LIMIT.match(arguments[1]):
            amount_mib = int(limit[1]) * (1024 if limit[2] == "G" else 1)
            limits.memory[_read_number(arguments)] = f"{amount_mib}M" if amount_mib < 1024 else f"{amount_mib // 1024}G"
    return []


def _device_row(ordinal: str, pci: str, uuid: str, name: str, attributes: str) -> str:
    return f"{ordinal:<16}{pci:<15}{uuid:<42}{name:<34}{attributes}"


def _namespace_and_name(pid: int) -> tuple[str, str]:
    """Return the PID namespace and the name of a process; empty if the process has ended."""
    process = Path(f"/proc/{pid}")
    namespace = name = ""
    with suppress(OSError):
        namespace = re.sub(r"\D", "", str((process / "ns/pid").readlink()))
        name = (process / "comm").read_text(encoding="utf-8", errors="replace").strip()
    return namespace, name


_DASHES_SINCE = 13040
_FAILED = "Failed to create partition"
_USAGE = {
    "add": "Usage: sm_partition add <device UUID> <number of chunks>",
    "rm": "Usage: sm_partition rm <device UUID> <partition ID> or sm_partition rm <device UUID>/<partition ID>",
}


@dataclass(slots=True)
class Device:
    """A GPU of the daemon.

    Attributes:
        multiprocessors: number of multiprocessors.
        chunk: number of multiprocessors in a chunk.
        num_chunks: number of chunks.
        pci: bus id in the daemon's format, `0000:00.06.00`.
        partitions: number of chunks of each partition, by id.
    """

    uuid: str
    multiprocessors: int
    chunk: int
    num_chunks: int
    name: str = ""
    pci: str = ""
    partitions: dict[str, int] = field(default_factory=dict)

    @property
    def free(self) -> int:
        """Chunks that are not in a partition."""
        return self.num_chunks - sum(self.partitions.values())

    def multiprocessors_of(self, partition: str) -> int:
        """Return the multiprocessors of a partition; the last chunk also has the multiprocessors that fill no chunk."""
        is_last = not self.free and partition == list(self.partitions)[-1]
        return self.partitions[partition] * self.chunk + (self._spare if is_last else 0)

    @property
    def _spare(self) -> int:
        return self.multiprocessors - self.num_chunks * self.chunk

    @property
    def free_multiprocessors(self) -> int:
        return self.free * self.chunk + self._spare if self.free else 0


class Partitions:
    """The partitions of all GPUs of a daemon; `version` is the version of the control program."""

    def __init__(self, devices: Collection[Device], version: int) -> None:
        self._devices, self._version = devices, version
        self._num_made = 0

    def find(self, name: str) -> str | None:
        """Return the id of the partition that `CUDA_MPS_SM_PARTITION` names; `None` if it does not exist."""
        uuid, _, partition = name.partition("/")
        device = self._device(uuid)
        return partition if device is not None and partition in device.partitions else None

    def answer(self, words: list[str], in_use: Collection[str]) -> list[str]:
        """Return the answer to a command about partitions.

        `in_use` has the partitions of the clients.
        """
        match words:
            case ["lspart", *_]:
                return self._list(in_use)
            case ["sm_partition", "add", uuid, chunks] if chunks.isdecimal():
                return [self._add(device, int(chunks)) if (device := self._device(uuid)) else _FAILED]
            case ["sm_partition", "rm", uuid, partition] if (
                device := self._device(uuid)
            ) and partition in device.partitions:
                if partition in in_use:
                    return [f"Partition {partition} in use. Terminate all clients before removing."]
                del device.partitions[partition]
                return []
            case ["sm_partition", "rm", _, _]:
                return ["Failed to remove partition"]
            case ["sm_partition", ("add" | "rm") as verb, *_]:
                return [f"Invalid command format: {' '.join(words[1:])}", "", _USAGE[verb]]
        return ["Invalid option for sm_partition"]

    def _device(self, uuid: str) -> Device | None:
        devices = [device for device in self._devices if uuid and device.uuid.startswith(uuid)]
        return devices[0] if len(devices) == 1 else None

    def _add(self, device: Device, chunks: int) -> str:
        if not 0 < chunks <= device.free:
            return _FAILED
        # Ids are base64 and may contain slashes.
        partition = base64.b64encode(bytes([0x0F, 0xFE, 0xFD, self._num_made % 256]) + bytes(23)).decode()
        self._num_made += 1
        device.partitions[partition] = chunks
        name = f"{device.uuid}/{partition}"
        return name if self._version >= _DASHES_SINCE else f"Partition {name} created"

    def _list(self, in_use: Collection[str]) -> list[str]:
        dash = "-" if self._version >= _DASHES_SINCE else ""
        rows: list[tuple[str, ...]] = [
            ("GPU", "Partition", "free", "used", "free", "used", "clients"),
            ("", "", "chunks", "chunks", "SM", "SM", ""),
        ]
        for device in self._devices:
            gpu, used = device.uuid[:12], sum(device.partitions.values())
            counts = (device.free, used, device.free_multiprocessors, used * device.chunk)
            rows.append((gpu, dash, *map(str, counts), dash))
            for partition, chunks in device.partitions.items():
                is_used = "Yes" if partition in in_use else dash or "No"
                multiprocessors = str(device.multiprocessors_of(partition))
                rows.append((gpu, partition, dash, str(chunks), dash, multiprocessors, is_used))
        return [f"{a:<21}{b:<37}{c:<9}{d:<9}{e:<7}{f:<7}{g:<6}" for a, b, c, d, e, f, g in rows]
