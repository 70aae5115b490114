"""Tables of services: the highest rate that meets the objective, and training and inference together."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.base.domain import service_figures
from pipeline.base.domain.sharing_modes import SERIAL, SharingMode
from pipeline.base.system.words import format_count
from pipeline.report.evaluate import gpu_fractions, mixed_services, sweeps
from pipeline.report.evaluate.cells import Cell
from pipeline.report.evaluate.metrics import P95_LATENCY, P99_LATENCY
from pipeline.report.evaluate.statistics import Estimate
from pipeline.report.evaluate.wording import join_words
from pipeline.report.page.table_format import Table, Values, format_estimate

_MOST_SAID = 2
"""The answer of a report includes rates if at most this number of workloads has some."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimit:
    """The highest measured rate that the services of a mode sustain within their objective.

    Attributes:
        what: name of the workload.
        highest: highest rate of one job below which no rate misses the objective; `None` if no rate meets the
            objective. Unit: requests/s.
        latency: latency at this rate, at the percentile of the objective.
        missed: the lowest rate that misses the objective.
        is_known: whether a rate meets the objective, or the lowest rate misses it; false if all windows have too few
            requests for the percentile.
        num_blocks: number of blocks at the highest rate.
        marks: marks of the group at the highest rate.
    """

    what: str
    degree: int
    mode: str
    sharing: SharingMode
    objective: str
    num_rates: int
    highest: float | None
    latency: Estimate | None
    missed: float | None
    is_known: bool
    num_blocks: int = 0
    marks: str = ""

    @property
    def total(self) -> float | None:
        """The highest rate of all jobs together."""
        return None if self.highest is None else self.degree * self.highest


def find_rate_limits(cells: Sequence[Cell]) -> list[RateLimit]:
    """Find the highest rate for every mode and number of equal services with an objective."""
    alone = [cell for cell in cells if not (cell.is_derived or cell.case.is_mix)]
    borne: list[RateLimit] = []
    for swept in sweeps.numbers(alone, 1, only=service_figures.RATE):
        lines: dict[tuple[tuple[int, str], str, int], dict[float, Cell]] = defaultdict(dict)
        for rate, members in swept.cells.items():
            for cell in members:
                if service_figures.OBJECTIVE in cell.case.params[0]:
                    lines[cell.sharing.order, cell.mode, cell.degree][rate] = cell
        borne += [_find_limit(swept.what, by_rate) for _, by_rate in sorted(lines.items(), key=lambda line: line[0])]
    return borne


def _find_limit(what: str, by_rate: Mapping[float, Cell]) -> RateLimit:
    missed = min((rate for rate, cell in by_rate.items() if _meets_objective(cell) is False), default=None)
    met = [rate for rate, cell in by_rate.items() if _meets_objective(cell) and (missed is None or rate < missed)]
    highest = max(met, default=None)
    any_cell = next(iter(by_rate.values()))
    objective, latency = gpu_fractions.read_objective(any_cell.case.params[0])
    return RateLimit(
        what=what,
        degree=any_cell.degree,
        mode=any_cell.mode,
        sharing=any_cell.sharing,
        objective=objective,
        num_rates=len(by_rate),
        highest=highest,
        latency=None if highest is None else by_rate[highest].estimates.get(latency),
        missed=missed,
        is_known=highest is not None or missed == min(by_rate),
        num_blocks=0 if highest is None else len(by_rate[highest].values[service_figures.OBJECTIVE_MET_WORST]),
        marks="" if highest is None else by_rate[highest].marks,
    )


def objective_table(cells: Sequence[Cell]) -> Table:
    """Return a table of the highest rate of each mode that meets the objective."""
    rows: list[Values] = []
    for one in find_rate_limits(cells):
        latency = None if one.latency is None else format_estimate(one.latency)
        rows.append((one.what, one.degree, one.mode, one.objective, one.highest, one.total, latency, one.missed))
    rate_heads = (
        "highest rate of a job (requests/s)",
        "of all jobs",
        "latency there (ms)",
        "lowest rate that misses it",
    )
    note = (
        "A rate meets the objective if, in most blocks, every job sustained the rate and its latency at the percentile "
        "was within the objective, and if no lower rate misses the objective. A p99 needs at least 1,200 requests in "
        "the window, and more under load."
    )
    columns = ("case", "jobs", "mode", "objective", *rate_heads)
    return Table("objective", "The highest rate that meets the objective", columns, tuple(rows), note)


