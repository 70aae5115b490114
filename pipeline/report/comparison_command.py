"""The command `python -m pipeline.report compare`: whether a study is slower than earlier studies.

The exit status is 0 if nothing is slower by more than the tolerance, 1 if something is, and 2 for bad input.
"""

from __future__ import annotations

import argparse
import dataclasses
import fnmatch
import json
import math
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.base.system import entry_points
from pipeline.base.system.command_parser import CommandParser
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.words import align_table, format_count, list_first
from pipeline.record.store.local_store import is_server
from pipeline.record.store.results import list_experiments
from pipeline.report.evaluate.comparison import (
    CaseChange,
    Change,
    Difference,
    StudyComparison,
    compare,
    compare_environments,
    list_differences,
    list_setting_differences,
)
from pipeline.report.evaluate.contrasts import Quantity
from pipeline.report.evaluate.statistics import CONFIDENCE, DRIFT_BLOCKS, MARGIN, Estimate
from pipeline.report.page.table_format import MISSING, Table, Values, format_value, list_ends, to_csv
from pipeline.report.publish import MANIFEST
from pipeline.report.read import rows
from pipeline.report.read.rows import find_stores
from pipeline.report.read.selection import DEVICE, STUDY, Choice
from pipeline.report.read.study_records import Study

COMMAND = "compare"
_EXPERIMENT, _TOLERANCE, _ALLOW_MISSING, _OUT = "--experiment", "--tolerance", "--allow-missing", "--out"
_SUFFIXES = (".csv", ".md", ".json")
_MOST_NAMED = 3
_NO_EXPERIMENT = "Default"
"""The experiment that MLflow creates in every store."""
_FORMAT = 1
_SIMULATED = "Both studies are simulated: no measurement of a real GPU."
_NOTE = (
    "Medians over blocks. Ratio: speed of the newest study over that of the reference (above 1 is faster), or energy "
    f"over energy; {100 * CONFIDENCE:.0f} % interval of Welch's t test on logarithms. Verdicts are corrected over all "
    "rows; a verdict needs a ratio beyond the tolerance and p < 0.05 after the correction."
)
_GAINS = ("over serial", "over best alone")
_LEFT = {0, 2, 3, 6, 7, 8, 9, 10}
"""Columns that are aligned to the left."""
_LEGEND = (
    "ratio: after / before with its 95 % interval; for speed, above 1 is faster. drifts: the blocks scatter like those "
    f"of jobs that wait for the host, so {DRIFT_BLOCKS} blocks count as one. by ...: this ratio decides, because the "
    "drift cancels in it. N blocks: about as many in each study would give a verdict."
)


@dataclass(slots=True)
class Tolerances:
    """The tolerated relative difference of each case, by patterns of names; the last pattern that matches counts."""

    patterns: list[tuple[str, float]]
    used: set[str] = field(default_factory=set)

    @classmethod
    def parse(cls, texts: Sequence[str]) -> Tolerances:
        """Parse `PCT` and `CASE=PCT`.

        Raises:
            ConfigError: a percentage is not a number from 0 to 100.
        """
        patterns = [("*", MARGIN)]
        for text in texts:
            pattern, _, number = text.rpartition("=")
            try:
                share = float(number) / 100
            except ValueError:
                share = math.nan
            if not 0 <= share < 1:
                raise ConfigError(f"{_TOLERANCE} {text}: {number!r} is not a percentage from 0 to 100; set such as 5")
            patterns.append((pattern or "*", share))
        return cls(patterns)

    def find(self, case: str) -> float:
        """Return the tolerance of a case."""
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
                    f"{_TOLERANCE} {pattern}=...: no case has such a name; use a name such as '7 x *, MPS'"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedStudy:
    """A compared study: its place, its experiment and its size."""

    source: str
    experiment: str
    devices: tuple[str, ...]
    num_blocks: int
    is_simulated: bool

    @property
    def words(self) -> str:
        """The study in words: `robroek_quick of study.tar.xz: NVIDIA H200, 5 blocks`."""
        simulated = ", simulated" if self.is_simulated else ""
        devices, blocks = " and ".join(self.devices), format_count(self.num_blocks, "block")
        return f"{self.experiment} of {self.source}: {devices}, {blocks}{simulated}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedReference:
    """A reference with its comparison; `packages` and `settings` are the other differences, in words."""

    study: ComparedStudy
    differences: tuple[Difference, ...]
    packages: str
    settings: tuple[str, ...]
    comparison: StudyComparison


