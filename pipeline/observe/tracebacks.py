"""Python's exceptions in the output of a job: type, message, causes and contexts.

The readable formats are those of the interpreter, rich, IPython, loguru, torchrun, torch's data loaders and Ray. A
traceback may be in a box, in an exception group, after a prefix, or within the message of another exception.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pipeline.observe.output_lines import Line

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
