"""Units of the rate that a program logs, as a user sets them (`workload.metric_unit=k`) or as a program writes them.

A unit is `tok/s`, `ms/step`, `ns/day` or a prefix. In output it stands before or after the number: `183.3k tok/s`,
`2.00s/it`, `ms/step: 12.5`, `(tok/s): 80`.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import NamedTuple

from pipeline.base.domain.work_units import format_singular

SCALES = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
PREFIXES = SCALES | {"K": 1e3, "ki": 1024.0, "Ki": 1024.0, "Mi": 1024.0**2, "Gi": 1024.0**3, "Ti": 1024.0**4}
"""Prefixes of rates: those that a user sets, and those that programs write."""

_SPELLINGS = {
    "fs": (1e-15, "femtosecond femtoseconds"),
    "ps": (1e-12, "picosecond picoseconds"),
    "ns": (1e-9, "nsec nanosecond nanoseconds"),
    "us": (1e-6, "\u00b5s \u03bcs usec microsecond microseconds"),
    "ms": (1e-3, "msec msecs millisecond milliseconds"),
    "s": (1.0, "sec secs second seconds"),
    "min": (60.0, "mins minute minutes"),
    "h": (3600.0, "hr hrs hour hours"),
    "day": (86400.0, "days"),
}
TIMES = {name: unit for unit, (_, names) in _SPELLINGS.items() for name in (unit, *names.split())}
TIMES |= {name.capitalize(): unit for name, unit in TIMES.items() if len(name) > 2}
"""Names of units of time, each with its short form."""

_NOUNS = dict(
    re.findall(
        r"(\S+):(\w+)",
        """it:iterations iter:iterations iteration:iterations step:steps atom-step:atom_steps batche:batches tok:tokens
        token:tokens word:words char:characters sample:samples img:images image:images seq:sequences sequence:sequences
        frame:frames item:items row:rows req:requests request:requests op:operations px:pixels b:bits B:bytes
        byte:bytes bit:bits pixel:pixels example:examples flop:FLOP""",
    )
)
"""Work units of the nouns that programs write with a prefix: `kit/s`, `Mtok/s`, `GB/s`, `Matom-step/s`."""
_SAME_WORK = (
    frozenset({"iterations", "steps", "batches"}),
    frozenset({"samples", "images", "sequences", "examples", "frames"}),
    frozenset(_SPELLINGS),
)
"""Work units that stand for each other: one turn of a program's loop, one input of a model, simulated time."""

_UNIT = re.compile(r"(?:(\w*?)(?:^|_)per_)?([^\W\d]\w*)")
FORMS = "write k, M, G, T, per_min, per_h, per_day, or a unit such as s_per_step, ms_per_it or ns_per_day"
_SAY_WORK = "set workload.work_unit, such as steps"