def main(argv: Sequence[str]) -> int:
    """Compare a study with its references and print the comparison; return the exit status."""
    options = _parser().parse_args(argv)
    tolerances = Tolerances.parse(options.tolerance)
    if options.out is not None and options.out.suffix not in _SUFFIXES:
        raise ConfigError(f"{_OUT} {options.out}: no such format; end the name with {', '.join(_SUFFIXES)}")
    studies = _read_studies(options)
    newest_source, newest = studies[-1]
    references = _choose_references(studies[:-1], newest_source, newest)
    comparisons = compare([study for _, study in references], newest, tolerances.find)
    for (source, _), comparison in zip(references, comparisons, strict=True):
        _check_cases(source, newest_source, comparison, allows_missing=options.allow_missing)
    tolerances.check()
    compared = [
        _describe(source, study, newest, comparison)
        for (source, study), comparison in zip(references, comparisons, strict=True)
    ]
    described = _describe_study(newest_source, newest)
    if options.out is not None:
        _write(options.out, described, compared)
    text = _to_json(described, compared) if options.json else _to_text(described, compared)
    sys.stdout.write(text.rstrip("\n") + "\n")
    return _find_status(compared)


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
        if study.is_simulated != newest.is_simulated:
            simulated, real = (newest_source, source) if newest.is_simulated else (source, newest_source)
            raise ConfigError(f"{simulated} is simulated and {real} is not; compare studies of one kind")
    return same_model


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


def _describe(source: str, reference: Study, newest: Study, comparison: StudyComparison) -> ComparedReference:
    return ComparedReference(
        study=_describe_study(source, reference),
        differences=tuple(list_differences(reference, newest)),
        packages=compare_environments(reference, newest),
        settings=tuple(list_setting_differences(comparison)),
        comparison=comparison,
    )


def _describe_study(source: str, study: Study) -> ComparedStudy:
    return ComparedStudy(
        source=source,
        experiment=study.experiment,
        devices=study.devices,
        num_blocks=len({row.block for row in study.rows}),
        is_simulated=study.is_simulated,
    )


def _write(file: Path, newest: ComparedStudy, references: Sequence[ComparedReference]) -> None:
    if file.suffix == ".csv":
        text = to_csv(_make_table(newest, references))
    elif file.suffix == ".md":
        text = _to_markdown(newest, references)
    else:
        text = _to_json(newest, references)
    try:
        file.write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        raise ConfigError(f"could not write {file}: {error.strerror}; choose another file with {_OUT}") from error


def _find_status(references: Sequence[ComparedReference]) -> int:
    """Return the exit status: 1 if a case is slower, or fails, in the newest study."""
    changes = (change for reference in references for change in reference.comparison.changes)
    return int(any(change.change.is_regression for change in changes))


def _to_text(newest: ComparedStudy, references: Sequence[ComparedReference]) -> str:
    """Return the comparison for a terminal: for each reference the differences, then the cases."""
    parts = []
    for reference in references:
        lines = [f"before: {reference.study.words}", f"after:  {newest.words}"]
        lines += [_SIMULATED] if newest.is_simulated else []
        lines += ["", "Differences:", *(f"  {line}" for line in _list_differences(reference))]
        for table in _list_tables(reference):
            lines += ["", *align_table(table, _LEFT)]
        lines += ["", *absent] if (absent := _list_absent(reference.comparison)) else []
        parts.append("\n".join(lines))
    return "\n\n".join([*parts, _LEGEND, _summarize(references)])


def _to_markdown(newest: ComparedStudy, references: Sequence[ComparedReference]) -> str:
    lines = []
    for reference in references:
        lines += [f"## {newest.experiment}: before and after", ""]
        lines += [f"- before: {reference.study.words}", f"- after: {newest.words}", ""]
        lines += [f"**{_SIMULATED}**", ""] if newest.is_simulated else []
        lines += ["Differences:", "", *(f"- {line}" for line in _list_differences(reference)), ""]
        for heads, *cases in _list_tables(reference):
            lines += [_format_row(heads), "|---" * len(heads) + "|", *map(_format_row, cases), ""]
        lines += [*(f"- {line}" for line in _list_absent(reference.comparison)), ""]
    return "\n".join([*lines, *_summarize(references).splitlines(), "", _LEGEND]) + "\n"


def _format_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def _list_tables(reference: ComparedReference) -> list[list[list[str]]]:
    """Return the table of speeds, and that of energies, each with its headings as the first row."""
    tables = []
    for quantity in Quantity:
        rows = [_brief(change) for change in reference.comparison.changes if change.quantity is quantity]
        gains = _GAINS if quantity is Quantity.SPEED else ()
        heads = [quantity.value, "jobs", "mode", "measure", "before", "after", "ratio", "verdict", *gains, "note"]
        tables += [[heads, *rows]] if rows else []
    return tables


def _list_differences(reference: ComparedReference) -> list[str]:
    lines = [f"{fact.name}: {fact.before} before, {fact.after} after" for fact in reference.differences]
    lines += [f"packages: {reference.packages}"] if reference.packages else []
    lines += [f"settings: {words}" for words in reference.settings]
    return lines or ["none in the recorded machines, software and settings"]


def _list_absent(comparison: StudyComparison) -> list[str]:
    return [f"only before: {name}" for name in comparison.missing] + [
        f"only after: {name}" for name in comparison.added
    ]


