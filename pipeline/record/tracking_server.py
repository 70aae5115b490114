"""The process that accesses the tracking store for an orchestrator, which sends it requests between measurements.

Requests are read from stdin and replies are written to stdout in the same order, one JSON object per line.

    {"op": "open", "experiment": NAME, "root": FOLDER, "uri": URI or null, "series_points": N}
                                         -> {"ok": true, "experiment_id": ..., "uri": ..., "kind": "local" | "server"}
    {"op": "begin", "spool": PATH}       -> {"ok": true, "run_id": ...}
    {"op": "send", "spool": PATH}        -> {"ok": true, "run_id": ..., "failed": {INDEX: URI of its artifacts, ...}};
                                         null and {} if the folder does not exist because it was sent before
    {"op": "amend", "spool": PATH}       -> {"ok": true}; PATH is an amendment, not a folder
    {"op": "finished", "experiment": NAME} -> {"ok": true, "groups": [...]}, as `results.find_finished` returns them;
                                         with "store": FOLDER or URI, the groups of another store, which is only read
    {"op": "close_lost", "experiment": NAME, "plan": DIGEST, "shard": N, "programs": [DIGEST, ...]}
                                         -> {"ok": true, "groups": [NAME, ...]}: the closed groups
    {"op": "submitted", "experiment": NAME, "new": {...}} -> {"ok": true}: a `slurm_arrays.Submission` is recorded
    {"op": "ran", "store": FOLDER or URI} -> {"ok": true, "groups": [...]}, as `results.find_past_groups` returns them
    {"op": "recall", "run_id": ID, "store": FOLDER or URI} -> {"ok": true, "group": ...}, as `results.recall` returns it
    any request that fails               -> {"ok": false, "error": "one sentence"}

Importing this module does not import MLflow.
"""

from __future__ import annotations

import dataclasses
import gc
import importlib
import json
import logging
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from pipeline.base.domain import layout
from pipeline.base.system import interrupts, json_decoder, secrets
from pipeline.base.system.errors import CollocationError, StoreError, TrackingError
from pipeline.record import group_folder, group_record
from pipeline.record.shards import shard_states, slurm_arrays
from pipeline.record.shards.slurm_arrays import Submission
from pipeline.record.store import local_store, results
from pipeline.record.store.local_store import Store, describe_error, open_store
from pipeline.record.store.upload import RunIds, amend, begin, send

_OF_STORES = ("mlflow", "requests", "sqlalchemy", "sqlite3")
"""Packages whose errors describe a failure of a store or a disk."""

log = logging.getLogger(__name__)


