"""Locks of environments: their packages, and the differences between two locks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

_MAX_PACKAGES = 8
_PYTHON = "# python: "


def compare_locks(before: Iterable[str], now: Iterable[str]) -> str:
    """Return the packages that differ between two locks, as one line; empty if none differ."""
    return compare_packages(parse_lock(before), parse_lock(now))


def compare_packages(old: Mapping[str, str], new: Mapping[str, str]) -> str:
    """Return the packages that differ between two maps by name, as one line; empty if none differ."""
    changes = []
    for name in sorted(old.keys() | new.keys()):
        if name not in new:
            changes.append(f"without {old[name]}")
        elif name not in old:
            changes.append(f"with {new[name]}")
        elif old[name] != new[name]:
            changes.append(f"{old[name]} now {new[name]}")
    more = len(changes) - _MAX_PACKAGES
    words = "; ".join([*changes[:_MAX_PACKAGES], *([f"and {more} more"] if more > 0 else [])])
    return f"packages: {words}" if changes else ""


def parse_lock(lock: Iterable[str]) -> dict[str, str]:
    """Return Python and the packages of a lock by name, each as `name==version`, `name @ URL` or a conda file."""
    packages = {}
    # In the lock of a conda environment, packages installed by pip are in comments.
    for line in filter(None, (raw_line.strip().removeprefix("# pip ") for raw_line in lock)):
        if line.startswith(_PYTHON):
            packages["python"] = f"Python {line.removeprefix(_PYTHON)}"
        elif line.startswith(("#", "@", "-")):
            continue
        elif "://" in line and " @ " not in line:
            text = line.rsplit("/", 1)[1].partition("#")[0]
            packages[text.rsplit("-", 2)[0]] = text
        else:
            packages[line.replace(" @ ", "==").partition("==")[0].lower()] = line
    return packages
