"""Loads the places of a GPU step by step while the listeners sample the GPU."""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from pipeline.base.domain.protocols import Listener, RunningGroup
from pipeline.base.domain.records import Device, Slot
from pipeline.base.domain.samples import Sample
from pipeline.base.system import factory, words
from pipeline.base.system.errors import ConfigError, LaunchError, ListenerError
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.gpu.selftest import load_process
from pipeline.gpu.selftest.load_plan import QUANTITIES, Place, Step, plan_steps
from pipeline.gpu.selftest.plausibility import Row
from pipeline.gpu.selftest.simulated_load import SimulatedLoader, count_multiprocessors
from pipeline.prepare.device import nvml
from pipeline.prepare.mig import profiles


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The length of a step, and the interval of the listeners.

    Attributes:
        settle_s: minimum time that is excluded at the beginning of a step. It ends after two readings of each source,
            because only the second reading is not affected by the previous step.
        window_s: minimum time of the measurement, which ends when each source was read.
        limit_s: additional time to wait for missing readings.
    """

    settle_s: float
    window_s: float
    interval_ms: int
    limit_s: float = 10.0


PACE = Pace(settle_s=2.0, window_s=3.0, interval_ms=500)
"""Pace on real GPUs, where utilisation is a mean over up to one second."""

REHEARSED_PACE = Pace(settle_s=0.0, window_s=0.0, interval_ms=200)
"""Pace on simulated GPUs, where a new load changes the counters at once."""


_FIELDS = {**{name: (name, 1.0) for name in QUANTITIES}, "utilization_ratio": ("utilization_gpu_pct", 0.01)}
"""The listeners' name of each counter, and the factor that converts its value to a share."""

_MIG_NAME = re.compile(r"\bMIG (?P<part>\d+c\.)?(?P<profile>(?P<slices>\d+)g[^,]*)")


Loading = load_process.Loader | SimulatedLoader
Start = Callable[[Device, Path], AbstractContextManager[Loading]]
"""Starts the loader of a device with a separate folder; the loader ends with the context."""


@dataclass(slots=True, kw_only=True)
class Measurement:
    """Readings and faults of one self-test.

    Attributes:
        absent: listeners that could not start, with the reason of each.
        died: listeners that stopped during the measurement, with the reason of each.
        num_wrong: number of wrong results of the load, by place.
        failure: error that ended the measurement before its last step.
    """

    rows: list[Row] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)
    died: dict[str, str] = field(default_factory=dict)
    num_wrong: dict[str, int] = field(default_factory=dict)
    failure: str | None = None


class _Samples:
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
        """Wait `at_least_s`, and until each live source has `number` new readings; return the instant in ns.

        A source is live if it was read within the last `limit_s`; each GPU instance is a separate source.
        """
        since_ns = time.monotonic_ns()
        time.sleep(at_least_s)
        with self._changed:
            alive = {_name_subject(sample) for sample in self._samples if since_ns - sample.t_ns < limit_s * 1e9}

            def is_enough() -> bool:
                read = Counter(_name_subject(sample) for sample in self._samples if sample.t_ns > since_ns)
                return all(read[subject] >= number for subject in alive)

            self._changed.wait_for(is_enough, limit_s)
        return time.monotonic_ns()


def _name_subject(sample: Sample) -> tuple[str, int | None, int | None]:
    return sample.source, sample.gi_id, sample.job


def list_loadable(gpu: Device) -> tuple[Device, ...]:
    """List the devices to load: the GPU or, in MIG mode, the largest MIG device of each GPU instance."""
    if not gpu.mig_enabled:
        return (gpu,)
    largest: dict[int | None, Device] = {}
    for device in nvml.list_mig_devices(gpu):
        other = largest.get(device.gi_id)
        if other is None or (count_multiprocessors(device) or 0) > (count_multiprocessors(other) or 0):
            largest[device.gi_id] = device
    return tuple(largest[gi_id] for gi_id in sorted(largest, key=lambda number: number or 0))


def make_listeners(interval_ms: int) -> dict[str, Listener]:
    """Make all listeners, including the user's, that read a checked counter; return them by name.

    A listener that reads the source of another one, such as `activity`, is left out.
    """
    by_name: dict[str, Listener] = {}
    for path in sorted((PROJECT_DIR / "conf" / "listeners").glob("*.yaml")):
        for name, config in (OmegaConf.to_object(OmegaConf.load(path)) or {}).items():  # type: ignore[union-attr]
            spec = factory.make_spec(config, without=frozenset({"interval_ms", "required"}))
            listener: Listener = factory.build_object(spec, interval_ms=interval_ms)
            if {field.name for field in listener.table.fields} & {name for name, _ in _FIELDS.values()}:
                by_name[str(name)] = listener
    sources = {name: listener.table.source for name, listener in by_name.items()}
    return {name: by_name[name] for name, source in sources.items() if source == name or source not in by_name}


