"""The table of rows at the end of a study."""

from __future__ import annotations

import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from types import MappingProxyType

from pipeline.base.domain import normalisation, service_figures, work_units
from pipeline.base.domain.marks import NO_MARKS, Marks, find_reason, merge
from pipeline.base.domain.records import CO_RUNNERS, OTHER_GPUS, Group, Result
from pipeline.base.domain.sharing_modes import mode_of
from pipeline.base.system.words import align_table, group_by, list_first, natural_key
from pipeline.observe.group_result import GroupResult
from pipeline.observe.row_marks import MIN_OVERLAP_RATIO
from pipeline.observe.sample_figures import Fields, name_figure

# Title, figure and format of each column. The table has columns for rates per work unit before these columns, and
# columns for samples and energy after them.
_COLUMNS = (
    ("goodput/s", service_figures.GOODPUT_TOTAL, "{:.1f}"),
    ("sustained", service_figures.SUSTAINED_WORST, "{:.2f}"),
    ("latency ms", service_figures.name_worst(service_figures.MEAN), "{:.2f}"),
    ("p99 ms", service_figures.name_worst(service_figures.P99), "{:.2f}"),
    ("epoch s", "epoch_time_mean_s", "{:.2f}"),
    ("makespan s", "makespan_s", "{:.1f}"),
    ("window s", "window_s", "{:.1f}"),
    ("on GPU after s", "first_gpu_use_s", "{:.1f}"),
    ("speed-up", normalisation.SPEEDUP, "{:.2f}"),
    ("slowdown", normalisation.SLOWDOWN, "{:.2f}"),
    ("slowdown of latency", normalisation.MEAN_SLOWDOWN, "{:.2f}"),
    ("fairness", normalisation.FAIRNESS, "{:.3f}"),
    ("overlap", "overlap_ratio", "{:.3f}"),
    ("skew ms", "start_skew_ms", "{:.1f}"),
)
_LAST_COLUMNS = (("own CPU %", "orchestrator_cpu_pct", "{:.1f}"),)
_RATIOS = tuple(column for column in _COLUMNS if column[0] in ("speed-up", "slowdown", "slowdown of latency"))
_COMPARISONS = frozenset((*(key for _, key, _ in _RATIOS), normalisation.FAIRNESS))
"""Figures that an invalid row lacks, because it is in no comparison."""
_BAD: Mapping[str, Callable[[float], bool]] = {
    normalisation.FAIRNESS: lambda ratio: ratio < 0.9,
    "overlap_ratio": lambda ratio: ratio < MIN_OVERLAP_RATIO,
    "start_skew_ms": lambda skew_ms: skew_ms > 100,
    "orchestrator_cpu_pct": lambda share_pct: share_pct > 10,
}
"""Figures that have a column only if that of a row needs attention."""
_EXPENDABLE = ("on GPU after s", "window s", "epoch s", "makespan s")
"""Columns that a table wider than `_MOST_COLUMNS` leaves out first; those of listeners follow, the last one first."""
_MOST_COLUMNS = 100
_MOST_NAMES = 4
_FORMATS = {"ratio": "{:.2f}", "MiB": "{:.0f}"}


def format_line(
    result: Result,
    reason: str,
    metrics: Mapping[str, float],
    *,
    marks: Marks = NO_MARKS,
    is_simulated: bool = False,
    is_brief: bool = False,
) -> str:
    """Describe the end of a group or job: `ok, 1841.7 samples/s, speed-up 2.43`, `ok* (MARKS), ...`.

    A brief line has only `*` or `*, invalid` for its marks, and no figures of a simulated GPU.
    """
    if is_brief and is_simulated:
        return result.value + (f": {reason}" if reason else "")
    rates = [(unit, work_units.total_of(unit)) for unit in work_units.find_units(metrics)]  # of a group
    rates += [(unit, work_units.rate_of(unit)) for unit in work_units.find_common_units([metrics])]  # of a job
    different = {metrics[key]: (unit, key) for unit, key in reversed(rates)}  # equal rates in two units appear once
    figures = [
        f"{work_units.format_rate(metrics[key])} {work_units.per_second(unit)}"
        for unit, key in reversed(different.values())
    ]
    figures += [
        f"{metrics[key]:.2f} ms"
        for key in (service_figures.MEAN, service_figures.name_worst(service_figures.MEAN))
        if key in metrics
    ]
    ratios = () if marks.invalid else _RATIOS
    figures += [f"{title} {form.format(metrics[key])}" for title, key, form in ratios if key in metrics]
    detail = ("invalid" if marks.invalid else "") if is_brief else marks.text
    ended = result.value + ("*" if marks.text else "") + (f" ({detail})" if detail else "")
    ended += " (simulated GPU)" if is_simulated else ""
    return ", ".join([ended, *figures]) + (f": {reason}" if reason else "")


