"""The command `python -m pipeline.report compare`: whether a study is slower than earlier studies.

The exit status is 0 if nothing is slower by more than the tolerance, 1 if something is, and 2 for bad input.
"""

from __future__ import annotations

import argparse
import fnmatch
import itertools
import json
import math
import sys
import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.base.system import entry_points
from pipeline.base.system.command_parser import CommandParser
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.words import align_table, format_count, group_by, list_first
from pipeline.record.store.local_store import is_server
from pipeline.record.store.results import list_experiments
from pipeline.report.evaluate.comparison import (
    CaseChange,
    Change,
    StudyComparison,
    compare,
    compare_environments,
    find_worst_bound,
    list_differences,
    list_setting_differences,
)
from pipeline.report.evaluate.metrics import METRICS, Metric
from pipeline.report.evaluate.statistics import CONFIDENCE, DRIFT_BLOCKS, MARGIN, Estimate
from pipeline.report.page.table_format import (
    Column,
    Table,
    format_value,
    list_columns,
    list_end_columns,
    make_table,
    to_csv,
)
from pipeline.report.publish import MANIFEST
from pipeline.report.read import rows
from pipeline.report.read.rows import find_stores
from pipeline.report.read.selection import DEVICE, STUDY, Choice
from pipeline.report.read.study_records import Study

COMMAND = "compare"
_EXPERIMENT, _TOLERANCE, _MAX_LOSS = "--experiment", "--tolerance", "--max-loss"
_ALLOW_MISSING, _OUT = "--allow-missing", "--out"
_SUFFIXES = (".csv", ".md", ".json")
_MOST_NAMED = 3
_NO_EXPERIMENT = "Default"
"""The experiment that MLflow creates in every store."""
_FORMAT = 2
_WIDTH, _LONGEST_MODE = 100, 14
"""Columns of a terminal, and of a mode that stands in the table."""
_SIMULATED = "Both studies are simulated: no measurement of a real GPU."
_NOTE = (
    f"Medians over blocks. Ratio: after over before with its {100 * CONFIDENCE:.0f} % interval; for speed, above 1 is "
    "faster. Loss up to: the largest in this interval. Drifts: the blocks scatter like those of jobs that wait for the "
    f"host, so {DRIFT_BLOCKS} blocks count as one. By ...: this ratio decides, because the drift cancels in it."
)


@dataclass(slots=True)
class CaseLimits:
    """A relative difference of each case, by patterns of names; the last pattern that matches counts."""

    option: str
    patterns: list[tuple[str, float]]
    used: set[str] = field(default_factory=set)

    @classmethod
    def parse(cls, option: str, texts: Sequence[str], default: float) -> CaseLimits:
        """Parse `PCT` and `CASE=PCT`.

        Raises:
            ConfigError: a percentage is not a number from 0 to 100.
        """
        patterns = [("*", default)]
        for text in texts:
            pattern, _, number = text.rpartition("=")
            try:
                share = float(number) / 100
            except ValueError:
                share = math.nan
            if not 0 <= share < 1:
                raise ConfigError(f"{option} {text}: {number!r} is not a percentage from 0 to 100; set such as 5")
            patterns.append((pattern or "*", share))
        return cls(option, patterns)

    def find(self, case: str) -> float:
        """Return the limit of a case."""
        matching = [(pattern, share) for pattern, share in self.patterns if fnmatch.fnmatchcase(case, pattern)]
        self.used.update(pattern for pattern, _ in matching)
        return matching[-1][1]

    def check(self) -> None:
        """Refuse a pattern that matched no case.

        Raises:
            ConfigError: a pattern matched no case.
        """
        for pattern, _ in self.patterns:
            if pattern not in self.used | {"*"}:
                raise ConfigError(
                    f"{self.option} {pattern}=...: no case has such a name; use a name such as '7 x *, MPS'"
                )


class Reference(NamedTuple):
    """A reference with its place, and its comparison with the newest study."""

    source: str
    study: Study
    comparison: StudyComparison


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedStudies:
    """The comparisons of the newest study; `losses` are the limits of `--max-loss`, `None` if it is not set."""

    source: str
    newest: Study
    references: Sequence[Reference]
    losses: CaseLimits | None

    @property
    def changes(self) -> list[CaseChange]:
        """The changes of all references."""
        return [change for reference in self.references for change in reference.comparison.changes]

    @property
    def losing(self) -> list[CaseChange]:
        """The cases that make the exit status 1.

        They are slower or fail; with limits of loss, their loss may be larger.
        """
        if (losses := self.losses) is None:
            return [change for change in self.changes if change.change.is_regression]
        limits = [(change, losses.find(change.name)) for change in self.changes if change.has_loss]
        # Without a bound, any loss is possible.
        return [change for change, limit in limits if (1.0 if change.loss_bound is None else change.loss_bound) > limit]


