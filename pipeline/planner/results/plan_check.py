"""The predictions of a plan for each service, compared with the measurements of its experiment.

A group of the experiment represents all GPUs with the same plan. A service on a GPU that was not measured has no
measurement, because figures of other GPUs are not scaled up.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import chain

from pipeline.base.domain import service_figures, work_units
from pipeline.base.domain.mig_table import find_model_name
from pipeline.base.domain.normalisation import MEMORY_PEAK, select_independent
from pipeline.base.domain.records import Result
from pipeline.base.system import entry_points
from pipeline.base.system.errors import ConfigError
from pipeline.planner import profile_table
from pipeline.planner.deployment import Deployment, Gpu, Instance, Plan, Service
from pipeline.planner.export.experiment import GpuGroup, deal_rates, group_gpus
from pipeline.planner.profile_table import Profile
from pipeline.planner.results.profile_measurement import batch_key
from pipeline.report.evaluate.metrics import INSTANCE_MEMORY
from pipeline.report.evaluate.statistics import Estimate, Scale, estimate
from pipeline.report.page.table_format import Table, format_estimate
from pipeline.report.read.study_records import JobRow, Row, Study

P99, MEAN = service_figures.P99, service_figures.MEAN
THROUGHPUT, MEMORY_TOTAL, ENERGY = "throughput_per_s", "memory_mib", "energy_per_item_j"
_Measured = tuple[GpuGroup, Sequence[Row]]
_Promise = Callable[[JobRow, Instance, Service], bool | None]
_ARRIVAL = "arrival"  # an option of services only
_SAME_RATE = 1e-4  # tolerance: the export of one GPU model rounds rates again
QUANTITIES: Mapping[str, tuple[str, Callable[[list[float]], float]]] = {
    THROUGHPUT: ("throughput (1/s)", sum),
    P99: ("p99 latency (ms)", max),
    MEAN: ("mean latency (ms)", max),
    MEMORY_TOTAL: ("memory (MiB)", sum),
    ENERGY: ("energy per request (J)", statistics.fmean),
}
"""The quantities of a service: heading, and how the figures of its instances are combined."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One quantity of one service.

    Attributes:
        quantity: a key of `QUANTITIES`.
        predicted: figure of the plan; `None` if the plan has no figure.
        is_offered: whether the figure is the offered load, from which arrivals deviate at random.
        low: lower end of the prediction's interval, if the profile has an interval.
        high: upper end of the same interval.
        measured: estimate over the blocks; `None` if not measured, or not measured separately from other services.
    """

    service: str
    quantity: str
    predicted: float | None
    is_offered: bool = False
    low: float | None = None
    high: float | None = None
    measured: Estimate | None = None

    @property
    def error_ratio(self) -> float | None:
        """The difference between measurement and prediction, relative to the prediction."""
        if self.measured is None or not self.predicted:
            return None
        return self.measured.median / self.predicted - 1

    @property
    def is_within(self) -> bool | None:
        """True if both intervals overlap; `None` without intervals, or for the offered load.

        A figure without an interval is a point.
        """
        if self.measured is None or self.predicted is None or self.is_offered:
            return None
        planned = (self.low, self.high) if self.low is not None and self.high is not None else (self.predicted,) * 2
        median, low, high = self.measured.median, self.measured.low, self.measured.high
        measured = (low, high) if low is not None and high is not None else (median, median)
        if planned[0] == planned[1] and measured[0] == measured[1]:
            return None
        return measured[0] <= planned[1] and planned[0] <= measured[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A plan compared with its experiment.

    Attributes:
        compared: every quantity of every service, in the order of the plan.
        broken: requirements that were not met: rates not sustained, objectives missed.
        missing: GPUs of the plan without a valid measurement, with the reason.
        unchecked: requirements for which the necessary measurement is missing.
        held_by_mean: services that were planned by p99 latency, but had too few requests to measure a p99.
    """

    compared: tuple[Compared, ...]
    broken: tuple[str, ...]
    missing: tuple[str, ...]
    unchecked: tuple[str, ...]
    held_by_mean: tuple[str, ...]
    is_simulated: bool

    @property
    def holds(self) -> bool:
        """True if the complete plan was measured and every requirement was met."""
        return not (self.broken or self.missing or self.unchecked)


