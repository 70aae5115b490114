"""The quantities that a group's listeners read, and the file that stores them next to the samples."""

from __future__ import annotations

import dataclasses
import json
import logging
import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from pipeline.base.domain.samples import Field, FieldTable, Sample, Summary
from pipeline.base.system import json_decoder

log = logging.getLogger(__name__)

POWER, ENERGY = "power_mean_w", "energy_j"
"""Figures of a device from which other figures are derived, such as `power_idle_w` and `energy_per_sample_j`."""

_UNIT = re.compile(r"_([a-z]+_per_s|[a-z]+)$")


def name_figure(field: Field) -> str | None:
    """Return the name of a quantity's figure in the row: `power_mean_w` for `power_w`; `None` without a figure."""
    if field.summary is None:
        return None
    if field.summary in (Summary.RATE, Summary.GROWTH):
        return field.figure or field.name
    return field.figure or _UNIT.sub(rf"_{field.summary}_\1", field.name)


class Fields:
    """The field tables of a group's listeners, highest rank first."""

    def __init__(self, tables: Iterable[FieldTable] = ()) -> None:
        self.tables = tuple(sorted(tables, key=lambda table: (-table.rank, table.source)))
        self._of_machine = {table.source for table in self.tables if table.of_machine}

    def __iter__(self) -> Iterator[tuple[str, Field]]:
        return ((table.source, field) for table in self.tables for field in table.fields)

    def get_interval_ns(self, source: str) -> int:
        """Return the configured time between two samples of a listener; 0 if unknown."""
        return next((table.interval_ms for table in self.tables if table.source == source), 0) * 1_000_000

    def is_of_device(self, source: str, job: int | None) -> bool:
        """Return whether a listener's sample with this `job`, or `None`, is of the device or a GPU instance."""
        return job is None and source not in self._of_machine

    def read_live_memory_mib(self, samples: Iterable[Sample], job: int) -> float | None:
        """Return a job's newest memory reading from the best listener with a live quantity.

        Readings of other listeners are not used instead, because they are of other memory, such as the host's.
        """
        latest = {
            (sample.source, name): value
            for sample in samples
            if sample.job == job
            for name, value in sample.values.items()
        }
        live = [(source, field.name) for source, field in self if field.is_live]
        return next((latest[key] for key in live if key in latest and key[0] == live[0][0]), None)

    def describe_titled(self, figures: Collection[str]) -> str:
        """Return JSON with title, unit and summary of each figure with a title, by name; empty without such figures."""
        by_figure = {
            name: {"title": field.title, "unit": field.unit, "summary": field.summary}
            for _, field in reversed(list(self))
            if field.title and (name := name_figure(field)) in figures
        }
        return json.dumps(dict(reversed(by_figure.items()))) if by_figure else ""

    def as_json(self) -> str:
        return json.dumps([dataclasses.asdict(table) for table in self.tables], indent=1) + "\n"


def read(path: Path) -> Fields:
    """Read the fields in a file; none if it is absent or damaged."""
    try:
        return Fields(json_decoder.decode(list[FieldTable], json.loads(path.read_text(encoding="utf-8"))))
    except FileNotFoundError:
        return Fields()
    except (OSError, ValueError) as error:
        log.warning("cannot read the fields in %s: %s; figures from samples are missing", path, error)
        return Fields()