def _brief(change: CaseChange) -> list[str]:
    gains = (
        _arrow(change.before.over_serial, change.after.over_serial),
        _arrow(change.before.over_best_solo, change.after.over_best_solo),
    )
    return [
        change.label,
        str(change.degree),
        change.mode,
        _measure(change),
        _median(change.before.figure),
        _median(change.after.figure),
        MISSING if change.ratio is None else _format_ratio(change.ratio),
        change.change.value,
        *(gains if change.quantity is Quantity.SPEED else ()),
        "; ".join(_list_notes(change)),
    ]


def _measure(change: CaseChange) -> str:
    """Return the unit of a throughput, and the title and unit of another quantity."""
    if change.unit.endswith("/s"):
        return change.unit
    return f"{change.measure} ({change.unit})" if change.unit else change.measure or MISSING


def _list_notes(change: CaseChange) -> list[str]:
    notes = [change.note] if change.note else []
    if change.decided_by_ratio is not None:
        notes.append(f"by {change.decided_by}: {_format_ratio(change.decided_by_ratio)}")
    elif change.is_drifting:
        notes.append("drifts")
    return [*notes, f"{change.blocks_needed} blocks"] if change.blocks_needed is not None else notes


def _median(estimate: Estimate | None) -> str:
    return MISSING if estimate is None else format_value(estimate.median)


def _arrow(before: Estimate | None, after: Estimate | None) -> str:
    return "" if before is None and after is None else f"{_median(before)} -> {_median(after)}"


def _format_ratio(ratio: Estimate) -> str:
    if ratio.low is None or ratio.high is None:
        return f"{ratio.median:.3f}"
    return f"{ratio.median:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"


def _summarize(references: Sequence[ComparedReference]) -> str:
    changes = [change for reference in references for change in reference.comparison.changes]
    sentences = []
    for quantity in Quantity:
        counts = Counter(change.change for change in changes if change.quantity is quantity)
        if counts:
            parts = ", ".join(f"{change.value} {counts[change]}" for change in Change if counts[change])
            sentences.append(f"{quantity.value}, {format_count(counts.total(), 'case')}: {parts}")
    worse = [change.name for change in changes if change.change.is_regression]
    sentences += [f"slower or failing: {'; '.join(dict.fromkeys(worse))}"] if worse else []
    return "\n".join(sentences)


def _make_table(newest: ComparedStudy, references: Sequence[ComparedReference]) -> Table:
    """Return the comparison as a table with a row for each case, and with numbers in full."""
    rows = [
        (reference.study.source, *_list_change(change))
        for reference in references
        for change in reference.comparison.changes
    ]
    figures = ("figure", "low", "high", "blocks", "over serial", "over best step mode")
    columns = (
        *("reference", "case", "jobs", "mix", "mode", "quantity", "measure", "unit"),
        *(f"{side}: {figure}" for side in ("before", "after") for figure in figures),
        *("ratio", "ratio: low", "ratio: high", "decided by", "decided by: ratio", "decided by: low"),
        *("decided by: high", "drifts", "tolerance (%)", "p", "verdict", "blocks needed", "note", "settings differ"),
    )
    stamp = f"{_SIMULATED} " if newest.is_simulated else ""
    return Table("comparison", f"{newest.experiment}: before and after", columns, tuple(rows), stamp + _NOTE)


def _list_change(change: CaseChange) -> Values:
    figures: Values = ()
    for side in (change.before, change.after):
        gains = (gain.median if gain else None for gain in (side.over_serial, side.over_best_solo))
        figures += (*list_ends(side.figure), side.num_blocks, *gains)
    return (
        *(change.label, change.degree, change.consists or None, change.mode, change.quantity.value),
        *(change.measure or None, change.unit or None, *figures, *list_ends(change.ratio)),
        *(change.decided_by or None, *list_ends(change.decided_by_ratio), "yes" if change.is_drifting else "no"),
        *(100 * change.tolerance, change.p_adjusted, change.change.value, change.blocks_needed),
        *(change.note or None, change.differs or None),
    )


def _to_json(newest: ComparedStudy, references: Sequence[ComparedReference]) -> str:
    """Return the comparison as JSON; `status` is the exit status of the command."""
    facts: dict[str, Any] = {
        "format": _FORMAT,
        "status": _find_status(references),
        "newest": dataclasses.asdict(newest),
        "references": [dataclasses.asdict(reference) for reference in references],
    }
    return json.dumps(facts, indent=1, ensure_ascii=False) + "\n"


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog=entry_points.spell("report", COMMAND),
        description="Compare a study with one or more references: by case and sharing mode, whether it is faster, "
        "slower or equal. Of several references, those on the GPU model of the newest study count. The exit status is "
        "0 if nothing is slower by more than the tolerance, 1 if something is or fails now, and 2 for bad input.",
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
        _ALLOW_MISSING, action="store_true", help="compare the others if the newest study lacks cases of a reference"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument(_OUT, type=Path, metavar="FILE", help="also write the comparison to FILE.csv, .md or .json")
    return parser