class UnreadableError(ValueError):
    """A number or a unit that is unclear; the text is the reason, a semicolon and the remedy."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(f"{reason}; {remedy}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricUnit:
    """The unit of a number that expresses a rate.

    Attributes:
        scale: units per second, or seconds, per unit of the number.
        prefix: the part of the scale that is a prefix, such as 1000 in `ktok/min`.
        is_time: whether the number is the time per work unit.
        work: the work unit, in plural; a unit of time if the work is simulated time; empty if unspecified.
    """

    scale: float = 1.0
    prefix: float = 1.0
    is_time: bool = False
    work: str = ""

    def rate(self, value: float) -> float:
        """Return the rate per second for a value; infinite for a time of 0."""
        scaled = value * self.scale
        if not self.is_time:
            return scaled
        return 1 / scaled if scaled else float("inf")

    def with_prefix(self, prefix: float) -> MetricUnit:
        """Return the unit with another prefix."""
        return dataclasses.replace(self, scale=self.scale / self.prefix * prefix, prefix=prefix)

    def counts(self, unit: str) -> bool:
        """Return whether the number expresses a rate of this work unit, or of another word for it."""
        names = {name_work(unit).lower(), self.work.lower()}
        return not self.work or len(names) == 1 or any(names <= same for same in _SAME_WORK)

    def count_in(self, work_unit: str) -> MetricUnit:
        """Return the unit for this work unit; if it is empty, simulated time is counted in ns, and other work as it is.

        Raises:
            UnreadableError: the number counts other work, or no work is specified.
        """
        if not (self.work or work_unit):
            raise UnreadableError("the number has no unit of work", _SAY_WORK)
        work_unit = work_unit or ("ns" if self.work in _SPELLINGS else self.work)
        if not self.counts(work_unit):
            remedy = f"set workload.work_unit={self.work}, or let the pattern match {work_unit} only"
            raise UnreadableError(f"the number counts {self.work}, not {work_unit}", remedy)
        if self.work not in _SPELLINGS:
            return dataclasses.replace(self, work=work_unit)
        ratio = _SPELLINGS[self.work][0] / _SPELLINGS[TIMES.get(work_unit, self.work)][0]
        return dataclasses.replace(self, scale=self.scale * ratio ** (-1 if self.is_time else 1), work=work_unit)


def relate(above: str, below: str, *, num: int = 1, work_unit: str = "") -> MetricUnit | None:
    """Return the unit `above/below`, such as `tok/s` or, with `num=100`, `s/100 it`; `None` if it contains no time.

    Of two times, as in `ns/day` and `days/ns`, the longer one passes, and the shorter one is simulated. `work_unit` is
    the work unit of the workload; if it is `GB`, `GB/s` has no prefix.
    """
    time, time_below = (_SPELLINGS[TIMES[name]][0] if name in TIMES else None for name in (above, below))
    if time is not None and (time_below is None or time > time_below):
        return MetricUnit(scale=time / num, is_time=True, work=name_work(below))
    if time_below is None or time == time_below:
        return None
    prefix, noun = (1.0, above) if time is not None else _split(above, work_unit)
    return MetricUnit(scale=1 / time_below, work=name_work(noun)).with_prefix(prefix)


def name_work(noun: str) -> str:
    """Return the work unit for a noun in a unit: `tokens` for `tok`, `widgets` for `widget`, `us` for `µs`."""
    if (unit_name := TIMES.get(noun) or _find_noun(noun)) is not None:
        return unit_name
    word = re.sub(r"\W", "_", noun.lower() if noun.istitle() else noun)
    if not word or word.endswith("s") or f"{word}s" in TIMES:  # `f/s` counts no femtoseconds
        return word
    return f"{word}es" if word.endswith(("tch", "sh", "x")) else f"{word}s"


def _find_noun(noun: str) -> str | None:
    forms = (noun, noun.lower(), noun.lower().removesuffix("s"))
    return next((_NOUNS[form] for form in forms if form in _NOUNS), None)


def parse_unit(text: str) -> MetricUnit:
    """Parse a unit such as `k`, `per_min`, `ms_per_step` or `ns/day`; raise `ValueError` if it is unknown."""
    match = _UNIT.fullmatch(text.replace("/", "_per_"))
    above, below = (None, "") if match is None else match.groups()
    if above is None:
        above, below = (below, "s") if below in SCALES else ("", "")
    unit = relate(above, below)
    if unit is None:
        raise ValueError(FORMS)
    return unit


def _split(noun: str, work_unit: str) -> tuple[float, str]:
    """Split a noun into the factor of its prefix and the noun alone; the workload's work unit has no prefix."""
    if noun.lower() in (work_unit.lower(), format_singular(work_unit).lower()):
        return 1.0, noun
    for length in (2, 1):
        prefix, counted = noun[:length], noun[length:]
        if prefix in PREFIXES and (not counted or _find_noun(counted)):
            return PREFIXES[prefix], counted
    last_word = re.split(r"_|(?<=[a-z])(?=[A-Z])", noun)[-1]  # of `train_steps` or `RunningAvgSamples`
    return 1.0, last_word if _find_noun(last_word) and not _find_noun(noun) else noun


_TIME = f"(?:{'|'.join(sorted(TIMES, key=len, reverse=True))})"
_PER = r"(?: ?/ ?| per |_per_)"
_LETTER = "[A-Za-z\u00b5\u03bc]"

