"""Carries out the steps of a self-test: loads the places of a GPU while the listeners sample it."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from pipeline.base import factory, words
from pipeline.base.errors import ConfigError, LaunchError, ListenerError
from pipeline.base.paths import PROJECT_DIR
from pipeline.base.protocols import Listener
from pipeline.base.records import Device, Slot
from pipeline.base.samples import Sample
from pipeline.gpu.selftest import load
from pipeline.gpu.selftest.judge import Row
from pipeline.gpu.selftest.load import Loader
from pipeline.gpu.selftest.steps import QUANTITIES, Place, Step, plan
from pipeline.prepare.device import nvml
from pipeline.prepare.mig import profiles

SETTLE_S, WINDOW_S, INTERVAL_MS = 2.0, 3.0, 500
"""What a step leaves out at its beginning, as utilisation is a mean of up to a second; what it measures; how often."""

_FIELDS = {**{name: (name, 1.0) for name in QUANTITIES}, "utilization_ratio": ("utilization_gpu_pct", 0.01)}
"""By counter: how listeners name it, and the factor that makes it a share."""

_MIG_NAME = re.compile(r"\bMIG (?P<part>\d+c\.)?(?P<profile>(?P<slices>\d+)g[^,]*)")


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


class _Samples(list[Sample]):
    def put(self, sample: Sample) -> None:
        self.append(sample)


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


def listeners() -> dict[str, Listener]:
    """Every listener of the project, a user's own among them, that reads a counter which is looked at; by name."""
    found: dict[str, Listener] = {}
    for path in sorted((PROJECT_DIR / "conf" / "listeners").glob("*.yaml")):
        for name, config in (OmegaConf.to_object(OmegaConf.load(path)) or {}).items():  # type: ignore[union-attr]
            spec = factory.spec_of(config, without=frozenset({"interval_ms", "required"}))
            listener: Listener = factory.instance(spec, interval_ms=INTERVAL_MS)
            if {each.name for each in listener.table.fields} & {name for name, _ in _FIELDS.values()}:
                found[str(name)] = listener
    return found


def measure(gpu: Device, scratch: Path) -> Measured:
    """Go through the steps; takes about 6 s each. `scratch` is a short-lived folder.

    Raises:
        ConfigError: the load cannot run with what is installed.
    """
    measured = Measured()
    try:
        _go_through(gpu, scratch, measured)
    except LaunchError as error:  # a GPU on which nothing runs has a health all the same
        measured.failure = str(error)
    return measured


def _go_through(gpu: Device, scratch: Path, measured: Measured) -> None:
    samples, devices = _Samples(), devices_of(gpu)
    with ExitStack() as stack:
        loaders = {device.gi_id: stack.enter_context(_loader(device, scratch)) for device in devices}
        for each in loaders.values():
            each.wait_for_device()
        places = [_place(device, loaders[device.gi_id].facts, gpu) for device in devices]
        watch = _Watch(device=gpu, slots=[Slot.on(device) for device in devices])
        for name, listener in listeners().items():
            stack.enter_context(_observed(name, listener, watch, samples, measured))
        steps = plan(places)
        for number, step in enumerate(steps, start=1):
            words.say(f"step {number} of {len(steps)}: {step.name}")
            begin_ns, end_ns = _carry_out(step, loaders, measured)
            seen = [sample for sample in list(samples) if begin_ns <= sample.t_ns <= end_ns]
            measured.rows += _rows(step, seen)


def _carry_out(step: Step, loaders: Mapping[int | None, Loader], measured: Measured) -> tuple[int, int]:
    """From when to when all loads of the step ran and had settled; monotonic, in ns."""
    working = {place.name: (loaders[place.gi_id], load) for place, load in step.loads if load.blocks}
    for loader, each in working.values():
        loader.begin(each)
    for loader, _ in working.values():
        loader.wait_running()
    time.sleep(SETTLE_S)
    begin_ns = time.monotonic_ns()
    time.sleep(WINDOW_S)
    end_ns = time.monotonic_ns()
    for loader, _ in working.values():
        loader.stop()
    for name, (loader, _) in working.items():
        if num_wrong := int(loader.wait_done()["num_wrong"]):
            measured.num_wrong[name] = measured.num_wrong.get(name, 0) + num_wrong
    return begin_ns, end_ns


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
def _loader(device: Device, scratch: Path) -> Iterator[Loader]:
    folder = scratch / f"load-{device.gi_id}"
    folder.mkdir()
    with load.started(device, folder) as loader:
        yield loader


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
