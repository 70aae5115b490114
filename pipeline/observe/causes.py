"""The cause of a program's failure, from its output: its exception or its last error, not a wrapper's footer.

The only side effect is reading the end of the output files. Out of memory is recognised by the texts of many programs;
full disks, quotas, shared memory of multiprocessing, messages too long for a channel, and lines that report that the
program continues do not count. A remedy is added for failures that sharing a GPU causes and that the message does not
explain. Sources: driver_types.h of CUDA 13 (errors 46 and 805 to 810), NCCL's init.cc, and the programs' messages.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.observe import output_lines
from pipeline.observe.output_lines import Line, Raised

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
    if exceptions := output_lines.find_exceptions(output_lines.split_lines(trace)):
        raised.before, raised.members = exceptions[-1].before, exceptions[-1].members
    text = _describe(raised)
    return Cause(_add_remedy(text, f"{kind}: {message}"), _is_oom(raised), bool(_KILLED.search(text)))


def _add_remedy(text: str, reason: str) -> str:
    remedy = find_remedy(reason)
    return f"{text[:_MAX_LENGTH]}; {remedy}" if remedy else text[:_MAX_LENGTH]


def _has_match(pattern: re.Pattern[str], lines: Sequence[Line]) -> bool:
    return any(pattern.search(line.text) for line in lines[-_MOST_LOOKED_AT:])


def _judge_exceptions(lines: Sequence[Line]) -> Cause | None:
    """Judge by the exception that ended the program; return `None` if no exception did."""
    exceptions = output_lines.find_exceptions(lines)
    links = [link for raised in exceptions for link in raised.iterate_chain()]
    linked_numbers = {number for link in links for number in range(link.first, link.end + 1)}
    telling = [(number, line) for number, line in enumerate(lines) if exceptions and _is_telling(line)]
    ending = [raised for raised in exceptions[-_MOST_LOOKED_AT:] if not _has_continued(raised, telling, linked_numbers)]
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


def _has_continued(raised: Raised, telling: Sequence[tuple[int, Line]], linked_numbers: set[int]) -> bool:
    """Return whether the program continued after an exception, judged by the lines after the exception.

    `linked_numbers` has the numbers of all lines that belong to exceptions.
    """
    after = [(number, line.text) for number, line in telling if number > raised.last and line.source == raised.source]
    printed = [text for number, text in after if number not in linked_numbers or number <= raised.end]
    if any(is_recovery(text) or _WORKS.search(text) for text in printed):
        return True
    return sum(number not in linked_numbers for number, _ in after) > _MOST_AFTER


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
    if is_memory_error("", text):
        return text
    messages = (line for link in raised.iterate_chain() for line in link.message)
    line = next((line for line in messages if is_memory_error("", line)), "")[:_MAX_PART]
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
    return any(is_memory_error(link.kind, "\n".join(link.message)) for link in raised.iterate_chain())


def _judge_lines(lines: Sequence[Line]) -> Cause:
    """Judge by the last lines of the program, without lines of wrappers; return an empty cause without such lines."""
    unfooted = [line for line in lines if not line.is_blank and not line.is_footer]
    telling = [line.text.strip() for line in unfooted if not line.is_indented or _WHAT.search(line.text)]
    telling = (telling or [line.text.strip() for line in unfooted])[-_MOST_LOOKED_AT:]
    for number, text in reversed(list(enumerate(telling))):
        following = telling[number + 1] if number + 1 < len(telling) else ""
        if (thrown := _THROWN.search(text)) is not None:
            match = _WHAT.search(following)
            message = match[1] if match else ""
            kind = thrown[1].rstrip(":")
            words = f"{kind}: {message}" if message not in ("", kind) else kind
            return Cause(words, is_memory_error(kind.replace("::", "."), words))
        if _OUTRIGHT.match(text):
            words = f"{text} {following}" if text.endswith(":") else text
            return Cause(words, is_memory_line(words))
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
        if is_memory_line(text) and (is_fatal or not num_plain):
            return Cause(text, is_oom=True)
        is_consequence = _CONSEQUENCE.search(text) and not _OWN_REASON.search(text)
        num_plain += not is_consequence
        is_other_error = _ERROR.search(_ADDRESS.sub("", text)) and not is_consequence
        if is_other_error or num_plain > _MOST_AFTER or is_recovery(text) or _WORKS.search(text):
            break
    last = telling[end - 1]
    if _ERROR.search(last):
        return Cause(last)
    for text in reversed(telling[-_MOST_AFTER:]):
        if is_recovery(text) or _WORKS.search(text):
            break
        if _MARKED.match(text):
            return Cause(text, is_memory_line(text))
    return Cause(telling[-1])


def _is_error(cause: Cause) -> bool:
    return cause.is_oom or bool(_ERROR.search(cause.text))


_TYPES = frozenset(
    (
        *("MemoryError", "_ArrayMemoryError", "ArrowMemoryError", "OutOfMemoryError", "OutOfMemoryException"),
        *("OutOfMemory", "ResourceExhaustedError", "bad_alloc", "BadAlloc", "out_of_memory"),
    )
)
"""Names of exceptions, without modules, of Python, numpy, pyarrow, torch, cupy, TensorFlow, paddle, C++ and Java."""

_NEVER = frozenset(
    (
        *("AssertionError", "AttributeError", "KeyboardInterrupt", "NameError", "TypeError", "UnboundLocalError"),
        *("FileExistsError", "FileNotFoundError", "IsADirectoryError", "NotADirectoryError", "PermissionError"),
        *("ImportError", "ModuleNotFoundError", "IndentationError", "SyntaxError"),
        *("IndexError", "KeyError", "ZeroDivisionError"),
    )
)
"""Exceptions that are never about memory, even if a name in their message contains such a text."""

_OF_WHAT = r"(?:(?:gpu|cuda|hip|xpu|device|host|system|video|virtual|physical|heap|cpu)[ -])?"
_WORDS = re.compile(
    "|".join(
        (
            # torch, JAX, CUDA, cupy, HIP, Julia, Go, Java, Node: "Out of memory", "out of GPU memory", "out-of-memory"
            rf"\bout[ -]of[ -]{_OF_WHAT}memory\b",
            rf"\b(?:not enough|insufficient|no available) {_OF_WHAT}memory\b",
            r"\bheap space\b|\bheap limit\b|\bheap out of memory\b",
            # names of a status, of CUDA, cuBLAS, cuDNN, cuFFT, cuRAND, cuSOLVER, HIP and similar libraries
            r"ALLOC(?:ATION)?_FAILED\b|AllocFailed\b|cudaErrorMemoryAllocation|hipErrorMemoryAllocation|"
            r"ERROR_OUT_OF_(?:DEVICE_|HOST_)?MEMORY|ErrorOutOfMemory|rocblas_status_memory_error|"
            r"CL_MEM_OBJECT_ALLOCATION_FAILURE|CL_OUT_OF_HOST_MEMORY",
            r"\bbad[_ ]alloc\b|\bbad allocation\b|\bBadAlloc\b",
            # TensorFlow, XLA
            r"\bOOM when allocating\b|RESOURCE_EXHAUSTED\b|\bResource exhausted:|Dst tensor is not initialized",
            # numpy, torch on the CPU, onnxruntime, R, the C library
            r"\b(?:can(?:no|')t|can not|could not|couldn't|unable to|failed to) (?:re)?allocate\b"
            r".*(?:memory|\bbytes\b|[\d.]\s*[KMGTP]i?B\b|\b(?:buffer|tensor|array|vector)\b)",
            r"\b(?:malloc|realloc|calloc|mmap|cu(?:da)?Mem?Alloc\w*|cudaMalloc\w*|hipMalloc\w*)\b.{0,40}\bfailed\b",
            r"\bmemory allocation\b.{0,30}\b(?:fail\w*|error)|\bGPU memory\b.*\bcould not be allocated\b",
            r"\bENOMEM\b|\[Errno 12\]",
            # vLLM
            r"\bFree memory on device\b.*\bis less than desired\b|"
            r"\blarger than the (?:available KV cache memory|maximum number of tokens that can be stored in KV)\b",
            # the kernel, Slurm, containers
            r"\boom[-_ ]?kill(?:ed|er)?\b|\bOOMKilled\b",
        )
    ),
    re.IGNORECASE,
)
_OTHERWISE = re.compile(
    r"No space left on device|Disk quota exceeded|Too many open files|larger than max|message length|quota|rate limit|"
    r"too many requests|shared memory\(shm\)",
    re.IGNORECASE,
)
_DEALT_WITH = re.compile(
    r"\bretrying\b|\bwill retry\b|\btr(?:y|ies|ying) again\b|\brecover(?:ed|ing|s)\b|\bfall(?:s|ing)? back\b|"
    r"\bgo(?:es|ing) on\b|(?<!try )(?<!consider )(?<!by )\b(?:reducing|halving|decreasing|lowering|shrinking)\b|"
    r"\b(?:skipping|skipped|continuing)\b",
    re.IGNORECASE,
)
_ONLY_MENTIONED = re.compile(
    r"\bwarn(?:ing)?\b|\b(?:info|debug|hint|tip|note)\b:?|\bcaught\b|\bhandled\b|\bavoid\w*|\bprevent\w*|"
    r"\b(?:no longer|never|in case of|if|may|might|would)\b|\bcould\b(?! not)",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"(?<=[.;!])\s+")


def has_memory_type(kind: str) -> bool:
    """Return whether the name of an exception, with or without its module, is about memory."""
    return kind.rpartition(".")[2].rpartition("::")[2] in _TYPES


def is_memory_error(kind: str, message: str) -> bool:
    """Return whether an exception reports exhausted memory, judged by its printed name and its message."""
    name = kind.rpartition(".")[2]
    if name in _NEVER or _OTHERWISE.search(message):
        return False
    return has_memory_type(kind) or any(_WORDS.search(line) for line in message.splitlines())


def is_memory_line(line: str) -> bool:
    """Return whether a line of output reports exhausted memory, and neither a recovery nor mere advice."""
    if _OTHERWISE.search(line) or is_recovery(line):
        return False
    sentences = _SENTENCE_END.split(line)
    return any(
        (_WORDS.search(sentence) or has_memory_type(sentence.partition(":")[0].strip()))
        and not _ONLY_MENTIONED.search(sentence)
        for sentence in sentences
    )


def is_recovery(line: str) -> bool:
    """Return whether a line of output reports that the program continues after a failure."""
    return bool(_DEALT_WITH.search(line))


_NUMBER = r"\b(?:CUDA|CUresult|MPS|cu[A-Z]\w+|cuda\w+)\b[^\d\n]{0,40}\b"
_REMEDIES = (
    (
        rf"{_NUMBER}805\b|cudaErrorMpsConnectionFailed|CUDA_ERROR_MPS_CONNECTION_FAILED|MPS client failed to connect",
        "the job found no MPS server: keep CUDA_MPS_PIPE_DIRECTORY in its environment, and run it as the user of the "
        "study, because a server serves one user",
    ),
    (
        rf"{_NUMBER}80[67]\b|cudaErrorMps(?:ServerNotReady|RpcFailure)|CUDA_ERROR_MPS_(?:SERVER_NOT_READY|RPC_FAILURE)|"
        "MPS server is not ready to accept|between the MPS server and the MPS client failed",
        "the MPS server ended or was recovering from the fault of another client: look for the first job that failed",
    ),
    (
        rf"{_NUMBER}80[89]\b|cudaErrorMpsMax|CUDA_ERROR_MPS_MAX_|required to (?:create MPS client|support device conn)",
        "MPS has no room for another client: run fewer jobs or processes, or lower CUDA_DEVICE_MAX_CONNECTIONS",
    ),
    (
        rf"{_NUMBER}810\b|cudaErrorMpsClientTerminated|CUDA_ERROR_MPS_CLIENT_TERMINATED|MPS client has been terminated",
        "the fault of another client under MPS ended this job too: look for the first job that failed",
    ),
    (
        r"(?:devices are|is/are) busy or unavailable|cudaErrorDevicesUnavailable|CUDA_ERROR_DEVICE_UNAVAILABLE",
        "another process holds the GPU in an exclusive compute mode, or the job bypassed MPS: end that process, "
        "keep CUDA_MPS_PIPE_DIRECTORY in the job, or change the mode: nvidia-smi -i GPU -c DEFAULT",
    ),
    (
        r"EADDRINUSE|Address already in use|another process is utilizing it",
        "another job or program holds this port: use MASTER_PORT, which differs between jobs, or {job}, as in "
        "--master-port 2951{job}",
    ),
    (
        r"Duplicate GPU detected",
        "NCCL accepts one rank per GPU: run each job with one process, or its ranks with another backend such as gloo",
    ),
    (
        r"invalid literal for int\(\).*MIG-|could not convert string.*MIG-",
        "the program reads CUDA_VISIBLE_DEVICES as numbers, but a MIG device has only a UUID: let it use device 0 of "
        "those that it sees",
    ),
)


def find_remedy(reason: str) -> str:
    """Return the remedy for a failure; empty if its reason has nothing to do with sharing a GPU."""
    return next((remedy for pattern, remedy in _REMEDIES if re.search(pattern, reason)), "")
