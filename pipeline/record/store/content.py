"""Contents of one MLflow run in the names, lengths and batches that MLflow accepts.

Source of the limits: mlflow/utils/validation.py, 3.17.
"""

from __future__ import annotations

import json
import math
import posixpath
import re
import shlex
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.base.domain.layout import LONG_VALUES
from pipeline.base.domain.marks import NO_MARKS
from pipeline.base.domain.samples import thin_points
from pipeline.base.domain.script_runs import TORN, ScriptRun
from pipeline.base.domain.tags import GROUP, JOB, Tag, fact_tag, stored_name
from pipeline.base.system.secrecy import Secrecy, secrecy_of
from pipeline.base.system.secrets import mask, mask_text
from pipeline.base.system.words import escape_to_utf8
from pipeline.observe.table import format_line
from pipeline.record.group_record import GroupRecord, JobRecord, RunRecord

MAX_KEY, MAX_PARAM, MAX_TAG = 250, 6000, 8000
MAX_ENTITIES, MAX_PARAMS, MAX_TAGS = 1000, 100, 100
MAX_BYTES = 500_000
"""Limit of one request. MLflow accepts 1e6 bytes; half of this leaves room for the overhead of JSON and transport."""

_REFUSED_FILE = re.compile(rf"^\.\.|(^|/){re.escape(TORN)}[^/]*$")
_CHANGED_IN_ADDRESS = re.compile(r"[#?%\\\x00-\x1f\x7f\ud800-\udfff]")

_MARKED = "\u26a0 "
CUT = f" ... [cut: the whole value is in {LONG_VALUES}]"

Point = tuple[int, int, float]
"""Step, wall-clock ms since the epoch, value."""


@dataclass(slots=True)
class LogBatch:
    """Contents of one call of `log_batch`."""

    metrics: list[tuple[str, Point]] = field(default_factory=list)
    params: list[tuple[str, str]] = field(default_factory=list)
    tags: list[tuple[str, str]] = field(default_factory=list)
    num_bytes: int = 0

    def has_room(self, num_bytes: int) -> bool:
        num_entities = len(self.metrics) + len(self.params) + len(self.tags)
        return (
            num_entities < MAX_ENTITIES
            and len(self.params) < MAX_PARAMS
            and len(self.tags) < MAX_TAGS
            and self.num_bytes + num_bytes <= MAX_BYTES
        )


