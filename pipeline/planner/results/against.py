"""What a plan predicted of each service beside what the runs of its experiment measured.

A group of the experiment stands for every GPU that was planned alike. What one of them lacks, a service that runs on it
lacks: nothing is scaled up from the others.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from pipeline.base.domain import services, units
from pipeline.base.domain.mig_table import model_called
from pipeline.base.domain.normalise import independent
from pipeline.base.domain.records import Result
from pipeline.base.system import entry_points
from pipeline.base.system.errors import ConfigError
from pipeline.planner import profile
from pipeline.planner.deployment import Deployment, Gpu, Instance, Plan, Service
from pipeline.planner.export.experiment import Group, groups_of, rates_per_s
from pipeline.planner.profile import Profile
from pipeline.planner.results.measured import batch_key
from pipeline.report.evaluate.metrics import INSTANCE_MEMORY, MEMORY, Scale
from pipeline.report.evaluate.statistics import Estimate, estimate
from pipeline.report.page.table_format import Table, format_estimate
from pipeline.report.read.study_records import JobRow, Row, Study

THROUGHPUT, P99, MEAN, MEMORY_TOTAL, ENERGY = (
    "throughput_per_s",
    "latency_p99_ms",
    "latency_mean_ms",
    "memory_mib",
    "energy_per_item_j",
)
_Measured = tuple[Group, Sequence[Row]]
_Promise = Callable[[JobRow, Instance, Service], bool | None]
_ARRIVAL = "arrival"  # an option of what answers requests
_SAME_RATE = 1e-4  # that of an export of one GPU model is rounded once more
QUANTITIES = {
    THROUGHPUT: "throughput (1/s)",
    P99: "p99 latency (ms)",
    MEAN: "mean latency (ms)",
    MEMORY_TOTAL: "memory (MiB)",
    ENERGY: "energy per request (J)",
}
"""Of a service, on all its instances: throughput and memory together, latency in the slowest, energy on average."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One quantity of one service.

    Attributes:
        quantity: a key of `QUANTITIES`.
        predicted: `None` if the plan does not say.
        low, high: the interval of the prediction, where the profile has one.
        measured: over the blocks; `None` if it was not measured, or cannot be told from that of other services.
        is_asked: whether it is the rate at which the service is asked: what arrives differs from it by chance.
    """

    service: str
    quantity: str
    predicted: float | None
    is_asked: bool = False
    low: float | None = None
    high: float | None = None
    measured: Estimate | None = None

    @property
    def error_ratio(self) -> float | None:
        """How far the measurement is from the prediction, as a share of the prediction."""
        if self.measured is None or not self.predicted:
            return None
        return self.measured.median / self.predicted - 1

    @property
    def is_within(self) -> bool | None:
        """Whether the intervals of both overlap; a side without one is a point.

        `None` if neither has one, and of a rate that is asked: whether that was sustained is told apart.
        """
        if self.measured is None or self.predicted is None or self.is_asked:
            return None
        mine = (self.low, self.high) if self.low is not None and self.high is not None else (self.predicted,) * 2
        median, low, high = self.measured.median, self.measured.low, self.measured.high
        theirs = (low, high) if low is not None and high is not None else (median, median)
        if mine[0] == mine[1] and theirs[0] == theirs[1]:
            return None
        return theirs[0] <= mine[1] and mine[0] <= theirs[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A plan beside its experiment.

    Attributes:
        compared: every quantity of every service, in the order of the plan.
        broken: what was promised and not kept: rates that were not sustained, objectives that were missed.
        missing: GPUs of the plan of which nothing counts, and why.
        unchecked: what was promised and of which nothing was measured that tells whether it was kept.
        held_by_mean: services that were planned by their p99, of which too few requests came for one to be measured.
    """

    compared: tuple[Compared, ...]
    broken: tuple[str, ...]
    missing: tuple[str, ...]
    unchecked: tuple[str, ...]
    held_by_mean: tuple[str, ...]
    is_simulated: bool

    @property
    def holds(self) -> bool:
        """Whether the whole plan was measured, and every service got what it was promised."""
        return not (self.broken or self.missing or self.unchecked)


