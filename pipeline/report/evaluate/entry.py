"""The evaluation of an entry of the public table: the figures of its bundle, and the reasons to refuse it.

A bundle that was edited contradicts itself unless all copies of a number were edited: rates and the time stamps of the
steps, totals and jobs, marks and the figures on which they rest, the name of the GPU and what programs saw.
docs/community.md says which edits no check finds.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import tarfile
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pipeline.base.domain import layout, work_units
from pipeline.base.domain.normalisation import SPEEDUP
from pipeline.base.domain.records import Result
from pipeline.base.domain.sharing_modes import SERIAL, mode_of
from pipeline.base.domain.window import WindowKind
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.words import format_count, group_by, list_first
from pipeline.launch import event_reader
from pipeline.launch.interleaving import Slice
from pipeline.observe import throughput
from pipeline.observe.row_marks import FOREIGN_LOAD, MIN_OVERLAP_RATIO, describe_foreign_load
from pipeline.observe.sample_figures import Window
from pipeline.record.group_record import GroupRecord, JobRecord
from pipeline.record.store import bundle_archive, bundle_reader
from pipeline.report.evaluate.case_matching import MeasuredCase, list_programs, select_settings
from pipeline.report.evaluate.cells import label_cases, make_cells
from pipeline.report.evaluate.metrics import BEST_SOLO, ENERGY_VS_ALONE, ENERGY_VS_BEST_SOLO
from pipeline.report.evaluate.statistics import Estimate
from pipeline.report.read import rows
from pipeline.report.read.study_records import Study

CPU = "CPU"
"""The device of an entry that was measured on a CPU."""
_EXPERIMENT = re.compile(r"\+experiment=(\w+)")
_TOLERANCE = 0.01
"""Relative difference between a rate and its time stamps above which an entry is refused, apart from whole steps."""
_MOST_NAMED = 3
_SEARCH, _WINDOW = "advise", "window"
_TORCH, _OWN_PROGRAMS = "job.torch", "workloads/"
UNCHECKED = "rates lack the time stamps of their steps or slices"
"""The refusal of bundles that were measured before version 0.2.0, or from which files were removed."""
_MOST_CHARACTERS = 120
_MOST_JSON_BYTES = 1 << 22
_ACCEPTANCE = "acceptance/acceptance.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryFigure(MeasuredCase):
    """The figures of a case in one sharing mode.

    Attributes:
        over_graph, over_serial: speed over the fastest step mode alone, if that is a CUDA graph; over serial.
        energy: energy over that of the same work alone, in the same step mode as the speed.
        alone, unit: rate of one job in serial, and its work unit; it follows the host if the job waits for it.
    """

    mode: str
    over_graph: Estimate | None
    over_serial: Estimate | None
    energy: Estimate | None
    alone: Estimate | None = None
    unit: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The measurements of a bundle.

    Attributes:
        date: day of the first group, in UTC.
        gpus: UUIDs of the GPUs; of a CPU, names of the hosts.
        start: id of the start of the orchestrator.
        promises: verdict of each promise of MIG, by its name, of an acceptance.
        refusals: reasons to refuse the bundle.
        notes: what is left out of the table, and why.
    """

    experiment: str
    device: str
    driver: str
    torch: str
    date: str
    gpus: tuple[str, ...]
    start: str
    num_groups: int
    figures: tuple[EntryFigure, ...] = ()
    promises: Mapping[str, str] = field(default_factory=dict)
    refusals: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def evaluate(bundle: Path, experiments: Sequence[str]) -> Evaluation:
    """Evaluate a bundle of a study with one of these experiments, or of an acceptance.

    Raises:
        ConfigError: the file is not a bundle, or has no groups.
    """
    if bundle.name == "acceptance.tar.xz":
        return _evaluate_acceptance(bundle)
    experiment, records = bundle_reader.read_records(bundle)
    study = rows.read([bundle], experiment)
    if not study.rows:
        raise ConfigError("no group has a result")
    incomplete = _count_missing(study)
    refusals = [*_find_refusals(study, records, experiments, incomplete), *_find_contradictions(bundle, records)]
    study, notes = _leave_out(study, incomplete)
    figures = tuple(_list_figures(study))
    refusals += [] if figures else ["no valid group has a speed over its baseline"]
    first = min(study.rows, key=lambda row: row.start_ms)
    is_gpu = any(job.is_gpu for record in records for job in record.jobs)
    return Evaluation(
        experiment=experiment,
        device=first.device if is_gpu else f"{CPU}: {first.device}",
        driver=first.facts.get("driver_version", ""),
        torch=next((job.params[_TORCH] for row in study.rows for job in row.jobs if _TORCH in job.params), ""),
        date=datetime.fromtimestamp(first.start_ms / 1000, UTC).date().isoformat(),
        gpus=tuple(sorted({row.gpu_uuid if is_gpu else row.facts.get("host", "") for row in study.rows})),
        start=first.start,
        num_groups=len(study.rows),
        figures=figures,
        refusals=tuple(refusals),
        notes=(*notes, *_find_omissions(study)),
    )


