"""The record of a group: the one typed row that the store, bundles and every reader of results share.

A group's folder in the spool and the artifacts of its MLflow run have it as `record.json`. Readers use it alone; tags,
params and metrics of MLflow (`store/content.py`) are copies for people.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import platform
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pipeline.base.domain import layout
from pipeline.base.domain.machine_state import MachineState
from pipeline.base.domain.marks import Marks
from pipeline.base.domain.records import Result
from pipeline.base.domain.window import Window
from pipeline.base.system import json_decoder, secrets
from pipeline.base.system.errors import TrackingError
from pipeline.base.system.host_info import boot_id, machine_id
from pipeline.base.system.paths import MAX_NAME_BYTES
from pipeline.base.system.words import escape_controls, escape_to_utf8
from pipeline.record.owner import Owner

_CONVERTER = "benchmarks/convert_bundle.py"
"""Script that converts stores and bundles whose groups have no record."""
_MOST_MS = 9_000_000_000_000
"""Latest time of a run, in the year 2255: pandas counts nanoseconds in 64 bits."""
_SPOOL_ID = re.compile(r"[\w-]+")

PACK = "pack_most"
"""The param of a pack's group: the largest number of trials at a time."""
Point = tuple[int, int, float]
"""Step, monotonic ns, value."""
Series = dict[str, list[Point]]
"""Points of each series of a job, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """One instant on both clocks; converts monotonic instants to wall time since the epoch."""

    wall_ns: int
    monotonic_ns: int

    def to_wall_ns(self, t_ns: int) -> int:
        return self.wall_ns + (t_ns - self.monotonic_ns)

    def to_wall_ms(self, t_ns: int) -> int:
        return self.to_wall_ns(t_ns) // 1_000_000

    def to_monotonic_ns(self, wall_ms: int) -> int:
        return wall_ms * 1_000_000 - self.wall_ns + self.monotonic_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """The part of a record that a group and its jobs have in common: one MLflow run.

    Attributes:
        run_id: id of the MLflow run; empty before the store has the run.
        start_ns, end_ns: begin and end, as monotonic instants; `end_ns` is `None` while the run is active.
        result: `None` while the run is active.
        params: options and settings as text. A param is written once: MLflow refuses to change its value.
        facts: provenance, by name.
        notes: observations in words or as JSON text, by name: sources of listeners, files that were left out, ...
        metrics: finite figures by name, whose end is the unit; of a series, its last value.
    """

    name: str
    run_id: str = ""
    start_ns: int
    end_ns: int | None = None
    result: Result | None = None
    reason: str = ""
    params: dict[str, str] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)

    @property
    def status(self) -> str:
        """The status of the MLflow run."""
        return "RUNNING" if self.result is None else self.result.mlflow_status


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord(RunRecord):
    """One job of a group.

    Attributes:
        digest, program_digest: digest of the workload, with and without its environment.
        size: letter of the job in a mix.
        gi_id: GPU instance of the job; `None` without MIG.
        placement: facts of the job's placement: `device`, `mig_profile`, ...
        work_start_ns, work_end_ns: first and last instant of the measured work.
        script_tags: tags that the job's program set through MLflow.
    """

    index: int
    digest: str = ""
    program_digest: str = ""
    size: str | None = None
    is_co_runner: bool = False
    gi_id: int | None = None
    is_gpu: bool = True
    placement: dict[str, str] = field(default_factory=dict)
    exit_status: int | None = None
    pid: int | None = None
    work_start_ns: int | None = None
    work_end_ns: int | None = None
    script_tags: dict[str, str] = field(default_factory=dict)

    @property
    def folder(self) -> str:
        return layout.job_path(self.index)

    @property
    def all_params(self) -> dict[str, str]:
        """The params with the facts of the placement, as MLflow shows them."""
        return self.params | {f"placement.{key}": value for key, value in self.placement.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRecord(RunRecord):
    """All data of a group, except samples, series and files.

    Attributes:
        uri: tracking server to send the record to; `None` for the local store next to the spool.
        study: id of the start of the orchestrator.
        baseline_run: number of the run in its block, from 1.
        shard, case: number of the plan's shard and of the case in a block; 0 if there are none.
        key, digest: digest of the group without and with its block.
        program_digest: `digest` without the packages.
        settings, options: settings of the study, and options of the sharing mode as requested, without secrets.
        invalid, note: marks of the figures (`base/domain/marks.py`).
        later_plans: facts that differ in each plan that reuses the result, oldest first.
        host, boot_id, machine_id: identify the orchestrator's machine; empty if unknown.
    """

    spool_id: str
    experiment: str
    clock: Clock
    jobs: tuple[JobRecord, ...]
    uri: str | None = None
    study: str = ""
    scenario: str = ""
    device: str = ""
    gpu_uuid: str = ""
    is_simulated: bool = False
    profiler: str = ""
    block: int = 1
    baseline_run: int = 1
    shard: int = 0
    case: int = 0
    digest: str = ""
    key: str = ""
    program_digest: str = ""
    settings_digest: str = ""
    settings: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    window: Window | None = None
    invalid: str = ""
    note: str = ""
    later_plans: tuple[dict[str, str], ...] = ()
    host: str = field(default_factory=platform.node)
    boot_id: str = field(default_factory=boot_id)
    machine_id: str = field(default_factory=machine_id)

    @property
    def is_closed(self) -> bool:
        """True if the group and its jobs have a result."""
        return all(run.result is not None for run in (self, *self.jobs))

    @property
    def owner(self) -> Owner:
        return Owner(host=self.host, boot_id=self.boot_id, machine_id=self.machine_id)

    @property
    def marks(self) -> Marks:
        return Marks(self.invalid, self.note)

    @property
    def machine_state(self) -> MachineState:
        """The state of the machine during the run."""
        return MachineState.from_facts(self.facts | {"gpu_uuid": self.gpu_uuid})

    @property
    def plan_facts(self) -> list[dict[str, str]]:
        """The facts of the group in each plan: first its own plan, then the plans that reuse it, oldest first."""
        planned = self.facts | ({"plan_shard": str(self.shard)} if self.shard else {})
        return [planned, *(planned | later for later in self.later_plans)]

    @property
    def start_ms(self) -> int:
        """The begin by the wall clock, in ms since the epoch."""
        return self.clock.to_wall_ms(self.start_ns)

    @property
    def end_ms(self) -> int | None:
        """The end by the wall clock, in ms since the epoch; `None` while the group runs."""
        return None if self.end_ns is None else self.clock.to_wall_ms(self.end_ns)

    @property
    def run_ids(self) -> list[str]:
        """The MLflow runs of the group and of its jobs."""
        return [self.run_id, *(job.run_id for job in self.jobs)]

    def without_jobs(self) -> GroupRecord:
        """Return the record without its jobs, which readers of results do not need."""
        return dataclasses.replace(self, jobs=())


AnyRun = TypeVar("AnyRun", bound=RunRecord)


def encode(record: GroupRecord) -> str:
    """Return a record as JSON."""
    return json.dumps(json_decoder.encode(record))


def decode(raw: object) -> GroupRecord:
    """Convert parsed JSON to a record.

    Raises:
        ValueError: a value is missing, or is none that this project records.
    """
    record = json_decoder.decode(GroupRecord, raw)
    if not _SPOOL_ID.fullmatch(record.spool_id):  # the id becomes the name of a folder that is removed later
        raise ValueError(f"spool_id {record.spool_id[:40]!r} is not an id")
    runs = (record, *record.jobs)
    if not all(math.isfinite(value) for run in runs for value in run.metrics.values()):
        raise ValueError("a metric is not finite")
    walls = [record.clock.to_wall_ms(t_ns) for run in runs for t_ns in (run.start_ns, run.end_ns) if t_ns is not None]
    if not all(0 <= wall_ms < _MOST_MS for wall_ms in walls):
        raise ValueError("a run has an impossible time")
    return record


def parse(text: str | bytes, source: object, *, is_printed: bool = False) -> GroupRecord:
    """Read a record from the text of a file, whose origin is `source`.

    With `is_printed`, the record has no characters that a terminal obeys, because a command prints its texts.

    Raises:
        TrackingError: the text is no record of this version.
    """
    try:
        raw = json.loads(text)
        return decode(_escape(raw) if is_printed else raw)
    except (ValueError, RecursionError) as error:
        raise TrackingError(f"could not read {source}: {error}") from error


def _escape(raw: Any) -> Any:
    if isinstance(raw, dict):
        return {_escape(key): _escape(value) for key, value in raw.items()}
    if isinstance(raw, list):
        return [_escape(value) for value in raw]
    return escape_to_utf8(escape_controls(raw)) if isinstance(raw, str) else raw


def read(folder: Path) -> GroupRecord:
    """Read the record of a group's folder.

    Raises:
        TrackingError: the record is absent or damaged.
    """
    file = folder / layout.RECORD
    try:
        return parse(file.read_bytes(), file)
    except OSError as error:
        raise TrackingError(f"could not read {file}: {error}") from error


def read_series(folder: Path) -> dict[str, Series]:
    """Read the series of the jobs in a group's folder, by the job's index; empty if there are none."""
    for file in (folder / layout.SERIES, folder / layout.ARTIFACTS / layout.SERIES):
        if file.exists():
            return json_decoder.decode(dict[str, Series], json.loads(file.read_text(encoding="utf-8")))
    return {}


def make_refusal(store: object) -> TrackingError:
    """Return the error for a store or bundle whose groups have no record."""
    return TrackingError(f"{store} was written by an earlier version; convert it: python {_CONVERTER} {store} NEW_FILE")


def mask(record: GroupRecord) -> GroupRecord:
    """Return a record whose texts have no secrets."""
    jobs = tuple(_mask_run(job) for job in record.jobs)
    masked = _mask_run(record)
    return dataclasses.replace(
        masked,
        jobs=jobs,
        invalid=secrets.mask_text(record.invalid),
        note=secrets.mask_text(record.note),
        settings=secrets.mask(record.settings),
        options=secrets.mask(record.options),
    )


def _mask_run(run: AnyRun) -> AnyRun:
    return dataclasses.replace(
        run,
        reason=secrets.mask_text(run.reason),
        params={key: str(secrets.mask(value, key)) for key, value in run.params.items()},
        facts={key: secrets.mask_text(value) for key, value in run.facts.items()},
        notes={key: secrets.mask_text(value) for key, value in run.notes.items()},
    )


def map_texts(record: GroupRecord, change: Callable[[str], str]) -> GroupRecord:
    """Apply a change to the texts of a record and of its jobs, but not to names of facts, params and metrics."""
    changed = _map_run(record, change)
    return dataclasses.replace(
        changed,
        jobs=tuple(_map_run(job, change) for job in record.jobs),
        device=change(record.device),
        invalid=change(record.invalid),
        note=change(record.note),
        settings={key: change(text) for key, text in record.settings.items()},
        options=_map_value(record.options, change),
        later_plans=tuple({key: change(text) for key, text in plan.items()} for plan in record.later_plans),
    )


def _map_run(run: AnyRun, change: Callable[[str], str]) -> AnyRun:
    maps = ("params", "facts", "notes", *(("placement", "script_tags") if isinstance(run, JobRecord) else ()))
    changes: dict[str, Any] = {
        name: {key: change(text) for key, text in getattr(run, name).items()} for name in maps if getattr(run, name)
    }
    return dataclasses.replace(run, name=change(run.name), reason=change(run.reason), **changes)


def _map_value(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, Mapping):
        return {key: _map_value(inner, change) for key, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_map_value(inner, change) for inner in value]
    return change(value) if isinstance(value, str) else value


def collect_metrics(figures: Mapping[str, float], series: Mapping[str, Iterable[Point]]) -> dict[str, float]:
    """Return the finite figures of a run and the last value of each series.

    A figure with the name of a series is stored as `summary/NAME`.
    """
    metrics = {f"summary/{name}" if name in series else name: value for name, value in figures.items()}
    for name, points in series.items():
        finite = [point for point in points if math.isfinite(point[2])]
        if finite:
            metrics[name] = max(finite)[2]
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def list_not_finite(figures: Mapping[str, float], series: Mapping[str, Iterable[Point]]) -> list[str]:
    """List the figures and series that have values which are not finite."""
    names = [name for name, points in series.items() if not all(math.isfinite(value) for _, _, value in points)]
    return [*(name for name, value in figures.items() if not math.isfinite(value)), *names]


def name_script_artifacts(scripts: Iterable[str]) -> dict[str, str]:
    """Map the path of each script to the name of its artifact."""
    first = {path: index for index, path in reversed(list(enumerate(scripts)))}
    names = Counter(Path(path).name for path in first)
    return {path: _name_artifact(Path(path).name, index, names[Path(path).name] == 1) for path, index in first.items()}


def _name_artifact(name: str, index: int, is_unique: bool) -> str:
    plain, numbered = f"{layout.SCRIPT_PREFIX}{name}", f"{layout.SCRIPT_PREFIX}{index}-"
    if is_unique and len(os.fsencode(plain)) <= MAX_NAME_BYTES:
        return plain
    return numbered + os.fsencode(name)[-(MAX_NAME_BYTES - len(numbered)) :].decode(errors="ignore")


@dataclass(frozen=True, slots=True, kw_only=True)
class Original:
    """A stored group with all data that is needed to run it again.

    Attributes:
        experiment: the present name of its experiment.
        files: text of the group's artifacts, by name.
        job_locks: locked packages of each job's environment, by the job's index.
    """

    group: GroupRecord
    experiment: str
    files: dict[str, str] = field(default_factory=dict)
    job_locks: dict[str, str] = field(default_factory=dict)

    @property
    def run_id(self) -> str:
        return self.group.run_id
