"""Numbers as people and programs write them. An ambiguous number is an error.

`1,050.5` and `1.050,5` are clear. `1,050` is ambiguous, because the comma may be either mark, and `5130,4` is ambiguous
because it may be one number or two. For an ambiguous number, the user extends the pattern or sets
`workload.decimal_mark`.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from pipeline.base.domain.metric_unit import UnreadableError

_GROUPERS = "_'\u2019\u00a0\u202f\u2009"  # characters that only separate thousands
_SIGNS = "-+\u2212"
_BESIDE = 100
"""Number of characters before and after a number that are examined."""

_TOKEN = re.compile(rf"(?:\d+|(?<!\d)\.\d+)(?:[.,{_GROUPERS}]\d+)*\.?(?:[eE][+-]?\d+(?![\w.]))?")
_ENGLISH = re.compile(r"[1-9]\d{0,2}(?:,\d{3})+(?:\.\d*)?")
_EUROPEAN = re.compile(r"[1-9]\d{0,2}(?:\.\d{3})+(?:,\d+)?")
_GROUPED = re.compile(rf"[1-9]\d{{0,2}}([ {_GROUPERS}])\d{{3}}(?:\1\d{{3}})*(?:[.,]\d*)?")
_NOT_FINITE = re.compile(rf"[{_SIGNS}]?(?:nan|inf(?:inity)?)", re.IGNORECASE)
# A number whose point can only be a decimal mark: commas in other numbers of its line separate thousands.
_DECIMAL_POINT = re.compile(r"(?<![\w.,:])(?:\d+\.(?:\d{1,2}|\d{4,})|(?:0|\d{4,})\.\d+)(?![\d.,:]*\d)")
_SIGN = re.compile(rf"(?:^|[^\w.,)\]])[{_SIGNS}]$")
_PART_OF_MORE = (
    (
        re.compile(r"(?<![\w.,:/-])[1-9]\d{0,2}(?: \d{3})* $"),
        re.compile(r"\d{3}(?!\d)"),
        "the space may separate thousands",
    ),
    (re.compile(r"\d:$"), re.compile(r"\d\d(?!\d)"), "it may be a time"),
    (re.compile(r"\d/$"), re.compile(""), "it may be a fraction"),
    (re.compile(rf"\d[{_SIGNS}]$"), re.compile(""), "it may be a range"),
    (re.compile(r"(?:\u00b1|\+/?-) ?$"), re.compile(""), "it is the uncertainty of another number"),
)
"""Pattern of the text before an ambiguous number, pattern of the number's beginning, and reason."""

_GOES_ON = (
    (re.compile(r"[1-9]\d{0,2}"), re.compile(r" \d{3}(?!\d)"), "the space may separate thousands"),
    (re.compile(r"\d+"), re.compile(r":\d\d(?!\d)"), "it may be a time"),
    (re.compile(""), re.compile(r"/\d"), "it may be a fraction"),
)
"""Pattern of an ambiguous number, pattern of the text after the number, and reason."""

_SAY_MARK = "set workload.decimal_mark=comma or point"
_SAY_PATTERN = "add the text before or after the number to the pattern"


class Number(NamedTuple):
    """A number in a text, with the positions of its beginning, including the sign, and of its end."""

    value: float
    begin: int
    end: int


