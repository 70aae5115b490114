"""Removal of secrets from texts: command lines, URLs, headers, JSON, YAML, error output, source code.

JSON, YAML, and the statements of Python and TOML are trees of named values. A text that cannot be parsed as a whole,
such as part of a diff, is parsed in parts: YAML by indentation, Python by statement. In other text, a secret is found
by the name next to it, its position or its form (`secrecy`). Only the secret is replaced, and the number of lines stays
the same.
"""

from __future__ import annotations

import ast
import enum
import re
import string
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePath
from typing import Any

import yaml

from pipeline.base.system.secrecy import (
    HIDDEN,
    Secrecy,
    hide,
    is_harmless,
    looks_secret,
    mask_places,
    replace_tokens,
    secrecy_of,
    word_set,
)


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
_PROPERTIES_IN_LINE = re.compile(r"(?:[!&]\S*[ \t]+)*")  # of YAML: a tag, an anchor
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


def mask_text(text: str, secrets: Iterable[str] = (), style: Style = Style.PLAIN) -> str:
    """Replace the secrets in a text, also those in `secrets`, by `HIDDEN`; a text without secrets stays the same."""
    for secret in sorted(secrets, key=len, reverse=True):
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
            start = _end(_ANNOTATION, self._text, _end(_PROPERTIES_IN_LINE, self._text, start))
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


NOUN = re.compile(r"secret|pass|pwd|pw\b|token|key|cred|auth|sig|pats?\b|sas\b|cookie|jwt|psk|bearer|kennwort|sess")
"""Every name of a secret, in small letters, contains one of these words. Other texts need no search."""

_LINE_END = re.compile(r"\r\n?|\n")  # as Python's parser counts lines
_LABELS = re.compile(r"name|key|var(?:iable)?|field|option|property|param(?:eter)?(?:name|key)?", re.IGNORECASE)
_VALUES = re.compile(r"values?|val|default(?:_factory)?|const|(?:param(?:eter)?|string)value", re.IGNORECASE)
_NAME = re.compile(r"[\w.$/-]{1,128}")
_TOKEN = re.compile(
    r"(?P<long>\"\"\"|''').*?(?P=long)|(?P<quote>[\"'])(?:\\.|(?!(?P=quote))[^\\\n])*(?P=quote)"
    r"|\#[^\n]*|\\\n|[\[({\])}\n]",
    re.S,
)
_LITERAL = re.compile(r"(?P<quote>\"\"\"|'''|\"|')(?P<inner>(?:\\.|(?!(?P=quote)).)*)(?P=quote)", re.S)
_LONG = re.compile(r"(?P<quote>\"\"\"|''')(?P<inner>.*?)(?P=quote)", re.S)
_CLAUSE = re.compile(r"\s*(?:@|el(?=if\b)|(?:else|finally)\s*:|(?:except|case)\b[^:\n]*:)?\s*")
_CERTAINLY_SECRET = re.compile(r"(?=\S*\d)[\w.+/=:@!#%&*~-]+")
_PROPERTIES = re.compile(r"(?:[!&]\S*\s+)*")
_CLOSING = {"(": ")", "[": "]", "{": "}"}
# Texts around a part with which it can be parsed: a statement, a header, an argument, an entry.
_AROUND_CODE, _AROUND_HEADER = (("", ""), ("f(\n", "\n)"), ("{\n", "\n}")), (("", "\n pass"),)
_HEADER = re.compile(r":[ \t]*(?:#.*)?$")
_AROUND_YAML = {"{": ("[", "]"), '"': ("{", "}")}
_MOST_CHARACTERS, _COST_OF_FAILURE = 20_000, 1000
"""Bound of a statement of Python; the time of an attempt that fails, in characters."""
_STRONG = (ast.BoolOp, ast.BinOp, ast.IfExp, ast.List, ast.Tuple, ast.Set, ast.Dict, ast.Starred, ast.Lambda, ast.Await)
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

Span = tuple[int, int]
Branch = tuple[str, Any, bool]
"""The name of a part or an empty text, the part, and whether its texts are secrets only if they look like it."""


