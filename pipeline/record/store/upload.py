"""Upload of a spool folder to its MLflow runs: a parent run for the group, a child run for each job.

`begin` and `send` may be killed at any point and repeated: existing runs are found by their tags, MLflow ignores
duplicate metric rows and accepts equal params, files are replaced, and the folder is removed only after MLflow has
accepted all its contents.
"""

from __future__ import annotations

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

from pipeline.base.domain import layout, mig_table, work_units
from pipeline.base.domain.marks import read_marks
from pipeline.base.domain.records import Result
from pipeline.base.domain.samples import thin_points
from pipeline.base.domain.sharing_modes import PROFILE
from pipeline.base.domain.tags import GROUP, Tag, stored_name
from pipeline.base.mlflow_internals.file_store import TORN, read_script_runs
from pipeline.base.system import locks, regular_files
from pipeline.base.system.errors import TrackingError
from pipeline.base.system.secrets import mask_text
from pipeline.base.system.words import escape_to_utf8, list_first
from pipeline.observe import sample_figures
from pipeline.observe.sample_figures import Fields
from pipeline.observe.table import format_line
from pipeline.record import group_folder, request_table, sample_series
from pipeline.record.group_folder import ChildRecord, Record, RunRecord
from pipeline.record.sample_series import About, Series, SeriesKey
from pipeline.record.store.content import RunContent, can_keep_file
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
        described: params and tags that MLflow already has, by run id.
        failed: artifact URIs of failed jobs, by job index; empty until the group is sent.
    """

    parent: str
    children: dict[int, str]
    failed: dict[int, str] = field(default_factory=dict)
    described: dict[str, RunContent] = field(default_factory=dict)


StoreOpener = Callable[[str | None], Store]
"""Opens the store of a record's `uri`."""


def begin(opened: StoreOpener, folder: Path) -> RunIds:
    """Create the group's runs with the params and tags known so far; MLflow's UI shows the group while it runs."""
    with locks.hold_lock(folder / layout.SEND_LOCK):  # excludes a second sender, such as `tracking flush`
        record = group_folder.read(folder)
        store = opened(record.uri)
        runs = _find_or_create_runs(store, folder, record)
        for run, run_id in ((record.parent, runs.parent), *((c, runs.children[c.index]) for c in record.children)):
            runs.described[run_id] = content = _describe_run(run)
            _log(store, run_id, RunContent(params=content.params))
        return runs


def send(opened: StoreOpener, folder: Path, *, series_points: int, begun: RunIds | None = None) -> RunIds | None:
    """Upload a closed spool folder, end its runs, remove the folder, and return the runs; `None` if it was sent before.

    MLflow receives at most `series_points` points of each series; the table in the artifacts contains all points.
    `begun` is the result of `begin` if this process called it.

    Raises:
        TrackingError: the record is not closed, or cannot be read.
    """
    if not folder.exists():
        return None
    with locks.hold_lock(folder / layout.SEND_LOCK):  # excludes a second sender, such as `tracking flush`
        if not folder.exists():
            return None
        record = group_folder.read(folder)
        store = opened(record.uri)
        unfinished = [run.name for run in (record.parent, *record.children) if run.status == "RUNNING"]
        if record.state != "closed" or unfinished:
            running = ", ".join(unfinished) or "none"
            raise TrackingError(
                f"the group in {folder} has not ended (state: {record.state}; running: {running}); send it later"
            )
        runs = _find_or_create_runs(store, folder, record)
        if any(folder.glob(f"{_SCRATCH}*")):
            _remove_torn(store, (runs.parent, *runs.children.values()))
        with tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=folder) as scratch:
            upload = _Upload(
                store=store,
                folder=folder,
                record=record,
                samples=sample_series.read_samples(folder / layout.SAMPLES),
                fields=sample_figures.read_fields(folder / layout.ARTIFACTS / layout.FIELDS),
                scratch=Path(scratch),
                series_points=series_points,
                described=begun.described if begun is not None else {},
            )
            for child in record.children:
                upload.send_child(child, runs.children[child.index])
            upload.send_parent(runs.parent)
        for child in record.children:
            if child.status == "FAILED":
                runs.failed[child.index] = store.client.get_run(runs.children[child.index]).info.artifact_uri
        store.sync()
        upload.move_left_out_files()
        accepted = folder.with_name(layout.SENT_PREFIX + folder.name)
        folder.rename(accepted)
    shutil.rmtree(accepted, ignore_errors=True)
    return runs


