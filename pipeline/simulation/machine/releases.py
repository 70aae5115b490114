"""The driver releases that a simulated machine can have, with the differences of their programs.

The MPS control programs of 535.309.01, 550.163.01, 580.178.04, 595.99.02 and 615.71.09 were recorded command by command
without a GPU, and the program of 580.159.04 on an H100 80GB HBM3. Two branches were not tested: 570 is assumed to be
like 550, and 590 like 595. Standard library only.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

_OF_ALL = {
    *("get_server_list", "start_server", "shutdown_server", "get_client_list", "get_device_client_list", "quit", "ps"),
    *("terminate_client", "get_default_client_priority", "set_default_client_priority"),
    *(
        f"{verb}_{owner}{name}"
        for verb in ("get", "set")
        for owner in ("", "default_")
        for name in ("active_thread_percentage", "device_pinned_mem_limit")
    ),
}
_STATUS = {"get_server_status"}
_DEVICES = {"device_query"}
_PARTITIONS = {"sm_partition", "lspart"}  # of use only to a daemon that was started with -S


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlProgram:
    """`nvidia-cuda-mps-control` of a release.

    Attributes:
        commands: supported commands.
        options: options that are allowed together with `-d`.
        reads_arguments: whether the program parses all arguments. If not, it reads commands from standard input unless
            its only argument is `-d`.
        logs_version: whether the first line of `control.log` is the version.
        pid_mode: mode of the file in the pipe folder with the PID of the daemon; `None` if there is no such file.
        keeps_pid: whether this file remains after `quit`.
        has_lock_file: whether the pipe folder has `control_lock`.
        server_logs_its_start: whether the line in `control.log` about a server's start has the PID of the server; if
            not, it has the PID of the daemon.
        logs_shutdown: whether `control.log` has a line when a server is told to end.
        logs_levels: whether lines of the logs have a level.
        start_usage: reply to `start_server` without a user; a word that is no number is named first if
            `names_wrong_user`.
    """

    commands: Collection[str]
    options: frozenset[str] = frozenset({"-d"})
    reads_arguments: bool = False
    logs_version: bool = False
    pid_mode: int | None = 0o666
    keeps_pid: bool = False
    has_lock_file: bool = True
    server_logs_its_start: bool = True
    logs_shutdown: bool = True
    logs_levels: bool = False
    start_usage: str = "A user id (UID) is required to start a new server"
    names_wrong_user: bool = False


_R550 = ControlProgram(commands=_OF_ALL | _STATUS)
_R595 = ControlProgram(
    commands=_OF_ALL | _STATUS | _DEVICES | _PARTITIONS,
    options=frozenset({"-d", "-S"}),
    reads_arguments=True,
    logs_version=True,
    start_usage="Invalid start_server cmd. Expected cmd: start_server -uid <user id> [-mlopart]",
    names_wrong_user=True,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A driver release.

    Attributes:
        cuda_version: version of CUDA in NVML's format (12040 is 12.4), and of the MPS control program.
        mps: the MPS control program.
        missing_calls: functions that the simulated NVML has, but NVML of this release does not. Tests compare them with
            the libraries of 535.309.01 and 550.163.01. The options of nvidia-smi that this project uses are the same in
            535.309.01, 550.163.01, 580.178.04, 595.99.02 and 615.71.09.
    """

    driver_version: str
    cuda_version: int
    mps: ControlProgram
    missing_calls: frozenset[str] = frozenset()


RELEASES = {
    "535": Release(
        driver_version="535.309.01",
        cuda_version=12020,
        mps=ControlProgram(commands=_OF_ALL, pid_mode=None, server_logs_its_start=False, logs_shutdown=False),
        missing_calls=frozenset({"nvmlDeviceGetProcessesUtilizationInfo"}),
    ),
    "550": Release(driver_version="550.163.01", cuda_version=12040, mps=_R550),
    "570": Release(driver_version="570.133.20", cuda_version=12080, mps=_R550),
    "580": Release(
        driver_version="580.159.04",
        cuda_version=13000,
        mps=ControlProgram(commands=_OF_ALL | _STATUS | _DEVICES, reads_arguments=True, logs_version=True),
    ),
    "590": Release(driver_version="590.48.01", cuda_version=13010, mps=_R595),
    "595": Release(driver_version="595.99.02", cuda_version=13020, mps=_R595),
    "615": Release(
        driver_version="615.71.09",
        cuda_version=13040,
        mps=replace(
            _R595,
            options=frozenset({"-d", "-S", "-p"}),
            pid_mode=0o644,
            keeps_pid=True,
            has_lock_file=False,
            logs_levels=True,
        ),
    ),
}
"""Releases by branch. Most behaviour was recorded with driver 580; other branches have other versions and MPS
commands."""
RECORDED = "580"
