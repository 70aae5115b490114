"""The names of the tags on the MLflow runs of a study."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum

PREFIX = "collocation."
GROUP, JOB, REPORT = "group", "job", "report"
"""The kinds of runs: the values of `Tag.ROLE`."""


class Tag(StrEnum):
    """A tag. Facts of the study's provenance have further tags, see `fact_tag`."""

    ROLE = f"{PREFIX}role"
    STUDY = f"{PREFIX}study"
    SPOOL_ID = f"{PREFIX}spool_id"
    INDEX = f"{PREFIX}index"
    SIZE = f"{PREFIX}size"
    CO_RUNNER = f"{PREFIX}co_runner"
    BLOCK = f"{PREFIX}block"
    BASELINE_RUN = f"{PREFIX}baseline_run"  # number of a further run of a solo baseline in its block, from 2
    SHARD = f"{PREFIX}plan_shard"
    LAUNCH = f"{PREFIX}launch"  # spool id of the group whose processes an interleaved group was measured in
    SLICES = f"{PREFIX}slices"  # number of slices, and their length: `8 x 0.5 s`
    RATE_PATTERN = f"{PREFIX}rate_pattern"  # pattern of the rate of a script that was sought in its output, or empty
    TURNS = f"{PREFIX}turns"  # JSON: the rates of the jobs in the turns of a stressor (`base/domain/window.py`)
    TAKEN_OVER = f"{PREFIX}taken_over_by"  # JSON: the facts of each later plan that reuses the result
    CASE = f"{PREFIX}case"  # if a shard of the plan is one case of a block
    SCENARIO = f"{PREFIX}scenario"
    PROFILER = f"{PREFIX}profiler"
    DEVICE = f"{PREFIX}device"
    GPU_UUID = f"{PREFIX}gpu_uuid"
    SIMULATED = f"{PREFIX}simulated"
    DIGEST = f"{PREFIX}digest"
    KEY = f"{PREFIX}key"  # the digest without the block
    PROGRAM_DIGEST = f"{PREFIX}program_digest"
    ACCEPTS_ENVIRONMENT = f"{PREFIX}accepts_environment"
    PROGRAM_REPOSITORY = f"{PREFIX}program_repository"
    PROGRAM_CHANGED = f"{PREFIX}program_changed"
    SETTINGS = f"{PREFIX}settings"
    PLANNED = f"{PREFIX}planned"  # JSON: `settings` and `options` of the group
    WORKLOAD_DIGEST = f"{PREFIX}workload_digest"
    RESULT = f"{PREFIX}result"
    REASON = f"{PREFIX}reason"
    INVALID = f"{PREFIX}invalid"  # reason why a row is excluded from comparisons; read by `base/domain/marks.py`
    FLAG = f"{PREFIX}flag"  # notes on the figures of a row
    FIRST_LOSSES = f"{PREFIX}first_losses"  # JSON, like `RATES`: per job, by index
    FIRST_LOSS_BITS = f"{PREFIX}first_loss_bits"  # JSON: per job, by index, float32 in hexadecimal
    FIRST_OUTPUTS = f"{PREFIX}first_outputs"  # JSON: per job, by index
    RATES = f"{PREFIX}rates"
    FIGURES = f"{PREFIX}figures"
    ONE_PROCESS = f"{PREFIX}one_process"  # how many jobs share a process, and which figures are the process's
    SHARED_FILES = f"{PREFIX}shared_files"
    ABSENT_FIGURES = f"{PREFIX}absent_figures"  # reason why figures without readings in the full window are missing
    LEFT_OUT = f"{PREFIX}left_out"
    DAMAGED = f"{PREFIX}damaged_events"
    NOT_FINITE = f"{PREFIX}not_finite"
    PACK = f"{PREFIX}pack"  # what a pack did and what it gained
    NO_REPORT = f"{PREFIX}no_report"
    EXIT_STATUS = f"{PREFIX}exit_status"
    PID = f"{PREFIX}pid"
    START_NS = f"{PREFIX}start_ns"
    END_NS = f"{PREFIX}end_ns"
    WINDOW_START_NS = f"{PREFIX}window_start_ns"
    WINDOW_END_NS = f"{PREFIX}window_end_ns"

    # MLflow's own tags.
    PARENT_RUN = "mlflow.parentRunId"
    RUN_NAME = "mlflow.runName"
    SOURCE = "mlflow.source.name"
    GIT_COMMIT = "mlflow.source.git.commit"
    USER = "mlflow.user"
    DESCRIPTION = "mlflow.note.content"


def fact_tag(name: str) -> str:
    """Return the tag of a fact."""
    return PREFIX + name


def listener_tag(name: str) -> str:
    """Return the tag with the reason why a listener is missing, or with the source that it has chosen."""
    return f"{PREFIX}listener.{name}"


def read_facts(tags: Mapping[str, str]) -> dict[str, str]:
    """Return the project's tags of a run, by their names without the prefix."""
    return {key.removeprefix(PREFIX): value for key, value in tags.items() if key.startswith(PREFIX)}


_NOT_SHOWN = "mlflow."
"""Prefix of tags that MLflow's pages do not show."""
_OF_PROGRAMS = frozenset(
    {
        *(Tag.SPOOL_ID, Tag.DIGEST, Tag.KEY, Tag.PROGRAM_DIGEST, Tag.WORKLOAD_DIGEST, Tag.SETTINGS, Tag.PLANNED),
        *(Tag.FIRST_LOSSES, Tag.FIRST_LOSS_BITS, Tag.FIRST_OUTPUTS, Tag.RATES, Tag.TURNS, Tag.FIGURES, Tag.TAKEN_OVER),
        *map(fact_tag, ("plan", "plan_any_gpu")),
    }
)
"""Tags with digests and JSON, which are hidden because a run's page would show them above its metrics."""
_DIGEST_OF_ENVIRONMENT = re.compile(re.escape(PREFIX) + r"environment_\w+_digest")


def stored_name(tag: str) -> str:
    """Return the stored name of a tag: MLflow does not show tags for programs."""
    is_of_programs = tag in _OF_PROGRAMS or _DIGEST_OF_ENVIRONMENT.fullmatch(tag) is not None
    return f"{_NOT_SHOWN}{tag}" if is_of_programs else str(tag)
