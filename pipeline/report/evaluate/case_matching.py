"""Cases with equal programs in several studies: the rows of a board, and the cases that two studies have in common."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from pipeline.base.domain.group_names import ENVIRONMENT, find_differing_keys, list_program_params, spell_flags
from pipeline.base.domain.records import CO_RUNNERS, OTHER_GPUS
from pipeline.base.system.words import group_by, natural_key
from pipeline.report.read import labels, pooling
from pipeline.report.read.study_records import JobRow, Row

_NOT_RECORDED = "not recorded"
_COLUMN_SETTINGS = ("device", pooling.SETTING)
_ROW_SETTINGS = (CO_RUNNERS, OTHER_GPUS)
_MOST_SAID = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Equal jobs of a case.

    Attributes:
        size: name of the jobs' size in a mix (`S`, `M`, ...); empty for other jobs.
        number: number of these jobs.
    """

    workload: str
    size: str
    number: int
    params: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCase:
    """A case of a study at a degree.

    Attributes:
        label: label of the case in its own study.
        settings: window, seed, ...
    """

    label: str
    degree: int
    programs: tuple[Program, ...]
    settings: Mapping[str, str]


C = TypeVar("C", bound=MeasuredCase)


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedCase(Generic[C]):
    """One case at one degree in several studies.

    Attributes:
        consists: the workloads of a mix.
        members: the case in each study that has it, by the number of the study.
        differs: the settings in which a member differs from the first one, in words.
    """

    label: str
    degree: int
    consists: str
    members: Mapping[int, C]
    differs: Mapping[int, str]


def list_programs(jobs: Sequence[JobRow]) -> tuple[Program, ...]:
    """Return the programs of jobs, without their environments."""
    number, first = Counter(job.label for job in jobs), {job.label: job for job in reversed(jobs)}
    return tuple(
        Program(
            workload=job.params.get("workload", ""),
            size=job.size or "",
            number=number[label],
            params={k: v for k, v in spell_flags(list_program_params(job.params)).items() if k != ENVIRONMENT},
        )
        for label, job in sorted(first.items())
    )


def select_settings(row: Row) -> dict[str, str]:
    """Return the settings of a row that distinguish cases, without its device and host."""
    return {key: value for key, value in row.settings if value and key not in _COLUMN_SETTINGS}


def find_varying_params(cases: Sequence[MeasuredCase]) -> tuple[set[str], tuple[str, ...]]:
    """Return the params that labels show, and in words those that are equal in all programs."""
    programs = [program.params for case in cases for program in case.programs]
    words = labels.collect_words(programs)
    shared = {key for key, values in words.items() if len(values) == 1 and all(key in params for params in programs)}
    return words.keys() - shared, tuple(next(iter(words[key])) for key in words if key in shared)


def match_cases(places: Sequence[tuple[int, C]], varying: Container[str] | None = None) -> list[MatchedCase[C]]:
    """Match the cases of several studies, each with the number of its study, by their programs; sort them by label.

    Labels show the params `varying`; by default, those that vary among these cases.
    """
    if varying is None:
        varying, _ = find_varying_params([case for _, case in places])
    facts = {id(case): _facts(case) for _, case in places}
    matched = []
    for row, distinctive_keys in _rows(places, facts):
        first = row[0][1]
        matched.append(
            MatchedCase(
                label=" ".join(filter(None, (_label(first, varying), *_list_facts(first, distinctive_keys, facts)))),
                degree=first.degree,
                consists=_describe_mix(first),
                members=dict(row),
                differs={number: _describe_difference(facts[id(first)], facts[id(case)]) for number, case in row},
            )
        )
    return sorted(matched, key=lambda case: (bool(case.consists), natural_key(case.label), case.degree))


_Identity = tuple[object, ...]


