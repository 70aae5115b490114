"""`python -m pipeline.gpu selftest`: holds the GPU, measures, judges and reports. Changes no setting.

Loads the GPU for less than a minute, or longer if it has many instances; no other process may compute on it meanwhile.
"""

from __future__ import annotations

import dataclasses
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from pipeline.base.domain.protocols import Listener, RunningGroup
from pipeline.base.domain.records import Device, Slot
from pipeline.base.domain.samples import Sample
from pipeline.base.system import entry_points, factory, words
from pipeline.base.system.command_parser import CommandAnswer
from pipeline.base.system.errors import ConfigError, LaunchError, ListenerError
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.clean import temporary_folder
from pipeline.gpu.selftest import health_checks as healthy
from pipeline.gpu.selftest import load_bounds, loaders
from pipeline.gpu.selftest.health_checks import HealthCheck
from pipeline.gpu.selftest.load_bounds import QUANTITIES, Finding, Place, Row, Step, plan_steps
from pipeline.gpu.selftest.loaders import SimulatedLoader, count_multiprocessors
from pipeline.gpu.status import find_gpu, make_printable, open_driver, refuse_untouched
from pipeline.prepare.device import gpu_health as device_health
from pipeline.prepare.device import lease, nvml
from pipeline.prepare.mig import profiles

_HEADS = {"gract_ratio": "GRACT", "smact_ratio": "SMACT", "smocc_ratio": "occupancy", "utilization_ratio": "util."}
_UNKNOWN = "the number of SMs of this simulated model is unknown"
_NO_INSTANCE = f"MIG mode is on, but no instance exists; create one: {entry_points.spell('gpu', 'create')}"
_HEALTH_ONLY = "--health"
_NO_SOURCE = "no listener can read the counters of this GPU"


def check_gpu(gpu: str, folder: Path, machine: str | None, *, is_only_health: bool = False) -> CommandAnswer:
    """Check counters and health of one GPU; the exit status is 1 if a check fails.

    With `is_only_health`, the GPU is not held and may be in use.

    Raises:
        ConfigError: the GPU does not exist, is held or in use, or the load cannot run with the installed packages.
    """
    with open_driver(gpu, machine) as selector:
        if not nvml.list_devices():
            raise ConfigError(
                f"--gpu {gpu} needs an NVIDIA GPU, but this machine has none; to see an example, use --gpu "
                "simulated_h100_80gb"
            )
        device = find_gpu(selector, folder)
        if machine is not None or selector != gpu:
            device = dataclasses.replace(device, kind="simulated")
        unchecked = _HEALTH_ONLY if is_only_health else explain_unchecked(device)
        before = device_health.read(device)
        measured = Measurement() if unchecked else _measure(device, folder, gpu, machine)
        health = device_health.read(device)
        items = healthy.check_health(health, before, time.monotonic())
    if unchecked is None and not any(row.readings for row in measured.rows):
        unchecked = _NO_SOURCE
    findings = load_bounds.find_implausible(measured.rows)
    trouble = [*(f"{item.name}: {item.trouble}" for item in items if item.trouble), *measured.list_trouble(findings)]
    data = {
        "gpu": device.uuid,
        "name": device.name,
        "is_simulated": device.is_simulated,
        "is_ok": not trouble,
        "trouble": trouble,
        "counters_unchecked": None if unchecked is None else f"not checked: {unchecked}",
        "steps": [_convert_row(row, findings) for row in measured.rows],
        "absent": measured.absent,
        "died": measured.died,
        "findings": [asdict(finding) for finding in findings],
        "health": asdict(health),
        "units": {**dict.fromkeys(QUANTITIES, "share, 0 to 1"), "t_s": "s since the machine was started"},
    }
    lines = [*_list_health(items), *_list_counters(device, measured, findings, unchecked)]
    lines += [f"not ok: {text}" for text in trouble] or ["ok" if unchecked is None else "ok, without the counters"]
    name = f"{'simulated ' if device.is_simulated else ''}{device.name} ({device.uuid})"
    return CommandAnswer(data=data, text="\n".join(map(make_printable, [name, *lines])), status=int(bool(trouble)))


def _measure(device: Device, folder: Path, gpu: str, machine: str | None) -> Measurement:
    with ExitStack() as stack:
        if machine is not None or not device.is_simulated:  # a simulated model exists only for this command
            with refuse_untouched():
                stack.enter_context(lease.hold(device, folder))
                lease.refuse_strangers(device, ())
        scratch = stack.enter_context(temporary_folder.hold_scratch())
        return measure_device(device, scratch, model=gpu, machine=machine)


def explain_unchecked(device: Device) -> str | None:
    """Return why the counters of a device cannot be checked; `None` if they can."""
    devices = list_loadable(device)
    if device.is_simulated and not all(map(loaders.count_multiprocessors, devices)):
        return _UNKNOWN
    return None if devices else _NO_INSTANCE