def main(argv: Sequence[str]) -> int:
    """Compare a study with its references and print the comparison; return the exit status."""
    options = _parser().parse_args(argv)
    tolerances = CaseLimits.parse(_TOLERANCE, options.tolerance, MARGIN)
    losses = CaseLimits.parse(_MAX_LOSS, options.max_loss, 1.0) if options.max_loss else None
    if options.out is not None and options.out.suffix not in _SUFFIXES:
        raise ConfigError(f"{_OUT} {options.out}: no such format; end the name with {', '.join(_SUFFIXES)}")
    studies = _read_studies(options)
    source, newest = studies[-1]
    references = _choose_references(studies[:-1], source, newest)
    comparisons = compare([study for _, study in references], newest, tolerances.find)
    for (reference, _), comparison in zip(references, comparisons, strict=True):
        _check_cases(reference, source, comparison, allows_missing=options.allow_missing)
    pairs = [Reference(*place, comparison) for place, comparison in zip(references, comparisons, strict=True)]
    compared = ComparedStudies(source=source, newest=newest, references=pairs, losses=losses)
    status = int(bool(compared.losing))
    for limits in filter(None, (tolerances, losses)):
        limits.check()
    if options.out is not None:
        _write(options.out, compared)
    text = _to_json(compared) if options.json else "\n".join(_list_lines(compared))
    sys.stdout.write(text.rstrip("\n") + "\n")
    return status


def _read_studies(options: argparse.Namespace) -> list[tuple[str, Study]]:
    sources: list[str] = options.studies
    if len(sources) < 2:
        raise ConfigError(f"{COMMAND} needs two studies; name the references first and the newest study last")
    experiments, starts, devices = (
        _spread(name, values, len(sources))
        for name, values in (
            (_EXPERIMENT, options.experiment),
            (STUDY, options.study),
            (DEVICE, options.device),
        )
    )
    return [
        (source, _read_study(source, experiment, start, device))
        for source, experiment, start, device in zip(sources, experiments, starts, devices, strict=True)
    ]


def _spread(option: str, values: Sequence[str], number: int) -> list[str]:
    """Return a value of an option for each study: the same one for all, or one for each; empty if it is not set."""
    if len(values) not in (0, 1, number):
        raise ConfigError(f"{option}: {len(values)} values for {number} studies; set one for all, or one for each")
    return list(values) if len(values) == number else [*values, *[""]][:1] * number


def _read_study(source: str, experiment: str, start: str, device: str) -> Study:
    store: Path | str = source if is_server(source) else Path(source)
    if isinstance(store, Path) and (store / MANIFEST).is_file():
        raise ConfigError(
            f"{source} is the folder of a report, which has no blocks; name the bundle or the store instead"
        )
    experiment = experiment or _find_experiment(store)
    find_stores([store], experiment)
    choice = Choice(studies=[start] if start else (), devices=[device] if device else ())
    study = rows.read([store], experiment, choice=choice)
    if not study.rows:
        raise ConfigError(
            f"experiment {experiment!r} in {source} has no group with a result; choose another experiment"
        )
    if len(study.devices) > 1:
        raise ConfigError(f"{source} has {' and '.join(study.devices)}; choose one of them with {DEVICE}")
    return study


def _find_experiment(store: Path | str) -> str:
    names = sorted(set(list_experiments(store)) - {_NO_EXPERIMENT})
    if len(names) != 1:
        listed = f"the experiments {', '.join(names)}" if names else "no experiment"
        raise ConfigError(f"{store} has {listed}; choose one with {_EXPERIMENT}")
    return names[0]


def _choose_references(
    references: Sequence[tuple[str, Study]], newest_source: str, newest: Study
) -> list[tuple[str, Study]]:
    """Return the references on the GPU model of the newest study; a single reference may have another model."""
    device = newest.devices[0]
    same_model = [reference for reference in references if reference[1].devices[0] == device]
    if len(references) == 1:
        same_model = list(references)
    if not same_model:
        raise ConfigError(f"no reference was measured on {device}, as {newest_source} was; add such a reference")
    for source, study in same_model:
        if number := len(_identify_groups(study) & _identify_groups(newest)):
            raise ConfigError(
                f"{source} and {newest_source} have {format_count(number, 'measured group')} in common; "
                "name a study that was measured again"
            )
        if study.is_simulated != newest.is_simulated:
            simulated, real = (newest_source, source) if newest.is_simulated else (source, newest_source)
            raise ConfigError(f"{simulated} is simulated and {real} is not; compare studies of one kind")
    return same_model


