"""The only extension points. Each says "give me a context manager"; one stack a group owns the order of undoing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from pipeline.base.domain.records import Commands, Device, Group, Interpreter, Slot
from pipeline.base.domain.samples import FieldTable, Sample


class Slots(Protocol):
    """The places that a sharing mode made, one a job."""

    @property
    def slots(self) -> Sequence[Slot]:
        """In the order of the jobs."""

    def verify(self, pids: Mapping[int, int]) -> None:
        """Check that every job is where the plan says: they are ready, and hold a CUDA context.

        Raises:
            SharingError: a job is elsewhere.
        """


class Sharing(Protocol):
    """A sharing mode of the device: naive, MPS, MIG, ..."""

    def check(self, group: Group) -> object:
        """Check what can be checked without touching anything; return what `prepare` needs of it as `Group.layout`.

        A mode that starts no MPS server refuses `gpu.exclusive_process` (`prepare/device/compute_mode.py`).

        Raises:
            ConfigError: the group cannot be shared like this.
        """

    def warnings(self, group: Group) -> tuple[str, ...]:
        """Return warnings for the user before the group runs."""

    def privileged(self, group: Group) -> Commands:
        """Return the commands by which `prepare` changes settings of the device, and restores them.

        Raises:
            SharingError: a program that they need is not there.
        """

    def prepare(self, device: Device, group: Group, scratch: Path) -> AbstractContextManager[Slots]:
        """Set the device up for the group; on exit, put back what was found.

        `scratch` is the group's short-lived folder, with a path short enough for sockets and pipes. Slots of a mode
        without MPS carry the variables of `without_mps` (`prepare/device/refusals.py`), or jobs would find the
        machine's own MPS server.

        Raises:
            SharingError: the device cannot be shared like this; it is as it was.
        """


class Sink(Protocol):
    """The store of what listeners read. Thread-safe; costs microseconds; uploads nothing."""

    def put(self, sample: Sample) -> None:
        """Keep one."""


class Watch(Protocol):
    """The device and the processes of the jobs that a listener observes, as they come to life."""

    @property
    def device(self) -> Device:
        """The device under observation."""

    @property
    def slots(self) -> Sequence[Slot]:
        """One slot a job."""

    def pids(self) -> Mapping[int, int]:
        """Return the helper programs that run for it, so that their cost is accounted for."""


class Live(Watch, Protocol):
    """A running group, for those who show it."""

    @property
    def folder(self) -> Path:
        """The folder of the group, which holds those of the jobs."""

    @property
    def samples(self) -> Sequence[Sample]:
        """All so far, in the order of their arrival; it grows while it is read."""

    @property
    def tables(self) -> Sequence[FieldTable]:
        """The quantities of each listener."""


class Listener(Protocol):
    """A sampler. Built with its interval and its own options."""

    @property
    def table(self) -> FieldTable:
        """Every quantity that its samples can hold."""

    def pids(self) -> Sequence[int]:
        """Return the helper programs that run for it, so that their cost is accounted for."""

    def observe(self, watch: Watch, sink: Sink) -> AbstractContextManager[None]:
        """Sample until the context ends.

        Entering returns after the first sample is stored; leaving stops, joins and flushes.

        Raises:
            ListenerError: the source is missing or gives no sample in time; on exit, it died on the way.
        """


ShowGroup = Callable[[Group, Live], AbstractContextManager[None]]
"""Shows a group for the time that the context is open."""


class Exporter(Protocol):
    """An exporter, which shows a running study to other programs. Built with its own options, which it checks."""

    def serve(self) -> AbstractContextManager[ShowGroup]:
        """Be there for whoever asks, from before the study touches anything until after its end.

        Raises:
            ConfigError: it cannot be, as when its port is taken.
        """


class Env(Protocol):
    """The source of a job's interpreter.

    A kind that builds one from a file calls that key `file`, and one that takes an environment that is there `prefix`:
    so `workload.env_file` and `workload.env_prefix` reach it, and a reproduction builds from a lock.
    """

    def preview(self) -> Interpreter:
        """Return the interpreter as far as it is known without building anything.

        Raises:
            ConfigError: what was asked for cannot be built, as can be seen already.
        """

    def resolve(self) -> Interpreter:
        """Return the interpreter, ready to run. May be slow, needs no GPU.

        Raises:
            ConfigError: the environment cannot be built.
        """


class Profiler(Protocol):
    """A program in front of each job's command, such as a profiler. Built with its own options."""

    @property
    def name(self) -> str:
        """The name that users choose it by."""

    def check(self, group: Group) -> None:
        """Check that it is there, and can be used for the group.

        Raises:
            ConfigError: it is not, or cannot; says where it was looked for.
        """

    def privileged(self, group: Group) -> Commands:
        """Return the commands by which `prepare` changes settings of the device, and restores them.

        Raises:
            SharingError: a program that they need is not there.
        """

    def prepare(self, group: Group) -> AbstractContextManager[None]:
        """Make what it needs of the device free for the group; before the device is shared, and until after that.

        Raises:
            SharingError: it is not free; on exit, it is not put back.
        """

    def notes(self, device: Device) -> tuple[str, ...]:
        """Return notes for the user on figures that are measured under it."""

    def prefix(self, folder: Path) -> tuple[str, ...]:
        """Return the words before the command of the job that keeps its files in this folder."""

    def report(self, folder: Path) -> Path | None:
        """Return the report in a job's folder; `None` if there is none."""
