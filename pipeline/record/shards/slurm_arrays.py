"""The job arrays that Slurm was given for a study, as a tag of its experiment: no row knows one that only waits."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from pipeline.base.domain.tags import PREFIX
from pipeline.base.system import user_command
from pipeline.record.store.content import words_of
from pipeline.record.store.existing import open_if_there
from pipeline.record.store.local import Store, refused_by
from pipeline.record.store.results import find_experiment

TAG = f"{PREFIX}submitted"
_MOST_ARRAYS = 50  # a tag holds 5,000 characters


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """The arrays of one study, oldest first.

    Attributes:
        command_line: that began it, as it is recorded.
        plan_any_gpu: the digest of its plan without the GPU models.
        cluster: whose Slurm has them.
        time_ms: when the newest was submitted, since the epoch.
        folder: of the output of its tasks.
    """

    command_line: str
    plan_any_gpu: str = ""
    num_units: int
    cluster: str
    arrays: Sequence[str]
    time_ms: int
    folder: str = ""

    @property
    def study(self) -> str:
        """What all starts of the study have in common."""
        return study_of(self.command_line)


def study_of(command_line: str) -> str:
    """What of a recorded command line is the same in each start of its study; empty if it was too long to be kept."""
    typed = words_of(command_line)
    if not typed:
        return ""
    kept, theirs = user_command.drop_keys(typed, user_command.OF_LAUNCHERS)
    return shlex.join([*kept, *theirs])


def note(store: Store, experiment: str, new: Submitted) -> None:
    """Add arrays to those of the same study, or put them in the place of another study's."""
    known = _of(store, experiment)
    if known is not None and (known.study, known.cluster) == (new.study, new.cluster):
        new = dataclasses.replace(new, arrays=[*known.arrays, *new.arrays][-_MOST_ARRAYS:])
    with refused_by(f"the job arrays cannot be noted in {store.uri}"):
        store.client.set_experiment_tag(store.experiment_id(experiment), TAG, json.dumps(dataclasses.asdict(new)))


def of(uri: str, experiment: str) -> Submitted | None:
    """What Slurm was given last for an experiment of a server; `None` if that is unknown.

    Raises:
        TrackingError: the server cannot be read.
    """
    store = open_if_there(uri)
    return None if store is None else _of(store, experiment)


def _of(store: Store, experiment: str) -> Submitted | None:
    found = find_experiment(store, experiment)
    if found is None or TAG not in found.tags:
        return None
    with suppress(ValueError, TypeError):  # of another version
        return Submitted(**json.loads(found.tags[TAG]))
    return None
