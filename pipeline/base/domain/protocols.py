"""The extension points, and the running group that they get.

Each provides a context manager; one exit stack per group determines the order of cleanup.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from pipeline.base.domain.records import Commands, Device, Group, Interpreter, Slot
from pipeline.base.domain.samples import FieldTable, Sample


@dataclass(slots=True, kw_only=True)
class RunningGroup:
    """The device, slots, processes and samples of a group while it runs.

    Attributes:
        device: device that the group uses.
        slots: one slot per job.
        folder: folder of the group, which contains the folders of the jobs.
        samples: all samples so far, in order of arrival; the sequence may grow while it is read.
        tables: quantities of each listener, once all listeners have started.
        pids: function that returns the PID of each running job by its index; jobs may share a process.
        describe: function that returns the progress of a pack in one line; `None` for other groups.
        live_rates: newest rates that trials of a pack printed, by the index of the job.
    """

    device: Device
    slots: Sequence[Slot]
    folder: Path
    samples: Sequence[Sample]
    tables: Sequence[FieldTable] = ()
    pids: Callable[[], Mapping[int, int]] = dict
    describe: Callable[[], str] | None = None
    live_rates: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Slots:
    """The slots that a sharing mode created, one per job.

    Attributes:
        slots: the slots in the order of the jobs.
        verify: function that checks that every job is on its planned device, and else raises SharingError. Its argument
            has the PID of each job by its index; the jobs are ready and hold a CUDA context.
    """

    slots: Sequence[Slot]
    verify: Callable[[Mapping[int, int]], None]


class Sharing(Protocol):
    """A sharing mode of the device: naive, MPS, MIG, ..."""

    def check(self, group: Group) -> object:
        """Check the group without changing anything; return what the mode has planned, for `Group.layout`.

        A mode that starts no MPS server refuses `gpu.exclusive_process` (`prepare/device/compute_mode.py`).

        Raises:
            ConfigError: the device cannot be shared by this group in this mode.
        """

    def warnings(self, group: Group) -> tuple[str, ...]:
        """Return warnings for the user before the group runs."""

    def list_setting_commands(self, group: Group) -> Commands:
        """List the commands by which `prepare` changes settings of the device, and restores them.

        Raises:
            SharingError: a required program is missing.
        """

    def prepare(self, group: Group, scratch: Path) -> AbstractContextManager[Slots]:
        """Set the device up for the group; restore its previous state on exit.

        `scratch` is the group's temporary folder, with a path short enough for sockets and pipes. Slots of a mode
        without MPS have the variables of `isolate_from_mps` (`prepare/device/refusals.py`), because jobs would
        otherwise use an MPS server of the machine.

        Raises:
            SharingError: the device cannot be shared in this mode; it is unchanged.
        """


class Sink(Protocol):
    """The destination of listeners' samples; thread-safe and without slow operations such as uploads."""

    def put(self, sample: Sample) -> None:
        """Store one sample."""


class Listener(Protocol):
    """A sampler of sensors. Constructed with its interval and its own options."""

    @property
    def table(self) -> FieldTable:
        """All quantities that the samples may contain."""

    def pids(self) -> Sequence[int]:
        """Return the PIDs of the helper programs, whose CPU time is counted as overhead."""

    def observe(self, group: RunningGroup, sink: Sink) -> AbstractContextManager[None]:
        """Sample until the context ends.

        Entering returns after the first sample is stored; leaving stops, joins and flushes.

        Raises:
            ListenerError: the source is missing or provides no sample in time; on exit, the source has failed.
        """


ShowGroup = Callable[[Group, RunningGroup], AbstractContextManager[None]]
"""Function that returns a context in which a group is shown."""


class Exporter(Protocol):
    """An exporter of a running study to other programs. Constructed with its own options, which it checks."""

    def serve(self) -> AbstractContextManager[ShowGroup]:
        """Serve requests from before the study changes anything until after its end.

        Raises:
            ConfigError: the exporter cannot serve, for example because its port is in use.
        """


class Env(Protocol):
    """The source of a job's interpreter.

    A kind that builds an environment from a file has the key `file`; a kind that uses an existing environment has the
    key `prefix`. `workload.env_file` and `workload.env_prefix` set these keys, and a reproduction sets `file` to a
    lock.
    """

    def preview(self) -> Interpreter:
        """Return the facts about the interpreter that are known without building it.

        Raises:
            ConfigError: the request certainly cannot be built.
        """

    def resolve(self) -> Interpreter:
        """Return the interpreter, ready to run. May be slow; needs no GPU.

        Raises:
            ConfigError: the environment cannot be built.
        """


class Profiler(Protocol):
    """A program that is started before each job and runs it, such as Nsight. Constructed with its own options."""

    @property
    def name(self) -> str:
        """The name by which users select it."""

    def check(self, group: Group) -> None:
        """Check that the profiler exists and can be used for the group.

        Raises:
            ConfigError: the profiler cannot be used or does not exist; the message names the searched paths.
        """

    def list_setting_commands(self, group: Group) -> Commands:
        """List the commands by which `prepare` changes settings of the device, and restores them.

        Raises:
            SharingError: a required program is missing.
        """

    def prepare(self, group: Group) -> AbstractContextManager[None]:
        """Reserve the resources of the device that the profiler needs, while the device is shared.

        Raises:
            SharingError: the resources are in use; on exit, they could not be restored.
        """

    def notes(self, device: Device) -> tuple[str, ...]:
        """Return notes for the user on figures that are measured with the profiler."""

    def prefix(self, folder: Path) -> tuple[str, ...]:
        """Return the command prefix for the job with this folder."""

    def report(self, folder: Path) -> Path | None:
        """Return the report in a job's folder; `None` if there is none."""
