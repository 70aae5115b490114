"""Services: the highest rate within an objective, fractions of a GPU, and mixes with other jobs.

On a fraction of a GPU (half, a third, ...), the rest of the GPU is idle, or loaded by the same service.
"""

from __future__ import annotations

import itertools
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pipeline.base.domain import service_figures
from pipeline.base.domain.normalisation import MEAN_SLOWDOWN, P99_SLOWDOWN, SLOWDOWN
from pipeline.base.domain.records import Result
from pipeline.base.domain.sharing_modes import SERIAL, SharingMode
from pipeline.base.system.words import format_count, group_by
from pipeline.report.evaluate import sweeps
from pipeline.report.evaluate.cells import Cell
from pipeline.report.evaluate.contrasts import Contrast, contrast_per_job, contrast_with_alone
from pipeline.report.evaluate.metrics import ENERGY_VS_ALONE
from pipeline.report.evaluate.quantities import name_workload_metric
from pipeline.report.evaluate.statistics import Estimate, format_interval, format_times
from pipeline.report.evaluate.wording import join_words

_NAMES = {1: "whole", 2: "half", 3: "third", 4: "quarter"}
LATENCIES = {P99_SLOWDOWN: "p99", MEAN_SLOWDOWN: "mean"}
"""The latencies of services next to other jobs, the preferred one first."""
_MOST_NAMED = 2
"""The answer of a report includes rates if at most this number of workloads has some."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fraction:
    """A service on a fraction of a GPU, or on the whole GPU.

    Attributes:
        service: name of the jobs, without their number of users.
        num_parts: number of equal services that load the whole GPU; 1 for the whole GPU.
        is_loaded: whether these services run; otherwise one service runs, and the rest of the GPU is idle.
        cells, wholes: cells of the fraction and of the whole GPU, by users of a service.
    """

    service: str
    num_parts: int
    is_loaded: bool
    cells: Mapping[int, Cell]
    wholes: Mapping[int, Cell]

    @property
    def name(self) -> str:
        """The fraction in words."""
        return _NAMES.get(self.num_parts, f"1/{self.num_parts}")

    @property
    def sharing(self) -> SharingMode:
        return next(iter(self.cells.values())).sharing

    @property
    def rest(self) -> str:
        """The state of the rest of the GPU; empty for the whole GPU."""
        return "" if self.num_parts == 1 else "loaded" if self.is_loaded else "idle"

    def compare_throughput(self, users: int) -> Contrast | None:
        """Return the throughput of one service over that of the same service on the whole GPU."""
        cell, reference = self.cells[users], self.wholes.get(users)
        if reference is None or not (cell.is_ranked and reference.is_ranked):
            return None
        return contrast_per_job(cell, reference)

    def estimate_users(self) -> Estimate | str | None:
        """Estimate the number of users of a service within the objective, between two measured numbers of users.

        A text is a bound: in a block, no measured number of users meets the objective, or all do. `None` without an
        objective at a percentile, or if a latency is missing.
        """
        any_cell = next(iter(self.cells.values()))
        words, latency = read_objective(any_cell.case.params[0])
        by_users = {users: cell.values[latency] for users, cell in self.cells.items() if latency in cell.figures}
        if not words or len(by_users) < max(2, len(self.cells)):
            return None
        objective = float(any_cell.case.params[0][service_figures.OBJECTIVE])
        blocks = sorted(set.intersection(*map(set, by_users.values())))
        served = {
            block: _interpolate(objective, [(users, by_users[users][block]) for users in sorted(by_users)])
            for block in blocks
        }
        user_counts = {block: users for block, users in served.items() if isinstance(users, float)}
        bounds = [bound for bound in served.values() if isinstance(bound, str)]
        return bounds[0] if bounds else any_cell.estimate(user_counts) if user_counts else None


def read_objective(params: Mapping[str, str]) -> tuple[str, str]:
    """Return the objective of a service in words and the latency that it limits; both are empty without one.

    Without a percentile, the objective limits no latency of the service.
    """
    if service_figures.OBJECTIVE not in params:
        return "", ""
    percentile = f"{sweeps.parse_number(params.get(service_figures.OBJECTIVE_PERCENTILE, '')) or 0:g}"
    words = f"{float(params[service_figures.OBJECTIVE]):g} ms"
    if percentile == "0":
        return f"latency within {words}", ""
    return f"p{percentile} within {words}", service_figures.name_worst(f"latency_p{percentile.replace('.', '')}_ms")


def _interpolate(objective: float, latencies: Sequence[tuple[int, float]]) -> float | str:
    """Return the number of users at which the latency first exceeds the objective, or a bound in words."""
    (fewest, lowest), (most, _) = latencies[0], latencies[-1]
    if lowest > objective:
        return f"fewer than {fewest}"
    for (users, latency), (next_users, higher) in itertools.pairwise(latencies):
        if higher > objective:
            return users + (next_users - users) * (objective - latency) / (higher - latency)
    return f"at least {most}"


def list_fractions(cells: Sequence[Cell]) -> Iterator[Fraction]:
    """Yield the whole GPU, then its fractions with idle and with loaded rest, for services whose clients wait.

    A fraction is the share of one job, of which a mode ran one job and several jobs.
    """
    executed = [cell for cell in cells if not cell.is_derived and cell.finding is not Result.SKIPPED]
    alone = [cell for cell in executed if not (cell.case.is_mix or cell.co_runners or cell.num_given)]
    for swept in sweeps.numbers(alone, 1, only=service_figures.CLIENTS):
        shares: dict[tuple[SharingMode, str], dict[int, dict[int, Cell]]] = defaultdict(lambda: defaultdict(dict))
        for users, members in swept.cells.items():
            for cell in members:
                # Each job of a group has the same profile, whatever the number of jobs.
                share = cell.profiles[0] if len(set(cell.profiles)) == 1 else cell.detail
                shares[cell.sharing, share][cell.degree][int(users)] = cell
        wholes = shares.pop((SERIAL, ""), {}).get(1, {})
        parts = [by_degree for (mode, _), by_degree in shares.items() if mode.placement_fact and by_degree.keys() > {1}]
        if wholes and parts:
            yield Fraction(service=swept.what, num_parts=1, is_loaded=True, cells=wholes, wholes=wholes)
            for by_degree in sorted(parts, key=max):
                for degree in (1, max(by_degree)):
                    yield Fraction(
                        service=swept.what,
                        num_parts=max(by_degree),
                        is_loaded=degree > 1,
                        cells=by_degree[degree],
                        wholes=wholes,
                    )


def describe_fractions(cells: Sequence[Cell]) -> list[str]:
    """Return a sentence on the largest fraction of each sharing mode, for each service."""
    by_mode = group_by(list_fractions(cells), lambda part: (part.service, part.sharing))
    reference: Fraction | None = None
    sentences = []
    for members in by_mode.values():
        if members[0].num_parts == 1:
            (reference,) = members
            continue
        parts = [part for part in members if part.num_parts == members[0].num_parts]
        most = max(parts[0].cells)
        rates = [(part.compare_throughput(most), part.rest) for part in parts if most in part.cells]
        throughputs = [
            f"{format_times(pair.ratio)} with the rest {load}"
            for pair, load in rates
            if pair is not None and pair.ratio is not None
        ]
        users = [part.estimate_users() for part in (*parts, reference) if part is not None]
        numbers = [number.median for number in users if isinstance(number, Estimate)]
        if throughputs:
            cell = parts[0].cells[most]
            place = f"a {parts[0].name} of the GPU ({cell.mode})".replace("a half", "half")
            ratios = f"{join_words(throughputs)}, relative to the whole GPU"
            sentence = f"On {place}, the throughput of {parts[0].service} is {ratios}"
            if len(numbers) == len(parts) + 1:
                objective, _ = read_objective(cell.case.params[0])
                sentence += "; {:.1f} and {:.1f} instead of {:.1f} users have a ".format(*numbers) + objective
            sentences.append(f"{sentence}.{' (simulated)' if cell.is_simulated else ''}")
    return sentences


def compare_services(cells: Sequence[Cell]) -> Iterator[Contrast]:
    """Yield the contrasts with alone of the workloads of every ranked mix of services and other jobs.

    For each workload these are the throughput that it keeps (metric `SLOWDOWN`), unless it is a service at a given
    rate, and its latencies (`LATENCIES`), unless there are too few requests or a block did not sustain the rate. If a
    mix has several jobs of a workload, the ratios are those of the worst one.
    """
    for cell in (cell for cell in cells if cell.case.is_mix and cell.is_ranked and not cell.has_stressor):
        names = name_workloads(cell)
        served = [label for label in names if name_workload_metric(MEAN_SLOWDOWN, label) in cell.values]
        if served and len(served) < len(names):
            latencies = LATENCIES if cell.is_compared else ()
            for (label, name), metric in itertools.product(names.items(), (SLOWDOWN, *latencies)):
                is_kept = metric == SLOWDOWN
                quantity = name_workload_metric(metric, label)
                pair = contrast_with_alone(cell, quantity, subject=name, metric=metric, is_inverted=is_kept)
                if pair is not None:
                    yield pair


def name_workloads(cell: Cell) -> dict[str, str]:
    """Return the name of the workload of each label; for variants of one workload in the mix, the label."""
    names = {
        label: params.get("workload", "") for label, params in zip(cell.case.workloads, cell.case.params, strict=True)
    }
    counts = Counter(names.values())
    return {label: name if counts[name] == 1 else label for label, name in names.items()}


def prefer_latency(pairs: Sequence[Contrast]) -> list[Contrast]:
    """Return the contrasts of the preferred latency that any of them has: p99, else the mean."""
    metric = next((name for name in LATENCIES if any(pair.metric == name for pair in pairs)), "")
    return [pair for pair in pairs if pair.metric == metric]


def describe_mix(pairs: Sequence[Contrast]) -> str:
    """Return a sentence on the throughput and the latency of each workload of one mix (`compare_services`)."""
    parts = []
    for workload, members in group_by(pairs, lambda pair: pair.subject).items():
        throughputs = [pair for pair in members if pair.metric == SLOWDOWN]
        for pair in (*throughputs, *prefer_latency(members)):
            assert pair.ratio is not None
            title = "throughput" if pair.metric == SLOWDOWN else f"{LATENCIES[pair.metric]} latency"
            short = title.split()[-1]
            parts.append(f"the {title} of {workload} is {format_times(pair.ratio)} its {short} alone")
    cell = pairs[0].cell
    simulated = " (simulated)" if cell.is_simulated else ""
    return f"{cell.case.label}, {cell.mode}: {join_words(parts)}.{simulated}"


def describe_mixes(cells: Sequence[Cell]) -> list[str]:
    """Return clauses on throughput, energy and latency, each with the lowest and highest ratio of all mixes."""
    pairs = list(compare_services(cells))
    mixes = {id(pair.cell): pair.cell for pair in pairs}.values()
    latencies = prefer_latency(pairs)
    title = LATENCIES[latencies[0].metric] if latencies else ""
    clauses = [
        (
            [pair for pair in pairs if pair.metric == SLOWDOWN],
            "jobs that run with services keep {} of their throughput",
        ),
        (
            [pair for cell in mixes if (pair := contrast_with_alone(cell, ENERGY_VS_ALONE)) is not None],
            "services and jobs together use {} of the energy that they use alone",
        ),
        (latencies, f"the {title} latency of services is {{}} times their latency alone"),
    ]
    return [form.format(" to ".join(_list_extremes(members))) for members, form in clauses if members]


def _list_extremes(pairs: Sequence[Contrast]) -> list[str]:
    """Return the lowest and highest ratio with interval, mix and mode: `0.90 (0.85 to 0.94; S+I, naive)`."""
    lowest, *higher = sorted(pairs, key=lambda pair: pair.gain)
    texts = []
    for pair in (lowest, *higher[-1:]):
        assert pair.ratio is not None
        interval = format_interval(pair.ratio, ".2f").strip(" ()")
        place = "; ".join(filter(None, (interval, f"{pair.case.label}, {pair.mode}")))
        texts.append(f"{pair.ratio.median:.2f}{'*' if pair.cell.marks else ''} ({place})")
    return texts


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


def _find_limit(name: str, by_rate: Mapping[float, Cell]) -> RateLimit:
    missed = min((rate for rate, cell in by_rate.items() if _meets_objective(cell) is False), default=None)
    met = [rate for rate, cell in by_rate.items() if _meets_objective(cell) and (missed is None or rate < missed)]
    highest = max(met, default=None)
    any_cell = next(iter(by_rate.values()))
    objective, latency = read_objective(any_cell.case.params[0])
    return RateLimit(
        what=name,
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


def describe_limits(cells: Sequence[Cell]) -> str:
    """Return a clause on the highest rate that meets the objective in each mode, with the best number of jobs.

    The clause is empty without an objective, with fewer than two rates, or for more than two workloads.
    """
    by_workload: dict[tuple[str, str], dict[SharingMode, list[RateLimit]]] = defaultdict(lambda: defaultdict(list))
    for one in find_rate_limits(cells):
        if one.num_rates > 1:
            by_workload[one.what, one.objective][one.sharing].append(one)
    if len(by_workload) > _MOST_NAMED:
        return ""
    return "; ".join(
        f"{name} answers {join_words([_describe_best(group) for group in by_mode.values()])} with a {objective}, "
        "the highest of the measured rates"
        for (name, objective), by_mode in by_workload.items()
        if any(one.is_known for group in by_mode.values() for one in group)
    )


def _describe_best(limits: Sequence[RateLimit]) -> str:
    """Return `400 requests/s in 4 jobs (MPS)`."""
    best = max(limits, key=lambda one: (one.total or 0, -one.degree))
    if best.total is not None:
        jobs = "alone" if best.sharing == SERIAL else f"in {format_count(best.degree, 'job')} ({best.sharing.label})"
        return f"{best.total:g} requests/s {jobs}"
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
