"""The record of a group on disk while the group runs; `tracking_sender` passes it to MLflow between windows."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import is_dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pipeline.base.domain import layout
from pipeline.base.domain.records import CO_RUNNERS, Group, Interpreter, Slot
from pipeline.base.domain.tags import read_facts
from pipeline.base.domain.window import Window
from pipeline.base.domain.work_units import ARRIVALS, PARAM
from pipeline.base.system import locks, paths, secrets
from pipeline.base.system.errors import TrackingError
from pipeline.base.system.factory import Spec
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.base.system.secrets import mask_source
from pipeline.base.system.words import escape_to_utf8
from pipeline.clean import leftovers
from pipeline.launch.job_state import Ending
from pipeline.observe import endings
from pipeline.observe.group_result import GroupResult, JobResult
from pipeline.observe.sample_figures import SampleLog
from pipeline.record import group_folder, group_record
from pipeline.record.group_folder import Amendment
from pipeline.record.group_record import AnyRun, Clock, GroupRecord, JobRecord, Series, name_script_artifacts
from pipeline.record.provenance import Origin, join_uncommitted
from pipeline.record.tracking_sender import Sender

_MASKED = (layout.GROUP, layout.UNCOMMITTED)
"""Artifacts that are already masked: their parts are masked before they are joined."""


class SpoolRun:
    """One open record; `close` adds the result. The record of a pack has only the trials that have begun."""

    def __init__(self, folder: Path, record: GroupRecord, sink: SampleLog) -> None:
        self.folder, self.sink, self.record = folder, sink, record
        self._trials: tuple[JobRecord, ...] = ()
        if group_record.PACK in record.params:
            self.record, self._trials = dataclasses.replace(record, jobs=()), record.jobs

    @property
    def scratch(self) -> Path:
        """Temporary folder of the group for sockets and pipes."""
        return leftovers.scratch_path(self.spool_id)

    @property
    def spool_id(self) -> str:
        """Id of the group in the store; also the mark in the environment of each process of the group."""
        return self.record.spool_id

    def place(self, slots: Sequence[Slot]) -> None:
        """Record each job's placement: device, GPU instance and share."""
        jobs = (
            dataclasses.replace(job, gi_id=slots[job.index].gi_id, placement=slots[job.index].placement)
            for job in self.record.jobs
        )
        self.record = dataclasses.replace(self.record, jobs=tuple(jobs))

    def add_artifact(self, name: str, text: str) -> None:
        """Write a text file as an artifact of the group, with secrets masked."""
        if name.startswith(layout.SCRIPT_PREFIX):
            text = mask_source(text, name)
        elif name not in _MASKED:
            text = secrets.mask_text(text)
        (self.folder / layout.ARTIFACTS / name).write_text(escape_to_utf8(text), encoding="utf-8")

    def begin_trial(self, index: int, slot: Slot) -> None:
        """Record on disk that a trial begins."""
        trial = dataclasses.replace(self._trials[index], start_ns=time.monotonic_ns(), placement=slot.placement)
        self._write_trial(trial)

    def end_trial(self, index: int, ending: Ending, exit_status: int | None) -> None:
        """Record on disk how a trial ended, so that it has ended although the orchestrator may be killed later."""
        (trial,) = (trial for trial in self.record.jobs if trial.index == index)
        trial = dataclasses.replace(trial, result=ending.result, reason=ending.reason, end_ns=time.monotonic_ns())
        self._write_trial(dataclasses.replace(trial, exit_status=exit_status))

    def _write_trial(self, trial: JobRecord) -> None:
        trials_begun = {recorded.index: recorded for recorded in self.record.jobs} | {trial.index: trial}
        trials = [trials_begun[index] for index in sorted(trials_begun)]
        self.record = dataclasses.replace(self.record, jobs=tuple(trials))
        group_folder.write(self.folder, self.record)

    def close(self, result: GroupResult) -> None:
        """Write the result; afterwards the folder can be sent."""
        if series := {str(job.job.index): job.series for job in result.jobs if job.series}:
            group_folder.write_json(self.folder / layout.SERIES, series)
        self.record = close_record(self.record, result)
        group_folder.write(self.folder, self.record)