class RequestHandler:
    """Executor of requests; opens a store on first use, and again after a failure.

    Without `uri`, each group is sent to the store that its record names.
    """

    def __init__(self, root: Path, uri: str | None, series_points: int) -> None:
        self._root, self._uri, self._series_points = root, uri, series_points
        self._for_all = uri
        self._stores: dict[str | None, Store] = {}
        self._studies: set[Path] = set()
        self._begun: dict[Path, RunIds | None] = {}

    @property
    def is_local(self) -> bool:
        return self._uri is None

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Execute a request and return its reply, without `ok`."""
        match request:
            case {"op": "open", "experiment": str(experiment), **options}:
                if "root" in options:
                    self._root, self._uri, self._stores = Path(options["root"]), options["uri"], {}
                    self._series_points = options["series_points"]
                store = self._open(self._uri)
                kind = "server" if store.root is None else "local"
                return {"experiment_id": store.open_experiment(experiment), "uri": store.uri, "kind": kind}
            case {"op": "begin", "spool": str(folder)}:
                self._begun[Path(folder)] = None  # set before `begin`, which may fail: the folder must be closed later
                self._begun[Path(folder)] = runs = begin(self._open, Path(folder))
                return {"run_id": runs.parent}
            case {"op": "send", "spool": str(folder)}:
                sent_runs = self.send(Path(folder))
                return {"run_id": sent_runs and sent_runs.parent, "failed": sent_runs.failed if sent_runs else {}}
            case {"op": "amend", "spool": str(file)}:
                if Path(file).exists():
                    amend(self._open(group_folder.read_amendment(Path(file)).uri), Path(file))
                return {}
            case {"op": "close_lost", "experiment": str(experiment), "plan": str(plan), "shard": int(shard), **others}:
                store = self._open(self._uri)
                return {"groups": shard_states.close_shard(store, experiment, plan, shard, others["programs"])}
            case {"op": "take_over", "shards": dict(runs), "facts": dict(facts)}:
                shard_states.take_over(self._open(self._uri), runs, facts)
                return {}
            case {"op": "submitted", "experiment": str(experiment), "new": dict(new)}:
                slurm_arrays.note(self._open(self._uri), experiment, Submission(**new))
                return {}
        return self._answer_query(request)

    def _answer_query(self, request: dict[str, Any]) -> dict[str, Any]:
        match request:
            case {"op": "finished", "experiment": str(experiment), **options}:
                finished = results.find_finished(options.get("store") or self._open(self._uri), experiment)
                return {"groups": json_decoder.encode(finished)}
            case {"op": "ran", "store": str(location)}:
                return {"groups": [dataclasses.asdict(group) for group in results.find_past_groups(location)]}
            case {"op": "recall", "run_id": str(run_id), "store": str(location)}:
                return {"group": json_decoder.encode(results.recall(location, run_id))}
        raise TrackingError(f"unknown request: {json.dumps(request)[:200]}")

    def send(self, folder: Path) -> RunIds | None:
        """Send a spool folder and return its runs; `None` if it was sent before."""
        self._studies.add(folder.parent)
        if not folder.exists():
            return None
        begun_runs = self._begun.get(folder)
        return send(self._open, folder, series_points=self._series_points, begun_runs=begun_runs)

    def refuse_unusable(self, paths: Iterable[Path]) -> None:
        """Raise a StoreError if one of these groups or amendments needs the local store and it is unusable."""
        if self._for_all is None and any(map(_is_for_local_store, paths)):
            try:
                self._open(None)
            except StoreError:
                raise
            except TrackingError as error:
                log.debug("the local store is not open: %s", error)

    def describe_target(self, folder: Path) -> str:
        """Return the URI or folder of the store to which a group is sent."""
        return self._for_all or group_record.read(folder).uri or str(self._root)

    def close_for_dead_owner(self) -> None:
        """Close and send groups that were begun but not closed because their orchestrator was killed."""
        abandoned = [folder for folder in self._begun if folder.exists() and not group_record.read(folder).is_closed]
        # The spool is derived from the requested paths: the root may have another spelling because of a link.
        for spool_root in {folder.parents[1] for folder in abandoned}:
            for folder in group_folder.survey(spool_root).ready:
                if folder in abandoned:
                    self.send(folder)

    def tidy(self) -> None:
        """Remove the folders of studies that have no unsent groups."""
        for folder in (*self._studies, self._root / layout.SPOOL / layout.AMENDMENTS, self._root / layout.SPOOL):
            with suppress(OSError):  # not empty
                folder.rmdir()

    def _open(self, uri: str | None) -> Store:
        uri = self._for_all or self._restore_login(uri)
        if uri not in self._stores:
            self._stores[uri] = open_store(self._root, uri)
        return self._stores[uri]

    def _restore_login(self, uri: str | None) -> str | None:
        """Restore the password of a recorded URI if this process was started with the same URI.

        Records contain URIs without passwords. For other servers, the login is removed, and MLflow reads
        MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD.
        """
        if uri is None or secrets.HIDDEN not in uri:
            return uri
        is_own = self._uri is not None and secrets.mask_text(self._uri) == uri
        return self._uri if is_own else secrets.strip_logins(uri)


def _is_for_local_store(path: Path) -> bool:
    with suppress(TrackingError):
        return (group_record.read(path) if path.is_dir() else group_folder.read_amendment(path)).uri is None
    return False


def serve(handler: RequestHandler) -> int:
    """Reply to requests on stdin until stdin is closed."""
    # Ctrl-C and `scancel` reach both processes; the orchestrator handles them, and this process exits after it.
    interrupts.ignore()
    # Redirect all other output to stderr: stdout must contain only replies.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    import_mlflow(with_database=handler.is_local)
    for line in sys.stdin:
        try:
            answer = {"ok": True, **handler.answer(json.loads(line))}
        except Exception as error:  # any failure of a request must not prevent later requests
            # The orchestrator reports known errors to the user; the traceback of other errors is logged.
            is_known = isinstance(error, CollocationError | OSError) or type(error).__module__.startswith(_OF_STORES)
            log.log(logging.DEBUG if is_known else logging.WARNING, "failed: %s", line.strip(), exc_info=not is_known)
            answer = {"ok": False, "error": format_error(error)}
        with suppress(BrokenPipeError):  # the orchestrator has ended; its remaining requests are executed nevertheless
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
    try:
        handler.close_for_dead_owner()
    except Exception as error:  # noqa: BLE001  after any failure, the groups remain in the spool for the next start
        log.warning("groups of a killed study remain in the spool: %s", format_error(error))
    handler.tidy()
    return 0


def format_error(error: Exception) -> str:
    """Return the first line of an error, with its type unless it is a `CollocationError`."""
    if isinstance(error, CollocationError):
        return next(iter(str(error).strip().splitlines()), "no message")[:500]
    return f"{type(error).__name__}: {describe_error(error)}"


def import_mlflow(*, with_database: bool) -> None:
    """Import MLflow, which takes 2 s, while the orchestrator prepares the study; access no store."""
    gc.disable()  # nearly all objects remain alive: garbage collection takes a fifth of the time
    local_store.import_mlflow(with_database=with_database)
    with suppress(ModuleNotFoundError):
        importlib.import_module("pyarrow.parquet")
    gc.freeze()
    gc.set_threshold(100_000)
    gc.enable()