def _rows(
    places: Sequence[tuple[int, C]], facts: Mapping[int, Mapping[str, str]]
) -> list[tuple[list[tuple[int, C]], list[str]]]:
    """Return the cases of each row, and the facts that distinguish the row from others of the same study."""
    separated = []
    for same in group_by(places, lambda place: _identity(place[1])).values():
        by_column = group_by(same, lambda place: place[0])
        distinctive_keys = sorted(
            {
                key
                for column in by_column.values()
                for key in find_differing_keys([facts[id(other)] for _, other in column])
            }
        )
        rows: dict[_Identity, list[tuple[int, C]]] = defaultdict(list)
        for number, case in same:
            identity: _Identity = tuple(facts[id(case)].get(key) for key in distinctive_keys)
            twins = [other for _, other in by_column[number] if facts[id(other)] == facts[id(case)]]
            # Some cases differ only in the label, for example if the order of the jobs differs.
            rows[(*identity, case.label) if len(twins) > 1 else identity].append((number, case))
        separated += [(row, distinctive_keys) for row in rows.values()]
    return separated


def _identity(case: MeasuredCase) -> _Identity:
    """Return the identity of a row: the labelled params and the number of its jobs, co-runners and other GPUs."""
    programs = [
        (program.workload, program.params.get("batch_size", ""), tuple(_select_params(program).items()), program.number)
        for program in case.programs
    ]
    return (tuple(sorted(programs)), *(case.settings.get(key, "") for key in _ROW_SETTINGS))


def _facts(case: MeasuredCase) -> dict[str, str]:
    """Return the settings of the measurement, and the params of programs that labels do not show."""
    facts = {key: value for key, value in case.settings.items() if key not in _ROW_SETTINGS}
    for program in case.programs:
        prefix = f"{program.workload} " if len(case.programs) > 1 else ""
        labelled = {"batch_size", *_select_params(program)}
        facts |= {f"{prefix}{key}": value for key, value in program.params.items() if key not in labelled}
    return facts


def _select_params(program: Program) -> dict[str, str]:
    return {key: program.params[key] for key in sorted(labels.collect_words([program.params])) if key in program.params}


def _label(case: MeasuredCase, varying: Container[str]) -> str:
    programs = case.programs
    words = [labels.describe_params(program.params, varying) for program in programs]
    names = [
        labels.label_workload(program.workload, program.params, word)
        for program, word in zip(programs, words, strict=True)
    ]
    jobs = [
        labels.JobLabel(name, program.size or None, word)
        for name, program, word in zip(names, programs, words, strict=True)
        for _ in range(program.number)
    ]
    setting_texts = [f"[{key} {case.settings[key]}]" for key in _ROW_SETTINGS if case.settings.get(key)]
    return " ".join([labels.label_jobs(labels.sort_jobs(jobs)), *setting_texts])


def _list_facts(case: MeasuredCase, keys: Sequence[str], facts: Mapping[int, Mapping[str, str]]) -> list[str]:
    case_facts = facts[id(case)]
    return [
        f"{key} {case_facts[key]}" if key in case.settings else f"{key}={case_facts[key]}"
        for key in keys
        if key in case_facts
    ]


def _describe_mix(case: MeasuredCase) -> str:
    if len(case.programs) < 2:
        return ""
    named = [(program.size, labels.label_workload(program.workload, program.params, "")) for program in case.programs]
    return "; ".join(f"{size}: {label}" if size else label for size, label in named)


def _describe_difference(first: Mapping[str, str], second: Mapping[str, str]) -> str:
    keys = find_differing_keys([first, second])
    differences = [f"{key} {second[key]} instead of {first[key]}" for key in keys if key in second and key in first]
    unknown = [f"{key} {second.get(key, _NOT_RECORDED)}" for key in keys if (key in second) != (key in first)]
    if len(unknown) > 1:
        unknown = [f"{len(unknown)} settings recorded by only one of the two"]
    omitted = [f"{len(differences) - _MOST_SAID} more"] if len(differences) > _MOST_SAID else []
    return "; ".join([*differences[:_MOST_SAID], *omitted, *unknown])
