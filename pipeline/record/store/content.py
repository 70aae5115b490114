"""What one MLflow run is to hold, in the names, lengths and batches that MLflow accepts.

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

from pipeline.base.domain.layout import LONG_VALUES
from pipeline.base.domain.point_series import thinned
from pipeline.base.domain.tags import Tag, stored_name
from pipeline.base.mlflow_internals.file_store import TORN, ScriptRun
from pipeline.base.system.secrecy import Secrecy, secrecy_of
from pipeline.base.system.secrets import mask, mask_text
from pipeline.base.system.words import escape_to_utf8

MAX_KEY, MAX_PARAM, MAX_TAG = 250, 6000, 8000
MAX_ENTITIES, MAX_PARAMS, MAX_TAGS = 1000, 100, 100
MAX_BYTES = 500_000
"""Of one request. MLflow takes 1e6; half of it leaves room for what JSON and the transport add."""

_REFUSED_FILE = re.compile(rf"^\.\.|(^|/){re.escape(TORN)}[^/]*$")
_CHANGED_IN_ADDRESS = re.compile(r"[#?%\\\x00-\x1f\x7f\ud800-\udfff]")

CUT = f" ... [cut: the whole value is in {LONG_VALUES}]"

Point = tuple[int, int, float]
"""Step, wall-clock ms since the epoch, value."""


@dataclass(slots=True)
class LogBatch:
    """What goes to MLflow in one call of `log_batch`."""

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
    """Collects params, tags and metrics of one run. `long_values` holds what had to be cut, by kind and name."""

    metrics: dict[str, list[Point]] = field(default_factory=dict)
    params: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    long_values: dict[str, dict[str, str]] = field(default_factory=dict)
    not_finite: list[str] = field(default_factory=list)

    def add_param(self, key: str, value: str) -> None:
        name = _free_name(key, self.params)
        self.params[name] = self._cut("params", name, value, MAX_PARAM)

    def add_tag(self, key: str, value: str) -> None:
        name = _free_name(stored_name(key), self.tags)
        self.tags[name] = self._cut("tags", name, value, MAX_TAG)

    def add_metric(self, key: str, points: Iterable[Point]) -> None:
        """Add the points of a metric. Those that are not finite are left out, and a tag names the metric."""
        name = _free_name(key, self.metrics)
        every = list(points)
        finite = [point for point in every if math.isfinite(point[2])]
        if finite:
            self.metrics[name] = finite
        if len(finite) < len(every):
            self.not_finite.append(name)

    def add_script_run(self, run: ScriptRun, most_points: int) -> Iterator[str]:
        """Add what the job's own program logged. A name that is taken already goes below `script/`.

        Yields the names of metrics of which there are more points than `most_points`, as many of which are added.
        """
        for key, points in run.metrics.items():
            self.add_metric(_yielding(run.prefix + key, self.metrics), thinned(points, most_points))
            if points.num_points > min(len(points), most_points):
                yield key
        for key, value in run.params.items():
            self.add_param(_yielding(run.prefix + key, self.params), _masked(key, value))
        for key, value in run.tags.items():
            self.add_tag(_yielding(run.prefix + key, self.tags), _masked(key, value))

    def batches(self, known: RunContent | None = None) -> Iterator[LogBatch]:
        """Everything but known params and tags, in as few calls as MLflow allows; nothing if there is nothing."""
        known = known or RunContent()
        params = {key: value for key, value in self.params.items() if known.params.get(key) != value}
        tags = {key: value for key, value in self.tags.items() if known.tags.get(key) != value}
        if self.not_finite:
            tags[Tag.NOT_FINITE] = self._cut("tags", Tag.NOT_FINITE, ", ".join(self.not_finite), MAX_TAG)
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
        value = escape_to_utf8(value)  # a name of a file may be in it, and no database takes what is not
        if len(value) <= limit:
            return value
        self.long_values.setdefault(kind, {})[name] = value
        return value[: limit - len(CUT)] + CUT


def words_of(command_line: str) -> list[str] | None:
    """The words of a command line that is a tag; `None` if that is no command line, as one that was too long for it."""
    try:
        return None if command_line.endswith(CUT) else shlex.split(command_line)
    except ValueError:
        return None


def safe_name(key: str) -> str:
    """The key as MLflow accepts it: letters, digits and `_-./ :`, a plain relative path, at most 250 characters."""
    name = posixpath.normpath("/" + re.sub(r"[^\w\-./ :]", "_", key)).lstrip("/")
    return re.sub(r"^\.\.+", "_", name)[:MAX_KEY].rstrip("/") or "_"


def takes_file(name: str, *, is_server: bool) -> bool:
    """Whether MLflow keeps a file by this path below a run's artifacts, and does not refuse or change it.

    Its client puts the path into the address of a server as it is.
    """
    return not (_REFUSED_FILE.search(name) or (is_server and _CHANGED_IN_ADDRESS.search(name)))


def _free_name(key: str, taken: Container[str]) -> str:
    """The safe name, numbered if another key became the same one."""
    name, number = safe_name(key), 2
    while name in taken:
        suffix = f"_{number}"
        name, number = safe_name(key)[: MAX_KEY - len(suffix)] + suffix, number + 1
    return name


def _masked(key: str, value: str) -> str:
    """Mask what a script logged; by a name that may be that of something else, as `key`, it is not."""
    is_ambiguous = secrecy_of(key) is Secrecy.AMBIGUOUS
    return mask_text(value) if is_ambiguous else str(mask(value, key))


def _yielding(key: str, taken: Container[str]) -> str:
    return f"script/{key}" if safe_name(key) in taken else key
