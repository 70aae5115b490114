"""The keys that every workload has, and the methods that a plan calls.

The options of a program are a dataclass next to the program (an option class), which `pipeline/plan/option_loader.py`
loads by name and joins to `WorkloadConfig`. Hooks are optional methods of an option class. To refuse a value, a hook
raises `ValueError` with a message that names the configuration keys.
"""

from __future__ import annotations

import dataclasses
import math
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

from omegaconf import MISSING
from omegaconf.errors import OmegaConfBaseException

from pipeline.base.domain import service_figures, work_units
from pipeline.base.domain.records import Device
from pipeline.base.domain.window import Window, WindowKind
from pipeline.base.domain.workload import Objective, RateSource
from pipeline.base.system import errors, user_command
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.option_fields import option
from pipeline.base.system.paths import expand_path, is_file
from pipeline.plan import option_values, source_digest

# Variables that only the orchestrator sets. A variable that bypasses MPS is allowed: its group fails with the reason.
_OURS = frozenset({"CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"})
_OUR_PREFIX = "COLLOCATION_"
_UNDER_LOAD = {0.6: 4000, 0.8: 13_000}
"""Numbers of requests in which a queue with constant service times has enough excursions for a p99
(`python -m benchmarks.percentiles`)."""


@dataclass(frozen=True)
class JobDevice:
    """The device for which options are checked (`workloads.options.Device`)."""

    name: str
    is_gpu: bool
    is_simulated: bool
    was_chosen: bool
    compute_capability: tuple[int, ...] | None