def check(plan: Plan, study: Study, table: Profile | None, source: str, *, by_group: bool = False) -> Check:
    """Compare a plan with the runs of its experiment, with `by_group` separately for each group.

    Raises:
        ConfigError: no run belongs to a group of the plan, or the plan was made from another profile.
    """
    if table is not None and plan.profile_digest not in (None, table.digest):
        raise ConfigError(
            f"{source}: profile {table.source} (digest {table.digest[:12]}) is not the profile of the plan (digest "
            f"{(plan.profile_digest or '')[:12]}); name the plan's profile, or make the plan again"
        )
    groups = group_gpus(plan)
    rates = deal_rates(plan)
    models = {find_model_name(gpu.model) for gpu in plan.deployment.gpus}
    runs = [[row for row in study.rows if _is_run_of(row, group, rates, models)] for group in groups]
    if not any(runs):
        names = ", ".join(sorted({row.name for row in study.rows})[:3]) or "none"
        raise ConfigError(
            f"experiment {study.experiment!r} has no group with the GPU model, rates and batches of {source} (groups: "
            f"{names}); export the plan with `{entry_points.spell('planner', 'export')}` and run it"
        )
    missing = list(map(_explain_missing, groups, runs))
    measured = [(group, rows) for group, rows, reason in zip(groups, runs, missing, strict=True) if not reason]
    compared: list[Compared] = []
    if not by_group:
        compared += _compare(plan, groups, measured, table)
    for group in groups if by_group else ():
        alone = replace(group, gpus=group.gpus[:1])
        part = replace(plan, deployment=Deployment(gpus=(group.gpu,)))
        runs_of_group = [(alone, rows) for other, rows in measured if other == group]
        label = f" (group {group.gpus[0] + 1})"
        compared += [replace(c, service=f"{c.service}{label}") for c in _compare(part, [alone], runs_of_group, table)]
    return Check(
        compared=tuple(compared),
        broken=tuple(_find_promises(plan, measured, is_kept=False)),
        missing=tuple(filter(None, missing)),
        unchecked=tuple(_find_promises(plan, measured, is_kept=None)),
        held_by_mean=tuple(_find_held_by_mean(plan, measured)),
        is_simulated=study.is_simulated,
    )


def _is_run_of(row: Row, group: GpuGroup, rates: Mapping[tuple[int, int], float], models: Set[str]) -> bool:
    """Return whether a run has a group's jobs and GPU model; a rehearsal may have another model and smaller batches."""
    device = find_model_name(row.device)
    is_stand_in = row.is_simulated and device not in models
    if device != find_model_name(group.gpu.model) and not is_stand_in:
        return False
    if (row.scenario, tuple(job.size for job in row.jobs)) != (group.scenario, group.sizes):
        return False
    planned = {"profiles": list(group.profiles), "instance_of": list(group.instance_of)} if group.profiles else {}
    if any(row.options.get(key) != option for key, option in planned.items()):
        return False
    return all(
        _has_rate(job, rates.get((group.gpus[0], place)))
        and (row.is_simulated or _has_batch(job, group.gpu.instances[place].batch))
        for job, place in zip(row.jobs, group.instance_of, strict=True)
    )


def _has_rate(job: JobRow, planned_per_s: float | None) -> bool:
    rate = job.params.get(service_figures.RATE)
    if rate is None:
        return planned_per_s is None or _ARRIVAL not in job.params
    return planned_per_s is not None and math.isclose(float(rate), planned_per_s, rel_tol=_SAME_RATE)


def _has_batch(job: JobRow, planned: int | None) -> bool:
    return planned is None or job.params.get(batch_key(job), str(planned)) == str(planned)


def _explain_missing(group: GpuGroup, rows: Sequence[Row]) -> str:
    """Explain why a report would not rank a group; return an empty text if a report would rank the group."""
    place = f"GPU {', '.join(map(str, group.gpus))}"
    bad = (Result.WRONG_RESULTS, Result.OOM, Result.SKIPPED)
    for row in rows:
        if row.result in bad:
            return f"{place}: {row.result} in block {row.block}: {row.reason}"
    if any(row.is_valid for row in rows):
        return ""
    if not rows:
        return f"{place}: its group was not run"
    invalid = rows[0].marks.invalid
    return f"{place}: {f'invalid: {invalid}' if invalid else f'{rows[0].result}: {rows[0].reason}'}"


