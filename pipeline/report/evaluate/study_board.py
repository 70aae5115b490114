"""The outcome of each case of a study on each kind of device, and boards: the outcomes of several studies in one table.

A report writes the outcomes to `cases.json`, from which a board is made without the MLflow store. A row of a board is
one case with equal programs. No figure combines columns. An entry lists the settings in which it differs from the
first entry of its row.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.base.domain import work_units
from pipeline.base.domain.normalisation import SPEEDUP
from pipeline.base.domain.records import Result
from pipeline.base.domain.sharing_modes import SERIAL
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.json_decoder import decode
from pipeline.base.system.words import group_by
from pipeline.report.evaluate.case_matching import (
    MatchedCase,
    MeasuredCase,
    find_varying_params,
    list_programs,
    match_cases,
    select_settings,
)
from pipeline.report.evaluate.cells import Cell, group_places, label_cases, list_metrics
from pipeline.report.evaluate.contrasts import Contrast
from pipeline.report.evaluate.metrics import METRICS, TIMES, Metric
from pipeline.report.evaluate.statistics import Estimate, keep_stable_digits
from pipeline.report.evaluate.verdicts import Winner, find_slower_pairs, has_verdicts, rank_modes
from pipeline.report.evaluate.wording import ENDINGS, describe_finding, join_words
from pipeline.report.read import pooling
from pipeline.report.read.study_records import Row, Study

FORMAT = 1
SIMULATED = "simulated"
_FACTS = {
    "driver_version": "driver",
    "job.torch": "torch",
    "job.cuda": "CUDA of torch",
    "power_limit_w": "power limit (W)",
    "cpu_model": "CPU model",
    "cpus": "CPUs",
}
"""The label, by tag or param, of each fact that distinguishes machines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The speed or energy of a mode over that of a baseline or another mode, with its verdict.

    Attributes:
        quantity: `speed` or `energy`.
        is_best_solo: whether `against` is the best step mode alone.
    """

    quantity: str
    against: str
    is_best_solo: bool
    ratio: Estimate
    verdict: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome(MeasuredCase):
    """The outcome of a case at a degree on one kind of device.

    Attributes:
        kinds: maps the label of each mode that has a figure (`MIG 1g.10gb`) to the label of its sharing mode (`MIG`).
        tied: labels of the best mode and of the modes that are not significantly slower, best first; empty if no mode
            has a figure.
        measure: title and unit of `figure`, which is the speed-up over serial if known.
        figure, num_blocks, energy: figures of the first mode in `tied`.
        is_enough: whether blocks and GPUs were enough for any verdict.
        endings: for each mode that failed or was saturated in a block, how it ended: `MPS: failed in 1 of 5 blocks`.
        comparisons: comparisons of the first mode in `tied`; empty in files of earlier versions.
    """

    kinds: Mapping[str, str]
    tied: tuple[str, ...]
    measure: str
    figure: Estimate | None
    num_blocks: int
    is_enough: bool
    energy: Estimate | None
    energy_of_serial: Estimate | None
    energy_unit: str
    endings: tuple[str, ...]
    comparisons: tuple[Comparison, ...] = ()

    @property
    def best(self) -> set[str]:
        """The labels of the sharing modes in `tied`."""
        return {self.kinds[mode] for mode in self.tied}

    def find_comparison(self, quantity: str, *, is_best_solo: bool) -> Comparison | None:
        """Return the comparison with serial or with the best step mode alone; `None` if there is none."""
        comparisons = [comparison for comparison in self.comparisons if comparison.quantity == quantity]
        return next((c for c in comparisons if (c.is_best_solo if is_best_solo else c.against == SERIAL.label)), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSummary:
    """The outcomes of one study on one kind of device.

    Attributes:
        host: the kind of host; empty unless the study has several kinds.
        stamp: `simulated`; empty for a real GPU.
        facts: driver, torch, CPU, ...
    """

    experiment: str
    device: str
    host: str
    stamp: str
    num_gpus: int
    num_blocks: int
    facts: Mapping[str, str]
    outcomes: tuple[Outcome, ...]


def summarize_devices(
    study: Study, cells: Sequence[Cell], verdicts: Sequence[Contrast], winners: Sequence[Winner]
) -> list[DeviceSummary]:
    """Return the outcomes on each kind of device of a study, in the order of its rows."""
    cases, titles = label_cases(study), METRICS | list_metrics(cells)
    rows = group_by(study.rows, lambda row: (cases[row.run_id], row.degree))
    columns = group_by(study.rows, _column)
    judged = group_by(verdicts, lambda verdict: (verdict.case, verdict.degree))
    best = {(winner.case, winner.degree): winner for winner in winners}
    outcomes: dict[tuple[str, str], list[Outcome]] = defaultdict(list)
    for place, place_cells in group_places(cells).items():
        # A case and degree with serial figures only is a baseline, not a compared group.
        if place in rows and any(cell.mode != SERIAL.label for cell in place_cells):
            first = min(rows[place], key=lambda row: row.is_sequential)
            outcome = _outcome(first, place_cells, best.get(place), judged.get(place, []), titles)
            outcomes[_column(first)].append(outcome)
    return [
        DeviceSummary(
            experiment=study.experiment,
            device=device,
            host=host,
            stamp=SIMULATED if any(row.is_simulated for row in members) else "",
            num_gpus=len({row.gpu_uuid for row in members}),
            num_blocks=len({row.block for row in members}),
            facts=_facts(members),
            outcomes=tuple(outcomes[device, host]),
        )
        for (device, host), members in columns.items()
    ]


def _column(row: Row) -> tuple[str, str]:
    return row.device, dict(row.settings).get(pooling.SETTING, "")


def _outcome(
    row: Row, cells: Sequence[Cell], winner: Winner | None, verdicts: Sequence[Contrast], titles: Mapping[str, Metric]
) -> Outcome:
    ranked = [cell for cell in cells if cell.is_compared and not (cell.is_derived and cell.num_given)]
    name, values = (SPEEDUP, {}) if winner is not None else _choose_quantity(ranked)
    if winner is not None:
        tied = winner.tied
    else:
        sign = 1 if name in TIMES else -1
        tied, _ = rank_modes({mode: sign * value.median for mode, value in values.items()}, find_slower_pairs(verdicts))
    figure = winner.speedup if winner is not None else values[tied[0]] if tied else None
    by_mode = {cell.mode: cell for cell in cells}
    first, serial = by_mode.get(tied[0]) if tied else None, by_mode.get(SERIAL.label)
    energy = first.energy if first else ""
    kinds = {cell.mode: cell.sharing.label for cell in ranked if name in cell.estimates}
    return Outcome(
        label=cells[0].case.label,
        degree=row.degree,
        programs=list_programs(row.jobs),
        settings=select_settings(row),
        # A mix in a steady window has no serial cell, although its speed-ups are relative to serial.
        kinds=kinds | {mode: mode for mode in ([SERIAL.label] if winner is not None and serial is None else [])},
        tied=tied,
        measure=titles[name].heading() if name else "",
        figure=figure,
        num_blocks=max((len(cell.values.get(name, ())) for cell in ([first] if first else ranked)), default=0),
        is_enough=has_verdicts(verdicts),
        energy=first.estimates.get(energy) if first else None,
        energy_of_serial=serial.estimates.get(energy) if serial else None,
        energy_unit=work_units.joules_per(row.unit) if first and energy in first.estimates else "",
        endings=tuple(
            _ending(cell)
            for cell in cells
            if (set(cell.results) != {Result.OK} or cell.num_saturated) and not cell.is_derived
        ),
        comparisons=tuple(
            Comparison(
                quantity=verdict.quantity.value,
                against=verdict.against,
                is_best_solo=verdict.is_against_best_solo,
                ratio=verdict.ratio,
                verdict=verdict.decision.value,
            )
            for verdict in verdicts
            if verdict.mode in tied[:1] and verdict.ratio is not None
        ),
    )


def _choose_quantity(cells: Sequence[Cell]) -> tuple[str, dict[str, Estimate]]:
    for name in dict.fromkeys(name for cell in cells for name in cell.speed):
        if estimates := {cell.mode: cell.estimates[name] for cell in cells if name in cell.estimates}:
            return name, estimates
    return "", {}


def _ending(cell: Cell) -> str:
    """Return `MIG 1g.10gb: oom`, `MPS: failed in 1 of 5 blocks`."""
    if cell.is_ranked and cell.num_saturated:
        return f"{cell.mode}: {describe_finding(cell)}"
    total, not_ok = sum(cell.results.values()), cell.results - Counter({Result.OK: cell.results[Result.OK]})
    worst = max(not_ok, key=lambda result: not_ok[result])
    share = "" if not_ok[worst] == total else f" in {not_ok[worst]} of {total} blocks"
    return f"{cell.mode}: {ENDINGS[worst].label}{share}"


def _facts(rows: Sequence[Row]) -> dict[str, str]:
    values: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        for facts in (row.facts, *(job.params for job in row.jobs)):
            for name in _FACTS.keys() & facts.keys():
                values[name].add(facts[name])
    return {words: ", ".join(sorted(values[name])) for name, words in _FACTS.items() if any(values[name])}


def to_json(studies: Sequence[DeviceSummary]) -> str:
    """Return the records as JSON with the stable digits of numbers; equal records give equal text."""
    measured = json.dumps([dataclasses.asdict(study) for study in studies])
    rounded = json.loads(measured, parse_float=lambda text: keep_stable_digits(float(text)))
    return json.dumps({"format": FORMAT, "measured": rounded}, indent=1) + "\n"


def from_json(text: str) -> list[DeviceSummary]:
    """Return the records that `to_json` wrote.

    Raises:
        ConfigError: the text is damaged, or has another format.
    """
    try:
        raw = json.loads(text)
        if raw["format"] != FORMAT:
            raise ConfigError(f"the file has format {raw['format']!r} instead of {FORMAT}")
        studies = decode(list[DeviceSummary], raw["measured"])
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"the file is damaged ({error})") from error
    for outcome in itertools.chain.from_iterable(study.outcomes for study in studies):
        has_figure, unknown = outcome.figure is not None, set(outcome.tied) - outcome.kinds.keys()
        if not outcome.programs or bool(outcome.tied) != has_figure or unknown:
            problem = "has no jobs, or its figure and its modes do not match"
            raise ConfigError(f"the file is damaged (case {outcome.label!r} {problem})")
    return studies


class Agreement(enum.StrEnum):
    """The agreement of the verdicts of a row over its columns."""

    SAME = "same"
    OPEN = "open"
    DIFFER = "differ"
    ALONE = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardColumn:
    """A study on one kind of device, and the number of its column, from 1."""

    number: int
    name: str
    source: str
    measured: DeviceSummary

    @property
    def mark(self) -> str:
        """The name of the column on the board: `[1]`."""
        return f"[{self.number}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """A table of several studies; `common` lists the settings that are equal in all entries, in words."""

    columns: tuple[BoardColumn, ...]
    lines: tuple[MatchedCase[Outcome], ...]
    common: tuple[str, ...]

    def judge(self, line: MatchedCase[Outcome]) -> tuple[Agreement, str]:
        """Return the agreement of the entries of a line, and its reason; only of real GPUs if there are any."""
        judged = {number: outcome for number, outcome in line.members.items() if len(outcome.kinds) > 1}
        stamps = {number: self.columns[number].measured.stamp for number in judged}
        real = {number: outcome for number, outcome in judged.items() if not stamps[number]}
        judged = real or judged
        if len(judged) < 2:
            return Agreement.ALONE, ""
        marks = {number: self.columns[number].mark for number in judged}
        notes = " (settings differ)" if any(line.differs[number] for number in judged) else ""
        notes += "" if real else f" ({' and '.join(sorted({stamps[number] for number in judged}))})"
        best = {number: outcome.best for number, outcome in judged.items()}
        common = set.intersection(*best.values())
        undecided = [marks[number] for number, kinds in best.items() if len(kinds) > 1]
        if common and not undecided:
            return Agreement.SAME, f"{common.pop()}{notes}"
        if common:
            place = "in all" if len(undecided) == len(judged) else f"on {join_words(undecided)}"
            decided = sorted(set().union(*(kinds for kinds in best.values() if len(kinds) == 1)))
            place += f", {join_words(decided)} elsewhere" if decided else ""
            return Agreement.OPEN, f"undecided {place}{notes}"
        for number, outcome in judged.items():
            absent = set.union(*best.values()) - set(outcome.kinds.values())
            if absent:
                return Agreement.OPEN, f"{join_words(sorted(absent))} has no figure on {marks[number]}{notes}"
        parts = [f"{' or '.join(sorted(kinds))} on {marks[number]}" for number, kinds in best.items()]
        return Agreement.DIFFER, f"{join_words(parts)}{notes}"


def make_board(columns: Sequence[BoardColumn]) -> Board:
    """Make a board with the columns in the given order."""
    places = [(number, outcome) for number, column in enumerate(columns) for outcome in column.measured.outcomes]
    _, shared = find_varying_params([outcome for _, outcome in places])
    settings = [setting for _, outcome in places for setting in outcome.settings.items()]
    common = [f"{key} {value}" for key, value in dict(settings).items() if settings.count((key, value)) == len(places)]
    return Board(columns=tuple(columns), lines=tuple(match_cases(places)), common=(*shared, *common))