def find_label(pairs: Iterable[tuple[str, Any]]) -> str:
    """Return the name that a map gives to its value: `A` of `{"name": "A", "value": "B"}`; else an empty text."""
    return next((text for key, text in pairs if is_label(key) and isinstance(text, str)), "")


def is_label(key: str) -> bool:
    """Return whether the value of a key may be the name of another value."""
    return _LABELS.fullmatch(key) is not None


def has_label(key: str) -> bool:
    """Return whether the value of a key belongs to the name that another key gives."""
    return _VALUES.fullmatch(key) is not None


def is_visible_literal(value: str, name: str, *, is_doubtful: bool) -> bool:
    """Return whether a literal of a program cannot be the secret of a name."""
    secrecy, last = secrecy_of(name), name.rpartition(".")[2]
    is_certain = secrecy is Secrecy.CERTAIN or (secrecy is Secrecy.LIKELY and last.isupper())
    if is_doubtful and not _CERTAINLY_SECRET.fullmatch(value):
        return True
    is_doubtful |= not is_certain
    is_name = value.startswith("-") or ((is_doubtful or value.isupper()) and secrecy_of(value) is not Secrecy.NONE)
    return is_name or is_harmless(value, secrecy) or (is_doubtful and not looks_secret(value))


def find_in_code(text: str) -> list[Span]:
    """Return the spans of secret literals in the statements of a program."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of escapes in the code
        return sorted(set(_find_in_statements(text)))


def find_in_documents(text: str) -> list[Span]:
    """Return the spans of secret values in JSON and YAML, also below a line that is neither."""
    spans = set[Span]()
    for root, offset in _parse_documents(text):
        for node, name, _ in _find_leaves(root):
            start, end = (mark.index + offset for mark in (node.start_mark, node.end_mark))
            start += len(_PROPERTIES.match(text[start:end])[0])  # type: ignore[index]
            style, secrecy = getattr(node, "style", None), secrecy_of(name)
            if style in ("|", ">"):
                start = text.index("\n", start)
            inner = text[start:end].strip()
            start += text[start:end].find(inner)
            value = _text_of(node) or inner
            is_doubtful = secrecy is Secrecy.AMBIGUOUS and not looks_secret(value)
            if not is_harmless(value, secrecy) and not is_doubtful and HIDDEN not in inner:
                is_quoted = style in ("'", '"')
                spans.add((start + is_quoted, start + len(inner) - is_quoted))
    return sorted(spans)


def _parse_documents(text: str) -> Iterator[tuple[yaml.Node, int]]:
    """Yield the roots of documents, and the position in the text from which their positions count."""
    parts, budget = [(0, len(text))], 10 * len(text) + 500 * _COST_OF_FAILURE
    while parts and budget > 0:
        start, end = parts.pop()
        part = text[start:end]
        if ":" not in part or NOUN.search(part.lower()) is None:
            continue
        before, after = _AROUND_YAML.get(part.lstrip()[0], ("", ""))
        try:
            yield from ((root, start - len(before)) for root in yaml.compose_all(f"{before}{part}{after}", _LOADER))
        except (yaml.YAMLError, ValueError, RecursionError):
            budget -= len(part) + _COST_OF_FAILURE
            begins = list(re.finditer(r"^ *(?=[^\s#])", part, re.M))
            least = min((len(match[0]) for match in begins), default=0)
            bounds = [match.start() for match in begins if len(match[0]) == least]
            middle = bounds[len(bounds) // 2] if len(bounds) > 1 else part.find("\n") + 1  # a line and those below it
            if 0 < middle < len(part):
                parts += [(start, start + middle), (start + middle, end)]


def _find_in_statements(text: str, offset: int = 0) -> Iterator[Span]:
    position, budget = 0, 5 * len(text) + 500 * _COST_OF_FAILURE
    while position < len(text) and budget > 0:
        end, closers = _find_end(text, position)
        part = text[position:end]
        if ("'" in part or '"' in part) and NOUN.search(part.lower()) is not None:
            start = position + _CLAUSE.match(part).end()  # type: ignore[union-attr]
            tree, shift = _parse_code(text[start:end], closers)
            if tree is not None:
                yield from _find_in_tree(tree, text[start:end], offset + start, shift)
            else:  # another statement may begin in the next line
                budget -= len(part) + _COST_OF_FAILURE
                end = start + len(text[start:end].partition("\n")[0])
            if long := _LONG.search(text, position, end):  # code in a text, or text between two texts
                yield from _find_in_statements(long["inner"], offset + long.start("inner"))
        position = max(end, position) + 1


def _find_end(text: str, position: int) -> tuple[int, str]:
    """Return the end of the statement at a position, and the brackets that are open there."""
    closers = list[str]()
    for match in _TOKEN.finditer(text, position):
        part = match[0]
        if part in _CLOSING:
            closers.append(_CLOSING[part])
        elif part in closers[-1:]:
            closers.pop()
        elif (part in ")]}\n" and not closers) or (part == "\n" and match.start() - position > _MOST_CHARACTERS):
            return match.start(), ""
    return len(text), "".join(reversed(closers))


def _parse_code(part: str, closers: str) -> tuple[ast.AST | None, int]:
    """Return the tree of a part of a program, and the number of lines before it; `None` if it cannot be parsed."""
    for before, after in _AROUND_HEADER if _HEADER.search(part) else _AROUND_CODE:
        try:
            return ast.parse(f"{before}{part}\n{closers}{after}"), before.count("\n")
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
    return None, 0


def _find_in_tree(tree: ast.AST, part: str, start: int, shift: int) -> Iterator[Span]:
    lines = _LINE_END.split(part)
    starts = [start, *(start + match.end() for match in _LINE_END.finditer(part))]

    def locate(line: int, column: int) -> int:
        number = line - 1 - shift
        return starts[number] + len(lines[number].encode()[:column].decode())

    for node, name, is_doubtful in _find_leaves(tree):
        begin, end = locate(node.lineno, node.col_offset), locate(node.end_lineno, node.end_col_offset)
        literals = [*_LITERAL.finditer(part, begin - start, end - start)]
        if not is_visible_literal("".join(literal["inner"] for literal in literals), name, is_doubtful=is_doubtful):
            yield from ((start + literal.start("inner"), start + literal.end("inner")) for literal in literals)


def _find_leaves(root: Any) -> Iterator[tuple[Any, str, bool]]:
    """Yield the texts below a node that have a secret name, with this name."""
    stack, seen = [(root, "", False)], set[tuple[int, Secrecy, str]]()
    while stack:
        node, name, is_doubtful = stack.pop()
        secrecy = secrecy_of(name)
        is_list = isinstance(node, yaml.SequenceNode) and not node.flow_style  # such a list is hidden as a whole
        if _text_of(node) is not None or isinstance(node, ast.JoinedStr) or (is_list and secrecy > Secrecy.AMBIGUOUS):
            if secrecy is not Secrecy.NONE:
                yield node, name, is_doubtful
        elif (place := (id(node), secrecy, name.rpartition(".")[2])) not in seen:  # anchors may refer to each other
            seen.add(place)
            is_map_of_secrets = isinstance(node, ast.Dict) and name.isupper()
            for key, child, is_child_doubtful in _list_branches(node, is_named=bool(secrecy)):
                child_name = f"{name}.{key}" if name and key and not is_map_of_secrets else name or key
                if child is not None and (child_name or not isinstance(child, yaml.ScalarNode)):
                    stack.append((child, child_name, is_doubtful or is_child_doubtful))


def _list_branches(node: Any, *, is_named: bool) -> list[Branch]:
    match node:
        case yaml.MappingNode(value=pairs):
            return _name_values([(_text_of(key) or "", value, False) for key, value in pairs])
        case yaml.SequenceNode(value=parts) | ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
            return _name_next(parts, is_pair=len(parts) == 2)
        case ast.Assign():
            return [branch for target in node.targets for branch in _assign(target, node.value)]
        case ast.AnnAssign() | ast.AugAssign() | ast.NamedExpr():
            return _assign(node.target, node.value)
        case ast.Dict():
            items = zip(node.keys, node.values, strict=True)
            return _name_values([(_name_of(key), value, False) for key, value in items])
        case ast.arguments():
            last = [*node.posonlyargs, *node.args][::-1]  # defaults belong to the last arguments
            defaults = [*zip(last, node.defaults[::-1]), *zip(node.kwonlyargs, node.kw_defaults)]  # noqa: B905
            return [(argument.arg, default, False) for argument, default in defaults]
        case ast.Compare(left=left, comparators=comparators):
            return [(_name_of(left), other, True) for other in comparators]
        case ast.Subscript():
            return [("", node.value, True)]
        case ast.Call():
            return _list_arguments(node, is_named=is_named)
        case ast.keyword():
            return [(node.arg or "", node.value, False)]
        case ast.AST():
            return [("", child, not isinstance(node, _STRONG)) for child in ast.iter_child_nodes(node)]
    return []


def _assign(target: ast.expr, value: ast.expr | None) -> list[Branch]:
    if isinstance(target, ast.Tuple | ast.List) and isinstance(value, ast.Tuple | ast.List):
        return [branch for pair in zip(target.elts, value.elts) for branch in _assign(*pair)]  # noqa: B905
    return [(_name_of(target), value, False)]


def _list_arguments(call: ast.Call, *, is_named: bool) -> list[Branch]:
    """Return the parts of a call; `SecretStr("S")`, `setenv("TOKEN", "S")` and `default="S"` pass a secret."""
    function = _name_of(call.func)
    is_wrapper = function[:1].isupper() and secrecy_of(function) is not Secrecy.NONE
    is_strong = is_wrapper or function in ("Field", "field", "str", "bytes")
    positional = [
        (name or function * (is_wrapper and not is_named), part, is_doubtful or not (is_strong or name))
        for name, part, is_doubtful in _name_next(call.args, is_pair=True)
    ]
    label = next((name for name in map(_text_of, call.args) if name and secrecy_of(name)), "")
    keywords = [(keyword.arg or "", keyword.value, False) for keyword in call.keywords]
    named = _name_values([("name", ast.Constant(label), False), *keywords] if label else keywords)
    if is_named:  # Field("S", description="the key")
        named = [
            ("" if has_label(key) else key, part, has_label(key) and not is_strong)
            for key, part, _ in named
            if has_label(key) or secrecy_of(key)
        ]
    return [*positional, *named, ("", call.func, True)]


def _name_values(branches: list[Branch]) -> list[Branch]:
    """Name the value of a map after its label: `{"name": "TOKEN", "value": "S"}`."""
    label = find_label((key, _text_of(part)) for key, part, _ in branches)
    if secrecy_of(label) is Secrecy.NONE:
        return branches
    return [(label if has_label(key) else key, part, is_doubtful) for key, part, is_doubtful in branches]


def _name_next(parts: Sequence[Any], *, is_pair: bool) -> list[Branch]:
    """Name the parts of a list; in pairs, a part after the name of a secret has this name."""
    names = ["", *(_text_of(part) or "" for part in parts)]
    is_name = [
        (is_pair or name.startswith("-")) and _NAME.fullmatch(name) is not None and secrecy_of(name) > Secrecy.NONE
        for name in names
    ]
    return [
        (name if named else "", part, named and not (name.isupper() or name.startswith("-")))
        for name, named, part in zip(names, is_name, parts)  # noqa: B905
    ]


def _text_of(node: Any) -> str | None:
    if isinstance(node, yaml.ScalarNode):
        return str(node.value)
    value = node.value if isinstance(node, ast.Constant) else None
    return value.decode("latin-1") if isinstance(value, bytes) else value if isinstance(value, str) else None


def _name_of(node: Any) -> str:
    """Return the last part of the name that an expression has: `token` of `self.token` and of `config["token"]`."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Subscript():
            return _name_of(node.slice)
        case ast.Constant(value=str(name)) if _NAME.fullmatch(name):
            return name
    return ""
