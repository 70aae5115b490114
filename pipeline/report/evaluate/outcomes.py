"""What each case of a study comes to on a kind of device: best mode, gain, energy; as records that a file can hold.

A report publishes them as `cases.json`, so that a board needs neither the store nor the words of a page.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pipeline.base.domain import units
from pipeline.base.domain.group_names import ENVIRONMENT, as_flags, own_params
from pipeline.base.domain.modes import SERIAL
from pipeline.base.domain.normalise import SPEEDUP
from pipeline.base.domain.records import Result
from pipeline.base.system.errors import ConfigError
from pipeline.report.evaluate.cells import Case, Cell, by_place, cases_of, metrics_in
from pipeline.report.evaluate.metrics import MEAN_LATENCY, METRICS, P99_LATENCY, TOTAL_TIME, Metric
from pipeline.report.evaluate.statistics import Estimate
from pipeline.report.evaluate.verdicts import Verdict, Winner, leading, slower_pairs
from pipeline.report.evaluate.wording import ENDINGS, finding_in_words
from pipeline.report.read import hosts
from pipeline.report.read.records import JobRow, Row, Study

FORMAT = 1
SIMULATED = "simulated"
_LESS_IS_BETTER = (TOTAL_TIME, MEAN_LATENCY, P99_LATENCY)
_FACTS = {
    "driver_version": "driver",
    "job.torch": "torch",
    "job.cuda": "CUDA of torch",
    "power_limit_w": "power limit (W)",
    "cpu_model": "CPU model",
    "cpus": "CPUs",
}
"""Of the runs of a study, by the name of a tag or param: what a reader of several machines asks for first, in words."""
_OF_THE_COLUMN = ("device", hosts.SETTING)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Equal jobs of a case.

    Attributes:
        size: their letter, if any.
        number: how many of them run together.
        params: what their program was given, by name.
    """

    workload: str
    size: str
    number: int
    params: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a case at a degree came to on one kind of device.

    Attributes:
        label: of the case in its own study.
        settings: of the measurement, by name: window, seed, ...
        kinds: the kind of sharing of each mode that has a figure, by the label of the mode.
        tied: modes of which none was shown to be slower than the first, as of a `Winner`; empty without any figure.
        measure: what `figure` is, with its unit: the speed-up over serial where that is known.
        figure, num_blocks: of the first of `tied`.
        is_enough: whether blocks and GPUs were enough for any verdict.
        energy, energy_of_serial: the first of `tied` and one job at a time, in `energy_unit`.
        endings: what modes came to that have no figure, in words.
    """

    label: str
    degree: int
    programs: tuple[Program, ...]
    settings: Mapping[str, str]
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What one study gave on one kind of device.

    Attributes:
        host: the kind of host, where the study has several.
        stamp: what a reader must not overlook (`simulated`); empty for figures of a real GPU.
        facts: of the machine and its software, by name, in words.
    """

    experiment: str
    device: str
    host: str
    stamp: str
    num_gpus: int
    num_blocks: int
    facts: Mapping[str, str]
    outcomes: tuple[Outcome, ...]


def measured(
    study: Study, cells: Sequence[Cell], verdicts: Sequence[Verdict], winners: Sequence[Winner]
) -> list[Measured]:
    """What each kind of device of a study gave, in the order of its rows."""
    cases, titles = cases_of(study), METRICS | metrics_in(cells)
    rows: dict[tuple[Case, int], list[Row]] = defaultdict(list)
    columns: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in study.rows:
        rows[cases[row.run_id], row.degree].append(row)
        columns[_column(row)].append(row)
    judged: dict[tuple[Case, int], list[Verdict]] = defaultdict(list)
    for verdict in verdicts:
        judged[verdict.case, verdict.degree].append(verdict)
    best = {(winner.case, winner.degree): winner for winner in winners}
    found: dict[tuple[str, str], list[Outcome]] = defaultdict(list)
    for place, here in by_place(cells).items():
        # Copies one after another are no group: they have a place only beside groups that ran together.
        if rows[place] and any(cell.mode != SERIAL.label for cell in here):
            first = min(rows[place], key=lambda row: row.is_sequential)
            found[_column(first)].append(_outcome(first, here, best.get(place), judged[place], titles))
    return [
        Measured(
            experiment=study.experiment,
            device=device,
            host=host,
            stamp=_stamp(members),
            num_gpus=len({row.gpu_uuid for row in members}),
            num_blocks=len({row.block for row in members}),
            facts=_facts(members),
            outcomes=tuple(found[device, host]),
        )
        for (device, host), members in columns.items()
    ]


