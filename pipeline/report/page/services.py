"""Tables of services: which rate each mode bears, and what training and inference take from each other."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence

from pipeline.base import services
from pipeline.report.evaluate import beside, sweeps
from pipeline.report.evaluate.cells import Cell
from pipeline.report.page.table_format import Table, Values, with_interval


def objective_table(cells: Sequence[Cell]) -> Table:
    """The highest rate at which the requests of each mode were answered within the objective."""
    alone = [cell for cell in cells if not (cell.is_derived or cell.case.is_mix)]
    rows: list[Values] = []
    for swept in sweeps.numbers(alone, 1, only=services.RATE):
        lines: dict[tuple[tuple[int, str], str, int], dict[float, Cell]] = defaultdict(dict)
        for rate, here in swept.cells.items():
            for cell in here:
                if services.OBJECTIVE in cell.case.params[0]:
                    lines[cell.sharing.order, cell.mode, cell.degree][rate] = cell
        for (_, mode, degree), by_rate in sorted(lines.items()):
            missed = min((rate for rate, cell in by_rate.items() if _meets(cell) is False), default=None)
            met = [rate for rate, cell in by_rate.items() if _meets(cell) and (missed is None or rate < missed)]
            highest = max(met, default=None)
            objective, latency = _objective(next(iter(by_rate.values())).case.params[0])
            there = None if highest is None else by_rate[highest].estimates.get(latency)
            total = None if highest is None else degree * highest
            figures = (highest, total, None if there is None else with_interval(there), missed)
            rows.append((swept.what, degree, mode, objective, *figures))
    of_rates = ("highest rate of a job (requests/s)", "of all jobs", "latency there (ms)", "lowest rate that misses it")
    note = (
        "A rate meets the objective if it was sustained and the percentile that was asked for was within the objective "
        "in most blocks, for every job, and no lower rate misses it. A percentile takes its number of requests: a p99 "
        "1,000 in the window."
    )
    columns = ("case", "jobs", "mode", "objective", *of_rates)
    return Table("objective", "The highest rate that meets the objective", columns, tuple(rows), note)


def _objective(params: Mapping[str, str]) -> tuple[str, str]:
    """The objective of a service in words, and the figure of a group that it is about."""
    percentile = f"{sweeps.number_in(params.get(services.OBJECTIVE_PERCENTILE, '')) or 0:g}"
    words = f"{params[services.OBJECTIVE]} ms"
    if percentile == "0":
        return words, ""
    return f"p{percentile} within {words}", services.worst_of(f"latency_p{percentile.replace('.', '')}_ms")


def _meets(cell: Cell) -> bool | None:
    """Whether all requests came through within the objective; `None` if that is not known."""
    sustained = cell.values.get(services.SUSTAINED_WORST, {}).values()
    met = cell.values.get(services.OBJECTIVE_MET_WORST, {}).values()
    if not cell.is_ranked:
        return None
    if sustained and statistics.median(sustained) < 1:
        return False
    return statistics.median(met) >= 1 if met else None


def beside_table(cells: Sequence[Cell]) -> Table:
    """Of each mix of services and other jobs: what the others kept of their speed, and what the requests paid."""
    rows: list[Values] = []
    for each in beside.shared(cells):
        figures = [None if found is None else with_interval(found) for found in (each.kept, each.mean, each.p99)]
        rows.append((each.cell.case.label, each.cell.mode, each.workload, *figures))
    columns = ("mix", "mode", "workload", "throughput kept", "mean latency, times alone", "p99 latency, times alone")
    note = "Of several jobs of a workload the worst; a service at a given rate has no throughput of its own to keep."
    return Table("beside", "Training beside inference: what each kept", columns, tuple(rows), note)
