"""Messages of a study's Slurm tasks: why a task ended without a result, or which user of the GPU it waits for."""

from __future__ import annotations

import dataclasses
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from pipeline.base.system import secrets, squeue, words
from pipeline.launch.events import read_last_lines
from pipeline.record.shards.shard_states import ENDED, INCOMPLETE, LOST, NOT_BEGUN, RUNNING, Shard

UNFINISHED = (INCOMPLETE, LOST, NOT_BEGUN)
_NEVER_RAN = frozenset({"CANCELLED", "REVOKED"})
"""States of a task that may have ended before it began, without output."""
_SAYS_NOTHING = frozenset({"", "COMPLETED", "FAILED"})
_MOST_MESSAGES = 10
_NUMBER = re.compile(r"\d+")
START = "start "
"""First word of the output of each start of a task; a requeued task starts again."""

_START = re.compile(rf"{START}\d+ of shard \d+ on ")
_ERROR = re.compile(
    r"(?:[\w./-]+: )*(?:error|fatal|critical)\b.*:|\S+: line \d+: "  # of the project, Slurm and shells
    r"|[a-z_][\w.]*(?:Error|Exception|Interrupt|Exit)(?::|$)|Fatal Python error"  # the end of a traceback
    r"|interrupted by SIG|time_limit_s=\S+ is over",
    re.IGNORECASE,
)
_WAIT = re.compile(r"waiting for (?P<whom>.*); at most ")
_SCRIPT = re.compile(r"^\S*/slurm_script: ")
_TAIL_BYTES, _MAX_LENGTH = 1 << 16, 300


def add_messages(
    shards: Sequence[Shard], arrays: Collection[str], folder: str, end_states: Mapping[str, str]
) -> list[Shard]:
    """Return the shards of one GPU model, each with the last message of its newest started task in these arrays.

    `folder` is the folder of the tasks' output; empty if unknown.
    """
    newest_first = sorted(arrays, key=int, reverse=True)
    return [_add_message(shard, newest_first, folder, end_states) for shard in shards]


def describe(shards: Sequence[Shard]) -> Iterator[str]:
    """Yield one line per message with its shards; messages that differ only in numbers are combined."""
    alike: dict[tuple[str, str], list[Shard]] = defaultdict(list)
    for shard in shards:
        if shard.message:
            alike[shard.model, _NUMBER.sub("0", shard.message)].append(shard)
    has_models = len({shard.model for shard in shards}) > 1
    for (model, _), members in list(alike.items())[:_MOST_MESSAGES]:
        numbers = ", ".join(str(shard.number) for shard in members)
        of_model = f" ({model})" if has_models and model else ""
        output = f" (output: {members[0].output})" if members[0].output else ""
        subject = "study" if len(shards) == 1 else f"{'shard' if len(members) == 1 else 'shards'} {numbers}{of_model}"
        yield f"{subject}: {members[0].message}{output}"
    if remaining := list(alike.values())[_MOST_MESSAGES:]:
        yield f"{words.format_count(sum(map(len, remaining)), 'more shard')} with other messages; see --json"


def _add_message(shard: Shard, arrays: Sequence[str], folder: str, end_states: Mapping[str, str]) -> Shard:
    if shard.state == RUNNING and not shard.group and folder:
        outputs = (locate(Path(folder), task) for task in shard.tasks)
        return next(
            (
                dataclasses.replace(shard, message=f"waits for {whom}", output=str(output))
                for output in outputs
                if (whom := read_awaited(output))
            ),
            shard,
        )
    if shard.state not in UNFINISHED:
        return shard
    for array in arrays:
        task = squeue.name_task(array, shard.number)
        output = locate(Path(folder), task) if folder else None
        has_output = output is not None and output.exists()
        end_state = end_states.get(task, "")
        name = end_state.partition(" ")[0]
        if not has_output and (not name or name in _NEVER_RAN):
            continue
        error = read_last_error(output) if output is not None else ""
        parts = [*([] if name in _SAYS_NOTHING else [name]), *([error] if error else [])]
        return dataclasses.replace(
            shard,
            state=ENDED if shard.state == NOT_BEGUN else shard.state,
            message=": ".join(parts) or f"{end_state or 'ended'}; its output is empty",
            output=str(output) if has_output else "",
        )
    return shard


def locate(folder: Path, task: str) -> Path:
    """Return the output file of a task, such as `12_3`."""
    return folder / f"{task}.log"


def read_last_error(path: Path) -> str:
    """Return the last error line of a task's last start, or else its last line; empty if there is no output."""
    lines = _read_last_start(path)
    if errors := [line for line in lines if _ERROR.match(line.lstrip())]:
        return _shorten(errors[-1])
    return f"no error in its output, which ends with: {_shorten(lines[-1])}" if lines else ""


def read_awaited(path: Path) -> str:
    """Return the holder of the GPU that a task waits for, according to the task's last line; empty if none."""
    lines = _read_last_start(path)
    match = _WAIT.match(lines[-1]) if lines else None
    return _shorten(match["whom"]) if match else ""


def _read_last_start(path: Path) -> list[str]:
    lines = [line.decode(errors="replace").rstrip() for line in read_last_lines(path, _TAIL_BYTES)]
    starts = [number for number, line in enumerate(lines) if _START.match(line)]
    return [line for line in lines[starts[-1] + 1 if starts else 0 :] if line]


def _shorten(line: str) -> str:
    text = "".join(character if character.isprintable() else " " for character in line).strip()
    text = _SCRIPT.sub("batch script: ", text)
    return secrets.mask_text(text if len(text) <= _MAX_LENGTH else f"{text[:_MAX_LENGTH]}...")
