"""The end of a job's output as readable lines, and the Python exceptions in them: type, message, causes and contexts.

Lines have no colours, progress bars and prefixes of ranks. The readable tracebacks are those of the interpreter, rich,
IPython, loguru, torchrun, torch's data loaders and Ray. A traceback may be in a box, in an exception group, after a
prefix, or within the message of another exception.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
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


_HEADER = re.compile(r"^(?P<before>.*?)(?<!C\+\+ )Traceback \(most recent call last\)")
_FRAME = re.compile(r'^\s+File "')
_IN_BOX = re.compile(r"^\s*(?:[│┃╭╰┏┗├└|>]|-+> |File )")  # of rich, loguru, IPython
_RAISED = re.compile(r"^([A-Za-z_][\w.<>]*(?:\([\w.]+\))?)(?::(?:\s+(.*))?|\s*)$")
_NO_TYPES = frozenset(("INFO", "WARNING", "WARN", "ERROR", "DEBUG", "CRITICAL", "FATAL", "Error", "Warning", "Process"))
_ERROR_TYPE = re.compile(r"(?:Error|Exception|Interrupt|Exit)$")
_BAR = re.compile(r"^( {2,})(?:\| ?|\+ (?=Exception Group))")
_MEMBER = re.compile(r"^\s*\+-[+-]*-+ (?:\d+|\.\.\.) -+$")
_CAUSE = (
    "The above exception was the direct cause of the following",
    "During handling of the above exception, another",
)
_ASIDE = re.compile(
    r"^(?:Exception ignored (?:in|on|while)\b|Error in (?:atexit|sys\.\w+)|--- Logging error ---|"
    r"Exception in (?:thread|callback)\b|Task exception was never retrieved)"
)
_MAX_MESSAGE = 12


@dataclass(slots=True)
class Raised:
    """An exception that was printed with its traceback.

    Attributes:
        kind: printed type of the exception.
        message: lines of the message, without blank lines.
        source: rank or process that printed the exception, if known.
        first, last, end: numbers of the traceback's first line, the exception's own line, and the message's last line.
        is_aside: whether the exception ended no program: in a thread, a destructor, a callback, or at exit.
        before: cause or context of the exception.
        members: exceptions of an exception group.
    """

    kind: str
    message: list[str]
    first: int
    last: int
    end: int
    source: str = ""
    is_aside: bool = False
    before: Raised | None = None
    members: list[Raised] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The type without its module."""
        return self.kind.partition("(")[0].rpartition(".")[2]

    def iterate_chain(self) -> Iterator[Raised]:
        """Yield this exception, its members, and its causes, the latest first."""
        pending = [self]
        while pending:
            raised = pending.pop()
            yield raised
            pending += [raised.before] if raised.before is not None else []
            pending += reversed(raised.members)


def find_exceptions(lines: Sequence[Line]) -> list[Raised]:
    """Find the exceptions in lines, in the order of the lines, each with its causes."""
    readers = {line.source: _Reader(line.source) for line in lines}
    for number, line in enumerate(lines):
        readers[line.source].read(number, line.text)
    exceptions = (raised for reader in readers.values() for raised in reader.list_exceptions())
    return sorted(exceptions, key=lambda raised: raised.last)


@dataclass(slots=True)
class _Open:
    """A traceback whose exception line has not been read yet.

    Attributes:
        first: number of the traceback's first line.
        before: text before the header in the header's line.
        has_header: whether the traceback has a header; without one, it began with a frame.
        num_read: number of lines read after the first line.
    """

    first: int
    before: str = ""
    has_header: bool = True
    is_aside: bool = False
    num_read: int = 0

    def strip_prefix(self, text: str) -> str:
        """Remove the prefix of each line, unless only the first line has one."""
        prefix = self.before.rstrip()
        if self.num_read == 0 and prefix and not text.startswith(prefix):  # a progress bar, or IPython's type
            self.before = self.before[: len(self.before) - len(self.before.lstrip())]
        self.num_read += 1
        return text.removeprefix(self.before.rstrip()).removeprefix(" ") if self.before.strip() else text

    def is_within(self, text: str) -> bool:
        indent = len(self.before) - len(self.before.lstrip())
        return not text.strip() or len(text) - len(text.lstrip()) > indent or bool(_IN_BOX.match(text))


class _Reader:
    def __init__(self, source: str) -> None:
        self._source = source
        self._exceptions: list[Raised] = []
        self._open: _Open | None = None
        self._speaks: Raised | None = None  # exception whose message may continue in the next line
        self._before: Raised | None = None
        self._was_aside = False

    def read(self, number: int, text: str) -> None:
        bar = _BAR.match(text)
        depth = len(bar[1]) // 2 if bar else 0
        text = text[bar.end() :] if bar else text
        if (header := _HEADER.match(text)) is not None:
            self._open = _Open(number, header["before"], is_aside=self._was_aside)
        elif _MEMBER.match(text):
            self._open = _Open(number)
        elif self._open is None and _FRAME.match(text):
            self._open = _Open(number, has_header=False)
        elif self._open is not None:
            self._read_traceback(self._open, number, text, depth)
        elif text.startswith(_CAUSE) and (siblings := self._select_siblings(depth)):
            self._before, self._speaks = siblings.pop(), None
        else:
            self._read_message(number, text)
        if text.strip():
            self._was_aside = bool(_ASIDE.match(text.strip()))

    def list_exceptions(self) -> list[Raised]:
        """Return the exceptions, including a cause whose effect was not printed."""
        return [*self._exceptions, self._before] if self._before is not None else self._exceptions

    def _select_siblings(self, depth: int) -> list[Raised]:
        """Return the list to which an exception behind `depth` bars belongs; a group itself is behind one bar."""
        siblings = self._exceptions
        for _ in range(depth - 1):
            siblings = siblings[-1].members if siblings else siblings
        return siblings

    def _read_traceback(self, traceback: _Open, number: int, text: str, depth: int) -> None:
        text = traceback.strip_prefix(text)
        if traceback.is_within(text):
            return
        raised = _RAISED.match(text.strip())
        if not traceback.has_header and (raised is None or not _ERROR_TYPE.search(raised[1])):
            self._open = None
            self._read_message(number, text)
        elif raised is not None and raised[1] not in _NO_TYPES and not Line(text).is_footer:
            message = [raised[2]] if raised[2] else []
            is_aside = traceback.is_aside
            new = Raised(raised[1], message, traceback.first, number, number, self._source, is_aside, self._before)
            self._select_siblings(depth).append(new)
            self._speaks, self._before, self._open = new, None, None

    def _read_message(self, number: int, text: str) -> None:
        """Read a line that may belong to a message; a blank line ends a complete message."""
        if self._speaks is None:
            return
        message = self._speaks.message
        if text.strip() and not Line(text).is_footer and len(message) < _MAX_MESSAGE:
            message.append(text.strip())
            self._speaks.end = number
        elif message and not message[-1].endswith(":"):
            self._speaks = None
