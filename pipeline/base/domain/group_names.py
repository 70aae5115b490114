"""Names of the groups of a study: in its plan, on the terminal, in MLflow and in a report.

A name has the sharing mode and the jobs, then the options that distinguish the group from others of the study:
`naive-2x-tiny-batch_size=16`. Options of the mode that the user set and flags of a script are always included. If
options of jobs make a name too long, the values shared by most programs of that name are omitted. No digest depends on
a name, so digests stay the same when a study gets further values that change the names.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TypeVar

from pipeline.base.domain.records import CO_RUNNERS, Result
from pipeline.base.domain.sharing_modes import mode_of
from pipeline.base.domain.work_units import ARRIVALS, GIVEN_RATE, PARAM

FLAG = "flags."
"""Prefix of the params that record the `workload.flags` of a script."""
ARGUMENTS = "args"
# Params that are not properties of the program: settings of the complete study, paths, reports of the job.
_NOT_ITS_OWN = frozenset({"workload", "seed", "epochs", "device", "data_root", "cache_root", GIVEN_RATE, ARRIVALS})
_PREFIXES = ("job.", "placement.")
ENVIRONMENT = "environment_digest"
"""The param that distinguishes environments. Names omit it, because a digest means nothing to a reader."""
_LEAST_TELLING = (PARAM, "run_in", ENVIRONMENT)
"""Params that distinguish programs only if no other does, in this order: none changes the computation by itself."""
_PROFILER, _SIZE_PROFILE = "profiler", "size_profile"
_WHOLE = re.compile(r"^(-?\d+)\.0$")
"""A needless decimal of the project's numbers, such as a rate of 50.0; flags of a script are not changed."""
_MANY = 70  # maximum characters of options
_LONGEST = 120  # maximum characters of a name: a database allows 250, a folder 255


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """The facts that name a job: its size in a mix or its workload, and the params of its run."""

    size: str | None
    workload: str
    params: Mapping[str, str]
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFacts:
    """The facts that name a group; groups with equal facts are the same."""

    scenario: str
    jobs: tuple[JobFacts, ...]
    options: Mapping[str, object]
    settings: Mapping[str, str]


def list_program_params(params: Mapping[str, str]) -> dict[str, str]:
    """Return the params of a job's run that affect the computation of its program."""
    return {
        key: _WHOLE.sub(r"\1", value) if value.endswith(".0") and not key.startswith(FLAG) else value
        for key, value in params.items()
        if key not in _NOT_ITS_OWN and not key.startswith(_PREFIXES)
    }


def spell_flags(params: Mapping[str, str]) -> dict[str, str]:
    """Return the params with a script's flags and arguments spelled as in the program: `--lr`."""
    flags = {key: value for key, value in params.items() if key != ARGUMENTS and not key.startswith(FLAG)}
    flags |= _parse_flags(params.get(ARGUMENTS, ""))
    named = {key[len(FLAG) :]: value for key, value in params.items() if key.startswith(FLAG)}
    return flags | {f"--{key}": "" if value == "true" else value for key, value in named.items()}


def _parse_flags(args: str) -> dict[str, str]:
    """Parse flags with values: all words up to the next flag count as its values, because the syntax is unknown."""
    flags: dict[str, list[str]] = defaultdict(list)
    key = ARGUMENTS
    try:
        words = shlex.split(args)
    except ValueError:  # a param that was too long for the store
        words = args.split()
    for word in words:
        if re.match(r"--?[^\W\d]", word):
            key, has_value, value = word.partition("=")
            flags[key] += [value] if has_value else []
        else:
            flags[key].append(word)
    return {key: " ".join(values) for key, values in flags.items()}


def find_differing_keys(programs: Iterable[Mapping[str, str]]) -> list[str]:
    """Return the sorted keys whose values differ between the maps."""
    sets = list(programs)
    return [
        key
        for key in sorted({key for params in sets for key in params})
        if len({params.get(key) for params in sets}) > 1
    ]


