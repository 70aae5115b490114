"""Carries out the steps of a self-test: loads the places of a GPU while the listeners sample it."""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from omegaconf import OmegaConf

from pipeline.base.domain.protocols import Listener
from pipeline.base.domain.records import Device, Slot
from pipeline.base.domain.samples import Sample
from pipeline.base.system import factory, words
from pipeline.base.system.errors import ConfigError, LaunchError, ListenerError
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.gpu.selftest import load
from pipeline.gpu.selftest.judge import Row
from pipeline.gpu.selftest.steps import QUANTITIES, Load, Place, Step, plan
from pipeline.prepare.device import nvml
from pipeline.prepare.mig import profiles


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How long a step lasts, and how often listeners read.

    Attributes:
        settle_s: what it leaves out at its beginning, at least: two readings of each source, of which the second has
            nothing in it of the step before.
        window_s: how long it measures, at least: until each source has been read.
        limit_s: how much longer it waits for readings that do not come.
    """

    settle_s: float
    window_s: float
    interval_ms: int
    limit_s: float = 10.0


PACE = Pace(settle_s=2.0, window_s=3.0, interval_ms=500)
"""Utilisation is a mean of up to a second."""

REHEARSED_PACE = Pace(settle_s=0.0, window_s=0.0, interval_ms=200)
"""A model answers at once."""


_FIELDS = {**{name: (name, 1.0) for name in QUANTITIES}, "utilization_ratio": ("utilization_gpu_pct", 0.01)}
"""By counter: how listeners name it, and the factor that makes it a share."""

_MIG_NAME = re.compile(r"\bMIG (?P<part>\d+c\.)?(?P<profile>(?P<slices>\d+)g[^,]*)")


class Loading(Protocol):
    """What loads one device, one load at a time; see `load.Loader`."""

    facts: dict[str, Any]

    def wait_for_device(self) -> None: ...

    def begin(self, load: Load) -> None: ...

    def wait_running(self) -> None: ...

    def stop(self) -> None: ...

    def wait_done(self) -> dict[str, Any]: ...


Start = Callable[[Device, Path], AbstractContextManager[Loading]]
"""Starts what loads a device, with a folder of its own; it is gone after the context."""


@dataclass(slots=True, kw_only=True)
class Measured:
    """What a self-test saw.

    Attributes:
        absent: listeners that could not start, each with why; `died`: those that stopped on the way.
        num_wrong: results of the load that were wrong, by place.
        failure: what ended the measurement before its last step.
    """

    rows: list[Row] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)
    died: dict[str, str] = field(default_factory=dict)
    num_wrong: dict[str, int] = field(default_factory=dict)
    failure: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Watch:
    device: Device
    slots: Sequence[Slot]

    def pids(self) -> Mapping[int, int]:
        return {}


class _Samples:
    """What listeners read, and a way to wait for more of it."""

    def __init__(self) -> None:
        self._samples: list[Sample] = []
        self._changed = threading.Condition()

    def put(self, sample: Sample) -> None:
        with self._changed:
            self._samples.append(sample)
            self._changed.notify_all()

    def between(self, begin_ns: int, end_ns: int) -> list[Sample]:
        with self._changed:
            return [sample for sample in self._samples if begin_ns < sample.t_ns <= end_ns]

    def wait(self, number: int, at_least_s: float, limit_s: float) -> int:
        """Wait so long, and until each source that is alive was read so often from now on; gives the instant, in ns.

        A source is alive that was read in the last seconds, as many as the limit; of each GPU instance by itself.
        """
        since_ns = time.monotonic_ns()
        time.sleep(at_least_s)
        with self._changed:
            alive = {_subject(each) for each in self._samples if since_ns - each.t_ns < limit_s * 1e9}

            def is_enough() -> bool:
                read = Counter(_subject(each) for each in self._samples if each.t_ns > since_ns)
                return all(read[subject] >= number for subject in alive)

            self._changed.wait_for(is_enough, limit_s)
        return time.monotonic_ns()


def _subject(sample: Sample) -> tuple[str, int | None, int | None]:
    return sample.source, sample.gi_id, sample.job


def devices_of(gpu: Device) -> tuple[Device, ...]:
    """What can be loaded: the GPU or, in MIG mode, of each GPU instance the largest MIG device."""
    if not gpu.mig_enabled:
        return (gpu,)
    largest: dict[int | None, Device] = {}
    for device in nvml.list_mig_devices(gpu):
        other = largest.get(device.gi_id)
        if other is None or _multiprocessors(device) > _multiprocessors(other):
            largest[device.gi_id] = device
    return tuple(largest[gi_id] for gi_id in sorted(largest, key=lambda each: each or 0))


def listeners(interval_ms: int) -> dict[str, Listener]:
    """Every listener of the project, a user's own among them, that reads a counter which is looked at; by name."""
    found: dict[str, Listener] = {}
    for path in sorted((PROJECT_DIR / "conf" / "listeners").glob("*.yaml")):
        for name, config in (OmegaConf.to_object(OmegaConf.load(path)) or {}).items():  # type: ignore[union-attr]
            spec = factory.make_spec(config, without=frozenset({"interval_ms", "required"}))
            listener: Listener = factory.instance(spec, interval_ms=interval_ms)
            if {each.name for each in listener.table.fields} & {name for name, _ in _FIELDS.values()}:
                found[str(name)] = listener
    return found


