"""Convert a bundle or local store of the state before records (MLflow's tables) to a bundle of this version.

python benchmarks/convert_bundle.py OLD NEW.tar.xz [--experiment NAME]   # OLD: a bundle, or a folder with mlflow.db
python benchmarks/convert_bundle.py OLD NEW.tar.xz --check               # compare every figure of both

Names of earlier versions are translated. A local store is not made portable: its bundle names the folders, users and
hosts of the machine that measured.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import re
import sqlite3
import sys
import tarfile
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pipeline.base.domain import layout
from pipeline.base.domain.records import Result
from pipeline.base.domain.tags import PREFIX, Tag
from pipeline.base.domain.window import Window, WindowKind
from pipeline.base.system.errors import CollocationError, ConfigError
from pipeline.record import group_record
from pipeline.record.group_record import Clock, GroupRecord, JobRecord, Point
from pipeline.record.store import bundle_archive, bundle_reader

Run = dict[str, Any]
"""A run of MLflow: run_id, name, status, start_ms, end_ms, tags, params, and metrics as [value, ms, step]."""

_HIDDEN = "mlflow."
_FACTS = {
    "unit": "shard",
    "plan_unit": "plan_shard",
    "plan_units": "plan_shards",
    "neighbour": "co_runner",
    "beside": "other_gpus",
}
_PARAMS = {"unit": "work_unit", "neighbours": "co_runners"}
_SETTINGS = {"neighbours": "co-runners", "GPUs beside": "other GPUs"}
_KEYS = {
    "unit": "shard",
    "unit_of": "shard_of",
    "neighbours": "co_runners",
    "gpu.beside": "gpu.other_gpus",
    "workload.unit": "workload.work_unit",
}
"""Names of earlier versions: facts, params, settings, and keys in command lines."""

_TYPED = frozenset(
    tag.removeprefix(PREFIX)
    for tag in (
        *(Tag.ROLE, Tag.STUDY, Tag.SPOOL_ID, Tag.INDEX, Tag.SIZE, Tag.CO_RUNNER, Tag.BLOCK, Tag.BASELINE_RUN),
        *(Tag.SHARD, Tag.TAKEN_OVER, Tag.CASE, Tag.SCENARIO, Tag.PROFILER, Tag.DEVICE, Tag.GPU_UUID, Tag.SIMULATED),
        *(Tag.DIGEST, Tag.KEY, Tag.PROGRAM_DIGEST, Tag.SETTINGS, Tag.PLANNED, Tag.WORKLOAD_DIGEST, Tag.RESULT),
        *(Tag.REASON, Tag.INVALID, Tag.FLAG, Tag.EXIT_STATUS, Tag.PID, Tag.START_NS, Tag.END_NS),
    )
) | {"stalled"}
"""Tags with a field of their own in a record."""
_NOTES = frozenset(
    tag.removeprefix(PREFIX)
    for tag in (
        *(Tag.LAUNCH, Tag.SLICES, Tag.TURNS, Tag.FIRST_LOSSES, Tag.FIRST_LOSS_BITS, Tag.FIRST_OUTPUTS, Tag.RATES),
        *(Tag.FIGURES, Tag.ONE_PROCESS, Tag.SHARED_FILES, Tag.ABSENT_FIGURES, Tag.LEFT_OUT, Tag.DAMAGED),
        *(Tag.NOT_FINITE, Tag.NO_REPORT, Tag.WINDOW_START_NS, Tag.WINDOW_END_NS),
    )
)
"""Tags that say what was observed; other tags of the project are facts."""


def main(arguments: list[str] | None = None) -> int:
    """Convert, or compare; return the exit status: 1 if bundles differ, 2 for unusable input."""
    options = _parse(arguments)
    try:
        return _run(options)
    except CollocationError as error:
        sys.stderr.write(f"error: {error}\n")
    except (OSError, tarfile.TarError, sqlite3.Error, ValueError, KeyError) as error:
        sys.stderr.write(f"error: cannot convert {options.old} to {options.new}: {error}; check both paths\n")
    return 2


def _run(options: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory() as scratch:
        experiment, runs, folders = read_old(options.old, options.experiment, Path(scratch))
        if options.check:
            differences = list(compare(experiment, runs, options.new))
            for line in differences[:20]:
                sys.stderr.write(f"{line}\n")
            sys.stdout.write(f"{options.new}: {len(runs)} runs compared, {len(differences)} differences\n")
            return 1 if differences else 0
        files = dict(convert(experiment, runs, folders))
        bundle_archive.write(options.new, experiment, files)
    sys.stdout.write(f"{options.new}: {len(runs)} runs of experiment {experiment}\n")
    return 0


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Convert a bundle or store of an earlier version.")
    parser.add_argument("old", type=Path, help="bundle, or folder of a local store")
    parser.add_argument("new", type=Path, help="bundle to write, or to compare")
    parser.add_argument("--experiment", default="collocation", help="experiment of a store (default: %(default)s)")
    parser.add_argument("--check", action="store_true", help="compare every figure, param and fact of both")
    return parser.parse_args(arguments)


def read_old(old: Path, experiment: str, scratch: Path) -> tuple[str, list[Run], dict[str, Path]]:
    """Return the experiment, its runs, and the folder with the artifacts of each run.

    Raises:
        ConfigError: nothing in `old` needs a conversion.
    """
    if old.is_file():
        with tarfile.open(old, "r:xz") as archive:
            archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.4
            archive.extractall(scratch)  # noqa: S202  filtered
        experiment = json.loads((scratch / "manifest.json").read_text())["experiment"]
        if (scratch / bundle_archive.GROUPS).is_dir():
            raise ConfigError(f"{old} is a bundle of this version; use it as it is")
        lines = (scratch / "runs.jsonl").read_text(encoding="utf-8").split("\n")
        runs = [json.loads(line) for line in lines if line]
        folders = {run["run_id"]: scratch / "artifacts" / run["run_id"] for run in runs}
    else:
        runs = _read_database(old / "mlflow.db", experiment)
        folders = {run["run_id"]: _locate(run.pop("artifact_uri"), old) for run in runs}
        if not runs:
            raise ConfigError(f"{old} has no runs of experiment {experiment}; choose another with --experiment")
        if any((folder / layout.RECORD).exists() for folder in folders.values()):
            raise ConfigError(f"{old} has records of this version; use it as it is")
    return experiment, [_rename(run) for run in runs], folders


def _locate(uri: str, root: Path) -> Path:
    recorded = Path(unquote(urlsplit(uri).path))
    beside = root.joinpath(*recorded.parts[-4:])  # artifacts/EXPERIMENT/RUN/artifacts
    return beside if beside.is_dir() else recorded


def _read_database(database: Path, experiment: str) -> list[Run]:
    """Read the active runs of an experiment from MLflow's tables, oldest first."""
    condition = "experiment_id = (SELECT experiment_id FROM experiments WHERE name = ?) AND lifecycle_stage = 'active'"
    with closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)) as store:
        store.row_factory = sqlite3.Row
        runs: dict[str, Run] = {
            row["run_id"]: {**dict(row), "tags": {}, "params": {}, "metrics": {}}
            for row in store.execute(
                "SELECT run_uuid AS run_id, name, status, start_time AS start_ms, end_time AS end_ms, artifact_uri "
                f"FROM runs WHERE {condition} ORDER BY start_time, run_uuid",
                (experiment,),
            )
        }
        for table in ("tags", "params"):
            rows = f"SELECT run_uuid, key, value FROM {table} JOIN runs USING (run_uuid) WHERE {condition}"
            for run_id, key, value in store.execute(rows, (experiment,)):
                runs[run_id][table][key] = value
        rows = (
            "SELECT run_uuid, key, value, timestamp, step, is_nan FROM metrics JOIN runs USING (run_uuid) "
            f"WHERE {condition} ORDER BY metrics.rowid"
        )
        for run_id, key, value, t_ms, step, is_nan in store.execute(rows, (experiment,)):
            runs[run_id]["metrics"].setdefault(key, []).append([None if is_nan else value, t_ms, step])
    return list(runs.values())


