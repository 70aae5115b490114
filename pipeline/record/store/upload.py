"""Upload of a spool folder to its MLflow runs: a parent run for the group, a child run for each job.

`begin` and `send` may be killed at any point and repeated: existing runs are found by their tags, MLflow ignores
duplicate metric rows and accepts equal params, files are replaced, and the folder is removed only after MLflow has
accepted all its contents.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import logging
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pipeline.base.domain import group_names, layout, mig_table, work_units
from pipeline.base.domain.records import Result
from pipeline.base.domain.samples import thin_points
from pipeline.base.domain.script_runs import TORN, read_script_runs
from pipeline.base.domain.sharing_modes import PROFILE
from pipeline.base.domain.tags import GROUP, Tag, stored_name
from pipeline.base.system import locks, regular_files
from pipeline.base.system.errors import TrackingError
from pipeline.base.system.secrets import mask_text
from pipeline.base.system.words import escape_to_utf8, list_first
from pipeline.observe import sample_figures
from pipeline.observe.sample_figures import Fields
from pipeline.record import group_folder, group_record, sample_series
from pipeline.record.group_record import GroupRecord, JobRecord, RunRecord
from pipeline.record.sample_series import About, Series, SeriesKey
from pipeline.record.store import content, run_artifacts
from pipeline.record.store.content import MAX_KEY, Point, RunContent, can_keep_file
from pipeline.record.store.local_store import Store

MAX_FILES, MAX_FILE_BYTES = 10_000, 8 * 2**30
"""Limits of the artifacts of one job; further files are moved to a folder next to the store."""
MAX_NAMED = 10
MAX_OWN_POINTS = 50_000
"""Limit of points of all metrics that a program logged: MLflow stores a few thousand points per second.

The artifacts contain all points.
"""

_SCRATCH = ".upload-"
_NO_FILE = "not a regular file"
_TOO_MANY = "too many or too large, moved next to the store"
_UNREADABLE = "cannot be read, moved next to the store"
_NOT_TAKEN = "refused by the store, moved next to the store"
_KEPT = (_TOO_MANY, _UNREADABLE, _NOT_TAKEN)
_REFUSED = (HTTPStatus.BAD_REQUEST, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
"""HTTP statuses with which a server, or a proxy in front of it, refuses a file because of its name or size."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunIds:
    """The MLflow runs of a group and of its jobs, by job index.

    Attributes:
        described: params and tags that MLflow is known to have, by run id.
        failed: artifact URIs of failed jobs, by job index; empty until the group is sent.
    """

    parent: str
    jobs: dict[int, str]
    failed: dict[int, str] = field(default_factory=dict)
    described: dict[str, RunContent] = field(default_factory=dict)

    def name_runs(self, record: GroupRecord) -> GroupRecord:
        """Return a record with these runs."""
        jobs = (dataclasses.replace(job, run_id=self.jobs[job.index]) for job in record.jobs)
        return dataclasses.replace(record, run_id=self.parent, jobs=tuple(jobs))


StoreOpener = Callable[[str | None], Store]
"""Opens the store of a record's `uri`."""


def begin(opened: StoreOpener, folder: Path) -> RunIds:
    """Create the group's runs with the params and tags known so far; MLflow's UI shows the group while it runs."""
    with locks.hold_lock(folder / layout.SEND_LOCK):  # excludes a second sender, such as `tracking flush`
        record = group_record.read(folder)
        store = opened(record.uri)
        runs = _find_or_create_runs(store, folder, record)
        contents = {runs.parent: _describe_group(record)}
        contents |= {runs.jobs[job.index]: _describe_job(record, job) for job in record.jobs}
        for run_id, content in contents.items():
            _log(store, run_id, RunContent(params=content.params))
            runs.described.setdefault(run_id, RunContent()).params = content.params
        run_artifacts.log_record(store, runs.name_runs(record))
        return runs


