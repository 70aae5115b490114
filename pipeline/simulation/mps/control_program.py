"""`nvidia-cuda-mps-control` without hardware: daemon and server are real processes, a client is an open connection.

Texts and exit statuses are those of real programs, including status 0 for rejected commands. `releases` lists the
recorded drivers and their commands. The program imports only the standard library, so that it starts quickly, and
starts no other program. It refuses to run without `CUDA_MPS_PIPE_DIRECTORY`, because the default folder may belong to a
real daemon.

`write_program` creates the executable. `connect` connects to the daemon, as the CUDA library does in a client.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import shlex
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.base.system.paths import PROJECT_DIR
from pipeline.simulation.machine.releases import RECORDED, RELEASES
from pipeline.simulation.mps.command_answers import Device

if TYPE_CHECKING:
    from pipeline.simulation.machine.state_file import Gpu

MPS_CONTROL = "nvidia-cuda-mps-control"
_SETTINGS = "SIMULATED_MPS"
# Maximum clients per GPU, by version of the control program. Source: MPS documentation, release 615, architecture.
_MOST_CLIENTS = ((13010, 60), (0, 48))
# This usage text was recorded from 580.159.04.
_USAGE = f"Unrecognized option \0\nCUDA MPS Control for Linux/Unix/QNX.\n\n{MPS_CONTROL} [options] [command]"
# The CUDA error in a client for each answer of the daemon; without an answer, the error is that the server is not
# ready.
_REFUSALS = {
    b"no such partition\n": "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION",
    b"too many clients\n": "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED",
}
FAULTS = frozenset(
    {"start_fails", "no_answer", "server_dies", "server_fails", "never_ready", "ignores_quit", "fault_on_client"}
)


def write_program(
    folder: Path,
    *,
    init_s: float = 0.05,
    faults: Sequence[str] = (),
    machine: Path | None = None,
    branch: str = RECORDED,
) -> Path:
    """Write the executable `nvidia-cuda-mps-control` into the folder; return its absolute path.

    Args:
        folder: folder of the executable.
        init_s: time that a server is INITIALIZING; on the H100 with persistence mode, this took 0.3 s.
        faults: names from `FAULTS`. With `server_fails`, a server logs the reason; with `server_dies`, it does not.
            With `fault_on_client`, a client puts the server into the state FAULT until all clients have ended.
        machine: state file of the simulated machine, on whose GPUs servers allocate memory. The machine determines the
            branch, and its faults also apply to each daemon that starts.
        branch: branch of the driver, if there is no machine.
    """
    unknown = set(faults) - FAULTS
    if unknown:
        raise ValueError(f"unknown faults {', '.join(sorted(unknown))}; use {', '.join(sorted(FAULTS))}")
    if machine is not None:
        from pipeline.simulation.machine.state_file import StateFile  # imported late: see _read_machine

        branch = StateFile(machine).read().branch
    state_file = None if machine is None else str(machine.absolute())
    settings = json.dumps({"init_s": init_s, "faults": sorted(faults), "machine": state_file, "branch": branch})
    assignments = f"PYTHONPATH={shlex.quote(str(PROJECT_DIR))} {_SETTINGS}={shlex.quote(settings)}"
    command = shlex.join([sys.executable, "-S", "-P", "-m", "pipeline.simulation.mps.control_program"])
    path = folder.resolve() / MPS_CONTROL
    write_executable(path, f"{assignments} exec {command}")
    return path


def write_executable(path: Path, command: str) -> None:
    """Write a program that runs this shell command with the program's arguments.

    The file is replaced atomically, because another study on this machine may be starting the program.
    """
    new = path.with_name(f"{path.name}.{os.getpid()}")
    new.write_bytes(os.fsencode(f'#!/bin/sh\n{command} "$@"\n'))  # a path in the command may not be UTF-8
    new.chmod(0o755)
    new.replace(path)


def connect(environ: Mapping[str, str], *, on_behalf_of: int | None = None) -> socket.socket | None:
    """Become a client of the daemon given in the environment, as a CUDA program does when it initialises CUDA.

    Args:
        environ: environment variables of the client.
        on_behalf_of: PID of another process, which is then the client until it ends.

    Returns:
        The connection, which must stay open; `None` if no daemon listens, as a CUDA program then runs without MPS.

    Raises:
        RuntimeError: the daemon refused the client; the message is the CUDA error.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(str(Path(environ["CUDA_MPS_PIPE_DIRECTORY"]) / "control"))
    except (OSError, KeyError):
        connection.close()
        return None
    answer = b""
    with suppress(OSError):  # the daemon may have ended meanwhile
        partition = environ.get("CUDA_MPS_SM_PARTITION") or "-"
        connection.sendall(f"CLIENT {on_behalf_of or '-'} {partition}\n".encode())
        answer = connection.recv(64)
    if answer != b"accepted\n":
        connection.close()
        raise RuntimeError(_REFUSALS.get(answer, "CUDA_ERROR_MPS_SERVER_NOT_READY"))
    return connection