def _compare(
    plan: Plan, groups: Sequence[GpuGroup], measured: Sequence[_Measured], table: Profile | None
) -> Iterable[Compared]:
    rates = {service.name for service in plan.services}
    for name in dict.fromkeys(instance.service for group in groups for instance in group.gpu.instances):
        measured_groups = [(group, rows) for group, rows in measured if _has_service(group, name)]
        is_complete = len(measured_groups) == sum(_has_service(group, name) for group in groups)
        for quantity in QUANTITIES:
            is_offered = quantity == THROUGHPUT and name in rates
            predicted, low, high = _predict(quantity, name, plan, table, is_offered=is_offered)
            estimated = _estimate(quantity, name, measured_groups) if is_complete else None
            if predicted is not None or estimated is not None:
                yield Compared(
                    service=name,
                    quantity=quantity,
                    predicted=predicted,
                    is_offered=is_offered,
                    low=low,
                    high=high,
                    measured=estimated,
                )


def _has_service(group: GpuGroup, name: str) -> bool:
    return any(instance.service == name for instance in group.gpu.instances)


def _predict(
    quantity: str, name: str, plan: Plan, table: Profile | None, *, is_offered: bool
) -> tuple[float | None, float | None, float | None]:
    gpus = plan.deployment.gpus
    if is_offered:  # the predicted throughput is the offered load
        placed = ((gpus[gpu].instances[place], rate) for (gpu, place), rate in deal_rates(plan).items())
        return sum(rate * instance.processes for instance, rate in placed if instance.service == name), None, None
    instances = [(gpu, instance) for gpu in gpus for instance in gpu.instances if instance.service == name]
    profiled = [_find_row(gpu, instance, table) for gpu, instance in instances]
    figures = [getattr(instance, quantity, None) for _, instance in instances]
    if quantity == ENERGY:
        figures = [getattr(row, ENERGY, None) for row in profiled]
    ends = ("throughput_low_per_s", "throughput_high_per_s") if quantity == THROUGHPUT else ("", "")
    low, high = (_combine(quantity, [getattr(row, end, None) for row in profiled]) for end in ends)
    return _combine(quantity, figures), low, high


def _combine(quantity: str, figures: Sequence[float | None]) -> float | None:
    """Combine the figures of several instances; `None` if one figure is missing."""
    numbers = [figure for figure in figures if figure is not None]
    return QUANTITIES[quantity][1](numbers) if numbers and len(numbers) == len(figures) else None


def _find_row(gpu: Gpu, instance: Instance, table: Profile | None) -> profile_table.Row | None:
    for row in table.rows if table is not None else ():
        cell = (row.workload, row.instance_profile, row.processes, row.batch, row.share_percent)
        planned = (instance.service, instance.profile, instance.processes, instance.batch, instance.share_pct)
        is_same = cell == planned and find_model_name(row.gpu_model) == find_model_name(gpu.model)
        if is_same and row.throughput_per_s == instance.throughput_per_s:
            return row
    return None


def _estimate(quantity: str, name: str, groups: Sequence[_Measured]) -> Estimate | None:
    """Estimate a quantity of a service from the blocks in which all its groups are valid."""
    by_block: dict[int, list[float]] = defaultdict(list)
    gpus: dict[int, str] = {}
    for group, rows in groups:
        for row in rows:
            figure = _read_figure(quantity, name, group, row) if row.is_valid else None
            if figure is not None:
                by_block[row.block] += [figure] * len(group.gpus)
                gpus[row.block] = row.gpu_uuid
    num_gpus = sum(len(group.gpus) for group, _ in groups)
    combine = QUANTITIES[quantity][1]
    complete = {block: combine(figures) for block, figures in by_block.items() if len(figures) == num_gpus}
    if quantity == MEMORY_TOTAL and complete:  # the highest figure is used, because it must fit
        return estimate(list(complete.values()), Scale.PEAK)
    return estimate(select_independent(complete, gpus)) if complete else None