def send(opened: StoreOpener, folder: Path, *, series_points: int, begun_runs: RunIds | None = None) -> RunIds | None:
    """Upload a closed spool folder, end its runs, remove the folder, and return the runs; `None` if it was sent before.

    MLflow receives at most `series_points` points of each series; the table in the artifacts contains all points.
    `begun_runs` is the result of `begin` if this process called it.

    Raises:
        TrackingError: the record is not closed, or cannot be read.
    """
    if not folder.exists():
        return None
    with locks.hold_lock(folder / layout.SEND_LOCK):  # excludes a second sender, such as `tracking flush`
        if not folder.exists():
            return None
        record = group_record.read(folder)
        store = opened(record.uri)
        if not record.is_closed:
            running = ", ".join(run.name for run in (record, *record.jobs) if run.result is None)
            raise TrackingError(f"the group in {folder} has not ended (running: {running}); send it later")
        runs = _find_or_create_runs(store, folder, record)
        if begun_runs is None:  # readers expect a record beside other artifacts
            open_record = dataclasses.replace(record, result=None, end_ns=None)
            run_artifacts.log_record(store, runs.name_runs(open_record))
        if any(folder.glob(f"{_SCRATCH}*")):
            _remove_torn(store, (runs.parent, *runs.jobs.values()))
        with tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=folder) as scratch:
            upload = _Upload(
                store=store,
                folder=folder,
                record=runs.name_runs(record),
                samples=_read_samples(folder),
                series=group_record.read_series(folder),
                fields=sample_figures.read_fields(folder / layout.ARTIFACTS / layout.FIELDS),
                scratch=Path(scratch),
                series_points=series_points,
                described=begun_runs.described if begun_runs is not None else {},
            )
            upload.send_parent([upload.send_child(job) for job in upload.record.jobs])
        for job in record.jobs:
            if job.status == "FAILED":
                runs.failed[job.index] = store.client.get_run(runs.jobs[job.index]).info.artifact_uri
        store.sync()
        upload.move_left_out_files()
        accepted = folder.with_name(layout.SENT_PREFIX + folder.name)
        folder.rename(accepted)
    shutil.rmtree(accepted, ignore_errors=True)
    return runs


def _read_samples(folder: Path) -> Mapping[SeriesKey, Series]:
    """Read the samples of a group's folder: of a study as lines, of a bundle as a table."""
    table = folder / layout.ARTIFACTS / layout.SAMPLE_TABLE
    return sample_series.read_table(table) if table.exists() else sample_series.read_samples(folder / layout.SAMPLES)


def amend(store: Store, file: Path) -> None:
    """Add an amendment's metrics and result to its group's run, and remove its file.

    Raises:
        TrackingError: the store has no finished run of that group yet.
    """
    lock = file.with_suffix(".lock")
    with suppress(FileNotFoundError), locks.hold_lock(lock):  # a second sender would read the record before this change
        if file.exists():
            _amend(store, file)
        lock.unlink(missing_ok=True)


def _amend(store: Store, file: Path) -> None:
    amendment = group_folder.read_amendment(file)
    all_runs = _find_runs(store, store.open_experiment(amendment.experiment), amendment.spool_id)
    runs = [run for run in all_runs if run.data.tags.get(Tag.ROLE) == GROUP]
    # The end of a running group is sent later and would overwrite the amendment.
    if not runs or runs[0].info.status == "RUNNING":
        raise TrackingError(f"the group of {file.name} is not in the store yet; send the group first")
    run_id, result = runs[0].info.run_id, Result(amendment.result)
    recorded = run_artifacts.read_record(store, run_id)
    record = dataclasses.replace(
        recorded, result=result, reason=amendment.reason, metrics=recorded.metrics | amendment.metrics
    )
    run_artifacts.log_record(store, record)
    for name, value in amendment.metrics.items():
        if recorded.metrics.get(name) != value:
            store.client.log_metric(run_id, name, value)
    store.set_tag(run_id, Tag.DESCRIPTION, content.describe_ending(record, record))
    if recorded.result is not result:
        store.set_tag(run_id, Tag.RESULT, result.value)
        store.set_tag(run_id, Tag.REASON, amendment.reason)
        # Pass the stored end time; by default MLflow sets the current time.
        store.client.set_terminated(run_id, result.mlflow_status, runs[0].info.end_time)
    store.sync()
    group_folder.remove_amendment(file, amendment)


