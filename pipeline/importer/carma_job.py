"""Job files of CARMA, the collocation-aware resource manager by radT's authors.

The lines of a file are: `conda activate NAME`, the command, the summary of the model, the data set, the batch size, the
mode, the number of GPUs and, optionally, the job's memory: one measured and three estimated amounts. Lines that begin
with `#` are comments. Source: `src/server.py` and `workloads/*.rad` of itu-rad/CARMA.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.base.system import user_command
from pipeline.base.system.errors import ConfigError

EXCLUSIVE, COLLOCATED = "exclusive", "collocated"
_MODES = {EXCLUSIVE: EXCLUSIVE, **dict.fromkeys((COLLOCATED, "collocate", "collocation", "shared"), COLLOCATED)}
MEASURED = "measured"
_MEMORY = (MEASURED, "Horus", "FakeTensor", "GPUMemNet")
"""Sources of a job's memory, in the order of their lines. Unit: MiB."""
_FIELDS = ("the summary of its model", "its data set", "its batch size", "its mode", "its number of GPUs")
_ACTIVATE = re.compile(r"(?:conda|source|mamba|micromamba|\.)\s+(?:\S*/)?activate\s+(?P<name>\S+)")
_ASSIGNMENT = re.compile(r"(?P<name>[A-Za-z_]\w*)=.*")
_SHELL_TOKEN = re.compile(r"^[;&|<>()]+$|[`$]")
_MOST_BYTES = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job file.

    Attributes:
        path: path of the file.
        environment: name or path of the job's conda environment; empty if the job activates none.
        script: path of the job's Python script.
        args: arguments of the script.
        model: file name of the model's summary, without suffix.
        dataset: name of the data set.
        batch_size: batch size.
        mode: `exclusive` or `collocated`.
        memory_mib: memory in MiB by source: measured, or an estimator's name.
        dropped: variables that the command sets and the import leaves out, because the group determines the device.
        obstacle: reason for which the job cannot be imported; else empty.
    """

    path: Path
    environment: str
    script: str
    args: tuple[str, ...]
    model: str
    dataset: str
    batch_size: int
    mode: str
    memory_mib: tuple[tuple[str, float], ...]
    dropped: tuple[str, ...]
    obstacle: str


def read(path: Path) -> Job:
    """Read a job file.

    Raises:
        ConfigError: the file cannot be read, or is not a job file.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
        text = content.decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror}; name a readable job file of CARMA (.rad)"
        ) from error
    except UnicodeDecodeError as error:
        raise _make_error(path, "it is not UTF-8 text") from error
    if len(content) > _MOST_BYTES:
        raise _make_error(path, f"it is longer than {_MOST_BYTES >> 10} KiB")
    if not all(character.isprintable() or character in "\n\r\t" for character in text):
        raise _make_error(path, "it is not text")
    try:
        return _parse_job(path, [line.strip() for line in text.splitlines() if not line.lstrip().startswith("#")])
    except ValueError as error:
        raise _make_error(path, str(error)) from error


def _make_error(path: Path, reason: str) -> ConfigError:
    return ConfigError(
        f"{path} is not a job file of CARMA: {reason}; write these lines: conda activate NAME, command, model, data "
        "set, batch size, exclusive or collocated, number of GPUs, measured and estimated memory in MB"
    )


def _parse_job(path: Path, lines: Sequence[str]) -> Job:
    text = "\n".join(lines).strip().split("\n")
    environment = ""
    if activated := _ACTIVATE.fullmatch(text[0]):
        environment, text = activated["name"], text[1:]
    if not text or "python" not in text[0]:
        raise ValueError(f"its command {_shorten(text[0] if text else '')} does not run python")
    command, *fields = text
    if len(fields) < len(_FIELDS):
        raise ValueError(f"it has no line for {_FIELDS[len(fields)]}")
    model, dataset, batch_size, mode, num_gpus, *memory = fields
    if len(memory) > len(_MEMORY):
        raise ValueError(f"it has a line after its memory: {_shorten(memory[len(_MEMORY)])}")
    if mode.lower() not in _MODES:
        raise ValueError(f"its mode {_shorten(mode)} is neither {EXCLUSIVE} nor {COLLOCATED}")
    gpus = _parse_whole("number of GPUs", num_gpus)
    obstacle = f"the job uses {gpus} GPUs; only jobs with one GPU are supported" if gpus > 1 else ""
    dropped: tuple[str, ...] = ()
    script, args = "", dropped
    try:
        dropped, script, args = _parse_program(command)
    except ValueError as error:
        obstacle = str(error)
    return Job(
        path=path,
        environment=environment,
        script=script,
        args=args,
        model=Path(model).stem,
        dataset=dataset,
        batch_size=_parse_whole("batch size", batch_size),
        mode=_MODES[mode.lower()],
        memory_mib=tuple((source, _parse_amount(source, line)) for source, line in zip(_MEMORY, memory, strict=False)),
        dropped=dropped,
        obstacle=obstacle,
    )


def _parse_program(command: str) -> tuple[tuple[str, ...], str, tuple[str, ...]]:
    """Return the dropped variables of a command, its script and its arguments."""
    tokens = shlex.shlex(command, posix=True, punctuation_chars=True)
    tokens.whitespace_split = True
    if shell_token := next((token for token in tokens if _SHELL_TOKEN.search(token)), ""):
        raise ValueError(f"its command needs a shell for {_shorten(shell_token)}; move the command into a script")
    words = shlex.split(command)
    names = []
    while words and (assignment := _ASSIGNMENT.fullmatch(words[0])):
        if not assignment["name"].startswith("CUDA_VISIBLE"):
            raise ValueError(f"its command sets {assignment['name']}; set the variable in a script")
        names.append(assignment["name"])
        del words[0]
    script, args = user_command.parse_program(words, "its command")
    return tuple(names), script, tuple(args)


def _parse_whole(what: str, text: str) -> int:
    if not re.fullmatch(r"[1-9]\d{0,8}", text):
        raise ValueError(f"its {what} {_shorten(text)} is not a whole number above 0")
    return int(text)


def _parse_amount(source: str, text: str) -> float:
    try:
        amount = float(text)
    except ValueError:
        amount = math.nan
    if not (math.isfinite(amount) and amount >= 0):
        raise ValueError(f"its memory ({source}) {_shorten(text)} is not a number of MB")
    return amount


def _shorten(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}...")
