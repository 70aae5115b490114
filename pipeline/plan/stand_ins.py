"""Small workloads in the places of an experiment's: which one stands for which kind, and what it keeps of its original.

A rehearsal keeps what each job is. `hydra.sweeper.stand_ins` of `conf/rehearse/tiny.yaml` says for each kind, which is
the schema that the YAML of a workload extends, what takes its place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

_GROUP = "workload"


def place_of(key: str) -> str:
    """Where in the configuration a key puts something: `sizes.S` for `workload@sizes.S`."""
    return key.lstrip("+~").rpartition("@")[2]


def stood_in(
    job: Sequence[str],
    chosen: Mapping[str, str],
    kind_of: Callable[[str], str],
    stand_ins: Mapping[str, Mapping[str, Any]],
    given: Sequence[str],
) -> list[str]:
    """The overrides of one job of a sweep, with stand-ins for its workloads.

    Args:
        job: its overrides, `KEY=VALUE` each.
        chosen: what the experiment chooses without them: choice by group (`workload@sizes.S`).
        kind_of: finds the kind of a workload.
        stand_ins: by kind: `workload` that stands for it, `keeps`, keys that it takes over from the overrides with the
            highest value of each (`None` for any), and `sets`, values by key.
        given: keys that win: those of the command line, and others that are not of the workloads' own.
    """
    fixed = {place_of(key) for key in given}
    keys = [override.partition("=")[0] for override in job]
    groups = {key: chosen[key] for key in chosen if key.partition("@")[0] == _GROUP}
    for key, override in zip(keys, job, strict=True):
        if key.lstrip("+").partition("@")[0] == _GROUP:
            groups = {other: choice for other, choice in groups.items() if place_of(other) != place_of(key)}
            groups[key] = override.partition("=")[2]
    added: list[str] = []
    places: dict[str, Mapping[str, float | None]] = {}
    for key, choice in groups.items():
        place = place_of(key)
        instead = stand_ins.get(kind_of(choice))
        if instead is None or place in fixed:
            continue
        places[place] = instead["keeps"]
        added.append(f"{key}={instead['workload']}")
        values = {f"{place}.{name}": value for name, value in instead["sets"].items()}
        added += [f"{key}={'null' if value is None else value}" for key, value in values.items() if key not in fixed]
    return [kept for override in job if (kept := _kept(override, places, fixed)) is not None] + added


def _kept(override: str, places: Mapping[str, Mapping[str, float | None]], fixed: set[str]) -> str | None:
    """An override of a job as it holds for its stand-in; `None` if it does not."""
    name, _, value = override.partition("=")
    key = place_of(name)
    for place, keeps in places.items():
        if key == place:
            return None
        if key.startswith(f"{place}.") and key not in fixed:
            option = key.removeprefix(f"{place}.")
            if option not in keeps:
                return None
            most = keeps[option]
            return f"{name}={most}" if most is not None and value.isdigit() and int(value) > most else override
    return override
