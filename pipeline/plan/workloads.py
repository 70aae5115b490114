"""The options of each kind of workload, with its own checks: all that the pipeline knows of a kind.

A new kind with options of its own is a subclass of `WorkloadConfig` here; YAMLs of `conf/workload/` extend it by its
`NODE`. Nothing else names a kind: the plan asks the methods. A program that also runs by hand, such as `train_timm.py`,
refuses some combinations itself; the checks here say so before minutes are spent, in the words of the configuration.
"""

from __future__ import annotations

import enum
import math
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

from omegaconf import MISSING

from pipeline.base import metric_unit, units, user_command
from pipeline.base.errors import ConfigError
from pipeline.base.metric_unit import MetricUnit
from pipeline.base.paths import expanded, is_file
from pipeline.base.records import Device, Window
from pipeline.base.workload import Objective, RateSource
from pipeline.plan import source_digest

DataSource = enum.Enum("DataSource", "disk files synthetic_files synthetic_host synthetic_device", start=0)
"""`disk` reads the data set as it is published, `files` a folder of image files as timm does; the synthetic ones are
made-up files of the same kind, and data of the same shape made in the loader or on the device. Of text, `disk` is what
comes with Python, and `files` a folder of text files."""

Dataset = enum.Enum("Dataset", "digits cifar10 imagenet64 imagenet", start=0)
"""The data sets that `train_timm` knows."""

SEE_PLAN = "gpu=simulated_h100_80gb dry_run=true to see its plan"
"""The remedy where a study needs a GPU and there is none."""
StepMode = enum.Enum("StepMode", "eager compile cuda_graph", start=0)
"""How a training step is issued: operator by operator, compiled, or replayed as one CUDA graph."""

Recipe = enum.Enum("Recipe", "plain timm", start=0)
"""Loss, optimiser and learning rate: SGD at one rate, or what timm's `train.py` does by default."""

Precision = enum.Enum("Precision", "default tf32 fp32 bf16 fp16", start=0)
"""Arithmetic of the step: what torch does by itself (TF32 in convolutions, fp32 in products), TF32 in both, fp32 in
both, or autocast to bf16 or fp16."""

DecimalMark = enum.Enum("DecimalMark", {"point": ".", "comma": ","})
"""What separates the decimals of a number in the output of a script; the other one may separate thousands."""

RunIn = enum.Enum("RunIn", "caller job_folder", start=0)
"""Where the jobs of a script start: in the directory that the user called from, or each in its output folder."""

Autotune = enum.Enum("Autotune", "auto in_turn together off", start=0)
"""When cuDNN tries its algorithms: one job after another, all at once, or not at all. `auto` is `in_turn` in strict
fp32, where it brings much, and else `off` (docs/method.md)."""


# Variables that only the orchestrator sets. One that hides a job from MPS may be given: its group fails and says so.
_OURS = frozenset({"CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"})
_OUR_PREFIX = "COLLOCATION_"
# Training on images of this size is hours an epoch on CPUs: nobody means it who did not say so.
GPU_ONLY_PX = 224
# Settings of a script that its digest has only where they are given.
_IF_GIVEN = frozenset({"metric_unit", "decimal_mark"})
# The size that images are stored in, where they are scaled up on the device: `request.py` knows it as `native_px`.
_STORED_PX = {Dataset.cifar10: 32, Dataset.imagenet64: 64}
# Decoded and cut to any size by the loader.
_IMAGE_FILES = (DataSource.files, DataSource.synthetic_files)
# What a published data set's folder is called below `data_root`; the digits come with scikit-learn.
_FOLDERS = {Dataset.cifar10: "cifar-10-batches-py", Dataset.imagenet64: "imagenet64", Dataset.imagenet: "imagenet"}