def check(plan: Plan, study: Study, table: Profile | None, source: str, *, by_group: bool = False) -> Check:
    """Join a plan with the runs of its experiment.

    Args:
        plan: with at least one GPU on which something runs.
        study: what the experiment holds.
        table: the profile that it was planned from, for energy and intervals.
        source: the file of the plan, for errors.
        by_group: whether each group is compared for itself, since the GPUs of the plan are groups in turn.

    Raises:
        ConfigError: no run of the study is of a group of the plan, or the profile is not the plan's.
    """
    if table is not None and plan.profile_digest not in (None, table.digest):
        raise ConfigError(
            f"{source}: {table.source} has changed since, or is another profile (its digest is {table.digest[:12]}, "
            f"and the plan was made from {(plan.profile_digest or '')[:12]}); plan again"
        )
    groups = groups_of(plan)
    rates = rates_per_s(plan)
    models = {model_called(gpu.model) for gpu in plan.deployment.gpus}
    runs = [[row for row in study.rows if _is_of(row, group, rates, models)] for group in groups]
    if not any(runs):
        names = ", ".join(sorted({row.name for row in study.rows})[:3]) or "it has no results"
        raise ConfigError(
            f"experiment {study.experiment!r} has no group of {source} with its GPU model, rates and batches (it has "
            f"{names}); export the plan with `{entry_points.spell('planner', 'export')}` and run it"
        )
    missing = list(map(_missing, groups, runs))
    measured = [(group, rows) for group, rows, why in zip(groups, runs, missing, strict=True) if not why]
    compared: list[Compared] = []
    for mine in [[group] for group in groups] if by_group else [groups]:
        served = dict.fromkeys(each.service for group in mine for each in group.gpu.instances)
        part = _only(plan, mine[0]) if by_group else plan
        ran = [(_one_of(group) if by_group else group, rows) for group, rows in measured if group in mine]
        label = f" (group {mine[0].gpus[0] + 1})" if by_group else ""
        for name in served:
            found = _of_service(name, part, mine, ran, table)
            compared += [replace(each, service=f"{each.service}{label}") for each in found]
    return Check(
        compared=tuple(compared),
        broken=tuple(_said(plan, measured, is_kept=False)),
        missing=tuple(filter(None, missing)),
        unchecked=tuple(_said(plan, measured, is_kept=None)),
        held_by_mean=tuple(_held_by_mean(plan, measured)),
        is_simulated=study.is_simulated,
    )


def _only(plan: Plan, group: Group) -> Plan:
    """The plan with one GPU of a group left."""
    return replace(plan, deployment=Deployment(gpus=(group.gpu,)))


def _one_of(group: Group) -> Group:
    """A group that stands for one GPU alone."""
    return replace(group, gpus=group.gpus[:1])


def _is_of(row: Row, group: Group, rates: Mapping[tuple[int, int], float], models: Set[str]) -> bool:
    """Whether a run is of a group: the same jobs in the same places of such a GPU.

    A rehearsal may take a simulated GPU that is none of the plan's models, with smaller batches.
    """
    device = model_called(row.device)
    is_stand_in = row.is_simulated and device not in models
    if device != model_called(group.gpu.model) and not is_stand_in:
        return False
    asked, dealt = _listed(row.options.get("profiles")), _listed(row.options.get("instance_of"))
    sizes = tuple(job.size for job in row.jobs)
    of_mig = (group.profiles, group.instance_of if group.profiles else ())
    if (row.scenario, sizes, asked, dealt) != (group.scenario, group.sizes, *of_mig):
        return False
    return all(
        _has_rate(job, rates.get((group.gpus[0], place)))
        and (row.is_simulated or _has_batch(job, group.gpu.instances[place].batch))
        for job, place in zip(row.jobs, group.instance_of, strict=True)
    )


def _has_rate(job: JobRow, planned_per_s: float | None) -> bool:
    """Whether a job is asked at the rate that was planned, if any; what answers no requests is asked at none."""
    given = job.params.get(services.RATE)
    if given is None:
        return planned_per_s is None or _ARRIVAL not in job.params
    return planned_per_s is not None and math.isclose(float(given), planned_per_s, rel_tol=_SAME_RATE)


def _has_batch(job: JobRow, planned: int | None) -> bool:
    return planned is None or job.params.get(batch_key(job), str(planned)) == str(planned)


def _listed(option: object) -> tuple[object, ...]:
    return tuple(option) if isinstance(option, list) else ()


def _missing(group: Group, rows: Sequence[Row]) -> str:
    """Why nothing of a group counts; empty if it does. What a report would not rank does not count here either."""
    where = f"GPU {', '.join(map(str, group.gpus))}"
    bad = (Result.WRONG_RESULTS, Result.OOM, Result.SKIPPED)
    for row in rows:
        if row.result in bad:
            return f"{where}: {row.result} in block {row.block}: {row.reason}"
    if not any(row.is_valid for row in rows):
        return f"{where}: it was not run" if not rows else f"{where}: {_why_not(rows[0])}"
    return ""


def _why_not(row: Row) -> str:
    return f"invalid: {row.marks.invalid}" if row.marks.invalid else f"{row.result}: {row.reason}"


