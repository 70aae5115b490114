"""Options of `workload=script`, which runs any program unchanged, and their checks."""

from __future__ import annotations

import enum
import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pipeline.base.domain import rate_units, work_units
from pipeline.base.domain.rate_units import MetricUnit
from pipeline.base.domain.window import Window
from pipeline.base.domain.workload import RateSource
from pipeline.base.system import user_command
from pipeline.base.system.option_fields import option
from pipeline.plan.workload_config import WorkloadConfig

DecimalMark = enum.Enum("DecimalMark", {"point": ".", "comma": ","})
"""Decimal separator in the output of a script; the other character may separate thousands."""

RunIn = enum.Enum("RunIn", "caller job_folder", start=0)

# Settings of a script that enter its digest only if they are set.
_IF_GIVEN = frozenset({"metric_unit", "decimal_mark", work_units.PARAM})
_MOST_BYTES = 1 << 16
_START = r"(?:^|[\s;&|/(])"
_DOCKER = rf"{_START}(?:docker|podman|nerdctl)\s[^\n;&|]*(?<=\s)(?:run|exec)\s"
_APPTAINER = rf"{_START}(?:apptainer|singularity)\s[^\n;&|]*(?<=\s)(?:exec|run|shell)\s"
_REMEDY = "or use env=apptainer env.image=FILE.sif and the command in the image (docs/your_own_script.md)"
_ON_GPU = {
    rf"\A(?!.*CUDA_VISIBLE_DEVICES).*{_DOCKER}": "the container gets neither the job's device nor its MPS server; use "
    "a shell script with --gpus device=$CUDA_VISIBLE_DEVICES --ipc=host --user $(id -u) -e CUDA_MPS_PIPE_DIRECTORY "
    f"-v $CUDA_MPS_PIPE_DIRECTORY:$CUDA_MPS_PIPE_DIRECTORY, {_REMEDY}",
    rf"\A(?!.*--nv).*{_APPTAINER}": f"the container does not get the job's device; add --nv, {_REMEDY}",
    rf"{_APPTAINER}(?:[^\n]*--(?:cleanenv|containall)|(?:-\S+\s+)*-c?[eC]\s)": "--cleanenv (-e) and --containall (-C) "
    "clear the variables with the job's device and MPS server; remove the option",
    rf"{_START}srun\s": "srun starts a step of Slurm, outside of the job and on a GPU that Slurm chooses; leave srun "
    "out, or start the study by hydra/launcher=slurm",
}
_IN_OUTPUT = {
    rf"\A(?!.*(?:--no-capture-output|--live-stream)).*{_START}(?:conda|mamba)\s+run\s": "conda run prints the output "
    "at its end, so its rates have no times; add --no-capture-output, or use env=existing env.prefix=PREFIX",
}


