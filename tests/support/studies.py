"""Studies in this process, as `run.py` runs them: what is composed goes to `execution.execute`; rows are files.

The process that talks to MLflow is not there: what it would send is read from each group's `record.json`, which a study
leaves in its spool. Jobs, their listeners and the simulated driver's programs are real. It costs a third of the CPU
time of a fork of `run.py` with its store. What is about signals, kills, `resume`, artifacts or the store itself is
tested through `run.py`.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig

from pipeline.base.domain import layout
from pipeline.base.domain.records import Result
from pipeline.base.domain.tags import Tag
from pipeline.base.system import user_command
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.plan import command_line
from pipeline.record import group_folder, invocation
from pipeline.record.group_folder import RunRecord
from pipeline.record.invocation import Invocation
from pipeline.study import execution
from tests.support import experiments


@dataclass(frozen=True)
class Info:
    """What MLflow shows of a run."""

    run_name: str
    status: str


@dataclass(frozen=True)
class Data:
    """What a run holds; of a job, also the points of its series, `(step, monotonic ns, value)`."""

    tags: dict[str, str]
    params: dict[str, str]
    metrics: dict[str, float]
    series: dict[str, list[tuple[int, int, float]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """A run, in the form that MLflow gives it.

    Attributes:
        folder: with its files, as the sender would have found them.
    """

    info: Info
    data: Data
    folder: Path


@dataclass(frozen=True)
class Study:
    """A study that has ended.

    Attributes:
        groups: the run of each group, with those of its jobs, in the order in which they ended.
    """

    status: int
    out: str
    err: str
    groups: list[tuple[Row, list[Row]]]

    @property
    def jobs(self) -> list[Row]:
        return [job for _, jobs in self.groups for job in jobs]

    def __iter__(self) -> Iterator[Any]:
        """Exit status, output and errors, as of a program."""
        return iter((self.status, self.out, self.err))


class KeptRows:
    """Stands in the sender's place, and moves the folders of groups that it is to send to a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.unsent: dict[Path, str] = {}
        self.runs: dict[Path, str] = {}
        self.failed: dict[Path, dict[str, str]] = {}
        self.groups: dict[str, tuple[Row, list[Row]]] = {}
        self._opened: dict[str, object] = {}

    def __enter__(self) -> KeptRows:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def pids(self) -> tuple[int, ...]:
        return ()

    def open(self, experiment: str, root: Path, uri: str | None, series_points: int) -> None:
        self._opened = {"experiment_id": "1", "kind": "local", "uri": f"sqlite:///{root}/{layout.DATABASE}"}

    def wait_for_store(self) -> dict[str, object]:
        return self._opened

    def rest(self, until_s: float | None = None) -> None:
        pass

    def find_past_groups(self, store: str) -> list[Any]:
        return []

    def begin(self, folder: Path) -> None:
        assert group_folder.read(folder).state == "open"

    def send(self, folder: Path) -> None:
        record = group_folder.read(folder)
        assert record.state == "closed"
        kept = self.folder / f"{folder.parent.name}-{folder.name}"
        self.folder.mkdir(exist_ok=True)
        folder.rename(kept)
        jobs = [_row(child, kept / child.folder, child.series, index=child.index) for child in record.children]
        self.groups[record.spool_id] = _row(record.parent, kept), jobs
        self.runs[folder] = record.spool_id
        self.failed[folder] = {
            str(child.index): f"file://{urllib.parse.quote(str(kept / child.folder))}"
            for child in record.children
            if child.status == "FAILED"
        }

    def amend(self, file: Path) -> None:
        amendment = group_folder.read_amendment(file)
        row, jobs = self.groups[amendment.spool_id]
        row.data.metrics.update(amendment.metrics)
        info = row.info
        if row.data.tags[Tag.RESULT] != amendment.result:
            row.data.tags |= {Tag.RESULT: amendment.result, Tag.REASON: amendment.reason}
            info = Info(info.run_name, Result(amendment.result).mlflow_status)
        self.groups[amendment.spool_id] = Row(info, row.data, row.folder), jobs
        group_folder.remove_amendment(file, amendment)


def _row(run: RunRecord, folder: Path, series: dict[str, Any] | None = None, index: int | None = None) -> Row:
    tags = {str(key): value for key, value in run.tags.items()} | ({} if index is None else {Tag.INDEX: str(index)})
    last = {name: points[-1][2] for name, points in (series or {}).items() if points}  # as MLflow shows a metric
    return Row(Info(run.name, run.status), Data(tags, dict(run.params), last | run.metrics, series or {}), folder)


def composed(arguments: Sequence[str]) -> tuple[list[DictConfig], bool]:
    """What Hydra composes for `python run.py ARGUMENTS`, one configuration a combination; and whether it is a sweep.

    Of its own options `-m` and `--config-dir FOLDER` are understood.

    Raises:
        HydraException, OmegaConfBaseException, ConfigError: as from Hydra.
    """
    sweeper, overrides, is_sweep = _read(arguments)
    jobs = sweeper.expand(overrides) if is_sweep else [overrides]
    return [sweeper.launcher.compose(job) for job in jobs], is_sweep


def _read(arguments: Sequence[str]) -> tuple[Any, list[str], bool]:
    """Return the sweeper of a command line, its overrides but those of Hydra, and whether it is a sweep."""
    words = list(map(command_line.quote_home, user_command.make_overrides(arguments)))
    of_hydra = [word for word in words if word.startswith(("hydra.", "hydra/"))]
    while "--config-dir" in words:
        at = words.index("--config-dir")
        of_hydra.append(f"hydra.searchpath=[file://{words[at + 1]}]")
        del words[at : at + 2]
    is_sweep = "-m" in words
    overrides = [word for word in words if word != "-m" and word not in of_hydra]
    return experiments.sweeper_of(of_hydra), overrides, is_sweep


def composed_by_hydra(arguments: Sequence[str]) -> tuple[list[DictConfig], bool]:
    """The same of a single run by Hydra itself, which takes 0.1 s and refuses with its own words."""
    words = list(map(command_line.quote_home, user_command.make_overrides(arguments)))
    return [experiments.composed_by_hydra(words)], False


def execute(
    arguments: Sequence[str],
    folder: Path,
    patch: pytest.MonkeyPatch,
    compose: Callable[[Sequence[str]], tuple[list[DictConfig], bool]] = composed,
) -> tuple[int, KeptRows]:
    """Run the study of a command line in the present directory: its exit status, and its rows, with files in `folder`.

    What it changes in this process is put back by `patch`.
    """
    rows = KeptRows(folder)
    patch.setattr(sys, "argv", [str(PROJECT_DIR / "run.py"), *arguments])
    patch.setattr(invocation, "_current", Invocation(words=tuple(sys.argv)))
    with _messages():
        try:
            configs, is_sweep = compose(arguments)
        except Exception as error:  # noqa: BLE001  as `command_line.run` does
            sys.stderr.write(f"error: {command_line.explain(error)}\n")
            return 2, rows
        execute_here = functools.partial(execution.execute, take_sender=lambda: rows)
        if not is_sweep:
            return execute_here(configs, is_sweep=False), rows
        patch.setattr(execution, "execute", execute_here)
        return _read(arguments)[0].launcher.execute(configs), rows


@contextlib.contextmanager
def _messages() -> Iterator[None]:
    """Have warnings of the log written to the error output, as by a program that has it to itself."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
    handler.setLevel(logging.WARNING)
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)