def _of_service(
    name: str, plan: Plan, groups: Sequence[Group], measured_groups: Sequence[_Measured], table: Profile | None
) -> list[Compared]:
    mine = [(group, rows) for group, rows in measured_groups if _runs(name, group)]
    is_whole = len(mine) == sum(_runs(name, group) for group in groups)
    found = []
    for quantity in QUANTITIES:
        predicted, low, high = _predicted(quantity, name, plan, table)
        measured = _measured(quantity, name, mine) if is_whole else None
        if predicted is not None or measured is not None:
            found.append(
                Compared(
                    service=name,
                    quantity=quantity,
                    predicted=predicted,
                    is_asked=_is_asked(quantity, name, plan),
                    low=low,
                    high=high,
                    measured=measured,
                )
            )
    return found


def _is_asked(quantity: str, name: str, plan: Plan) -> bool:
    """Whether a quantity is the rate that the plan gives to a service."""
    return quantity == THROUGHPUT and any(service.name == name for service in plan.services)


def _runs(name: str, group: Group) -> bool:
    return any(instance.service == name for instance in group.gpu.instances)


def _predicted(
    quantity: str, name: str, plan: Plan, table: Profile | None
) -> tuple[float | None, float | None, float | None]:
    """A quantity of a service as the plan has it, and its interval."""
    placed = [(gpu, each) for gpu in plan.deployment.gpus for each in gpu.instances if each.service == name]
    if _is_asked(quantity, name, plan):
        rates = rates_per_s(plan)  # what is sent is answered, no more
        gpus = plan.deployment.gpus
        sent = [
            rate * gpus[gpu].instances[place].processes
            for (gpu, place), rate in rates.items()
            if gpus[gpu].instances[place].service == name
        ]
        return sum(sent), None, None
    if quantity == THROUGHPUT:
        profiled = [_row_of(gpu, each, table) for gpu, each in placed]
        lows, highs = ([getattr(row, key, None) for row in profiled] for key in _INTERVAL)
        return _all(sum, [each.throughput_per_s for _, each in placed]), _all(sum, lows), _all(sum, highs)
    if quantity == ENERGY:
        rows = [_row_of(gpu, each, table) for gpu, each in placed]
        energies = [row.energy_per_item_j if row else None for row in rows]
        return _all(statistics.fmean, energies), None, None
    combine: Callable[[list[float]], float] = sum if quantity == MEMORY_TOTAL else max
    return _all(combine, [getattr(each, quantity) for _, each in placed]), None, None


_INTERVAL = ("throughput_low_per_s", "throughput_high_per_s")


def _all(combine: Callable[[list[float]], float], values: Sequence[float | None]) -> float | None:
    """Several values as one; `None` if one of them is missing."""
    known = [value for value in values if value is not None]
    return combine(known) if known and len(known) == len(values) else None


def _row_of(gpu: Gpu, instance: Instance, table: Profile | None) -> profile.Row | None:
    """The row of the profile that an instance was planned by; `None` if it is not known."""
    for row in table.rows if table is not None else ():
        cell = (row.workload, row.instance_profile, row.processes, row.batch, row.share_percent)
        planned = (instance.service, instance.profile, instance.processes, instance.batch, instance.share_pct)
        is_same = cell == planned and model_called(row.gpu_model) == model_called(gpu.model)
        if is_same and row.throughput_per_s == instance.throughput_per_s:
            return row
    return None


def _measured(quantity: str, name: str, groups: Sequence[_Measured]) -> Estimate | None:
    """A quantity of a service in the blocks in which all its groups ran well."""
    by_block: dict[int, list[tuple[float, int]]] = defaultdict(list)
    gpus: dict[int, str] = {}
    for group, rows in groups:
        for row in rows:
            value = _in_block(quantity, name, group, row) if row.is_valid else None
            if value is not None:
                by_block[row.block].append((value, len(group.gpus)))
                gpus[row.block] = row.gpu_uuid
    whole = {block: _together(quantity, each) for block, each in by_block.items() if len(each) == len(groups)}
    if quantity == MEMORY_TOTAL and whole:  # a peak: what must fit is the highest
        return estimate(list(whole.values()), Scale.PEAK)
    return estimate(independent(whole, gpus)) if whole else None


def _together(quantity: str, found: Sequence[tuple[float, int]]) -> float:
    """The figure of a service from those of its GPUs, each with how many GPUs are like it."""
    if quantity in (THROUGHPUT, MEMORY_TOTAL):
        return sum(value * number for value, number in found)
    if quantity == ENERGY:
        return statistics.fmean([value for value, _ in found], [number for _, number in found])
    return max(value for value, _ in found)