def _identify_groups(study: Study) -> set[tuple[int, str]]:
    """Return the identity of each measured group, which a bundle or an imported store has too."""
    return {(row.start_ms, row.key) for row in study.rows}


def _check_cases(source: str, newest_source: str, comparison: StudyComparison, *, allows_missing: bool) -> None:
    sides = (("before", comparison.missing), ("after", comparison.added))
    if not comparison.changes:
        cases = ", ".join(f"{side} {names[0]!r}" for side, names in sides if names)
        raise ConfigError(
            f"{source} and {newest_source} have no case in common ({cases}); "
            "name studies of the same programs and settings"
        )
    if comparison.missing and not allows_missing:
        names = list_first(comparison.missing, _MOST_NAMED)
        number = format_count(len(comparison.missing), "case")
        raise ConfigError(
            f"{newest_source} lacks {number} of {source}: {names}; add {_ALLOW_MISSING} to compare the others"
        )


def _write(file: Path, compared: ComparedStudies) -> None:
    if file.suffix == ".csv":
        text = to_csv(_make_table(compared, compared.references))
    elif file.suffix == ".json":
        text = _to_json(compared)
    else:
        lines = "\n".join(_list_lines(compared))
        text = f"## {compared.newest.experiment}: before and after\n\n```\n{lines}\n```\n"
    try:
        file.write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        raise ConfigError(f"could not write {file}: {error.strerror}; choose another file with {_OUT}") from error


def _describe_study(source: str, study: Study) -> str:
    """Return `robroek_quick of study.tar.xz: NVIDIA H200, 5 blocks`."""
    simulated = ", simulated" if study.is_simulated else ""
    blocks = format_count(len({row.block for row in study.rows}), "block")
    return f"{study.experiment} of {source}: {' and '.join(study.devices)}, {blocks}{simulated}"


def _list_differences(reference: Reference, newest: Study) -> list[str]:
    packages = compare_environments(reference.study, newest)
    lines = [
        f"{fact.name}: {fact.before} before, {fact.after} after" for fact in list_differences(reference.study, newest)
    ]
    lines += [f"packages: {packages}"] if packages else []
    lines += [f"settings: {words}" for words in list_setting_differences(reference.comparison)]
    return lines or ["none in the recorded machines, software and settings"]


def _list_lines(compared: ComparedStudies) -> list[str]:
    """Return the lines for a terminal: for each reference the differences, then the cases; the compared is last."""
    lines = []
    for reference in compared.references:
        lines += [f"before: {_describe_study(reference.source, reference.study)}"]
        lines += [f"after:  {_describe_study(compared.source, compared.newest)}"]
        lines += [_SIMULATED] if compared.newest.is_simulated else []
        lines += ["", "Differences:", *(f"  {line}" for line in _list_differences(reference, compared.newest)), ""]
        for changes in group_by(reference.comparison.changes, lambda change: change.quantity).values():
            lines += [*_align_changes(changes), ""]
        absent = _list_absent(reference.comparison)
        lines += [*absent, ""] if absent else []
    lines += [_NOTE, "", *_summarize(compared)]
    wrap = partial(textwrap.wrap, width=_WIDTH, subsequent_indent=" " * 8, break_on_hyphens=False)
    return list(itertools.chain.from_iterable(wrap(line) if len(line) > _WIDTH else [line] for line in lines))


def _align_changes(changes: Sequence[CaseChange]) -> list[str]:
    """Return a table without blank columns: a line with case and unit, then one for each number of jobs and mode."""
    columns = [column for column in _COLUMNS if any(column.show(change) not in (None, "") for change in changes)]
    texts = [[format_value(column.show(change)) for column in columns] for change in changes]
    left_columns = [number for number, column in enumerate(columns) if column.title in ("mode", "ratio", "verdict")]
    heads, *aligned = align_table([[column.title for column in columns], *texts], left_columns)
    lines, heading = [f"  {heads}"], ""
    for change, line in zip(changes, aligned, strict=True):
        mix = f" ({change.case.consists})" if change.case.consists else ""
        measure = f": {_name_measure(change.metric)}" if change.metric.name else ""
        before, heading = heading, f"{change.case.label}{mix}{measure}"
        lines += [heading] if heading != before else []
        notes = [change.mode if len(change.mode) > _LONGEST_MODE else "", _describe_note(change)]
        lines += [f"  {line}", *(f"      {note}" for note in notes if note)]
    return lines


