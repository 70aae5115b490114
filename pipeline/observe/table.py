"""The table of rows that a study ends with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pipeline.base.records import Result
from pipeline.base.tags import Tag
from pipeline.base.words import aligned
from pipeline.observe.fields import Fields, figure_of
from pipeline.observe.group_result import GroupResult

# Head, figure and format of each column; those of samples stand between the two.
_COLUMNS = (
    ("samples/s", "throughput_total_samples_per_s", "{:.1f}"),
    ("epoch s", "epoch_time_mean_s", "{:.2f}"),
    ("makespan s", "makespan_s", "{:.1f}"),
    ("on GPU after s", "first_gpu_use_s", "{:.1f}"),
    ("speed-up", "speedup_vs_serial_ratio", "{:.2f}"),
    ("slowdown", "slowdown_worst_ratio", "{:.2f}"),
    ("fairness", "fairness_jain_ratio", "{:.3f}"),
    ("overlap", "overlap_ratio", "{:.3f}"),
    ("skew ms", "start_skew_ms", "{:.1f}"),
)
_LAST_COLUMNS = (
    ("J/sample", "energy_per_sample_j", "{:.4f}"),
    ("own CPU %", "orchestrator_cpu_pct", "{:.1f}"),
)
_RATES = (
    ("throughput_total_samples_per_s", "{:.1f}", "samples/s"),  # of a group
    ("throughput_samples_per_s", "{:.1f}", "samples/s"),  # of a job
)
_RATIOS = tuple(column for column in _COLUMNS if column[0] in ("speed-up", "slowdown"))
_FORMATS = {"ratio": "{:.2f}", "MiB": "{:.0f}"}


def in_one_line(result: Result, reason: str, metrics: Mapping[str, float]) -> str:
    """How a group or a job ended: `ok, 1841.7 samples/s, speed-up 2.43`, `skipped: REASON`."""
    figures = [f"{form.format(metrics[key])} {unit}" for key, form, unit in _RATES if key in metrics]
    figures += [f"{title} {form.format(metrics[key])}" for title, key, form in _RATIOS if key in metrics]
    return ", ".join([result.value, *figures]) + (f": {reason}" if reason else "")


def table(rows: Sequence[GroupResult], fields: Fields) -> str:
    """The rows as an aligned text table; a column without any value is left out, a missing value is `-`."""
    every = (*_COLUMNS, *_sampled(fields), *_LAST_COLUMNS)
    shown = [column for column in every if any(column[1] in row.metrics for row in rows)]
    # Groups of one name that differ in these are told apart by them.
    facts = {
        "window": [row.group.window.words for row in rows],
        "device": [row.group.device.name for row in rows],
    }
    facts = {title: values for title, values in facts.items() if len(set(values)) > 1}
    lines = [["group", *facts, "block", "result", *(title for title, _, _ in shown)]]
    for row, *said in zip(rows, *facts.values(), strict=True):
        figures = [form.format(row.metrics[key]) if key in row.metrics else "-" for _, key, form in shown]
        flag = "*" if Tag.FLAG in row.tags else ""
        lines.append([row.group.name, *said, str(row.group.block), row.result.value + flag, *figures])
    text = aligned(lines, left={*range(1 + len(facts)), 2 + len(facts)})
    notes = [f"* {row.group.name}: {row.tags[Tag.FLAG]}" for row in rows if Tag.FLAG in row.tags]
    notes += [f"{row.group.name}: {row.reason}" for row in rows if row.result is not Result.OK and row.reason]
    simulated = dict.fromkeys(row.group.device.name for row in rows if row.group.device.is_simulated)
    if simulated:
        names = ", ".join(simulated)
        notes.append(f"simulated: {names}; the jobs ran on the CPU, so these figures say nothing about a real GPU")
    return "\n".join([*text, *notes])


def _sampled(fields: Fields) -> Iterator[tuple[str, str, str]]:
    figures = {figure_of(field): field for table in reversed(fields.tables) for field in table.fields if field.column}
    for name, field in figures.items():
        if name is not None:
            yield field.column, name, _FORMATS.get(field.unit, "{:.1f}")