def measure(gpu: Device, scratch: Path, start: Start = load.started, pace: Pace = PACE) -> Measured:
    """Go through the steps. `scratch` is a short-lived folder.

    Raises:
        ConfigError: the load cannot run with what is installed.
    """
    measured = Measured()
    try:
        _go_through(gpu, scratch, start, pace, measured)
    except LaunchError as error:  # a GPU on which nothing runs has a health all the same
        measured.failure = str(error)
    return measured


def _go_through(gpu: Device, scratch: Path, start: Start, pace: Pace, measured: Measured) -> None:
    samples, devices = _Samples(), devices_of(gpu)
    with ExitStack() as stack:
        loaders: dict[int | None, Loading] = {}
        for device in devices:
            (folder := scratch / f"load-{device.gi_id}").mkdir()
            loaders[device.gi_id] = stack.enter_context(start(device, folder))
        for each in loaders.values():
            each.wait_for_device()
        places = [_place(device, loaders[device.gi_id].facts, gpu) for device in devices]
        watch = _Watch(device=gpu, slots=[Slot.on(device) for device in devices])
        for name, listener in listeners(pace.interval_ms).items():
            stack.enter_context(_observed(name, listener, watch, samples, measured))
        steps = plan(places)
        for number, step in enumerate(steps, start=1):
            words.say(f"step {number} of {len(steps)}: {step.name}")
            measured.rows += _rows(step, _carry_out(step, loaders, samples, pace, measured))


def _carry_out(
    step: Step, loaders: Mapping[int | None, Loading], samples: _Samples, pace: Pace, measured: Measured
) -> list[Sample]:
    """What was read while all loads of the step ran and had settled."""
    working = {place.name: (loaders[place.gi_id], load) for place, load in step.loads if load.blocks}
    for loader, each in working.values():
        loader.begin(each)
    for loader, _ in working.values():
        loader.wait_running()
    begin_ns = samples.wait(2, pace.settle_s, pace.limit_s)
    end_ns = samples.wait(1, pace.window_s, pace.limit_s)
    for loader, _ in working.values():
        loader.stop()
    for name, (loader, _) in working.items():
        if num_wrong := int(loader.wait_done()["num_wrong"]):
            measured.num_wrong[name] = measured.num_wrong.get(name, 0) + num_wrong
    return samples.between(begin_ns, end_ns)


def _rows(step: Step, samples: Sequence[Sample]) -> Iterator[Row]:
    """A row for each place and, in MIG mode, one before them for the GPU as a whole, where there is something of it."""
    if all(place.gi_id is not None for place, _ in step.loads):
        readings, numbers = _readings(samples, None)
        if readings:
            yield Row(step=step.name, readings=readings, num_samples=numbers)
    for place, each in step.loads:
        readings, numbers = _readings(samples, place.gi_id)
        yield Row(step=step.name, place=place, load=each, readings=readings, num_samples=numbers)


def _readings(samples: Sequence[Sample], gi_id: int | None) -> tuple[dict[str, dict[str, float]], dict[str, int]]:
    """Listener to quantity to its mean, as a share; and listener to number of samples."""
    of_place = [sample for sample in samples if sample.gi_id == gi_id and sample.job is None]
    readings: dict[str, dict[str, float]] = {}
    for source in dict.fromkeys(sample.source for sample in of_place):
        for quantity, (name, factor) in _FIELDS.items():
            values = [sample.values[name] for sample in of_place if sample.source == source and name in sample.values]
            if values:
                readings.setdefault(source, {})[quantity] = factor * sum(values) / len(values)
    return readings, {source: sum(s.source == source for s in of_place) for source in readings}


@contextmanager
def _observed(name: str, listener: Listener, watch: _Watch, samples: _Samples, measured: Measured) -> Iterator[None]:
    """Let a listener sample, if it can; what keeps it from that, or ends it, is noted."""
    is_under_way = False
    try:
        with listener.observe(watch, samples):
            is_under_way = True
            yield
    except ListenerError as error:
        (measured.died if is_under_way else measured.absent)[name] = str(error)
    if not is_under_way:
        yield


def _place(device: Device, facts: Mapping[str, Any], gpu: Device) -> Place:
    reached, slices = int(facts["multiprocessors"]), None
    counted: int | None = reached
    if device.gi_id is not None and (match := _MIG_NAME.search(device.name)) is not None:
        slices = int(match["slices"])
        if match["part"]:  # its counters are those of the GPU instance, of which it is a part
            counted = _multiprocessors_of(gpu, match["profile"])
    return Place(
        gi_id=device.gi_id,
        multiprocessors=reached,
        counted=counted,
        threads_each=int(facts["threads_per_multiprocessor"]),
        compute_slices=slices,
    )


def _multiprocessors_of(gpu: Device, profile: str) -> int | None:
    with suppress(ConfigError):
        known = {each.name: each.multiprocessors for each in profiles.read_gpu(gpu).profiles}
        return known.get(profile)
    return None


def _multiprocessors(device: Device) -> int:
    return int(dict(device.details).get("multiprocessors", "0"))
