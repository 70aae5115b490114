"""Removal of secrets from texts: command lines, URLs, headers, JSON, YAML, error output, source code.

A secret is found by the name next to it (`secrecy`), by its position or by its form (`secret_patterns`). Only the
secret is replaced, and the number of lines stays the same.
"""

from __future__ import annotations

import enum
import re
import string
from collections.abc import Iterable
from pathlib import PurePath

from pipeline.base.system.secrecy import HIDDEN, Secrecy, hide, is_harmless, looks_secret, secrecy_of, word_set
from pipeline.base.system.secret_patterns import mask_places, replace_tokens
from pipeline.base.system.secret_trees import NOUN, find_in_code, find_in_documents, is_visible_literal


class Style(enum.Enum):
    """The kind of a text, which determines the form of values.

    In `CODE`, a value is a quoted literal. A `COMMENT`, or a text within code, is mostly prose: a value after a name
    must look like a secret.
    """

    PLAIN = enum.auto()
    CODE = enum.auto()
    COMMENT = enum.auto()


_TO_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)
_MOST_OF_NAME = 128
# A name and the text before its value: after a flag this is a space or, in a list, a comma.
_NAMED = re.compile(
    r"(?P<dashes>-{1,2})?(?P<name>[A-Za-z_][\w.-]{0,127})(?P<close>(?:\\*[\"'`](?:[ \t]*\])?)?)"
    r"(?P<between>[ \t]*(?:=>|:=|<-|[=!]?={1,3}|:(?![/:]))[ \t]*"
    r"|(?(dashes)(?:[ \t]*,[ \t]*|[ \t]+)|(?<=[\"'`])[ \t]*,[ \t]*))"
)
_ANNOTATION = re.compile(r"[\w.\[\], |]{1,100}[ \t]=[ \t]*(?=[rRbBuUfF]{0,2}[\"'])")
_ASSIGNS = re.compile(r"\w[\"']?\]?[ \t]*=[ \t]*(?:[(\[{\\]|\"{3}|'{3})")  # more than one literal
_PROPERTIES = re.compile(r"(?:[!&]\S*[ \t]+)*")  # of YAML: a tag, an anchor
_QUOTE = re.compile(r"(?:[rRbBuUfF]{0,2}|\$)(?P<quote>\\*(?:\"\"\"|'''|\"|'|`))")
_BARE = re.compile(r"(?:\\[^\n]|[^\s\"'`\\])+")
_BARE_OF_CODE = re.compile(r"(?:\{[\w.]*\}|[^\s\"'`\\,;(){}\[\]])+")
_TO_END_OF_LINE = re.compile(r"[^\n\"'`]*")
_TO_COMMENT = re.compile(r"(?:(?![ \t]+#|\\n)[^\n\"'`])*")
_BLOCK_OPENS = re.compile(r"(?:[|>][+-]?\d?)?[ \t]*\n(?=[ -])")
_ESCAPED_BLOCK = re.compile(r"[|>][+-]?\d?(?:\\n *)+((?:(?!\\n[^ ])[^\n\"'`])*)")  # in a text within a text
_LINE_BEGINS = re.compile(r"(?:^|\n|\\n)[ \t+-]*$")
_LINE_ENDS = re.compile(r"[\"'`]?(?:\n|$)")
_KEY = re.compile(r"(?:\\*[\"'])?[\w.-]+(?:\\*[\"'])?[ \t]*[:=]")
_LIST = re.compile(r"\[[^\]\n]*\]|\((?=[^)\n]*[\"'])[^)\n]*\)")
_BRACKETED = re.compile(r"\[[^\]\n]*\]|\{[^}\n]*\}|\((?=[^)\n]*[\"'])[^)\n]*\)")
# Text that a shell appends to the same word after a closing quote.
_REST_OF_WORD = re.compile(r"\\*[\"'`](?=[\w$%!#~^*+/\"'-])(?:\"[^\"\n]*\"|'[^'\n]*'|\\.|[^\s\"'\\,;)\]}])+")
_IS_HIDDEN = re.compile(rf"[\\\"'`(\[{{]*{HIDDEN}")
_NEXT_PAIR = re.compile(r"[&;,|]+(?=[\w.-]+[ \t]*[=:])")
_OF_CONNECTION = re.compile(r"\{[^}\n]*\}|[^;\n\"'`]*")
_NEXT_OF_CONNECTION = re.compile(r"[^;=\n\"'`]{0,60}(?=;[ \t]*[A-Za-z][\w ]*=)")
_OF_QUERY = re.compile(r"(?:.*[_-])?signature", re.IGNORECASE)
_LINE = re.compile(r"[^\n]{0,10000}")
_INNER = {quote: re.compile(rf"(?:\\[^\n]|[^{quote}\\\n])*") for quote in "\"'`"}
_STRING_OR_COMMENT = re.compile(
    r"(?P<long>\"\"\"|''').*?(?P=long)|(?P<quote>[\"'])(?:\\.|(?!(?P=quote))[^\\\n])*(?P=quote)|\#[^\n]*", re.S
)
_PROSE = word_set("a an and as by for from if in is it may must not of on or that the this to was when with")