def describe_limits(cells: Sequence[Cell]) -> str:
    """Return a clause on the highest rate that meets the objective in each mode, with the best number of jobs.

    The clause is empty without an objective, with fewer than two rates, or for more than two workloads.
    """
    by_workload: dict[tuple[str, str], dict[SharingMode, list[RateLimit]]] = defaultdict(lambda: defaultdict(list))
    for one in find_rate_limits(cells):
        if one.num_rates > 1:
            by_workload[one.what, one.objective][one.sharing].append(one)
    if len(by_workload) > _MOST_SAID:
        return ""
    return "; ".join(
        f"{what} answers {join_words([_describe_best(group) for group in by_mode.values()])} with a {objective}, "
        "the highest of the measured rates"
        for (what, objective), by_mode in by_workload.items()
        if any(one.is_known for group in by_mode.values() for one in group)
    )


def _describe_best(limits: Sequence[RateLimit]) -> str:
    """Return `400 requests/s in 4 jobs (MPS)`."""
    best = max(limits, key=lambda one: (one.total or 0, -one.degree))
    where = "alone" if best.sharing == SERIAL else f"in {format_count(best.degree, 'job')} ({best.sharing.label})"
    if best.total is not None:
        return f"{best.total:g} requests/s {where}"
    none = "no rate" if all(one.is_known for one in limits) else "an unknown rate"
    return f"{none} ({best.sharing.label})"


def _meets_objective(cell: Cell) -> bool | None:
    sustained = cell.values.get(service_figures.SUSTAINED_WORST, {}).values()
    met = cell.values.get(service_figures.OBJECTIVE_MET_WORST, {}).values()
    if not cell.is_ranked:
        return None
    if sustained and statistics.median(sustained) < 1:
        return False
    return statistics.median(met) >= 1 if met else None


def fraction_table(cells: Sequence[Cell]) -> Table:
    """Return a table of services on fractions of a GPU, with idle and with loaded rest."""
    rows: list[Values] = []
    for part in gpu_fractions.list_fractions(cells):
        served = part.estimate_users()
        within = served if served is None or isinstance(served, str) else format_estimate(served)
        for users, cell in sorted(part.cells.items()):
            place = (part.service, part.name, cell.mode, part.rest or None, users)
            if not cell.is_ranked:
                rows.append((*place, cell.finding.value, *[None] * 4))
                continue
            names = (P95_LATENCY, P99_LATENCY, cell.energy)
            estimates = (part.compare_throughput(users), *map(cell.figures.get, names))
            rows.append((*place, *(None if one is None else format_estimate(one) for one in estimates), within))
    note = (
        "Throughput and users of one service; latency of the slowest service; energy of the whole GPU, over the "
        "requests of all services. Users within the objective: interpolated between the measured numbers of users."
    )
    figures = ("throughput, whole GPU = 1", "p95 (ms)", "p99 (ms)", "energy per request (J)", "users within objective")
    columns = ("service", "of a GPU", "mode", "rest of the GPU", "users", *figures)
    return Table("fractions", "Services on fractions of a GPU", columns, tuple(rows), note)


def beside_table(cells: Sequence[Cell]) -> Table:
    """Return a table of the throughput and latency of each workload of a mix, relative to alone."""
    rows: list[Values] = []
    for share in mixed_services.compare_services(cells):
        estimates = (share.throughput_ratio, share.mean, share.p99)
        figures = [None if estimate is None else format_estimate(estimate) for estimate in estimates]
        rows.append((share.cell.case.label, share.cell.mode, share.workload, *figures))
    columns = ("mix", "mode", "workload", "throughput kept", "mean latency, times alone", "p99 latency, times alone")
    note = (
        "If a mix has several jobs of a workload, the figures are those of the worst job. Services at a given rate "
        "have no throughput to compare."
    )
    return Table("beside", "Training and inference together, relative to alone", columns, tuple(rows), note)
