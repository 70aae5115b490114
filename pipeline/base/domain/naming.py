"""What the groups of a study are called: in its plan, on the terminal, in MLflow and in a report.

A name begins with the sharing mode and the jobs, and goes on with the options that tell the group from others of the
study: `naive-2x-tiny-batch_size=16`. The options of the mode and the flags of a script are always among them, if they
are given. Where options of jobs make a name too long to read, the values that most programs of that name share go
without saying. Names are for people: no digest depends on one, so a study to which values are added stays the same.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from pipeline.base.domain.modes import mode_of
from pipeline.base.domain.records import NEIGHBOURS
from pipeline.base.domain.units import GIVEN_RATE

FLAG = "flags."
"""How the params begin which say what a script was given by `workload.flags`."""
ARGUMENTS = "args"
# What is not a property of the program: settings of the whole study, paths, what the job reported of itself.
_NOT_ITS_OWN = frozenset({"workload", "seed", "epochs", "device", "data_root", "cache_root", GIVEN_RATE})
_PREFIXES = ("job.", "place.")
ENVIRONMENT = "environment_digest"
"""The param that tells environments apart. No name of a group says it, as digits say nothing to a reader."""
_PROFILER = "profiler"
_WHOLE = re.compile(r"^(-?\d+)\.0$")
"""A fraction of ours that is none, such as a rate of 50.0; flags of scripts are said as they were given."""
_MANY = 70  # characters of options
_LONGEST = 120  # of a name: a database keeps 250 characters of it, a folder 255


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """What a job is called by: its size in a mix or else its workload, and the params of its run."""

    size: str | None
    workload: str
    params: Mapping[str, str]
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFacts:
    """What a group is called by; two groups are the same if these are."""

    scenario: str
    jobs: tuple[JobFacts, ...]
    options: Mapping[str, object]
    settings: Mapping[str, str]


def own_params(params: Mapping[str, str]) -> dict[str, str]:
    """The params of a job's run that say what its program computes."""
    return {
        key: _WHOLE.sub(r"\1", value) if value.endswith(".0") and not key.startswith(FLAG) else value
        for key, value in params.items()
        if key not in _NOT_ITS_OWN and not key.startswith(_PREFIXES)
    }


def as_flags(params: Mapping[str, str]) -> dict[str, str]:
    """The params, with flags and arguments of a script by the name that the program gives them: `--lr`."""
    found = {key: value for key, value in params.items() if key != ARGUMENTS and not key.startswith(FLAG)}
    found |= _flags_in(params.get(ARGUMENTS, ""))
    given = {key[len(FLAG) :]: value for key, value in params.items() if key.startswith(FLAG)}
    return found | {f"--{key}": "" if value == "true" else value for key, value in given.items()}


def _flags_in(args: str) -> dict[str, str]:
    """Flags with their values. Which words are values nobody knows but the program: all up to the next flag."""
    found: dict[str, list[str]] = defaultdict(list)
    key = ARGUMENTS
    try:
        words = shlex.split(args)
    except ValueError:  # a param that was too long for the store
        words = args.split()
    for word in words:
        if re.match(r"--?[^\W\d]", word):
            key, has_value, value = word.partition("=")
            found[key] += [value] if has_value else []
        else:
            found[key].append(word)
    return {key: " ".join(values) for key, values in found.items()}


def differing(programs: Iterable[Mapping[str, str]]) -> list[str]:
    """The keys whose values are not the same in all, sorted."""
    every = list(programs)
    return [
        key for key in sorted({key for each in every for key in each}) if len({each.get(key) for each in every}) > 1
    ]


def names(groups: Sequence[GroupFacts]) -> list[str]:
    """The name of each group of a study; no two that differ have the same."""
    jobs = _job_words([job for group in groups for job in group.jobs])
    options, settings = _varying_options(groups), _varying_settings(groups)
    made = [_name(group, jobs, options[group.scenario], settings[_programs(group)]) for group in groups]
    identities: dict[str, set[str]] = defaultdict(set)
    for group, name in zip(groups, made, strict=True):
        identities[name].add(_identity(group))
    return [
        f"{name[:_LONGEST]}-{_identity(group)}" if len(identities[name]) > 1 or len(name) > _LONGEST else name
        for group, name in zip(groups, made, strict=True)
    ]


def _identity(group: GroupFacts) -> str:
    digests = [job.digest for job in group.jobs]
    facts = (group.scenario, digests, sorted(map(str, group.options.items())), sorted(group.settings.items()))
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:6]