def _evaluate_acceptance(bundle: Path) -> Evaluation:
    try:
        with tarfile.open(bundle, "r:xz") as archive:
            member = next(member for member in archive if member.name == _ACCEPTANCE)
            source = archive.extractfile(member)
            if source is None or member.size > _MOST_JSON_BYTES:
                raise ConfigError(f"{_ACCEPTANCE} is not a small file")
            data = json.loads(source.read())
        facts, checks = data["facts"], data["checks"]
        verdicts = {str(name): str(check["verdict"]) for name, check in checks.items()}
        refusals = ["the GPU is simulated"] if facts["is_simulated"] else []
        refusals += [] if data["is_restored"] else ["the GPU was not restored"]
        return Evaluation(
            experiment="acceptance",
            device=str(facts["gpu"]),
            driver=str(facts["driver"]),
            torch="",
            date=str(facts["began"])[:10],
            gpus=(),
            start=str(facts["began"]),
            num_groups=len(verdicts),
            promises=verdicts,
            refusals=tuple(refusals),
        )
    except (OSError, EOFError, tarfile.TarError, StopIteration, LookupError, ValueError, TypeError) as error:
        raise ConfigError(f"it is not the bundle of an acceptance: {error!r}") from error


def _list_figures(study: Study) -> Iterator[EntryFigure]:
    cases = label_cases(study)
    by_place = group_by(study.rows, lambda row: (cases[row.run_id], row.degree))
    cells = make_cells(study)
    alone = {cell.case: cell for cell in cells if cell.sharing == SERIAL and cell.degree == 1}
    for cell in cells:
        speeds = cell.figures
        if cell.is_derived or cell.sharing == SERIAL or not {BEST_SOLO, SPEEDUP} & speeds.keys():
            continue
        row = by_place[cell.case, cell.degree][0]
        solo = alone.get(cell.case)
        is_over_graph = BEST_SOLO in speeds and "CUDA graph" in cell.best_solo
        yield EntryFigure(
            label=cell.case.label,
            degree=cell.degree,
            programs=list_programs(row.jobs),
            settings={key: value for key, value in select_settings(row).items() if key != _WINDOW},
            mode=cell.mode,
            over_graph=speeds[BEST_SOLO] if is_over_graph else speeds.get(SPEEDUP) if cell.uses_cuda_graphs else None,
            over_serial=None if cell.uses_cuda_graphs else speeds.get(SPEEDUP),
            energy=speeds.get(ENERGY_VS_BEST_SOLO if is_over_graph else ENERGY_VS_ALONE),
            alone=None if solo is None else solo.figures.get(solo.throughput),
            unit=cell.unit,
        )


def _find_refusals(
    study: Study, records: Sequence[GroupRecord], experiments: Sequence[str], incomplete: Mapping[int, int]
) -> Iterator[str]:
    if study.is_rehearsal or any(record.is_simulated for record in records):
        yield "the GPU is simulated, or the study is a rehearsal: its figures mean nothing"
    if unknown := (_name_experiments(study) or {study.experiment}) - set(experiments):
        yield f"experiment {list_first(sorted(unknown), _MOST_NAMED)} is not one of the project (conf/experiment)"
    if len(study.devices) > 1:
        yield f"several devices: {list_first(study.devices, _MOST_NAMED)}; share one bundle for each"
    numbers = {row.block for row in study.rows}
    absent = set(range(1, max(numbers) + 1)) - numbers
    if incomplete.keys() == numbers:
        yield "no block is complete"
    # The time limit of a study cuts its last block only.
    if before := sorted((absent | incomplete.keys()) - {max(numbers)}):
        yield f"block {before[0]} lacks groups, although a later block ran"


def _name_experiments(study: Study) -> set[str]:
    commands = {row.facts.get("command_line", "") for row in study.rows}
    return {name for command in commands for name in _EXPERIMENT.findall(command)}


def _count_missing(study: Study) -> dict[int, int]:
    """Return the number of missing groups of each incomplete block; none for a search, whose blocks differ."""
    if _name_experiments(study) == {_SEARCH}:
        return {}
    keys = {row.key for row in study.rows}
    counts = {n: len(keys - {row.key for row in rows}) for n, rows in group_by(study.rows, lambda r: r.block).items()}
    return {number: count for number, count in counts.items() if count}


def _leave_out(study: Study, incomplete: Mapping[int, int]) -> tuple[Study, list[str]]:
    """Return a study without its incomplete blocks, unless none is complete, and a note on each."""
    complete_rows = tuple(row for row in study.rows if row.block not in incomplete)
    if not complete_rows:
        return study, []
    notes = [f"left out: block {n}, which lacks {format_count(count, 'group')}" for n, count in incomplete.items()]
    return dataclasses.replace(study, rows=complete_rows), notes


def _find_omissions(study: Study) -> Iterator[str]:
    for title, members in (
        ("invalid", [row for row in study.rows if row.marks.invalid]),
        ("without a result", [row for row in study.rows if row.result not in (Result.OK, Result.SKIPPED)]),
    ):
        if members:
            reasons = dict.fromkeys(row.marks.invalid or row.reason or row.result.value for row in members)
            reason = textwrap.shorten(next(iter(reasons)), _MOST_CHARACTERS)
            yield f"left out: {format_count(len(members), 'group')} {title}, such as: {reason}"


