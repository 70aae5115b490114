"""The groups of a store or bundle, from their records; and tidy tables of them.

All functions raise a TrackingError if the store cannot be read; functions that need an experiment also raise it if the
store or the experiment does not exist.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.base.domain import group_names, layout
from pipeline.base.domain.normalisation import MEMORY_PEAK, SPEEDUP
from pipeline.base.domain.records import Result
from pipeline.base.domain.tags import GROUP, Tag
from pipeline.base.system.errors import TrackingError
from pipeline.clean import temporary_folder
from pipeline.observe.study_progress import PastGroup
from pipeline.record import group_record
from pipeline.record.group_record import GroupRecord, Original, RunRecord
from pipeline.record.store import bundle_reader, content, local_store, run_artifacts
from pipeline.record.store.local_store import (
    Store,
    describe_error,
    explain_missing,
    is_server,
    translate_errors,
)
from pipeline.record.store.store_access import open_if_there, open_named

if TYPE_CHECKING:
    import pandas as pd

_MOST_PAST_GROUPS = 200
"""Most recent groups of a store from which durations are estimated."""
_REQUESTS = 8
"""Requests to a server at the same time."""


def read_groups(location: Path | str, experiment: str) -> list[GroupRecord]:
    """Return all groups of an experiment, including running ones, oldest first."""
    if bundle_reader.is_bundle(location):
        name, records = bundle_reader.read_records(Path(location))
        if name != experiment:
            raise TrackingError(explain_missing(experiment, location, [name]))
        return list(records)
    return read_stored_groups(open_existing(location, experiment), experiment)


def read_stored_groups(store: Store, experiment: str) -> list[GroupRecord]:
    """Return all groups in an open store, oldest first; empty if the experiment does not exist."""
    stored = find_experiment(store, experiment)
    return [] if stored is None else sorted(_read_experiment(store, stored), key=_order)


def find_finished(location: Store | Path | str, experiment: str) -> list[GroupRecord]:
    """Return the ended groups of an experiment without their jobs, oldest first; empty if it does not exist."""
    store = location if isinstance(location, Store) else open_if_there(location)
    groups = () if store is None else read_stored_groups(store, experiment)
    return [group.without_jobs() for group in groups if group.result is not None]


def find_past_groups(location: Store | Path | str) -> list[PastGroup]:
    """Return the newest groups of a store that were successful and had no profiler, the newest first."""
    store = location if isinstance(location, Store) else open_if_there(location)
    if store is None:
        return []
    with translate_errors(f"could not read the groups from {store.uri}"):
        experiments = store.client.search_experiments()
    groups = [group for stored in experiments for group in _read_experiment(store, stored, most=_MOST_PAST_GROUPS)]
    newest = sorted(groups, key=_order, reverse=True)[:_MOST_PAST_GROUPS]
    return [_make_past_group(group) for group in newest if group.result is Result.OK and not group.profiler]


def _make_past_group(group: GroupRecord) -> PastGroup:
    window, metrics = group.window, group.metrics
    assert window is not None
    spent = {name: value for name, value in metrics.items() if re.fullmatch("time_[a-z]+_s", name)}
    spent.pop("time_idle_s", None)  # only the first groups of a study measure idle power
    if window.kind.is_steady:
        spent.pop("time_window_s", None)
    if window.most_s and "window_s" in metrics:
        num_windows = int(group.params["degree"]) if group.scenario == "serial" else 1
        spent["beyond the shortest window"] = metrics["window_s"] - num_windows * window.seconds
    return PastGroup(
        key=group.key,
        scenario=group.scenario,
        jobs=group.params["jobs"],
        window=group.settings["window"],
        kind=window.kind,
        device=group.settings["device"],
        on_top_s=sum(spent.values()),
        program=group.program_digest,
        called=_describe_programs(group.params),
        memory_mib=metrics.get(MEMORY_PEAK),
        speedup=metrics.get(SPEEDUP),
    )


def _describe_programs(params: Mapping[str, str]) -> str:
    """Return the programs of a group with their common arguments: `train --epochs 3`."""
    flags = {key: value for key, value in params.items() if key.startswith(group_names.FLAG)}
    arguments = [f"{key} {value}".strip() for key, value in group_names.spell_flags(flags).items()]
    names = "+".join(dict.fromkeys(params["jobs"].split("+")))
    return " ".join([names, *filter(None, [params.get(group_names.ARGUMENTS)]), *arguments])


def recall(root_or_uri: Path | str, run_id: str) -> Original:
    """Return the group of a run, from a folder or a server; the run may also be one of the group's jobs."""
    from mlflow.exceptions import MlflowException

    store = open_if_there(root_or_uri)
    if store is None:
        raise TrackingError(f"{root_or_uri} contains no store; set tracking.root to the store of run {run_id}")
    try:
        run = store.client.get_run(run_id)
        parent_id = run.data.tags.get(Tag.PARENT_RUN)
        run = run if parent_id is None else store.client.get_run(parent_id)
    except MlflowException as error:
        if is_server(root_or_uri) and error.error_code == "INTERNAL_ERROR":  # also if no reply came
            raise TrackingError(
                f"run {run_id} could not be read: the tracking server at {root_or_uri} gave no valid reply: "
                f"{describe_error(error)}; {local_store.choose_server_remedy(store.uri, error, 'check tracking.uri')}"
            ) from error
        raise TrackingError(
            f"run {run_id} is not in {root_or_uri} ({str(error).splitlines()[0]}); specify the store of this run with "
            "tracking.root or tracking.uri"
        ) from error
    if (role := run.data.tags.get(Tag.ROLE)) != GROUP:
        seen = f"its tag {Tag.ROLE} is {role!r}" if role else f"it has no tag {Tag.ROLE}"
        raise TrackingError(
            f"run {run_id} is neither a group nor a job of this project: {seen}; choose the run of a group or a job"
        )
    group = run_artifacts.read_record(store, run.info.run_id, is_printed=True)
    locks = {str(job.index): _read_files(store, job.run_id) for job in group.jobs}
    return Original(
        group=group,
        experiment=store.client.get_experiment(run.info.experiment_id).name,
        files=_read_files(store, group.run_id),
        job_locks={index: files[layout.ENVIRONMENT] for index, files in locks.items() if layout.ENVIRONMENT in files},
    )


