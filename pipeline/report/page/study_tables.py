"""The tables of a report."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections import defaultdict
from collections.abc import Sequence

from pipeline.base.domain import mig_table, work_units
from pipeline.base.domain.normalisation import MEMORY_PEAK, SPEEDUP, select_independent
from pipeline.base.domain.records import DEVICE, Result
from pipeline.base.domain.sharing_modes import PROFILE
from pipeline.base.domain.window import WindowKind
from pipeline.report.evaluate import doubts, other_gpus
from pipeline.report.evaluate.cells import Case, Cell, label_cases, list_metrics
from pipeline.report.evaluate.joules import choose_prefix, scale_estimate
from pipeline.report.evaluate.metrics import (
    ACTIVITY,
    BEST_SOLO,
    ENERGY_VS_ALONE,
    ENERGY_VS_BEST_SOLO,
    GROUPS,
    HOST,
    HOST_CPU,
    HOST_MEMORY,
    INSTANCE_MEMORY,
    METRICS,
    TOTAL_TIME,
    Scale,
    find_table,
)
from pipeline.report.evaluate.pairs import BASELINES_NOTE, HOST_NOTE
from pipeline.report.evaluate.paper import FindingCheck
from pipeline.report.evaluate.statistics import MARGIN_IN_WORDS, estimate
from pipeline.report.evaluate.stressor_effects import list_effects
from pipeline.report.evaluate.verdicts import Verdict, Winner
from pipeline.report.evaluate.wording import jobs_in_words
from pipeline.report.page.frameworks import framework_table
from pipeline.report.page.profile_tables import list_profile_tables
from pipeline.report.page.service_tables import beside_table, fraction_table, objective_table
from pipeline.report.page.share_table import share_table
from pipeline.report.page.stressor_table import make_counter_table, make_pair_table, make_stressor_table
from pipeline.report.page.table_format import MISSING, Table, Values, format_estimate, list_ends
from pipeline.report.page.workload_table import workload_table
from pipeline.report.read.study_records import Row, Study

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
_Place = tuple[Case, int, str, str]  # case, degree, mode and profile


def make_tables(
    study: Study,
    cells: Sequence[Cell],
    verdicts: Sequence[Verdict],
    winners: Sequence[Winner],
    checks: Sequence[FindingCheck],
) -> list[Table]:
    """Return all tables with rows, in the order of a report."""
    tables = [
        winner_table(winners),
        verdict_table(verdicts),
        *list_profile_tables(cells),
        one_process_table(cells),
        *(group_table(cells, *group) for group in GROUPS),
        framework_table(study),
        instance_table(study),
        objective_table(cells),
        fraction_table(cells),
        beside_table(cells),
        share_table(cells),
        make_stressor_table(list_effects(study, cells)),
        make_pair_table(study, cells),
        make_counter_table(study),
        other_gpus_table(study),
        host_table(cells),
        result_table(cells),
        ending_table(cells),
        *publication_tables(checks),
        drift_table(study),
        workload_table(study),
        case_table(study),
        block_table(study),
    ]
    stamp = f"{SIMULATED_NOTE} " if study.is_simulated else ""
    return [dataclasses.replace(table, note=f"{stamp}{table.note}".strip()) for table in tables if table.rows]


def instance_table(study: Study) -> Table:
    """Return a table of the GPU instances of each profile."""
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
                together = max if name == INSTANCE_MEMORY else statistics.fmean
                read[place][name][row.block] = together(values.values())
    names = [name for name in (*ACTIVITY, INSTANCE_MEMORY) if any(name in figures for figures in read.values())]
    rows: list[Values] = []
    for place, by_name in sorted(read.items()):
        texts = [_format_instances(name, by_name[name], gpus[place]) if name in by_name else None for name in names]
        rows.append((place[0].label, *place[1:], *texts))
    titles = ["peak memory of an instance (MiB)" if name == INSTANCE_MEMORY else METRICS[name].title for name in names]
    note = (
        "Mean over the instances of a profile (for memory: the maximum), then the median over the blocks. Shares are "
        "relative to the instance."
    )
    columns = ("case", "jobs", "mode", "profile", *titles)
    return Table("instances", "GPU instances by profile", columns, tuple(rows), note)


def _format_instances(name: str, by_block: dict[int, float], gpus: dict[int, str]) -> str:
    if name == INSTANCE_MEMORY:
        return format_estimate(estimate(list(by_block.values()), Scale.PEAK))
    return format_estimate(estimate(select_independent(by_block, gpus), Scale.SHARE))


def other_gpus_table(study: Study) -> Table:
    """Return a table of the speed of groups while other GPUs of the host work, relative to without."""
    rows: list[Values] = []
    for group in other_gpus.compare_company(study):
        ran = (group.case.label, group.degree, group.mode, group.beside)
        rows.append((*ran, *list_ends(group.share), group.num_blocks, group.sentence))
    heads = ("case", "jobs", "mode", "other GPUs", "speed in company", "low", "high", "blocks", "in words")
    note = f"{_INTERVALS} Ratios are computed within a block and machine state; 1 means that other GPUs have no effect."
    return Table("other-gpus", "Speed while other GPUs of the host work", heads, tuple(rows), note)


def winner_table(winners: Sequence[Winner]) -> Table:
    """Return a table of the fastest mode of each case."""
    rows: list[Values] = []
    for winner in winners:
        fastest = winner.mode or "no single one: " + ", ".join(winner.tied)
        gains = (*list_ends(winner.speedup), *list_ends(winner.over_best_solo), winner.best_solo or None)
        rows.append((winner.case.label, winner.degree, fastest, *gains, winner.sentence))
    over_serial = ("speed-up over serial", "low", "high")
    over_best = (METRICS[BEST_SOLO].title, "low against it", "high against it", "best step mode alone")
    heads = ("case", "jobs", "fastest", *over_serial, *over_best, "in words")
    return Table("winners", "The fastest mode of each case", heads, tuple(rows), _INTERVALS, is_for_machines=True)


def verdict_table(verdicts: Sequence[Verdict]) -> Table:
    """Return a table of every comparison of two modes."""
    rows: list[Values] = []
    for verdict in verdicts:
        compared = (verdict.case.label, verdict.degree, verdict.mode, verdict.against, verdict.quantity.value)
        tested = (verdict.num_blocks, verdict.p, verdict.p_adjusted, verdict.decision.value, verdict.blocks_needed)
        rows.append((*compared, *list_ends(verdict.ratio), *tested, verdict.sentence))
    compares = ("case", "jobs", "mode", "against", "quantity", "ratio", "low", "high", "blocks")
    tests = ("p", "p adjusted", "verdict", "blocks needed", "in words")
    title = f"Verdicts: {_COMPARED}"
    return Table(COMPARISONS, title, (*compares, *tests), tuple(rows), _VERDICT_NOTE, is_for_machines=True)


def comparison_table(cells: Sequence[Cell], verdicts: Sequence[Verdict]) -> Table:
    """Return a table of every comparison in brief, for the page."""
    marked = {(cell.case, cell.degree, cell.mode) for cell in cells if cell.marks}
    rows: list[Values] = []
    for verdict in verdicts:
        ratio = MISSING if verdict.ratio is None else format_estimate(verdict.ratio)
        star = "*" if (verdict.case, verdict.degree, verdict.mode) in marked else ""
        quantity = verdict.quantity.value
        compared = (verdict.case.label, verdict.degree, verdict.mode, verdict.baseline, quantity, f"{ratio}{star}")
        decided = (verdict.num_blocks, verdict.decision.value, verdict.p_adjusted, verdict.blocks_needed)
        rows.append((*compared, *decided))
    compares = ("case", "jobs", "mode", "against", "quantity", "ratio")
    tests = ("blocks", "verdict", "p adjusted", "blocks needed")
    title = f"{_COMPARED[:1].upper()}{_COMPARED[1:]}"
    return Table(COMPARISONS, title, (*compares, *tests), tuple(rows), _VERDICT_NOTE)


def group_table(cells: Sequence[Cell], name: str, title: str, metrics: Sequence[str]) -> Table:
    """Return a table of some quantities of every cell, each as `median (low to high)`."""
    known = list_metrics(cells)
    work_names = [key for cell in cells for key in cell.counted if key in known and find_table(known[key]) == name]
    listener_names = [key for cell in cells for key, metric in cell.sampled.items() if find_table(metric) == name]
    in_order = dict.fromkeys([*work_names, *metrics, *listener_names])
    names = [name for name in in_order if any(name in cell.estimates for cell in cells)]
    scales = {
        name: choose_prefix((c.estimates[name].median for c in cells if name in c.estimates), known[name].unit)
        for name in names
    }
    rows: list[Values] = []
    for cell in cells:
        if cell.is_derived and (cell.num_given or cell.window.is_steady):
            continue  # such serial copies have the same figures as one job
        figures = [
            format_estimate(scale_estimate(cell.estimates[name], scales[name][0])) if name in cell.estimates else None
            for name in names
        ]
        if any(figures) or not cell.values:  # for example, a training has no figures in the table of latencies
            *ran, result = _describe_run(cell)
            rows.append((*ran, f"{result}*" if cell.marks else result, *figures))
    heads = ("case", "jobs", "mode", "result", *(known[name].heading(scales[name][1]) for name in names))
    notes = [_CELL_NOTE, *([BASELINES_NOTE] if {BEST_SOLO, ENERGY_VS_BEST_SOLO} & set(names) else [])]
    notes += [HOST_NOTE] if SPEEDUP in names and any(cell.depends_on_host for cell in cells) else []
    notes += [_DOUBTFUL_NOTE] if any(cell.marks for cell in cells) else []
    return Table(name, title, heads, tuple(rows) if names else (), " ".join(notes))


def one_process_table(cells: Sequence[Cell]) -> Table:
    """Return a table of speed beside memory, CPU and energy, if jobs shared a process, which saves the latter."""
    by_mode = {cell.mode: cell.sharing.gives_up for cell in cells if cell.sharing.gives_up}
    metrics = (SPEEDUP, BEST_SOLO, MEMORY_PEAK, HOST_MEMORY, HOST_CPU, ENERGY_VS_ALONE)
    title = "Sharing inside one process, and between processes"
    table = group_table(cells if by_mode else (), "one_process", title, metrics)
    given_up = " ".join(f"{mode} gives up {what}." for mode, what in by_mode.items())
    return dataclasses.replace(table, note=f"{given_up} {table.note}".strip())


def host_table(cells: Sequence[Cell]) -> Table:
    """Return a table of the host figures, with a note on the host-bound cells."""
    table = group_table(cells, "host", "The host", HOST)
    return dataclasses.replace(table, note=f"{doubts.describe_host_bound(cells)} {table.note}".strip())


def result_table(cells: Sequence[Cell]) -> Table:
    """Return a table of every cell with all quantities in full."""
    known = list_metrics(cells)
    names = [name for name in known if any(name in cell.estimates for cell in cells)]
    titles = [known[name].heading() for name in names]
    heads = [head for title in titles for head in (title, f"{title}: low", f"{title}: high")]
    rows: list[Values] = []
    for cell in cells:
        figures = [value for name in names for value in list_ends(cell.estimates.get(name))]
        rows.append((*_describe_run(cell), sum(cell.results.values()), *figures))
    columns = ("case", "jobs", "mode", "result", "blocks", *heads)
    title = "Results by case, degree and mode"
    return Table("results", title, columns, tuple(rows), _CELL_NOTE, is_for_machines=True)


def ending_table(cells: Sequence[Cell]) -> Table:
    """Return a table of the cells that did not end `ok` in every block, with reasons."""
    rows: list[Values] = []
    for cell in cells:
        if set(cell.results) == {Result.OK} or cell.is_derived:
            continue
        wrong = list(cell.wrong_values.get(SPEEDUP, {}).values())
        unranked = statistics.median(wrong) if wrong else None
        rows.append((*_describe_run(cell), cell.reason, unranked))
    heads = ("case", "jobs", "mode", "result", "reason", "speed-up of the wrong results (not ranked)")
    return Table("endings", "Groups that did not end ok", heads, tuple(rows))


def drift_table(study: Study) -> Table:
    """Return a table of the change of the baselines from block to block."""
    cases = label_cases(study)
    by_label: dict[tuple[str, str, str], dict[int, float]] = {}
    has_several = len({block.gpu_uuid for block in study.blocks}) > 1
    for row in study.rows:
        if (baseline := _baseline(row)) is not None:
            unit, value = baseline
            case = cases[row.run_id]
            label = case.label if row.degree == 1 else jobs_in_words(case, row.degree)
            gpu = row.gpu_uuid if has_several else ""  # a difference between GPUs does not count as drift
            by_label.setdefault((label, gpu, unit), {})[row.block] = value
    rows: list[Values] = []
    for (name, gpu, unit), by_block in sorted(by_label.items()):
        label = f"{name} on {gpu[:12]}" if gpu else name
        values = [value for _, value in sorted(by_block.items())]
        if len(values) > 1:
            change = 100 * (values[-1] / values[0] - 1)
            spread = 100 * statistics.stdev(values) / statistics.fmean(values)
            blocks = (len(values), min(by_block), max(by_block))
            rows.append((label, unit, *blocks, change, spread, min(values), max(values)))
    heads = ("baseline", "unit", "blocks", "first block", "last block")
    figures = ("last against first (%)", "standard deviation (%)", "lowest", "highest")
    note = "Drift does not affect speed-ups, because they use the baseline of the same block."
    return Table("drift", "Drift of the serial baselines between blocks", (*heads, *figures), tuple(rows), note)


def case_table(study: Study) -> Table:
    """Return a table of the jobs of each mix."""
    cases = label_cases(study)
    mixes = [row for row in study.rows if row.is_mix]
    parts = {cases[row.run_id].label: {(job.size, job.label) for job in row.jobs} for row in mixes}
    rows: list[Values] = []
    for label, jobs in sorted(parts.items()):
        words = [f"{size}: {workload}" if size else workload for size, workload in sorted(jobs, key=str)]
        rows.append((label, "; ".join(words)))
    return Table("mixes", "Workloads of the mixes", ("mix", "jobs"), tuple(rows))


def block_table(study: Study) -> Table:
    """Return a table of the GPU, the host and the missing groups of each block."""
    heads = ("block", "host", "device", "driver", "GPU", "boot", "groups", "missing")
    facts = {(row.block, dict(row.settings)[DEVICE]): row.facts for row in study.rows}
    rows: list[Values] = []
    for block in study.blocks:
        block_facts = facts.get((block.number, block.device), {})
        where = (block.number, block_facts.get("host"), block.device, block_facts.get("driver_version"), block.gpu_uuid)
        rows.append((*where, block.boot_id[:8], block.num_groups, block.num_missing))
    return Table("blocks", "Blocks", heads, tuple(rows))


def publication_tables(checks: Sequence[FindingCheck]) -> list[Table]:
    """Return a table for each publication with which the study is compared."""
    columns = ("finding", "where", "case", "jobs", "mode", "paper")
    heads = (*columns, "ours", "low", "high", "agreement", "by how much", "mind")
    tables = []
    for publication, members in itertools.groupby(checks, key=lambda check: check.publication):
        rows = tuple(map(_list_check, members))
        note = _DOUBTFUL_NOTE if any("*" in str(row[heads.index("ours")]) for row in rows) else ""
        tables.append(Table(publication.table, publication.title, heads, rows, note, about=publication.about))
    return tables


def _list_check(check: FindingCheck) -> Values:
    finding, (_, low, high) = check.finding, list_ends(check.figure)
    published = (finding.text, finding.where or None, check.case_label, check.degree, check.mode)
    figures = (finding.range_in_words, check.figure_in_words, low, high)
    return (*published, *figures, check.agreement.value, check.difference, check.note)


def _describe_run(cell: Cell) -> Values:
    """Return case, degree, mode, and `ok` or the number of each outcome: `ok 4, oom 1`."""
    counts = [(result.value, cell.results[result]) for result in Result if cell.results[result]]
    words = counts[0][0] if len(counts) == 1 else ", ".join(f"{result} {number}" for result, number in counts)
    return (cell.case.label, cell.degree, cell.mode, words)


def _baseline(row: Row) -> tuple[str, float] | None:
    if not row.is_sequential or not row.is_valid:
        return None
    is_time = row.window is WindowKind.WORK
    name, unit = (TOTAL_TIME, "s") if is_time else (work_units.total_of(row.unit), work_units.per_second(row.unit))
    return (unit, row.metrics[name]) if row.metrics.get(name) and (row.degree == 1 or unit == "s") else None
