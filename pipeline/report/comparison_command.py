"""The command `python -m pipeline.report compare`: whether a study is slower than earlier studies.

The exit status is 0 if nothing is slower by more than the tolerance, 1 if something is, and 2 for bad input.
"""

from __future__ import annotations

import argparse
import fnmatch
import logging
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.base.system import entry_points
from pipeline.base.system.command_parser import CommandParser
from pipeline.base.system.errors import CollocationError, ConfigError
from pipeline.base.system.words import format_count, list_first
from pipeline.record.store.local_store import is_server
from pipeline.record.store.results import list_experiments
from pipeline.report.evaluate.comparison import StudyComparison, compare
from pipeline.report.evaluate.statistics import MARGIN
from pipeline.report.evaluate.study_differences import (
    compare_environments,
    list_differences,
    list_setting_differences,
)
from pipeline.report.page import comparison_table
from pipeline.report.page.comparison_table import ComparedReference, ComparedStudy
from pipeline.report.page.table_format import to_csv
from pipeline.report.publish import MANIFEST
from pipeline.report.read import rows
from pipeline.report.read.choice import DEVICE, STUDY, Choice
from pipeline.report.read.stores import find_stores
from pipeline.report.read.study_records import Study

COMMAND = "compare"
_EXPERIMENT, _TOLERANCE, _ALLOW_MISSING, _OUT = "--experiment", "--tolerance", "--allow-missing", "--out"
_SUFFIXES = (".csv", ".md", ".json")
_MOST_NAMED = 3
_NO_EXPERIMENT = "Default"
"""The experiment that MLflow creates in every store."""


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


def main(argv: Sequence[str]) -> int:
    """Compare a study with its references and print the comparison; return the exit status."""
    options = _parser().parse_args(argv)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s", stream=sys.stderr)
    try:
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
    except CollocationError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    form = comparison_table.to_json if options.json else comparison_table.format_lines
    sys.stdout.write(form(described, compared).rstrip("\n") + "\n")
    return int(comparison_table.count_regressions(compared) > 0)


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
        known = f"the experiments {', '.join(names)}" if names else "no experiment"
        raise ConfigError(f"{store} has {known}; choose one with {_EXPERIMENT}")
    return names[0]


def _choose_references(
    references: Sequence[tuple[str, Study]], newest_source: str, newest: Study
) -> list[tuple[str, Study]]:
    """Return the references on the GPU model of the newest study; a single reference may have another model."""
    device = newest.devices[0]
    chosen = [reference for reference in references if reference[1].devices[0] == device]
    if len(references) == 1:
        chosen = list(references)
    if not chosen:
        raise ConfigError(f"no reference was measured on {device}, as {newest_source} was; add such a reference")
    for source, study in chosen:
        if study.is_simulated != newest.is_simulated:
            simulated, real = (newest_source, source) if newest.is_simulated else (source, newest_source)
            raise ConfigError(f"{simulated} is simulated and {real} is not; compare studies of one kind")
    return chosen


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
        text = to_csv(comparison_table.make_table(newest, references))
    elif file.suffix == ".md":
        text = comparison_table.to_markdown(newest, references)
    else:
        text = comparison_table.to_json(newest, references)
    try:
        file.write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        raise ConfigError(f"could not write {file}: {error.strerror}; choose another file with {_OUT}") from error


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
