"""Check that Perfetto can read a trace: the parts of the "Trace Event Format" (JSON objects) that this project uses."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

KEYS = {
    "X": {"name", "ph", "ts", "dur", "pid", "tid"},
    "C": {"name", "ph", "ts", "pid", "args"},
    "M": {"name", "ph", "pid", "args"},
}
METADATA = {"process_name": "name", "thread_name": "name", "thread_sort_index": "sort_index"}
_ROUNDING_US = 0.002


def problems(trace: dict[str, Any]) -> list[str]:
    """Yield the errors of a trace. Slices of one thread must be nested, and every track must have a name."""
    events = trace["traceEvents"]
    messages = [f"{problem}: {event}" for event in events if (problem := _problem(event))]
    if messages:
        return messages
    named = {(event["name"], event["pid"], event.get("tid")) for event in events if event["ph"] == "M"}
    slices: dict[tuple[int, int], list[tuple[float, float, str]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            slices[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"], event["name"]))
    for (pid, tid), members in slices.items():
        if ("thread_name", pid, tid) not in named or ("process_name", pid, None) not in named:
            messages.append(f"track {pid}/{tid} has no name")
        messages += _find_overlaps(members)
    return messages


def _problem(event: dict[str, Any]) -> str | None:
    """Yield the errors of one event, without regard to others."""
    if event.get("ph") not in KEYS:
        return "unknown kind"
    if missing := KEYS[event["ph"]] - event.keys():
        return f"without {missing}"
    numbers = [event[key] for key in ("ts", "dur") if key in event]
    if event["ph"] == "C":
        numbers += event["args"].values()
    if not all(isinstance(n, int | float) and math.isfinite(n) for n in numbers):
        return "not a number"
    if any(event.get(key, 0) < 0 for key in ("ts", "dur")):
        return "before the begin, or of negative length"
    if event["pid"] < 1 or event.get("tid", 1) < 1:
        return "number of a kernel's idle task"
    if not event["name"]:
        return "without a name"
    if event["ph"] == "M" and METADATA.get(event["name"]) not in event["args"]:
        return "metadata that Perfetto does not read"
    return None


def _find_overlaps(members: list[tuple[float, float, str]]) -> list[str]:
    messages = []
    open_: list[tuple[float, float, str]] = []
    for begin, end, name in sorted(members, key=lambda member: (member[0], -member[1])):
        while open_ and open_[-1][1] <= begin + _ROUNDING_US:
            open_.pop()
        if open_ and end > open_[-1][1] + _ROUNDING_US:
            messages.append(f"{name} [{begin}, {end}] begins within {open_[-1]} and ends after it")
        open_.append((begin, end, name))
    return messages