@dataclass
class WorkloadConfig:
    """A program. Keys that a subclass adds become its command-line flags (`batch_size` -> `--batch-size`).

    A program that can be told to stop also gets `--seed`, `--device` and `--epochs` (0: until told to stop).

    Attributes:
        NODE: what the YAML files extend it by.
        PATHS: the options that are paths: they say where things lie on this machine, not what is computed.
        NOT_FLAGS: the options that are for us and not for the program.
        MAY_LACK: whether a study finds out what its environment has: a group that lacks something is skipped in it.
        script: path of the script, from the working directory or from the project's own folder.
        args: further arguments: a list, or a text that is split as a shell would.
        flags: further flags by name, after the arguments: `--NAME VALUE`; the flag alone for true, none for false.
        runner: script of ours that starts the program and speaks the job protocol for it; `null` if it does itself.
        ends_by_itself: the program cannot be told to stop, so its group takes the `work` window.
        environ: further environment variables.
        unit: what its work is counted in, a plural: `samples`, `sequences`, `requests`; metrics are named after it.
        preload: module that imports what the program imports, for a warm start; `null` starts each job from nothing.
        env_file: the file of this program's environment, instead of `env.file`.
        env_prefix: this program's environment, instead of `env.prefix`.
    """

    NODE: ClassVar[str] = "workload"
    PATHS: ClassVar[frozenset[str]] = frozenset()
    NOT_FLAGS: ClassVar[frozenset[str]] = frozenset()
    MAY_LACK: ClassVar[bool] = False

    name: str = MISSING
    script: str = MISSING
    args: Any = field(default_factory=list)
    flags: dict[str, Any] = field(default_factory=dict)
    runner: str | None = None
    ends_by_itself: bool = False
    environ: dict[str, str] = field(default_factory=dict)
    unit: str = units.SAMPLES
    preload: str | None = None
    env_file: str | None = None
    env_prefix: str | None = None

    def own_options(self) -> dict[str, Any]:
        """The program's options that this kind adds, with whole paths: a job's current folder is another one."""
        common = {each.name for each in fields(WorkloadConfig)} | self.NOT_FLAGS
        options = {key: value for key, value in vars(self).items() if key not in common}
        for key in self.PATHS:
            if options[key] is not None:
                options[key] = str(expanded(f"workload.{key}", options[key]).resolve())
        return options

    def settings(self) -> dict[str, Any]:
        """The options that are for us and not for the program."""
        return {units.PARAM: self.unit, **{key: getattr(self, key) for key in sorted(self.NOT_FLAGS)}}

    def rate(self) -> RateSource:
        """Where its rate comes from, if it does not report its steps."""
        return RateSource()

    def has_given_rate(self) -> bool:
        """Whether it is a service that answers as many requests as the user chose to send.

        How many it answers then says nothing of how fast it is, so it is compared by its latency instead.
        """
        return False

    def objective(self) -> Objective | None:
        """What is asked of its latency, if it answers requests."""
        return None

    def packages(self) -> tuple[str, ...]:
        """Distributions that its options take, beside those that every job of its kind takes; `A|B` is one of them."""
        return ()

    def lacks(self, package: str, python: Path) -> str:
        """That its environment, that of an interpreter, lacks a package, and what to do about it."""
        return (
            f"workload {self.name}: its options take {package}, which the environment of {python} lacks; install it "
            "there, or choose another option"
        )

    def window_notes(self, window: Window) -> list[str]:
        """What a user should know of it in this window; a window that cannot hold what is asked is a `ConfigError`."""
        return []

    def is_in_own_folder(self) -> bool:
        """Whether each job starts in its output folder, and not where the user called from."""
        return False

    def source_files(self) -> dict[str, str]:
        """Return files beside the script whose content belongs to the program, each with the key that names it.

        These are the Python files that the command line names.
        """
        words = self.argument_words()
        named = [file for file in user_command.source_files("", words) if is_file(Path(file))]
        of_modules = (source_digest.files_run_as(each, Path()) for each in user_command.modules(self.script, words))
        return dict.fromkeys([*named, *map(str, chain(*of_modules))], "args")

    def words(self, own: Iterable[str] = ()) -> list[str]:
        """The words that `args` and `flags` add to the command line, which has these of its own.

        Raises:
            ConfigError: they cannot be read, or give a flag that is given already.
        """
        words = self.argument_words()
        given = {word.partition("=")[0] for word in (*own, *words) if word.startswith("--")}
        for name, value in self.flag_values().items():
            if f"--{name}" in given:
                raise self._refused(f"--{name} is given twice: as flags.{name}={value} and among the other arguments")
            if value is not False and value != []:
                several = value if isinstance(value, list) else [] if value is True else [value]
                words += [f"--{name}", *map(_word, several)]
        return words

    def flag_values(self) -> dict[str, Any]:
        """The flags that are not null, by name: of flags within flags, `optimizer.lr`."""
        return dict(self._flattened(self.flags, ""))

    def _flattened(self, flags: Mapping[str, Any], where: str) -> Iterator[tuple[str, Any]]:
        for key, value in flags.items():
            if not key or key.startswith("-"):
                raise self._refused(f"flags.{where}{key}: name a flag without its dashes")
            if isinstance(value, Mapping):
                yield from self._flattened(value, f"{where}{key}.")
            elif value is not None:
                yield f"{where}{key}", value

    def argument_words(self) -> list[str]:
        """The words of `args`."""
        if isinstance(self.args, list):
            return list(map(str, self.args))
        return [] if self.args is None else self._split("args", str(self.args))

    def check(self, device: Device, *, device_was_chosen: bool) -> None:
        """Refuse with `ConfigError` what cannot run on the device, and settings that exclude each other.

        It looks at values only. `device_was_chosen` is false where the user left the choice to what is there.
        """
        for key in self.environ:
            if key in _OURS or key.startswith(_OUR_PREFIX):
                raise self._refused(
                    f"environ.{key} cannot be given: it decides which device a job sees, or to which group it belongs, "
                    "and the scenario sets it"
                )
        if not re.fullmatch(units.PATTERN, self.unit, re.ASCII):
            raise self._refused(
                f"unit={self.unit} must be a plural of letters, digits and underscores, such as sequences: it is part "
                "of the names of metrics"
            )

    def check_data(self) -> None:
        """Refuse with `ConfigError` if data that the program will read is not there, or nobody said where it is."""

    def _refuse_below(self, least: int, *keys: str) -> None:
        for key in keys:
            if (value := getattr(self, key)) is not None and not value >= least:
                raise self._refused(f"{key}={value} must {'be at least 1' if least else 'not be negative'}")

    def _split(self, key: str, command: str) -> list[str]:
        try:
            return shlex.split(command)
        except ValueError as error:
            raise self._refused(f"{key}={command} cannot be split as a shell would: {error}") from error

    def _refused(self, why: str) -> ConfigError:
        return ConfigError(f"workload {self.name}: {why}")

    def _refuse_graphs_without_gpu(self, device: Device) -> None:
        """Raise ConfigError where CUDA graphs cannot be captured."""
        if device.is_simulated:
            raise self._refused(
                f"step_mode=cuda_graph needs a GPU, and this study runs on a simulated {device.name}; "
                "use dry_run=true to see its plan, or +rehearse=tiny to rehearse an experiment"
            )
        if not device.is_gpu:
            raise self._refused(
                f"step_mode=cuda_graph needs a GPU, and this study runs on {device.name}; use {SEE_PLAN}, "
                "or +rehearse=tiny to rehearse an experiment"
            )