# Texts after a number, or in a label. Times: `2.00s/it`, `3.1 ms / 100 steps`. Rates: `1.5it/s`, `207.45/s`, `12 GB/s`.
_TIME_PER = re.compile(rf"[ \t]{{0,3}}[(\[]?(?P<above>{_TIME}){_PER}(?:(?P<num>\d{{1,9}}) ?)?(?P<below>{_LETTER}\w*)")
_PER_TIME = re.compile(
    rf"[ \t]{{0,3}}[(\[]?(?:{_LETTER}{{2,}} )?(?P<above>{_LETTER}[\w#-]*)?{_PER}(?P<below>{_TIME})"
    r"(?!_per_(?!(?:gpu|device|rank|node|chip)(?![a-z]))|[A-Za-z])"
)
_NEXT_LABEL = re.compile(r"[\])\"']?[ \t]{0,9}[=:]")
_PREFIX = re.compile(r"(?P<prefix>[kKMGT]i?)(?![A-Za-z0-9])| (?P<spaced>[kMGT]) (?=[A-Za-z]+/)")
_BARE_TIME = re.compile(rf" ?(?P<time>{_TIME})(?![A-Za-z0-9])")
# In `1.5m`, `1.5 B tok/s`, `1.5e5x` and `1.5 m/step`, the meaning of the letter is unknown.
_UNKNOWN = re.compile(
    rf"(?![sh]\b)(?:{_LETTER}(?![A-Za-z/_])| {_LETTER} (?=[A-Za-z]+/)|{_LETTER}+\d)"
    rf"| ?(?!{_TIME}/){_LETTER}+/(?:it|step|epoch|sample|batch)\b"
)
_LABEL = re.compile(
    rf"(?P<words>(?:{_LETTER}+ per )?{_LETTER}[\w/.\u00b5\u03bc-]*)\s*(?:[(\[](?P<unit>[^()\[\]]{{1,24}})[)\]])?"
    r"[\"'\]]?\s*[:=]?\s*[\"'(\[]?$"
)
_CAMEL_PER = re.compile(r"(?<=[a-z])Per(?=[A-Z])")
_WORD = re.compile(r"[A-Z]?[a-z\u00b5]+|[A-Z]+(?![a-z])")
_TIME_WORDS = frozenset(
    {*TIMES, "time", "latency", "elapsed", "duration", "runtime", "took", "dt"} - {"s", "h", "min", "ps", "fs"}
)
# A number with a rate or a time per work, as far as a line that no pattern matches is examined.
_NUMBER_WITH_UNIT = re.compile(rf"\d ?({_LETTER}[\w-]* ?/ ?{_LETTER}+)")
# A unit in a user's pattern, such as `it/s`, ` samples/s`, `\s*tok/sec` and ` samples per second`.
_UNIT_IN_PATTERN = re.compile(
    rf"(?P<gap>(?:\\s[*+?]?| [*+?]?)*)(?<!\\)\b(?P<above>{_LETTER}+)(?P<per>/| per )(?P<below>{_LETTER}+)\b"
)
_SAY_UNIT = "set workload.metric_unit, such as s_per_step or M"


class RateText(NamedTuple):
    """Meaning of the text before or after a number.

    Attributes:
        prefix: factor of the unit's prefix; 1 without a prefix.
        unit: the unit if it contains a unit of time and work, as in `tok/s` and `ms/step`.
        is_time: whether the number is a time of unknown work.
        time: the unit of this time; empty if unknown.
        words: the text.
    """

    prefix: float = 1.0
    unit: MetricUnit | None = None
    is_time: bool = False
    time: str = ""
    words: str = ""


def read_unit(before: str, after: str, unit: str, *, is_unit_given: bool = False) -> RateText:
    """Return the meaning of the text after a number, or else of the text before it.

    `unit` is the workload's work unit; if it is `gb`, `GB/s` has no prefix. Unknown letters are ignored if the user
    sets the unit.

    Raises:
        UnreadableError: the letters after the number are unknown, as in `1.5m`.
    """
    if not _PREFIX.match(after) and (unknown := _UNKNOWN.match(after)) is not None:
        if not is_unit_given:
            raise UnreadableError(f"its unit {after.split()[0]} is unknown", _SAY_UNIT)
        after = after[unknown.end() :]
    text_after, text_before = _read_text(after, unit, is_beside=True), read_label(before, unit)
    # In `ns/day = 100   seconds/ns = 864`, the text after the first number is the label of the second one.
    if text_before.unit is not None and _NEXT_LABEL.match(after[len(text_after.words) :]) is not None:
        return text_before
    if text_after.is_time and text_before.unit is not None and not text_before.unit.is_time:
        raise UnreadableError(f"{text_before.words} is a rate, but {text_after.words.strip()} is a time", _SAY_UNIT)
    if text_after.unit is not None or text_after.is_time:
        return text_after
    if text_after.prefix == 1:
        return text_before
    return text_before._replace(
        prefix=text_after.prefix, unit=text_before.unit and text_before.unit.with_prefix(text_after.prefix)
    )


