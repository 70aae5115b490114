"""Health of a GPU, as reported by the driver: memory errors, rows, pages, pending resets, XIDs, throttling.

Reads only, without any judgement. Facts that a GPU or its driver does not report are `None`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pipeline.base.domain.records import Device
from pipeline.prepare.device import nvml
from pipeline.prepare.device.nvml import pynvml

KERNEL_LOG = Path("/dev/kmsg")
_MOST_OF_A_RECORD = 8192  # a buffer shorter than the record fails. Source: Documentation/ABI/testing/dev-kmsg

# Actions that the driver requires before the next use of the GPU. Source: nvml.h, nvmlDeviceGpuRecoveryAction_t.
_RECOVERY_ACTIONS = {
    0: "none",
    1: "reset of the GPU",
    2: "restart of the machine",
    3: "end of peer-to-peer traffic",
    4: "end of the programs on it and a reset",
    5: "recovery of the IMEX domain",
    6: "reset of the bus",
    7: "restart of the machine",
}
RECOVERY_ACTION = 230
"""Id of NVML's field. Source: nvml.h, NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, a name that older pynvml versions lack."""

# Source: nvml.h, nvmlClocksEventReason*.
THROTTLE_REASONS = {
    0x1: "idle",
    0x2: "clocks that were set",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "heat (software)",
    0x40: "heat (hardware)",
    0x80: "power brake (hardware)",
    0x100: "display clocks",
}
"""Reasons for the current clocks, by bit of NVML's mask."""