def _rename(run: Run) -> Run:
    """Return a run under the current names of its tags, params and metrics."""
    tags = {
        key.removeprefix(_HIDDEN) if key.startswith(f"{_HIDDEN}{PREFIX}") else key: text
        for key, text in run["tags"].items()
    }
    is_old = f"{PREFIX}plan_unit" in tags
    tags = {_rename_tag(key): text for key, text in tags.items()}
    if not is_old:
        return {**run, "tags": tags}
    params = {_PARAMS.get(key) or re.sub(r"^place\.", "placement.", key): text for key, text in run["params"].items()}
    metrics = {re.sub("^neighbours_", "co_runners_", key): points for key, points in run["metrics"].items()}
    return {**run, "tags": tags, "params": params, "metrics": metrics}


def _rename_tag(key: str) -> str:
    name = key.removeprefix(PREFIX)
    return f"{PREFIX}{_FACTS[name]}" if key.startswith(PREFIX) and name in _FACTS else key


def _rename_words(command_line: str) -> str:
    return re.sub(
        r"(?<=\s)(\+?)([\w.]+)=",
        lambda match: f"{match[1]}{_KEYS.get(match[2], match[2])}=",
        command_line.partition(" -- ")[0],
    ) + "".join(command_line.partition(" -- ")[1:])