def _list_absent(comparison: StudyComparison) -> list[str]:
    sides = (("before", comparison.missing), ("after", comparison.added))
    return [f"only {side}: {name}" for side, names in sides for name in names]


def _summarize(compared: ComparedStudies) -> list[str]:
    lines = []
    for quantity, changes in group_by(compared.changes, lambda change: change.quantity).items():
        counts = Counter(change.change for change in changes)
        parts = ", ".join(f"{change.value} {counts[change]}" for change in Change if counts[change])
        lines.append(f"{quantity.value}, {format_count(len(changes), 'case')}: {parts}")
    lines += dict.fromkeys(filter(None, (reference.comparison.host_change for reference in compared.references)))
    lines += [_describe_bound(compared.changes)]
    names = list(dict.fromkeys(change.name for change in compared.losing))
    if names and compared.losses is None:
        lines.append(f"slower or failing: {'; '.join(names)}")
    elif names:
        lines.append(f"{_MAX_LOSS}: {format_count(len(names), 'case')} may lose more: {_list_names(names)}")
    return list(filter(None, lines))


def _list_names(names: Sequence[str]) -> str:
    return "; ".join([*names[:_MOST_NAMED], *([f"{len(names) - _MOST_NAMED} more"] if names[_MOST_NAMED:] else [])])


def _describe_bound(changes: Sequence[CaseChange]) -> str:
    """Return the loss that all cases exclude: `no case is slower by more than 9 % (7 x tiny, MPS)`."""
    open_cases = [change.name for change in changes if change.has_loss and change.loss_bound is None]
    unknown = f"no loss can be excluded in {format_count(len(open_cases), 'case')} ({_list_names(open_cases)})"
    if (worst := find_worst_bound(changes)) is None or worst.loss_bound is None:
        return unknown if open_cases else ""
    words = f"case is slower by more than {_format_loss(worst.loss_bound)} ({worst.name})"
    steady = find_worst_bound(change for change in changes if not change.is_drifting)
    if worst.is_drifting and steady is not None and steady.loss_bound is not None:
        words += f"; of those that do not wait for the host, none by more than {_format_loss(steady.loss_bound)}"
    return f"{unknown}; no other {words}" if open_cases else f"no {words}"


def _format_loss(share: float) -> str:
    """Return a loss in per cent, rounded up."""
    pct = math.ceil(1000 * share - 1e-6) / 10
    return f"{pct:g} %" if pct < 10 else f"{math.ceil(100 * share - 1e-6)} %"


def _name_measure(metric: Metric) -> str:
    """Return the unit of a throughput, and the title and unit of another quantity."""
    return metric.unit if metric.unit.endswith("/s") else metric.heading()


def _describe_note(change: CaseChange) -> str:
    if change.gain is not None and change.gain.ratio is not None:
        return f"by {METRICS[change.gain.metric].title}: {_format_ratio(change.gain.ratio)}"
    return change.note


def _format_ratio(ratio: Estimate) -> str:
    if ratio.low is None or ratio.high is None:
        return f"{ratio.median:.3f}"
    return f"{ratio.median:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"


