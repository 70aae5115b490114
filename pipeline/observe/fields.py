"""The quantities of a group's listeners, and the file that keeps them beside its samples for whoever shows those."""

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
"""The figures of a device from which others are derived: `power_idle_w`, `energy_per_sample_j` and the like."""

_UNIT = re.compile(r"_([a-z]+_per_s|[a-z]+)$")


def figure_of(field: Field) -> str | None:
    """The name of a quantity in the row: `power_w` becomes `power_mean_w`; `None` if the row has nothing of it."""
    if field.summary is None:
        return None
    if field.summary in (Summary.RATE, Summary.GROWTH):
        return field.figure or field.name
    return field.figure or _UNIT.sub(rf"_{field.summary}_\1", field.name)


class Fields:
    """The field tables of the listeners of a group, those of the highest rank first."""

    def __init__(self, tables: Iterable[FieldTable] = ()) -> None:
        self.tables = tuple(sorted(tables, key=lambda table: (-table.rank, table.source)))
        self._of_machine = {table.source for table in self.tables if table.of_machine}

    def __iter__(self) -> Iterator[tuple[str, Field]]:
        return ((table.source, field) for table in self.tables for field in table.fields)

    def interval_ns(self, source: str) -> int:
        """Return the time between two samples of a listener, as it was asked for; 0 if it is not known."""
        return next((table.interval_ms for table in self.tables if table.source == source), 0) * 1_000_000

    def is_of_device(self, source: str, job: int | None) -> bool:
        """Whether a sample of a listener, of a job if not `None`, is of the device or one of its GPU instances."""
        return job is None and source not in self._of_machine

    def live_memory_mib(self, samples: Iterable[Sample], job: int) -> float | None:
        """The memory of a job, from the last of the samples that has it, by the best listener.

        Of another one it is other memory: that of the host is not shown for that of the GPU until this is known.
        """
        latest = {
            (sample.source, name): value
            for sample in samples
            if sample.job == job
            for name, value in sample.values.items()
        }
        live = [(source, field.name) for source, field in self if field.is_live]
        return next((latest[key] for key in live if key in latest and key[0] == live[0][0]), None)

    def titled(self, figures: Collection[str]) -> str:
        """Title, unit and summary of those figures that the report's tables show, by name, as JSON; empty if none."""
        found = {
            name: {"title": field.title, "unit": field.unit, "summary": field.summary}
            for _, field in reversed(list(self))
            if field.title and (name := figure_of(field)) in figures
        }
        return json.dumps(dict(reversed(found.items()))) if found else ""

    def as_json(self) -> str:
        return json.dumps([dataclasses.asdict(table) for table in self.tables], indent=1) + "\n"


def read(path: Path) -> Fields:
    """The fields that a file holds; none if it is not there, or was torn when its writer was killed."""
    try:
        return Fields(json_decoder.decode(list[FieldTable], json.loads(path.read_text(encoding="utf-8"))))
    except FileNotFoundError:
        return Fields()
    except (OSError, ValueError) as error:
        log.warning("%s holds no tables of fields: %s", path, error)
        return Fields()