@dataclass
class TrainingConfig(WorkloadConfig):
    """What all training programs of `workloads/` take (`workloads/program.py`).

    Attributes:
        data_root: folder that holds the data sets; needed for what does not come with a package.
        cache_root: where what is made of data sets goes.
        learning_rate: of the first epoch; the recipe's own if not given.
        loader_workers: data loader processes of each job.
        threads: CPU threads of each job's framework; the framework's own choice if not given.
        canary: check before the run that what the job computes comes out right (docs/method.md).
        validate: measure the accuracy (after each epoch in a `work` window, once at the end of a `steady` one).
    """

    NODE: ClassVar[str] = "training"
    PATHS: ClassVar[frozenset[str]] = frozenset({"data_root", "cache_root"})

    source: DataSource = DataSource.disk
    data_root: str | None = None
    cache_root: str | None = None
    samples: int | None = None
    batch_size: int = MISSING
    learning_rate: float | None = None
    step_mode: StepMode = StepMode.eager
    precision: Precision = Precision.default
    loader_workers: int = 2
    threads: int | None = None
    warmup_steps: int = 10
    canary: bool = True
    validate: bool = False

    def check(self, device: Device, *, device_was_chosen: bool) -> None:
        super().check(device, device_was_chosen=device_was_chosen)
        self._refuse_below(1, "batch_size", "samples", "threads")
        self._refuse_below(0, "loader_workers", "warmup_steps")
        if self.samples is not None and self.samples < self.batch_size:
            raise self._refused(f"samples={self.samples} are less than one batch of batch_size={self.batch_size}")
        if self.learning_rate is not None and not 0 < self.learning_rate < math.inf:
            raise self._refused(f"learning_rate={self.learning_rate:g} must be above 0, and finite")
        if self.step_mode is StepMode.cuda_graph:
            self._check_cuda_graph(device)

    def _folder_of(self, name: str, folder: str, instead: str) -> Path:
        """The folder of a data set below `data_root`; refused, with what to do `instead`, if it is not there."""
        if self.data_root is None:
            raise ConfigError(
                f"workload {self.name} reads {name} from disk, but no folder is given; "
                f"set data.root=FOLDER, or {instead}"
            )
        path = expanded("data.root", self.data_root) / folder
        if not path.is_dir():
            raise ConfigError(
                f"workload {self.name} reads {name} from {path}, which does not exist; "
                f"data.root (or workload.data_root) must be the folder that holds `{folder}`"
            )
        return path

    def _check_cuda_graph(self, device: Device) -> None:
        self._refuse_graphs_without_gpu(device)
        if self.precision is Precision.fp16:
            raise self._refused(
                "step_mode=cuda_graph cannot be combined with precision=fp16, whose loss "
                "scaling reads the device in every step; use bf16"
            )