def _read_files(store: Store, run_id: str) -> dict[str, str]:
    with temporary_folder.hold_scratch() as folder:
        names = [
            name
            for name in run_artifacts.list_names(store, run_id)
            if name in (layout.CONFIG, layout.GROUP, layout.ENVIRONMENT) or name.startswith(layout.SCRIPT_PREFIX)
        ]
        paths = {name: run_artifacts.fetch(store, run_id, name, folder) for name in names}
        return {name: path.read_text("utf-8", errors="replace") for name, path in paths.items() if path is not None}


def list_experiments(location: Path | str) -> list[str]:
    """Return the names of all experiments of a store or bundle, sorted."""
    if bundle_reader.is_bundle(location):
        return [bundle_reader.read_records(Path(location))[0]]
    return list_stored_experiments(open_named(location))


def list_stored_experiments(store: Store) -> list[str]:
    """Return the names of all experiments of an open store, sorted."""
    with translate_errors(f"the tracking server at {store.uri} gave no valid reply", "check --uri", store.uri):
        return sorted(experiment.name for experiment in store.client.search_experiments())


def load_groups(root_or_uri: Path | str, experiment: str) -> pd.DataFrame:
    """Return a table with one row per group, oldest first.

    Columns are named as in MLflow: `params.x`, `metrics.x`, `tags.x`. A value that a run does not have is NaN or None,
    never 0.
    """
    return _make_table(
        [
            _make_columns(group, group, group.params, content.make_group_tags(group))
            for group in read_groups(root_or_uri, experiment)
        ]
    )