def log_files(
    store: Store, experiment: str, run_name: str, tags: dict[str, str], folder: Path, files: Sequence[str]
) -> str:
    """Create a run that contains only these files below `folder`, and return its id.

    Raises:
        TrackingError: the store cannot be written.
    """
    from mlflow.exceptions import MlflowException

    try:
        run = store.client.create_run(store.open_experiment(experiment), tags=tags, run_name=run_name)
        run_id = str(run.info.run_id)
        try:
            for name in files:
                parent = str(Path(name).parent)
                store.client.log_artifact(run_id, str(folder / name), None if parent == "." else parent)
        except BaseException:
            with suppress(MlflowException):
                store.client.set_terminated(run_id, "FAILED")
            raise
        store.client.set_terminated(run_id)
    except (MlflowException, OSError) as error:
        raise TrackingError(str(error)) from error
    return run_id


def _remove_torn(store: Store, run_ids: Iterable[str]) -> None:
    """Remove partially written files of a killed sender from the artifacts of a local store."""
    for run_id in run_ids if store.root is not None else ():
        folder = Path(unquote(urlsplit(store.client.get_run(run_id).info.artifact_uri).path))
        for file in folder.glob(f"**/{TORN}*"):
            file.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class _Upload:
    """The upload of one folder. The final status of a run is sent last; the parent run is sent after its children."""

    store: Store
    folder: Path
    record: GroupRecord
    samples: Mapping[SeriesKey, Series]
    series: Mapping[str, group_record.Series]
    fields: Fields
    scratch: Path
    series_points: int
    described: Mapping[str, RunContent]
    left_out: list[Path] = field(default_factory=list)

    def send_child(self, job: JobRecord) -> tuple[JobRecord, group_record.Series]:
        """Upload a job; return its record with what its program logged, and the points that MLflow has."""
        run_id, reported = job.run_id, self.series.get(str(job.index), {})
        content = _describe_job(self.record, job)
        self._add_metrics(content, job, reported)
        for name, points in reported.items():
            few = thin_points(points, self.series_points)
            content.add_metric(name, [(step, self._to_ms(t_ns), value) for step, t_ns, value in few])
        of_job = RunContent(params=dict(content.params), tags=dict(content.tags), metrics=dict(content.metrics))
        folder = self.folder / job.folder
        scripts = read_script_runs(folder / layout.SCRIPT_STORE)
        num_metrics = sum(len(script.metrics) for script in scripts)
        most_points = max(self.series_points, MAX_OWN_POINTS // max(num_metrics, 1))
        for script in scripts:
            for name in content.add_script_run(script, most_points):
                place = Path(layout.SCRIPT_METRICS) / script.prefix / name
                self._is_taken(run_id, script.metric_files[name], place)
        logged = content.list_additions(of_job)
        self._add_sampled(content, sample_series.select_child_series(self.samples, job, self.fields))
        places = [(folder, ""), *(pair for script in scripts for pair in script.artifacts)]
        table = sample_series.write(folder / layout.REQUESTS, self.record.clock, self.scratch)
        if table is not None:
            self.store.client.log_artifact(run_id, str(table))
        without = [folder / layout.SCRIPT_STORE, *([folder / layout.REQUESTS] if table else [])]
        left_out = self._log_below(run_id, content, places, without)
        self._finish(job, content)
        job = dataclasses.replace(
            job,
            params=job.params | logged.params,
            metrics=job.metrics | {name: max(points)[2] for name, points in logged.metrics.items()},
            notes=job.notes | left_out,
            script_tags=job.script_tags | logged.tags,
        )
        stored = {name: content.metrics[name] for name in (*reported, *logged.metrics) if name in content.metrics}
        return job, {name: list(map(self._to_point, points)) for name, points in stored.items()}

    def send_parent(self, children: Sequence[tuple[JobRecord, group_record.Series]]) -> None:
        record = dataclasses.replace(self.record, jobs=tuple(job for job, _ in children))
        content = _describe_group(record)
        self._add_metrics(content, record, {})
        self._add_sampled(content, {key.metric: one for key, one in self.samples.items() if key.job is None})
        left_out = self._log_below(record.run_id, content, [(self.folder / layout.ARTIFACTS, "")])
        if self.samples and not (self.folder / layout.ARTIFACTS / layout.SAMPLE_TABLE).exists():
            table = sample_series.write_table(self.samples, record.clock, self.scratch, _describe_samples(record))
            self.store.client.log_artifact(record.run_id, str(table))
        series = {str(job.index): points for job, points in children if points}
        if series and not (self.folder / layout.ARTIFACTS / layout.SERIES).exists():
            path = self.scratch / layout.SERIES
            path.write_text(json.dumps(series), encoding="utf-8")
            self.store.client.log_artifact(record.run_id, str(path))
        run_artifacts.log_record(self.store, dataclasses.replace(record, notes=record.notes | left_out))
        self._finish(record, content)

    def _to_point(self, point: Point) -> group_record.Point:
        step, t_ms, value = point
        return step, self.record.clock.to_monotonic_ns(t_ms), value

    def _to_ms(self, t_ns: int) -> int:
        return self.record.clock.to_wall_ms(t_ns)

    def _find_end_ms(self, run: RunRecord) -> int:
        return self._to_ms(run.start_ns if run.end_ns is None else run.end_ns)

    def _add_metrics(self, content: RunContent, run: RunRecord, series_names: Mapping[str, object]) -> None:
        for name, value in run.metrics.items():
            if name not in series_names:
                content.add_metric(name, [(0, self._find_end_ms(run), value)])

    def _add_sampled(self, content: RunContent, sampled: Mapping[str, Series]) -> None:
        for name, one in sampled.items():
            points = [(step, self._to_ms(t_ns), value) for step, t_ns, value in one.thin(self.series_points)]
            content.add_metric(name, points)

    def move_left_out_files(self) -> None:
        """Move files that were not sent to a folder next to the store."""
        for path in self.left_out:
            place = self.folder.parents[2] / layout.LEFT_OUT / path.relative_to(self.folder.parents[1])
            place.parent.mkdir(parents=True, exist_ok=True)
            with suppress(PermissionError, FileNotFoundError):  # a file that cannot be moved is not removed either
                path.rename(place)

    def _log_below(
        self, run_id: str, content: RunContent, places: Sequence[tuple[Path, str]], without: Sequence[Path] = ()
    ) -> dict[str, str]:
        """Log the files below each folder under its target path; return a note on omitted files, if any.

        Jobs write to these folders, so they may contain links, pipes, and any number of files with any name and
        permissions.
        """
        refused: dict[str, list[Path]] = {reason: [] for reason in (_NO_FILE, *_KEPT)}
        num_bytes = num_files = 0
        for folder, target in places:
            tree = regular_files.list_files(folder, without)
            refused[_NO_FILE] += tree.special_files
            for path in tree.files:
                try:
                    size = regular_files.measure_size(path)
                except OSError:
                    refused[_UNREADABLE].append(path)
                    continue
                if num_files == MAX_FILES or num_bytes + size > MAX_FILE_BYTES:
                    refused[_TOO_MANY].append(path)
                    continue
                num_files, num_bytes = num_files + 1, num_bytes + size
                if not self._is_taken(run_id, path, Path(target) / path.relative_to(folder)):
                    refused[_NOT_TAKEN].append(path)
        if summary := "; ".join(self._name_files(reason, paths) for reason, paths in refused.items() if paths):
            content.add_tag(Tag.LEFT_OUT, summary)
            log.warning("%s: files not stored as artifacts: %s", self.folder.name, summary)
        self.left_out.extend(path for reason in _KEPT for path in refused[reason])
        return {"left_out": summary} if summary else {}

    def _is_taken(self, run_id: str, path: Path, place: Path) -> bool:
        """Log a file; return `False` if the store refuses this file."""
        if not can_keep_file(place.as_posix(), is_server=self.store.root is None):
            return False
        try:
            self.store.client.log_artifact(run_id, str(path), None if place.parent == Path() else str(place.parent))
        except OSError as error:  # connection errors are also OSErrors
            if error.errno == errno.ENAMETOOLONG:
                return False
            if getattr(getattr(error, "response", None), "status_code", None) in _REFUSED:
                return False
            raise
        return True

    def _name_files(self, reason: str, paths: Sequence[Path]) -> str:
        names = [path.relative_to(self.folder).as_posix() for path in paths]
        return escape_to_utf8(f"{list_first(names, MAX_NAMED)} ({reason})")

    def _finish(self, run: RunRecord, content: RunContent) -> None:
        _log(self.store, run.run_id, content, self.described.get(run.run_id))
        if content.long_values:
            path = self.scratch / layout.LONG_VALUES
            path.write_text(json.dumps(content.long_values, indent=2), encoding="utf-8")
            self.store.client.log_artifact(run.run_id, str(path))
        self.store.client.set_terminated(run.run_id, status=run.status, end_time=self._find_end_ms(run))


def _describe_samples(record: GroupRecord) -> About:
    # The name of a MIG device that existed before the study contains its profile.
    of_device = record.device.partition(" MIG ")[2]
    profiles = {job.gi_id: job.placement.get(PROFILE, of_device) for job in record.jobs}
    return About(
        device=record.device,
        instances={gi_id: mig_table.split_name(profile)[0] for gi_id, profile in profiles.items() if gi_id is not None},
        is_simulated=record.is_simulated,
    )


def _describe_group(record: GroupRecord) -> RunContent:
    return _describe_run(record.params, content.make_group_tags(record))


def _describe_job(record: GroupRecord, job: JobRecord) -> RunContent:
    return _describe_run(job.all_params, content.make_job_tags(record, job))


def _describe_run(params: Mapping[str, str], tags: Mapping[str, str]) -> RunContent:
    content = RunContent()
    for key, value in params.items():
        content.add_param(key, value)
    for key, value in tags.items():
        content.add_tag(key, value)
    return content


def _log(store: Store, run_id: str, content: RunContent, stored: RunContent | None = None) -> None:
    from mlflow.entities import Metric, Param, RunTag

    for batch in content.make_batches(stored):
        store.client.log_batch(
            run_id,
            metrics=[Metric(key, value, t_ms, step) for key, (step, t_ms, value) in batch.metrics],
            params=[Param(key, value) for key, value in batch.params],
            tags=[RunTag(key, value) for key, value in batch.tags],
        )


def _find_or_create_runs(store: Store, folder: Path, record: GroupRecord) -> RunIds:
    counted = {job.params[work_units.PARAM] for job in record.jobs if work_units.PARAM in job.params}
    experiment_id = store.open_experiment(record.experiment, counted)
    run_ids = _find_known_runs(store, folder, record, experiment_id)
    # A run that a killed sender created has the tags of that time, which may lack the result.
    created_contents: dict[str, RunContent] = {}

    def keep() -> None:
        ids = {"uri": mask_text(store.uri), "inode": store.inode, "experiment_id": experiment_id, "runs": run_ids}
        group_folder.write_json(folder / layout.RUN_IDS, ids)

    if not run_ids:
        keep()  # write the file before the first run is created: a folder without this file has no runs

    def ensure(key: str, run: RunRecord, described: RunContent, tags: dict[str, str]) -> str:
        if key not in run_ids:
            name = _name_group_run(store, experiment_id, record) if run is record else run.name
            tags |= {stored_name(Tag.SPOOL_ID): record.spool_id, Tag.RUN_NAME: name}
            tags |= described.tags  # setting tags on creation takes a third of the time of setting them later
            created = store.client.create_run(experiment_id, record.clock.to_wall_ms(run.start_ns), tags, name)
            run_ids[key] = str(created.info.run_id)
            created_contents[run_ids[key]] = RunContent(tags=described.tags)
            keep()
        return run_ids[key]

    parent = ensure("parent", record, _describe_group(record), {})
    children = {
        job.index: ensure(
            str(job.index),
            job,
            _describe_job(record, job),
            {Tag.PARENT_RUN: parent, Tag.INDEX: str(job.index)},
        )
        for job in record.jobs
    }
    return RunIds(parent, children, described=created_contents)


def _name_group_run(store: Store, experiment_id: str, record: GroupRecord) -> str:
    """Return the name that MLflow shows: with what differs from the first group of the experiment with this name."""
    if '"' in record.name:  # cannot be part of MLflow's condition
        return record.name
    condition = f"tags.`{Tag.ROLE}` = '{GROUP}' AND tags.`{Tag.RUN_NAME}` = \"{record.name}\""
    stored = store.client.search_runs([experiment_id], condition, max_results=1, order_by=["attributes.start_time"])
    if not stored or stored[0].data.tags.get(stored_name(Tag.KEY)) == record.key:
        return record.name
    first = None
    with suppress(TrackingError):  # a damaged record
        first = run_artifacts.find_record(store, stored[0].info.run_id)
    if first is None or first.device != record.device:  # the table has a column for the device
        return record.name
    facts = _list_named_facts(record)
    keys = group_names.find_differing_keys([facts, _list_named_facts(first)])
    texts = [f"{key}={facts[key]}".rstrip("=") if key in facts else f"no {key}" for key in keys]
    return f"{record.name} ({', '.join(texts) or f'digest {record.key[:6]}'})"[:MAX_KEY]


def _list_named_facts(record: GroupRecord) -> dict[str, str]:
    params = [group_names.spell_flags(group_names.list_program_params(job.params)) for job in record.jobs]
    values = {key: dict.fromkeys(job[key] for job in params if key in job) for job in params for key in job}
    values.pop(group_names.ENVIRONMENT, None)  # a digest means nothing to a reader
    options = {key: str(value) for key, value in record.options.items()}
    return {key: ",".join(texts) for key, texts in values.items()} | options | record.settings


def _find_known_runs(store: Store, folder: Path, record: GroupRecord, experiment_id: str) -> dict[str, str]:
    """Return run ids by `parent` or the job's index: from the folder if they are complete, otherwise from MLflow."""
    path = folder / layout.RUN_IDS
    if not path.exists() and not record.run_id:
        return {}
    try:
        ids = json.loads(path.read_text(encoding="utf-8"))
        is_of_store = (ids["uri"], ids["inode"]) == (mask_text(store.uri), store.inode)
        if is_of_store and len(ids["runs"]) == 1 + len(record.jobs):
            return dict(ids["runs"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # the file is damaged or incomplete, because a sender was killed: search MLflow for existing runs
    stored = _find_runs(store, experiment_id, record.spool_id)
    return {run.data.tags.get(Tag.INDEX, "parent"): str(run.info.run_id) for run in stored}


def _find_runs(store: Store, experiment_id: str, spool_id: str) -> list[Any]:
    """Return the runs of a group and its jobs."""
    condition = f"tags.`{stored_name(Tag.SPOOL_ID)}` = '{spool_id}'"
    return list(store.client.search_runs([experiment_id], condition))