_PYTHON = frozenset({".py", ".pyi", ".pyw", ".pyx"})
_PYTHON_PROGRAM = re.compile(r"#!.*\bpython")
_HUNK = re.compile(r"^(?=@@ )", re.MULTILINE)
_CONTEXT_TEXT = re.compile(r"([=,(]\s*[\"'])[^\"'-][^\"']{3,}")
_FILE = re.compile(r"^(?=diff --git )", re.MULTILINE)
_CHANGED = re.compile(r"^diff --git \"?a/(?P<name>.*?)\"? \"?b/")


def mask_text(text: str, known: Iterable[str] = (), style: Style = Style.PLAIN) -> str:
    """Replace the secrets in a text, including `known` ones, by `HIDDEN`; a text without secrets stays the same."""
    for secret in sorted(known, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    text = _mask_named(_mask_trees(mask_places(text), style), style)
    if style is Style.CODE:
        text = _STRING_OR_COMMENT.sub(lambda match: _mask_named(match[0], Style.COMMENT), text)
    return replace_tokens(text, HIDDEN)


def mask_source(text: str, name: str) -> str:
    """Replace the secrets in a program, whose language is found by file name or first line."""
    is_python = PurePath(name).suffix in _PYTHON or _PYTHON_PROGRAM.match(text) is not None
    return mask_text(text, style=Style.CODE if is_python else Style.PLAIN)


def mask_diff(text: str) -> str:
    """Replace the secrets in a git diff, which remains valid."""
    return "".join(map(_mask_file, _FILE.split(text)))


def _mask_file(text: str) -> str:
    changed = _CHANGED.match(text)
    head, *hunks = _HUNK.split(text)
    if changed is None:
        return mask_text(text)
    return mask_text(head) + "".join(_mask_hunk(hunk, changed["name"]) for hunk in hunks)


def _mask_hunk(text: str, name: str) -> str:
    lines = [(line[:1], line[1:]) for line in text.split("\n")]
    lines[0] = "", _mask_context(mask_source("".join(lines[0]), name))
    marks = {mark for mark, _ in lines}
    for other in [other for other, mark in ("-+", "+-") if mark in marks]:  # the file after the change, and before it
        numbers = [number for number, (mark, _) in enumerate(lines) if number > 0 and mark != other]
        masked = mask_source("\n".join(lines[number][1] for number in numbers), name).split("\n")
        for number, line in zip(numbers, masked, strict=True):
            lines[number] = lines[number][0], line
    return "\n".join(map("".join, lines))


def _mask_context(line: str) -> str:
    """Hide the texts in the first line of a hunk, whose end is a part of an earlier line, if it may name a secret."""
    if NOUN.search(line.translate(_TO_LOWER)) is None:
        return line
    return _CONTEXT_TEXT.sub(lambda match: f"{match[1]}{HIDDEN}", line)


def _mask_trees(text: str, style: Style) -> str:
    if NOUN.search(text.translate(_TO_LOWER)) is None:
        return text
    documents = find_in_documents(text) if style is Style.PLAIN else []
    statements = find_in_code(text) if style is Style.CODE or _ASSIGNS.search(text) else []
    parts, done = list[str](), 0
    for start, end in sorted({*documents, *statements}):
        if start >= done:
            parts += [text[done:start], hide(text[start:end])]
            done = end
    return "".join((*parts, text[done:]))


def _mask_named(text: str, style: Style) -> str:
    parts, done, position = list[str](), 0, 0
    lower = text.translate(_TO_LOWER)
    while (noun := NOUN.search(lower, position)) is not None:
        position = noun.end()
        match = _NAMED.match(text, _start_of_name(text, noun.start(), done))
        if match is None or match.end() < position:
            continue
        position = match.end()
        secrecy = _secrecy_in(text, match)
        span = _Value(text, match, secrecy, style).span() if secrecy is not Secrecy.NONE and _is_pair(match) else None
        if span is not None:
            parts += [text[done : span[0]], hide(text[slice(*span)])]
            done = position = span[1]
    return "".join((*parts, text[done:]))


def _start_of_name(text: str, position: int, done: int) -> int:
    """Return the start of the name at a position, including dashes; not before `done`."""
    start, least = position, max(done, position - _MOST_OF_NAME)
    while start > least and (text[start - 1].isalnum() or text[start - 1] in "_.-"):
        start -= 1
    if 0 < start < position and text[start - 1] == "\\":  # part of `\n` in a text within a text
        start += 1
    while text[start] == "." or text.startswith("---", start):
        start += 1
    return start


def _secrecy_in(text: str, match: re.Match[str]) -> Secrecy:
    secrecy = secrecy_of(match["name"])
    if secrecy is Secrecy.NONE and text[max(0, match.start() - 1)] in "?&" and _OF_QUERY.fullmatch(match["name"]):
        return Secrecy.LIKELY  # of a signed URL
    return secrecy


def _is_pair(match: re.Match[str]) -> bool:
    is_flag = bool(match["dashes"]) or match["name"].isupper()
    return match["between"].strip() != "," or (is_flag and _KEY.match(match.string, match.end()) is None)


class _Value:
    def __init__(self, text: str, match: re.Match[str], secrecy: Secrecy, style: Style) -> None:
        self._text, self._match, self._secrecy, self._style = text, match, secrecy, style
        self._between = match["between"].strip()
        self._before = text[max(0, match.start() - 2) : match.start()]

    def span(self) -> tuple[int, int] | None:
        """Return the position of the value; `None` if there is none or it cannot be a secret."""
        start = self._match.end()
        if _IS_HIDDEN.match(self._text, start):
            return None
        if self._between == ":" and not self._match["close"]:  # token: str = "..."
            start = _end(_ANNOTATION, self._text, _end(_PROPERTIES, self._text, start))
        if self._style is Style.CODE:
            return self._literal_of_code(start)
        if self._style is Style.PLAIN and self._between == ":":
            if (inner := _ESCAPED_BLOCK.match(self._text, start)) is not None:
                return None if HIDDEN in inner[1] else inner.span(1)
            if _BLOCK_OPENS.match(self._text, start) is not None:
                return self._block(start)
        quoted = _literal(self._text, start)
        if quoted is not None:
            if self._is_visible(self._text[slice(*quoted)]):
                return None
            end = self._end_of_word(quoted)
            return quoted if end == quoted[1] else (start, end)
        end = self._end_of_bare(start)
        return None if end <= start or self._is_visible(self._text[start:end]) else (start, end)

    def _block(self, start: int) -> tuple[int, int] | None:
        """Return the YAML lines below a name that are its value: a multi-line text or a list."""
        begin = _end(_BLOCK_OPENS, self._text, start)
        line = self._text[self._text.rfind("\n", 0, self._match.start()) + 1 : self._match.start()]
        indent = len(line) - len(line.lstrip(" "))
        lines = re.compile(rf"(?: {{{indent + 1},}}[^\n]*(?:\n|$)| {{{indent}}}- [^\n]*(?:\n|$)|\n(?= ))+")
        block = lines.match(self._text, begin)
        if block is None or HIDDEN in block[0] or self._secrecy is Secrecy.AMBIGUOUS:
            return None
        return begin + len(block[0]) - len(block[0].lstrip(" ")), begin + len(block[0].rstrip("\n"))

    def _literal_of_code(self, start: int) -> tuple[int, int] | None:
        is_annotation = self._between == ":" and not self._match["close"] and start == self._match.end()
        literal = None if is_annotation else _literal(self._text, start)
        if literal is None:
            return None
        value, is_doubtful = self._text[slice(*literal)], self._between in ("==", "!=")
        return None if is_visible_literal(value, self._match["name"], is_doubtful=is_doubtful) else literal

    def _is_visible(self, value: str) -> bool:
        if is_harmless(value, self._secrecy) or value.startswith("--"):
            return True
        if self._between == "" and value.lower() in _PROSE:
            return True
        if self._style is Style.COMMENT:
            return not self._is_meant(value)
        is_assigned = self._match["between"] == "=" or self._between in ("", ",")
        return self._secrecy is Secrecy.AMBIGUOUS and not is_assigned and not looks_secret(value)

    def _is_meant(self, value: str) -> bool:
        """Return whether prose assigns a value to the name instead of mentioning the name: `password: required`."""
        if looks_secret(value) or (re.search(r"\d", value) and re.search(r"[A-Za-z]", value)):
            return True
        if self._secrecy is Secrecy.AMBIGUOUS or value.isupper():
            return False
        if self._match["between"] == "=":
            return True
        end = self._match.end() + len(value)
        is_alone = self._between != "" and _LINE_ENDS.match(self._text, end) is not None
        return self._secrecy is Secrecy.CERTAIN and (bool(self._match["dashes"]) or is_alone)

    def _end_of_word(self, quoted: tuple[int, int]) -> int:
        """Return the end of a shell word; a quote followed by a separator ends it."""
        end = quoted[1]
        goes_on = self._style is Style.PLAIN and self._between != ","
        return _end(_REST_OF_WORD, self._text, end) if goes_on else end

    def _end_of_bare(self, start: int) -> int:
        text, secrecy = self._text, self._secrecy
        if self._match["name"].lower().endswith(("authorization", "cookie")):
            return _end(_TO_END_OF_LINE, text, start)
        if self._before.rstrip().endswith(";") and "=" in self._between:  # Server=h; Password=a b; Database=d
            return _end(_OF_CONNECTION, text, start)
        bracketed = (_LIST if secrecy is Secrecy.AMBIGUOUS else _BRACKETED).match(text, start)
        if bracketed is not None:
            return bracketed.end()
        is_doubtful = self._style is Style.COMMENT and secrecy is Secrecy.AMBIGUOUS
        word = (_BARE_OF_CODE if is_doubtful else _BARE).match(text, start)
        if word is None:
            return start
        pair = _NEXT_PAIR.search(text, start, word.end())
        if pair is not None:
            return pair.start()
        end = word.end()
        if is_harmless(text[start : _trim_closing(text, start, end)], secrecy):
            return _trim_closing(text, start, end)
        if self._match["between"] == "=":  # Password=a b;Server=h
            end = _end(_NEXT_OF_CONNECTION, text, end)
        if secrecy is not Secrecy.AMBIGUOUS and self._is_whole_line():
            end = _end(_TO_COMMENT, text, end)
        return _trim_closing(text, start, end)

    def _is_whole_line(self) -> bool:
        is_apart = self._match["between"] != self._between and self._between in ("=", ":")
        if not is_apart or self._style is not Style.PLAIN:
            return False
        return _LINE_BEGINS.search(self._text[max(0, self._match.start() - 80) : self._match.start()]) is not None


def _trim_closing(text: str, start: int, end: int) -> int:
    while end > start + 1 and text[end - 1] in ",;)]}>":
        opening = {")": "(", "]": "[", "}": "{", ">": "<"}.get(text[end - 1])
        if opening is not None and text.count(opening, start, end) >= text.count(text[end - 1], start, end):
            break
        end -= 1
    return end


def _end(pattern: re.Pattern[str], text: str, start: int) -> int:
    match = pattern.match(text, start)
    return start if match is None else match.end()


def _literal(text: str, start: int) -> tuple[int, int] | None:
    """Return the quoted text at a position; up to the end of the line if the quote is not closed."""
    opening = _QUOTE.match(text, start)
    if opening is None:
        return None
    quote, begin = opening["quote"], opening.end()
    if len(quote.lstrip("\\")) == 3:
        end = text.find(quote, begin)
    elif quote.startswith("\\"):  # in a text within a text, the quotes are escaped
        end = text.find(quote, begin, _end(_LINE, text, begin))
    else:
        inner = _end(_INNER[quote], text, begin)
        end = inner if text.startswith(quote, inner) else -1
    return begin, _end(_LINE, text, begin) if end < 0 else end
