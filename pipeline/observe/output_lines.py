"""The end of a job's output as readable lines, without colours, progress bars and prefixes of ranks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from pipeline.launch.events import read_last_lines

_TAIL_BYTES = 1 << 18
_MAX_LINES = 5000
_MAX_LENGTH = 2000  # of a line
_ESCAPES = re.compile(
    rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]"
)
_TIME = re.compile(r"^\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?:?(?: |$)")
# torchrun and its --tee, Open MPI's --tag-output, srun --label, Ray, docker compose
_SOURCE = re.compile(
    r"^(?:\[(?:rank|default|trainer|worker|role_)\w*\d+\]: ?|\[\d+,\d+\]<std(?:err|out)>: ?|\s*\d+: (?=\S)|"
    r"\([\w. -]*\bpid=\d+[^)]*\) ?|[\w.-]+-\d+ +\| ?)"
)
_LOGGER = re.compile(r"^(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[[\w./-]+:\d+\] ?")  # vLLM
_PROGRESS = re.compile(r".*\d+%\|.*\||.*\d \[[\d:]+[<,].*\]$|.*[━╸╺]{3}")
_RULER = re.compile(r"^[\W_]{3,}$")

_FOOTERS = re.compile(
    "|".join(
        (
            # Hydra, wandb and other trackers
            r"Set the environment variable HYDRA_FULL_ERROR=1|Error executing job with overrides|wandb:|swanlab:|"
            r"COMET (?:INFO|WARNING)|ClearML |\[neptune\]|\W*View (?:run|experiment) ",
            # torchrun, torch
            r"(?:ERROR|WARNING|INFO):torch\.distributed|(?:Failures|Root Cause \(first observed failure\)):|"
            r"<NO_OTHER_FAILURES>|\[\d+\]:$|(?:time|host|rank|exitcode|error_file|traceback) *: |\S+ FAILED$|"
            r"\[(?:rank\d+\]:\s*\[)?[WI](?:\d| \S+\.(?:cpp|py))|[EWI]\d{4,8} \d\d:\d\d:\d\d|frame #\d+:|"
            r"Exception raised from ",
            # Lightning, deepspeed
            r"\[rank: \d+\] Child process with PID|`Trainer\.\w+` stopped|(?:\[\w+\] )?\[(?:launch|runner)\.py:\d+",
            # warnings of Python, of its interpreter at exit, of TensorFlow and JAX
            r"\S+:\d+: \w*Warning: |warnings\.warn\(|\S*resource_tracker: |[IW] (?:tensorflow|external)/|"
            r"(?:WARNING|INFO):tensorflow:|WARNING: All log messages before absl|Extension modules: |"
            r"For simplicity, JAX has removed its internal frames|The stack trace below excludes JAX-internal frames",
            # Slurm, MPI, make, conda, time
            r"srun: |slurmstepd: |mpi(?:run|exec)\b|prterun|Primary job +terminated normally|"
            r"a non-zero exit code\. Per user-direction|thus causing$|the job to be terminated\.|Process name: |"
            r"Exit code: +\d+|MPI_ABORT was invoked|NOTE: invoking MPI_ABORT|with errorcode -?\d+\.$|"
            r"You may or may not see output from|exactly when Open MPI kills|application called MPI_Abort\(|"
            r"\[[\w.-]+:\d+\] (?:\*\*\*|Signal|Failing at|\[ ?\d+\])|=   [A-Z][A-Z ]+|YOUR APPLICATION TERMINATED WITH|"
            r"This typically refers to a problem with|Please see the FAQ page|make(?:\[\d+\])?: |"
            r"error: Recipe |ERROR conda\.cli\.main_run|Command exited with non-zero status|"
            r"(?:Command being timed|User time|System time|Percent of CPU|Elapsed \(wall|Average |Maximum resident|"
            r"Major \(req|Minor \(recl|Voluntary|Involuntary|Swaps|File system|Socket mess|Signals deliv|Page size|"
            r"Exit status).*: \S+$|(?:real|user|sys)\s+\d+m",
            # GROMACS, LAMMPS
            r"For more information and tips for troubleshooting|website at http|Last (?:command|input line): |"
            # the shell's line about a program that a signal ended
            r"(?:\S+: line \d+: +)?(?:\d+ +)?(?:Killed|Terminated|Aborted|Segmentation fault|Bus error|"
            r"Floating point exception|Illegal instruction)\b",
        )
    )
)
"""Beginnings of lines that launchers print after the program's own error and that do not explain the error."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of output without its prefix and trailing spaces; `source` is the rank or process in the prefix."""

    text: str
    source: str = ""

    @property
    def is_blank(self) -> bool:
        return not self.text.strip()

    @property
    def is_indented(self) -> bool:
        return self.text[:1].isspace()

    @property
    def is_footer(self) -> bool:
        """True if the line does not describe an error: a wrapper's line, a ruler, a progress bar, a warning."""
        text = self.text.strip()
        return bool(_PROGRESS.match(text) or _RULER.match(text) or _FOOTERS.match(text))

    @property
    def is_telling(self) -> bool:
        """True if the line may describe an error; an indented line belongs to the line above it."""
        return not self.is_footer or (self.is_indented and not _PROGRESS.match(self.text))


def read_end(path: Path) -> list[Line]:
    """Read the lines at the end of a file; none if the file cannot be read."""
    return split_lines(b"\n".join(read_last_lines(path, _TAIL_BYTES)[-_MAX_LINES:]).decode(errors="replace"))


def split_lines(text: str) -> list[Line]:
    """Split output into lines; text that a carriage return overwrites is a separate line."""
    cleaned = _ESCAPES.sub(b"", text.encode(errors="replace")).decode()
    return [_parse_line(piece) for piece in re.split(r"\r*\n|\r+", cleaned)] if cleaned else []


def _parse_line(text: str) -> Line:
    text = _TIME.sub("", text[:_MAX_LENGTH], count=1)
    source = _SOURCE.match(text)
    text = text[source.end() :] if source else text
    return Line(_LOGGER.sub("", text, count=1).rstrip(), source[0].strip() if source else "")
