"""What publications say, to be read beside a study: a file in `publications/` each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from pipeline.base.modes import mode_of

FOLDER = Path(__file__).parent / "publications"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One statement about a number.

    Attributes:
        text: the statement, and how it is read where it gives words instead of numbers.
        kind: `quantity` of a cell; speed `against` another mode; `memory_growth`, memory over that of as many jobs
            alone; `out_of_memory`; `fastest` mode of a mix.
        modes: the sharing modes that it is about, by their names in the configuration.
        workloads: names of the workloads that it is about; all of the publication if not given.
        mixes: labels of the mixes that it is about, instead of workloads.
        quantity: of kind `quantity`: its name in `pipeline.report.evaluate.metrics`.
        against: of kind `against`: the other mode.
        batch_size: `None` for any.
        degree: `None` for any that collocates.
        profile: of MIG instances, by slices; `None` for any.
        low, high: range; `None` is open.
        is_first_hand: whether it stands in the publication itself.
    """

    text: str
    kind: str
    modes: tuple[str, ...]
    workloads: tuple[str, ...] = ()
    mixes: tuple[str, ...] = ()
    quantity: str = ""
    against: str = ""
    batch_size: int | None = None
    degree: int | None = None
    profile: str | None = None
    low: float | None = None
    high: float | None = None
    is_first_hand: bool = True

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """A publication, and how it measured.

    Attributes:
        table, title, about: name and title of its table in the report, and what the page says of it.
        gpu: part of the name of the GPU.
        epochs: that each job did, on images from disk.
        workloads: names of all that it measured.
    """

    table: str
    title: str
    about: str
    gpu: str
    epochs: int
    workloads: tuple[str, ...]
    findings: tuple[Finding, ...]


@lru_cache(maxsize=1)
def publications() -> tuple[Publication, ...]:
    """Every publication, by the name of its file."""
    import yaml

    paths = sorted(FOLDER.glob("*.yaml"))
    return tuple(_publication(yaml.safe_load(path.read_text(encoding="utf-8"))) for path in paths)


def _publication(says: Mapping[str, Any]) -> Publication:
    findings = tuple(Finding(**_frozen(finding)) for finding in says["findings"])
    return Publication(**_frozen(says) | {"findings": findings})


def _frozen(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