def _read_figure(quantity: str, name: str, group: GpuGroup, row: Row) -> float | None:
    placed = zip(row.jobs, group.instance_of, strict=True)
    jobs = [(job, place) for job, place in placed if group.gpu.instances[place].service == name]
    if quantity == THROUGHPUT:
        return _combine(quantity, [job.metrics.get(work_units.rate_of(job.unit)) for job, _ in jobs])
    if quantity in (P99, MEAN):
        return _combine(quantity, [job.metrics.get(quantity) for job, _ in jobs])
    if quantity == MEMORY_TOTAL and group.gpu.mode == "mig":  # count each instance once
        by_instance = {place: job.metrics.get(INSTANCE_MEMORY) for job, place in jobs}
        return _combine(quantity, list(by_instance.values()))
    if len(jobs) < len(row.jobs):  # only the total of the GPU is known
        return None
    return row.metrics.get(work_units.energy_of(row.jobs[0].unit) if quantity == ENERGY else MEMORY_PEAK)


def _find_promises(plan: Plan, measured: Sequence[_Measured], *, is_kept: bool | None) -> Iterable[str]:
    """Describe the requirements that were not met; with `is_kept=None`, the requirements that were not checked."""
    for group, rows in measured:
        ok = [row for row in rows if row.is_valid]
        place = f"GPU {', '.join(map(str, group.gpus))}"
        for service in plan.services:
            if not _has_service(group, service.name):
                continue
            for words, promise in (("sustain its rate", _is_sustained), ("meet its objective", _is_met)):
                if rows_found := [row for row in ok if _is_kept(promise, service, group, row) is is_kept]:
                    verb = "did not" if is_kept is False else "cannot be shown to"
                    yield f"{service.name} {verb} {words} on {place} in {len(rows_found)} of {len(ok)} blocks"


def _is_kept(promise: _Promise, service: Service, group: GpuGroup, row: Row) -> bool | None:
    verdicts = [promise(job, instance, service) for job, instance in _processes(service.name, group, row)]
    return False if False in verdicts else None if None in verdicts else True


def _processes(name: str, group: GpuGroup, row: Row) -> Iterable[tuple[JobRow, Instance]]:
    placed = zip(row.jobs, group.instance_of, strict=True)
    return ((job, i) for job, place in placed if (i := group.gpu.instances[place]).service == name)


def _is_sustained(job: JobRow, _instance: Instance, _service: Service) -> bool | None:
    ratio = job.metrics.get(service_figures.SUSTAINED)
    return None if ratio is None else ratio >= 1


def _is_met(job: JobRow, instance: Instance, service: Service) -> bool | None:
    if service.objective_ms is None:
        return True
    latency_ms = job.metrics.get(MEAN)
    if instance.latency_p99_ms is not None:
        latency_ms = job.metrics.get(P99, latency_ms)
    return None if latency_ms is None else latency_ms <= service.objective_ms


def _find_held_by_mean(plan: Plan, measured: Sequence[_Measured]) -> Iterable[str]:
    valid = [(group, row) for group, rows in measured for row in rows if row.is_valid]
    for service in plan.services:
        processes = chain.from_iterable(_processes(service.name, *run) for run in valid)
        if any(i.latency_p99_ms is not None and P99 not in job.metrics and MEAN in job.metrics for job, i in processes):
            yield service.name


def build_table(check: Check, source: str) -> Table:
    """Return the comparison as a table of the report."""
    rows = []
    for compared in check.compared:
        planned = None
        if compared.predicted is not None:
            planned = format_estimate(Estimate(median=compared.predicted, low=compared.low, high=compared.high, n=1))
        measured = None if compared.measured is None else format_estimate(compared.measured)
        error = None if compared.error_ratio is None else f"{compared.error_ratio:+.1%}"
        within = {None: None, True: "yes", False: "no"}[compared.is_within]
        rows.append((compared.service, QUANTITIES[compared.quantity][0], planned, measured, error, within))
    sentences = [*check.broken, *check.unchecked, *check.missing, *describe_held_by_mean(check)]
    note = (
        f"Planned: the figures of {source}; the throughput of a service with a rate is the rate. Within: whether both "
        "intervals overlap; a figure without an interval is a point. "
        + " ".join(f"{sentence[0].upper()}{sentence[1:]}." for sentence in sentences)
    )
    columns = ("service", "quantity", "planned", "measured", "error", "within")
    return Table("planned", "Planned and measured", columns, tuple(rows), note.strip())


def describe_held_by_mean(check: Check) -> list[str]:
    """Name the services whose mean latency was compared instead of the p99 latency."""
    names = ", ".join(check.held_by_mean)
    return [f"too few requests for a p99 of {names}: the mean latency was compared with the objective"] if names else []
