"""The MPS control programs of the driver branches: their commands and their differences.

The programs of 535.261.03, 535.309.01, 550.163.01 and 555.58.02 were recorded command by command on machines without a
GPU, and the program of 580.159.04 on an H100 80GB HBM3. Other branches were not tested: 570 is assumed to behave like
550; 590 and 615 like 580, with the additions in NVIDIA's documentation (release 615). Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass

_OF_ALL = frozenset(
    {
        "get_server_list",
        "start_server",
        "shutdown_server",
        "get_client_list",
        "get_device_client_list",
        "terminate_client",
        "ps",
        "quit",
        *(
            f"{verb}_{owner}{name}"
            for verb in ("get", "set")
            for owner in ("", "default_")
            for name in ("active_thread_percentage", "device_pinned_mem_limit")
        ),
        "get_default_client_priority",
        "set_default_client_priority",
    }
)
_STATUS = frozenset({"get_server_status"})
_DEVICES = frozenset({"device_query"})
_PARTITIONS = frozenset({"sm_partition", "lspart"})  # supported only by a daemon that was started with -S


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlProgram:
    """`nvidia-cuda-mps-control` of a branch.

    Attributes:
        commands: supported commands.
        options: options that are allowed together with `-d`.
        reads_arguments: whether the program parses all arguments. If not, it reads commands from standard input unless
            its only argument is `-d`.
        logs_version: whether the first line of `control.log` is the version.
        writes_pid: whether the daemon writes its PID to a file in the pipe folder.
        server_logs_its_start: whether the line in `control.log` about a server's start has the PID of the server; if
            not, it has the PID of the daemon.
    """

    commands: frozenset[str]
    options: frozenset[str] = frozenset({"-d"})
    reads_arguments: bool = False
    logs_version: bool = False
    writes_pid: bool = True
    server_logs_its_start: bool = True


CONTROL_PROGRAMS = {
    "535": ControlProgram(commands=_OF_ALL, writes_pid=False, server_logs_its_start=False),
    "550": ControlProgram(commands=_OF_ALL | _STATUS),
    "570": ControlProgram(commands=_OF_ALL | _STATUS),
    "580": ControlProgram(commands=_OF_ALL | _STATUS | _DEVICES, reads_arguments=True, logs_version=True),
    "590": ControlProgram(
        commands=_OF_ALL | _STATUS | _DEVICES | _PARTITIONS,
        options=frozenset({"-d", "-S"}),
        reads_arguments=True,
        logs_version=True,
    ),
    "615": ControlProgram(
        commands=_OF_ALL | _STATUS | _DEVICES | _PARTITIONS,
        options=frozenset({"-d", "-S", "-p"}),
        reads_arguments=True,
        logs_version=True,
    ),
}
"""Control programs by branch; the keys are those of `machine.releases.RELEASES`."""