class Spool:
    """The folder `<root>/spool/<study>`, in which the records of one study are opened.

    Each group is recorded with `facts` as tags and `artifacts` as text files. `origins` contains the origin of each
    program's code, by the path of its script.
    """

    def __init__(
        self,
        root: Path,
        sender: Sender,
        facts: dict[str, str],
        artifacts: dict[str, str],
        interpreters: Mapping[Spec, Interpreter] | None = None,
        uri: str | None = None,
        origins: Mapping[str, Origin] | None = None,
    ) -> None:
        self._sender, self._facts, self._artifacts = sender, facts, artifacts
        self._interpreters, self._origins = interpreters or {}, origins or {}
        # Other users may read the spool, so the password is masked; the sender has it (`tracking_server.py`).
        self._uri = uri and secrets.mask_text(uri)
        self._amendments: set[Path] = set()
        self.root = root.resolve()
        paths.make_root(self.root)
        self._folders: dict[str, Path] = {}
        self._folder = self.root / layout.SPOOL / layout.make_stamp()
        group_folder.create_below_spool(lambda: self._folder.mkdir(parents=True))
        self.study = self._folder.name

    @contextmanager
    def open(self, group: Group) -> Iterator[SpoolRun]:
        """Begin the record of a group. If `close` is not called, the next start closes the record."""
        folder = self._folder / f"{group.number:04d}-{re.sub('[^A-Za-z0-9.+_-]', '_', group.name)}"
        try:
            yield from self._open_run(group, folder)
        except OSError as error:
            fault = f"could not write the record of {group.name} in {folder}: {error}"
            remedy = "check the free space and permissions of tracking.root"
            if not self.root.is_dir():
                fault = f"{self.root}, with the results of this study, was removed while {group.name} ran"
                remedy = "set tracking.root to a folder that no job removes"
            raise TrackingError(f"{fault}; {remedy}") from error
        self._sender.send(folder)

    def _open_run(self, group: Group, folder: Path) -> Iterator[SpoolRun]:
        folder.mkdir()  # in the folder of the study, unless it was removed
        (folder / layout.ARTIFACTS).mkdir()
        lock = locks.open_file(folder / layout.LOCK)
        sink = SampleLog(folder / layout.SAMPLES)
        record = make_record(group, self.study, self._facts, self._interpreters, self._origins)
        run = SpoolRun(folder, dataclasses.replace(record, uri=self._uri), sink)
        self._folders[run.spool_id] = folder
        try:
            locks.take(lock)
            for name, text in self._artifacts.items():
                run.add_artifact(name, text)
            run.add_artifact(layout.GROUP, _encode_group(group))
            for script, name in name_script_artifacts(job.workload.script for job in group.jobs).items():
                if (source := _read_source(Path(script))) is not None:
                    run.add_artifact(name, source)
            if text := join_uncommitted(self._origins[script] for script in _list_scripts(group, self._origins)):
                run.add_artifact(layout.UNCOMMITTED, text)
            self._add_locks(folder, group)
            run.add_artifact(layout.CONFIG, group.config_text())
            group_folder.write(folder, run.record)
            with leftovers.hold_scratch(run.spool_id):
                self._sender.begin(folder)
                yield run
        finally:
            sink.close()
            os.close(lock)

    def _add_locks(self, folder: Path, group: Group) -> None:
        for job in group.jobs:
            if (interpreter := self._interpreters.get(job.workload.env)) is not None:
                jobs_folder = folder / layout.job_path(job.index)
                jobs_folder.mkdir(parents=True)
                text = "".join(f"{secrets.mask_text(escape_to_utf8(line))}\n" for line in interpreter.lock)
                (jobs_folder / layout.ENVIRONMENT).write_text(text, encoding="utf-8")

    def amend(self, row: GroupResult) -> None:
        """Add the metrics and the result of a later comparison with a baseline to a recorded group."""
        if row.spool_id is not None:
            amendment = Amendment(
                experiment=row.group.experiment,
                spool_id=row.spool_id,
                metrics=row.metrics,
                result=row.result.value,
                reason=row.reason,
                uri=self._uri,
            )
            file = group_folder.write_amendment(self._folder.parent, amendment)
            self._amendments.add(file)
            self._sender.amend(file)

    def locate_job(self, row: GroupResult, index: int) -> Path | str:
        """Return the location of a failed job's files: in the store, or in the spool if they are not sent yet."""
        folder = self._folders[row.spool_id or ""]
        uri = self._sender.failed.get(folder, {}).get(str(index))
        if uri is None:
            return folder / layout.job_path(index)
        return Path(unquote(urlsplit(uri).path)) if uri.startswith("file:") else uri

    def find_run(self, row: GroupResult) -> str | None:
        """Return the MLflow run id of a group of this study; `None` until the group is sent."""
        folder = self._folders.get(row.spool_id or "")
        return None if folder is None else self._sender.runs.get(folder)

    def list_unsent_amendments(self) -> list[Path]:
        """List the unsent amendments of this study."""
        return sorted(file for file in self._amendments if file.exists())

    def remove_if_empty(self) -> None:
        """Remove the study's folder if everything was sent."""
        for folder in (self._folder, self._folder.parent / layout.AMENDMENTS, self._folder.parent):
            with contextlib.suppress(OSError):  # not empty, or not there
                folder.rmdir()