_XID = re.compile(r"NVRM: Xid \(PCI:(?P<bus>[0-9a-fA-F:.]+)\): (?P<number>\d+)(?:, )?(?P<text>.*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Xid:
    """An error that the driver wrote to the kernel's log.

    Attributes:
        number: number of the error in NVIDIA's XID catalogue.
        t_s: time of the error in seconds since the machine's start (the kernel's clock, close to CLOCK_MONOTONIC).
        text: first line of the record.
    """

    number: int
    t_s: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """One reading of a GPU's health. Counters cover the GPU's whole lifetime, unless described otherwise.

    Attributes:
        ecc_mode: `on` or `off`.
        num_ecc_uncorrected_now: number of uncorrected ECC errors since the driver was loaded or the GPU was reset.
        num_ecc_uncorrected_ever: number of uncorrected ECC errors.
        num_rows_remapped_correctable: number of memory rows that were replaced because of correctable errors.
        num_rows_remapped_uncorrectable: number of memory rows that were replaced because of uncorrectable errors.
        is_remap_pending: whether rows will be replaced at the next reset.
        has_remap_failed: whether a row could not be replaced, because no spare row was left.
        num_pages_retired: number of retired memory pages, on GPUs before Ampere, which do not remap rows.
        is_page_retirement_pending: whether pages will be retired at the next reset.
        recovery_action: action that the driver requires, or `none`.
        waiting: settings that change at the next reset, each as `SETTING: NOW -> THEN`.
        throttle_reasons: reasons for the clocks at this instant.
        xids: XIDs of this GPU in the kernel's log, oldest first.
        xids_unread: reason for which the XIDs cannot be read.
    """

    ecc_mode: str | None = None
    num_ecc_uncorrected_now: int | None = None
    num_ecc_uncorrected_ever: int | None = None
    num_rows_remapped_correctable: int | None = None
    num_rows_remapped_uncorrectable: int | None = None
    is_remap_pending: bool | None = None
    has_remap_failed: bool | None = None
    num_pages_retired: int | None = None
    is_page_retirement_pending: bool | None = None
    recovery_action: str | None = None
    waiting: tuple[str, ...] = ()
    throttle_reasons: tuple[str, ...] | None = None
    xids: tuple[Xid, ...] | None = None
    xids_unread: str | None = None


def read(device: Device) -> Health:
    """Read the health of a GPU; a simulated GPU has no kernel log and so no XIDs.

    Raises:
        NvmlError: the GPU does not respond.
    """
    with nvml.session():
        with nvml.translate_errors(f"GPU {device.gpu_uuid}"):
            handle = pynvml.nvmlDeviceGetHandleByUUID(device.gpu_uuid)
        ecc = nvml.ask_if_offered("the ECC mode", pynvml.nvmlDeviceGetEccMode, handle)
        mig = nvml.ask_if_offered("the MIG mode", pynvml.nvmlDeviceGetMigMode, handle)
        rows = nvml.ask_if_offered("the remapped rows", pynvml.nvmlDeviceGetRemappedRows, handle)
        pending = nvml.ask_if_offered("the pages to retire", pynvml.nvmlDeviceGetRetiredPagesPendingStatus, handle)
        reasons = nvml.ask_if_offered(
            "why the clocks are throttled", pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle
        )
        corrected, uncorrected, is_remap_pending, has_remap_failed = (None,) * 4 if rows is None else rows
        volatile, aggregate = (
            nvml.ask_if_offered(
                "the ECC errors",
                pynvml.nvmlDeviceGetTotalEccErrors,
                handle,
                pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
                counter,
            )
            for counter in (pynvml.NVML_VOLATILE_ECC, pynvml.NVML_AGGREGATE_ECC)
        )
        pages, action = _count_retired_pages(handle), _read_recovery_action(handle)
    xids, unread = (None, "a simulated GPU has no kernel log") if device.is_simulated else _read_xids(device)
    switches = {"ECC": ecc, "MIG mode": mig}
    return Health(
        ecc_mode=None if ecc is None else _format_switch(ecc[0]),
        num_ecc_uncorrected_now=volatile,
        num_ecc_uncorrected_ever=aggregate,
        num_rows_remapped_correctable=corrected,
        num_rows_remapped_uncorrectable=uncorrected,
        is_remap_pending=None if rows is None else bool(is_remap_pending),
        has_remap_failed=None if rows is None else bool(has_remap_failed),
        num_pages_retired=pages,
        is_page_retirement_pending=None if pending is None else bool(pending),
        recovery_action=action,
        waiting=tuple(
            f"{name}: {_format_switch(modes[0])} -> {_format_switch(modes[1])}"
            for name, modes in switches.items()
            if modes is not None and modes[0] != modes[1]
        ),
        throttle_reasons=None if reasons is None else describe_reasons(int(reasons)),
        xids=xids,
        xids_unread=unread,
    )


def describe_reasons(reasons: int) -> tuple[str, ...]:
    """Describe the reasons in NVML's bit mask of clock reasons."""
    return tuple(words for bit, words in THROTTLE_REASONS.items() if reasons & bit)


def parse_xids(bus_id: str, records: Iterable[str]) -> tuple[Xid, ...]:
    """Parse the XIDs of the GPU at a PCI address from records of the kernel's log.

    A record has the form `6,1023,5140900,-;text`; its third number is the time in us.
    """
    xids = []
    for record in records:
        prefix, _, text = record.partition(";")
        match = _XID.search(text)
        fields = prefix.split(",")
        if (
            match is not None
            and len(fields) > 2
            and fields[2].isdecimal()
            and _parse_bus_id(match["bus"]) == _parse_bus_id(bus_id)
        ):
            line = text.partition("\n")[0].strip()
            xids.append(Xid(number=int(match["number"]), t_s=int(fields[2]) / 1e6, text=line))
    return tuple(xids)


def _format_switch(mode: int) -> str:
    return "on" if mode else "off"


def _parse_bus_id(bus_id: str) -> tuple[int, ...]:
    """Return domain, bus and device of a PCI address, written as `0000:06:00` or `00000000:06:00.0`."""
    parts = bus_id.partition(".")[0].split(":")
    try:
        return tuple(int(part, 16) for part in parts)
    except ValueError:
        return ()


def _count_retired_pages(handle: object) -> int | None:
    causes = (
        pynvml.NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS,
        pynvml.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR,
    )
    read_pages = pynvml.nvmlDeviceGetRetiredPages
    pages = [nvml.ask_if_offered("the retired pages", read_pages, handle, cause) for cause in causes]
    readable = [addresses for addresses in pages if addresses is not None]
    return sum(map(len, readable)) if readable else None


def _read_recovery_action(handle: object) -> str | None:
    quantity = "the recovery action"
    try:
        values = nvml.ask_if_offered(quantity, pynvml.nvmlDeviceGetFieldValues, handle, [RECOVERY_ACTION])
    except nvml.NvmlError as error:
        if isinstance(error.__cause__, pynvml.NVMLError_InvalidArgument):
            return None
        raise
    if values is None or values[0].nvmlReturn != pynvml.NVML_SUCCESS:
        return None
    number = int(values[0].value.uiVal)
    return _RECOVERY_ACTIONS.get(number, f"action {number} of nvml.h")


def _read_xids(device: Device) -> tuple[tuple[Xid, ...] | None, str | None]:
    bus_id = device.facts.pci_bus_id
    if bus_id is None:
        return None, "the driver does not report its PCI address"
    try:
        return parse_xids(bus_id, _read_kernel_log()), None
    except OSError as error:
        return None, f"{KERNEL_LOG}: {error.strerror} (readable by root, outside most containers)"


def _read_kernel_log() -> Iterator[str]:
    """Yield the records of the kernel's log; new ones may overwrite old ones meanwhile."""
    descriptor = os.open(KERNEL_LOG, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        with suppress(BlockingIOError):
            while True:
                try:
                    record = os.read(descriptor, _MOST_OF_A_RECORD)
                except BrokenPipeError:  # the next record was overwritten meanwhile
                    continue
                if not record:
                    return
                yield record.decode(errors="replace")
    finally:
        os.close(descriptor)
