"""Published findings with which a study is compared: one file in `publications/` for each publication."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from pipeline.base.domain.sharing_modes import mode_of
from pipeline.report.read import labels

FOLDER = Path(__file__).parent / "publications"
WHOLE_GPU = "full"
"""Name of the whole GPU in findings, next to names of MIG profiles."""

_NEAR_ITS_ROWS = 1.03
"""The factor by which a measurement may lie outside the rows of a published table and still agree with them."""

Settings = Mapping[str, tuple[str, ...]]
"""The values that each param of a job's run may have."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Finding:
    """One published statement, as a range of a figure.

    Attributes:
        text: the statement; if it has words instead of numbers, also the range that they are read as.
        where: place in the publication: `figure 3`.
        kind: the figure. `quantity`: a quantity of a cell. `against`: speed, or a quantity, relative to another mode.
            `along`: a quantity at the highest value of a swept parameter, divided by the quantity at the lowest value.
            `profiles`: the larger of two profiles over the smaller. `memory_growth`: memory, divided by the memory of
            the same number of jobs alone. `out_of_memory`: no figure. `slowdown`: the slowdown of one workload in
            a mix. `fastest`: the fastest mode.
        modes: names of sharing modes in the configuration.
        workloads: names of workloads; empty for all workloads of the publication.
        mixes: labels of mixes (`M+2S`), instead of workloads.
        quantity: name in `pipeline.report.evaluate.metrics`, or `throughput` in the unit of the workload.
        against: the other mode, for `against`.
        along: a param of the workload, or `mig_profile`, for `along`.
        larger, smaller: slices of the `profiles`, or `full` for the whole GPU.
        rows: published rows, for `profiles`: name, figure of the larger, figure of the smaller.
        is_time: whether the rows are times instead of rates.
        slips: errors in the publication's table.
        left_out: names of rows that are unusable because of such an error.
        of: the workload, for `slowdown`.
        among: all modes that are compared, for `fastest`.
        degree: number of jobs; `None` for any number above 1.
        profile: slices of the MIG instances; `None` for any.
        low, high: ends of the range; `None` for no limit. The range of `profiles` is computed from the rows.
        gpu, settings: GPU and settings, if different from those of the publication and the workload.
    """

    text: str
    where: str = ""
    kind: str
    modes: tuple[str, ...]
    workloads: tuple[str, ...] = ()
    mixes: tuple[str, ...] = ()
    quantity: str = ""
    against: str = ""
    along: str = ""
    larger: str = ""
    smaller: str = ""
    rows: tuple[tuple[str, float, float], ...] = ()
    is_time: bool = False
    slips: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    of: str = ""
    among: tuple[str, ...] = ()
    degree: int | None = None
    profile: str | None = None
    low: float | None = None
    high: float | None = None
    gpu: str = ""
    settings: Settings = field(default_factory=dict)

    @property
    def ratios(self) -> tuple[float, ...]:
        """The speed of the larger profile over that of the smaller, for each usable row (kind `profiles`)."""
        used = [row for row in self.rows if row[0] not in self.left_out]
        return tuple(smaller / larger if self.is_time else larger / smaller for _, larger, smaller in used)

    @property
    def mode_labels(self) -> tuple[str, ...]:
        return tuple(mode_of(name).label for name in self.modes)

    @property
    def among_labels(self) -> tuple[str, ...]:
        return tuple(mode_of(name).label for name in self.among)

    @property
    def range_text(self) -> str:
        """The range as text: `1.05 to 1.12`, `up to 1.8`, `out of memory`."""
        if self.kind == "fastest":
            return "fastest: " + " or ".join(self.mode_labels)
        if self.kind == "out_of_memory":
            return "out of memory"
        if self.low is None:
            return f"up to {self.high:g}"
        return f"at least {self.low:g}" if self.high is None else f"{self.low:g} to {self.high:g}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Program:
    """A workload of a publication.

    Attributes:
        name: name of the equivalent workload in this project.
        nearest: name of a similar workload, whose cells count as measured at other settings.
        size: letter in the labels of mixes.
        in_mixes: additional settings in mixes.
    """

    name: str
    nearest: str = ""
    size: str | None = None
    settings: Settings = field(default_factory=dict)
    in_mixes: Settings = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Publication:
    """A publication, with its findings and the settings of its measurements.

    Attributes:
        table, title, about: name, title and introduction of the publication's table in the report.
        gpu: part of the name of the GPU.
        epochs: number of epochs of each job; 0 if the length of the work does not matter.
        profiles: slices of a MIG instance, by number of copies (`"7"`) or size in a mix (`S`).
    """

    table: str
    title: str
    about: str
    gpu: str
    epochs: int = 0
    settings: Settings = field(default_factory=dict)
    workloads: tuple[Program, ...]
    profiles: Settings = field(default_factory=dict)
    findings: tuple[Finding, ...]

    def program(self, params: Mapping[str, str]) -> Program | None:
        """Return the same or nearest workload of this publication for a job with these params."""
        name = params.get("workload")
        return next((program for program in self.workloads if name and name in (program.name, program.nearest)), None)

    def name_jobs(self, params: Sequence[Mapping[str, str]]) -> str:
        """Return the workload of copies, or the label of a mix; empty unless all jobs are of this publication."""
        programs = [program for job in params if (program := self.program(job)) is not None]
        if len(programs) < len(params):
            return ""
        mix = labels.label_mix([labels.JobLabel(program.name, program.size) for program in programs])
        return programs[0].name if len(programs) == 1 else mix or ""

    def differences(self, finding: Finding, params: Mapping[str, str], *, is_mix: bool) -> list[str]:
        """Describe how the settings of a job differ from those of a finding: `batch 128 instead of 32`."""
        program = self.program(params)
        if program is None:
            return [f"workload {params.get('workload')}, which is not in the publication"]
        settings = {"workload": (program.name,), **self.settings, **program.settings}
        settings |= {**(program.in_mixes if is_mix else {}), **finding.settings}
        return [
            f"{_describe_setting(key, params.get(key))} instead of {' or '.join(values)}"
            for key, values in settings.items()
            if params.get(key) not in values
        ]

    def profile_differences(
        self, finding: Finding, params: Sequence[Mapping[str, str]], profiles: Sequence[str], degree: int
    ) -> list[str]:
        """Describe how the MIG instances of jobs, the largest first, differ from those of a finding.

        For copies, `params` has one element.
        """
        if finding.profile is not None or finding.kind in ("profiles", "along"):
            return []
        sizes = [program.size or "" for job in params if (program := self.program(job)) is not None]
        keys = [str(degree)] * degree if len(sizes) == 1 else sorted(sizes, key=self._slices, reverse=True)
        return [
            f"a MIG instance of {slices} instead of {' or '.join(self.profiles[key])}"
            for key, slices in dict.fromkeys(
                zip(keys, (profile.partition(".")[0] for profile in profiles), strict=False)
            )
            if key in self.profiles and slices not in self.profiles[key]
        ]

    def _slices(self, size: str) -> str:
        return max(self.profiles.get(size, ("",)))