def _list_scripts(group: Group, origins: Mapping[str, Origin]) -> list[str]:
    return [job.workload.script for job in group.jobs if job.workload.script in origins]


def make_record(
    group: Group,
    study: str,
    facts: dict[str, str],
    interpreters: Mapping[Spec, Interpreter],
    origins: Mapping[str, Origin],
) -> GroupRecord:
    """Return the record of a group that begins now."""
    now_ns = time.monotonic_ns()
    of_scripts = {script: origins[script].facts for script in _list_scripts(group, origins)}
    # A fact that is equal in all jobs becomes a fact of the group.
    shared = set.intersection(*(set(values.items()) for values in of_scripts.values())) if of_scripts else set()
    environments = {spec: {"environment_digest": interpreter.lock_digest} for spec, interpreter in interpreters.items()}
    jobs = tuple(
        JobRecord(
            name=job.name,
            start_ns=now_ns,
            params={
                "workload": job.workload.name,
                **environments.get(job.workload.env, {}),
                **dict(job.workload.params),
                **({ARRIVALS: str(job.arrivals)} if job.workload.is_rate_given else {}),
            },
            facts=dict(of_scripts.get(job.workload.script, {})),
            index=job.index,
            digest=job.workload.digest,
            program_digest=job.workload.program_digest,
            size=job.size or None,
            is_co_runner=job.is_co_runner,
            is_gpu=group.device.is_gpu,
        )
        for job in group.jobs
    )
    return GroupRecord(
        spool_id=uuid.uuid4().hex,
        experiment=group.experiment,
        clock=Clock(wall_ns=time.time_ns(), monotonic_ns=time.monotonic_ns()),
        name=group.name,
        start_ns=now_ns,
        params=_make_params(group),
        facts=facts | group.device.facts.as_texts() | dict(shared),
        jobs=jobs,
        study=study,
        scenario=group.scenario,
        device=group.device.name,
        gpu_uuid=group.device.uuid,
        is_simulated=group.device.is_simulated,
        profiler="" if group.profiler.is_none else group.profiler.name,
        block=group.block,
        baseline_run=group.run,
        shard=group.shard,
        case=group.case,
        digest=group.digest,
        key=group.key,
        program_digest=group.program_digest,
        settings_digest=group.settings_digest,
        settings=group.settings,
        options=json.loads(json.dumps(group.options)),
        window=group.window,
    )


