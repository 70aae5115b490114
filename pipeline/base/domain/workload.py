"""A program with its arguments and its work unit; all copies are started alike."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.base.domain.rate_units import MetricUnit
from pipeline.base.domain.work_units import SAMPLES
from pipeline.base.system.factory import Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class RateSource:
    """The source of the rate of a program that does not report its steps; at most one of the first three is set.

    Attributes:
        samples: the work of a complete run, in work units.
        metric: name of the metric logged through MLflow or in TensorBoard files.
        pattern: a regular expression for lines of the program's output, with one group.
        metric_unit: unit of the number, if the program does not print it.
        decimal_mark: `.` or `,` for numbers in the output; `None` if they are unambiguous.
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
    """The latency objective of a service: the percentage of its requests that must be answered in time."""

    latency_ms: float
    percentile: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A file of a program.

    `name` is relative to the program's folder or, for a file of this project, to the project's folder.
    """

    name: str
    path: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One program with its arguments; all copies are started alike.

    Attributes:
        script: absolute path of the program.
        argv: all arguments of the interpreter, including the program's path.
        ends_by_itself: whether the program exits on its own and cannot be stopped, which rules out a `steady` window.
        preload: module that has the same imports as the program, for a warm start.
        digest: digest of everything that affects the program's computation, including the packages of its environment.
        program_digest: `digest` without the packages.
        sources: the files of the program, and of the runner that starts it.
        is_in_own_folder: whether each job starts in its output folder instead of the user's working directory.
        work_unit: what its work is counted in; empty if the program's log names it.
        objective: latency objective, if the program answers requests and the user set one.
        is_rate_given: whether the program is a service whose rate of requests the user set.
        lacks: what the environment lacks, if the study records the lack as a result instead of failing.
        own_process: reason why the program cannot share a process with other jobs; empty if it can.
        module_path: folders with modules of the program, which its environment need not contain.
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
    own_process: str = ""
    module_path: tuple[str, ...] = ()
