"""Studies in this process, which `execution.execute` runs as in `run.py`, but without a store.

There is no sender: the data that it would send is read from each group's `record.json` in the spool. Jobs, their
listeners and the simulated driver's programs are real. A study here needs a third of the CPU time of a fork of `run.py`
with its store. Signals, kills, `resume`, artifacts and the store itself are tested with `run.py`.
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
from pipeline.record import group_folder, group_record, invocation
from pipeline.record.group_record import GroupRecord, JobRecord
from pipeline.record.invocation import Invocation
from pipeline.record.store import content
from pipeline.study import execution
from tests.support import experiments


@dataclass(frozen=True)
class Info:
    """The info of a run, as in MLflow."""

    run_name: str
    status: str


@dataclass(frozen=True)
class Data:
    """The data of a run; for a job, also the points of its series: `(step, monotonic ns, value)`."""

    tags: dict[str, str]
    params: dict[str, str]
    metrics: dict[str, float]
    series: dict[str, list[tuple[int, int, float]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """A run, with the attributes of MLflow's runs.

    Attributes:
        folder: folder with the files that the sender would send.
    """

    info: Info
    data: Data
    folder: Path


@dataclass(frozen=True)
class Study:
    """A study that has ended.

    Attributes:
        groups: run of each group, with the runs of its jobs, in the order in which the groups ended.
    """

    status: int
    out: str
    err: str
    groups: list[tuple[Row, list[Row]]]

    @property
    def jobs(self) -> list[Row]:
        return [job for _, jobs in self.groups for job in jobs]

    def __iter__(self) -> Iterator[Any]:
        """Exit status, output and errors of a study, as if it were a program."""
        return iter((self.status, self.out, self.err))


class KeptRows:
    """A replacement for the sender, which moves the folders of groups to a separate folder instead of sending them."""

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

    def finish_requests(self, until_s: float | None = None) -> None:
        pass

    def find_past_groups(self, store: str) -> list[Any]:
        return []

    def begin(self, folder: Path) -> None:
        assert not group_record.read(folder).is_closed

    def send(self, folder: Path) -> None:
        record = group_record.read(folder)
        assert record.is_closed
        stored_folder = self.folder / f"{folder.parent.name}-{folder.name}"
        self.folder.mkdir(exist_ok=True)
        folder.rename(stored_folder)
        series = group_record.read_series(stored_folder)
        jobs = [_job_row(record, job, stored_folder, series.get(str(job.index), {})) for job in record.jobs]
        data = Data(content.make_group_tags(record), dict(record.params), dict(record.metrics), {})
        self.groups[record.spool_id] = Row(Info(record.name, record.status), data, stored_folder), jobs
        self.runs[folder] = record.spool_id
        self.failed[folder] = {
            str(child.index): f"file://{urllib.parse.quote(str(stored_folder / child.folder))}"
            for child in record.jobs
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


def _job_row(group: GroupRecord, job: JobRecord, folder: Path, series: group_record.Series) -> Row:
    tags = content.make_job_tags(group, job) | {Tag.INDEX: str(job.index)}
    return Row(Info(job.name, job.status), Data(tags, job.all_params, dict(job.metrics), series), folder / job.folder)


def composed(arguments: Sequence[str]) -> tuple[list[DictConfig], bool]:
    """Return the configurations that Hydra composes for `python run.py ARGUMENTS`, and whether it is a sweep.

    Hydra's options `-m` and `--config-dir FOLDER` are supported.

    Raises:
        HydraException, OmegaConfBaseException, ConfigError: the errors that Hydra raises.
    """
    sweeper, overrides, is_sweep = _read(arguments)
    combinations = sweeper.expand(overrides) if is_sweep else [overrides]
    return [sweeper.launcher.compose(combination) for combination in combinations], is_sweep


def _read(arguments: Sequence[str]) -> tuple[Any, list[str], bool]:
    """Return the sweeper of a command line, its overrides without those of Hydra, and whether it is a sweep."""
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
    """Compose a single run by Hydra itself, which takes 0.1 s; error messages are those of Hydra."""
    words = list(map(command_line.quote_home, user_command.make_overrides(arguments)))
    return [experiments.composed_by_hydra(words)], False


def execute(
    arguments: Sequence[str],
    folder: Path,
    patch: pytest.MonkeyPatch,
    compose: Callable[[Sequence[str]], tuple[list[DictConfig], bool]] = composed,
) -> tuple[int, KeptRows]:
    """Run the study of a command line in the working directory; return its exit status and its rows.

    The files of the rows are in `folder`. `patch` restores everything that the study changes in this process.
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
    """Write logged warnings to stderr, as run.py does."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
    handler.setLevel(logging.WARNING)
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)