def format_table(
    rows: Sequence[GroupResult],
    fields: Fields,
    fastest: Container[str] = (),
    notes: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Format the groups as an aligned text table of at most 100 columns, with one line per group and notes below.

    Figures are medians over the blocks; blocks of one GPU count as one value if the study ran on several GPUs. A
    missing value is `-`, and a column without any value is left out. Skipped groups are listed below the table.
    `fastest` and `notes` contain the `key` of groups.
    """
    by_key: dict[str, list[GroupResult]] = defaultdict(list)
    for row in rows:
        by_key[row.group.key].append(row)
    in_order = sorted(by_key.values(), key=lambda blocks: _make_sort_key(blocks[0].group))
    groups = [blocks for blocks in in_order if any(row.result is not Result.SKIPPED for row in blocks)]
    skipped = _describe_skipped([blocks for blocks in in_order if blocks not in groups])
    if not groups:
        return "\n".join(skipped)
    counted = _list_units(rows)
    rates = [(work_units.per_second(unit), work_units.total_of(unit), work_units.format_rate) for unit in counted]
    energies = [(work_units.joules_per(unit), work_units.energy_of(unit), "{:.3g}") for unit in counted]
    other_columns = (*_COLUMNS, *_list_sampled_columns(fields), *energies, *_LAST_COLUMNS)
    columns = (*rates, *((title, key, form.format) for title, key, form in other_columns))
    having = [column for column in columns if any(column[1] in row.metrics for row in rows)]
    bad = {key for key, is_bad in _BAD.items() if any(key in row.metrics and is_bad(row.metrics[key]) for row in rows)}
    shown = [column for column in having if column[1] in bad or column[1] not in _BAD]
    # These columns distinguish groups with equal names.
    facts = {
        "window": [blocks[0].group.window.text for blocks in groups],
        "device": [blocks[0].group.device.name for blocks in groups],
    }
    facts = {title: values for title, values in facts.items() if len(set(values)) > 1}
    names = _name_groups([blocks[0].group for blocks in groups])
    if any(blocks[0].group.key in fastest for blocks in groups):
        facts[""] = ["fastest" if blocks[0].group.key in fastest else "" for blocks in groups]
    has_blocks = len({row.group.block for row in rows}) > 1
    is_marked = [blocks[0].group.key in notes or any(row.marks.text for row in blocks) for blocks in groups]
    results = [_format_results(blocks) + "*" * mark for blocks, mark in zip(groups, is_marked, strict=True)]
    counts = {"blocks": [str(_count_blocks(blocks)) for blocks in groups]} if has_blocks else {}
    figures = {title: [_format_median(blocks, key, form) for blocks in groups] for title, key, form in shown}
    expendable = [*_EXPENDABLE, *reversed([title for title, *_ in _list_sampled_columns(fields)])]
    numbers = [blocks[0].group.group_number for blocks in groups]
    numbered = {"no.": numbers} if any(numbers) else {}
    names, text = _fit(names, numbered, facts, counts | {"result": results} | figures, expendable)
    return "\n".join([*text, *_list_notes(groups, names, notes, is_of_blocks=has_blocks), *skipped])


def _fit(
    names: list[str],
    numbered: Mapping[str, Sequence[str]],
    facts: Mapping[str, Sequence[str]],
    columns: Mapping[str, Sequence[str]],
    expendable: Sequence[str],
) -> tuple[list[str], list[str]]:
    """Return names and aligned table; shorten the names of a table that is too wide, then leave out columns."""
    left_titles = {"group", *facts, "result"}
    for names_in_table, number in [(names, 0), *((_shorten(names), number) for number in range(len(expendable) + 1))]:
        shown = {"group": names_in_table, **facts, **columns, **numbered}
        shown = {title: cells for title, cells in shown.items() if title not in expendable[:number]}
        lines = [list(shown), *map(list, zip(*shown.values(), strict=True))]
        text = align_table(lines, {place for place, title in enumerate(shown) if title in left_titles})
        if max(map(len, text)) <= _MOST_COLUMNS:
            break
    return names_in_table, text


def _shorten(names: Sequence[str]) -> list[str]:
    """Leave out the program and the options that all names share: `mps-2x` for `mps-2x-tiny-lr=0.1`."""
    parts = [re.split(r"-(?=[\w.]+=)", name) for name in names]
    shared_options = set.intersection(*(set(options) for _, *options in parts))
    copies = [re.fullmatch(r"(.+?-\d+x)-(.+)", head) for head, *_ in parts]
    is_shared = len({match[2] if match else None for match in copies}) == 1
    heads = [match[1] if match and is_shared else head for match, (head, *_) in zip(copies, parts, strict=True)]
    options = [[option for option in options if option not in shared_options] for _, *options in parts]
    return ["-".join([head, *words]) for head, words in zip(heads, options, strict=True)]


def _name_groups(groups: Sequence[Group]) -> list[str]:
    """Return the name of each group, with the number of other GPUs in use if this number differs between groups."""
    company = [group.settings[OTHER_GPUS] for group in groups]
    is_told = len(set(company)) > 1
    suffixes = [f" [{OTHER_GPUS} {number}]" if number and is_told else "" for number in company]
    return [f"{group.display_name}{suffix}" for group, suffix in zip(groups, suffixes, strict=True)]


def _list_units(rows: Sequence[GroupResult]) -> list[str]:
    """Return the work units of the rows, without a unit whose figures equal those of another unit in every row."""
    by_figures: dict[tuple[float | None, ...], str] = {}
    for unit in dict.fromkeys(unit for row in rows for unit in work_units.find_units(row.metrics)):
        by_figures.setdefault(tuple(row.metrics.get(work_units.total_of(unit)) for row in rows), unit)
    return list(by_figures.values())


def _make_sort_key(group: Group) -> tuple[object, ...]:
    programs = [job.workload for job in group.measured]
    jobs = sorted((natural_key(f"{program.name} {program.params}"), program.digest) for program in programs)
    case = (len(set(jobs)) > 1, sorted(set(jobs)), group.window.text, group.settings[CO_RUNNERS])
    mode = mode_of(group.scenario).order
    return (group.device.name, *case, len(programs), jobs, mode, group.name, group.settings[OTHER_GPUS])


def _format_median(blocks: Sequence[GroupResult], key: str, form: Callable[[float], str]) -> str:
    """Format the median of a figure over the valid blocks.

    If no block is valid, the median is over all blocks, except for comparisons, which are then `-`.
    """
    having = [row for row in blocks if key in row.metrics]
    well = [row for row in having if row.result is Result.OK] or having
    valid = [row for row in well if not row.marks.invalid]
    used = group_by(valid if valid or key in _COMPARISONS else well, lambda row: (row.group.block, row.gpu_uuid))
    values = {number: statistics.fmean(row.metrics[key] for row in runs) for number, runs in enumerate(used.values())}
    gpus = {number: gpu_uuid for number, (_, gpu_uuid) in enumerate(used)}
    return form(statistics.median(normalisation.select_independent(values, gpus))) if used else "-"


def _count_blocks(rows: Sequence[GroupResult]) -> int:
    return len({(row.group.block, row.gpu_uuid) for row in rows})


def _format_results(blocks: Sequence[GroupResult]) -> str:
    results = Counter(row.result for row in blocks)
    if len(results) == 1:
        return blocks[0].result.value
    return ", ".join(f"{results[result]} {result.value}" for result in Result if results[result])


def _list_notes(
    groups: Sequence[Sequence[GroupResult]], names: Sequence[str], on_gain: Mapping[str, str], *, is_of_blocks: bool
) -> list[str]:
    """Return each mark and each reason once, with the groups that have it."""
    flags, reasons = list[tuple[str, str]](), list[tuple[str, str]]()
    for name, group_rows in zip(names, groups, strict=True):
        marks = [row.marks for row in group_rows]
        of_flags = merge(f"invalid: {mark.invalid}" for mark in marks if mark.invalid)
        of_flags |= merge(mark.note for mark in marks if mark.note)
        of_reasons = merge(row.reason for row in group_rows if row.result is not Result.OK and row.reason)
        noun = "blocks" if _count_blocks(group_rows) == len(group_rows) else "runs"
        for into, texts in ((flags, of_flags), (reasons, of_reasons)):
            for text, number in texts.items():
                share = f" ({number} of {len(group_rows)} {noun})" if number < len(group_rows) else ""
                into.append((text, name + share))
        if note := on_gain.get(group_rows[0].group.key):
            flags.append((note, name))
    notes = []
    if is_of_blocks:
        num_gpus = len({row.gpu_uuid for group_rows in groups for row in group_rows})
        each_once = f"; each of the {num_gpus} GPUs counts once" if num_gpus > 1 else ""
        notes.append(f"figures are medians over the blocks{each_once}")
    for start, entries in (("* ", flags), ("", reasons)):
        for members in group_by(entries, lambda entry: find_reason(entry[0])).values():
            (text,) = merge(text for text, _ in members)
            notes.append(f"{start}{list_first([name for _, name in members], _MOST_NAMES)}: {text}")
    return notes


def _describe_skipped(groups: Sequence[Sequence[GroupResult]]) -> list[str]:
    by_reason: dict[str, list[str]] = defaultdict(list)
    for name, rows in zip(_name_groups([rows[0].group for rows in groups]), groups, strict=True):
        for reason in dict.fromkeys(row.reason for row in rows):
            by_reason[reason].append(name)
    return [f"skipped {list_first(names, _MOST_NAMES)}: {reason}" for reason, names in by_reason.items()]


def _list_sampled_columns(fields: Fields) -> Iterator[tuple[str, str, str]]:
    figures = {name_figure(field): field for table in reversed(fields.tables) for field in table.fields if field.column}
    for name, field in figures.items():
        if name is not None:
            yield field.column, name, _FORMATS.get(field.unit, "{:.1f}")