def read(text: str, span: tuple[int, int], bounds: tuple[int, int], decimal_mark: str | None = None) -> Number | None:
    """Return the number that contains a span of a text; `None` if there is no number in the span.

    `span` is the match of the user's group, and `bounds` are the limits that the user's pattern sets for the number.

    Raises:
        UnreadableError: the number is unclear.
    """
    chosen = text[slice(*span)].strip()
    if _NOT_FINITE.fullmatch(chosen):
        return Number(float(chosen.replace("\u2212", "-")), *span)
    tokens = [token for token in _TOKEN.finditer(text, *bounds) if token.start() < span[1] and token.end() > span[0]]
    if not tokens:
        return None
    begin, end = tokens[0].start(), tokens[-1].end()
    if len(tokens) > 1 and not _GROUPED.fullmatch(text[begin:end]):
        raise UnreadableError("the group matches several numbers", "limit the group to one number")
    before, after = text[max(bounds[0], begin - _BESIDE) : begin], text[end : min(bounds[1], end + _BESIDE)]
    if (why := _explain_ambiguity(before, text[begin:end], after)) is not None:
        raise UnreadableError(why, _SAY_PATTERN)
    matched = max(begin, span[0]), min(end, span[1])
    begin, end = _pick_from_list(text, (begin, end), matched)
    plain = _normalise(
        text[begin:end], is_all_chosen=(begin, end) == matched, mark=decimal_mark or _find_mark(text, begin, end)
    )
    sign = _SIGN.search(before) if begin == tokens[0].start() else None
    value = -float(plain) if sign is not None and sign[0][-1] != "+" else float(plain)
    return Number(value, begin - (sign is not None), end)


def _explain_ambiguity(before: str, number: str, after: str) -> str | None:
    for text_before, begins, why in _PART_OF_MORE:
        if text_before.search(before) and begins.match(number):
            return why
    for digits, follows, why in _GOES_ON:
        if digits.fullmatch(number) and follows.match(after):
            return why
    return None


def _pick_from_list(text: str, token: tuple[int, int], matched: tuple[int, int]) -> tuple[int, int]:
    """Return the chosen number of a list without spaces, such as `12,5130.4`."""
    begin, end = token
    listed = text[begin:end]
    if "," not in listed or "." not in listed or _ENGLISH.fullmatch(listed) or _EUROPEAN.fullmatch(listed):
        return token
    comma_before, comma_after = text.rfind(",", begin, matched[0]), text.find(",", matched[1], end)
    return comma_before + 1 or begin, end if comma_after < 0 else comma_after


def _find_mark(text: str, begin: int, end: int) -> str | None:
    """Return the decimal mark of a line from its other numbers, because a program uses one mark."""
    if "," not in text[begin:end]:
        return None
    other_numbers = (match for match in _DECIMAL_POINT.finditer(text) if match.end() <= begin or match.start() >= end)
    return "." if next(other_numbers, None) is not None else None


def _normalise(number: str, *, is_all_chosen: bool, mark: str | None) -> str:
    """Return a number in Python's notation; `is_all_chosen` is true if the user's group contains the entire number."""
    digits, *exponents = re.split("(?=[eE])", number, maxsplit=1)
    exponent = "".join(exponents)
    if (grouped := _GROUPED.fullmatch(digits)) is not None:
        digits = digits.replace(grouped[1], "")
    points, commas = digits.count("."), digits.count(",")
    if commas and (mark == "," or (mark is None and _EUROPEAN.fullmatch(digits))):
        is_right = commas == 1 and (not points or _EUROPEAN.fullmatch(digits))
        plain = digits.replace(".", "").replace(",", ".")
    elif commas:
        is_right = _ENGLISH.fullmatch(digits) and (mark == "." or points or commas > 1)
        plain = digits.replace(",", "")
        if (
            not is_right
            and mark is None
            and is_all_chosen
            and commas == 1
            and not points
            and not _ENGLISH.fullmatch(digits)
        ):
            return digits.replace(",", ".") + exponent
    elif points > 1 or (points and mark == ","):
        is_right = _EUROPEAN.fullmatch(digits) and mark != "."
        plain = digits.replace(".", "")
    else:
        is_right, plain = True, digits
    if not is_right or not plain.replace(".", "", 1).isdecimal():
        raise (
            UnreadableError("its comma may separate decimals or thousands", _SAY_MARK)
            if commas
            else UnreadableError("it is not a number", _SAY_PATTERN)
        )
    return plain + exponent