def load(root_or_uri: Path | str, experiment: str) -> pd.DataFrame:
    """Return a table with one row per job; the columns of its group have the prefix `group.`."""
    jobs = _make_table(
        [
            _make_columns(
                group,
                job,
                job.all_params,
                content.make_job_tags(group, job) | {Tag.PARENT_RUN: group.run_id, Tag.INDEX: str(job.index)},
            )
            for group in read_groups(root_or_uri, experiment)
            for job in group.jobs
        ]
    )
    groups, key = load_groups(root_or_uri, experiment).add_prefix("group."), f"tags.{Tag.PARENT_RUN}"
    return jobs.merge(groups, how="left", left_on=key, right_on="group.run_id") if key in jobs else jobs


def open_existing(root_or_uri: Path | str, experiment: str) -> Store:
    """Open a store that has an experiment.

    Raises:
        TrackingError: the store or the experiment does not exist.
    """
    store = open_if_there(root_or_uri)
    if store is None:
        raise TrackingError(
            f"{root_or_uri} contains no store; specify the store of experiment {experiment!r} with --root or --uri"
        )
    if find_experiment(store, experiment) is None:
        raise TrackingError(explain_missing(experiment, root_or_uri, list_stored_experiments(store)))
    return store


def find_experiment(store: Store, name: str) -> Any | None:
    """Return the MLflow experiment with this name; `None` if it does not exist."""
    with translate_errors(f"could not read experiment {name!r} from {store.uri}"):
        return store.client.get_experiment_by_name(name)


def _order(group: GroupRecord) -> tuple[int, str]:
    return group.start_ms, group.run_id


def _read_experiment(store: Store, stored: Any, most: int | None = None) -> Iterator[GroupRecord]:
    """Yield the groups of an experiment; at most the newest `most`, as far as the store knows their order."""
    remedy = "check tracking.root or tracking.uri of run.py, or --root or --uri of other commands"
    with translate_errors(f"could not read the runs of experiment {stored.name!r} from {store.uri}", remedy):
        folder = run_artifacts.locate_experiment(store, stored)
        if folder is None:
            yield from _read_served(store, stored.experiment_id, most)
            return
        deleted = {run.info.run_id for run in store.search_runs(stored.experiment_id, is_deleted=True)}
    for path in run_artifacts.list_records(folder, store.folder, most):
        group = group_record.parse(path.read_bytes(), path, is_printed=True)
        if group.run_id not in deleted:
            yield group


def _read_served(store: Store, experiment_id: str, most: int | None) -> Iterator[GroupRecord]:
    condition = f"tags.`{Tag.ROLE}` = '{GROUP}'"
    # Only the ids are kept: MLflow creates an object for every tag, param and metric of a run.
    run_ids = [run.info.run_id for run in store.search_runs(experiment_id, condition)]
    with ThreadPoolExecutor(_REQUESTS) as pool:
        newest = run_ids[-(most or 0) :]
        groups = pool.map(lambda run_id: run_artifacts.find_record(store, run_id, is_printed=True), newest)
        yield from (group for group in groups if group is not None)


def _make_columns(
    group: GroupRecord, run: RunRecord, params: Mapping[str, str], tags: Mapping[str, str]
) -> dict[str, Any]:
    end_ms = None if run.end_ns is None else group.clock.to_wall_ms(run.end_ns)
    return {
        "run_id": run.run_id,
        "name": run.name,
        "status": run.status,
        "start_time": group.clock.to_wall_ms(run.start_ns),
        "end_time": end_ms,
        **{f"params.{key}": value for key, value in params.items()},
        **{f"metrics.{key}": value for key, value in run.metrics.items()},
        **{f"tags.{key}": value for key, value in tags.items()},
    }


def _make_table(rows: list[dict[str, Any]]) -> pd.DataFrame:
    import pandas as pd

    table = pd.DataFrame(rows, columns=None if rows else ["run_id", "name", "status", "start_time", "end_time"])
    for column in ("start_time", "end_time"):
        table[column] = pd.to_datetime(table[column], unit="ms", utc=True)
    return table