@dataclass
class WorkloadConfig:
    """A program. An option class adds keys, which become command-line flags (`batch_size` -> `--batch-size`).

    A program that can be stopped also gets `--seed`, `--device` and `--epochs` (0: run until stopped).

    Attributes:
        NODE: name of the schema that YAML files list under `defaults`.
        WORK_UNIT: regular expression of the work units that are allowed.
        may_lack_packages: whether a group is skipped if its environment lacks a package; else the study is refused.
        is_load: whether the program only loads a resource, so that it is a co-runner in a mix with a program that
            cannot be stopped.
        takes_turns: whether the program does different work in turns, in which the rates of other jobs are compared.
    """

    NODE: ClassVar[str] = "workload"
    WORK_UNIT: ClassVar[str] = work_units.PATTERN
    may_lack_packages: ClassVar[bool] = False
    is_load: ClassVar[bool] = False
    takes_turns: ClassVar[bool] = False

    name: str = option("name in tables and MLflow; for `script`, the name of the script file", MISSING)
    options: str | None = option("option class; set by `workload=`", None)
    script: str = option(
        "path of the script, relative to the working directory or the project; for `script` also a program of the "
        "environment or on PATH",
        MISSING,
    )
    args: Any = option(
        "further arguments: a list, or a text in shell syntax; [`{output_dir}`, `{job}` and `{degree}`]"
        "(workloads.md#a-folder-for-each-job) are replaced",
        [],
    )
    flags: dict[str, Any] = option(
        "further flags: `workload.flags.NAME=VALUE` becomes `--NAME VALUE`; true: the flag alone; false or null: "
        "nothing; a list: several values",
        {},
    )
    runner: str | None = option(
        "script that starts the program and uses the job protocol for it; `null`: the program uses the job protocol",
        None,
    )
    ends_by_itself: bool = option("whether the program cannot be stopped; its group then uses the `work` window", False)
    environ: dict[str, str] = option(
        "further environment variables: `workload.environ.NAME=VALUE`; [secrets](tracking.md#secrets) are not recorded",
        {},
    )
    work_unit: str = option(
        "work unit, such as `sequences`; it is part of the names of [metrics](method.md#units)",
        work_units.SAMPLES,
    )
    preload: str | None = option("module to import for a [warm start](warm_start.md); `null`: no warm start", None)
    env_file: str | None = option("environment file of this workload's jobs, instead of `env.file`", None)
    env_prefix: str | None = option("environment of this workload's jobs, instead of `env.prefix`", None)

    def __post_init__(self) -> None:
        self.name = self.name or self.derive_name()
        with self.hook("derive_work_unit"):
            self.work_unit = self.work_unit or self.derive_work_unit()

    # Hooks of an option class.

    def derive_name(self) -> str:
        """Return the name of a workload whose `name` is empty."""
        return type(self).__name__.lower()

    def derive_work_unit(self) -> str:
        """Return the work unit if the options determine it, else an empty string."""
        return ""

    def derive_values(self) -> Mapping[str, object]:
        """Return values computed from other options; they replace defaults only."""
        return {}

    def check(self, device: Any) -> None:
        """Raise `ValueError` for options that cannot run on the device or exclude each other."""

    def check_data(self) -> None:
        """Raise `ValueError` if data that the program will read is missing."""

    def packages(self) -> tuple[str, ...]:
        """Return the distributions that the options need; `A|B` needs either."""
        return ()

    def describe_lack(self, package: str, python: str) -> str:
        """Return an error message with remedy for a package that an interpreter's environment lacks."""
        return f"{package} is not installed in the environment of {python}; install {package}, or choose another option"

    def explain_own_launch(self) -> str:
        """Return why a job must not be paused between steps, as interleaved windows do; empty if it may be paused."""
        return "its program does not pause between steps"

    def fit_window_s(self, settle_s: float) -> float:
        """Return the length that a steady window must have after this settling time, such as for all turns of a job."""
        return 0.0

    def explain_own_process(self) -> str:
        """Return why a job needs a process of its own; empty if it can run in a thread beside other jobs."""
        return "its program offers no step that a thread beside other jobs could run"

    def input_files(self) -> Mapping[str, str]:
        """Return the files that are part of the program, each with the configuration key that names it."""
        return {}

    def small(self) -> Any:
        """Return the small workload that a rehearsal runs instead."""
        return self

    # Methods that a plan calls.

    def rate_source(self) -> RateSource:
        """Return the source of the job's rate if the program does not report its steps."""
        return RateSource()

    def is_in_own_folder(self) -> bool:
        """Return whether each job starts in its output folder instead of the caller's working directory."""
        return False

    def option_fields(self) -> list[dataclasses.Field[Any]]:
        """Return the fields that its option class adds."""
        common = {option.name for option in fields(WorkloadConfig)}
        return [option for option in fields(self) if option.name not in common]

    def program_options(self) -> dict[str, Any]:
        """Return the program's options, with absolute paths, because a job's working directory differs."""
        options = [option for option in self.option_fields() if option.metadata.get("is_flag", True)]
        return {option.name: self._value_for_job(option) for option in options}

    def complete(self) -> WorkloadConfig:
        """Return the workload with derived values in place of defaults.

        Raises:
            ConfigError: a value of the workload or of `derive_values` is refused.
        """
        self.refuse_values()
        with self.hook("derive_values"):
            derived: dict[str, Any] = dict(self.derive_values())
        options = {option.name: option for option in self.option_fields() if option.metadata.get("is_flag", True)}
        for key in derived:
            if key not in options:
                raise self._refused(
                    f"derive_values returns {key}, which is not an option; add {key} as a field of the class"
                )
            try:
                derived[key] = option_values.convert(type(self), key, derived[key])
            except OmegaConfBaseException as error:
                raise self._refused(f"derive_values: {key}={derived[key]}: {str(error).splitlines()[0]}") from error
        set_by_user = [key for key in derived if getattr(self, key) != option_values.read_default(options[key])]
        planned = dataclasses.replace(self, **{key: value for key, value in derived.items() if key not in set_by_user})
        planned.refuse_values("derive_values: ")
        return planned

    def study_settings(self) -> dict[str, Any]:
        """Return the options for the study, which the program does not get."""
        names = sorted(option.name for option in self.option_fields() if not option.metadata.get("is_flag", True))
        return {work_units.PARAM: self.work_unit, **{key: getattr(self, key) for key in names}}

    def place_options(self) -> set[str]:
        """Return the names of path options that do not affect the results."""
        return {option.name for option in self.option_fields() if option.metadata.get("path") == "place"}

    def _value_for_job(self, option: dataclasses.Field[Any]) -> Any:
        value = getattr(self, option.name)
        if option.metadata.get("path") and value:
            return str(expand_path(f"workload.{option.name}", value).resolve())
        for placeholder in option.metadata.get("braces", "").split():
            value = value.replace(placeholder, f"{{{placeholder}}}")
        return value

    def has_given_rate(self) -> bool:
        """Return whether the workload is a service with a fixed offered load.

        Its rate then follows from the offered load and not from its speed, so services are compared by latency.
        """
        return getattr(self, service_figures.RATE, None) is not None

    def latency_objective(self) -> Objective | None:
        """Return the objective of a service; `None` without an objective."""
        objective = Objective(
            latency_ms=getattr(self, service_figures.OBJECTIVE, None),
            percentile=getattr(self, service_figures.OBJECTIVE_PERCENTILE, None),
            first_token_ms=getattr(self, service_figures.TTFT, None),
            per_token_ms=getattr(self, service_figures.TPOT, None),
        )
        return None if objective == Objective() else objective

    def fit_window(self, window: Window) -> Window:
        """Return a window; if it is steady, with at least the length that the job needs.

        Raises:
            ConfigError: the hook `fit_window_s` refuses the settling time.
        """
        with self.hook("fit_window_s"):
            seconds = self.fit_window_s(window.settle_s)
        if not seconds or window.kind is not WindowKind.STEADY:
            return window
        return dataclasses.replace(window, seconds=max(window.seconds, round(seconds, 6)), most_s=0.0)

    def window_notes(self, window: Window) -> list[str]:
        """Return notes on a window for the user; raise `ConfigError` if the window is too short for an objective."""
        try:
            return [f"{self.name}: {note}" for note in _list_window_notes(self, window)]
        except ValueError as error:
            raise self._refused(str(error)) from error

    def source_files(self) -> dict[str, str]:
        """Return the further files of the program, each with the configuration key that names it.

        These are the Python files in the command line and the files that options name.
        """
        words = self.argument_words()
        named = [file for file in user_command.list_source_files("", words) if is_file(Path(file))]
        of_modules = (
            source_digest.list_module_files(module, Path()) for module in user_command.list_modules(self.script, words)
        )
        try:
            return dict.fromkeys([*named, *map(str, chain(*of_modules))], "args") | dict(self.input_files())
        except ValueError as error:
            raise self._refused(str(error)) from error

    def added_words(self, arguments: Iterable[str] = ()) -> list[str]:
        """Return the words that `args` and `flags` add to a command line that already has `arguments`.

        Raises:
            ConfigError: `args` or `flags` cannot be read, or a flag is given twice.
        """
        words = self.argument_words()
        flags = {word.partition("=")[0] for word in (*arguments, *words) if word.startswith("--")}
        for name, value in self.flag_values().items():
            if f"--{name}" in flags:
                raise self._refused(f"--{name} is given twice; remove flags.{name}={value} or the argument --{name}")
            if value is not False and value != []:
                several = value if isinstance(value, list) else [] if value is True else [value]
                words += [f"--{name}", *map(_word, several)]
        return words

    def flag_values(self) -> dict[str, Any]:
        """Return the flags that are not null, by name; the name of a nested flag is `optimizer.lr`."""
        return dict(self._flattened(self.flags, ""))

    def _flattened(self, flags: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
        for key, value in flags.items():
            if not key or key.startswith("-"):
                raise self._refused(f"flags.{prefix}{key} is not the name of a flag; write the name without dashes")
            if isinstance(value, Mapping):
                yield from self._flattened(value, f"{prefix}{key}.")
            elif value is not None:
                yield f"{prefix}{key}", value

    def argument_words(self) -> list[str]:
        """Return the words of `args`."""
        if isinstance(self.args, list):
            return list(map(str, self.args))
        try:
            return [] if self.args is None else shlex.split(str(self.args))
        except ValueError as error:
            raise self._refused(f"args={self.args} cannot be split into words ({error}); check its quotes") from error

    def refuse_wrong(self, device: Device, *, device_was_chosen: bool) -> None:
        """Raise `ConfigError` for settings that cannot run on the device or exclude each other.

        Only values are checked, not files. `device_was_chosen` is false if the device is detected (gpu.kind=auto).
        """
        for key in self.environ:
            if key in _OURS or key.startswith(_OUR_PREFIX):
                raise self._refused(f"environ.{key} is reserved for the orchestrator; remove this variable")
        if not re.fullmatch(self.WORK_UNIT, self.work_unit, re.ASCII):
            raise self._refused(
                f"work_unit={self.work_unit} cannot be part of metric names; use a plural noun of letters, digits and "
                "underscores, such as sequences"
            )
        with self.hook("derive_work_unit"):
            unit = self.derive_work_unit()
        if unit and unit != self.work_unit:
            raise self._refused(f"work_unit={self.work_unit} must be {unit}, the program's work unit; remove work_unit")
        with self.hook("check"):
            self.check(
                JobDevice(
                    name=device.name,
                    is_gpu=device.is_gpu,
                    is_simulated=device.is_simulated,
                    was_chosen=device_was_chosen,
                    compute_capability=device.facts.compute_capability,
                )
            )

    def refuse_missing_data(self) -> None:
        """Raise `ConfigError` if data that the program will read is missing or has no path."""
        paths = [option for option in self.option_fields() if option.metadata.get("path")]
        absolute = {option.name: self._value_for_job(option) for option in paths}
        with self.hook("check_data"):
            dataclasses.replace(self, **absolute).check_data()

    def needed_packages(self) -> tuple[str, ...]:
        """Return the result of the hook `packages`; raise `ConfigError` if the hook fails."""
        with self.hook("packages"):
            return tuple(self.packages())

    def refuse_values(self, source: str = "") -> None:
        """Raise `ConfigError` for a value that its option does not accept; the message begins with `source`."""
        for field in self.option_fields():
            if (mistake := option_values.explain_wrong(field, getattr(self, field.name))) is not None:
                raise self._refused(f"{source}{mistake}")

    @contextmanager
    def hook(self, name: str) -> Iterator[None]:
        """Convert an exception of a hook to `ConfigError`; add file and line unless it is a `ValueError`."""
        try:
            yield
        except ValueError as error:
            raise self._refused(str(error)) from error
        except Exception as error:
            if isinstance(error, OSError) and error.filename:
                raise self._refused(f"{error.filename} cannot be read: {error.strerror}") from error
            code = getattr(getattr(self, name), "__code__", None)
            if code is None:
                raise self._refused(f"{name} must be a method; define it with def") from error
            file = code.co_filename
            location = errors.locate(error, file) or f"{Path(file).name}:{code.co_firstlineno}"
            raise self._refused(f"{name} failed: {type(error).__name__}: {error} ({location})") from error

    def _refused(self, reason: str) -> ConfigError:
        return ConfigError(f"workload {self.name}: {reason}")


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _list_window_notes(service: Any, window: Window) -> list[str]:
    """Return notes on the percentiles of a service in a window; none for other workloads.

    Raises:
        ValueError: the window holds too few requests for the percentile of the objective.
    """
    rate_per_s, requests = getattr(service, service_figures.RATE, None), getattr(service, "requests", None)
    if window.kind is WindowKind.WORK and requests is not None:
        count = requests * window.epochs
        held = f"{count:,} requests"
    elif window.kind is WindowKind.STEADY and rate_per_s is not None:
        count = int(rate_per_s * window.longest_s)  # the steps of services are unknown, so their window is the longest
        held = f"about {count:,} requests ({rate_per_s:g}/s for {window.longest_s:g} s)"
    else:
        return []  # the number of requests is unknown if clients wait for answers
    percentile = getattr(service, service_figures.OBJECTIVE_PERCENTILE, None)
    if percentile is not None and count < service_figures.min_requests(percentile):
        num_required = service_figures.min_requests(percentile)
        raise ValueError(
            f"objective_percentile={percentile:g} needs {num_required:,} requests, but the window holds only {held}; "
            f"{_suggest_window(rate_per_s, window, num_required)}"
        )
    if count < (least := service_figures.min_requests(99)):
        enough = _suggest_window(rate_per_s, window, least)
        return [f"no p99: a p99 needs at least {least:,} requests, but the window holds only {held}; {enough}"]
    if count < max(_UNDER_LOAD.values()):
        needs = " and ".join(f"{number:,} at load {load:g}" for load, number in _UNDER_LOAD.items())
        return [f"a p99 needs {least:,} requests that do not wait for others, about {needs}; the window holds {held}"]
    return []


def _suggest_window(rate_per_s: float | None, window: Window, count: int) -> str:
    if window.kind is WindowKind.WORK or rate_per_s is None:
        return "raise workload.requests or window.epochs"
    return f"set {window.longest_key}={math.ceil(1.1 * count / rate_per_s)}"
