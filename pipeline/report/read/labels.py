"""Labels of workloads, sharing modes and settings in figures and tables."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import NamedTuple

from pipeline.base.domain import mig_table, work_units
from pipeline.base.domain.group_names import ENVIRONMENT, find_telling_keys, list_program_params
from pipeline.base.domain.sharing_modes import PARTITION, PERCENTAGE, PROFILE, SharingMode

Program = tuple[str | tuple[str, str], ...]


class JobLabel(NamedTuple):
    """The label of a job in parts: the label of its workload, its letter in a mix, and its `describe_params`."""

    workload: str
    size: str | None = None
    words: str = ""


STEP_MODE = "step_mode"
_WORDS = {
    "precision": {"default": "default precision", "tf32": "TF32", "fp32": "strict fp32"},
    STEP_MODE: {"compile": "compiled", "cuda_graph": "CUDA graph"},
    "recipe": {"plain": "plain recipe", "timm": "timm's recipe"},
    "source": {
        "disk": "data from disk",
        "files": "image files",
        "synthetic": "synthetic data",
        "synthetic_files": "made-up image files",
        "synthetic_host": "host-made data",
        "synthetic_device": "data on the GPU",
    },
}
"""Params that labels show, in the order of the labels, with words for their values."""
_UNSAID = (STEP_MODE, "eager")
_SIZE_ORDER = ("L", "M", "S")
_ASKED_PROFILES = {"profile", "profiles"}
_LIMIT, _CHUNKS = "active_thread_pct", "chunks"


def identify_program(params: Mapping[str, str]) -> Program:
    """Return the workload and all params that affect the computation of a job, except the step mode."""
    settings = {key: value for key, value in list_program_params(params).items() if key != STEP_MODE}
    return (params.get("workload", ""), *sorted(settings.items()))


def collect_words(programs: Iterable[Mapping[str, str]]) -> dict[str, set[str]]:
    """Return, in words, every precision, step mode, recipe and data source of the programs."""
    values: dict[str, set[str]] = {key: set() for key in _WORDS}
    for params in programs:
        for key in _WORDS.keys() & params.keys():
            values[key].add(format_param_value(key, params[key]))
    return values


def has_label_params(params: Mapping[str, str]) -> bool:
    """Check that a program has params that labels show; a user's own program has none."""
    return not _WORDS.keys().isdisjoint(params)


def describe_params(params: Mapping[str, str], varying: Container[str]) -> str:
    """Describe the params that vary within the study: `bf16, CUDA graph`."""
    keys = [key for key in _WORDS if key in varying and key in params and (key, params[key]) != _UNSAID]
    return ", ".join(format_param_value(key, params[key]) for key in keys)


def label_workload(name: str, params: Mapping[str, str], words: str) -> str:
    """Return the name of a workload with its batch size and the words for its params: `resnet26 bs128 (bf16)`."""
    label = f"{name} bs{params['batch_size']}" if "batch_size" in params else name
    return _with_words(label, words)


def _with_words(label: str, words: str) -> str:
    return f"{label} ({words})" if words else label


def format_param_value(key: str, value: str) -> str:
    """Return the words for a param in a label: `CUDA graph`, `data on the GPU`, `bf16`."""
    return _WORDS[key].get(value, value)


def format_step_modes(step_modes: Iterable[str]) -> str:
    """Return the words for step modes, without repetition: `CUDA graph`, `CUDA graph or compiled`; empty for none."""
    return " or ".join(sorted({format_param_value(STEP_MODE, step_mode) for step_mode in step_modes}))


def distinguish_params(alike: Sequence[Mapping[str, str]]) -> list[str]:
    """Return words that distinguish params with equal labels."""
    keys = find_telling_keys(alike)
    return [" ".join(_describe_param(key, params[key]) for key in keys if key in params) for params in alike]


def _describe_param(key: str, value: str) -> str:
    """Return a flag as on a command line, an environment or work unit in words, any other param as `key=value`."""
    if key in (ENVIRONMENT, work_units.PARAM):
        return value if key == ENVIRONMENT else f"in {value}"
    return f"{key} {value}".strip() if key.startswith("-") else f"{key}={value}"


def label_jobs(jobs: Sequence[JobLabel]) -> str:
    """Label the jobs of a group in their order: `M+2S (bf16)` with sizes, else `a + 2 b`; `a` for copies."""
    names = Counter(job.workload for job in jobs)
    if len(names) == 1:
        return jobs[0].workload
    if (mix := _sizes(jobs)) is not None:
        words = {job.words for job in jobs}
        return _with_words(mix, words.pop() if len(words) == 1 else "")
    return " + ".join(f"{number} {name}" if number > 1 else name for name, number in names.items())


def sort_jobs(jobs: Iterable[JobLabel]) -> list[JobLabel]:
    """Sort the jobs of a group; groups with the same jobs get the same order."""
    places = {size: place for place, size in enumerate(_SIZE_ORDER)}
    return sorted(jobs, key=lambda job: (places.get(job.size or "", len(places)), job.size or "", job.workload))


def rank_mix(jobs: Iterable[JobLabel]) -> tuple[int, ...]:
    """Return a sort key of a mix, from little to much work: its numbers of large, medium and small jobs."""
    counts = Counter(job.size for job in jobs)
    return tuple(counts[size] for size in _SIZE_ORDER)