@dataclass
class TrainTimmConfig(TrainingConfig):
    """Image classification with a model of timm (`workloads/train_timm.py`).

    Attributes:
        cache_root: where converted data sets go (the data set's own folder if not given) and made-up files (a folder
            in the user's cache if not given).
        samples: training samples an epoch for synthetic data; the real data set's number if not given.
        recipe: loss, optimiser, learning rate, and whether the host reads each loss (docs/workloads.md).
        autotune: when cuDNN tries its algorithms. Under MPS, timings taken while others compute mislead it
            (docs/method.md). The job gets, and its run records, what `auto` stands for.
    """

    NODE: ClassVar[str] = "train_timm"

    script: str = "workloads/train_timm.py"
    preload: str | None = "workloads.timm_imports"
    model: str = MISSING
    model_args: dict[str, Any] = field(default_factory=dict)
    dataset: Dataset = MISSING
    image_px: int = MISSING
    num_classes: int = MISSING
    recipe: Recipe = Recipe.plain
    channels_last: bool = True
    autotune: Autotune = Autotune.auto

    def own_options(self) -> dict[str, Any]:
        options = super().own_options()
        if self.autotune is Autotune.auto:
            options["autotune"] = Autotune.in_turn if self.precision is Precision.fp32 else Autotune.off
        return options

    def check(self, device: Device, *, device_was_chosen: bool) -> None:
        super().check(device, device_was_chosen=device_was_chosen)
        self._refuse_below(1, "image_px", "num_classes")
        if self.dataset is Dataset.digits and self.source in _IMAGE_FILES:
            raise self._refused(
                f"source={self.source.name} is for data sets of image files, and the digits come with scikit-learn; "
                "use source=disk"
            )
        if self.source not in _IMAGE_FILES and _STORED_PX.get(self.dataset, self.image_px) > self.image_px:
            raise self._refused(
                f"the images of {self.dataset.name} have {_STORED_PX[self.dataset]} pixels and are scaled up only, "
                f"not to image_px={self.image_px}"
            )
        if self.samples is not None and self.source in (DataSource.disk, DataSource.files):
            raise self._refused("samples is for synthetic data; a data set on disk is used whole")
        if self.image_px >= GPU_ONLY_PX and not device.is_gpu and not device_was_chosen:
            raise ConfigError(
                f"workload {self.name} trains on {self.image_px}-pixel images and no GPU was found; "
                f"use gpu=cpu to train on the CPUs anyway, or {SEE_PLAN}"
            )

    def check_data(self) -> None:
        name = self.dataset.name
        made_up = DataSource.synthetic_files if self.source is DataSource.files else DataSource.synthetic_device
        instead = f"data.source={made_up.name} to train on made-up data of the same shape"
        if self.source is DataSource.files:
            self._folder_of(name, name, instead)
        elif self.source is DataSource.disk and self.dataset in _FOLDERS:
            self._folder_of(name, _FOLDERS[self.dataset], instead)


