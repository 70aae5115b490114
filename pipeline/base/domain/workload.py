"""A program with its arguments and its work unit; all copies are started alike.

Placeholders in the arguments, such as `--out={output_dir}`, stand for values that differ between jobs. An interpreter
may run in a container.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline.base.domain.rate_units import MetricUnit
from pipeline.base.domain.work_units import SAMPLES
from pipeline.base.system.errors import ConfigError
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
        is_sought: whether the first run of the program decides: a pattern of the rate that it prints, or its whole run.
    """

    samples: int | None = None
    metric: str | None = None
    pattern: str | None = None
    metric_unit: MetricUnit | None = None
    decimal_mark: str | None = None
    is_sought: bool = False

    @property
    def is_logged(self) -> bool:
        return self.metric is not None or self.is_printed

    @property
    def is_printed(self) -> bool:
        """True if the rate is, or may be, in the program's output."""
        return self.pattern is not None or self.is_sought


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """The objective of a service: a request that meets all of these counts in the goodput.

    Attributes:
        latency_ms: longest latency; `None` for any.
        percentile: the percentage of the requests that must meet the objective.
        first_token_ms: longest time to the first token.
        per_token_ms: longest mean time of each further token.
    """

    latency_ms: float | None = None
    percentile: float | None = None
    first_token_ms: float | None = None
    per_token_ms: float | None = None


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


BINDS, CWD, FOLDER, IMAGE = "{binds}", "{cwd}", "{folder}", "{image}"
"""Words of a command for the folders, the working directory, one of the folders, and the image."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """The program that starts an interpreter in a container.

    Attributes:
        command: words before the interpreter, in which `BINDS` and `CWD` are replaced.
        bind: words for each folder that the container must reach, in which `FOLDER` is replaced.
    """

    command: tuple[str, ...]
    bind: tuple[str, ...]

    @property
    def program(self) -> str:
        """The name of the program."""
        return Path(self.command[0]).name

    def spell(self, folders: Iterable[Path], cwd: Path) -> tuple[str, ...]:
        """Return the words before the interpreter; the folders, and `cwd`, have their own paths in the container."""
        return tuple(
            self._list_words([folder for folder in dict.fromkeys((*folders, cwd)) if folder != Path("/")], cwd)
        )

    def _list_words(self, folders: Iterable[Path], cwd: Path) -> Iterator[str]:
        for word in self.command:
            if word == BINDS:
                yield from (part.replace(FOLDER, str(folder)) for folder in folders for part in self.bind)
            else:
                yield word.replace(CWD, str(cwd))


PLACEHOLDERS = ("output_dir", "job", "degree")
"""Output folder of the job; its index in the group, from 0; number of jobs that run at the same time."""

# Doubled braces escape a placeholder. `${NAME}` is shell syntax; `{"a": 1}` and `{epoch:02d}` belong to other programs.
_BRACED = re.compile(r"(?<!\$)\{(?P<name>[A-Za-z_]\w*)\}")
_PLACEHOLDER = re.compile(rf"\{{\{{(?P<text>[A-Za-z_]\w*)\}}\}}|{_BRACED.pattern}")


def refuse_unknown_placeholders(workload: str, arguments: Iterable[str]) -> None:
    """Raise `ConfigError` for an unknown placeholder."""
    for argument in arguments:
        for match in _PLACEHOLDER.finditer(argument):
            name = match["name"]
            if name is not None and name not in PLACEHOLDERS:
                choices = ", ".join(f"{{{placeholder}}}" for placeholder in PLACEHOLDERS)
                raise ConfigError(
                    f"workload {workload}, argument {argument}: {{{name}}} is not a placeholder; use {choices}, or "
                    f"{{{{{name}}}}} for the literal text {{{name}}}"
                )


def escape_placeholders(argument: str) -> str:
    """Escape the placeholders of an argument; `fill_placeholders` then returns the original text."""
    return _BRACED.sub(r"{{\g<name>}}", argument)


def fill_placeholders(argument: str, values: Mapping[str, object]) -> str:
    """Fill the placeholders of an argument with their values."""
    return _PLACEHOLDER.sub(lambda match: _fill_one(match, values), argument)


def _fill_one(match: re.Match[str], values: Mapping[str, object]) -> str:
    if match["text"] is not None:
        return f"{{{match['text']}}}"
    return str(values.get(match["name"], match[0]))
