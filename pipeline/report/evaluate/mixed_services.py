"""Mixes of services and other jobs on one device: throughput and latency of each workload, relative to alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pipeline.base.domain.normalisation import MEAN_SLOWDOWN, P99_SLOWDOWN, SLOWDOWN
from pipeline.report.evaluate.cells import Cell
from pipeline.report.evaluate.metrics import ENERGY_VS_ALONE
from pipeline.report.evaluate.quantities import name_workload_metric
from pipeline.report.evaluate.statistics import Estimate, interval_in_words, times_in_words
from pipeline.report.evaluate.wording import join_words


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """The figures of a workload in a mix, relative to the workload alone; for several jobs, those of the worst job.

    Attributes:
        throughput_ratio: ratio of the throughputs; `None` for a service at a given rate.
        mean, p99: ratios of the latencies; `None` with too few requests, or if a block did not sustain the rate.
    """

    cell: Cell
    workload: str
    throughput_ratio: Estimate | None
    mean: Estimate | None
    p99: Estimate | None


def compare_services(cells: Sequence[Cell]) -> Iterator[Shared]:
    """Yield the workloads of every ranked mix of services and other jobs, unless none of them has a figure."""
    for cell in (cell for cell in cells if cell.case.is_mix and cell.is_ranked and not cell.has_stressor):
        names = _name_workloads(cell)
        served = [label for label in names if name_workload_metric(MEAN_SLOWDOWN, label) in cell.values]
        if served and len(served) < len(names):
            shares = [
                Shared(
                    cell=cell,
                    workload=name,
                    throughput_ratio=cell.estimate_inverse(name_workload_metric(SLOWDOWN, label)),
                    mean=_latency(cell, MEAN_SLOWDOWN, label),
                    p99=_latency(cell, P99_SLOWDOWN, label),
                )
                for label, name in names.items()
            ]
            if any(share.throughput_ratio or share.mean or share.p99 for share in shares):
                yield from shares


def _name_workloads(cell: Cell) -> dict[str, str]:
    """Return the name of the workload of each label; for variants of one workload in the mix, the label."""
    names = {
        label: params.get("workload", "") for label, params in zip(cell.case.workloads, cell.case.params, strict=True)
    }
    counts = Counter(names.values())
    return {label: name if counts[name] == 1 else label for label, name in names.items()}


def describe_mix(shares: Sequence[Shared]) -> str:
    """Return a sentence on the throughput and the latency of each workload of one mix."""
    parts = []
    for share in shares:
        if share.throughput_ratio is not None:
            ratio = times_in_words(share.throughput_ratio)
            parts.append(f"the throughput of {share.workload} is {ratio} its throughput alone")
        for estimate, title in ((share.p99, "p99"), (share.mean, "mean")):
            if estimate is not None:
                parts.append(f"the {title} latency of {share.workload} is {times_in_words(estimate)} its latency alone")
                break
    cell = shares[0].cell
    simulated = " (simulated)" if cell.is_simulated else ""
    return f"{cell.case.label}, {cell.mode}: {join_words(parts)}.{simulated}"


def describe_shares(cells: Sequence[Cell]) -> list[str]:
    """Return clauses on throughput, energy and latency, each with the lowest and highest ratio of all mixes."""
    shares = list(compare_services(cells))
    throughputs = [(share.throughput_ratio, share.cell) for share in shares if share.throughput_ratio is not None]
    mixes = {id(share.cell): share.cell for share in shares}.values()
    energies = [(cell.estimates[ENERGY_VS_ALONE], cell) for cell in mixes if ENERGY_VS_ALONE in cell.estimates]
    p99 = [(share.p99, share.cell) for share in shares if share.p99 is not None]
    mean = [(share.mean, share.cell) for share in shares if share.mean is not None]
    clauses = [
        (throughputs, "jobs that run with services keep {} of their throughput"),
        (energies, "services and jobs together use {} of the energy that they use alone"),
        (p99 or mean, f"the {'p99' if p99 else 'mean'} latency of services is {{}} times their latency alone"),
    ]
    return [form.format(" to ".join(_ends(estimates))) for estimates, form in clauses if estimates]


def _ends(estimates: Sequence[tuple[Estimate, Cell]]) -> list[str]:
    """Return the lowest and highest estimate with interval, mix and mode: `0.90 (0.85 to 0.94; S+I, naive)`."""
    lowest, *higher = sorted(estimates, key=lambda pair: pair[0].median)
    texts = []
    for estimate, cell in (lowest, *higher[-1:]):
        interval = interval_in_words(estimate, ".2f").strip(" ()")
        where = "; ".join(filter(None, (interval, f"{cell.case.label}, {cell.mode}")))
        texts.append(f"{estimate.median:.2f}{'*' if cell.marks else ''} ({where})")
    return texts


def _latency(cell: Cell, worst: str, label: str) -> Estimate | None:
    return cell.estimate_quantity(name_workload_metric(worst, label)) if cell.is_compared else None
