"""A program as every copy of it is started, with its work unit."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.base.domain.metric_unit import MetricUnit
from pipeline.base.domain.work_units import SAMPLES
from pipeline.base.system.factory import Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class RateSource:
    """The rate source of a program that does not report its steps; at most one is given.

    Attributes:
        samples: the work of a whole run, in work units.
        metric: name of the metric logged through MLflow or in TensorBoard files.
        pattern: a regular expression for lines of its output, with one group.
        metric_unit: unit of the number, as far as the program does not give it.
        decimal_mark: `.` or `,` for numbers in its output; `None` if they are unambiguous.
    """

    samples: int | None = None
    metric: str | None = None
    pattern: str | None = None
    metric_unit: MetricUnit | None = None
    decimal_mark: str | None = None

    @property
    def is_logged(self) -> bool:
        return self.metric is not None or self.pattern is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """The latency objective of a service: a percentage of its requests answered in time."""

    latency_ms: float
    percentile: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A file of a program: `name` is relative to the program's folder or, for our files, to the project's."""

    name: str
    path: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One program with its arguments, as every copy of it is started.

    Attributes:
        script: absolute path of the program.
        argv: all arguments of the interpreter, the program's path among them.
        ends_by_itself: it cannot be stopped, so that only the `work` window fits it.
        preload: module that imports what the program does, for a warm start.
        digest: of everything that decides what the program computes, the packages of its environment among it.
        program_digest: of the same without the packages.
        sources: the files of the program, and of the runner that starts it.
        is_in_own_folder: each job starts in its output folder, and not where the user called from.
        objective: of its latency, if it answers requests and one was given.
        is_rate_given: it is a service that answers as many requests as the user chose to send.
        lacks: what its environment lacks, in words, where that is an answer of the study and no error.
        module_path: folders that hold modules of it, which its environment need not know.
    """

    name: str
    script: str
    argv: tuple[str, ...]
    ends_by_itself: bool
    env: Spec
    digest: str
    params: tuple[tuple[str, str], ...] = ()
    environ: tuple[tuple[str, str], ...] = ()
    preload: str | None = None
    program_digest: str = ""
    sources: tuple[Source, ...] = ()
    is_in_own_folder: bool = False
    rate: RateSource = RateSource()
    work_unit: str = SAMPLES
    is_rate_given: bool = False
    objective: Objective | None = None
    lacks: str | None = None
    module_path: tuple[str, ...] = ()
