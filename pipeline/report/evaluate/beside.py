"""What services and other jobs that share a device take from each other: what each workload of a mix kept or paid."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pipeline.base.normalise import MEAN_SLOWDOWN, P99_SLOWDOWN, SLOWDOWN
from pipeline.report.evaluate.cells import Cell
from pipeline.report.evaluate.quantities import of_workload
from pipeline.report.evaluate.statistics import Estimate, times_in_words
from pipeline.report.evaluate.wording import listed


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """A workload of a mix, against itself alone; of several jobs of it the worst.

    Attributes:
        kept: share of its throughput; `None` of a service at a given rate, whose throughput says nothing.
        mean, p99: how many times as long as alone its requests take; `None` of what answers none, or too few, or did
            not sustain its rate in every block.
    """

    cell: Cell
    workload: str
    kept: Estimate | None
    mean: Estimate | None
    p99: Estimate | None


def shared(cells: Sequence[Cell]) -> Iterator[Shared]:
    """Each workload of each mix of services and other jobs of which it is known."""
    for cell in (cell for cell in cells if cell.case.is_mix and cell.is_ranked):
        names = list(dict.fromkeys(params.get("workload", "") for params in cell.case.params))
        served = [name for name in names if of_workload(MEAN_SLOWDOWN, name) in cell.values]
        if served and len(served) < len(names):
            for name in names:
                slowdowns = _values(cell, SLOWDOWN, name)
                yield Shared(
                    cell=cell,
                    workload=name,
                    kept=_estimate(cell, {block: 1 / slowdown for block, slowdown in slowdowns.items()}),
                    mean=_estimate(cell, _values(cell, MEAN_SLOWDOWN, name)) if cell.is_compared else None,
                    p99=_estimate(cell, _values(cell, P99_SLOWDOWN, name)) if cell.is_compared else None,
                )


def sentence(found: Sequence[Shared]) -> str:
    """What the workloads of one group of jobs kept and paid."""
    parts = []
    for each in found:
        if each.kept is not None:
            parts.append(f"{each.workload} keeps {times_in_words(each.kept)} its throughput")
        for estimate, title in ((each.p99, "p99"), (each.mean, "mean")):
            if estimate is not None:
                parts.append(f"the {title} latency of {each.workload} is {times_in_words(estimate)} that alone")
                break
    cell = found[0].cell
    simulated = " (simulated)" if cell.is_simulated else ""
    return f"{cell.mode} runs {cell.case.label}: {listed(parts)}.{simulated}"


def _values(cell: Cell, worst: str, workload: str) -> dict[int, float]:
    return cell.values.get(of_workload(worst, workload), {})


def _estimate(cell: Cell, by_block: dict[int, float]) -> Estimate | None:
    return cell.estimate(by_block) if by_block else None
