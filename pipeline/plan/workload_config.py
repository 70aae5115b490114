"""The keys of every workload, whatever its program is, and what a plan asks of it.

The options of a program stand beside it, in a class of its own that this package loads by its name
(`pipeline/plan/option_loader.py`) and joins to `WorkloadConfig`. Hooks are optional methods of such a class. To
refuse a value, they raise `ValueError` with a message that names the configuration keys.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

from omegaconf import MISSING
from omegaconf.errors import OmegaConfBaseException

from pipeline.base.domain import service_figures, work_units
from pipeline.base.domain.records import Device, Window
from pipeline.base.domain.workload import Objective, RateSource
from pipeline.base.system import user_command
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.paths import expand_path, is_file
from pipeline.plan import option_values, service_windows, source_digest

# Variables that only the orchestrator sets. One that hides a job from MPS may be given: its group fails and says so.
_OURS = frozenset({"CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"})
_OUR_PREFIX = "COLLOCATION_"


@dataclass(frozen=True)
class JobDevice:
    """The device that options are checked for (`workloads.options.Device`)."""

    name: str
    is_gpu: bool
    is_simulated: bool
    was_chosen: bool
    compute_capability: tuple[int, ...] | None


def explain(help: str, default: Any = dataclasses.MISSING) -> Any:
    """Return a field of a schema with its meaning, as Markdown."""
    if isinstance(default, dict | list):
        return field(default_factory=lambda: type(default)(default), metadata={"help": help})
    return field(default=default, metadata={"help": help})


@dataclass
class WorkloadConfig:
    """A program. An option class adds keys, which become command-line flags (`batch_size` -> `--batch-size`).

    A program that can be stopped also gets `--seed`, `--device` and `--epochs` (0: until told to stop).

    Attributes:
        NODE: name of the schema that YAML files list under `defaults`.
        may_lack_packages: a group whose environment lacks a package is skipped, and does not stop the study.
    """

    NODE: ClassVar[str] = "workload"
    may_lack_packages: ClassVar[bool] = False

    name: str = explain("name in tables and MLflow; that of its file for `script`", MISSING)
    options: str | None = explain("option class; set by `workload=`", None)
    script: str = explain(
        "script, relative to the working directory or the project; for `script` also a program of the environment or "
        "on PATH",
        MISSING,
    )
    args: Any = explain(
        "further arguments: a list, or a text in shell syntax; [`{output_dir}`, `{job}` and `{degree}`]"
        "(workloads.md#a-folder-for-each-job) are filled in",
        [],
    )
    flags: dict[str, Any] = explain(
        "further flags: `workload.flags.NAME=VALUE` becomes `--NAME VALUE`; true: the flag alone; false or null: "
        "nothing; a list: several values",
        {},
    )
    runner: str | None = explain(
        "script that starts the program and uses the job protocol for it; `null` if the program uses it", None
    )
    ends_by_itself: bool = explain("the program cannot be stopped, so its group uses the `work` window", False)
    environ: dict[str, str] = explain(
        "further environment variables: `workload.environ.NAME=VALUE`; [secrets](tracking.md#secrets) are not recorded",
        {},
    )
    work_unit: str = explain(
        "work unit, such as `sequences`; [metrics](method.md#units) are named after it",
        work_units.SAMPLES,
    )
    preload: str | None = explain("module to import for a [warm start](warm_start.md); `null`: no warm start", None)
    env_file: str | None = explain("environment file of these jobs, instead of `env.file`", None)
    env_prefix: str | None = explain("environment of these jobs, instead of `env.prefix`", None)

    def __post_init__(self) -> None:
        self.name = self.name or self.derive_name()
        with self.hook("derive_work_unit"):
            self.work_unit = self.work_unit or self.derive_work_unit()

    # The hooks of an option class.

    def derive_name(self) -> str:
        """Return the name of one that has none."""
        return type(self).__name__.lower()

    def derive_work_unit(self) -> str:
        """Return what the work is counted in, if the options decide it; else nothing."""
        return ""

    def derive_values(self) -> Mapping[str, object]:
        """Return values computed from other options; they replace defaults only."""
        return {}

    def check(self, device: Any) -> None:
        """Refuse with `ValueError` what cannot run on the device, and options that exclude each other."""

    def check_data(self) -> None:
        """Refuse with `ValueError` data that the program will read and that is not there."""

    def packages(self) -> tuple[str, ...]:
        """Return distributions that the options need; `A|B` is one of them."""
        return ()

    def describe_lack(self, package: str, python: str) -> str:
        """Say that the environment of an interpreter lacks a package, and what to do about it."""
        return f"{package} is not installed in the environment of {python}; install it, or choose another option"

    def can_be_held(self) -> bool:
        """Return whether a job can be held between two steps, without a queue of data that fills meanwhile."""
        return False

    def input_files(self) -> Mapping[str, str]:
        """Return files whose content belongs to the program, each with the key that names it."""
        return {}

    def small(self) -> Any:
        """Return what a rehearsal runs instead."""
        return self

    # What a plan asks.

    def rate_source(self) -> RateSource:
        """Return the source of its rate, if it does not report its steps."""
        return RateSource()

    def is_in_own_folder(self) -> bool:
        """Tell whether each job starts in its output folder, and not where the user called from."""
        return False

    def option_fields(self) -> list[dataclasses.Field[Any]]:
        """Return the fields that its option class adds."""
        common = {option.name for option in fields(WorkloadConfig)}
        return [option for option in fields(self) if option.name not in common]

    def program_options(self) -> dict[str, Any]:
        """Return the options that the program gets, with absolute paths, as a job has another working directory."""
        options = [option for option in self.option_fields() if option.metadata.get("is_flag", True)]
        return {option.name: self._value_for_job(option) for option in options}

    def complete(self) -> WorkloadConfig:
        """Return the workload with the options that follow from others, where these have their defaults.

        Raises:
            ConfigError: it has a value that cannot be used, or `derive_values` returns one.
        """
        self.refuse_values()
        with self.hook("derive_values"):
            derived: dict[str, Any] = dict(self.derive_values())
        options = {option.name: option for option in self.option_fields() if option.metadata.get("is_flag", True)}
        for key in derived:
            if key not in options:
                raise self._refused(f"derive_values returns {key}, which is not an option; add the field")
            try:
                derived[key] = option_values.convert(type(self), key, derived[key])
            except OmegaConfBaseException as error:
                raise self._refused(f"derive_values: {key}={derived[key]}: {str(error).splitlines()[0]}") from error
        set_by_user = [key for key in derived if getattr(self, key) != option_values.read_default(options[key])]
        planned = dataclasses.replace(self, **{key: value for key, value in derived.items() if key not in set_by_user})
        planned.refuse_values("derive_values: ")
        return planned

    def study_settings(self) -> dict[str, Any]:
        """Return the options that are for the study and not for the program."""
        names = sorted(option.name for option in self.option_fields() if not option.metadata.get("is_flag", True))
        return {work_units.PARAM: self.work_unit, **{key: getattr(self, key) for key in names}}

    def place_options(self) -> set[str]:
        """Return the options that say where things lie on this machine, not what is computed."""
        return {option.name for option in self.option_fields() if option.metadata.get("path") == "place"}

    def _value_for_job(self, option: dataclasses.Field[Any]) -> Any:
        value, braces = getattr(self, option.name), option.metadata.get("braces")
        if option.metadata.get("path") and value:
            return str(expand_path(f"workload.{option.name}", value).resolve())
        return value.replace(braces, f"{{{braces}}}") if braces else value

    def has_given_rate(self) -> bool:
        """Tell whether it is a service that answers as many requests as the user chose to send.

        How many it answers then says nothing of how fast it is, so it is compared by its latency instead.
        """
        return getattr(self, service_figures.RATE, None) is not None

    def latency_objective(self) -> Objective | None:
        """Return its latency objective, if it answers requests."""
        latency_ms = getattr(self, service_figures.OBJECTIVE, None)
        percentile = getattr(self, service_figures.OBJECTIVE_PERCENTILE, None)
        return None if latency_ms is None else Objective(latency_ms=latency_ms, percentile=percentile)

    def window_notes(self, window: Window) -> list[str]:
        """Return notes on this window for the user; ConfigError if it cannot hold what is asked."""
        try:
            return [f"{self.name}: {note}" for note in service_windows.list_notes(self, window)]
        except ValueError as error:
            raise self._refused(str(error)) from error

    def source_files(self) -> dict[str, str]:
        """Return files beside the script whose content belongs to the program, each with the key that names it.

        These are the Python files that the command line names, and what its options name.
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
            ConfigError: they cannot be read, or give a flag that is given already.
        """
        words = self.argument_words()
        flags = {word.partition("=")[0] for word in (*arguments, *words) if word.startswith("--")}
        for name, value in self.flag_values().items():
            if f"--{name}" in flags:
                raise self._refused(f"--{name} is given twice; remove flags.{name}={value} or the argument")
            if value is not False and value != []:
                several = value if isinstance(value, list) else [] if value is True else [value]
                words += [f"--{name}", *map(_word, several)]
        return words

    def flag_values(self) -> dict[str, Any]:
        """Return the flags that are not null, by name: of flags within flags, `optimizer.lr`."""
        return dict(self._flattened(self.flags, ""))

    def _flattened(self, flags: Mapping[str, Any], where: str) -> Iterator[tuple[str, Any]]:
        for key, value in flags.items():
            if not key or key.startswith("-"):
                raise self._refused(f"flags.{where}{key} is not the name of a flag; write it without dashes")
            if isinstance(value, Mapping):
                yield from self._flattened(value, f"{where}{key}.")
            elif value is not None:
                yield f"{where}{key}", value

    def argument_words(self) -> list[str]:
        """Return the words of `args`."""
        if isinstance(self.args, list):
            return list(map(str, self.args))
        try:
            return [] if self.args is None else shlex.split(str(self.args))
        except ValueError as error:
            raise self._refused(f"args={self.args} cannot be split into words: {error}") from error

    def refuse_wrong(self, device: Device, *, device_was_chosen: bool) -> None:
        """Refuse with `ConfigError` what cannot run on the device, and settings that exclude each other.

        It looks at values only. `device_was_chosen` is false with gpu.kind=auto, where the device is detected.
        """
        for key in self.environ:
            if key in _OURS or key.startswith(_OUR_PREFIX):
                raise self._refused(f"environ.{key} is reserved for the orchestrator; remove it")
        if not re.fullmatch(work_units.PATTERN, self.work_unit, re.ASCII):
            raise self._refused(
                f"work_unit={self.work_unit} must be a plural of letters, digits and underscores, such as sequences: "
                "it is part of the names of metrics"
            )
        with self.hook("derive_work_unit"):
            unit = self.derive_work_unit()
        if unit and unit != self.work_unit:
            raise self._refused(f"work_unit={self.work_unit}: its work is counted in {unit}")
        capability = dict(device.details).get("compute_capability")
        with self.hook("check"):
            self.check(
                JobDevice(
                    name=device.name,
                    is_gpu=device.is_gpu,
                    is_simulated=device.is_simulated,
                    was_chosen=device_was_chosen,
                    compute_capability=None if capability is None else tuple(map(int, capability.split("."))),
                )
            )

    def refuse_missing_data(self) -> None:
        """Refuse with `ConfigError` if data that the program will read is not there, or nobody said where it is."""
        paths = [option for option in self.option_fields() if option.metadata.get("path")]
        absolute = {option.name: self._value_for_job(option) for option in paths}
        with self.hook("check_data"):
            dataclasses.replace(self, **absolute).check_data()

    def needed_packages(self) -> tuple[str, ...]:
        """Return what `packages` does; ConfigError if it fails."""
        with self.hook("packages"):
            return tuple(self.packages())

    def refuse_values(self, source: str = "") -> None:
        """Refuse with `ConfigError` a value that its option does not take; the message begins with `source`."""
        for option in self.option_fields():
            if (wrong := option_values.explain_wrong(option, getattr(self, option.name))) is not None:
                raise self._refused(f"{source}{wrong}")

    @contextmanager
    def hook(self, name: str) -> Iterator[None]:
        """Turn any exception of a hook into ConfigError; an unexpected one gets its file and line."""
        try:
            yield
        except ValueError as error:
            raise self._refused(str(error)) from error
        except Exception as error:
            if isinstance(error, OSError) and error.filename:
                raise self._refused(f"{error.filename} cannot be read: {error.strerror}") from error
            code = getattr(getattr(self, name), "__code__", None)
            if code is None:
                raise self._refused(f"{name} must be a method") from error
            frames = traceback.extract_tb(error.__traceback__)
            lines = [frame.lineno for frame in frames if frame.filename == code.co_filename]
            where = f"{Path(code.co_filename).name}:{lines[-1] if lines else code.co_firstlineno}"
            raise self._refused(f"{name} failed: {type(error).__name__}: {error} ({where})") from error

    def _refused(self, why: str) -> ConfigError:
        return ConfigError(f"workload {self.name}: {why}")


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
