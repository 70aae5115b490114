"""Kinds of hosts: a report does not pool rows of one GPU model from different kinds of hosts."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Mapping, Sequence

from pipeline.report.read.study_records import Row

SETTING = "host"
"""Name of the setting that describes the kind of host of a row, if the hosts differ."""
_KIND = {"cpu_model": "CPU", "cpus": "CPUs", "power_limit_w": "power limit (W)", "driver_version": "driver"}
_UNKNOWN = "not recorded"


def differences(rows: Sequence[Row]) -> Mapping[str, tuple[str, ...]]:
    """Return, for each device, the names of the facts in which its hosts differ."""
    by_device: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for row in rows:
        for fact in _KIND:
            by_device[row.device][fact].add(row.facts.get(fact, ""))
    several = {device: [fact for fact in _KIND if len(values[fact]) > 1] for device, values in by_device.items()}
    return {device: tuple(_KIND[fact] for fact in facts) for device, facts in several.items() if facts}


def separate_hosts(rows: Sequence[Row]) -> list[Row]:
    """Add the kind of host to the settings of the rows, for each device whose hosts differ."""
    differing = differences(rows)
    facts = {words: fact for fact, words in _KIND.items()}
    labelled = []
    for row in rows:
        kind = [f"{words} {row.facts.get(facts[words]) or _UNKNOWN}" for words in differing.get(row.device, ())]
        settings = (*row.settings, (SETTING, "; ".join(kind))) if kind else row.settings
        labelled.append(dataclasses.replace(row, settings=settings))
    return labelled