_SETTINGS_IN_WORDS = {"workload": "{}", "batch_size": "batch {}", "image_px": "image size {}"}


def _describe_setting(key: str, value: str | None) -> str:
    if key == "source" and value is not None:
        return labels.format_param_value(key, value) or f"source {value}"
    form = _SETTINGS_IN_WORDS.get(key, key.replace("_", " ") + " {}")
    return form.format(value or "not recorded")


@lru_cache(maxsize=1)
def publications() -> tuple[Publication, ...]:
    """Return all publications, ordered by file name."""
    import yaml

    paths = sorted(FOLDER.glob("*.yaml"))
    return tuple(_publication(yaml.safe_load(path.read_text(encoding="utf-8"))) for path in paths)


def _publication(says: Mapping[str, Any]) -> Publication:
    programs = tuple(Program(**_freeze(raw)) for raw in says["workloads"])
    findings = tuple(_add_range(Finding(**_freeze(raw))) for raw in says["findings"])
    return Publication(**_freeze(says) | {"workloads": programs, "findings": findings})


def _add_range(finding: Finding) -> Finding:
    if not finding.rows:
        return finding
    low, high = min(finding.ratios) / _NEAR_ITS_ROWS, max(finding.ratios) * _NEAR_ITS_ROWS
    return dataclasses.replace(finding, low=round(low, 3), high=round(high, 3))


def _freeze(says: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _settings(value) if isinstance(value, dict) else tuple(value) if isinstance(value, list) else value
        for key, value in says.items()
    }


def _settings(says: Mapping[str, Any]) -> Settings:
    several = {key: value if isinstance(value, list) else [value] for key, value in says.items()}
    return {key: tuple(map(labels.describe_value, values)) for key, values in several.items()}