def read_label(text: str, unit: str) -> RateText:
    """Return the meaning of a label at the end of a text: `tok/sec: `, `time per step (ms): `."""
    label = _LABEL.search(text[-80:])
    if label is None:
        return RateText()
    if label["unit"] is not None:
        inside = _read_text(f" {label['unit']}", unit, is_beside=False)
        if inside.unit is not None or inside.is_time:
            return inside
    words = _CAMEL_PER.sub("_per_", label["words"])
    for begin in (match.start() for match in re.finditer(rf"(?<!{_LETTER}){_LETTER}", words)):
        part = _read_text(words[begin:], unit, is_beside=False)
        if part.unit is not None:
            return part
    parts = [word.lower() for word in _WORD.findall(words)]
    if not _TIME_WORDS & set(parts):
        return RateText(words=words)
    return RateText(is_time=True, time=parts[-1] if parts[-1] in TIMES else "", words=words)


def read_metric_name(name: str, setting: MetricUnit | None, work_unit: str) -> MetricUnit:
    """Return the unit of a logged metric, by its name and the user's settings; raise `UnreadableError` if unclear."""
    label = read_label(name.removesuffix("/min"), work_unit)  # `/min` is a minimum, not a minute
    return to_unit(label, setting).count_in(work_unit)


def to_unit(text: RateText, setting: MetricUnit | None) -> MetricUnit:
    """Return the unit of a number from the text next to it, completed by the user's unit.

    Raises:
        UnreadableError: the number is a time of unknown work.
    """
    if text.unit is not None:
        if text.unit.scale != 1 or text.unit.is_time or setting is None or setting.is_time:
            return text.unit
        return text.unit.with_prefix(setting.scale)
    if text.is_time and (setting is None or (text.time and not setting.is_time)):
        raise UnreadableError(f"{text.words.strip()} is a time of unknown work", _SAY_UNIT)
    if setting is None:
        return MetricUnit().with_prefix(text.prefix)
    if text.time and (unit := relate(text.time, setting.work)) is not None:
        return unit
    return setting if text.prefix == 1 or setting.is_time else setting.with_prefix(text.prefix)


def find_unit(line: str) -> str:
    """Return the first text in a line that may be the unit of a number: `s/it`; empty if there is none."""
    match = _NUMBER_WITH_UNIT.search(line)
    return match[1].replace(" ", "") if match is not None else ""


def widen_pattern(pattern: str) -> re.Pattern[str]:
    """Return the pattern, extended to other prefixes, times and the inverse of its unit: `s/it`, `kit/s`, `it/min`."""
    original = re.compile(pattern)
    try:
        extended = re.compile(_UNIT_IN_PATTERN.sub(_list_forms, pattern), original.flags)
    except re.error:  # the text `it/s` had another meaning in the pattern
        return original
    return extended if extended.groups == original.groups else original


def _list_forms(match: re.Match[str]) -> str:
    above, below, gap = match["above"], match["below"], match["gap"]
    if (unit := relate(above, below)) is None:
        return match[0]
    noun = below if unit.is_time else above
    if noun in TIMES:
        return rf"{gap}(?:{_TIME}){_PER}(?:{_TIME})\b"
    if unit.prefix != 1 and name_work(noun[1:]) == unit.work:
        noun = noun[1:]
    prefix, work = "[kKMGT]?i?", rf"{re.escape(format_singular(noun))}(?:e?s)?"
    return rf"(?:{prefix}{gap}{prefix}{work}{_PER}{_TIME}\b|\s?{_TIME}{_PER}(?:\d+ ?)?{work})"


def _read_text(text: str, unit: str, *, is_beside: bool) -> RateText:
    if (time := _TIME_PER.match(text)) is not None:
        num = max(1, int(time["num"] or 1))
        parsed = relate(time["above"], time["below"], num=num, work_unit=unit)
        if parsed is not None and parsed.is_time:
            return RateText(unit=parsed, words=time[0])
    prefix, length = 1.0, 0
    if is_beside and (scaled := _PREFIX.match(text)) is not None:
        prefix, length = PREFIXES[scaled["prefix"] or scaled["spaced"]], scaled.end()
    if (rate := _PER_TIME.match(text[length:])) is not None:
        above = rate["above"] or ""
        if (parsed := relate(above, rate["below"], work_unit=unit if prefix == 1 else above)) is not None:
            parsed = parsed.with_prefix(prefix * parsed.prefix)
            return RateText(prefix=parsed.prefix, unit=parsed, words=text[:length] + rate[0])
    if prefix == 1 and (time := _BARE_TIME.match(text)) is not None:
        return RateText(is_time=True, time=time["time"], words=time[0])
    return RateText(prefix=prefix)