_COLUMNS: tuple[Column[CaseChange], ...] = (
    *list_columns({"jobs": "case.degree"}),
    Column("mode", lambda change: change.mode if len(change.mode) <= _LONGEST_MODE else ""),
    Column("before", attrgetter("before"), attrgetter("median")),
    Column("after", attrgetter("after"), attrgetter("median")),
    Column("ratio", attrgetter("ratio"), _format_ratio),
    Column("loss up to", attrgetter("loss_bound"), _format_loss),
    Column("verdict", lambda change: f"{change.change.value}{', drifts' if change.is_drifting else ''}"),
)
"""The columns for readers."""
_FULL_COLUMNS: tuple[Column[CaseChange], ...] = (
    *list_columns({"case": "case.label", "jobs": "case.degree", "mix": "case.consists", "mode": "mode"}),
    *list_columns({"quantity": "quantity.value", "measure": "metric.title", "unit": "metric.unit"}),
    *list_end_columns("before: figure", attrgetter("before"), "before: low", "before: high"),
    Column("before: blocks", partial(CaseChange.count_blocks, side=0)),
    *list_end_columns("after: figure", attrgetter("after"), "after: low", "after: high"),
    Column("after: blocks", partial(CaseChange.count_blocks, side=1)),
    *list_end_columns("ratio", attrgetter("ratio"), "ratio: low", "ratio: high"),
    Column("loss up to (%)", attrgetter("loss_bound"), lambda share: 100 * share),
    Column("decided by", attrgetter("gain"), lambda gain: METRICS[gain.metric].title),
    Column("decided by: ratio", attrgetter("gain"), attrgetter("ratio.median")),
    Column("decided by: low", attrgetter("gain"), attrgetter("ratio.low")),
    Column("decided by: high", attrgetter("gain"), attrgetter("ratio.high")),
    Column("drifts", lambda change: "yes" if change.is_drifting else "no"),
    Column("tolerance (%)", lambda change: 100 * change.tolerance),
    *list_columns({"p": "p_adjusted", "verdict": "change.value", "note": "note", "settings differ": "differs"}),
)
"""The columns of a file, with numbers in full."""


def _make_table(compared: ComparedStudies, references: Sequence[Reference]) -> Table:
    """Return the comparison with some references as a table with a row for each case."""
    sources = {id(change): place.source for place in references for change in place.comparison.changes}
    columns: list[Column[CaseChange]] = [Column("reference", lambda change: sources[id(change)]), *_FULL_COLUMNS]
    changes = [change for reference in references for change in reference.comparison.changes]
    stamp = f"{_SIMULATED} " if compared.newest.is_simulated else ""
    return make_table("comparison", f"{compared.newest.experiment}: before and after", columns, changes, stamp + _NOTE)


def _to_json(compared: ComparedStudies) -> str:
    """Return the comparison as JSON; `status` is the exit status, and a case has the columns of a CSV file."""
    references = []
    for reference in compared.references:
        table = _make_table(compared, [reference])
        references.append(
            {
                "study": _describe_study(reference.source, reference.study),
                "differences": _list_differences(reference, compared.newest),
                "only before": reference.comparison.missing,
                "only after": reference.comparison.added,
                "host": reference.comparison.host_change,
                "cases": [dict(zip(table.columns, row, strict=True)) for row in table.rows],
            }
        )
    facts: dict[str, Any] = {
        "format": _FORMAT,
        "status": int(bool(compared.losing)),
        "newest": _describe_study(compared.source, compared.newest),
        "is_simulated": compared.newest.is_simulated,
        "loss": _describe_bound(compared.changes),
        "references": references,
    }
    return json.dumps(facts, indent=1, ensure_ascii=False) + "\n"


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog=entry_points.spell("report", COMMAND),
        description="Compare a study with one or more references: by case and sharing mode, whether it is faster, "
        "slower or equal. Of several references, those on the GPU model of the newest study count. The exit status is "
        f"1 if a case is slower by more than the tolerance, or fails now; with {_MAX_LOSS}, unless every case excludes "
        "a larger loss. It is 2 for bad input.",
    )
    parser.add_argument(
        "studies",
        nargs="+",
        metavar="STUDY",
        help="bundle, folder of a local store, or URI of a tracking server; the newest study is the last one",
    )
    spread = "; once for all studies, or once for each in their order"
    for option, metavar, words in (
        (_EXPERIMENT, "NAME", f"tracking.experiment (default: the only one of a store){spread}"),
        (STUDY, "ID", f"only this study, by the tag collocation.study of its runs{spread}"),
        (DEVICE, "NAME", f"only this device, by its name or a unique part of it{spread}"),
    ):
        parser.add_argument(option, action="append", default=[], metavar=metavar, help=words)
    parser.add_argument(
        _TOLERANCE,
        action="append",
        default=[],
        metavar="PCT",
        help=f"tolerated difference in %% (default: {100 * MARGIN:g}); CASE=PCT sets that of the cases whose names "
        "match a pattern, such as '7 x *, MPS=10'; repeat the option",
    )
    parser.add_argument(
        _MAX_LOSS,
        action="append",
        default=[],
        metavar="PCT",
        help="largest loss of speed in %% that every case must exclude, or CASE=PCT; repeat the option",
    )
    parser.add_argument(
        _ALLOW_MISSING, action="store_true", help="compare the others if the newest study lacks cases of a reference"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument(_OUT, type=Path, metavar="FILE", help="also write the comparison to FILE.csv, .md or .json")
    return parser
