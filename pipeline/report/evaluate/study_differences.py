"""The differences between two studies in machine, software and settings, which may explain a change of speed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pipeline.base.domain.package_locks import compare_packages
from pipeline.base.system.words import list_first
from pipeline.report.evaluate.comparison import StudyComparison
from pipeline.report.read.environments import read_packages
from pipeline.report.read.rows import FACTS
from pipeline.report.read.study_records import Study

PACKAGES = "packages"
_NOT_COMPARED = {"command_line", "plan", "seed", "precision_goal_pct"}
"""Facts that differ between any two studies, or are settings of cases."""
_NOT_RECORDED = "not recorded"
_MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class Difference:
    """A fact with several values: what it is, and its values in the reference and in the newest study."""

    name: str
    before: str
    after: str


def list_differences(reference: Study, newest: Study) -> list[Difference]:
    """Return the facts in which two studies differ, or with several values in one of them, such as two commits."""
    facts = [("GPU model", reference.devices, newest.devices), ("GPU", _list_gpus(reference), _list_gpus(newest))]
    facts += [
        (words, reference.facts.get(name, ()), newest.facts.get(name, ()))
        for name, words in FACTS.items()
        if name not in _NOT_COMPARED
    ]
    return [
        Difference(name, _format(before), _format(after))
        for name, before, after in facts
        if set(before) != set(after) or len(set(before)) > 1
    ]


def compare_environments(reference: Study, newest: Study) -> str:
    """Return the packages that differ, as one line; empty if none differ."""
    before, after = read_packages(reference.rows), read_packages(newest.rows)
    if before and after:
        return compare_packages(before, after).removeprefix(f"{PACKAGES}: ")
    return "not available before" if after else "not available after" if before else ""


def list_setting_differences(comparison: StudyComparison) -> list[str]:
    """Return the settings in which cases differ, with the number of cases."""
    cases = {(change.label, change.degree, change.mode): change.differs for change in comparison.changes}
    counts = Counter(differs for differs in cases.values() if differs)
    return [
        f"{differs} ({'all cases' if number == len(cases) else f'{number} of {len(cases)} cases'})"
        for differs, number in counts.items()
    ]


def _list_gpus(study: Study) -> tuple[str, ...]:
    return tuple(sorted({row.gpu_uuid for row in study.rows if row.gpu_uuid}))


def _format(values: Iterable[str]) -> str:
    known: Sequence[str] = list(dict.fromkeys(values))
    return list_first(known, _MOST_NAMED) if known else _NOT_RECORDED
