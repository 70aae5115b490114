"""The tables of a report."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from pipeline.base.domain import mig_table, work_units
from pipeline.base.domain.normalisation import MEMORY_PEAK, SPEEDUP, select_independent
from pipeline.base.domain.records import DEVICE, Result
from pipeline.base.domain.sharing_modes import PROFILE
from pipeline.base.domain.window import WindowKind
from pipeline.report.evaluate.cells import Case, Cell, label_cases, list_metrics
from pipeline.report.evaluate.contrasts import BASELINES_NOTE, HOST_NOTE, Contrast
from pipeline.report.evaluate.metrics import (
    ACTIVITY,
    BEST_SOLO,
    ENERGY_VS_ALONE,
    ENERGY_VS_BEST_SOLO,
    HOST_CPU,
    HOST_MEMORY,
    HOST_TABLE,
    INSTANCE_MEMORY,
    METRICS,
    TABLES,
    TOTAL_TIME,
    choose_prefix,
    find_table,
    list_table,
    scale_estimate,
)
from pipeline.report.evaluate.paper import FindingCheck
from pipeline.report.evaluate.statistics import MARGIN_IN_WORDS, Estimate, Scale, estimate
from pipeline.report.evaluate.stressors import list_effects
from pipeline.report.evaluate.verdicts import Winner
from pipeline.report.evaluate.wording import describe_host_bound, describe_jobs
from pipeline.report.page.effect_tables import (
    list_profile_tables,
    list_service_tables,
    make_counter_table,
    make_other_gpu_table,
    make_pair_table,
    make_share_table,
    make_stressor_table,
)
from pipeline.report.page.frameworks import framework_table
from pipeline.report.page.table_format import (
    MISSING,
    Column,
    Table,
    Value,
    format_estimate,
    list_columns,
    list_end_columns,
    make_table,
)
from pipeline.report.read.study_records import Block, Row, Study

SIMULATED_NOTE = "Simulated GPU: the jobs ran on the CPU, so the figures are no measurements of a real GPU."
_INTERVALS = (
    "Median over the blocks. Low and high (with three blocks or more): 95 % t interval; for peaks (memory, "
    "temperature) and windows, the lowest and highest block. If there are several GPUs, each counts once, with the "
    "median of its blocks."
)
COMPARISONS = "verdicts"
_COMPARED = "each mode against serial, the best step mode alone, naive and MPS"
_VERDICT_NOTE = (
    "Ratio: speed (or energy for the same work) of the mode over that of the other in the same block; median and 95 % "
    "t interval of the logarithm. Better: faster, or less energy of the whole GPU, including idle power. CUDA graph "
    "alone: one job at a time in the best step mode. A verdict needs five blocks, a ratio beyond "
    f"{MARGIN_IN_WORDS} and p below 0.05 after correction for all claims of this table (Holm, with Shaffer's "
    "improvement). p: p value of equality (two one-sided tests) if the "
    "verdict is equal, else of a difference. If there are several GPUs, each counts once, and a verdict needs three."
)
_DOUBTFUL_NOTE = "*: doubtful; the page of the report has the reason."
_CELL_NOTE = f"{_INTERVALS} Figures of serial copies are computed from the solo run. Wrong results have no figures."
_Place = tuple[Case, int, str, str]
"""Case, degree, mode and profile."""
_PROGRAM_COLUMNS = {
    "model": "model",
    "dataset": "data set",
    "image_px": "pixels",
    "sequence_tokens": "tokens",
    "num_classes": "classes",
    "batch_size": "batch size",
    "job.parameters": "parameters",
    "job.samples_per_epoch": "samples per epoch",
}

_CELL_COLUMNS: tuple[Column[Cell], ...] = (
    Column("case", lambda cell: cell.case.label),
    Column("jobs", lambda cell: cell.degree),
    Column("mode", lambda cell: cell.mode),
)


def make_tables(
    study: Study,
    cells: Sequence[Cell],
    verdicts: Sequence[Contrast],
    winners: Sequence[Winner],
    checks: Sequence[FindingCheck],
) -> list[Table]:
    """Return all tables with rows, in the order of a report."""
    tables = [
        _make_winner_table(winners),
        _make_verdict_table(verdicts),
        *list_profile_tables(cells),
        make_one_process_table(cells),
        *(make_group_table(cells, name, title, list_table(name)) for name, title in TABLES.items()),
        framework_table(study),
        make_instance_table(study),
        *list_service_tables(cells),
        make_share_table(cells),
        make_stressor_table(list_effects(study, cells)),
        make_pair_table(study, cells),
        make_counter_table(study),
        make_other_gpu_table(study, cells, _INTERVALS),
        _make_host_table(cells),
        _make_result_table(cells),
        _make_ending_table(cells),
        *list_publication_tables(checks),
        make_drift_table(study),
        make_workload_table(study),
        _make_mix_table(study),
        _make_block_table(study),
    ]
    stamp = f"{SIMULATED_NOTE} " if study.is_simulated else ""
    return [dataclasses.replace(table, note=f"{stamp}{table.note}".strip()) for table in tables if table.rows]


def _make_winner_table(winners: Sequence[Winner]) -> Table:
    columns: list[Column[Winner]] = [
        *list_columns({"case": "case.label", "jobs": "degree"}),
        Column("fastest", lambda winner: winner.mode or "no single one: " + ", ".join(winner.tied)),
        *list_end_columns("speed-up over serial", lambda winner: winner.speedup),
        *list_end_columns(
            METRICS[BEST_SOLO].title, lambda winner: winner.over_best_solo, "low against it", "high against it"
        ),
        Column("best step mode alone", lambda winner: winner.best_solo or None),
        Column("in words", lambda winner: winner.sentence),
    ]
    title = "The fastest mode of each case"
    return make_table("winners", title, columns, winners, _INTERVALS, is_for_machines=True)


def _make_verdict_table(verdicts: Sequence[Contrast]) -> Table:
    """Make a table of every comparison of two modes."""
    columns: list[Column[Contrast]] = [
        *list_columns({"case": "case.label", "jobs": "degree", "mode": "mode", "against": "against"}),
        *list_columns({"quantity": "quantity.value"}),
        *list_end_columns("ratio", lambda pair: pair.ratio),
        *list_columns({"blocks": "num_blocks", "p": "p", "p adjusted": "p_adjusted"}),
        *list_columns({"verdict": "decision.value", "blocks needed": "blocks_needed", "in words": "sentence"}),
    ]
    title = f"Verdicts: {_COMPARED}"
    return make_table(COMPARISONS, title, columns, verdicts, _VERDICT_NOTE, is_for_machines=True)


def make_comparison_table(verdicts: Sequence[Contrast]) -> Table:
    """Make a table of every comparison in brief, for the page."""

    def format_ratio(pair: Contrast) -> str:
        ratio = MISSING if pair.ratio is None else format_estimate(pair.ratio)
        return f"{ratio}*" if pair.cell.marks else ratio

    columns: list[Column[Contrast]] = [
        *list_columns({"case": "case.label", "jobs": "degree", "mode": "mode", "against": "baseline"}),
        *list_columns({"quantity": "quantity.value"}),
        Column("ratio", format_ratio),
        *list_columns({"blocks": "num_blocks", "verdict": "decision.value", "p adjusted": "p_adjusted"}),
        *list_columns({"blocks needed": "blocks_needed"}),
    ]
    return make_table(COMPARISONS, f"{_COMPARED[:1].upper()}{_COMPARED[1:]}", columns, verdicts, _VERDICT_NOTE)


def make_group_table(cells: Sequence[Cell], name: str, title: str, metrics: Sequence[str]) -> Table:
    """Make a table of some quantities of every cell, each as `median (low to high)`."""
    by_name = list_metrics(cells)
    work_names = [key for cell in cells for key in cell.counted if key in by_name and find_table(by_name[key]) == name]
    listener_names = [key for cell in cells for key, metric in cell.sampled.items() if find_table(metric) == name]
    in_order = dict.fromkeys([*work_names, *metrics, *listener_names])
    names = [name for name in in_order if any(name in cell.estimates for cell in cells)]

    def make_column(name: str) -> Column[Cell]:
        medians = [cell.estimates[name].median for cell in cells if name in cell.estimates]
        scale, prefix = choose_prefix(medians, by_name[name].unit)
        return Column(
            by_name[name].heading(prefix),
            lambda cell: cell.estimates.get(name),
            lambda figure: format_estimate(scale_estimate(figure, scale)),
        )

    columns = [
        *_CELL_COLUMNS,
        Column("result", lambda cell: f"{_count_results(cell)}*" if cell.marks else _count_results(cell)),
        *map(make_column, names),
    ]
    items = [
        cell
        for cell in cells
        # Serial copies of a steady window have the figures of one job. A training, for example, has no latencies.
        if not (cell.is_derived and (cell.num_given or cell.window.is_steady))
        and (any(name in cell.estimates for name in names) or not cell.values)
    ]
    notes = [_CELL_NOTE, *([BASELINES_NOTE] if {BEST_SOLO, ENERGY_VS_BEST_SOLO} & set(names) else [])]
    notes += [HOST_NOTE] if SPEEDUP in names and any(cell.depends_on_host for cell in cells) else []
    notes += [_DOUBTFUL_NOTE] if any(cell.marks for cell in cells) else []
    return make_table(name, title, columns, items if names else (), " ".join(notes))


def make_one_process_table(cells: Sequence[Cell]) -> Table:
    """Make a table of speed beside memory, CPU and energy, if jobs shared a process, which saves the latter."""
    by_mode = {cell.mode: cell.sharing.gives_up for cell in cells if cell.sharing.gives_up}
    metrics = (SPEEDUP, BEST_SOLO, MEMORY_PEAK, HOST_MEMORY, HOST_CPU, ENERGY_VS_ALONE)
    title = "Sharing inside one process, and between processes"
    table = make_group_table(cells if by_mode else (), "one_process", title, metrics)
    given_up = " ".join(f"{mode} gives up {feature}." for mode, feature in by_mode.items())
    return dataclasses.replace(table, note=f"{given_up} {table.note}".strip())


def _make_host_table(cells: Sequence[Cell]) -> Table:
    table = make_group_table(cells, HOST_TABLE, "The host", list_table(HOST_TABLE))
    return dataclasses.replace(table, note=f"{describe_host_bound(cells)} {table.note}".strip())


def _make_result_table(cells: Sequence[Cell]) -> Table:
    """Make a table of every cell with all quantities in full."""
    metrics = list_metrics(cells)
    titles = {
        name: metric.heading() for name, metric in metrics.items() if any(name in cell.estimates for cell in cells)
    }
    columns = [
        *_CELL_COLUMNS,
        Column("result", _count_results),
        Column("blocks", lambda cell: sum(cell.results.values())),
        *itertools.chain.from_iterable(
            list_end_columns(title, _read_quantity(name), f"{title}: low", f"{title}: high")
            for name, title in titles.items()
        ),
    ]
    title = "Results by case, degree and mode"
    return make_table("results", title, columns, cells, _CELL_NOTE, is_for_machines=True)


def _read_quantity(name: str) -> Callable[[Cell], Estimate | None]:
    return lambda cell: cell.estimates.get(name)


def _make_ending_table(cells: Sequence[Cell]) -> Table:
    """Make a table of the cells that did not end `ok` in every block, with reasons."""
    columns = [
        *_CELL_COLUMNS,
        Column("result", _count_results),
        Column("reason", lambda cell: cell.reason),
        Column(
            "speed-up of the wrong results (not ranked)",
            lambda cell: cell.wrong_values.get(SPEEDUP),
            lambda by_block: statistics.median(by_block.values()),
        ),
    ]
    items = [cell for cell in cells if set(cell.results) != {Result.OK} and not cell.is_derived]
    return make_table("endings", "Groups that did not end ok", columns, items)


def _count_results(cell: Cell) -> str:
    """Return `ok`, or the number of each outcome: `ok 4, oom 1`."""
    counts = [(result.value, cell.results[result]) for result in Result if cell.results[result]]
    return counts[0][0] if len(counts) == 1 else ", ".join(f"{result} {number}" for result, number in counts)


def make_instance_table(study: Study) -> Table:
    """Make a table of the GPU instances of each profile."""
    cases = label_cases(study)
    read: dict[_Place, dict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    gpus: dict[_Place, dict[int, str]] = defaultdict(dict)
    for row in (row for row in study.rows if row.is_valid):
        by_profile: dict[str, dict[str, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
        for job in row.jobs:  # jobs that share an instance have the same figures
            for name in (*ACTIVITY, INSTANCE_MEMORY):
                if "gi_id" in job.place and PROFILE in job.place and name in job.metrics:
                    profile, _ = mig_table.split_name(job.place[PROFILE])
                    by_profile[profile][name][job.place["gi_id"]] = job.metrics[name]
        for profile, figures in by_profile.items():
            place = (cases[row.run_id], row.degree, row.mode, profile)
            gpus[place][row.block] = row.gpu_uuid
            for name, values in figures.items():
                combine = max if name == INSTANCE_MEMORY else statistics.fmean
                read[place][name][row.block] = combine(values.values())
    names = [name for name in (*ACTIVITY, INSTANCE_MEMORY) if any(name in figures for figures in read.values())]

    def make_column(name: str) -> Column[_Place]:
        title = "peak memory of an instance (MiB)" if name == INSTANCE_MEMORY else METRICS[name].title
        return Column(title, lambda place: _estimate_instances(name, read[place].get(name), gpus[place]))

    columns = [
        Column("case", lambda place: place[0].label),
        Column("jobs", lambda place: place[1]),
        Column("mode", lambda place: place[2]),
        Column("profile", lambda place: place[3]),
        *map(make_column, names),
    ]
    note = (
        "Mean over the instances of a profile (for memory: the maximum), then the median over the blocks. Shares are "
        "relative to the instance."
    )
    return make_table("instances", "GPU instances by profile", columns, sorted(read), note)


def _estimate_instances(name: str, by_block: Mapping[int, float] | None, gpus: Mapping[int, str]) -> Estimate | None:
    if by_block is None:
        return None
    if name == INSTANCE_MEMORY:
        return estimate(list(by_block.values()), Scale.PEAK)
    return estimate(select_independent(by_block, gpus), Scale.SHARE)


class _BaselineSeries(NamedTuple):
    """The figures of a baseline, by block."""

    label: str
    unit: str
    by_block: Mapping[int, float]

    @property
    def values(self) -> list[float]:
        return [value for _, value in sorted(self.by_block.items())]


def make_drift_table(study: Study) -> Table:
    """Make a table of the change of the baselines from block to block."""
    cases = label_cases(study)
    by_label: dict[tuple[str, str, str], dict[int, float]] = {}
    has_several = len({block.gpu_uuid for block in study.blocks}) > 1
    for row in study.rows:
        if (baseline := _baseline(row)) is not None:
            unit, value = baseline
            case = cases[row.run_id]
            label = case.label if row.degree == 1 else describe_jobs(case, row.degree)
            gpu = row.gpu_uuid if has_several else ""  # a difference between GPUs does not count as drift
            by_label.setdefault((label, gpu, unit), {})[row.block] = value
    series = [
        _BaselineSeries(f"{name} on {gpu[:12]}" if gpu else name, unit, by_block)
        for (name, gpu, unit), by_block in sorted(by_label.items())
        if len(by_block) > 1
    ]
    columns: list[Column[_BaselineSeries]] = [
        *list_columns({"baseline": "label", "unit": "unit"}),
        Column("blocks", lambda baseline: len(baseline.by_block)),
        Column("first block", lambda baseline: min(baseline.by_block)),
        Column("last block", lambda baseline: max(baseline.by_block)),
        Column("last against first (%)", lambda baseline: 100 * (baseline.values[-1] / baseline.values[0] - 1)),
        Column(
            "standard deviation (%)",
            lambda baseline: 100 * statistics.stdev(baseline.values) / statistics.fmean(baseline.values),
        ),
        Column("lowest", lambda baseline: min(baseline.values)),
        Column("highest", lambda baseline: max(baseline.values)),
    ]
    note = "Drift does not affect speed-ups, because they use the baseline of the same block."
    return make_table("drift", "Drift of the serial baselines between blocks", columns, series, note)


def _baseline(row: Row) -> tuple[str, float] | None:
    if not row.is_sequential or not row.is_valid:
        return None
    is_time = row.window is WindowKind.WORK
    name, unit = (TOTAL_TIME, "s") if is_time else (work_units.total_of(row.unit), work_units.per_second(row.unit))
    return (unit, row.metrics[name]) if row.metrics.get(name) and (row.degree == 1 or unit == "s") else None


def make_workload_table(study: Study) -> Table:
    """Make a table of the workloads that name their model, from the smallest to the largest."""
    params = {job.label: job.params for row in study.rows for job in row.jobs if "model" in job.params}
    param_names = [name for name in _PROGRAM_COLUMNS if any(name in of_job for of_job in params.values())]

    def make_column(name: str) -> Column[str]:
        return Column(_PROGRAM_COLUMNS[name], lambda label: _read_number(params[label].get(name)))

    columns: list[Column[str]] = [Column("workload", str), *map(make_column, param_names)]
    items = sorted(params, key=lambda label: (_count_parameters(params[label]), label))
    note = "Parameters: numbers of the model, as counted by the job. An epoch has whole batches only."
    return make_table("workloads", "Models and data sets", columns, items, note)


def _count_parameters(params: Mapping[str, str]) -> int:
    number = _read_number(params.get("job.parameters"))
    return number if isinstance(number, int) else 0


def _read_number(text: str | None) -> Value:
    return int(text) if text is not None and text.isdecimal() else text


def _make_mix_table(study: Study) -> Table:
    """Make a table of the jobs of each mix."""
    cases = label_cases(study)
    mixes = [row for row in study.rows if row.is_mix]
    parts = {cases[row.run_id].label: {(job.size, job.label) for job in row.jobs} for row in mixes}

    def list_jobs(label: str) -> str:
        jobs = sorted(parts[label], key=str)
        return "; ".join(f"{size}: {workload}" if size else workload for size, workload in jobs)

    columns: list[Column[str]] = [Column("mix", str), Column("jobs", list_jobs)]
    return make_table("mixes", "Workloads of the mixes", columns, sorted(parts))


def _make_block_table(study: Study) -> Table:
    """Make a table of the GPU, the host and the missing groups of each block."""
    facts = {(row.block, dict(row.settings)[DEVICE]): row.facts for row in study.rows}

    def read_fact(block: Block, name: str) -> str | None:
        return facts.get((block.number, block.device), {}).get(name)

    columns: list[Column[Block]] = [
        Column("block", lambda block: block.number),
        Column("host", lambda block: read_fact(block, "host")),
        Column("device", lambda block: block.device),
        Column("driver", lambda block: read_fact(block, "driver_version")),
        Column("GPU", lambda block: block.gpu_uuid),
        Column("boot", lambda block: block.boot_id[:8]),
        *list_columns({"groups": "num_groups", "missing": "num_missing"}),
    ]
    return make_table("blocks", "Blocks", columns, study.blocks)


def list_publication_tables(checks: Sequence[FindingCheck]) -> list[Table]:
    """Return a table for each publication with which the study is compared."""
    columns: list[Column[FindingCheck]] = [
        Column("finding", lambda check: check.finding.text),
        Column("where", lambda check: check.finding.where or None),
        *list_columns({"case": "case_label", "jobs": "degree", "mode": "mode"}),
        *list_columns({"paper": "finding.range_text", "ours": "figure_in_words"}),
        *list_end_columns("", lambda check: check.figure)[1:],
        *list_columns({"agreement": "agreement.value", "by how much": "difference", "mind": "note"}),
    ]
    tables = []
    for publication, members in itertools.groupby(checks, key=lambda check: check.publication):
        items = list(members)
        note = _DOUBTFUL_NOTE if any("*" in check.figure_in_words for check in items) else ""
        tables.append(make_table(publication.table, publication.title, columns, items, note, about=publication.about))
    return tables
