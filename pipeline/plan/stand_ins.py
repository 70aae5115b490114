"""Small workloads in the places of an experiment's: which one stands for which kind, and what it keeps of its original.

A rehearsal keeps what each job is. `hydra.sweeper.stand_ins` of `conf/rehearse/tiny.yaml` says for each kind, which is
the schema that the YAML of a workload extends, what takes its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pipeline.base.override_values import as_text

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
    body: Mapping[str, Mapping[str, Any]],
    values_of: Callable[[str], Mapping[str, Any]],
) -> list[str]:
    """The overrides of one job of a sweep, with stand-ins for its workloads.

    Args:
        job: its overrides, `KEY=VALUE` each.
        chosen: what the experiment chooses without them: choice by group (`workload@sizes.S`).
        kind_of: finds the kind of a workload.
        stand_ins: by kind: `workload` that stands for it, `keeps`, keys that it takes over from the overrides with the
            highest value of each (`None` for any), and `sets`, values by key.
        given: keys that win: those of the command line, and others that are not of the workloads' own.
        body: by place: the values that the experiment's file gives workloads beside its blocks.
        values_of: finds the values that a workload has by itself.
    """
    fixed = {place_of(key) for key in given}
    keys = [override.partition("=")[0] for override in job]
    groups = {key: chosen[key] for key in chosen if key.partition("@")[0] == _GROUP}
    for key, override in zip(keys, job, strict=True):
        if key.lstrip("+").partition("@")[0] == _GROUP:
            groups = {other: choice for other, choice in groups.items() if place_of(other) != place_of(key)}
            groups[key] = override.partition("=")[2]
    undone: list[str] = []
    added: list[str] = []
    places: dict[str, Mapping[str, float | None]] = {}
    for key, choice in groups.items():
        place = place_of(key)
        instead = stand_ins.get(kind_of(choice))
        if instead is None or place in fixed:
            continue
        places[place] = instead["keeps"]
        undone += _undone(place, body.get(place, {}), values_of(instead["workload"]), instead["keeps"], fixed)
        added.append(f"{key}={instead['workload']}")
        values = {f"{place}.{name}": value for name, value in instead["sets"].items()}
        added += [f"{key}={'null' if value is None else value}" for key, value in values.items() if key not in fixed]
    return undone + [kept for override in job if (kept := _kept(override, places, fixed)) is not None] + added


def _undone(
    place: str,
    values: Mapping[str, Any],
    own: Mapping[str, Any],
    keeps: Mapping[str, float | None],
    fixed: set[str],
) -> Iterator[str]:
    """Overrides that take out of a stand-in what it does not keep of the values in the experiment's file."""
    for name, value in values.items():
        override = f"{place}.{name}={as_text(value)}"
        kept = _kept(override, {place: keeps}, fixed)
        if kept is not None:
            yield from [kept] if kept != override else []
        elif isinstance(value, Mapping):
            yield from (f"~{place}.{name}.{entry}" for entry in value if entry not in own[name])
        elif name in own:
            yield f"{place}.{name}={as_text(own[name])}"


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