def label_mix(jobs: Sequence[JobLabel]) -> str | None:
    """Label different jobs by size, in a fixed order: `M+2S`; `None` unless each workload has a different size."""
    return _sizes(sort_jobs(jobs))


def _sizes(jobs: Sequence[JobLabel]) -> str | None:
    sizes = Counter(job.size for job in jobs if job.size is not None)
    if sizes.total() < len(jobs) or len(sizes) != len({job.workload for job in jobs}):
        return None
    return "+".join(f"{number}{size}" if number > 1 else size for size, number in sizes.items())


def describe_mode(mode: SharingMode, options: Mapping[str, object], places: Sequence[Mapping[str, str]]) -> str:
    """Return the detail of a sharing mode: `25 %`, `2g.10gb`, `3g+2g+1g`, `2x3g.40gb`; empty without one.

    Compute instances follow their GPU instance: `3g(2c+1c)+1g`. The place of a job that did not start is empty.
    """
    words = []
    excluded_keys = {_LIMIT, mode.label_option} | ({_CHUNKS} if mode.placement_fact == PARTITION else set())
    if mode.placement_fact == PROFILE:
        excluded_keys |= _ASKED_PROFILES
        profiles = find_profiles(mode, options, places)
        is_placed = any(PROFILE in place for place in places)
        instances = _instances(places)
        words.append(_format_slices(instances, counted=mode.counts_instances) if is_placed else "+".join(profiles))
    words.append(_describe_limit(mode, options, places))
    words += [
        f"{key}={describe_value(value)}"
        for key, value in mode.naming(sorted(options.items()))
        if key not in excluded_keys
    ]
    return " ".join(filter(None, words))


def _describe_limit(mode: SharingMode, options: Mapping[str, object], places: Sequence[Mapping[str, str]]) -> str:
    """Describe the limit of each job: the actual limit, else the requested one (`25+50 %`, `56 SM`, `7 chunks`)."""
    for key, unit in ((PERCENTAGE, "%"), (PARTITION, "SM")):
        if limits := [place[key] for place in places if key in place]:
            return f"{'+'.join(limits[:1] if len(set(limits)) == 1 else limits)} {unit}"
    if options.get(_LIMIT):
        return f"{describe_value(options[_LIMIT])} %"
    if mode.placement_fact == PARTITION and options.get(_CHUNKS):
        return f"{describe_value(options[_CHUNKS])} chunks"
    return describe_value(options[mode.label_option]) if mode.label_option in options else mode.default_text


def find_profiles(
    mode: SharingMode, options: Mapping[str, object], places: Sequence[Mapping[str, str]]
) -> tuple[str, ...]:
    """Return the profiles of the MIG devices, the largest first; if no job has a place, the requested profiles."""
    if mode.placement_fact != PROFILE:
        return ()
    profiles = [profile for devices in _devices(places).values() for profile in devices.values()]
    if profiles:
        return tuple(sorted(profiles, key=rank_profile, reverse=True))
    requested = options.get("profiles") or options.get("profile", "auto")
    return () if requested == "auto" else tuple(requested) if isinstance(requested, list) else (str(requested),)


def _devices(places: Sequence[Mapping[str, str]]) -> dict[object, dict[object, str]]:
    devices: dict[object, dict[object, str]] = {}
    for position, place in enumerate(places):
        if PROFILE in place:
            devices.setdefault(place.get("gi_id", position), {})[place.get("ci_id")] = place[PROFILE]
    return devices


def _instances(places: Sequence[Mapping[str, str]]) -> list[tuple[str, str]]:
    """Return the profile and the compute instances (`(2c+1c)`) of each GPU instance, the largest first."""
    instances = []
    for devices in _devices(places).values():
        names = [mig_table.split_name(name) for name in sorted(devices.values(), key=rank_profile, reverse=True)]
        instances.append((names[0][0], [f"{slices}c" for _, slices in names if slices is not None]))
    instances.sort(key=lambda instance: rank_profile(instance[0]), reverse=True)
    return [(profile, mig_table.format_division("", parts)) for profile, parts in instances]


def is_placed(mode: SharingMode, places: Sequence[Mapping[str, str]]) -> bool:
    """Check that every place has the fact that `describe_mode` needs."""
    return not mode.placement_fact or (bool(places) and all(mode.placement_fact in place for place in places))


def _format_slices(instances: Sequence[tuple[str, str]], *, counted: bool) -> str:
    profiles = [profile for profile, _ in instances]
    if len(set(instances)) == 1:
        instance = "".join(instances[0])
        return f"{len(instances)}x{instance}" if counted else instance
    slices = [profile.split(".")[0] for profile in profiles]
    # Profiles with equal numbers of slices (1g.10gb, 1g.20gb) need their full names.
    shown = slices if len(set(slices)) == len(set(profiles)) else profiles
    return "+".join(f"{profile}{parts}" for profile, (_, parts) in zip(shown, instances, strict=True))


def rank_profile(profile: str) -> tuple[int, str]:
    """Return a sort key of a MIG profile: its number of slices (2 for `2c.3g.40gb`), then its name."""
    match = re.match(r"(\d+)[cg]", profile)
    return (int(match[1]) if match else 0, profile)


def describe_value(value: object) -> str:
    """Return a recorded value as text, a list as `3g+1g`."""
    if isinstance(value, list):
        return "+".join(map(describe_value, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
