"""A Slurm cluster of one node on loopback, with simulated GPUs to grant, in processes of its own. Needs root."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "sinfo")
_PLACES = "/usr/sbin:/usr/bin"
_CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={control_port}
SlurmdPort={node_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
StateSaveLocation={folder}/control
SlurmdSpoolDir={folder}/node
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
MailProg=/bin/true
KillWait=15
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} Gres=gpu:{gpus} State=UNKNOWN
PartitionName=test Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str:
    """Why there can be no cluster here, in words; empty if there can."""
    if os.getuid() != 0:
        return "slurmd runs as root only"
    absent = [program for program in _PROGRAMS if shutil.which(program, path=_PLACES) is None]
    return f"{', '.join(absent)}: not installed (Debian: slurmctld slurmd slurm-client munge)" if absent else ""


@contextmanager
def cluster(folder: Path, gpus: int, limit_s: float = 60) -> Iterator[Mapping[str, str]]:
    """Run the daemons in a folder with a short path; gives the variables by which Slurm's commands find them."""
    host = socket.gethostname().partition(".")[0]
    for name in ("control", "node", "dev"):
        (folder / name).mkdir()
    devices = [folder / f"dev/nvidia{number}" for number in range(gpus)]
    for device in devices:
        os.mknod(device, 0o20666, os.makedev(1, 3))  # each a /dev/null
    key, conf = folder / "munge.key", folder / "slurm.conf"
    key.write_bytes(os.urandom(64))
    key.chmod(0o600)
    ports = dict(zip(("control_port", "node_port"), _free_ports(2), strict=True))
    conf.write_text(_CONF.format(folder=folder, host=host, cpus=os.cpu_count(), gpus=gpus, **ports))
    (folder / "gres.conf").write_text(
        f"AutoDetect=off\nNodeName={host} Name=gpu File={folder}/dev/nvidia[0-{gpus - 1}]\n"
    )
    environ = {"SLURM_CONF": str(conf), "PATH": f"{_PLACES}:{os.environ['PATH']}"}
    munged = ["munged", "--foreground", "--force", f"--key-file={key}", f"--socket={folder}/munge.socket"]
    munged += [f"--{name}-file={folder}/munge.{name}" for name in ("pid", "log", "seed")]
    with ExitStack() as stack:
        for argv in (munged, ["slurmctld", "-D"], ["slurmd", "-D", "-N", host]):
            log = stack.enter_context((folder / f"{argv[0]}.out").open("wb"))
            daemon = subprocess.Popen(argv, env=os.environ | environ, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
            stack.callback(_end, daemon)
        deadline = time.monotonic() + limit_s
        while "idle" not in _state(environ):
            assert time.monotonic() < deadline, (folder / "slurmctld.log").read_text()[-2000:]
            time.sleep(0.1)
        yield environ


def _state(environ: Mapping[str, str]) -> str:
    command = ["sinfo", "--noheader", "--format=%T"]
    return subprocess.run(command, env=os.environ | environ, capture_output=True, text=True, check=False).stdout


def _end(daemon: subprocess.Popen[bytes]) -> None:
    daemon.terminate()
    try:
        daemon.wait(20)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()


def _free_ports(number: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