def _column(row: Row) -> tuple[str, str]:
    return row.device, dict(row.settings).get(hosts.SETTING, "")


def _stamp(rows: Sequence[Row]) -> str:
    return SIMULATED if any(row.is_simulated for row in rows) else ""


def _outcome(
    row: Row, cells: Sequence[Cell], winner: Winner | None, verdicts: Sequence[Verdict], titles: Mapping[str, Metric]
) -> Outcome:
    ranked = [cell for cell in cells if cell.is_compared and not (cell.is_derived and cell.num_given)]
    name, values = (SPEEDUP, {}) if winner is not None else _compared(ranked)
    figure: Estimate | None
    if winner is not None:
        tied, figure, is_enough = winner.tied, winner.speedup, winner.is_enough
    else:
        sign = 1 if name in _LESS_IS_BETTER else -1
        tied, _ = leading({mode: sign * each.median for mode, each in values.items()}, slower_pairs(verdicts))
        figure, is_enough = (values[tied[0]] if tied else None), any(v.p_adjusted is not None for v in verdicts)
    by_mode = {cell.mode: cell for cell in cells}
    first, serial = by_mode.get(tied[0]) if tied else None, by_mode.get(SERIAL.label)
    energy = units.energy_of(row.unit) if row.unit else ""
    kinds = {cell.mode: cell.sharing.label for cell in ranked if name in cell.estimates}
    metric = titles.get(name, Metric("", ""))
    return Outcome(
        label=cells[0].case.label,
        degree=row.degree,
        programs=_programs(row.jobs),
        settings={key: value for key, value in row.settings if value and key not in _OF_THE_COLUMN},
        # Of a mix in a steady window, serial is the unit of all the others and no cell.
        kinds=kinds | {mode: mode for mode in ([SERIAL.label] if winner is not None and serial is None else [])},
        tied=tied,
        measure=f"{metric.title} ({metric.unit})" if metric.unit else metric.title,
        figure=figure,
        num_blocks=max((len(cell.values.get(name, ())) for cell in ([first] if first else ranked)), default=0),
        is_enough=is_enough,
        energy=first.estimates.get(energy) if first else None,
        energy_of_serial=serial.estimates.get(energy) if serial else None,
        energy_unit=units.joules_per(row.unit) if first and energy in first.estimates else "",
        endings=tuple(
            _ending(cell)
            for cell in cells
            if (set(cell.results) != {Result.OK} or cell.num_saturated) and not cell.is_derived
        ),
    )


def _compared(cells: Sequence[Cell]) -> tuple[str, dict[str, Estimate]]:
    """By what cells without a winner are compared, the first of their quantities that any has, and each mode's."""
    for name in dict.fromkeys(name for cell in cells for name in cell.speed):
        if found := {cell.mode: cell.estimates[name] for cell in cells if name in cell.estimates}:
            return name, found
    return "", {}


def _ending(cell: Cell) -> str:
    """`MIG 1g.10gb: oom`, `MPS: failed in 1 of 5 blocks`."""
    if cell.is_ranked and cell.num_saturated:
        return f"{cell.mode}: {finding_in_words(cell)}"
    total, not_ok = sum(cell.results.values()), cell.results - Counter({Result.OK: cell.results[Result.OK]})
    worst = max(not_ok, key=lambda result: not_ok[result])
    share = "" if not_ok[worst] == total else f" in {not_ok[worst]} of {total} blocks"
    return f"{cell.mode}: {ENDINGS[worst].label}{share}"


