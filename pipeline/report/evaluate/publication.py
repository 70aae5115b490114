"""Published findings that a study is compared with: one file in `publications/` for each publication."""

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
"""A GPU that is not divided, beside the profiles of one that is."""

_NEAR_ITS_ROWS = 1.03
"""The factor by which another measurement may differ from the rows of a table and still agree with them."""

Settings = Mapping[str, tuple[str, ...]]
"""By param of a job's run: the values with which something was measured."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Finding:
    """One statement about a number.

    Attributes:
        text: the statement; where it has words instead of numbers, also how they are read.
        where: `figure 3`.
        kind: `quantity` of a cell; speed, or a quantity, `against` another mode; a quantity `along` a swept parameter,
            at its highest value over that at its lowest; of two `profiles`, the larger over the smaller;
            `memory_growth`, memory over that of as many jobs alone; `out_of_memory`; `slowdown` of one workload in a
            mix; `fastest` mode.
        modes: names of sharing modes in the configuration.
        workloads: names; empty for all of the publication.
        mixes: labels (`M+2S`), instead of workloads.
        quantity: its name in `pipeline.report.evaluate.metrics`, or `throughput` in the unit of the workload.
        against: the other mode.
        along: a param of the workload, or `mig_profile`.
        larger, smaller: slices of the `profiles`, or `full` for the whole GPU.
        rows: of `profiles`: name, figure of the larger, figure of the smaller.
        is_time: the rows are times, not rates.
        slips: errors in the publication's own table.
        left_out: names of rows that a slip makes unusable.
        of: the workload of a `slowdown`.
        among: the modes of which one is the `fastest`.
        degree: `None` for any above 1.
        profile: of MIG instances, by slices; `None` for any.
        low, high: range; `None` is open. Of `profiles` it follows from the rows.
        gpu, settings: where they are not those of the publication and the workload.
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
        """Speed of the larger over that of the smaller (kind `profiles`), for each row that can be used."""
        used = [row for row in self.rows if row[0] not in self.left_out]
        return tuple(smaller / larger if self.is_time else larger / smaller for _, larger, smaller in used)

    @property
    def mode_labels(self) -> tuple[str, ...]:
        return tuple(mode_of(name).label for name in self.modes)

    @property
    def range_in_words(self) -> str:
        """`1.05 to 1.12`, `up to 1.8`, `out of memory`."""
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
        name: of the workload of this project that does the same.
        nearest: of a similar workload, which counts as measured at other settings.
        size: its letter in the labels of mixes.
        in_mixes: further settings, in mixes only.
    """

    name: str
    nearest: str = ""
    size: str | None = None
    settings: Settings = field(default_factory=dict)
    in_mixes: Settings = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Publication:
    """A publication, and how it measured.

    Attributes:
        table, title, about: name, title and introduction of its table in the report.
        gpu: part of the name of the GPU.
        epochs: of each job; 0 if the length of the work does not matter.
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

    def differences(self, finding: Finding, params: Mapping[str, str], *, is_mix: bool) -> list[str]:
        """Describe how the settings of a job differ from those of a finding: `batch 128 instead of 32`."""
        program = self.program(params)
        if program is None:
            return [f"{params.get('workload')}, which was not measured"]
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
        """Describe how the MIG instances of jobs differ, the largest first; `params` of copies are those of one."""
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
        return labels.value_in_words(key, value) or f"source {value}"
    form = _SETTINGS_IN_WORDS.get(key, key.replace("_", " ") + " {}")
    return form.format(value or "not recorded")


@lru_cache(maxsize=1)
def publications() -> tuple[Publication, ...]:
    """Return every publication, by the name of its file."""
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
