"""The only extension points. Each provides a context manager; one exit stack per group determines the undo order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from pipeline.base.domain.records import Commands, Device, Group, Interpreter, Slot
from pipeline.base.domain.samples import FieldTable, Sample


class Slots(Protocol):
    """The slots that a sharing mode created, one per job."""

    @property
    def slots(self) -> Sequence[Slot]:
        """In the order of the jobs."""

    def verify(self, pids: Mapping[int, int]) -> None:
        """Check that every job is where the plan places it; the jobs are ready and hold a CUDA context.

        Raises:
            SharingError: a job is elsewhere.
        """


class Sharing(Protocol):
    """A sharing mode of the device: naive, MPS, MIG, ..."""

    def check(self, group: Group) -> object:
        """Check what can be checked without changing anything; the result is passed to `prepare` as `Group.layout`.

        A mode that starts no MPS server refuses `gpu.exclusive_process` (`prepare/device/compute_mode.py`).

        Raises:
            ConfigError: the group cannot be shared like this.
        """

    def warnings(self, group: Group) -> tuple[str, ...]:
        """Return warnings for the user before the group runs."""

    def privileged(self, group: Group) -> Commands:
        """Return the commands by which `prepare` changes settings of the device, and restores them.

        Raises:
            SharingError: a required program is missing.
        """

    def prepare(self, device: Device, group: Group, scratch: Path) -> AbstractContextManager[Slots]:
        """Set the device up for the group; restore its previous state on exit.

        `scratch` is the group's temporary folder, with a path short enough for sockets and pipes. Slots of a mode
        without MPS have the variables of `without_mps` (`prepare/device/refusals.py`), otherwise jobs would use the
        machine's own MPS server.

        Raises:
            SharingError: the device cannot be shared like this; it is unchanged.
        """


class Sink(Protocol):
    """The destination of listeners' samples. Thread-safe; takes microseconds; uploads nothing."""

    def put(self, sample: Sample) -> None:
        """Store one sample."""


class Watch(Protocol):
    """The device and job processes that a listener observes, as they start."""

    @property
    def device(self) -> Device:
        """The device under observation."""

    @property
    def slots(self) -> Sequence[Slot]:
        """One slot per job."""

    def pids(self) -> Mapping[int, int]:
        """Return the PIDs of its helper programs, so that their cost is counted."""


class Live(Watch, Protocol):
    """A running group, for exporters."""

    @property
    def folder(self) -> Path:
        """The folder of the group, which holds those of the jobs."""

    @property
    def samples(self) -> Sequence[Sample]:
        """All samples so far, in order of arrival; grows while it is read."""

    @property
    def tables(self) -> Sequence[FieldTable]:
        """The quantities of each listener."""


class Listener(Protocol):
    """A sampler. Constructed with its interval and its own options."""

    @property
    def table(self) -> FieldTable:
        """Every quantity that its samples may contain."""

    def pids(self) -> Sequence[int]:
        """Return the PIDs of its helper programs, so that their cost is counted."""

    def observe(self, watch: Watch, sink: Sink) -> AbstractContextManager[None]:
        """Sample until the context ends.

        Entering returns after the first sample is stored; leaving stops, joins and flushes.

        Raises:
            ListenerError: the source is missing or gives no sample in time; on exit, the source failed meanwhile.
        """


ShowGroup = Callable[[Group, Live], AbstractContextManager[None]]
"""Shows a group while the context is open."""


class Exporter(Protocol):
    """An exporter of a running study to other programs. Constructed with its own options, which it checks."""

    def serve(self) -> AbstractContextManager[ShowGroup]:
        """Serve requests from before the study changes anything until after its end.

        Raises:
            ConfigError: it cannot, for example because its port is in use.
        """


class Env(Protocol):
    """The source of a job's interpreter.

    A kind that builds one from a file names that key `file`; one that uses an existing environment names it `prefix`.
    So `workload.env_file` and `workload.env_prefix` set it, and a reproduction builds from a lock.
    """

    def preview(self) -> Interpreter:
        """Return the interpreter as far as it is known without building anything.

        Raises:
            ConfigError: the request cannot be built, as far as is known without building.
        """

    def resolve(self) -> Interpreter:
        """Return the interpreter, ready to run. May be slow; needs no GPU.

        Raises:
            ConfigError: the environment cannot be built.
        """


class Profiler(Protocol):
    """A program in front of each job's command, such as a profiler. Constructed with its own options."""

    @property
    def name(self) -> str:
        """The name by which users select it."""

    def check(self, group: Group) -> None:
        """Check that it exists and can be used for the group.

        Raises:
            ConfigError: it does not exist, with the places searched, or cannot be used.
        """

    def privileged(self, group: Group) -> Commands:
        """Return the commands by which `prepare` changes settings of the device, and restores them.

        Raises:
            SharingError: a required program is missing.
        """

    def prepare(self, group: Group) -> AbstractContextManager[None]:
        """Free what it needs of the device, from before the device is shared until after that.

        Raises:
            SharingError: it is in use; on exit, it is not restored.
        """

    def notes(self, device: Device) -> tuple[str, ...]:
        """Return notes for the user on figures that are measured with it."""

    def prefix(self, folder: Path) -> tuple[str, ...]:
        """Return the command prefix for the job with this folder."""

    def report(self, folder: Path) -> Path | None:
        """Return the report in a job's folder; `None` if there is none."""