@dataclass(slots=True)
class RunContent:
    """Params, tags and metrics of one run.

    Attributes:
        long_values: uncut values that were longer than MLflow accepts, by kind and name.
        not_finite: names of metrics with values that are not finite.
    """

    metrics: dict[str, list[Point]] = field(default_factory=dict)
    params: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    long_values: dict[str, dict[str, str]] = field(default_factory=dict)
    not_finite: list[str] = field(default_factory=list)

    def add_param(self, key: str, value: str) -> None:
        name = _find_free_name(key, self.params)
        self.params[name] = self._cut("params", name, value, MAX_PARAM)

    def add_tag(self, key: str, value: str) -> None:
        name = _find_free_name(stored_name(key), self.tags)
        self.tags[name] = self._cut("tags", name, value, MAX_TAG)

    def add_metric(self, key: str, points: Iterable[Point]) -> None:
        """Add the finite points of a metric; metrics with other points are listed in a tag."""
        name = _find_free_name(key, self.metrics)
        all_points = list(points)
        finite = [point for point in all_points if math.isfinite(point[2])]
        if finite:
            self.metrics[name] = finite
        if len(finite) < len(all_points):
            self.not_finite.append(name)

    def add_script_run(self, run: ScriptRun, most_points: int) -> Iterator[str]:
        """Add the metrics, params and tags that the job's program logged, with `script/` before names already in use.

        Yields the names of metrics that were thinned to `most_points`.
        """
        for key, points in run.metrics.items():
            self.add_metric(_avoid_taken(run.prefix + key, self.metrics), thin_points(points, most_points))
            if points.num_points > min(len(points), most_points):
                yield key
        for key, value in run.params.items():
            self.add_param(_avoid_taken(run.prefix + key, self.params), _mask_logged(key, value))
        for key, value in run.tags.items():
            self.add_tag(_avoid_taken(run.prefix + key, self.tags), _mask_logged(key, value))

    def list_additions(self, earlier: RunContent) -> RunContent:
        """Return the params, tags and metrics that the earlier content lacks."""
        return RunContent(
            params={key: text for key, text in self.params.items() if key not in earlier.params},
            tags={key: text for key, text in self.tags.items() if key not in earlier.tags},
            metrics={key: points for key, points in self.metrics.items() if key not in earlier.metrics},
        )

    def make_batches(self, stored: RunContent | None = None) -> Iterator[LogBatch]:
        """Yield batches of all metrics and of params and tags that are not `stored`, as few as MLflow allows."""
        stored = stored or RunContent()
        params = {key: value for key, value in self.params.items() if stored.params.get(key) != value}
        tags = {key: value for key, value in self.tags.items() if stored.tags.get(key) != value}
        if self.not_finite:
            noted = self.tags.get(Tag.NOT_FINITE, "").split(", ")
            names = dict.fromkeys(filter(None, (*noted, *self.not_finite)))
            tags[Tag.NOT_FINITE] = self._cut("tags", Tag.NOT_FINITE, ", ".join(names), MAX_TAG)
        batch = LogBatch()
        for kind, key, value in (
            *(("params", key, value) for key, value in params.items()),
            *(("tags", key, value) for key, value in tags.items()),
            *(("metrics", key, point) for key, points in self.metrics.items() for point in points),
        ):
            num_bytes = len(key) + (len(json.dumps(value)) if isinstance(value, str) else 0) + 100
            if not batch.has_room(num_bytes):
                yield batch
                batch = LogBatch()
            getattr(batch, kind).append((key, value))
            batch.num_bytes += num_bytes
        if batch.num_bytes:
            yield batch

    def _cut(self, kind: str, name: str, value: str, limit: int) -> str:
        value = escape_to_utf8(value)  # databases accept only UTF-8, and a file name may contain other bytes
        if len(value) <= limit:
            return value
        self.long_values.setdefault(kind, {})[name] = value
        return value[: limit - len(CUT)] + CUT


def split_command(command_line: str) -> list[str] | None:
    """Split a command line that was read from a tag; `None` if the tag was cut."""
    try:
        return None if command_line.endswith(CUT) else shlex.split(command_line)
    except ValueError:
        return None


def make_safe_name(key: str) -> str:
    """Convert a key to a name that MLflow accepts: a relative path of letters, digits and `_-./ :`, up to 250 long."""
    name = posixpath.normpath("/" + re.sub(r"[^\w\-./ :]", "_", key)).lstrip("/")
    return re.sub(r"^\.\.+", "_", name)[:MAX_KEY].rstrip("/") or "_"


def can_keep_file(name: str, *, is_server: bool) -> bool:
    """Return whether MLflow stores this artifact path unchanged; its client inserts the path into a URL."""
    return not (_REFUSED_FILE.search(name) or (is_server and _CHANGED_IN_ADDRESS.search(name)))


def _find_free_name(key: str, used_names: Container[str]) -> str:
    name, number = make_safe_name(key), 2
    while name in used_names:
        suffix = f"_{number}"
        name, number = make_safe_name(key)[: MAX_KEY - len(suffix)] + suffix, number + 1
    return name


def _mask_logged(key: str, value: str) -> str:
    """Mask a value that a script logged; an ambiguous name, such as `key`, does not hide the value."""
    is_ambiguous = secrecy_of(key) is Secrecy.AMBIGUOUS
    return mask_text(value) if is_ambiguous else str(mask(value, key))


def _avoid_taken(key: str, used_names: Container[str]) -> str:
    return f"script/{key}" if make_safe_name(key) in used_names else key


