"""Rows gathered into cells: one case at one degree in one sharing mode, over all blocks."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pipeline.base.domain import service_figures, work_units
from pipeline.base.domain.marks import merge_notes
from pipeline.base.domain.normalisation import MEAN_SLOWDOWN, P99_SLOWDOWN, SPEEDUP, select_independent
from pipeline.base.domain.records import Result
from pipeline.base.domain.sharing_modes import NAIVE, SERIAL, SharingMode
from pipeline.base.domain.window import STRESSOR, WindowKind
from pipeline.base.system.words import group_by, natural_key
from pipeline.report.evaluate import quantities
from pipeline.report.evaluate.metrics import (
    BEST_SOLO,
    ENERGY_VS_ALONE,
    ENERGY_VS_BEST_SOLO,
    EPOCH_TIME_VS_SOLO,
    MEAN_LATENCY,
    METRICS,
    P99_LATENCY,
    TIMES,
    TOTAL_TIME,
    Metric,
    find_incomplete_percentiles,
    find_sampled_metrics,
    find_work_metrics,
    is_latency,
    make_work_metrics,
)
from pipeline.report.evaluate.statistics import (
    DRIFT_BLOCKS,
    Estimate,
    Scale,
    estimate,
    follows_host,
    format_interval,
    format_times,
    is_baseline_drifting,
)
from pipeline.report.read import labels
from pipeline.report.read.study_records import Row, Study

_SAME_SPEED = 1.1
"""Two runs of the same job differ if the whole interval of their ratio is above this factor or below its inverse."""
_BEYOND_NOISE = 1.5
"""With too few blocks for an interval, a speed-up is doubtful if above this factor times the number of jobs.