def _convert_row(row: Row, findings: Sequence[Finding]) -> dict[str, Any]:
    return {
        "step": row.step,
        "gi_id": None if row.place is None else row.place.gi_id,
        "multiprocessors": None if row.place is None else row.place.multiprocessors,
        "blocks": None if row.load is None else row.load.blocks,
        "threads": None if row.load is None else row.load.threads,
        "expected": row.expected,
        "within": {quantity: row.within(quantity) for quantity in row.expected},
        "readings": {source: dict(values) for source, values in row.readings.items()},
        "num_samples": dict(row.num_samples),
        "verdict": _judge(row, findings),
    }


def _judge(row: Row, findings: Sequence[Finding]) -> str:
    if not row.readings:
        return "-"
    return "impossible" if any(finding.matches(row) for finding in findings) else "ok"


def _list_health(items: Sequence[HealthCheck]) -> list[str]:
    rows = [
        ["  ", item.name, "not ok" if item.trouble else "ok" if item.is_known else "-", item.text] for item in items
    ]
    return ["health", *words.align_table(rows, left_columns=range(4))]


def _list_counters(
    device: Device, measured: Measurement, findings: Sequence[Finding], unchecked: str | None
) -> list[str]:
    lines = [] if unchecked is None else [f"counters: not checked: {unchecked}"]
    if measured.rows:
        model = "; simulated, by a model of the load" if device.is_simulated else ""
        lines += [f"counters, expected in parentheses{model}", *_make_table(measured.rows, findings)]
        lines.append("   32 threads are one warp, the smallest load that counters can show")
    lines += [f"   listener {name} is not used: {reason}" for name, reason in measured.absent.items()]
    return lines


def _make_table(rows: Sequence[Row], findings: Sequence[Finding]) -> list[str]:
    """Make a line for each row: for each counter, the expected value and then the value of each source."""
    columns = [
        (quantity, source)
        for quantity in QUANTITIES
        for source in sorted({source for row in rows for source in row.readings})
        if any(quantity in row.readings.get(source, {}) for row in rows)
    ]
    quantities = list(dict.fromkeys(quantity for quantity, _ in columns))
    head = ["", "step", "where", "blocks", "threads"]
    for quantity in quantities:
        head += [_HEADS[quantity], *(source for column, source in columns if column == quantity)]
    lines = [[*head, "verdict"]]
    for number, row in enumerate(rows):
        place, load = row.place, row.load
        step = "" if number and rows[number - 1].step == row.step else row.step
        cells = ["", step, row.where, *(("-", "-") if load is None else (str(load.blocks), str(load.threads)))]
        for quantity in quantities:
            must = row.expected.get(quantity)
            cells.append("" if place is None or must is None else f"({must:.3f})")
            cells += [
                _format_cell(row.readings.get(source, {}).get(quantity))
                for column, source in columns
                if column == quantity
            ]
        lines.append([*cells, _judge(row, findings)])
    return words.align_table(lines, left_columns=(0, 1, 2, len(lines[0]) - 1))


def _format_cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


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


Loading = loaders.Loader | SimulatedLoader
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

    def list_trouble(self, findings: Sequence[Finding]) -> list[str]:
        """List the impossible readings and all faults of the load and the listeners."""
        return [
            *map(str, findings),
            *([self.failure] if self.failure else []),
            *(f"{name} stopped early: {reason}" for name, reason in self.died.items()),
            *(f"{place}: {number} results of the load are wrong" for place, number in self.num_wrong.items()),
        ]


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


def measure_device(
    device: Device,
    scratch: Path,
    *,
    model: str = "",
    machine: Path | str | None = None,
    environ: Mapping[str, str] | None = None,
) -> Measurement:
    """Run the steps on a GPU, or on a copy of a simulated one: of a `machine` or else a `model`.

    Args:
        device: the GPU.
        scratch: temporary folder.
        model: name of the simulated model.
        machine: file of the simulated machine.
        environ: variables that replace the usual ones of a real load.

    Raises:
        ConfigError: the load cannot run with the installed packages.
    """
    measured = Measurement()
    with ExitStack() as stack:
        start: Start = partial(loaders.start_loader, environ=environ)
        pace = PACE
        if device.is_simulated:
            rehearsal = stack.enter_context(loaders.copy_machine(model, machine, scratch))
            device, start, pace = rehearsal.attach(device), rehearsal.start_loader, REHEARSED_PACE
        try:
            _run_steps(device, scratch, start, pace, measured)
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
        counts = {row.name: row.multiprocessors for row in profiles.read_gpu(gpu).profiles}
        return counts.get(profile)
    return None
