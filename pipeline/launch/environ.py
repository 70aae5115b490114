"""Environment variables and CPUs that a job gets from the orchestrator."""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

from pipeline.base.domain.records import CpuPinning
from pipeline.base.system import entry_points, startup
from pipeline.base.system.words import group_by

# A job must not inherit these variables: they would change how the GPU is shared or where the job's MLflow calls write.
_DROPPED_PREFIXES = ("CUDA_MPS_", "MLFLOW_")
_DROPPED = frozenset({"CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", entry_points.VARIABLE})
_CORES_PER_CLIENT_CORE = 8


def inherit_environ(of_interpreter: Iterable[tuple[str, str]] = ()) -> dict[str, str]:
    """Return the orchestrator's variables, without those that control GPUs or MLflow, and those of an interpreter."""
    variables = os.environ | startup.job_variables | dict(of_interpreter)
    passed_on = {
        key: value for key, value in variables.items() if not key.startswith(_DROPPED_PREFIXES) and key not in _DROPPED
    }
    return passed_on | {"PYTHONUNBUFFERED": "1"}


def choose_ports(num_jobs: int) -> list[dict[str, str]]:
    """Choose a free port for each job, at which its processes meet; return the variables of torch.distributed.

    The second variable is that of torchrun. Without them, all copies of a program would use port 29500.
    """
    if "MASTER_PORT" in os.environ:
        return [{}] * num_jobs
    with ExitStack() as stack:  # all are open at once, so no port comes twice
        sockets = [stack.enter_context(socket.create_server(("", 0))) for _ in range(num_jobs)]
        ports = [str(listening.getsockname()[1]) for listening in sockets]
    return [{"MASTER_PORT": port, "PET_MASTER_PORT": port} for port in ports]


def list_client_cpus(pinning: CpuPinning) -> list[int]:
    """Return the CPUs of the clients of all servers: an eighth of the cores, at least one; empty without own CPUs.

    They do not depend on the number of servers, so that one server and several divide the same CPUs.
    """
    if pinning is not CpuPinning.SERVERS:
        return []
    cores = group_by(sorted(os.sched_getaffinity(0), key=_find_core), lambda cpu: _find_core(cpu)[:2])
    return sorted(itertools.chain(*list(cores.values())[: max(1, len(cores) // _CORES_PER_CLIENT_CORE)]))


def share_cpus(position: int, num_jobs: int, pinning: CpuPinning = CpuPinning.JOBS) -> list[int]:
    """Choose the CPUs of one of several jobs: an equal share, at least one, without splitting cores if possible.

    CPUs of clients are left out unless there are no others.
    """
    available = os.sched_getaffinity(0)
    cpus = sorted(available - {*list_client_cpus(pinning)} or available, key=_find_core)
    if num_jobs > len(cpus):
        return [cpus[position % len(cpus)]]
    return sorted(cpus[position * len(cpus) // num_jobs : (position + 1) * len(cpus) // num_jobs])


def _find_core(cpu: int) -> tuple[int, int, int]:
    """Return package, core and CPU; on many machines CPU i and CPU i + n/2 are two threads of one core."""
    topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
    try:
        package, core = (int((topology / name).read_text()) for name in ("physical_package_id", "core_id"))
    except (OSError, ValueError):
        return (0, cpu, cpu)
    return (package, core, cpu)