def _make_params(group: Group) -> dict[str, str]:
    params = {
        "scenario": group.scenario,
        "degree": str(group.degree),
        "jobs": group.job_names,
        **({"co_runners": group.settings[CO_RUNNERS]} if group.has_co_runners else {}),
        **_make_window_params(group.window),
        "block": str(group.block),
        "seed": str(group.seed),
        "pin_cpus": str(group.pin_cpus),
        **({} if group.pack is None else {group_record.PACK: str(group.pack.most)}),
        "profiler": group.profiler.name,
        **({"exclusive_process": str(group.gpu.exclusive_process).lower()} if group.device.is_gpu else {}),
        **({"job_memory_mib": str(group.gpu.job_memory_mib)} if group.device.is_simulated else {}),
        **{
            f"scenario.{key}": value if isinstance(value, str) else json.dumps(value)
            for key, value in group.sharing.options
            if value is not None
        },
    }
    shared = set(group.jobs[0].workload.params).intersection(*(job.workload.params for job in group.measured))
    return params | {key: value for key, value in shared if key not in params}


def _make_window_params(window: Window) -> dict[str, str]:
    params = {"window": window.kind.value}
    if window.stops_scripts:
        params |= {"window_seconds": f"{window.seconds:g}"}
    if window.kind.is_steady:
        params |= {"window_seconds": f"{window.seconds:g}", "window_settle_s": f"{window.settle_s:g}"}
    if window.most_s:
        params |= {"window_most_s": f"{window.most_s:g}"}
    if window.slice_s:
        params |= {"window_slice_s": f"{window.slice_s:g}"}
    return params | ({"window_epochs": str(window.epochs)} if window.epochs else {})


def _read_source(script: Path) -> str | None:
    """Read a user's script; `None` for compiled and removed programs, and for those that this project's commit has."""
    if script.is_relative_to(PROJECT_DIR) or not script.is_absolute() or not script.is_file():
        return None
    content = script.read_bytes()
    return None if b"\0" in content else content.decode(errors="replace")


def _encode_group(group: Group) -> str:
    record = group_folder.read_fields(group)
    del record["config_text"]
    text = json.dumps(
        record, default=lambda value: group_folder.read_fields(value) if is_dataclass(value) else str(value)
    )
    masked = secrets.mask(json.loads(text))
    return json.dumps(masked | {"key": group.key}, indent=1)  # masking would replace this digest


def close_record(record: GroupRecord, result: GroupResult) -> GroupRecord:
    """Add the result of a group that ends now to its record."""
    now_ns, by_index = time.monotonic_ns(), {job.job.index: job for job in result.jobs}
    notes = read_facts(result.tags)
    invalid, note = notes.pop("invalid", ""), notes.pop("flag", "")
    closed = _add_ending(record, result, {}, now_ns)
    return dataclasses.replace(
        closed,
        invalid=invalid,
        note=note,
        notes=closed.notes | {key: text for key, text in notes.items() if text},
        jobs=tuple(_close_job(job, by_index.get(job.index), result, now_ns) for job in record.jobs),
    )


def _add_ending(run: AnyRun, ending: GroupResult | JobResult, series: Series, now_ns: int) -> AnyRun:
    not_finite = group_record.list_not_finite(ending.metrics, series)
    return dataclasses.replace(
        run,
        result=ending.result,
        reason=ending.reason,
        end_ns=now_ns,
        metrics=group_record.collect_metrics(ending.metrics, series),
        notes=run.notes | ({"not_finite": ", ".join(not_finite)} if not_finite else {}),
    )


def _close_job(record: JobRecord, job: JobResult | None, group: GroupResult, now_ns: int) -> JobRecord:
    if job is None:
        ending = endings.judge_absent_job(group.result)
        return dataclasses.replace(record, result=ending.result, reason=ending.reason, end_ns=now_ns)
    return dataclasses.replace(
        _add_ending(record, job, job.series, now_ns),
        start_ns=record.start_ns if job.start_ns is None else job.start_ns,
        end_ns=now_ns if job.end_ns is None else job.end_ns,
        params=record.params
        | ({PARAM: job.work_unit} if job.work_unit else {})
        | {f"job.{key}": value for key, value in job.params.items()},
        exit_status=job.exit_status,
        pid=job.pid,
        # Monotonic instants: spans of the same boot can be compared to the nanosecond.
        work_start_ns=job.start_ns,
        work_end_ns=job.end_ns,
    )
