"""Tidy tables from MLflow, and the groups that do not have to run again.

Columns are named as in MLflow: `params.x`, `metrics.x`, `tags.x`, without the `system/...` series. A value that a run
does not have is NaN or None, never 0. All functions raise a TrackingError if the store cannot be read; functions that
return a table also raise it if the store or the experiment does not exist.
"""

from __future__ import annotations

import gc
import json
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from pipeline.base.domain import group_names, layout, stored_names
from pipeline.base.domain.machine_state import MachineState
from pipeline.base.domain.normalisation import MEMORY_PEAK
from pipeline.base.domain.records import Result
from pipeline.base.domain.tags import GROUP, JOB, Tag, has_old_names, list_facts_by_plan, read_facts, restore_names
from pipeline.base.domain.window import WindowKind
from pipeline.base.system.errors import TrackingError
from pipeline.base.system.words import escape_controls
from pipeline.clean import temporary_folder
from pipeline.observe.study_progress import PastGroup
from pipeline.record.store import bundle, local_store, run_artifacts
from pipeline.record.store.local_store import (
    Store,
    describe_error,
    explain_missing,
    is_server,
    translate_errors,
)
from pipeline.record.store.store_access import open_if_there
from pipeline.record.stored_group import FinishedGroup, Original

if TYPE_CHECKING:
    import pandas as pd

_TAGS_OF_A_ROW = (
    *(Tag.FIRST_LOSSES, Tag.FIRST_LOSS_BITS, Tag.FIRST_OUTPUTS),
    *(Tag.RATES, Tag.INVALID, Tag.FLAG, Tag.STALLED, Tag.SLICES),
)


def find_finished(where: Store | Path | str, experiment: str) -> list[FinishedGroup]:
    """Return all ended groups of an experiment, with any result; empty if the experiment does not exist."""
    store = where if isinstance(where, Store) else open_if_there(where)
    finished = []
    for run in read_runs(store, experiment, GROUP) if store is not None else ():
        tags = run.data.tags
        digest, result = tags.get(Tag.DIGEST), tags.get(Tag.RESULT)
        if run.info.status == "RUNNING" or digest is None or result not in set(Result):
            continue
        by_plan = list_facts_by_plan(read_facts(tags))
        finished.append(
            FinishedGroup(
                digest=digest,
                program_digest=tags.get(Tag.PROGRAM_DIGEST),
                name=escape_controls(run.info.run_name),
                block=tags.get(Tag.BLOCK),
                result=Result(result),
                facts=dict(MachineState.from_facts(read_facts(tags)).facts),
                run_id=run.info.run_id,
                spool_id=tags.get(Tag.SPOOL_ID),
                metrics=select_figures(run),
                reason=tags.get(Tag.REASON),
                tags={tag: tags[tag] for tag in _TAGS_OF_A_ROW if tag in tags},
                settings=tags.get(Tag.SETTINGS),
                plans=[facts["plan"] for facts in by_plan if "plan" in facts],
                plans_any_gpu=[facts["plan_any_gpu"] for facts in by_plan if "plan_any_gpu" in facts],
                start_ms=run.info.start_time,
            )
        )
    return finished


def find_past_groups(where: Store | Path | str) -> list[PastGroup]:
    """Return the newest groups of a store that were successful and had no profiler."""
    store = where if isinstance(where, Store) else open_if_there(where)
    if store is None:
        return []
    ended = f"tags.`{Tag.ROLE}` = '{GROUP}' AND tags.`{Tag.RESULT}` = '{Result.OK}'"
    with translate_errors(f"could not read the groups from {store.uri}"):
        experiment_ids = [experiment.experiment_id for experiment in store.client.search_experiments()]
        runs = _restore_stored_names(
            store.client.search_runs(
                experiment_ids, ended, max_results=local_store.PAGE, order_by=["attributes.start_time DESC"]
            )
        )
    return [_make_past_group(run) for run in runs if Tag.PROFILER not in run.data.tags and Tag.KEY in run.data.tags]


