"""Messages of the Slurm tasks of a study: why one ended without a result, and for whom one waits."""

from __future__ import annotations

import dataclasses
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from pipeline.base.system import squeue, words
from pipeline.record import task_output
from pipeline.record.shards.shard_states import ENDED, INCOMPLETE, LOST, NOT_BEGUN, RUNNING, Unit

_LEFT = (INCOMPLETE, LOST, NOT_BEGUN)
_NEVER_RAN = frozenset({"CANCELLED", "REVOKED"})
"""States of a task that has no output where it was ended before it began."""
_SAYS_NOTHING = frozenset({"", "COMPLETED", "FAILED"})
_MOST_MESSAGES = 10
_NUMBER = re.compile(r"\d+")


def has_unexplained(units: Sequence[Unit]) -> bool:
    """Return whether a task of these units may have ended without a result."""
    return any(unit.state in _LEFT for unit in units)


def add_messages(
    units: Sequence[Unit], arrays: Collection[str], folder: str, end_states: Mapping[str, str]
) -> list[Unit]:
    """Return the units, each with the last message of the newest of its tasks in these arrays that began.

    Args:
        units: of one GPU model.
        arrays: the job arrays that may have tasks of them.
        folder: of the tasks' output; empty if it is not known.
        end_states: by task, as `squeue.list_end_states` has them.
    """
    newest_first = sorted(arrays, key=int, reverse=True)
    return [_with_message(unit, newest_first, folder, end_states) for unit in units]


def describe(units: Sequence[Unit]) -> Iterator[str]:
    """Yield a line for each message of these units, with the units that have it; alike are those but for numbers."""
    alike: dict[tuple[str, str], list[Unit]] = defaultdict(list)
    for unit in units:
        if unit.message:
            alike[unit.model, _NUMBER.sub("0", unit.message)].append(unit)
    has_models = len({unit.model for unit in units}) > 1
    for (model, _), members in list(alike.items())[:_MOST_MESSAGES]:
        numbers = ", ".join(str(unit.number) for unit in members)
        of_model = f" ({model})" if has_models and model else ""
        output = f" (output: {members[0].output})" if members[0].output else ""
        yield f"{'unit' if len(members) == 1 else 'units'} {numbers}{of_model}: {members[0].message}{output}"
    if rest := list(alike.values())[_MOST_MESSAGES:]:
        yield f"{words.counted(sum(map(len, rest)), 'more unit')} with other messages: --json has all"


def _with_message(unit: Unit, arrays: Sequence[str], folder: str, end_states: Mapping[str, str]) -> Unit:
    if unit.state == RUNNING and not unit.group and folder:
        outputs = (task_output.locate(Path(folder), task) for task in unit.tasks)
        return next(
            (
                dataclasses.replace(unit, message=f"waits for {whom}", output=str(output))
                for output in outputs
                if (whom := task_output.read_awaited(output))
            ),
            unit,
        )
    if unit.state not in _LEFT:
        return unit
    for array in arrays:
        task = squeue.name_task(array, unit.number)
        output = task_output.locate(Path(folder), task) if folder else None
        has_output = output is not None and output.exists()
        end_state = end_states.get(task, "")
        name = end_state.partition(" ")[0]
        if not has_output and (not name or name in _NEVER_RAN):
            continue
        error = task_output.read_last_error(output) if output is not None else ""
        parts = [*([] if name in _SAYS_NOTHING else [name]), *([error] if error else [])]
        return dataclasses.replace(
            unit,
            state=ENDED if unit.state == NOT_BEGUN else unit.state,
            message=": ".join(parts) or f"{end_state or 'ended'}, and its output is empty",
            output=str(output) if has_output else "",
        )
    return unit