def convert(experiment: str, runs: list[Run], folders: Mapping[str, Path]) -> Iterator[tuple[str, Path | bytes]]:
    """Yield the files of the new bundle: the records, then the series and artifacts."""
    artifacts: dict[str, Path | bytes] = {}
    for group, jobs in _join_jobs(runs):
        record, series = make_record(experiment, group, jobs, folders)
        place = f"{bundle_archive.GROUPS}/{record.run_id}"
        yield f"{place}/record.json", group_record.encode(record).encode()
        if series:
            artifacts[f"{place}/artifacts/series.json"] = json.dumps(series).encode()
        places = {record.run_id: "artifacts"} | {job.run_id: job.folder for job in record.jobs}
        for run_id, target in places.items():
            folder = folders[run_id]
            for path in sorted(path for path in folder.rglob("*") if path.is_file()):
                artifacts[f"{place}/{target}/{path.relative_to(folder).as_posix()}"] = path
    yield from artifacts.items()


def _join_jobs(runs: list[Run]) -> Iterator[tuple[Run, list[Run]]]:
    jobs: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        if run["tags"].get(Tag.ROLE) == "job":
            jobs[run["tags"].get(Tag.PARENT_RUN, "")].append(run)
    for run in runs:
        if run["tags"].get(Tag.ROLE) == "group":
            yield run, sorted(jobs[run["run_id"]], key=lambda job: int(job["tags"].get(Tag.INDEX, "0")))


