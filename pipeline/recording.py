"""Recorded samples as a replay takes them: which GPU they are of, which instances, and whether a study has the same."""

from __future__ import annotations

import hashlib
import math
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.base import mig_names, mig_table, regular_files
from pipeline.base.errors import ConfigError
from pipeline.base.factory import instance
from pipeline.base.paths import expanded
from pipeline.base.protocols import Sharing
from pipeline.base.records import Device, Group
from pipeline.prepare.mig import existing
from pipeline.prepare.sharing.mig import Mig
from pipeline.record import series
from pipeline.record.series import About, Series, SeriesKey
from pipeline.simulation.machine.readings import Quantity
from pipeline.simulation.machine.replay import Recorded, Subject

_KEY = "gpu.replay"
# Whose samples of one quantity are taken where several recorded it.
_SOURCES = ("nvml", "gpm", "smi", "dcgm")
_DIGITS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A recording that can be replayed.

    Attributes:
        given: the path, as it was given.
        digest: the first digits of that of the file.
        series: of the whole GPU and of its GPU instances.
    """

    given: str
    digest: str
    about: About
    series: tuple[Recorded, ...]

    @property
    def name(self) -> str:
        """What tells it from others: `samples.parquet 1a2b3c4d`."""
        return f"{Path(self.given).name} {self.digest}"


def read(given: str) -> Recording:
    """The recording in a file that `gpu.replay` names.

    Raises:
        ConfigError: there is no such file, it is no table of samples, or nothing of it can be replayed.
    """
    path = expanded(_KEY, given).resolve()
    wanted = f"{_KEY}={given}: give the artifact samples.parquet of a group that was measured on a real GPU; "
    try:
        digest = hashlib.sha256(regular_files.read_bytes(path)).hexdigest()[:_DIGITS]
    except OSError as error:
        raise ConfigError(f"{wanted}{path} cannot be read: {error.strerror}") from error
    try:
        about = series.read_about(path)
        samples = series.read_table(path, [quantity.value for quantity in Quantity])
    except (OSError, ValueError, KeyError, TypeError, NotImplementedError) as error:
        first = (str(error).splitlines() or [""])[0]
        raise ConfigError(f"{wanted}this is none, or a damaged one: {first}") from error
    if about is None:
        raise ConfigError(f"{wanted}this one does not say of which GPU it is, as those of earlier versions")
    if about.replay:
        raise ConfigError(f"{wanted}this one was itself recorded during a replay, of {about.replay}")
    recorded = tuple(_recorded(samples, about))
    if not recorded:
        raise ConfigError(f"{wanted}this one, of {about.device}, has no power, energy, clocks or counters of a GPU")
    return Recording(given=given, digest=digest, about=about, series=recorded)


def _recorded(samples: dict[SeriesKey, Series], about: About) -> Iterable[Recorded]:
    """The series that a driver could tell, each once, with instants from the first of all."""
    subjects = dict(_subjects(about))
    best: dict[tuple[Subject, Quantity], tuple[int, Series]] = {}
    for key, one in samples.items():
        if key.job is not None or key.source not in _SOURCES or key.gi_id not in subjects:
            continue
        whose, rank, finite = (subjects[key.gi_id], Quantity(key.field)), _SOURCES.index(key.source), _finite(one)
        if finite.t_ns and (whose not in best or rank < best[whose][0]):
            best[whose] = rank, finite
    begin_ns = min((min(one.t_ns) for _, one in best.values()), default=0)
    for (subject, quantity), (_, one) in best.items():
        pairs = sorted(zip(one.t_ns, one.values, strict=True))
        t_ns, values = array("q", (t - begin_ns for t, _ in pairs)), array("d", (value for _, value in pairs))
        yield Recorded(subject, quantity, t_ns, values)


def _finite(one: Series) -> Series:
    """The samples of a series that are numbers."""
    pairs = [(t, value) for t, value in zip(one.t_ns, one.values, strict=True) if math.isfinite(value)]
    return Series(array("q", (t for t, _ in pairs)), array("d", (value for _, value in pairs)))


def _subjects(about: About) -> Iterable[tuple[int | None, Subject]]:
    """Whom the samples of each id are of: the n-th instance of a profile, in the order of ids."""
    yield None, Subject()
    counted: Counter[str] = Counter()
    for gi_id, profile in sorted(about.instances.items()):
        yield gi_id, Subject(profile, counted[profile])
        counted[profile] += 1


def refuse_other_model(recording: Recording, model: mig_table.Model) -> None:
    """Raise ConfigError if a recording is of another model of GPU than the one to simulate."""
    product = recording.about.device.partition(" MIG ")[0]
    if mig_table.model_called(product) != model.name:
        raise ConfigError(
            f"{_KEY}={recording.given} was recorded on {product}, and the simulated GPU is {model.product}: choose the "
            "model that was recorded, or a recording of this one"
        )


def refuse_other_layout(recording: Recording, groups: Sequence[Group]) -> None:
    """Raise ConfigError if no group divides the GPU as it was divided when the recording was made."""
    layouts = dict.fromkeys(_layout(group) for group in groups if group.skip_reason is None)
    recorded = tuple(sorted(recording.about.instances.values(), reverse=True))
    if recorded not in layouts:
        have = "; ".join(map(_in_words, layouts)) or "none that can run"
        raise ConfigError(
            f"{_KEY}={recording.given} was recorded on {_in_words(recorded)}, which no group of this study has; they "
            f"have {have}: choose a recording of one of these, or add a group of that layout"
        )


def _layout(group: Group) -> tuple[str, ...]:
    """The profiles of the GPU instances that a group's jobs run on, the largest first; none for the whole GPU."""
    device: Device = group.device
    if device.parent is not None:
        return (mig_names.split(existing.profile_of(device))[0],)
    sharing: Sharing = instance(group.sharing)
    return tuple(sorted(sharing.instances(group), reverse=True)) if isinstance(sharing, Mig) else ()


def _in_words(layout: Sequence[str]) -> str:
    """`3g.40gb + 2x 1g.10gb`, or the undivided GPU."""
    counted = Counter(layout).items()
    return " + ".join(profile if n == 1 else f"{n}x {profile}" for profile, n in counted) or "the undivided GPU"
