"""A Slurm cluster on loopback, with one node per simulated GPU; each node has separate processes. Needs root."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil

from tests.support.waiting import wait_until

_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "sinfo")
_PLACES = "/usr/sbin:/usr/bin"
_CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={control_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
StateSaveLocation={folder}/control
SlurmdSpoolDir={folder}/%n
SlurmdTimeout=5
SlurmdParameters=config_overrides
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
GresTypes={gres_types}
MailProg=/bin/true
KillWait=15
{nodes}
PartitionName=test Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
_NODE = "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cpus} Gres={gres} State=UNKNOWN"
_LIMIT_S = 60.0


def missing() -> str:
    """Return the reason why this machine cannot run a cluster; empty if it can."""
    if os.getuid() != 0:
        return "slurmd runs only as root"
    absent = [program for program in _PROGRAMS if shutil.which(program, path=_PLACES) is None]
    return f"{', '.join(absent)}: not installed (Debian: slurmctld slurmd slurm-client munge)" if absent else ""


class Cluster:
    """The daemons of a cluster whose configuration is in a folder.

    Attributes:
        environ: environment variables with which Slurm's commands find the cluster.
        nodes: names of the nodes; node N has GPU N.
    """

    def __init__(self, folder: Path, nodes: Sequence[str]) -> None:
        self.environ = {"SLURM_CONF": f"{folder}/slurm.conf", "PATH": f"{_PLACES}:{os.environ['PATH']}"}
        self.nodes, self._folder = nodes, folder
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Start the daemons that do not run, resume the nodes, and wait until every node accepts jobs."""
        files = (f"--{name}-file={self._folder}/munge.{name}" for name in ("key", "pid", "log", "seed"))
        self._start("munged", "--foreground", "--force", f"--socket={self._folder}/munge.socket", *files)
        self._start("slurmctld", "-D")
        for node in self.nodes:
            self._start("slurmd", "-D", "-N", node, name=node)
        wait_until(self._is_in_service, _LIMIT_S)

    def kill(self, node: str, *, is_with_jobs: bool = False) -> None:
        """Kill the slurmd of a node; its jobs continue, unless `is_with_jobs` also kills all their processes."""
        daemon = self._daemons.pop(node)
        daemon.kill()
        daemon.wait()
        if is_with_jobs:
            members = [process for process in psutil.process_iter() if self._is_of(process, node)]
            steps = [process.parent() for process in members]
            for process in [*filter(_is_step, steps), *members]:
                with suppress(psutil.NoSuchProcess):
                    process.kill()

    def restart_control(self) -> None:
        """Terminate slurmctld and start it again."""
        daemon = self._daemons.pop("slurmctld")
        daemon.terminate()
        daemon.wait(30)
        self._start("slurmctld", "-D")

    def give_up(self) -> None:
        """Set all nodes to the state down; by itself, Slurm does so half a minute after a slurmd was killed."""
        self.tell("scontrol", "update", f"nodename={','.join(self.nodes)}", "state=down", "reason=test")

    def end(self) -> None:
        """Terminate all daemons."""
        for daemon in reversed(self._daemons.values()):
            daemon.terminate()
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

    def ask(self, *command: str) -> str:
        """Return the output of a command of Slurm; empty if the command fails."""
        argv = [shutil.which(command[0], path=_PLACES) or command[0], *command[1:]]
        done = subprocess.run(argv, env=os.environ | self.environ, capture_output=True, text=True, check=False)
        return done.stdout if done.returncode == 0 else ""

    def tell(self, *command: str) -> None:
        """Run a command of Slurm that must not fail."""
        subprocess.run(command, env=os.environ | self.environ, check=True)

    def states(self) -> set[str]:
        """Return the states of the nodes; a node that does not answer has the state `down*`."""
        return set(self.ask("sinfo", "--noheader", "--Node", "--format=%T").split())

    def _is_in_service(self) -> bool:
        """Return whether every node accepts jobs; request Slurm to resume nodes that are down."""
        states = self.states()
        if any(state.startswith("down") for state in states):
            self.ask("scontrol", "update", f"nodename={','.join(self.nodes)}", "state=resume")
        time.sleep(0.1)
        return bool(states) and states <= {"idle", "mixed", "allocated"}

    def _is_of(self, process: psutil.Process, node: str) -> bool:
        """Return whether a job on the node started the process."""
        try:
            environ = process.environ()
        except psutil.Error:
            return False
        return (environ.get("SLURMD_NODENAME"), environ.get("SLURM_CONF")) == (node, self.environ["SLURM_CONF"])

    def _start(self, program: str, *arguments: str, name: str = "") -> None:
        if (name or program) in self._daemons:
            return
        with (self._folder / f"{name or program}.out").open("ab") as log:
            self._daemons[name or program] = subprocess.Popen(
                [program, *arguments],
                env=os.environ | self.environ,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )


def _is_step(process: psutil.Process | None) -> bool:
    try:
        return process is not None and process.cmdline()[0].startswith("slurmstepd:")
    except (psutil.Error, IndexError):
        return False


@contextmanager
def cluster(folder: Path, gpus: int) -> Iterator[Cluster]:
    """Run a cluster with a GPU a node; its folder has a short path."""
    lines = [f"NodeName=n{number} Name=gpu File={folder}/dev/nvidia{number}" for number in range(gpus)]
    with configured_cluster(folder, {f"n{number}": "gpu:1" for number in range(gpus)}, lines, gpus) as running:
        yield running


@contextmanager
def configured_cluster(
    folder: Path,
    gres: Mapping[str, str],
    lines: Sequence[str],
    num_devices: int,
    *,
    gres_types: str = "gpu",
    cpus: int | None = None,
) -> Iterator[Cluster]:
    """Run a cluster with these resources of its nodes, and lines of gres.conf, whose device files are `dev/nvidiaN`."""
    for name in ("control", "dev", *gres):
        (folder / name).mkdir()
    for number in range(num_devices):
        os.mknod(folder / f"dev/nvidia{number}", 0o20666, os.makedev(1, 3))  # each device file is a /dev/null
    (folder / "munge.key").write_bytes(os.urandom(64))
    (folder / "munge.key").chmod(0o600)
    host = socket.gethostname().partition(".")[0]
    control_port, *ports = free_ports(1 + len(gres))
    nodes = "\n".join(
        _NODE.format(name=name, host=host, port=port, cpus=cpus or os.cpu_count(), gres=resources)
        for (name, resources), port in zip(gres.items(), ports, strict=True)
    )
    conf = _CONF.format(folder=folder, host=host, control_port=control_port, nodes=nodes, gres_types=gres_types)
    (folder / "slurm.conf").write_text(conf)
    (folder / "gres.conf").write_text("\n".join(["AutoDetect=off", *lines, ""]))
    cluster = Cluster(folder, [*gres])
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.end()


def free_ports(number: int) -> list[int]:
    """Return a number of different free ports of loopback."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for listening in sockets:
            listening.bind(("127.0.0.1", 0))
        return [listening.getsockname()[1] for listening in sockets]
