"""Installed packages of a conda environment, which conda lists in `conda-meta`, one JSON file per package."""

from __future__ import annotations

import graphlib
import json
from pathlib import Path
from typing import Any


def read_records(prefix: Path) -> list[dict[str, Any]]:
    """Read the installed packages, dependencies first, because some tools install a list in its order."""
    by_name: dict[str, dict[str, Any]] = {}
    for path in sorted((prefix / "conda-meta").glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        by_name[record["name"]] = record
    needs = {name: [spec.split()[0] for spec in record.get("depends", ())] for name, record in by_name.items()}
    graph = {name: [needed for needed in sorted(needs[name]) if needed in by_name] for name in sorted(by_name)}
    try:
        ordered = list(graphlib.TopologicalSorter(graph).static_order())
    except graphlib.CycleError:  # for example, pip and python may depend on each other
        ordered = sorted(by_name, key=lambda name: (name != "python", name))
    return [by_name[name] for name in ordered]