def _make_past_group(run: Any) -> PastGroup:
    params, metrics, settings = run.data.params, run.data.metrics, json.loads(run.data.tags[Tag.PLANNED])["settings"]
    spent = {name: value for name, value in metrics.items() if re.fullmatch("time_[a-z]+_s", name)}
    spent.pop("time_idle_s", None)  # only the first groups of a study measure idle power
    if WindowKind(params["window"]).is_steady:
        spent.pop("time_window_s", None)
    if "window_most_s" in params and "window_s" in metrics:
        num_windows = int(params["degree"]) if params["scenario"] == "serial" else 1
        spent["beyond the shortest window"] = metrics["window_s"] - num_windows * float(params["window_seconds"])
    return PastGroup(
        key=run.data.tags[Tag.KEY],
        scenario=params["scenario"],
        jobs=params["jobs"],
        window=settings["window"],
        kind=params["window"],
        device=settings["device"],
        on_top_s=sum(spent.values()),
        program=run.data.tags.get(Tag.PROGRAM_DIGEST, ""),
        called=_describe_programs(params),
        memory_mib=metrics.get(MEMORY_PEAK),
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
        (run,) = _restore_stored_names([run if parent_id is None else store.client.get_run(parent_id)])
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
    experiment = store.client.get_experiment(run.info.experiment_id)
    children = store.client.search_runs(
        [run.info.experiment_id], f"tags.`{Tag.PARENT_RUN}` = '{run.info.run_id}'", max_results=local_store.PAGE
    )
    locks = {child.data.tags.get(Tag.INDEX, ""): _read_files(store, child.info.run_id) for child in children}
    return Original(
        run_id=run.info.run_id,
        experiment=experiment.name,
        name=escape_controls(run.info.run_name),
        tags=dict(run.data.tags),
        params=dict(run.data.params),
        metrics=select_figures(run),
        files=_read_files(store, run.info.run_id),
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


def list_experiments(store: Store) -> list[str]:
    """Return the names of all experiments of a store, sorted."""
    with translate_errors(f"the tracking server at {store.uri} gave no valid reply", "check --uri", store.uri):
        return sorted(experiment.name for experiment in store.client.search_experiments())


def load_groups(root_or_uri: Path | str, experiment: str) -> pd.DataFrame:
    """Return a table with one row per group, oldest first."""
    return _make_table(open_existing(root_or_uri, experiment), experiment, GROUP)


def load(root_or_uri: Path | str, experiment: str) -> pd.DataFrame:
    """Return a table with one row per job; the columns of its group have the prefix `group.`."""
    store = open_existing(root_or_uri, experiment)
    jobs, groups = _make_table(store, experiment, JOB), _make_table(store, experiment, GROUP).add_prefix("group.")
    key = f"tags.{Tag.PARENT_RUN}"
    if key not in jobs:
        return jobs
    return jobs.merge(groups, how="left", left_on=key, right_on="group.run_id")


def find_runs(root_or_uri: Path | str, experiment: str, role: str) -> list[Any]:
    """Return all MLflow runs of a role (`GROUP` or `JOB`), including running ones, oldest first."""
    if not is_server(root_or_uri) and Path(root_or_uri).is_file():
        return _find_in_bundle(Path(root_or_uri), experiment, role)
    return read_runs(open_existing(root_or_uri, experiment), experiment, role)


def _find_in_bundle(file: Path, experiment: str, role: str) -> list[Any]:
    """Return runs of a bundle in the form of MLflow's runs. Making a database for them would take seconds."""
    name, runs = bundle.load_runs(file.absolute())
    if name != experiment:
        raise TrackingError(explain_missing(experiment, file, [name]))
    return _restore_stored_names(_make_run(run) for run in runs if run["tags"].get(Tag.ROLE) == role)


def _make_run(run: Mapping[str, Any]) -> Any:
    newest = {name: points[0][0] for name, points in run["metrics"].items()}
    metrics = {name: math.nan if number is None else float(number) for name, number in newest.items()}
    return SimpleNamespace(
        info=SimpleNamespace(
            run_id=run["run_id"],
            run_name=run["name"],
            status=run["status"],
            start_time=run["start_ms"],
            end_time=run["end_ms"],
        ),
        data=SimpleNamespace(tags=dict(run["tags"]), params=dict(run["params"]), metrics=metrics),
    )


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
        raise TrackingError(explain_missing(experiment, root_or_uri, list_experiments(store)))
    return store


def find_experiment(store: Store, name: str) -> Any | None:
    """Return the MLflow experiment with this name; `None` if it does not exist."""
    with translate_errors(f"could not read experiment {name!r} from {store.uri}"):
        return store.client.get_experiment_by_name(name)


def read_runs(store: Store, experiment: str, role: str) -> list[Any]:
    """Return all MLflow runs of a role in an open store, oldest first; empty if the experiment does not exist."""
    remedy = "check tracking.root or tracking.uri of run.py, or --root or --uri of other commands"
    with translate_errors(f"could not read the runs of experiment {experiment!r} from {store.uri}", remedy):
        stored = store.client.get_experiment_by_name(experiment)
        # MLflow creates an object for every tag, param and metric; garbage collection took 60 % of the time that
        # reading 3,000 runs took.
        gc.disable()
        try:
            if stored is None:
                return []
            return _restore_stored_names(store.search_runs(stored.experiment_id, f"tags.`{Tag.ROLE}` = '{role}'"))
        finally:
            gc.enable()


def _restore_stored_names(runs: Iterable[Any]) -> list[Any]:
    named = list(runs)
    for run in named:
        tags, params, metrics = run.data.tags, run.data.params, run.data.metrics
        is_old = has_old_names(tags)
        restore_names(tags)
        _replace(tags, tags)
        _replace(params, stored_names.rename_params(params) if is_old else params)
        _replace(metrics, stored_names.rename_metrics(metrics) if is_old else metrics)
    return named


def _replace(values: dict[str, Any], new: Mapping[str, Any]) -> None:
    """Replace the values of a run. Every command prints them, so they are without characters that a terminal obeys."""
    escaped = {
        escape_controls(key): escape_controls(text) if isinstance(text, str) else text for key, text in new.items()
    }
    values.clear()
    values.update(escaped)


def select_figures(run: Any) -> dict[str, float]:
    """Return the final metrics of a run, without sampled series."""
    return {key: value for key, value in run.data.metrics.items() if not key.startswith("system/")}


def _make_table(store: Store, experiment: str, role: str) -> pd.DataFrame:
    import pandas as pd

    rows = [
        {
            "run_id": run.info.run_id,
            "name": escape_controls(run.info.run_name),
            "status": run.info.status,
            "start_time": run.info.start_time,
            "end_time": run.info.end_time,
            **{f"params.{key}": value for key, value in run.data.params.items()},
            **{f"metrics.{key}": value for key, value in select_figures(run).items()},
            **{f"tags.{key}": value for key, value in run.data.tags.items()},
        }
        for run in read_runs(store, experiment, role)
    ]
    table = pd.DataFrame(rows, columns=None if rows else ["run_id", "name", "status", "start_time", "end_time"])
    for column in ("start_time", "end_time"):
        table[column] = pd.to_datetime(table[column], unit="ms", utc=True)
    return table
