"""Health of a GPU as its driver reports it: the result of each check, with the fault if there is one. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from pipeline.base.domain.marks import NO_MARKS, Marks, join
from pipeline.base.system.words import format_count, format_duration
from pipeline.prepare.device.gpu_health import Health

_UNKNOWN = "not reported by the driver"

# Errors of the GPU, its memory, its links or its firmware, but not errors of a program, such as 13, 31 and 43.
# Source: NVIDIA, "Xid Errors" and "GPU Memory Error Management": uncorrectable ECC error, failed row remapping, NVLink,
# fallen off the bus, contained and uncontained ECC error, firmware (GSP) timeout, unrecovered ECC error.
_OF_HARDWARE = frozenset({48, 64, 74, 79, 94, 95, 119, 120, 140})

# Throttling with which the hardware protects itself. Power caps and software thermal limits are normal.
_PROTECTION = ("hardware slowdown", "heat (hardware)", "power brake (hardware)")


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthCheck:
    """One check of the health; `trouble` is the fault with its remedy, or `None`."""

    name: str
    text: str
    is_known: bool = True
    trouble: str | None = None


def check_health(health: Health, before: Health, now_s: float) -> tuple[HealthCheck, ...]:
    """Check the health after a load, compared with the health `before` the load; `now_s` is in CLOCK_MONOTONIC."""
    return (
        _check_ecc(health),
        _check_rows(health),
        _check_pages(health),
        _check_resets(health),
        _check_xids(health, before, now_s),
        _check_throttling(health),
    )


def find_marks(before: Health | None, after: Health | None, now_s: float) -> Marks:
    """Mark jobs that ran between two readings: invalid if memory was corrupted meanwhile, a note for other trouble."""
    if before is None or after is None:
        return NO_MARKS
    num_errors = (after.num_ecc_uncorrected_now or 0) - (before.num_ecc_uncorrected_now or 0)
    invalid = f"{format_count(num_errors, 'uncorrected ECC error')} while the jobs ran" if num_errors > 0 else ""
    checks = check_health(after, after, now_s)
    return Marks(invalid, join(f"{check.name} of the GPU: {check.trouble}" for check in checks if check.trouble))


def _check_ecc(health: Health) -> HealthCheck:
    volatile, aggregate = health.num_ecc_uncorrected_now, health.num_ecc_uncorrected_ever
    name = "uncorrected ECC errors"
    if volatile is None and aggregate is None:
        return HealthCheck(name=name, text=_UNKNOWN, is_known=False)
    text = f"{_format_number(volatile)} since the driver was loaded, {_format_number(aggregate)} ever"
    trouble = (
        "memory was corrupted since the driver was loaded; have an administrator reset the GPU" if volatile else None
    )
    return HealthCheck(name=name, text=text, trouble=trouble)


def _check_rows(health: Health) -> HealthCheck:
    name = "remapped rows"
    if health.is_remap_pending is None:
        return HealthCheck(name=name, text=_UNKNOWN, is_known=False)
    numbers = (health.num_rows_remapped_correctable, health.num_rows_remapped_uncorrectable)
    text = f"{_format_number(numbers[0])} after correctable, {_format_number(numbers[1])} after uncorrectable errors"
    states = [
        state for state, holds in (("pending", health.is_remap_pending), ("failed", health.has_remap_failed)) if holds
    ]
    trouble = None
    if health.has_remap_failed:
        trouble = "a row could not be remapped; replace the GPU"
    elif health.is_remap_pending:
        trouble = "rows are pending for remapping; have an administrator reset the GPU"
    return HealthCheck(name=name, text=", ".join([text, *(states or ["none pending, none failed"])]), trouble=trouble)


def _check_pages(health: Health) -> HealthCheck:
    name, pending = "retired pages", health.is_page_retirement_pending
    if pending is None and health.num_pages_retired is None:
        return HealthCheck(name=name, text=f"{_UNKNOWN} (since Ampere, GPUs remap rows instead)", is_known=False)
    trouble = "pages are pending for retirement; have an administrator reset the GPU" if pending else None
    return HealthCheck(
        name=name, text=f"{_format_number(health.num_pages_retired)}{', pending' if pending else ''}", trouble=trouble
    )


def _check_resets(health: Health) -> HealthCheck:
    name, action = "pending resets", health.recovery_action
    changes = [f"the driver requests: {action}"] if action not in (None, "none") else []
    changes += list(health.waiting)
    if changes:
        return HealthCheck(
            name=name, text="; ".join(changes), trouble=f"{', '.join(changes)}; have an administrator do this"
        )
    return HealthCheck(
        name=name, text="none" if action == "none" else f"none in the GPU's settings; recovery action {_UNKNOWN}"
    )


def _check_xids(health: Health, before: Health, now_s: float) -> HealthCheck:
    name = "XID events"
    if health.xids is None:
        return HealthCheck(name=name, text=f"cannot be read: {health.xids_unread}", is_known=False)
    if not health.xids:
        return HealthCheck(name=name, text="none in the kernel log")
    counts = Counter(xid.number for xid in health.xids)
    numbers = ", ".join(f"{number}{'' if times == 1 else f' ({times} times)'}" for number, times in counts.items())
    bad = [xid for xid in health.xids if xid.number in _OF_HARDWARE or xid not in (before.xids or ())]
    last = f"the last one {format_duration(max(0.0, now_s - health.xids[-1].t_s))} ago"
    trouble = None
    if bad:
        summary = f"{format_count(len(bad), 'XID event')} caused by the hardware or during the self-test"
        trouble = f"{summary}; the last: {bad[-1].text}"
    return HealthCheck(name=name, text=f"{numbers} in the kernel log, {last}", trouble=trouble)


def _check_throttling(health: Health) -> HealthCheck:
    name, reasons = "throttled now", health.throttle_reasons
    if reasons is None:
        return HealthCheck(name=name, text=_UNKNOWN, is_known=False)
    bad = [reason for reason in reasons if reason in _PROTECTION]
    trouble = f"{', '.join(bad)}; check cooling and power supply" if bad else None
    return HealthCheck(name=name, text=", ".join(reasons) or "no", trouble=trouble)


def _format_number(value: int | None) -> str:
    return "unknown" if value is None else str(value)