def _start(pipes: Path, logs: Path, settings: dict[str, Any], options: Sequence[str]) -> int:
    """Start the daemon (`-d` with further options); return when the daemon listens."""
    settings |= {"devices": [], "visible": [], "share": 1.0}
    if settings["machine"] is not None:
        _read_machine(settings)
    settings["version"] = RELEASES[settings["branch"]].cuda_version
    program = RELEASES[settings["branch"]].mps
    if any(option.startswith("-") and option not in program.options for option in options):
        print(_USAGE)  # noqa: T201
        return 0  # this status was recorded
    most = next(most for since, most in _MOST_CLIENTS if settings["version"] >= since)
    # The rounding is an assumption, because NVIDIA does not document it.
    settings["most_clients"] = math.ceil(most * settings["share"])
    protocol_option = options[options.index("-p") + 1] if "-p" in options else "2"
    # The environment takes precedence over the option. Source: MPS documentation, release 615, mpsv3-interface.
    protocol = os.environ.get("CUDA_MPS_PROTOCOL_VERSION", protocol_option)
    settings["is_legacy"] = protocol != "3" or "-p" not in program.options
    settings["is_static"] = "-S" in options
    if "start_fails" in settings["faults"]:
        print("Failed to start the MPS control daemon")  # noqa: T201
        return 1
    lock = os.open(pipes, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)  # not every branch has a lock file
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("An instance of this daemon is already running")  # noqa: T201
        return 1
    reading, writing = os.pipe()
    if os.fork():
        os.close(writing)
        return 0 if os.read(reading, 1) else 1
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(null, descriptor)
    from pipeline.simulation.mps.control_daemon import Daemon  # imported late, for the same reason

    daemon = Daemon(pipes, logs, settings)
    daemon.listen()
    os.write(writing, b".")
    os.close(writing)
    daemon.serve()
    return 0


def _read_machine(settings: dict[str, Any]) -> None:
    """Add the machine's faults and GPUs, the UUIDs of visible devices, and the smallest share that one has of a GPU."""
    # Imported late, because the import would take a third of the time of a command.
    from pipeline.base.domain import mig_table
    from pipeline.simulation.machine.queries import mig_devices, model_of
    from pipeline.simulation.machine.state_file import StateFile, mig_uuid

    state = StateFile(Path(settings["machine"])).read()
    settings["faults"] += state.mps_faults
    settings["visible"] = _visible(state.gpus)
    for gpu in state.gpus:
        model = model_of(gpu)
        chunk = mig_table.find_chunk_size(model.compute_capability)
        assert chunk is not None, "every GPU with MIG has static partitions"
        multiprocessors = model.num_multiprocessors or 0
        num_chunks = mig_table.count_chunks(chunk, multiprocessors)
        domain, bus, slot = gpu.bus_id.split(":")
        number, function = slot.split(".")
        pci = f"{domain[-4:]}:{bus}.{number}.{function:0>2}"
        settings["devices"].append(Device(gpu.uuid, multiprocessors, chunk, num_chunks, model.product, pci))
        for instance, ci in mig_devices(gpu):
            if mig_uuid(gpu, instance, ci) in settings["visible"]:
                settings["share"] = min(settings["share"], ci.size / model.compute_slices)


def _visible(gpus: Sequence[Gpu]) -> list[str]:
    """Return the UUIDs of the devices in `CUDA_VISIBLE_DEVICES`; by default, of all GPUs that are not in MIG mode."""
    names = os.environ.get("CUDA_VISIBLE_DEVICES")
    if names is None:
        return [gpu.uuid for gpu in gpus if not gpu.mig_current]
    by_index = {str(index): gpu.uuid for index, gpu in enumerate(gpus)}
    return [by_index.get(name, name) for name in names.split(",") if name]


def _ask(pipes: Path, command: str | None) -> int:
    """Send a command, if there is one, and print the answer; return status 1 if the answer is incomplete."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(str(pipes / "control"))
        with connection, connection.makefile("r", encoding="utf-8") as answer:
            if command is None:
                return 0
            connection.sendall(f"UI {command}\n".encode())
            text = answer.read()
    except OSError:
        print("Cannot find MPS control daemon process")  # noqa: T201
        return 1
    sys.stdout.write(text)
    return 0


def main(arguments: Sequence[str]) -> int:
    """Run the program; commands are arguments or, one per line, standard input."""
    folder = os.environ.get("CUDA_MPS_PIPE_DIRECTORY")
    if not folder:
        print("set CUDA_MPS_PIPE_DIRECTORY for the simulated MPS; the default folder may belong to a real daemon")  # noqa: T201
        return 1
    pipes = Path(folder)
    settings = json.loads(os.environ[_SETTINGS])
    reads_arguments = RELEASES[settings["branch"]].mps.reads_arguments
    if "-d" in arguments and (reads_arguments or list(arguments) == ["-d"]):
        return _start(pipes, Path(os.environ.get("CUDA_MPS_LOG_DIRECTORY", folder)), settings, arguments)
    commands = [" ".join(arguments)] if arguments and reads_arguments else [line.strip() for line in sys.stdin]
    # The program looks for the daemon even if there is no command.
    return next((1 for command in commands or [None] if _ask(pipes, command)), 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
