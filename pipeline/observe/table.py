"""The table of rows that a study ends with."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from types import MappingProxyType

from pipeline.base.domain import normalise, services, units
from pipeline.base.domain.marks import NO_MARKS, Marks
from pipeline.base.domain.modes import mode_of
from pipeline.base.domain.records import BESIDE, NEIGHBOURS, Group, Result
from pipeline.base.system.words import aligned, natural
from pipeline.observe.fields import Fields, figure_of
from pipeline.observe.group_result import GroupResult

# Head, figure and format of each column. Those of each unit of work stand at both ends, those of samples before the
# last.
_COLUMNS = (
    ("goodput/s", services.GOODPUT_TOTAL, "{:.1f}"),
    ("sustained", services.SUSTAINED_WORST, "{:.2f}"),
    ("latency ms", services.worst_of(services.MEAN), "{:.2f}"),
    ("p99 ms", services.worst_of(services.P99), "{:.2f}"),
    ("epoch s", "epoch_time_mean_s", "{:.2f}"),
    ("makespan s", "makespan_s", "{:.1f}"),
    ("on GPU after s", "first_gpu_use_s", "{:.1f}"),
    ("speed-up", normalise.SPEEDUP, "{:.2f}"),
    ("slowdown", normalise.SLOWDOWN, "{:.2f}"),
    ("slowdown of latency", normalise.MEAN_SLOWDOWN, "{:.2f}"),
    ("fairness", normalise.FAIRNESS, "{:.3f}"),
    ("overlap", "overlap_ratio", "{:.3f}"),
    ("skew ms", "start_skew_ms", "{:.1f}"),
)
_LAST_COLUMNS = (("own CPU %", "orchestrator_cpu_pct", "{:.1f}"),)
_RATIOS = tuple(column for column in _COLUMNS if column[0] in ("speed-up", "slowdown", "slowdown of latency"))
_COMPARISONS = frozenset((*(key for _, key, _ in _RATIOS), normalise.FAIRNESS))
"""Figures that an invalid row lacks: it leads nothing."""
_MOST_NAMES = 4
_FORMATS = {"ratio": "{:.2f}", "MiB": "{:.0f}"}


def in_one_line(
    result: Result,
    reason: str,
    metrics: Mapping[str, float],
    *,
    marks: Marks = NO_MARKS,
    is_simulated: bool = False,
) -> str:
    """Say how a group or a job ended: `ok, 1841.7 samples/s, speed-up 2.43`, `ok* (MARKS), ...`, `skipped: REASON`."""
    rates = [(unit, units.total_of(unit)) for unit in units.units_in(metrics)]  # of a group
    rates += [(unit, units.rate_of(unit)) for unit in units.find_common_units([metrics])]  # of a job
    different = {metrics[key]: (unit, key) for unit, key in reversed(rates)}  # a sample a request is said once
    figures = [
        f"{units.format_rate(metrics[key])} {units.per_second(unit)}" for unit, key in reversed(different.values())
    ]
    figures += [f"{metrics[key]:.2f} ms" for key in (services.MEAN, services.worst_of(services.MEAN)) if key in metrics]
    ratios = () if marks.invalid else _RATIOS
    figures += [f"{title} {form.format(metrics[key])}" for title, key, form in ratios if key in metrics]
    ended = f"{result.value}* ({marks.text})" if marks.text else result.value
    ended += " (simulated GPU)" if is_simulated else ""
    return ", ".join([ended, *figures]) + (f": {reason}" if reason else "")


def table(
    rows: Sequence[GroupResult],
    fields: Fields,
    fastest: Container[str] = (),
    notes: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """The groups as an aligned text table, one line each, the case by case; what there is to know of them below.

    Figures are medians over the blocks; of several GPUs, each counts once. A column without any value is left out, a
    missing value is `-`. Groups that were skipped are named below the table, with the reason.

    Args:
        rows: one of each group and block.
        fields: of the listeners.
        fastest: the `key` of the groups to be marked as the fastest of their case.
        notes: what stands beside the figures of a group over its blocks, by its `key`.
    """
    by_key: dict[str, list[GroupResult]] = defaultdict(list)
    for row in rows:
        by_key[row.group.key].append(row)
    in_order = sorted(by_key.values(), key=lambda found: _place(found[0].group))
    groups = [found for found in in_order if any(row.result is not Result.SKIPPED for row in found)]
    skipped = _skipped([found for found in in_order if found not in groups])
    if not groups:
        return "\n".join(skipped)
    counted = _units(rows)
    rates = [(units.per_second(unit), units.total_of(unit), units.format_rate) for unit in counted]
    energies = [(units.joules_per(unit), units.energy_of(unit), "{:.3g}") for unit in counted]
    others = (*_COLUMNS, *_sampled(fields), *energies, *_LAST_COLUMNS)
    every = (*rates, *((title, key, form.format) for title, key, form in others))
    shown = [column for column in every if any(column[1] in row.metrics for row in rows)]
    # Groups of one name that differ in these are told apart by them.
    facts = {
        "window": [found[0].group.window.words for found in groups],
        "device": [found[0].group.device.name for found in groups],
    }
    facts = {title: values for title, values in facts.items() if len(set(values)) > 1}
    names = _names([found[0].group for found in groups])
    if any(found[0].group.key in fastest for found in groups):
        facts[""] = ["fastest" if found[0].group.key in fastest else "" for found in groups]
    has_blocks = len({row.group.block for row in rows}) > 1
    lines = [["group", *facts, *(["blocks"] if has_blocks else []), "result", *(title for title, _, _ in shown)]]
    for name, found, *said in zip(names, groups, *facts.values(), strict=True):
        blocks = [str(len(found))] if has_blocks else []
        figures = [_median(found, key, form) for _, key, form in shown]
        star = "*" if found[0].group.key in notes or any(row.marks.text for row in found) else ""
        lines.append([name, *said, *blocks, _results(found) + star, *figures])
    text = aligned(lines, left={*range(1 + len(facts)), 1 + len(facts) + has_blocks})
    return "\n".join([*text, *_notes(groups, names, notes, is_of_blocks=has_blocks), *skipped])


def _names(groups: Sequence[Group]) -> list[str]:
    """What each is called; those in company of other GPUs are told from the same alone."""
    company = [group.settings[BESIDE] for group in groups]
    is_told = len(set(company)) > 1
    told = [f" [{BESIDE} {number}]" if number and is_told else "" for number in company]
    return [f"{group.name}{more}" for group, more in zip(groups, told, strict=True)]


def _units(rows: Sequence[GroupResult]) -> list[str]:
    """What the rows count their work in, without a second unit of which there are always as many as of the first."""
    by_figures: dict[tuple[float | None, ...], str] = {}
    for unit in dict.fromkeys(unit for row in rows for unit in units.units_in(row.metrics)):
        by_figures.setdefault(tuple(row.metrics.get(units.total_of(unit)) for row in rows), unit)
    return list(by_figures.values())


def _place(group: Group) -> tuple[object, ...]:
    """Where a group stands in the table: beside those of the same jobs, in the order of modes."""
    programs = [job.workload for job in group.measured]
    jobs = sorted((natural(f"{each.name} {each.params}"), each.digest) for each in programs)
    case = (len(set(jobs)) > 1, sorted(set(jobs)), group.window.words, group.settings[NEIGHBOURS])
    mode = mode_of(group.scenario).order
    return (group.device.name, *case, len(programs), jobs, mode, group.name, group.settings[BESIDE])


def _median(found: Sequence[GroupResult], key: str, form: Callable[[float], str]) -> str:
    """Format the median of a figure over the valid blocks; without any over the others, unless it is a comparison."""
    having = [row for row in found if key in row.metrics]
    well = [row for row in having if row.result is Result.OK] or having
    valid = [row for row in well if not row.marks.invalid]
    used = dict(enumerate(valid if valid or key in _COMPARISONS else well))
    values = {number: row.metrics[key] for number, row in used.items()}
    gpus = {number: row.gpu_uuid for number, row in used.items()}
    return form(statistics.median(normalise.independent(values, gpus))) if used else "-"


def _results(found: Sequence[GroupResult]) -> str:
    results = Counter(row.result for row in found)
    if len(results) == 1:
        return found[0].result.value
    return ", ".join(f"{results[result]} {result.value}" for result in Result if results[result])


def _notes(
    groups: Sequence[Sequence[GroupResult]], names: Sequence[str], on_gain: Mapping[str, str], *, is_of_blocks: bool
) -> list[str]:
    """List marks and failures, each once with all the groups that it concerns."""
    flags: dict[str, list[str]] = defaultdict(list)
    reasons: dict[str, list[str]] = defaultdict(list)
    for name, found in zip(names, groups, strict=True):
        of_flags = Counter(row.marks.text for row in found if row.marks.text)
        of_reasons = Counter(row.reason for row in found if row.result is not Result.OK and row.reason)
        for into, texts in ((flags, of_flags), (reasons, of_reasons)):
            for text, number in texts.items():
                blocks = f" ({number} of {len(found)} blocks)" if number < len(found) else ""
                into[text].append(name + blocks)
        if note := on_gain.get(found[0].group.key):
            flags[note].append(name)
    notes = []
    if is_of_blocks:
        num_gpus = len({row.gpu_uuid for found in groups for row in found})
        each_once = f"; of the {num_gpus} GPUs each counts once" if num_gpus > 1 else ""
        notes.append(f"figures are medians over the blocks{each_once}")
    notes += [f"* {_listed(names)}: {text}" for text, names in flags.items()]
    notes += [f"{_listed(names)}: {text}" for text, names in reasons.items()]
    devices = dict.fromkeys(found[0].group.device for found in groups)
    if simulated := dict.fromkeys(device.name for device in devices if device.is_simulated):
        notes.append(
            f"simulated: {', '.join(simulated)}; the jobs ran on the CPU, so these figures say nothing about a real GPU"
        )
    return notes


def _skipped(groups: Sequence[Sequence[GroupResult]]) -> list[str]:
    """Format each reason with the groups that were skipped for it."""
    by_reason: dict[str, list[str]] = defaultdict(list)
    for name, rows in zip(_names([rows[0].group for rows in groups]), groups, strict=True):
        for reason in dict.fromkeys(row.reason for row in rows):
            by_reason[reason].append(name)
    return [f"skipped {_listed(names)}: {reason}" for reason, names in by_reason.items()]


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def _sampled(fields: Fields) -> Iterator[tuple[str, str, str]]:
    figures = {figure_of(field): field for table in reversed(fields.tables) for field in table.fields if field.column}
    for name, field in figures.items():
        if name is not None:
            yield field.column, name, _FORMATS.get(field.unit, "{:.1f}")
