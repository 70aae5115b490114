"""Texts with which programs of any language report that the memory of a device or of the host is exhausted.

These texts do not count: full disks, quotas, shared memory of multiprocessing, messages too long for a channel, and
lines that report that the program continues.
"""

from __future__ import annotations

import re

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