@dataclass
class ScriptConfig(WorkloadConfig):
    """Any program, unchanged, named by `script`; it is measured from its start to its exit."""

    NODE: ClassVar[str] = "script"
    WORK_UNIT: ClassVar[str] = rf"(?:{WorkloadConfig.WORK_UNIT})?"

    name: str = ""
    runner: str | None = "workloads/script.py"
    ends_by_itself: bool = True
    work_unit: str = option(
        "work unit, such as `steps`; empty: the unit next to the number ([units](workloads.md#samples-per-second))", ""
    )
    run_in: RunIn = option("working directory of each job: the caller's, or the job's output folder", RunIn.caller)
    metric: str | None = option("name of the metric in MLflow or TensorBoard files that holds the rate", None)
    metric_pattern: str | None = option(
        "regular expression for output lines that report a rate; its only group matches the number. A group named "
        "`count` matches a counter, such as the number of a step; the rate is its rise per second",
        None,
    )
    metric_unit: str | None = option(
        "unit of the logged number (`k`, `per_day`, `s_per_step`, ...), if metric name or output line has no unit "
        "([units](workloads.md#samples-per-second))",
        None,
    )
    decimal_mark: DecimalMark | None = option("decimal separator of numbers in the output; `null`: detect it", None)
    samples: int | None = option("samples (or work in `work_unit`) that one complete run processes", None)

    def __post_init__(self) -> None:
        if not self.name:
            self.name = user_command.name_program(self.script, self.argument_words())
        unit = MetricUnit(work=work_units.SAMPLES) if self.samples is not None else self._metric_unit()
        self.work_unit = self.work_unit or (unit.work if unit is not None else "")

    def program_options(self) -> dict[str, Any]:
        return {}  # `args` and `flags` hold its arguments

    def study_settings(self) -> dict[str, Any]:
        settings = super().study_settings() | {
            option.name: getattr(self, option.name) for option in self.option_fields()
        }
        return {key: value for key, value in settings.items() if key not in _IF_GIVEN or value not in (None, "")}

    def rate_source(self) -> RateSource:
        return RateSource(
            samples=self.samples,
            metric=self.metric,
            pattern=self.metric_pattern,
            metric_unit=self._metric_unit(),
            decimal_mark=self.decimal_mark.value if self.decimal_mark is not None else None,
        )

    def _metric_unit(self) -> MetricUnit | None:
        try:
            return None if self.metric_unit is None else rate_units.parse_unit(self.metric_unit)
        except ValueError:
            return None

    def is_in_own_folder(self) -> bool:
        return self.run_in is RunIn.job_folder

    def window_notes(self, window: Window) -> list[str]:
        """Note arguments after the two dashes that were probably meant for the study."""
        words = self.argument_words()
        study_words = [word for word in words if user_command.sets(word, user_command.OF_THE_STUDY)]
        notes = [f"{word} is passed to {self.name}; put settings of the study before --" for word in study_words]
        scripts = [after for before, after in itertools.pairwise(words) if before == "--" and after.endswith(".py")]
        notes += [f"-- {script} is passed to {self.name}; use mix=[...] for two scripts" for script in scripts]
        return notes

    def check(self, device: Any) -> None:
        sources = [key for key in ("samples", "metric", "metric_pattern") if getattr(self, key) is not None]
        if len(sources) > 1:
            raise ValueError(f"{' and '.join(sources)} both set the source of the rate; remove one")
        if self.samples is not None and self.samples < 1:
            raise ValueError(f"samples={self.samples} must be at least 1")
        self._check_metric_unit()
        reads_output = self.metric_pattern is not None
        words = self.argument_words()
        if obstacle := find_obstacle(self.script, words, is_on_gpu=device.is_gpu, reads_output=reads_output):
            raise ValueError(obstacle)
        if self.metric is not None and not self.metric.strip():
            raise ValueError("metric is empty; set metric to the name of a metric that the script logs")
        if self.metric is not None:
            try:
                rate_units.read_metric_name(self.metric, self._metric_unit(), self.work_unit)
            except rate_units.UnreadableError as error:
                raise ValueError(f"metric={self.metric}: {error}") from error
        if self.metric_pattern is not None:
            try:
                num_groups = re.compile(self.metric_pattern).groups
            except re.error as error:
                raise ValueError(
                    f"metric_pattern={self.metric_pattern} is not a regular expression: {error}; correct the expression"
                ) from error
            if num_groups != 1:
                example = f"'([0-9.]+) {work_units.per_second(self.work_unit or 'steps')}'"
                raise ValueError(
                    f"metric_pattern={self.metric_pattern} has {num_groups} groups; put one pair of parentheses around "
                    f"the number, as in {example}, and use (?:...) for other groups"
                )

    def _check_metric_unit(self) -> None:
        for key in ("metric_unit", "decimal_mark"):
            names = ("metric", "metric_pattern") if key == "metric_unit" else ("metric_pattern",)
            if getattr(self, key) is not None and all(getattr(self, name) is None for name in names):
                raise ValueError(f"{key} has no effect without {' or '.join(names)}; add {' or '.join(names)}")
        if self.metric_unit is None:
            return
        unit = self._metric_unit()
        if unit is None:
            raise ValueError(f"metric_unit={self.metric_unit} is not a unit; {rate_units.FORMS}")
        if self.work_unit and not unit.counts(self.work_unit):
            raise ValueError(
                f"metric_unit={self.metric_unit} counts {work_units.format_unit(unit.work)}, not "
                f"{work_units.format_unit(self.work_unit)}; remove work_unit={self.work_unit}"
            )


def find_obstacle(script: str, args: Iterable[str], *, is_on_gpu: bool, reads_output: bool) -> str | None:
    """Explain the first obstacle in a command line or in the shell scripts that it names; `None` without one."""
    words = [script, *args]
    # A word with spaces is a text, such as a note, unless a shell runs it.
    pairs = itertools.pairwise(["-c", *words])
    command = " ".join(word for option, word in pairs if " " not in word or re.fullmatch(r"-\w*c", option))
    text = "\n".join([command, *map(_read_shell_script, words), ""])
    obstacles = (_ON_GPU if is_on_gpu else {}) | (_IN_OUTPUT if reads_output else {})
    return next((reason for pattern, reason in obstacles.items() if re.search(pattern, text, re.DOTALL)), None)


def _read_shell_script(word: str) -> str:
    """Read a shell script without comments and line breaks within commands; empty for any other word."""
    try:
        if not Path(word).is_file():  # reading a pipe would wait for a writer
            return ""
        with Path(word).open(encoding="utf-8") as file:
            text = file.read(_MOST_BYTES)
    except (OSError, ValueError):
        return ""
    is_shell = word.endswith(".sh") or re.match(r"#!.*sh\b", text)
    return re.sub(r"(?m)(?:^|\s)#.*|\\\n", " ", text) if is_shell else ""