def make_record(
    experiment: str, group: Run, jobs: list[Run], folders: Mapping[str, Path]
) -> tuple[GroupRecord, dict[str, dict[str, list[Point]]]]:
    """Return the record of a group, and the series of its jobs by index."""
    clock = _find_clock(group, jobs, folders)
    tags, params = group["tags"], group["params"]
    facts = _read_facts(tags)
    planned = json.loads(facts.get("planned", "{}"))
    settings = {_SETTINGS.get(key, key): text for key, text in planned.get("settings", {}).items()}
    stalled = facts.get("stalled", "")
    invalid = facts.get("invalid") or stalled
    note = "; ".join(part for part in facts.get("flag", "").split("; ") if part and part not in invalid.split("; "))
    later = [_rename_facts(plan) for plan in json.loads(facts.get("taken_over_by", "[]"))]
    records = tuple(_make_job(job, facts, clock) for job in jobs)
    record = GroupRecord(
        **_make_run(group, facts, clock, {}),
        spool_id=facts.get("spool_id") or group["run_id"],
        experiment=experiment,
        clock=clock,
        jobs=records,
        study=facts.get("study", ""),
        scenario=params.get("scenario", facts.get("scenario", "")),
        device=facts.get("device", ""),
        gpu_uuid=facts.get("gpu_uuid", ""),
        is_simulated=facts.get("simulated") == "true",
        profiler=facts.get("profiler", ""),
        block=int(facts.get("block", "1")),
        baseline_run=int(facts.get("baseline_run", "1")),
        shard=int(facts.get("plan_shard", "0")),
        case=int(facts.get("case", "0")),
        digest=facts.get("digest", ""),
        key=facts.get("key", ""),
        program_digest=facts.get("program_digest", ""),
        settings_digest=facts.get("settings", ""),
        settings=settings,
        options=planned.get("options", {}),
        window=_make_window(params),
        invalid=invalid,
        note=note,
        later_plans=tuple(later),
        host=facts.get("host", ""),
        boot_id=facts.get("boot_id", ""),
        machine_id="",
    )
    series = {
        tags.get(Tag.INDEX, "0"): {name: _make_points(points, clock) for name, points in _list_series(job).items()}
        for job in jobs
        for tags in [job["tags"]]
    }
    return record, {index: points for index, points in series.items() if points}


def _find_clock(group: Run, jobs: list[Run], folders: Mapping[str, Path]) -> Clock:
    """Return the clock of a group: exact if it has a timeline, else from the start of a job, else without an offset."""
    timeline = folders[group["run_id"]] / "timeline.json"
    if timeline.is_file():
        facts = json.loads(timeline.read_text(encoding="utf-8"))["otherData"]
        return Clock(wall_ns=facts["begin_wall_ns"], monotonic_ns=facts["begin_ns"])
    for job in jobs:
        if (start_ns := job["tags"].get(Tag.START_NS)) is not None:
            return Clock(wall_ns=job["start_ms"] * 1_000_000, monotonic_ns=int(start_ns))
    return Clock(wall_ns=group["start_ms"] * 1_000_000, monotonic_ns=0)


def _read_facts(tags: Mapping[str, str]) -> dict[str, str]:
    facts = {key.removeprefix(PREFIX): text for key, text in tags.items() if key.startswith(PREFIX)}
    if "command_line" in facts:
        facts["command_line"] = _rename_words(facts["command_line"])
    return facts


def _rename_facts(facts: Mapping[str, str]) -> dict[str, str]:
    return {_FACTS.get(key, key): text for key, text in facts.items()}