def _programs(jobs: Sequence[JobRow]) -> tuple[Program, ...]:
    number, first = Counter(job.label for job in jobs), {job.label: job for job in reversed(jobs)}
    return tuple(
        Program(
            workload=job.params.get("workload", ""),
            size=job.size or "",
            number=number[label],
            params={k: v for k, v in as_flags(own_params(job.params)).items() if k != ENVIRONMENT},
        )
        for label, job in sorted(first.items())
    )


def _facts(rows: Sequence[Row]) -> dict[str, str]:
    found: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        for told in (row.facts, *(job.params for job in row.jobs)):
            for name in _FACTS.keys() & told.keys():
                found[name].add(told[name])
    return {words: ", ".join(sorted(found[name])) for name, words in _FACTS.items() if any(found[name])}


def to_json(found: Sequence[Measured]) -> str:
    """The records as text; equal records give equal text."""
    return json.dumps({"format": FORMAT, "measured": [dataclasses.asdict(each) for each in found]}, indent=1) + "\n"


def from_json(text: str) -> list[Measured]:
    """The records that `to_json` wrote.

    Raises:
        ConfigError: the text is damaged, or of another version.
    """
    try:
        told = json.loads(text)
        if told["format"] != FORMAT:
            raise ConfigError(f"it has format {told['format']!r}, and this version reads format {FORMAT}")
        return [_measured(each) for each in told["measured"]]
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        if isinstance(error, ConfigError):
            raise
        seen = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise ConfigError(f"it is damaged ({seen})") from error


def _measured(told: Mapping[str, Any]) -> Measured:
    return Measured(
        experiment=_a(str, told["experiment"]),
        device=_a(str, told["device"]),
        host=_a(str, told["host"]),
        stamp=_a(str, told["stamp"]),
        num_gpus=_a(int, told["num_gpus"]),
        num_blocks=_a(int, told["num_blocks"]),
        facts=_texts(told["facts"]),
        outcomes=tuple(map(_outcome_told, told["outcomes"])),
    )


def _outcome_told(told: Mapping[str, Any]) -> Outcome:
    programs = [
        Program(
            workload=_a(str, each["workload"]),
            size=_a(str, each["size"]),
            number=_a(int, each["number"]),
            params=_texts(each["params"]),
        )
        for each in told["programs"]
    ]
    outcome = Outcome(
        label=_a(str, told["label"]),
        degree=_a(int, told["degree"]),
        programs=tuple(programs),
        settings=_texts(told["settings"]),
        kinds=_texts(told["kinds"]),
        tied=tuple(_a(str, mode) for mode in told["tied"]),
        measure=_a(str, told["measure"]),
        figure=_estimate(told["figure"]),
        num_blocks=_a(int, told["num_blocks"]),
        is_enough=_a(bool, told["is_enough"]),
        energy=_estimate(told["energy"]),
        energy_of_serial=_estimate(told["energy_of_serial"]),
        energy_unit=_a(str, told["energy_unit"]),
        endings=tuple(_a(str, ending) for ending in told["endings"]),
    )
    if not programs or bool(outcome.tied) != (outcome.figure is not None) or set(outcome.tied) - outcome.kinds.keys():
        raise ValueError(f"case {outcome.label!r} does not say which jobs or modes its figure is of")
    return outcome


def _estimate(told: Any) -> Estimate | None:
    if told is None:
        return None
    low, high = (None if told[name] is None else float(told[name]) for name in ("low", "high"))
    return Estimate(median=float(told["median"]), low=low, high=high, n=_a(int, told["n"]))


def _texts(told: Any) -> dict[str, str]:
    return {_a(str, key): _a(str, value) for key, value in told.items()}


def _a(kind: type[_T], told: Any) -> _T:
    if not isinstance(told, kind):
        raise TypeError(f"{told!r} is no {kind.__name__}")
    return told