def find_telling_keys(programs: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the keys that differ between the maps, without those of `_LEAST_TELLING` that are not needed."""
    differing_keys = find_differing_keys(programs)
    for number in range(len(_LEAST_TELLING) + 1):
        keys = [key for key in differing_keys if key not in _LEAST_TELLING[number:]]
        if len({tuple(params.get(key) for key in keys) for params in programs}) == len(programs):
            break
    return keys


def name_groups(groups: Sequence[GroupFacts]) -> list[str]:
    """Return the name of each group of a study; different groups have different names."""
    jobs = _describe_programs([job for group in groups for job in group.jobs])
    return _tell_apart(groups, _compose_names(groups, jobs, _find_varying_settings(groups)))


def shorten_names(groups: Sequence[GroupFacts]) -> list[str]:
    """Return names without options that all programs share, and without settings that tell no groups apart."""
    jobs = _describe_programs([job for group in groups for job in group.jobs])
    shared_labels = set.intersection(*map(set, jobs.values())) if jobs else set()
    jobs = {program: [label for label in labels if label not in shared_labels] for program, labels in jobs.items()}
    settings = _find_varying_settings(groups)
    names = _compose_names(groups, jobs, settings)
    for key in {key for keys in settings.values() for key in keys}:
        fewer = {programs: [name for name in keys if name != key] for programs, keys in settings.items()}
        shorter = _compose_names(groups, jobs, fewer)
        if len(set(shorter)) == len(set(names)):
            names, settings = shorter, fewer
    return _tell_apart(groups, names)


def _compose_names(
    groups: Sequence[GroupFacts],
    words: Mapping[tuple[str, str], list[str]],
    settings: Mapping[frozenset[str], Sequence[str]],
) -> list[str]:
    options = _find_varying_options(groups)
    return [
        _compose_name(group, words, options[group.scenario] - unnamed, settings[_list_programs(group)])
        for group, unnamed in zip(groups, _find_unnamed_options(groups), strict=True)
    ]


def _tell_apart(groups: Sequence[GroupFacts], plain_names: Sequence[str]) -> list[str]:
    """Cut long names, and add digits to them and to equal names of different groups."""
    identities: dict[str, set[str]] = defaultdict(set)
    for group, name in zip(groups, plain_names, strict=True):
        identities[name].add(_digest_facts(group))
    return [
        f"{name[:_LONGEST]}-{_digest_facts(group)}" if len(identities[name]) > 1 or len(name) > _LONGEST else name
        for group, name in zip(groups, plain_names, strict=True)
    ]


def _digest_facts(group: GroupFacts) -> str:
    digests = [job.digest for job in group.jobs]
    facts = (group.scenario, digests, sorted(map(str, group.options.items())), sorted(group.settings.items()))
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:6]


def _compose_name(
    group: GroupFacts, words: Mapping[tuple[str, str], list[str]], options: Set[str], settings: Sequence[str]
) -> str:
    programs = [(_name_job(job), words[_name_job(job), job.digest]) for job in group.jobs]
    if all(program == programs[0] for program in programs):
        program, labels = programs[0]
        parts = [f"{len(programs)}x-{program}", *labels]
    else:
        parts = ["+".join(f"{program}[{','.join(labels)}]" if labels else program for program, labels in programs)]
    distinct = dict(mode_of(group.scenario).naming(group.options.items())).keys() | options
    options_in_name = {key: value for key, value in group.options.items() if key in distinct and key != _PROFILER}
    parts += [_format_option(key, value) for key, value in options_in_name.items() if value not in ("auto", (), [])]
    # Co-runners are part of the name of every group that has them.
    parts += [
        _format_option(key, value)
        for key in dict.fromkeys([*settings, CO_RUNNERS])
        if (value := group.settings.get(key))
    ]
    if profiler := group.options.get(_PROFILER):
        assert isinstance(profiler, list | tuple)
        parts += [str(profiler[0]), *(_format_option(*option) for option in profiler[1:] if _PROFILER in options)]
    return "-".join([group.scenario, *parts])


def _name_job(job: JobFacts) -> str:
    return job.size or job.workload


def _list_programs(group: GroupFacts) -> frozenset[str]:
    return frozenset(map(_name_job, group.jobs))


def _describe_programs(jobs: Sequence[JobFacts]) -> dict[tuple[str, str], list[str]]:
    """Map name and digest of each program to its flags and its options that distinguish programs of that name."""
    alike: dict[str, dict[str, JobFacts]] = defaultdict(dict)
    for job in jobs:
        alike[_name_job(job)].setdefault(job.digest, job)
    words: dict[tuple[str, str], list[str]] = {}
    for program_name, programs in alike.items():
        kinds: dict[str, list[JobFacts]] = defaultdict(list)
        for job in programs.values():
            kinds[job.workload].append(job)
        for workload, jobs_of_kind in kinds.items():
            kind = [_format_option("workload", workload)] if len(kinds) > 1 else []
            words |= {
                (program_name, digest): kind + phrases for digest, phrases in _describe_jobs(jobs_of_kind).items()
            }
    return words


def _describe_jobs(jobs: Sequence[JobFacts]) -> dict[str, list[str]]:
    """Map digests to the options of jobs of one workload; if these are long, without the values shared by most jobs."""
    facts = {job.digest: spell_flags(list_program_params(job.params)) for job in jobs}
    # The name of a size already identifies its flags.
    flags = [f"--{key[len(FLAG) :]}" for job in jobs if not job.size for key in job.params if key.startswith(FLAG)]
    telling_keys = find_telling_keys(list(facts.values()))
    keys = [key for key in dict.fromkeys([*flags, *telling_keys]) if key != ENVIRONMENT]
    options = {digest: {key: params[key] for key in keys if key in params} for digest, params in facts.items()}
    if len(options) > 1 and max(len("-".join(_format_options(params))) for params in options.values()) > _MANY:
        values = {key: Counter(params.get(key) for params in options.values()).most_common(1)[0] for key in keys}
        usual = {(key, value) for key, (value, times) in values.items() if 2 * times > len(options)}
        options = {digest: dict(params.items() - usual) for digest, params in options.items()}
    return {
        digest: _format_options({key: params[key] for key in keys if key in params})
        for digest, params in options.items()
    }


def _format_options(options: Mapping[str, str]) -> list[str]:
    return [_format_option(key.lstrip("-"), value) for key, value in options.items()]


def _find_varying_options(groups: Sequence[GroupFacts]) -> dict[str, set[str]]:
    by_scenario: dict[str, list[dict[str, str]]] = defaultdict(list)
    profilers: dict[str, set[str]] = defaultdict(set)
    for group in groups:
        by_scenario[group.scenario].append(
            {key: _format_setting(value) for key, value in group.options.items() if key != _PROFILER}
        )
        if _PROFILER in group.options:
            profilers[group.scenario].add(_format_setting(group.options[_PROFILER]))
    # A profiler's name is always included; its options are needed only if they vary.
    always_named = {scenario: {_PROFILER} if len(profilers[scenario]) > 1 else set[str]() for scenario in by_scenario}
    return {scenario: always_named[scenario].union(find_differing_keys(sets)) for scenario, sets in by_scenario.items()}


def _find_unnamed_options(groups: Sequence[GroupFacts]) -> list[set[str]]:
    """Return, for each group, the profiles of sizes, unless they distinguish it from a group with the same jobs."""
    places = [(group.scenario, tuple(map(_name_job, group.jobs))) for group in groups]
    profiles: dict[tuple[str, tuple[str, ...]], set[str]] = defaultdict(set)
    for place, group in zip(places, groups, strict=True):
        profiles[place].add(_format_setting(group.options.get(_SIZE_PROFILE)))
    return [{_SIZE_PROFILE} if len(profiles[place]) == 1 else set() for place in places]


def _find_varying_settings(groups: Sequence[GroupFacts]) -> dict[frozenset[str], list[str]]:
    by_programs: dict[frozenset[str], list[Mapping[str, str]]] = defaultdict(list)
    for group in groups:
        by_programs[_list_programs(group)].append(group.settings)
    return {programs: find_differing_keys(sets) for programs, sets in by_programs.items()}


def _format_option(key: str, value: object) -> str:
    text = _format_setting(value)
    return re.sub(r",?\s+", "_", key if text == "" else f"{key}={text}")


def _format_setting(value: object) -> str:
    if isinstance(value, list | tuple):
        return ",".join(map(_format_setting, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


_Run = TypeVar("_Run")


def drop_superseded(newest_first: Iterable[_Run], read: Callable[[_Run], tuple[Hashable, str | None]]) -> list[_Run]:
    """Drop skipped runs whose group began later; `read` returns group and outcome of a run."""
    runs: list[_Run] = []
    started_groups = set[Hashable]()
    for run in newest_first:
        group, result = read(run)
        if result != Result.SKIPPED:
            started_groups.add(group)
        elif group in started_groups:
            continue
        runs.append(run)
    return runs
