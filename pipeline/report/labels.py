"""What workloads, sharing modes and settings are called in figures and tables."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

SERIAL, NAIVE, MPS, MPS_PERCENT, MIG, MIG_MPS = "serial", "naive", "MPS", "MPS %", "MIG", "MIG+MPS"
FAMILIES = {
    "serial": SERIAL,
    "naive": NAIVE,
    "mps": MPS,
    "mps_percent": MPS_PERCENT,
    "mig": MIG,
    "mig_mps": MIG_MPS,
}
"""By scenario: the kind of sharing, whatever its options are. In the order of legends and tables."""

STEP_MODE = "step_mode"
# What is not a property of the program: settings of the whole study, paths, what the job reported of itself.
_NOT_ITS_OWN = frozenset({"workload", "seed", "epochs", "device", "data_root", "cache_root"})
_PREFIXES = ("job.", "place.")
_WORDS: dict[str, dict[str, str | None]] = {
    STEP_MODE: {"eager": None, "compile": "compiled", "cuda_graph": "CUDA graph"},
    "source": {"disk": None, "synthetic_host": "host-made data", "synthetic_device": "data on the GPU"},
    "precision": {"fp32": None},
}
_SIZE_ORDER = ("L", "M", "S")
# Options that say where something lies or how it is looked up, not how the GPU is shared.
_SILENT_OPTIONS = frozenset({"program", "mps_program", "profile", "profiles", "size_profile", "num_instances"})
_PERCENTAGE = "mps_active_thread_percentage"


def own_params(params: Mapping[str, str]) -> dict[str, str]:
    """The params of a job's run that say what its program computes."""
    return {key: value for key, value in params.items() if key not in _NOT_ITS_OWN and not key.startswith(_PREFIXES)}


def workload_label(name: str, params: Mapping[str, str], *, without: str | None = None) -> str:
    """The name of a workload and what is not as it is by default: `resnet26_cifar10 bs128 (bf16, CUDA graph)`.

    Args:
        name: of the workload.
        params: its own params.
        without: a param to leave out.
    """
    label = f"{name} bs{params['batch_size']}" if "batch_size" in params else name
    words = []
    for key in ("precision", STEP_MODE, "source"):
        value = params.get(key)
        if value is not None and key != without:
            word = _WORDS[key].get(value, value)
            words += [word] if word else []
    return f"{label} ({', '.join(words)})" if words else label


def telling_apart(alike: Sequence[Mapping[str, str]]) -> list[str]:
    """For each of several params that share a label, the words that tell it from the others."""
    keys = sorted({key for params in alike for key in params})
    differing = [key for key in keys if len({params.get(key) for params in alike}) > 1]
    return [" ".join(f"{key}={params[key]}" for key in differing if key in params) for params in alike]


def jobs_label(workloads: Sequence[str], sizes: Sequence[str | None]) -> str:
    """The jobs of a group without their order: `M+2S` where they have sizes, else `a + 2 b`; `a` for equal ones."""
    if len(set(workloads)) == 1:
        return workloads[0]
    if all(size is not None for size in sizes) and len(set(sizes)) == len(set(workloads)):
        counted = Counter(str(size) for size in sizes)
        known = [size for size in _SIZE_ORDER if size in counted]
        ordered = known + sorted(size for size in counted if size not in _SIZE_ORDER)
        return "+".join(f"{counted[size]}{size}" if counted[size] > 1 else size for size in ordered)
    names = Counter(workloads)
    return " + ".join(f"{names[name]} {name}" if names[name] > 1 else name for name in sorted(names))


def mode_label(scenario: str, options: Mapping[str, str], places: Sequence[Mapping[str, str]]) -> str:
    """The sharing mode as a paper prints it: `MPS 25 %`, `MIG 2g.10gb`, `MIG 3g+2g+1g`, `MIG+MPS 2x3g.40gb`.

    Args:
        scenario: its name in the configuration.
        options: of the scenario, as they were recorded.
        places: where each job ran (`mig_profile`, `gi_id`, ...); empty if the group never got there.
    """
    family = FAMILIES.get(scenario, scenario)
    words = [MPS if family == MPS_PERCENT else family]
    profiles = [place["mig_profile"] for place in places if "mig_profile" in place]
    if family == MIG:
        words += [_profiles(profiles)] if profiles else _asked_profiles(options)
    elif family == MIG_MPS:
        instances = {place["gi_id"]: place["mig_profile"] for place in places if {"gi_id", "mig_profile"} <= set(place)}
        words += [_profiles(instances.values(), counted=True)] if instances else _asked_profiles(options)
    shares = [place[_PERCENTAGE] for place in places if _PERCENTAGE in place]
    if shares:
        words.append(f"{'+'.join(dict.fromkeys(shares) if len(set(shares)) == 1 else shares)} %")
    elif options.get("active_thread_pct"):
        words.append(f"{in_words(options['active_thread_pct'])} %")
    elif family == MPS_PERCENT:
        words.append("equal shares")
    said = _SILENT_OPTIONS | {"active_thread_pct"}
    words += [f"{key}={in_words(value)}" for key, value in sorted(options.items()) if key not in said]
    return " ".join(words)


def is_placed(scenario: str, places: Sequence[Mapping[str, str]]) -> bool:
    """Whether the places say what `mode_label` wants to know."""
    wanted = {MIG: "mig_profile", MIG_MPS: "mig_profile", MPS_PERCENT: _PERCENTAGE}.get(FAMILIES.get(scenario, ""))
    return wanted is None or (bool(places) and all(wanted in place for place in places))


def _profiles(profiles: Iterable[str], *, counted: bool = False) -> str:
    every = sorted(profiles, key=_slices, reverse=True)
    if len(set(every)) == 1:
        return f"{len(every)}x{every[0]}" if counted else every[0]
    slices = [profile.split(".")[0] for profile in every]
    # Two profiles of as many slices (1g.10gb, 1g.20gb) are told apart by their full names only.
    return "+".join(slices if len(set(slices)) == len(set(every)) else every)


def _slices(profile: str) -> tuple[int, str]:
    found = re.match(r"(\d+)g", profile)
    return (int(found[1]) if found else 0, profile)


def _asked_profiles(options: Mapping[str, str]) -> list[str]:
    asked = options.get("profiles") or options.get("profile", "auto")
    return [] if asked == "auto" else [in_words(asked)]


def in_words(value: str) -> str:
    """A recorded value; a tuple, `('3g', '1g')`, as `3g+1g`."""
    return "+".join(re.findall(r"[^\s(),']+", value)) if value.startswith("(") else value