def _find_contradictions(bundle: Path, records: Sequence[GroupRecord]) -> Iterator[str]:
    """Yield where the numbers of a bundle contradict each other, once for each kind."""
    folder = bundle_reader.extract(bundle) / bundle_archive.GROUPS
    by_spool = {record.spool_id: record for record in records}
    texts_of_kind: dict[str, list[str]] = {}
    for record in records:
        host = by_spool.get(record.notes.get("launch", ""), record)
        for kind, text in _check_group(record, folder / host.run_id):
            texts_of_kind.setdefault(kind, []).append(f"{record.name}, block {record.block}: {text}")
    for kind, texts in texts_of_kind.items():
        yield f"{kind}: {list_first(texts, 1)}"


def _check_group(record: GroupRecord, folder: Path) -> Iterator[tuple[str, str]]:
    metrics, jobs = record.metrics, [job for job in record.jobs if not job.is_co_runner]
    kind = None if record.window is None else record.window.kind
    for unit in work_units.find_units(metrics):
        parts = [job.metrics.get(work_units.rate_of(unit), math.nan) for job in jobs]
        total = metrics[work_units.total_of(unit)]
        if not math.isclose(total, sum(parts), rel_tol=1e-6) and kind is not WindowKind.WORK:
            yield "a total differs from the sum of its jobs", f"{total:g} instead of {sum(parts):g} {unit}/s"
    names = {job.params["job.gpu_name"] for job in jobs if "job.gpu_name" in job.params}
    if record.gpu_uuid and any(name not in record.device and record.device not in name for name in names):
        yield "a program saw another GPU", f"{names.pop()} instead of {record.device}"
    seen = {job.params["job.multiprocessors"] for job in jobs if "job.multiprocessors" in job.params}
    if (number := record.facts.get("multiprocessors")) and record.scenario in ("serial", "naive") and seen - {number}:
        yield "a program saw other multiprocessors", f"{seen.pop()} instead of {number}"
    overlap = metrics.get("overlap_ratio", 1.0)
    if kind is WindowKind.STEADY and overlap < MIN_OVERLAP_RATIO and not record.invalid:
        yield "a mark is missing", f"the jobs overlapped for {overlap:.2f} of the window"
    load = describe_foreign_load(record.jobs, metrics, metrics.get("orchestrator_cpu_pct", 0.0))
    if load and FOREIGN_LOAD not in f"{record.invalid}{record.note}" and not mode_of(record.scenario).gives_up:
        yield "a mark is missing", load
    if kind in (WindowKind.STEADY, WindowKind.INTERLEAVED) and (record.scenario != SERIAL.name or len(jobs) == 1):
        yield from _check_rates(record, kind, jobs, folder)


def _check_rates(
    record: GroupRecord, kind: WindowKind, jobs: Sequence[JobRecord], folder: Path
) -> Iterator[tuple[str, str]]:
    windows = _read_windows(record, folder)
    for job in jobs:
        log = event_reader.read(folder / job.folder / layout.EVENTS)
        unit = job.params.get(work_units.PARAM, "")
        rate = job.metrics.get(work_units.rate_of(unit)) if unit else None
        if rate is None or log.requests is not None:
            continue
        again = (
            throughput.compute_step_figures(kind, unit, log, windows).get(work_units.rate_of(unit)) if windows else None
        )
        if again is None:
            if job.params.get("script", "").startswith(_OWN_PROGRAMS):
                yield UNCHECKED, f"job {job.name}"
            continue
        is_stalled = kind is WindowKind.STEADY and throughput.describe_stall(log, windows[0]) is not None
        if is_stalled and not record.invalid:
            yield "a mark is missing", f"job {job.name} stood still at an edge of the window"
        num_steps = sum(begin <= t_ns < end for begin, end in windows for t_ns in log.steps.t_ns)
        if abs(rate / again - 1) > _TOLERANCE + 2 * len(windows) / max(1, num_steps):
            yield "a rate contradicts the time stamps of the steps", f"job {job.name}: {rate:g}, not {again:g} {unit}/s"


def _read_windows(record: GroupRecord, folder: Path) -> list[Window]:
    """Return the windows in which the steps of a group count; empty if the bundle does not tell them."""
    kind = None if record.window is None else record.window.kind
    if kind is WindowKind.INTERLEAVED:
        try:
            parts: list[dict[str, Any]] = json.loads((folder / layout.ARTIFACTS / layout.SLICES).read_bytes())
            slices = [Slice(**part) for part in parts]
            return [(part.begin_ns, part.end_ns) for part in slices if part.num_jobs == len(record.jobs)]
        except (OSError, ValueError, TypeError):
            return []
    begin, end = (record.notes.get(name, "") for name in ("window_start_ns", "window_end_ns"))
    return [(int(begin), int(end))] if begin.isdecimal() and end.isdecimal() else []
