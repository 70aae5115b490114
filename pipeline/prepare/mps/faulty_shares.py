"""Active thread percentages at which half-precision matrix products on an H100 are wrong, without an error."""

from __future__ import annotations

from pipeline.base.domain.records import Device, Job

# Numbers of multiprocessors at which a client's fp16 and bf16 matrix products were wrong or unwritten, with no error.
# Source: measured on an H100 80GB HBM3 (132 multiprocessors, driver 580.159.04, torch 2.11.0+cu130); docs/mps.md.
_FAULTY_MULTIPROCESSORS = frozenset(
    {18, 20, 22, 26, 28, 36, 38, 42, 46, 52, 54, 58, 68, 72, 78, 86, 92, 98, 104, 112, 116}
)
_MEASURED_ON = ((9, 0), 132)
"""Compute capability and number of multiprocessors."""


def describe_fault(job: Job, device: Device, share_pct: float) -> str | None:
    """Describe the known fault in a job's arithmetic at its active thread percentage; `None` if there is none."""
    precision = dict(job.workload.params).get("precision")
    model = (device.facts.compute_capability, device.facts.multiprocessors)
    if precision in ("default", "fp32", "tf32") or model != _MEASURED_ON:
        return None
    multiprocessors = _count_multiprocessors(share_pct)
    if multiprocessors not in _FAULTY_MULTIPROCESSORS:
        return None
    return (
        f"job {job.name}: active_thread_pct={share_pct:g} ({multiprocessors} of 132 multiprocessors) makes matrix "
        f"products in {precision or 'fp16 and bf16'} wrong on this GPU, without an error; use fp32 (docs/mps.md)"
    )


def _count_multiprocessors(share_pct: float) -> int:
    """Count the multiprocessors, out of 132, that a client may use: pairs, rounded down, at least four pairs."""
    return max(8, int(share_pct * 132 / 200) * 2)
