"""`python -m pipeline.gpu selftest`: holds the GPU, measures, judges and reports. Changes no setting.

Loads the GPU for less than a minute, or longer if it has many instances; no other process may compute on it meanwhile.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipeline.base.domain.records import Device
from pipeline.base.system import entry_points, words
from pipeline.base.system.command_parser import CommandAnswer
from pipeline.base.system.errors import ConfigError, GpuBusyError, InUseError
from pipeline.clean import temporary_folder
from pipeline.gpu.selftest import health_checks as healthy
from pipeline.gpu.selftest import plausibility, simulated_load
from pipeline.gpu.selftest.health_checks import HealthCheck
from pipeline.gpu.selftest.load_measurement import REHEARSED_PACE, Measurement, list_loadable, measure
from pipeline.gpu.selftest.load_plan import QUANTITIES
from pipeline.gpu.selftest.plausibility import Finding, Row
from pipeline.gpu.status import find_gpu, make_printable, open_driver
from pipeline.prepare.device import gpu_health as device_health
from pipeline.prepare.device import lease, nvml

_HEADS = {"gract_ratio": "GRACT", "smact_ratio": "SMACT", "smocc_ratio": "occupancy", "utilization_ratio": "util."}
_UNKNOWN = "not checked: the number of SMs of this simulated model is unknown"
_NO_INSTANCE = f"not checked: MIG mode is on, but no instance exists; create one: {entry_points.spell('gpu', 'create')}"
_HEALTH_ONLY = "not checked: --health"
_NO_SOURCE = "not checked: no listener can read the counters of this GPU"


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
        unchecked = _HEALTH_ONLY if is_only_health else _explain_unchecked(device)
        before = device_health.read(device)
        measured = Measurement() if unchecked else _measure(device, folder, gpu, machine)
        health = device_health.read(device)
        items = healthy.check_health(health, before, time.monotonic())
    if unchecked is None and not any(row.readings for row in measured.rows):
        unchecked = _NO_SOURCE
    findings = plausibility.find_implausible(measured.rows)
    trouble = _list_trouble(measured, findings, items)
    data = {
        "gpu": device.uuid,
        "name": device.name,
        "is_simulated": device.is_simulated,
        "is_ok": not trouble,
        "trouble": trouble,
        "counters_unchecked": unchecked,
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
            stack.enter_context(_hold(device, folder))
        scratch = stack.enter_context(temporary_folder.hold_scratch())
        if not device.is_simulated:
            return measure(device, scratch)
        rehearsal = stack.enter_context(simulated_load.copy_machine(gpu, machine, scratch))
        return measure(rehearsal.attach(device), scratch, rehearsal.start_loader, REHEARSED_PACE)


@contextmanager
def _hold(device: Device, folder: Path) -> Iterator[None]:
    """Hold the GPU.

    Raises:
        ConfigError: another process holds the GPU or computes on it.
    """
    try:
        with lease.hold(device, folder):
            lease.refuse_strangers(device, ())
            yield
    except InUseError as error:
        raise ConfigError(
            f"cannot use {error.holder}; wait until this GPU is free, or choose another GPU with --gpu"
        ) from error
    except GpuBusyError as error:
        raise ConfigError(str(error)) from error


def _explain_unchecked(device: Device) -> str | None:
    devices = list_loadable(device)
    if device.is_simulated and not all(map(simulated_load.count_multiprocessors, devices)):
        return _UNKNOWN
    return None if devices else _NO_INSTANCE


def _list_trouble(measured: Measurement, findings: Sequence[Finding], items: Sequence[HealthCheck]) -> list[str]:
    return [
        *(f"{item.name}: {item.trouble}" for item in items if item.trouble),
        *map(str, findings),
        *([measured.failure] if measured.failure else []),
        *(f"{name} stopped early: {why}" for name, why in measured.died.items()),
        *(f"{where}: {number} results of the load are wrong" for where, number in measured.num_wrong.items()),
    ]


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
    lines = [] if unchecked is None else [f"counters: {unchecked}"]
    if measured.rows:
        model = "; simulated, by a model of the load" if device.is_simulated else ""
        lines += [f"counters, expected in parentheses{model}", *_make_table(measured.rows, findings)]
        lines.append("   32 threads are one warp, the smallest load that counters can show")
    lines += [f"   listener {name} is not used: {why}" for name, why in measured.absent.items()]
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