The factor is that large because, on a host with other users, the log ratio of two eager runs scatters by 0.14.
"""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Case:
    """The jobs of a group, whatever its sharing mode: copies of one workload, or a mix.

    Attributes:
        label: `resnet26_cifar10 bs128`, or `M+2S`; followed by the setting in brackets if a study has several.
        workloads: sorted labels of the jobs of a mix; for copies, one label.
        setting: the window, seed or device that distinguishes the case from other cases of these jobs.
        rank: place among the mixes, from little to much work; empty for copies.
        params: MLflow params of the job of each label in `workloads`.
    """

    is_mix: bool
    label: str
    workloads: tuple[str, ...]
    setting: str = ""
    rank: tuple[int, ...] = ()
    params: tuple[Mapping[str, str], ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """All blocks of a case at a degree in a sharing mode.

    Attributes:
        mode: `sharing` and `detail` as one label.
        profiles: profiles of the MIG instances, the largest first.
        is_derived: whether the cell has serial copies that did not run; their figures come from the solo run.
        values: figures by quantity and block, only of valid rows that ended `ok`.
        wrong_values: figures of rows with wrong results, which are shown but not ranked.
        gpus: UUID of the GPU, by block.
        boots: boots of the hosts of all blocks.
        co_runners: the co-runners of the jobs, in words.
        multiprocessors: multiprocessors of the device, or of the GPU instance of the first job.
        unit: the work unit that all jobs have in common; empty if the jobs have different units.
        num_given: number of jobs whose rate the user chose.
        settings: settings of the measurement, without co-runners.
        counted, sampled: metrics of work units and of listeners that are not in `METRICS`.
        best_solo: the step modes, in words, of the fastest solo runs of the jobs; empty if several were not measured.
        reason: reason of the first block that did not end `ok`.
        invalid: the different marks of the rows.
        row_notes: the notes of the rows, once for each reason.
    """

    case: Case
    degree: int
    mode: str
    sharing: SharingMode
    window: WindowKind
    device: str
    unit: str = ""
    num_given: int = 0
    settings: tuple[tuple[str, str], ...] = ()
    co_runners: str = ""
    multiprocessors: int | None = None
    detail: str = ""
    profiles: tuple[str, ...] = ()
    is_simulated: bool = False
    is_derived: bool = False
    results: Counter[Result] = field(default_factory=Counter)
    num_invalid: int = 0
    values: dict[str, dict[int, float]] = field(default_factory=dict)
    wrong_values: dict[str, dict[int, float]] = field(default_factory=dict)
    gpus: dict[int, str] = field(default_factory=dict)
    boots: frozenset[str] = frozenset()
    estimates: dict[str, Estimate] = field(default_factory=dict)
    counted: dict[str, Metric] = field(default_factory=dict)
    sampled: dict[str, Metric] = field(default_factory=dict)
    best_solo: str = ""
    reason: str = ""
    invalid: tuple[str, ...] = ()
    row_notes: tuple[str, ...] = ()

    @property
    def is_ranked(self) -> bool:
        """True if no block ran out of memory, was skipped or computed wrong results."""
        return set(self.results) <= {Result.OK, Result.FAILED, Result.TIMEOUT, Result.INTERRUPTED} and bool(self.values)

    @property
    def has_stressor(self) -> bool:
        """True if a job or a co-runner of the cell is a stressor."""
        is_beside = re.search(rf"\b{STRESSOR}\b", self.co_runners) is not None
        return is_beside or any(params.get("workload") == STRESSOR for params in self.case.params)

    @property
    def num_saturated(self) -> int:
        """The number of blocks in which a job did not sustain its given rate and therefore has no latency."""
        sustained = self.values.get(service_figures.SUSTAINED_WORST, {}) if self.num_given else {}
        return sum(ratio < 1 for ratio in sustained.values())

    @property
    def is_compared(self) -> bool:
        """True if the cell is ranked, and the jobs sustained their rate in every block."""
        return self.is_ranked and not self.num_saturated

    @property
    def figures(self) -> Mapping[str, Estimate]:
        """The estimates of a ranked cell, without latencies if the jobs did not sustain their rate in a block."""
        if not self.is_ranked:
            return {}
        return {name: figure for name, figure in self.estimates.items() if self.is_compared or not is_latency(name)}

    @property
    def exceeds_ideal(self) -> bool:
        """True if the interval of the speed-up lies above the number of jobs, or without one the speed-up far above."""
        gain = self.estimates.get(SPEEDUP)
        if gain is None or self.is_derived:
            return False
        return (gain.median if gain.low is None else gain.low) > self.degree * self._choose_tolerance(gain)

    def _choose_tolerance(self, gain: Estimate) -> float:
        if gain.low is None:
            return _BEYOND_NOISE
        return _SAME_SPEED if self.degree == 1 else 1.0

    @property
    def notes_on_gain(self) -> tuple[str, ...]:
        """Notes on a doubtful speed-up: the baseline may be slow or drift, or the machine may have changed."""
        gain = self.estimates.get(SPEEDUP)
        if gain is None or self.is_derived:
            return ()
        notes, interval = [], format_interval(gain, ".2f")
        is_slower = (gain.median if gain.high is None else gain.high) < 1 / self._choose_tolerance(gain)
        if self.degree == 1 and self.sharing == NAIVE and (is_slower or self.exceeds_ideal):
            notes.append(
                f"one naive job repeats the serial run, but ran {gain.median:.2f} times{interval} as fast: "
                "the machine changed between the two runs"
            )
        elif self.exceeds_ideal:
            notes.append(
                f"speed-up of {gain.median:.2f}{interval} exceeds the number of jobs: "
                "the baseline was slow, or the metric does not count work"
            )
        if self.has_drifting_baseline(SPEEDUP) and not self.uses_cuda_graphs:
            notes.append(self._describe_drift())
        return tuple(notes)

    @property
    def uses_cuda_graphs(self) -> bool:
        """Check that no job, and so no baseline, follows the host; a wider interval accounts for any other drift."""
        return all(params.get(labels.STEP_MODE) == "cuda_graph" for params in self.case.params)

    def _describe_drift(self) -> str:
        note = f"the baseline drifts with its host, so {DRIFT_BLOCKS} blocks count as one; "
        gain = self.estimates.get(BEST_SOLO)
        if gain is None or self.has_drifting_baseline(BEST_SOLO):
            return note + "a CUDA graph as baseline would not drift"
        return note + f"speed-up over the best step mode alone: {format_times(gain)}"

    @property
    def is_wholly_invalid(self) -> bool:
        """True if the finding is `ok` but no block is valid."""
        return self.finding is Result.OK and bool(self.invalid) and not self.values

    @property
    def marks(self) -> str:
        """The first reason why blocks are invalid, and the notes; empty without both."""
        return "; ".join(filter(None, [self.marks_of_rows, *self.notes_on_gain]))

    @property
    def marks_of_rows(self) -> str:
        """The first reason why blocks are invalid, and the notes of the rows."""
        counts = f"{self.num_invalid} of {self.results.total()} blocks invalid"
        return "; ".join([*(f"{counts}: {reason}" for reason in self.invalid[:1]), *self.row_notes])

    @property
    def energy(self) -> str:
        """The name of the metric for energy per work unit; empty if the jobs have different units."""
        return work_units.energy_of(self.unit) if self.unit else ""

    @property
    def speed(self) -> tuple[str, ...]:
        """The metrics that compare the cell with others of its case, the preferred metric first.

        Jobs at a given rate are compared by latency. Mixes are not compared by throughput, because work of different
        jobs cannot be added.
        """
        if self.num_given:
            return () if self.case.is_mix else (P99_LATENCY, MEAN_LATENCY)
        return (SPEEDUP, TOTAL_TIME) if self.case.is_mix else (SPEEDUP, self.throughput, TOTAL_TIME)

    def estimate(
        self, by_block: Mapping[int, float], scale: Scale = Scale.POSITIVE, *, is_drifting: bool = False
    ) -> Estimate:
        """Estimate a quantity from its figures by block, such as ratios of this cell to another one."""
        values = list(by_block.values()) if scale is Scale.PEAK else select_independent(by_block, self.gpus)
        return estimate(values, scale, is_drifting=is_drifting)

    def estimate_quantity(self, name: str, scale: Scale = Scale.POSITIVE) -> Estimate | None:
        """Estimate a quantity as every table, sentence and rule shows it; `None` if no block has the quantity."""
        values = self.values.get(name, {})
        return self.estimate(values, scale, is_drifting=self.has_drifting_baseline(name)) if values else None

    def estimate_inverse(self, name: str) -> Estimate | None:
        """Return the estimate of the inverse of a quantity; `None` if no block has the quantity."""
        inverse = invert(self.values.get(name, {}))
        return self.estimate(inverse, is_drifting=self.has_drifting_baseline(name)) if inverse else None

    @property
    def finding(self) -> Result:
        """The result to show: wrong results, else out of memory, else `ok`, else another failure."""
        order = (Result.WRONG_RESULTS, Result.OOM, Result.OK, Result.SKIPPED, Result.TIMEOUT, Result.FAILED)
        return next((result for result in order if self.results[result]), Result.INTERRUPTED)

    @property
    def throughput(self) -> str:
        """The name of the metric for the throughput of all jobs; empty if the jobs have different units."""
        return work_units.total_of(self.unit) if self.unit else ""

    def has_drifting_baseline(self, name: str) -> bool:
        """Return whether a quantity is relative to a baseline whose speed drifts (`is_drifting`)."""
        # A group that waits for the host drifts against a CUDA graph that does not.
        is_over_best = name in (BEST_SOLO, ENERGY_VS_BEST_SOLO)
        return self.is_drifting(self.compare_speeds(name), is_symmetric=is_over_best)

    def compare_speeds(self, name: str) -> Mapping[int, float]:
        """Return the speed over that of the baseline of a quantity, by block; empty for an absolute quantity."""
        if name in (BEST_SOLO, ENERGY_VS_BEST_SOLO):
            return self.values.get(BEST_SOLO, {})
        if name in (MEAN_SLOWDOWN, P99_SLOWDOWN) or (name == ENERGY_VS_ALONE and self.num_given):
            return invert(self.values.get(MEAN_SLOWDOWN, {}))  # a percentile scatters more than the host
        if name in (SPEEDUP, ENERGY_VS_ALONE):
            return self.values.get(SPEEDUP, {})
        is_slowdown = name.startswith("slowdown_") or name == EPOCH_TIME_VS_SOLO
        return invert(self.values.get(name, {})) if is_slowdown else {}

    @property
    def speeds(self) -> Mapping[int, float]:
        """The speed by block, which follows the host if the jobs wait for it; of services, the inverse latency."""
        if self.num_given:
            return {} if self.case.is_mix else invert(self.values.get(MEAN_LATENCY, {}))
        return self.values.get(self.throughput, {})

    def is_drifting(self, ratios: Mapping[int, float], *, is_symmetric: bool = False) -> bool:
        """Return whether the baseline of ratios of speed drifts with the host, and the cell does not; or either does.

        GPUs are independent, so blocks of several GPUs never drift.
        """
        speeds = self.speeds
        blocks = ratios.keys() & speeds.keys()
        if not blocks or len(set(self.gpus.values())) > 1:
            return False
        baselines = [speeds[block] / ratios[block] for block in blocks]
        return is_baseline_drifting([speeds[block] for block in blocks], baselines, is_symmetric=is_symmetric)

    @property
    def has_several_hosts(self) -> bool:
        """True if the blocks ran on several hosts, which differ in their GPUs and boots."""
        return min(len(self.boots), len(set(self.gpus.values()))) > 1

    def shares_host(self, other: Cell) -> bool:
        """Return whether blocks of both cells ran on one host."""
        return bool(self.boots & other.boots or set(self.gpus.values()) & set(other.gpus.values()))

    @property
    def depends_on_host(self) -> bool:
        """True if speeds relative to serial hold for this host, because the baseline waits for it."""
        speeds, by_gpu = self.speeds, defaultdict[str, list[float]](list)
        for block, ratio in self.compare_speeds(MEAN_SLOWDOWN if self.num_given else SPEEDUP).items():
            if block in speeds:
                by_gpu[self.gpus.get(block, "")].append(speeds[block] / ratio)
        return follows_host(by_gpu.values())


def invert(by_block: Mapping[int, float]) -> dict[int, float]:
    """Return the inverse of each positive figure."""
    return {block: 1 / value for block, value in by_block.items() if value > 0}


def make_cells(study: Study) -> list[Cell]:
    """Return the cells of a study, ordered by case, degree and sharing mode (serial, naive, MPS, MIG)."""
    baselines, cases = quantities.collect_baselines(study.rows), label_cases(study)
    members: dict[tuple[Case, int, str, SharingMode], list[tuple[Row, dict[str, float]]]] = defaultdict(list)
    best_solos: dict[str, list[str]] = {}
    for row in study.rows:
        block = baselines.get(quantities.baseline_key(row), quantities.BlockBaselines())
        best_solos[row.run_id] = [best.step_mode for best in quantities.find_best_solos(row, block).values()]
        members[cases[row.run_id], row.degree, row.mode, row.sharing].append((row, quantities.quantities(row, block)))
    solos = {case: rows for (case, degree, _, sharing), rows in members.items() if (degree, sharing) == (1, SERIAL)}
    collocated = {(case, degree) for case, degree, _, _ in members if not case.is_mix and degree > 1}
    cells = [_cell(*key, rows, best_solos) for key, rows in members.items()]
    for case, degree in collocated:
        if case in solos and (case, degree, SERIAL.label, SERIAL) not in members:
            serial = [
                (row, quantities.derive_serial_copies(alone, row, degree) if row.result is Result.OK else {})
                for row, alone in solos[case]
            ]
            cells.append(_cell(case, degree, SERIAL.label, SERIAL, serial, best_solos, is_derived=True))
    return sorted(cells, key=_place)


def _place(cell: Cell) -> tuple[object, ...]:
    case = (cell.case.is_mix, cell.case.rank, natural_key(cell.case.label), cell.case)
    return (*case, cell.degree, cell.sharing.order, natural_key(cell.mode))


def _make_case(row: Row) -> Case:
    jobs = sorted(row.jobs, key=lambda job: job.label) if row.is_mix else row.jobs[:1]
    return Case(
        label=_label(row, labels.sort_jobs(row.called)),
        is_mix=row.is_mix,
        workloads=tuple(job.label for job in jobs),
        setting=row.setting,
        rank=labels.rank_mix(row.called) if row.is_mix else (),
        params=tuple(job.params for job in jobs),
    )


def _label(row: Row, jobs: Sequence[labels.JobLabel]) -> str:
    if row.is_pack:
        names = dict.fromkeys(job.workload.partition(" ")[0] for job in jobs)
        label = f"{len(jobs)} trials of {' and '.join(names)}"
    else:
        label = labels.label_jobs(jobs)
    return f"{label} [{row.setting}]" if row.setting else label


def label_cases(study: Study) -> dict[str, Case]:
    """Map the run of each row to its case.

    A label has the jobs in the order of the case's first group by name. The labels of different mixes are made longer
    if they would be equal.
    """
    cases = {row.run_id: _make_case(row) for row in study.rows}
    first = {cases[row.run_id]: row for row in sorted(study.rows, key=lambda row: natural_key(row.name), reverse=True)}
    as_given = {case: dataclasses.replace(case, label=_label(row, row.called)) for case, row in first.items()}
    cases = {run_id: as_given[case] for run_id, case in cases.items()}
    sharing: dict[str, set[Case]] = defaultdict(set)
    for case in cases.values():
        sharing[case.label].add(case)
    return {
        run_id: case
        if len(sharing[case.label]) == 1
        else dataclasses.replace(case, label=f"{case.label}: {', '.join(dict.fromkeys(case.workloads))}")
        for run_id, case in cases.items()
    }


def list_metrics(cells: Sequence[Cell]) -> dict[str, Metric]:
    """Return every quantity that cells can have, in the order of tables.

    A unit is left out if all its figures equal those of another unit (each request is one image).
    """
    metrics = _collect_metrics(cells)
    by_values: dict[tuple[tuple[float, ...], ...], str] = {}
    for unit in work_units.find_units(metrics):
        values = tuple(tuple(cell.values.get(work_units.total_of(unit), {}).values()) for cell in cells)
        first = by_values.setdefault(values, unit)
        if first != unit and any(values):
            for name in make_work_metrics(unit):
                metrics.pop(name, None)
    return metrics


def _collect_metrics(cells: Sequence[Cell]) -> dict[str, Metric]:
    metrics: dict[str, Metric] = {}
    for cell in cells:
        metrics |= cell.counted
    metrics |= METRICS
    for cell in cells:
        metrics |= cell.sampled
    return metrics


def list_modes(cells: Sequence[Cell]) -> list[SharingMode]:
    """Return the sharing modes of cells, in the order of legends."""
    return sorted({cell.sharing for cell in cells}, key=lambda mode: mode.order)


def list_cases(cells: Sequence[Cell]) -> list[Case]:
    """Return the cases of cells, in their order."""
    return list(dict.fromkeys(cell.case for cell in cells))


def group_places(cells: Sequence[Cell]) -> dict[tuple[Case, int], list[Cell]]:
    """Return the cells of each case and degree."""
    return group_by(cells, lambda cell: (cell.case, cell.degree))


def ratios(cell: Cell, other: Cell, name: str) -> dict[int, float]:
    """Divide a quantity of one cell by the same quantity of another, for each block that has both."""
    first, second = cell.values.get(name, {}), other.values.get(name, {})
    common = sorted(first.keys() & second.keys())
    return {block: first[block] / second[block] for block in common if first[block] > 0 and second[block] > 0}


def speed_ratios(cell: Cell, other: Cell, names: Sequence[str]) -> tuple[dict[int, float], str]:
    """Return the ratios of speed by block, and the name of the quantity that both cells have in most blocks."""
    candidates = [(ratios(other, cell, name) if name in TIMES else ratios(cell, other, name), name) for name in names]
    return max(candidates, key=lambda candidate: len(candidate[0]), default=({}, ""))


def _cell(
    case: Case,
    degree: int,
    mode: str,
    sharing: SharingMode,
    rows: Sequence[tuple[Row, dict[str, float]]],
    best_solos: Mapping[str, Sequence[str]],
    *,
    is_derived: bool = False,
) -> Cell:
    first, _ = rows[0]
    cell = Cell(
        case=case,
        degree=degree,
        mode=mode,
        sharing=sharing,
        detail=first.detail,
        profiles=first.profiles,
        window=first.window,
        device=first.device,
        unit=first.unit,
        num_given=sum(job.is_rate_given for job in first.jobs),
        settings=quantities.settings_without_co_runners(first),
        co_runners=first.co_runners,
        multiprocessors=next((number for row, _ in rows if (number := row.multiprocessors) is not None), None),
        boots=frozenset(row.boot_id for row, _ in rows),
        is_simulated=any(row.is_simulated for row, _ in rows),
        is_derived=is_derived,
        best_solo=labels.format_step_modes(mode for row, _ in rows for mode in best_solos[row.run_id]),
        reason=next((row.reason for row, _ in rows if row.result is not Result.OK), ""),
        invalid=tuple(dict.fromkeys(row.marks.invalid for row, _ in rows if row.marks.invalid)),
        num_invalid=sum(bool(row.marks.invalid) for row, _ in rows),
        row_notes=tuple(merge_notes((row.marks.note for row, _ in rows), "block")),
    )
    for row, figures in rows:
        cell.results[row.result] += 1
        cell.gpus[row.block] = row.gpu_uuid
        if row.result in (Result.OK, Result.WRONG_RESULTS) and not row.marks.invalid:
            into = cell.values if row.result is Result.OK else cell.wrong_values
            for name, value in figures.items():
                into.setdefault(name, {})[row.block] = value
        cell.counted.update(find_work_metrics(row))
        cell.sampled.update(find_sampled_metrics(row))
    for name in find_incomplete_percentiles(cell.values):
        del cell.values[name]
    for name, metric in _collect_metrics([cell]).items():
        if (figure := cell.estimate_quantity(name, metric.scale)) is not None:
            cell.estimates[name] = figure
    return cell
