"""Expansion of braces in a command line to the command lines of trials, as bash expands them.

`{a,b}` stands for each of its words, `{1..8}` and `{0..1..2}` for numbers, `{a..e}` for letters; braces may be nested.
Several braces give every combination, and the last one varies fastest. Other braces, such as `{output_dir}`, stay as
they are, and so does a brace after a backslash.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator, Sequence

from pipeline.base.system.errors import ConfigError
from pipeline.base.system.words import format_count

_RANGE = re.compile(r"(?P<first>-?\d+|[A-Za-z])\.\.(?P<last>-?\d+|[A-Za-z])(?:\.\.-?(?P<step>\d+))?")
_ESCAPED = re.compile(r"\\([{},])")
_MOST_TRIALS = 10_000
_NEEDED = 3
"""Fewest numbers in a row that are written as a range."""


def expand_words(words: Sequence[str]) -> list[list[str]]:
    """Return the words of each trial.

    Raises:
        ConfigError: the words are one trial, the shell has expanded the braces, or there are too many trials.
    """
    choices = [[_ESCAPED.sub(r"\1", text) for text in _expand(word)] for word in words]
    num_trials = 1
    for texts in choices:
        num_trials *= len(texts)
    if quoted := _find_expanded(words, num_trials):
        raise ConfigError(f"the shell has expanded the braces; put them in single quotes: {quoted}")
    if num_trials == 1:
        raise ConfigError(
            f"`{shlex.join(words)}` is one trial; give values in braces, as in --lr '{{1e-1,1e-2}}' --seed '{{1..8}}'"
        )
    if num_trials > _MOST_TRIALS:
        raise ConfigError(f"the braces give {num_trials} trials; at most {_MOST_TRIALS} are possible")
    # An empty text of a brace is no word, so `{,--amp}` is a flag that some trials lack.
    return [
        [text for text, word in zip(trial, words, strict=True) if text or not word]
        for trial in itertools.product(*choices)
    ]


def read_commands(text: str, source: str) -> list[list[str]]:
    """Return the words of each line of a file; empty lines and lines that begin with `#` are left out.

    Raises:
        ConfigError: a line cannot be split into words, or there is no line.
    """
    commands = []
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            words = [] if line.lstrip().startswith("#") else shlex.split(line)
        except ValueError as error:
            raise ConfigError(f"{source}, line {number}: {error}; check its quotes") from error
        commands += [words] if words else []
    if not 1 <= len(commands) <= _MOST_TRIALS:
        raise ConfigError(f"{source} has {format_count(len(commands), 'command')}; write 1 to {_MOST_TRIALS} lines")
    return commands


def _expand(word: str) -> list[str]:
    """Return the texts that a word stands for: itself, if it has no braces to expand."""
    for begin, end in _find_braces(word):
        parts = _split(word[begin + 1 : end])
        texts = [text for part in parts for text in _expand(part)] if len(parts) > 1 else _list_range(parts[0])
        if texts:
            return [f"{word[:begin]}{text}{rest}" for text in texts for rest in _expand(word[end + 1 :])]
    return [word]


def _find_braces(word: str) -> Iterator[tuple[int, int]]:
    """Yield the places of each opening brace and of its closing brace."""
    for begin, letter in enumerate(word):
        if letter == "{" and not _is_escaped(word, begin) and word[begin - 1 : begin] != "$":
            depth = 0
            for end in range(begin, len(word)):
                if word[end] in "{}" and not _is_escaped(word, end):
                    depth += 1 if word[end] == "{" else -1
                if depth == 0:
                    yield begin, end
                    break


def _is_escaped(word: str, place: int) -> bool:
    return word[place - 1 : place] == "\\"


def _split(text: str) -> list[str]:
    """Split the text between braces at its commas, except those within inner braces."""
    parts, depth = [""], 0
    for place, letter in enumerate(text):
        is_plain = not _is_escaped(text, place)
        depth += is_plain * ((letter == "{") - (letter == "}"))
        if letter == "," and depth == 0 and is_plain:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def _list_range(text: str) -> list[str]:
    match = _RANGE.fullmatch(text)
    if match is None or match["first"].isalpha() is not match["last"].isalpha():
        return []
    first, last = (ord(end) if end.isalpha() else int(end) for end in (match["first"], match["last"]))
    step = int(match["step"] or 1) or 1
    if abs(last - first) // step >= _MOST_TRIALS:
        raise ConfigError(f"{{{text}}} gives too many trials; at most {_MOST_TRIALS} are possible")
    numbers = range(first, last + 1, step) if first <= last else range(first, last - 1, -step)
    if match["first"].isalpha():
        return [chr(number) for number in numbers]
    is_padded = any(re.fullmatch(r"-?0\d+", match[end]) for end in ("first", "last"))
    width = max(len(match["first"]), len(match["last"])) if is_padded else 0
    return [f"{number:0{width}d}" for number in numbers]


def _find_expanded(words: Sequence[str], num_trials: int) -> str:
    """Return a flag with the braces that the shell has probably expanded, quoted; empty if it has expanded none.

    A shell makes `--lr=1 --lr=2` of `--lr={1,2}`, and `--lr 1 2` of `--lr {1,2}`. Several values of a flag are possible
    without a shell, so they count only if the words have no other braces.
    """
    flags: dict[str, list[str]] = {}
    for word in words:
        key, has_value, text = word.partition("=")
        if key.startswith("-") and has_value:
            flags.setdefault(f"{key}=", []).append(text)
    if num_trials == 1:
        flag = ""
        for word in words[1:]:
            if re.match(r"--?[^\W\d]", word):
                flag = f"{word} "
            elif flag:
                flags.setdefault(flag, []).append(word)
    repeated = {flag: texts for flag, texts in flags.items() if len(set(texts)) > 1}
    return " ".join(f"{flag}'{{{_join(texts)}}}'" for flag, texts in repeated.items())


def _join(texts: Sequence[str]) -> str:
    if len(texts) >= _NEEDED and all(re.fullmatch(r"0|-?[1-9]\d*", text) for text in texts):
        numbers = [int(text) for text in texts]
        if all(after - before == 1 for before, after in itertools.pairwise(numbers)):
            return f"{texts[0]}..{texts[-1]}"
    return ",".join(texts)
