"""The page and the bundle of an acceptance; neither names a machine."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.base.system import words
from pipeline.gpu.acceptance.acceptance_run import CheckResult
from pipeline.gpu.acceptance.mig_board import hide_uuids

PAGE, BUNDLE = "index.html", "acceptance.tar.xz"
_MOST_CHARACTERS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """A completed acceptance.

    Attributes:
        trouble: why the GPU is not as before; `None` if it is.
        commands: commands of nvidia-smi with their output.
    """

    facts: Mapping[str, Any]
    results: Sequence[CheckResult]
    trouble: str | None
    commands: Sequence[Mapping[str, Any]]
    is_simulated: bool

    @property
    def title(self) -> str:
        simulated = "simulated " if self.is_simulated else ""
        return f"Acceptance of MIG: {simulated}{self.facts['gpu']}, driver {self.facts['driver']}"

    @property
    def is_ok(self) -> bool:
        return self.trouble is None and all(result.verdict in ("holds", "not tried") for result in self.results)

    def count(self, verdict: str) -> int:
        return sum(result.verdict == verdict for result in self.results)

    @property
    def verdict(self) -> str:
        """One sentence on all promises, and one on the GPU."""
        tried = len(self.results) - self.count("not tried")
        count, verb = words.format_count(tried, "promise"), "holds" if tried == 1 else "hold"
        held = f"{self.count('holds') + self.count('differs')} of {count} {verb}"
        differences = sum(len(result.differences) for result in self.results)
        parts = [held, words.format_count(differences, "difference") + " from the simulated driver"]
        parts += [f"{self.count('not tried')} not tried"] if self.count("not tried") else []
        restored = "The GPU is as before." if self.trouble is None else f"The GPU is not as before: {self.trouble}"
        return f"{'; '.join(parts)}. {hide_uuids(restored)}"

    def summarize(self) -> dict[str, Any]:
        """Return facts and verdicts as JSON data."""
        return {
            "facts": dict(self.facts),
            "is_ok": self.is_ok,
            "is_restored": self.trouble is None,
            "trouble": None if self.trouble is None else hide_uuids(self.trouble),
            "checks": {
                result.check.name: {
                    "promise": result.check.promise,
                    "verdict": result.verdict,
                    "untried": result.untried,
                    "broken": [hide_uuids(text) for text in result.broken],
                    "differences": [
                        {"reading": name, "gpu": reading, "simulated": twin_reading}
                        for name, reading, twin_reading in result.differences
                    ],
                    "seconds": round(result.seconds, 1),
                }
                for result in self.results
            },
        }


def describe_difference(difference: tuple[str, Any, Any]) -> str:
    """Describe a difference in one line."""
    name, reading, twin_reading = difference
    return f"{name} is {_shorten(reading)}, but {_shorten(twin_reading)} in the simulation"


def _shorten(reading: Any) -> str:
    text = json.dumps(reading)
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]} ..."


def write(acceptance: Acceptance, out: Path) -> tuple[Path, Path]:
    """Write page and bundle; return their paths."""
    page, bundle = out / PAGE, out / BUNDLE
    text = _render(acceptance)
    page.write_text(text, encoding="utf-8")
    readings = {
        result.check.name: {"gpu": result.readings, "simulated": result.twin_readings} for result in acceptance.results
    }
    commands = "".join(f"{hide_uuids(json.dumps(command))}\n" for command in acceptance.commands)
    with tarfile.open(bundle, "w:xz") as archive:
        for name, content in (
            (PAGE, text),
            ("acceptance.json", json.dumps(acceptance.summarize(), indent=1)),
            ("readings.json", hide_uuids(json.dumps(readings, indent=1))),
            ("commands.jsonl", commands),
        ):
            entry, raw = tarfile.TarInfo(f"acceptance/{name}"), content.encode()
            entry.size = len(raw)
            archive.addfile(entry, io.BytesIO(raw))
    return page, bundle


def _render(acceptance: Acceptance) -> str:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader(
            [jinja2.PackageLoader(name, ".") for name in ("pipeline.gpu.acceptance", "pipeline.report.page")]
        ),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )
    return environment.get_template("acceptance.html.jinja").render(
        acceptance=acceptance,
        bundle=BUNDLE,
        colours=[],
        hide=hide_uuids,
        minutes=words.format_duration,
        num_readings=_count_readings,
        shorten=_shorten,
    )


def _count_readings(reading: Any) -> int:
    if isinstance(reading, Mapping):
        return sum(map(_count_readings, reading.values()))
    return sum(map(_count_readings, reading)) if isinstance(reading, list) else 1
