"""Slurm job arrays of a study, stored in a tag of its experiment because a pending array has no run yet."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from pipeline.base.domain.tags import PREFIX
from pipeline.base.system import user_command
from pipeline.record.store.content import split_command
from pipeline.record.store.local_store import Store, translate_errors
from pipeline.record.store.results import find_experiment
from pipeline.record.store.store_access import open_if_there

TAG = f"{PREFIX}submitted"
_MOST_ARRAYS = 50  # a tag of an experiment may have 5,000 characters


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """The job arrays of one study, oldest first.

    Attributes:
        time_ms: time of the newest submission.
        folder: folder of the tasks' output files; empty if unknown.
    """

    command_line: str
    plan_any_gpu: str = ""
    num_shards: int
    cluster: str
    arrays: Sequence[str]
    time_ms: int
    folder: str = ""

    @property
    def study(self) -> str:
        """Portion of the command line that is equal in all starts of the study."""
        return identify_study(self.command_line)


def identify_study(command_line: str) -> str:
    """Return the portion of a recorded command line that is equal in all starts of its study; empty if truncated."""
    typed = split_command(command_line)
    if not typed:
        return ""
    options, arguments = user_command.drop_keys(typed, user_command.OF_LAUNCHERS)
    return shlex.join([*options, *arguments])


def note(store: Store, experiment: str, new: Submission) -> None:
    """Store a submission: add its arrays to the arrays of the same study, or replace the arrays of another study."""
    earlier = _read(store, experiment)
    if earlier is not None and (earlier.study, earlier.cluster) == (new.study, new.cluster):
        new = dataclasses.replace(new, arrays=[*earlier.arrays, *new.arrays][-_MOST_ARRAYS:])
    with translate_errors(f"could not record the job arrays in {store.uri}"):
        store.client.set_experiment_tag(store.open_experiment(experiment), TAG, json.dumps(dataclasses.asdict(new)))


def read(uri: str, experiment: str) -> Submission | None:
    """Return the newest submission of an experiment on a server; `None` if unknown.

    Raises:
        TrackingError: the server is not readable.
    """
    store = open_if_there(uri)
    return None if store is None else _read(store, experiment)


def _read(store: Store, experiment: str) -> Submission | None:
    stored = find_experiment(store, experiment)
    if stored is None or TAG not in stored.tags:
        return None
    with suppress(ValueError, TypeError):  # written by another version
        return Submission(**json.loads(stored.tags[TAG]))
    return None