def _make_run(run: Run, facts: Mapping[str, str], clock: Clock, inherited: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields that a group and its jobs have in common; a job does not repeat its group's facts."""
    result = facts.get("result", "")
    is_running = run["status"] == "RUNNING"
    job_facts = {key: text for key, text in facts.items() if key not in _TYPED and inherited.get(key) != text}
    notes = {key: text for key, text in job_facts.items() if key in _NOTES or key.startswith("listener.")}
    provenance = {key: text for key, text in job_facts.items() if key not in notes}
    if commit := run["tags"].get(Tag.GIT_COMMIT):
        provenance |= {} if inherited.get("program_commit") == commit else {"program_commit": commit}
    return {
        "name": run["name"],
        "run_id": run["run_id"],
        "start_ns": clock.to_monotonic_ns(run["start_ms"]),
        "end_ns": None if run["end_ms"] is None else clock.to_monotonic_ns(run["end_ms"]),
        "result": None if is_running or result not in set(Result) else Result(result),
        "reason": facts.get("reason", ""),
        "params": {key: text for key, text in run["params"].items() if not key.startswith("placement.")},
        "facts": provenance,
        "notes": notes,
        "metrics": read_figures(run),
    }


def _make_job(job: Run, of_group: Mapping[str, str], clock: Clock) -> JobRecord:
    facts, params = _read_facts(job["tags"]), job["params"]
    placement = {key.removeprefix("placement."): text for key, text in params.items() if key.startswith("placement.")}
    known = set(Tag)
    foreign = {key: text for key, text in job["tags"].items() if not key.startswith(PREFIX) and key not in known}
    commit = job["tags"].get(Tag.GIT_COMMIT, "")
    return JobRecord(
        **_make_run(job, facts, clock, {**of_group, "program_commit": of_group.get("program_commit", commit)}),
        index=int(facts.get("index", "0")),
        digest=facts.get("workload_digest", ""),
        program_digest=facts.get("program_digest", ""),
        size=facts.get("size"),
        is_co_runner="co_runner" in facts,
        gi_id=int(placement["gi_id"]) if placement.get("gi_id", "").isdecimal() else None,
        is_gpu=not of_group.get("gpu_uuid", "").startswith("CPU-"),
        placement=placement,
        exit_status=_read_number(facts.get("exit_status")),
        pid=_read_number(facts.get("pid")),
        work_start_ns=_read_number(facts.get("start_ns")),
        work_end_ns=_read_number(facts.get("end_ns")),
        script_tags=foreign,
    )


def _read_number(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"-?\d+", text) else None


def _make_window(params: Mapping[str, str]) -> Window:
    return Window(
        kind=WindowKind(params.get("window", WindowKind.STEADY)),
        seconds=float(params.get("window_seconds", 0)),
        settle_s=float(params.get("window_settle_s", 0)),
        most_s=float(params.get("window_most_s", 0)),
        epochs=int(params.get("window_epochs", 0)),
        slice_s=float(params.get("window_slice_s", 0)),
    )


def read_figures(run: Run) -> dict[str, float]:
    """Return the newest finite value of each metric, as MLflow shows it, without sampled series."""
    newest = {
        name: max(points, key=lambda point: (point[2], point[1], -math.inf if point[0] is None else point[0]))[0]
        for name, points in run["metrics"].items()
        if points and not name.startswith("system/")
    }
    return {name: float(value) for name, value in newest.items() if value is not None and math.isfinite(value)}


def _list_series(job: Run) -> dict[str, list[list[Any]]]:
    return {
        name: points for name, points in job["metrics"].items() if len(points) > 1 and not name.startswith("system/")
    }


def _make_points(points: list[list[Any]], clock: Clock) -> list[Point]:
    return [(step, clock.to_monotonic_ns(t_ms), value) for value, t_ms, step in points if value is not None]


def compare(experiment: str, runs: list[Run], new: Path) -> Iterator[str]:
    """Yield a line for each figure, param, time, result and fact in which the old runs and a bundle differ."""
    name, records = bundle_reader.read_records(new)
    if name != experiment:
        yield f"experiment {experiment!r} is {name!r}"
    by_id: dict[str, tuple[GroupRecord, JobRecord | None]] = {group.run_id: (group, None) for group in records}
    by_id |= {job.run_id: (group, job) for group in records for job in group.jobs}
    for run in itertools.chain.from_iterable([group, *jobs] for group, jobs in _join_jobs(runs)):
        if run["run_id"] not in by_id:
            yield f"run {run['run_id']} is missing"
            continue
        group, job = by_id.pop(run["run_id"])
        record = group if job is None else job
        facts, expected = _read_facts(run["tags"]), group.facts | group.notes | record.facts | record.notes
        pairs = {
            "metrics": (read_figures(run), record.metrics),
            "params": (run["params"], group.params if job is None else job.all_params),
            "start": (run["start_ms"], group.clock.to_wall_ms(record.start_ns)),
            "end": (run["end_ms"], None if record.end_ns is None else group.clock.to_wall_ms(record.end_ns)),
            "status": (run["status"], record.status),
            "reason": (facts.get("reason", ""), record.reason),
            "facts": (
                {key: facts[key] for key in facts if key not in _TYPED},
                {k: v for k, v in expected.items() if k in facts},
            ),
        }
        yield from (
            f"{kind} of {run['run_id']}: {old} is {now}"[:400] for kind, (old, now) in pairs.items() if old != now
        )
    yield from (f"run {run_id} is new" for run_id in by_id)


if __name__ == "__main__":
    sys.exit(main())