@dataclass
class ScriptConfig(WorkloadConfig):
    """Any program, unchanged. `script` is the user's; it is measured from its start to its exit.

    Attributes:
        name: that of its file if not given.
        script: a Python file, which the interpreter of the environment runs; another file that can be executed; or the
            name of a program of the environment, such as `torchrun`.
        run_in: where each job starts: the caller's directory, or a folder of its own.
        samples: what a whole run of it works off, in its `unit`.
        metric: the metric by which it logs its rate, in its `unit` per second, through MLflow or in TensorBoard files.
        metric_pattern: a regular expression for the lines of its output that say its rate, which is its group.
        metric_unit: what the number is in, as `s_per_step` or `k`, where the line or the name of the metric does not
            say. With a time its `unit` is what that is the time of, if not given.
        decimal_mark: of the numbers in its output, where they may be read in two ways.
    """

    NODE: ClassVar[str] = "script"
    NOT_FLAGS: ClassVar[frozenset[str]] = frozenset(
        {"run_in", "samples", "metric", "metric_pattern", "metric_unit", "decimal_mark"}
    )

    name: str = ""
    runner: str | None = "workloads/script.py"
    ends_by_itself: bool = True
    run_in: RunIn = RunIn.caller
    samples: int | None = None
    metric: str | None = None
    metric_pattern: str | None = None
    metric_unit: str | None = None
    decimal_mark: DecimalMark | None = None

    def __post_init__(self) -> None:
        if not self.name:
            self.name = user_command.name_of(self.script, self.argument_words())
        if (given := self._metric_unit()) is not None and self.unit == units.SAMPLES:
            self.unit = given.work or self.unit

    def settings(self) -> dict[str, Any]:
        return {key: value for key, value in super().settings().items() if key not in _IF_GIVEN or value is not None}

    def rate(self) -> RateSource:
        return RateSource(
            samples=self.samples,
            metric=self.metric,
            pattern=self.metric_pattern,
            metric_unit=self._metric_unit(),
            decimal_mark=self.decimal_mark.value if self.decimal_mark is not None else None,
        )

    def _metric_unit(self) -> MetricUnit | None:
        """Return what the number is in; `None` if it is not given, or names no unit, which `check` refuses."""
        try:
            return None if self.metric_unit is None else metric_unit.parse(self.metric_unit)
        except ValueError:
            return None

    def is_in_own_folder(self) -> bool:
        return self.run_in is RunIn.job_folder

    def window_notes(self, window: Window) -> list[str]:
        """Note arguments that were likely meant for the study, and stand behind the two dashes."""
        meant = [word for word in self.argument_words() if user_command.sets(word, user_command.OF_THE_STUDY)]
        return [
            f"{word} goes to {self.name}, as it stands after --; the study takes what stands before" for word in meant
        ]

    def check(self, device: Device, *, device_was_chosen: bool) -> None:
        super().check(device, device_was_chosen=device_was_chosen)
        given = [key for key in ("samples", "metric", "metric_pattern") if getattr(self, key) is not None]
        if len(given) > 1:
            raise self._refused(
                f"{' and '.join(given)} each say where its {units.per_second(self.unit)} come from; give one of them"
            )
        if self.samples is not None and self.samples < 1:
            work = units.in_words(self.unit)
            raise self._refused(f"samples={self.samples} must be at least 1: the {work} of a whole run")
        self._check_metric_unit()
        if self.metric is not None and not self.metric.strip():
            raise self._refused("metric is empty; give the name of a metric that the script logs")
        if self.metric_pattern is not None:
            try:
                num_groups = re.compile(self.metric_pattern).groups
            except re.error as error:
                raise self._refused(
                    f"metric_pattern={self.metric_pattern} is no regular expression: {error}"
                ) from error
            if num_groups != 1:
                raise self._refused(
                    f"metric_pattern={self.metric_pattern} has {num_groups} groups; put one pair of parentheses around "
                    f"the number, as in '([0-9.]+) {units.per_second(self.unit)}', and write (?:...) for others"
                )

    def _check_metric_unit(self) -> None:
        for key in ("metric_unit", "decimal_mark"):
            of = ("metric", "metric_pattern") if key == "metric_unit" else ("metric_pattern",)
            if getattr(self, key) is not None and all(getattr(self, each) is None for each in of):
                raise self._refused(f"{key} says how {' or '.join(of)} is read; give {' or '.join(of)} as well")
        if self.metric_unit is None:
            return
        given = self._metric_unit()
        if given is None:
            raise self._refused(f"metric_unit={self.metric_unit} is no unit; {metric_unit.FORMS}")
        if not given.counts(self.unit):
            raise self._refused(
                f"metric_unit={self.metric_unit} is the time of {units.in_words(given.work)}, not of "
                f"{units.in_words(self.unit)}; leave out unit={self.unit}"
            )


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