def _name(
    group: GroupFacts, words: Mapping[tuple[str, str], list[str]], options: Set[str], settings: Sequence[str]
) -> str:
    programs = [(_called(job), words[_called(job), job.digest]) for job in group.jobs]
    if all(program == programs[0] for program in programs):
        called, said = programs[0]
        parts = [f"{len(programs)}x-{called}", *said]
    else:
        parts = ["+".join(f"{called}[{','.join(said)}]" if said else called for called, said in programs)]
    given = dict(mode_of(group.scenario).naming(group.options.items())).keys() | options
    told = {key: value for key, value in group.options.items() if key in given and key != _PROFILER}
    parts += [_word(key, value) for key, value in told.items() if value not in ("auto", (), [])]
    # What loads the device beside the jobs is said of every group that has it.
    parts += [_word(key, value) for key in dict.fromkeys([*settings, NEIGHBOURS]) if (value := group.settings.get(key))]
    if profiler := group.options.get(_PROFILER):
        assert isinstance(profiler, list | tuple)
        parts += [str(profiler[0]), *(_word(*each) for each in profiler[1:] if _PROFILER in options)]
    return "-".join([group.scenario, *parts])


def _called(job: JobFacts) -> str:
    return job.size or job.workload


def _programs(group: GroupFacts) -> frozenset[str]:
    return frozenset(map(_called, group.jobs))


def _job_words(jobs: Sequence[JobFacts]) -> dict[tuple[str, str], list[str]]:
    """By what a job is called and its digest: the options that tell it from others of that name, and its flags."""
    alike: dict[str, dict[str, JobFacts]] = defaultdict(dict)
    for job in jobs:
        alike[_called(job)].setdefault(job.digest, job)
    words: dict[tuple[str, str], list[str]] = {}
    for called, programs in alike.items():
        kinds: dict[str, list[JobFacts]] = defaultdict(list)
        for job in programs.values():
            kinds[job.workload].append(job)
        for workload, every in kinds.items():
            kind = [_word("workload", workload)] if len(kinds) > 1 else []
            words |= {(called, digest): kind + said for digest, said in _words_of(every).items()}
    return words


def _words_of(jobs: Sequence[JobFacts]) -> dict[str, list[str]]:
    """By digest, the words for jobs of one workload. If they are many, those are left out that most jobs share."""
    facts = {job.digest: as_flags(own_params(job.params)) for job in jobs}
    # A size has a name of its own, which stands for its flags as well.
    given = [f"--{key[len(FLAG) :]}" for job in jobs if not job.size for key in job.params if key.startswith(FLAG)]
    keys = [key for key in dict.fromkeys([*given, *differing(facts.values())]) if key != ENVIRONMENT]
    said = {digest: {key: own[key] for key in keys if key in own} for digest, own in facts.items()}
    if len(said) > 1 and max(len("-".join(_words(own))) for own in said.values()) > _MANY:
        values = {key: Counter(own.get(key) for own in said.values()).most_common(1)[0] for key in keys}
        usual = {(key, value) for key, (value, times) in values.items() if 2 * times > len(said)}
        said = {digest: dict(own.items() - usual) for digest, own in said.items()}
    return {digest: _words({key: own[key] for key in keys if key in own}) for digest, own in said.items()}


def _words(said: Mapping[str, str]) -> list[str]:
    return [_word(key.lstrip("-"), value) for key, value in said.items()]


def _varying_options(groups: Sequence[GroupFacts]) -> dict[str, set[str]]:
    found: dict[str, list[dict[str, str]]] = defaultdict(list)
    profilers: dict[str, set[str]] = defaultdict(set)
    for group in groups:
        found[group.scenario].append({key: _text(value) for key, value in group.options.items() if key != _PROFILER})
        if _PROFILER in group.options:
            profilers[group.scenario].add(_text(group.options[_PROFILER]))
    # Its name is always said, so that only two ways of using one need more.
    said = {scenario: {_PROFILER} if len(profilers[scenario]) > 1 else set[str]() for scenario in found}
    return {scenario: said[scenario].union(differing(every)) for scenario, every in found.items()}


def _varying_settings(groups: Sequence[GroupFacts]) -> dict[frozenset[str], list[str]]:
    found: dict[frozenset[str], list[Mapping[str, str]]] = defaultdict(list)
    for group in groups:
        found[_programs(group)].append(group.settings)
    return {programs: differing(every) for programs, every in found.items()}


def _word(key: str, value: object) -> str:
    text = _text(value)
    return re.sub(r",?\s+", "_", key if text == "" else f"{key}={text}")


def _text(value: object) -> str:
    if isinstance(value, list | tuple):
        return ",".join(map(_text, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