def amend(store: Store, file: Path) -> None:
    """Add an amendment's metrics and result to its group's run, and remove its file.

    Raises:
        TrackingError: the store has no finished run of that group yet.
    """
    if not file.exists():
        return
    amendment = group_folder.read_amendment(file)
    all_runs = _find_runs(store, store.open_experiment(amendment.experiment), amendment.spool_id)
    runs = [run for run in all_runs if run.data.tags.get(Tag.ROLE) == GROUP]
    # The end of a running group is sent later and would overwrite the amendment.
    if not runs or runs[0].info.status == "RUNNING":
        raise TrackingError(f"the group of {file.name} is not in the store yet; send the group first")
    run_id, result = runs[0].info.run_id, Result(amendment.result)
    for name, value in amendment.metrics.items():
        if runs[0].data.metrics.get(name) != value:
            store.client.log_metric(run_id, name, value)
    known = runs[0].data
    is_simulated = Tag.SIMULATED in known.tags
    metrics, marks = known.metrics | amendment.metrics, read_marks(known.tags)
    description = format_line(result, amendment.reason, metrics, marks=marks, is_simulated=is_simulated)
    store.set_tag(run_id, Tag.DESCRIPTION, description)
    if runs[0].data.tags.get(Tag.RESULT) != result:
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
    record: Record
    samples: Mapping[SeriesKey, Series]
    fields: Fields
    scratch: Path
    series_points: int
    described: Mapping[str, RunContent]
    left_out: list[Path] = field(default_factory=list)

    def send_child(self, child: ChildRecord, run_id: str) -> None:
        content = _describe_run(child)
        self._add_metrics(content, child, child.series)
        for name, points in child.series.items():
            few = thin_points(points, self.series_points)
            content.add_metric(name, [(step, self._to_ms(t_ns), value) for step, t_ns, value in few])
        self._add_sampled(content, sample_series.select_child_series(self.samples, child, self.fields))
        folder = self.folder / child.folder
        scripts = read_script_runs(folder / layout.SCRIPT_STORE)
        num_metrics = sum(len(script.metrics) for script in scripts)
        most_points = max(self.series_points, MAX_OWN_POINTS // max(num_metrics, 1))
        for script in scripts:
            for name in content.add_script_run(script, most_points):
                place = Path(layout.SCRIPT_METRICS) / script.prefix / name
                self._is_taken(run_id, script.metric_files[name], place)
        places = [(folder, ""), *(pair for script in scripts for pair in script.artifacts)]
        table = request_table.write(folder / layout.REQUESTS, self.record.clock, self.scratch)
        if table is not None:
            self.store.client.log_artifact(run_id, str(table))
        without = [folder / layout.SCRIPT_STORE, *([folder / layout.REQUESTS] if table else [])]
        self._log_below(run_id, content, places, without)
        self._finish(run_id, child, content)

    def send_parent(self, run_id: str) -> None:
        content = _describe_run(self.record.parent)
        self._add_metrics(content, self.record.parent, {})
        self._add_sampled(content, {key.metric: one for key, one in self.samples.items() if key.job is None})
        self._log_below(run_id, content, [(self.folder / layout.ARTIFACTS, "")])
        if self.samples:
            table = sample_series.write_table(
                self.samples, self.record.clock, self.scratch, _describe_samples(self.record)
            )
            self.store.client.log_artifact(run_id, str(table))
        self._finish(run_id, self.record.parent, content)

    def _to_ms(self, t_ns: int) -> int:
        return self.record.clock.to_wall_ms(t_ns)

    def _find_end_ms(self, run: RunRecord) -> int:
        return self._to_ms(run.start_ns if run.end_ns is None else run.end_ns)

    def _add_metrics(self, content: RunContent, run: RunRecord, series_names: Mapping[str, object]) -> None:
        for name, value in run.metrics.items():
            # MLflow would add a figure with the same name as a series to this series, as one more point.
            content.add_metric(
                f"summary/{name}" if name in series_names else name, [(0, self._find_end_ms(run), value)]
            )

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
    ) -> None:
        """Log the files below each folder under its target path; list omitted files in a tag.

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

    def _name_files(self, what: str, paths: Sequence[Path]) -> str:
        names = [path.relative_to(self.folder).as_posix() for path in paths]
        return escape_to_utf8(f"{list_first(names, MAX_NAMED)} ({what})")

    def _finish(self, run_id: str, run: RunRecord, content: RunContent) -> None:
        _log(self.store, run_id, content, self.described.get(run_id))
        if content.long_values:
            path = self.scratch / layout.LONG_VALUES
            path.write_text(json.dumps(content.long_values, indent=2), encoding="utf-8")
            self.store.client.log_artifact(run_id, str(path))
        self.store.client.set_terminated(run_id, status=run.status, end_time=self._find_end_ms(run))


def _describe_samples(record: Record) -> About:
    tags = record.parent.tags
    device = tags.get(Tag.DEVICE, "")
    # The name of a MIG device that existed before the study contains its profile.
    of_device = device.partition(" MIG ")[2]
    profiles = {child.gi_id: child.params.get(f"placement.{PROFILE}", of_device) for child in record.children}
    return About(
        device=device,
        instances={gi_id: mig_table.split_name(profile)[0] for gi_id, profile in profiles.items() if gi_id is not None},
        is_simulated=Tag.SIMULATED in tags,
    )


def _describe_run(run: RunRecord) -> RunContent:
    content = RunContent()
    for key, value in run.params.items():
        content.add_param(key, value)
    for key, value in run.tags.items():
        content.add_tag(key, value)
    return content


def _log(store: Store, run_id: str, content: RunContent, known: RunContent | None = None) -> None:
    from mlflow.entities import Metric, Param, RunTag

    for batch in content.make_batches(known):
        store.client.log_batch(
            run_id,
            metrics=[Metric(key, value, t_ms, step) for key, (step, t_ms, value) in batch.metrics],
            params=[Param(key, value) for key, value in batch.params],
            tags=[RunTag(key, value) for key, value in batch.tags],
        )


def _find_or_create_runs(store: Store, folder: Path, record: Record) -> RunIds:
    counted = {child.params[work_units.PARAM] for child in record.children if work_units.PARAM in child.params}
    experiment_id = store.open_experiment(record.experiment, counted)
    known = _find_known_runs(store, folder, record, experiment_id)

    def keep() -> None:
        ids = {"uri": mask_text(store.uri), "inode": store.inode, "experiment_id": experiment_id, "runs": known}
        group_folder.write_json(folder / layout.RUN_IDS, ids)

    if not known:
        keep()  # write the file before the first run is created: a folder without this file has no runs

    def ensure(key: str, run: RunRecord, tags: dict[str, str]) -> str:
        if key not in known:
            tags |= {stored_name(Tag.SPOOL_ID): record.spool_id, Tag.RUN_NAME: run.name}
            tags |= _describe_run(run).tags  # setting tags on creation takes a third of the time of setting them later
            created = store.client.create_run(experiment_id, record.clock.to_wall_ms(run.start_ns), tags, run.name)
            known[key] = str(created.info.run_id)
            keep()
        return known[key]

    parent = ensure("parent", record.parent, {})
    children = {
        child.index: ensure(str(child.index), child, {Tag.PARENT_RUN: parent, Tag.INDEX: str(child.index)})
        for child in record.children
    }
    return RunIds(parent, children)


def _find_known_runs(store: Store, folder: Path, record: Record, experiment_id: str) -> dict[str, str]:
    """Return run ids by `parent` or the job's index: from the folder if they are complete, otherwise from MLflow."""
    path = folder / layout.RUN_IDS
    if not path.exists():
        return {}
    try:
        ids = json.loads(path.read_text(encoding="utf-8"))
        is_of_store = (ids["uri"], ids["inode"]) == (mask_text(store.uri), store.inode)
        if is_of_store and len(ids["runs"]) == 1 + len(record.children):
            return dict(ids["runs"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # the file is damaged or incomplete, because a sender was killed: search MLflow for existing runs
    stored = _find_runs(store, experiment_id, record.spool_id)
    return {run.data.tags.get(Tag.INDEX, "parent"): str(run.info.run_id) for run in stored}


def _find_runs(store: Store, experiment_id: str, spool_id: str) -> list[Any]:
    """Return the runs of a group and its jobs, by the current or the former name of the tag."""
    for tag in (stored_name(Tag.SPOOL_ID), str(Tag.SPOOL_ID)):
        if runs := list(store.client.search_runs([experiment_id], f"tags.`{tag}` = '{spool_id}'")):
            return runs
    return []