def _in_block(quantity: str, name: str, group: Group, row: Row) -> float | None:
    """A quantity of a service on one GPU."""
    placed = list(zip(row.jobs, group.instance_of, strict=True))
    mine = [(job, place) for job, place in placed if group.gpu.instances[place].service == name]
    jobs = [job for job, _ in mine]
    if quantity == THROUGHPUT:
        return _all(sum, [job.metrics.get(units.rate_of(job.unit)) for job in jobs])
    if quantity in (P99, MEAN):
        return _all(max, [job.metrics.get(quantity) for job in jobs])
    is_alone = len(jobs) == len(row.jobs)
    if quantity == ENERGY:  # of the whole GPU: nobody knows who took which part of it
        return row.metrics.get(units.energy_of(jobs[0].unit)) if is_alone else None
    if group.gpu.mode == "mig":
        return _memory(mine)
    return row.metrics.get(MEMORY) if is_alone else None


def _memory(mine: Sequence[tuple[JobRow, int]]) -> float | None:
    """Peak memory of the instances of jobs, each counted once."""
    of_instance = {place: job.metrics.get(INSTANCE_MEMORY) for job, place in mine}
    return _all(sum, list(of_instance.values()))


def _said(plan: Plan, measured: Sequence[_Measured], *, is_kept: bool | None) -> Iterable[str]:
    """Of each service of each group, what it was promised and did not get; or, for `None`, what nothing tells."""
    for group, rows in measured:
        ok = [row for row in rows if row.is_valid]
        where = f"GPU {', '.join(map(str, group.gpus))}"
        for service in plan.services:
            if not _runs(service.name, group):
                continue
            for words, promise in (("sustain its rate", _is_sustained), ("meet its objective", _is_met)):
                found = [row for row in ok if _all_of(promise, service, group, row) is is_kept]
                if found:
                    did = "did not" if is_kept is False else "was not seen to"
                    yield f"{service.name} {did} {words} on {where} in {len(found)} of {len(ok)} blocks"


def _all_of(promise: _Promise, service: Service, group: Group, row: Row) -> bool | None:
    """Whether a promise was kept in every process of a service; `None` if that is not known of one."""
    kept = [promise(job, instance, service) for job, instance in _processes(service.name, group, row)]
    return False if False in kept else None if None in kept else True


def _processes(name: str, group: Group, row: Row) -> Iterable[tuple[JobRow, Instance]]:
    """The jobs of a service, each with its instance."""
    placed = zip(row.jobs, group.instance_of, strict=True)
    return ((job, i) for job, place in placed if (i := group.gpu.instances[place]).service == name)


def _is_sustained(job: JobRow, _instance: Instance, _service: Service) -> bool | None:
    ratio = job.metrics.get(services.SUSTAINED)
    return None if ratio is None else ratio >= 1


def _is_met(job: JobRow, instance: Instance, service: Service) -> bool | None:
    """Whether the latency that the plan was made by is within the objective: p99, or mean."""
    if service.objective_ms is None:
        return True
    latency_ms = job.metrics.get(MEAN)
    if instance.latency_p99_ms is not None:
        latency_ms = job.metrics.get(P99, latency_ms)
    return None if latency_ms is None else latency_ms <= service.objective_ms


def _held_by_mean(plan: Plan, measured: Sequence[_Measured]) -> Iterable[str]:
    for service in plan.services:
        found = (
            (job, instance)
            for group, rows in measured
            for row in rows
            if row.is_valid
            for job, instance in _processes(service.name, group, row)
        )
        if any(i.latency_p99_ms is not None and P99 not in job.metrics and MEAN in job.metrics for job, i in found):
            yield service.name


def table_of(found: Check, source: str) -> Table:
    """The comparison as a table of the report."""
    rows = []
    for each in found.compared:
        measured = None if each.measured is None else format_estimate(each.measured)
        error = None if each.error_ratio is None else f"{each.error_ratio:+.1%}"
        within = {None: None, True: "yes", False: "no"}[each.is_within]
        rows.append((each.service, QUANTITIES[each.quantity], _predicted_in_words(each), measured, error, within))
    note = (
        f"Planned: as {source} has it; of a service with a rate, that rate. Within: whether the intervals of both "
        "overlap; what has none is a point. "
        + " ".join(f"{sentence[0].upper()}{sentence[1:]}." for sentence in _sentences(found))
    )
    columns = ("service", "quantity", "planned", "measured", "error", "within")
    return Table("planned", "Planned and measured", columns, tuple(rows), note.strip())


def _sentences(found: Check) -> Iterable[str]:
    yield from (*found.broken, *found.unchecked, *found.missing)
    if found.held_by_mean:
        yield held_by_mean(found)


def held_by_mean(found: Check) -> str:
    """Of which services the mean stands for the p99."""
    names = ", ".join(found.held_by_mean)
    return f"too few requests for a p99 of {names}: the mean latency was held against the objective"


def _predicted_in_words(each: Compared) -> str | None:
    if each.predicted is None:
        return None
    return format_estimate(Estimate(median=each.predicted, low=each.low, high=each.high, n=1))
