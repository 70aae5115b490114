"""The launcher's side of a worker: a process on a GPU that receives shards and sends messages."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from pipeline.base.domain.records import Device
from pipeline.base.system import interrupts, startup, words
from pipeline.scale.worker import STATUS

_PCI_DEVICES = Path("/sys/bus/pci/devices")
_CPUS = Path("/sys/devices/system/cpu")


def divide_cpus(devices: Sequence[Device]) -> Mapping[str, frozenset[int]]:
    """Return the CPUs of each GPU's worker by UUID; workers share no CPU unless there are too few CPUs."""
    available = frozenset(os.sched_getaffinity(0))
    sharing: list[tuple[frozenset[int], list[Device]]] = []
    for device in devices:
        near, members = (_read_near_cpus(device) & available) or available, [device]
        for other in [share for share in sharing if share[0] & near]:  # a GPU of an unknown node shares with all
            sharing.remove(other)
            near, members = near | other[0], [*other[1], *members]
        sharing.append((near, members))
    by_uuid: dict[str, frozenset[int]] = {}
    for cpus, members in sharing:
        cores = _list_cores(cpus)
        parts = cores if len(cores) >= len(members) else [[cpu] for cpu in sorted(cpus)]
        per_worker = len(parts) // len(members)
        for number, device in enumerate(members):
            part = parts[number * per_worker : (number + 1) * per_worker]
            by_uuid[device.uuid] = frozenset(cpu for core in part for cpu in core) or cpus
    return by_uuid


def _list_cores(cpus: frozenset[int]) -> list[list[int]]:
    """Return the CPUs of each core, which are hyperthreads that slow each other down."""
    cores: dict[int, list[int]] = defaultdict(list)
    for cpu in sorted(cpus):
        try:
            siblings = parse_cpus((_CPUS / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text())
        except OSError:
            siblings = frozenset({cpu})
        cores[min(siblings, default=cpu)].append(cpu)
    return [members for _, members in sorted(cores.items())]


@contextmanager
def bind_children(cpus: frozenset[int]) -> Iterator[None]:
    """Restrict processes that start within the context to these CPUs."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _read_near_cpus(device: Device) -> frozenset[int]:
    """Return the CPUs of a GPU's NUMA node; empty if Linux does not report them."""
    bus_id = (device.facts.pci_bus_id or "").lower()
    domain, colon, slot = bus_id.partition(":")
    try:
        return parse_cpus((_PCI_DEVICES / f"{domain[-4:]}{colon}{slot}" / "local_cpulist").read_text())
    except OSError:
        return frozenset()


def parse_cpus(text: str) -> frozenset[int]:
    """Parse a CPU list of the kernel, such as `0-3,8,10-11`."""
    numbers: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        numbers.update(range(int(first), int(last or first) + 1))
    return frozenset(numbers)


_PR_SET_PDEATHSIG = 1  # source: linux/prctl.h


class WorkerProcess:
    """A `run.py` with `hydra/launcher=worker` on one GPU.

    When the launcher is killed, the worker gets SIGTERM if `ends_with_launcher`, else it finishes its shard.

    Attributes:
        what: description of the current or last shard.
        shard: number of this shard; 0 for the whole study.
        has_begun: whether the worker has announced a group.
        is_quiet: whether messages are not relayed; `last_message` is the newest.
        begin_s: start of the shard in monotonic seconds.
    """

    def __init__(
        self,
        device: Device,
        words: Sequence[str],
        environ: Mapping[str, str],
        on_cpus: frozenset[int],
        *,
        ends_with_launcher: bool = False,
    ) -> None:
        self.device, self.what, self.shard, self.begin_s = device, "", 0, time.monotonic()
        self.is_busy = self.has_begun = self.is_quiet = False
        self.last_message, self._pending = "", dict[IO[bytes], bytes]()
        with bind_children(on_cpus), interrupts.inherit_ignored():
            self._process = subprocess.Popen(
                [sys.executable, *words],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environ,
                start_new_session=True,  # only the launcher gets Ctrl-C and forwards it
                preexec_fn=_end_with_parent if ends_with_launcher else None,
            )
        startup.hand_on_limit(self._process.pid)
        stdin, stdout, stderr = self._process.stdin, self._process.stdout, self._process.stderr
        assert stdin is not None and stdout is not None and stderr is not None
        self._requests, self._answers, self._messages = stdin, stdout, stderr
        for output in self.outputs:
            os.set_blocking(output.fileno(), False)

    @property
    def name(self) -> str:
        return f"GPU {self.device.index} {self.what}"

    @property
    def outputs(self) -> tuple[IO[bytes], IO[bytes]]:
        return self._answers, self._messages

    @property
    def takes_shards(self) -> bool:
        """True if the worker can receive a shard now."""
        return not (self.is_busy or self._requests.closed or self._answers.closed)

    @property
    def has_ended(self) -> bool:
        return all(output.closed for output in self.outputs)

    def give(self, task: str, shard: int = 0) -> None:
        """Send a shard, or the whole study without a number, to the worker."""
        self.what, self.shard, self.is_busy, self.begin_s = task, shard, True, time.monotonic()
        with suppress(OSError):  # the worker has exited; `listen` reports this
            self._requests.write(f"{shard or ''}\n".encode())

    def dismiss(self) -> None:
        """Close the worker's input; the worker exits after its shard."""
        self._requests.close()

    def send_signal(self, signum: int) -> None:
        self._process.send_signal(signum)

    def listen(self, output: IO[bytes]) -> int | None:
        """Read an output, and close it at its end; return the exit status if the shard has ended.

        If the process ends during a shard, this is the process's exit status in shell notation (128 + signal).
        """
        status = None
        answers = [] if output is self._messages else list(self._read(output))
        if not self._messages.closed:
            self._relay(self._read(self._messages))  # messages precede the reply
        if answers:
            status = int(json.loads(answers[-1])[STATUS])
        if self.has_ended:
            self.dismiss()
            ending = self._process.wait()
            if self.is_busy and status is None:
                status = 128 - ending if ending < 0 else ending or 1
        self.is_busy &= status is None
        return status

    def _read(self, output: IO[bytes]) -> Iterable[bytes]:
        """Return the complete new lines of an output; at its end, also an incomplete line."""
        text = self._pending.pop(output, b"")
        while data := output.read(1 << 16):
            text += data
        *lines, partial_line = text.split(b"\n")
        if data is None:
            self._pending[output] = partial_line
        else:
            output.close()
            lines.append(partial_line)
        return filter(None, lines)

    def _relay(self, lines: Iterable[bytes]) -> None:
        for line in lines:
            self.has_begun |= line.startswith(b"[")
            self.last_message = line.decode(errors="replace")
            if not self.is_quiet:
                words.say(f"{self.name} | {self.last_message}")


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