def measure(gpu: Device, scratch: Path, start: Start = load_process.start_loader, pace: Pace = PACE) -> Measurement:
    """Run the steps; `scratch` is a temporary folder.

    Raises:
        ConfigError: the load cannot run with the installed packages.
    """
    measured = Measurement()
    try:
        _run_steps(gpu, scratch, start, pace, measured)
    except LaunchError as error:  # the health of the GPU is checked nevertheless
        measured.failure = str(error)
    return measured


def _run_steps(gpu: Device, scratch: Path, start: Start, pace: Pace, measured: Measurement) -> None:
    samples, devices = _Samples(), list_loadable(gpu)
    with ExitStack() as stack:
        loaders: dict[int | None, Loading] = {}
        for device in devices:
            (folder := scratch / f"load-{device.gi_id}").mkdir()
            loaders[device.gi_id] = stack.enter_context(start(device, folder))
        for loader in loaders.values():
            loader.wait_for_device()
        places = [_make_place(device, loaders[device.gi_id].facts, gpu) for device in devices]
        slots = [Slot.from_device(device) for device in devices]
        loads = RunningGroup(device=gpu, slots=slots, folder=scratch, samples=())
        for name, listener in make_listeners(pace.interval_ms).items():
            stack.enter_context(_observe(name, listener, loads, samples, measured))
        steps = plan_steps(places)
        for number, step in enumerate(steps, start=1):
            words.say(f"step {number} of {len(steps)}: {step.name}")
            measured.rows += _make_rows(step, _run_step(step, loaders, samples, pace, measured))


def _run_step(
    step: Step, loaders: Mapping[int | None, Loading], samples: _Samples, pace: Pace, measured: Measurement
) -> list[Sample]:
    working = {place.name: (loaders[place.gi_id], load) for place, load in step.loads if load.blocks}
    for loader, kernels in working.values():
        loader.begin(kernels)
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


def _make_rows(step: Step, samples: Sequence[Sample]) -> Iterator[Row]:
    """Make a row for each place; in MIG mode, first make a row for the whole GPU if it has readings."""
    if all(place.gi_id is not None for place, _ in step.loads):
        readings, numbers = _average(samples, None)
        if readings:
            yield Row(step=step.name, readings=readings, num_samples=numbers)
    for place, kernels in step.loads:
        readings, numbers = _average(samples, place.gi_id)
        yield Row(step=step.name, place=place, load=kernels, readings=readings, num_samples=numbers)


def _average(samples: Sequence[Sample], gi_id: int | None) -> tuple[dict[str, dict[str, float]], dict[str, int]]:
    of_place = [sample for sample in samples if sample.gi_id == gi_id and sample.job is None]
    readings: dict[str, dict[str, float]] = {}
    for source in dict.fromkeys(sample.source for sample in of_place):
        for quantity, (name, factor) in _FIELDS.items():
            values = [sample.values[name] for sample in of_place if sample.source == source and name in sample.values]
            if values:
                readings.setdefault(source, {})[quantity] = factor * sum(values) / len(values)
    return readings, {source: sum(s.source == source for s in of_place) for source in readings}


@contextmanager
def _observe(
    name: str, listener: Listener, loads: RunningGroup, samples: _Samples, measured: Measurement
) -> Iterator[None]:
    """Run a listener; record the error if it cannot start or stops early."""
    is_under_way = False
    try:
        with listener.observe(loads, samples):
            is_under_way = True
            yield
    except ListenerError as error:
        (measured.died if is_under_way else measured.absent)[name] = str(error)
    if not is_under_way:
        yield


def _make_place(device: Device, facts: Mapping[str, Any], gpu: Device) -> Place:
    reached, slices = int(facts["multiprocessors"]), None
    counted: int | None = reached
    if device.gi_id is not None and (match := _MIG_NAME.search(device.name)) is not None:
        slices = int(match["slices"])
        if match["part"]:  # a compute instance has the counters of its GPU instance
            counted = _count_multiprocessors(gpu, match["profile"])
    return Place(
        gi_id=device.gi_id,
        multiprocessors=reached,
        counted=counted,
        threads_each=int(facts["threads_per_multiprocessor"]),
        compute_slices=slices,
    )


def _count_multiprocessors(gpu: Device, profile: str) -> int | None:
    with suppress(ConfigError):
        known = {row.name: row.multiprocessors for row in profiles.read_gpu(gpu).profiles}
        return known.get(profile)
    return None