_NAMES = {"program_commit": Tag.GIT_COMMIT}
"""Facts with a tag of MLflow."""


def make_group_tags(record: GroupRecord) -> dict[str, str]:
    """Return the tags of a group's run."""
    of_result = {Tag.INVALID: record.invalid, Tag.FLAG: record.note}
    tags = {
        **_make_common_tags(record),
        **_make_run_tags(record),
        Tag.ROLE: GROUP,
        Tag.DIGEST: record.digest,
        Tag.KEY: record.key,
        Tag.PROGRAM_DIGEST: record.program_digest,
        Tag.SETTINGS: record.settings_digest,
        Tag.PLANNED: json.dumps({"settings": record.settings, "options": record.options}),
        **_make_ending_tags(record, record),
        **of_result,
        Tag.TAKEN_OVER: json.dumps(record.later_plans, ensure_ascii=False) if record.later_plans else "",
    }
    return {key: text for key, text in tags.items() if text}


def make_job_tags(record: GroupRecord, job: JobRecord) -> dict[str, str]:
    """Return the tags of a job's run."""
    tags = {
        **_make_common_tags(record),
        **_make_run_tags(job),
        Tag.ROLE: JOB,
        Tag.WORKLOAD_DIGEST: job.digest,
        Tag.PROGRAM_DIGEST: job.program_digest,
        Tag.SIZE: job.size or "",
        Tag.CO_RUNNER: "true" if job.is_co_runner else "",
        **_make_ending_tags(record, job),
        Tag.EXIT_STATUS: _spell(job.exit_status),
        Tag.PID: _spell(job.pid),
        Tag.START_NS: _spell(job.work_start_ns),
        Tag.END_NS: _spell(job.work_end_ns),
        **job.script_tags,
    }
    return {key: text for key, text in tags.items() if text}


def describe_ending(record: GroupRecord, run: RunRecord) -> str:
    """Return MLflow's description of an ended group, or of one of its jobs; it begins with a sign if it has a mark."""
    marks = record.marks if run is record else NO_MARKS
    assert run.result is not None
    line = format_line(run.result, run.reason, run.metrics, marks=marks, is_simulated=record.is_simulated)
    return f"{_MARKED}{line}" if marks.text else line


def _make_common_tags(record: GroupRecord) -> dict[str, str]:
    """Return the tags that a group and its jobs have in common."""
    return {
        Tag.STUDY: record.study,
        Tag.BLOCK: str(record.block),
        Tag.BASELINE_RUN: str(record.baseline_run) if record.baseline_run > 1 else "",
        Tag.SHARD: _spell(record.shard or None),
        Tag.CASE: _spell(record.case or None),
        Tag.SCENARIO: record.scenario,
        Tag.GPU_UUID: record.gpu_uuid,
        Tag.DEVICE: record.device,
        Tag.SIMULATED: "true" if record.is_simulated else "",
        Tag.PROFILER: record.profiler,
        **{_NAMES.get(name, fact_tag(name)): text for name, text in record.facts.items()},
        # MLflow's Source column shows the text after the last slash.
        Tag.SOURCE: "".join(Path(word).name for word in _split(record.facts.get("command_line", ""))[:1]),
        Tag.USER: record.facts.get("user", ""),
    }


def _make_run_tags(run: RunRecord) -> dict[str, str]:
    named = {_NAMES.get(name, fact_tag(name)): text for name, text in run.facts.items()}
    return named | {fact_tag(name): text for name, text in run.notes.items()}


def _make_ending_tags(record: GroupRecord, run: RunRecord) -> dict[str, str]:
    if run.result is None:
        return {}
    return {
        Tag.RESULT: run.result.value,
        Tag.REASON: run.reason,
        Tag.DESCRIPTION: describe_ending(record, run),
    }


def _split(command_line: str) -> list[str]:
    try:
        return shlex.split(command_line)
    except ValueError:
        return []


def _spell(number: int | None) -> str:
    return "" if number is None else str(number)
