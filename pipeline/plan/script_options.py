"""Options of `workload=script`, which runs any program unchanged, and their checks."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import Any, ClassVar

from pipeline.base.domain import rate_units, work_units
from pipeline.base.domain.rate_units import MetricUnit
from pipeline.base.domain.window import Window
from pipeline.base.domain.workload import RateSource
from pipeline.base.system import user_command
from pipeline.plan.command_obstacles import find_obstacle
from pipeline.plan.workload_config import WorkloadConfig, explain

DecimalMark = enum.Enum("DecimalMark", {"point": ".", "comma": ","})
"""Decimal separator in the output of a script; the other character may separate thousands."""

RunIn = enum.Enum("RunIn", "caller job_folder", start=0)

# Settings of a script that enter its digest only if they are set.
_IF_GIVEN = frozenset({"metric_unit", "decimal_mark", work_units.PARAM})


@dataclass
class ScriptConfig(WorkloadConfig):
    """Any program, unchanged, named by `script`; it is measured from its start to its exit."""

    NODE: ClassVar[str] = "script"
    WORK_UNIT: ClassVar[str] = rf"(?:{WorkloadConfig.WORK_UNIT})?"

    name: str = ""
    runner: str | None = "workloads/script.py"
    ends_by_itself: bool = True
    work_unit: str = explain(
        "work unit, such as `steps`; empty: the unit next to the number ([units](workloads.md#samples-per-second))", ""
    )
    run_in: RunIn = explain("working directory of each job: the caller's, or the job's output folder", RunIn.caller)
    metric: str | None = explain("name of the metric in MLflow or TensorBoard files that holds the rate", None)
    metric_pattern: str | None = explain(
        "regular expression for output lines that report a rate; its only group matches the number", None
    )
    metric_unit: str | None = explain(
        "unit of the logged number (`k`, `per_day`, `s_per_step`, ...), if metric name or output line has no unit "
        "([units](workloads.md#samples-per-second))",
        None,
    )
    decimal_mark: DecimalMark | None = explain("decimal separator of numbers in the output; `null`: detect it", None)
    samples: int | None = explain("samples (or work in `work_unit`) that one complete run processes", None)

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
        meant = [word for word in self.argument_words() if user_command.sets(word, user_command.OF_THE_STUDY)]
        return [f"{word} is passed to {self.name}; put settings of the study before --" for word in meant]

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
