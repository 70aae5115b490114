"""The cause of a program's failure, from its output: its exception or its last error, not a wrapper's footer.

The only side effect is reading the end of the output files.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.observe import memory_words, output_lines, remedies, tracebacks
from pipeline.observe.output_lines import Line
from pipeline.observe.tracebacks import Raised

_MAX_LENGTH, _MAX_PART = 500, 200
_MOST_AFTER = 10
"""Largest number of lines after the exception that ended a program, such as lines of a cleanup or of a shell."""

_MOST_LOOKED_AT = 30
_WRAPPERS = frozenset(
    (
        *("ChildFailedError", "CalledProcessError", "ProcessExitedException", "PapermillExecutionError"),
        "ServerEndedError",
    )
)
"""Exceptions of programs that start other programs; they report only that a started program failed."""

_SECONDARY = re.compile(
    r"connection (?:closed|reset|refused|lost)|broken ?pipe|remote process (?:exited|terminated)|communicator was|"
    r"\bsee (?:the )?(?:root cause|error|stack trace)s? above\b",
    re.IGNORECASE,
)
"""Messages that the other ranks or the parent of a process print after the process failed."""

_NO_LINE = re.compile(r"^\s*(?:$|[|│┃])")  # a blank line, or a line of a table
_WORKS = re.compile(r"\b(?:step|epoch|iter|iteration|batch|loss)\b\W{0,3}\d", re.IGNORECASE)
_ERROR = re.compile(
    r"error|fatal|fail|exception|abort|can(?:no|')t |could not|couldn't|unable|panic|killed|denied|invalid|missing|"
    r"not found|no such|refused|not enough|insufficient|exhausted|out of",
    re.IGNORECASE,
)
_CONSEQUENCE = re.compile(
    r"\bfail|\bunable\b|\bcould(?: not|n't)\b|\bcan(?:not|'t)\b|\berror loading\b|abort", re.IGNORECASE
)
_OWN_REASON = re.compile(
    r"no such|not found|denied|invalid|refused|unknown|missing|not a \w+|unrecogni[sz]ed", re.IGNORECASE
)
_MARKED = re.compile(r"^\W*(?:[\w./-]+: ){0,2}(?:fatal |runtime )?(?:error|fatal|exception|panic)\b", re.IGNORECASE)
_GOODBYE = re.compile(r"^\W*(?:exit|quit|bye|clean|shut|stop|clos|finish|finali[sz]|end)", re.IGNORECASE)
_THROWN = re.compile(
    r"terminat(?:e called after throwing an instance of '|ing .*uncaught exception of type )([\w:<>]+)"
)
_WHAT = re.compile(r"what\(\): *(.*)")
_FATAL = re.compile(r"error|\bfatal\b|\bpanic\b", re.IGNORECASE)
_ADDRESS = re.compile(r"\bhttps?://\S+")
_OUTRIGHT = re.compile(
    r"(?:Fatal error:$|Fatal Python error: |fatal error: |panic: |Exception in thread \"|thread '.*' panicked at )"
)
_EXIT_OF_RANK = re.compile(r"^\s*exitcode *: *(.+)$")
_KILLED_FOR_MEMORY = re.compile(
    r"\bslurmstepd: error: .*\boom|\bOut of memory: Killed process|\bOOMKilled\b", re.IGNORECASE
)
_KILLED = re.compile(
    r"\bSIGKILL\b|killed by signal: Killed|\bsignal:? (?:9|Killed)\b|\b(?:exit(?:ed|s)?|status)\b.{0,20}(?:-9|\b137)\b|"
    r"terminated abruptly|^\W*(?:\S+: line \d+: +)?(?:\d+ +)?Killed\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Cause:
    """The cause of a failure.

    Attributes:
        text: the cause in one line; empty if unknown.
        is_oom: whether memory ran out.
        has_kill: whether SIGKILL ended a process.
    """

    text: str = ""
    is_oom: bool = False
    has_kill: bool = False


def judge_output(stderr: Path, stdout: Path) -> Cause:
    """Find why a program failed, from the end of stderr, or else of stdout."""
    errors, output = output_lines.read_end(stderr), output_lines.read_end(stdout)
    has_kill = _has_match(_KILLED, errors) or _has_match(_KILLED, output)
    is_killed_for_memory = _has_match(_KILLED_FOR_MEMORY, errors) or _has_match(_KILLED_FOR_MEMORY, output)
    cause = _judge_exceptions(errors) or _judge_exceptions(output)
    if cause is None:
        by_errors, by_output = _judge_lines(errors), _judge_lines(output)
        is_better = _is_error(by_output) and not _is_error(by_errors)
        cause = by_output if is_better else by_errors if by_errors.text else _judge_footers(errors)
    printed = [line.text for line in (*output[-_MOST_LOOKED_AT:], *errors[-_MOST_LOOKED_AT:])]
    text = _add_remedy(cause.text, "\n".join([cause.text, *printed]))
    return Cause(text, cause.is_oom or is_killed_for_memory, has_kill)


def judge_exception(kind: str, message: str, trace: str = "") -> Cause:
    """Find why a job failed, from the exception that it reported; `trace` is the traceback as Python prints it."""
    raised = Raised(kind, [line.strip() for line in message.splitlines() if line.strip()], 0, 0, 0)
    if exceptions := tracebacks.find_exceptions(output_lines.split_lines(trace)):
        raised.before, raised.members = exceptions[-1].before, exceptions[-1].members
    text = _describe(raised)
    return Cause(_add_remedy(text, f"{kind}: {message}"), _is_oom(raised), bool(_KILLED.search(text)))


def _add_remedy(text: str, reason: str) -> str:
    remedy = remedies.find_remedy(reason)
    return f"{text[:_MAX_LENGTH]}; {remedy}" if remedy else text[:_MAX_LENGTH]


def _has_match(pattern: re.Pattern[str], lines: Sequence[Line]) -> bool:
    return any(pattern.search(line.text) for line in lines[-_MOST_LOOKED_AT:])


def _judge_exceptions(lines: Sequence[Line]) -> Cause | None:
    """Judge by the exception that ended the program; return `None` if no exception did."""
    exceptions = tracebacks.find_exceptions(lines)
    links = [link for raised in exceptions for link in raised.iterate_chain()]
    taken = {number for link in links for number in range(link.first, link.end + 1)}
    telling = [(number, line) for number, line in enumerate(lines) if exceptions and _is_telling(line)]
    ending = [raised for raised in exceptions[-_MOST_LOOKED_AT:] if not _has_continued(raised, telling, taken)]
    for candidates in (
        [raised for raised in ending if not raised.is_aside and raised.name not in _WRAPPERS],
        [raised for raised in ending if raised.is_aside],
        [raised for raised in ending if raised.name in _WRAPPERS],
    ):
        if candidates:
            raised = _select_root(candidates)
            # A wrapper reports only that a program failed; the program may have printed its error in earlier lines.
            by_lines = _judge_lines(lines[: raised.first]) if raised.name in _WRAPPERS else Cause()
            if _is_error(by_lines):
                return by_lines
            return Cause(_describe(raised) + _describe_ranks(raised, lines), _is_oom(raised))
    return None


def _is_telling(line: Line) -> bool:
    return not (line.is_indented or _NO_LINE.match(line.text) or line.is_footer)


def _has_continued(raised: Raised, telling: Sequence[tuple[int, Line]], taken: set[int]) -> bool:
    """Return whether the program continued after an exception, judged by the lines after the exception.

    `taken` has the numbers of all lines that belong to exceptions.
    """
    after = [(number, line.text) for number, line in telling if number > raised.last and line.source == raised.source]
    printed = [text for number, text in after if number not in taken or number <= raised.end]
    if any(memory_words.is_recovery(text) or _WORKS.search(text) for text in printed):
        return True
    return sum(number not in taken for number, _ in after) > _MOST_AFTER


def _select_root(candidates: Sequence[Raised]) -> Raised:
    """Select the exception that caused the others: out of memory if any, else the first among several ranks."""
    last_by_source = {raised.source: raised for raised in candidates}
    primary = [raised for raised in candidates if not _SECONDARY.search(" ".join(raised.message))]
    if len(last_by_source) == 1:
        return (primary or candidates)[-1]
    return min(last_by_source.values(), key=lambda raised: (not _is_oom(raised), raised not in primary, raised.last))


def _describe_ranks(raised: Raised, lines: Sequence[Line]) -> str:
    if raised.name not in _WRAPPERS:
        return ""
    ends = [match[1] for line in lines[raised.last :] if (match := _EXIT_OF_RANK.match(line.text))]
    return f": a rank ended with {' '.join(ends[0].split())}" if ends else ""


def _describe(raised: Raised) -> str:
    text, root = _describe_alone(raised), raised
    while root.before is not None:
        root = root.before
    if root is not raised and not (root.message and root.message[0] in text):
        origin = _describe_alone(root)[:_MAX_PART]
        text = f"{text[: _MAX_LENGTH - len(origin) - len(', from ')]}, from {origin}"
    if memory_words.is_memory_error("", text):
        return text
    messages = (line for link in raised.iterate_chain() for line in link.message)
    line = next((line for line in messages if memory_words.is_memory_error("", line)), "")[:_MAX_PART]
    return f"{text[: _MAX_LENGTH - len(line) - len(' ()')]} ({line})" if line else text


def _describe_alone(raised: Raised, depth: int = 2) -> str:
    """Describe an exception by its message, up to the first complete line, and by its members."""
    message = raised.message
    length = next((number for number, line in enumerate(message, 1) if not line.endswith(":")), len(message))
    words = " ".join([f"{raised.kind}:", *message[:length]]) if message else raised.kind
    if raised.members and depth:
        words += ": " + "; ".join(_describe_alone(member, depth - 1)[:_MAX_PART] for member in raised.members[:3])
    return words


def _is_oom(raised: Raised) -> bool:
    return any(memory_words.is_memory_error(link.kind, "\n".join(link.message)) for link in raised.iterate_chain())


def _judge_lines(lines: Sequence[Line]) -> Cause:
    """Judge by the last lines of the program, without lines of wrappers; return an empty cause without such lines."""
    unfooted = [line for line in lines if not line.is_blank and not line.is_footer]
    telling = [line.text.strip() for line in unfooted if not line.is_indented or _WHAT.search(line.text)]
    telling = (telling or [line.text.strip() for line in unfooted])[-_MOST_LOOKED_AT:]
    for number, text in reversed(list(enumerate(telling))):
        following = telling[number + 1] if number + 1 < len(telling) else ""
        if (thrown := _THROWN.search(text)) is not None:
            what = _WHAT.search(following)
            message = what[1] if what else ""
            kind = thrown[1].rstrip(":")
            words = f"{kind}: {message}" if message not in ("", kind) else kind
            return Cause(words, memory_words.is_memory_error(kind.replace("::", "."), words))
        if _OUTRIGHT.match(text):
            words = f"{text} {following}" if text.endswith(":") else text
            return Cause(words, memory_words.is_memory_line(words))
    return _judge_last_lines(telling) if telling else Cause()


def _judge_footers(lines: Sequence[Line]) -> Cause:
    texts = [line.text.strip() for line in lines if re.search(r"\w", line.text) and not line.is_indented]
    return Cause(next((text for text in reversed(texts) if _ERROR.search(text)), texts[-1] if texts else ""))


def _judge_last_lines(telling: Sequence[str]) -> Cause:
    """Judge by the last line, or by a report of exhausted memory above it that no other error and no work follows.

    If other lines than consequences follow the report, it must be marked as an error.
    """
    end = len(telling)
    while end > max(1, len(telling) - 2) and _GOODBYE.match(telling[end - 1]):
        end -= 1
    num_plain = 0
    for number, text in reversed(list(enumerate(telling[:end]))):
        is_fatal = any(map(_FATAL.search, telling[max(0, number - 1) : number + 1]))
        if memory_words.is_memory_line(text) and (is_fatal or not num_plain):
            return Cause(text, is_oom=True)
        is_consequence = _CONSEQUENCE.search(text) and not _OWN_REASON.search(text)
        num_plain += not is_consequence
        is_other_error = _ERROR.search(_ADDRESS.sub("", text)) and not is_consequence
        if is_other_error or num_plain > _MOST_AFTER or memory_words.is_recovery(text) or _WORKS.search(text):
            break
    last = telling[end - 1]
    if _ERROR.search(last):
        return Cause(last)
    for text in reversed(telling[-_MOST_AFTER:]):
        if memory_words.is_recovery(text) or _WORKS.search(text):
            break
        if _MARKED.match(text):
            return Cause(text, memory_words.is_memory_line(text))
    return Cause(telling[-1])


def _is_error(cause: Cause) -> bool:
    return cause.is_oom or bool(_ERROR.search(cause.text))
