"""What conda says is installed in an environment: one JSON file a package, in its folder `conda-meta`."""

from __future__ import annotations

import graphlib
import json
from pathlib import Path
from typing import Any


def is_conda(prefix: Path) -> bool:
    """Whether an environment was made by conda or one of its kind."""
    return (prefix / "conda-meta").is_dir()


def records(prefix: Path) -> list[dict[str, Any]]:
    """What is installed, each after what it depends on: some tools install a list in its order."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted((prefix / "conda-meta").glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        found[record["name"]] = record
    needs = {name: [spec.split()[0] for spec in record.get("depends", ())] for name, record in found.items()}
    graph = {name: [each for each in sorted(needs[name]) if each in found] for name in sorted(found)}
    try:
        ordered = list(graphlib.TopologicalSorter(graph).static_order())
    except graphlib.CycleError:  # pip and python, for one, may name each other
        ordered = sorted(found, key=lambda name: (name != "python", name))
    return [found[name] for name in ordered]
