"""The unit in the text before or after a number: `183.3k tok/s`, `2.00s/it`, `ms/step: 12.5`, `(tok/s): 80`."""

from __future__ import annotations

import re
from typing import NamedTuple

from pipeline.base.domain import work_units
from pipeline.base.domain.metric_unit import SCALES, MetricUnit
from pipeline.observe.program_rates.numbers import UnreadableError

_SECONDS = {
    **dict.fromkeys(("ns", "nsec", "nanosecond", "nanoseconds"), 1e-9),
    **dict.fromkeys(("us", "\u00b5s", "\u03bcs", "usec", "microsecond", "microseconds"), 1e-6),
    **dict.fromkeys(("ms", "msec", "msecs", "millisecond", "milliseconds"), 1e-3),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("min", "mins", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3600.0),
}
_SECONDS |= {name.capitalize(): seconds for name, seconds in _SECONDS.items() if len(name) > 2}
_TIME = f"(?:{'|'.join(sorted(_SECONDS, key=len, reverse=True))})"
_PER = r"(?: ?/ ?| per |_per_)"
_LETTER = "[A-Za-z\u00b5\u03bc]"

# Texts after a number, or in a label. Times: `2.00s/it`, `3.1 ms / 100 steps`. Rates: `1.5it/s`, `207.45/s`, `12 GB/s`.
_TIME_PER = re.compile(rf"[ \t]{{0,3}}[(\[]?(?P<time>{_TIME}){_PER}(?P<num>\d{{1,9}} ?)?(?P<noun>[A-Za-z]\w*)")
_PER_TIME = re.compile(
    rf"[ \t]{{0,3}}[(\[]?(?:{_LETTER}{{2,}} )?(?P<work>{_LETTER}[\w#-]*)?{_PER}(?P<time>{_TIME})(?!_per_|[A-Za-z])"
)
_PREFIX = re.compile(r"(?P<prefix>[kKMGT]i?)(?![A-Za-z0-9])| (?P<spaced>[kMGT]) (?=[A-Za-z]+/)")
_BARE_TIME = re.compile(rf" ?(?P<time>{_TIME})(?![A-Za-z0-9])")
# In `1.5m`, `1.5 B tok/s` and `1.5e5x`, the meaning of the letter is unknown.
_UNKNOWN = re.compile(rf"(?![sh]\b)(?:{_LETTER}(?![A-Za-z/_])| {_LETTER} (?=[A-Za-z]+/)|{_LETTER}+\d)")
_LABEL = re.compile(
    rf"(?P<words>(?:{_LETTER}+ per )?{_LETTER}[\w/.\u00b5\u03bc-]*)\s*(?:[(\[](?P<unit>[^()\[\]]{{1,24}})[)\]])?"
    r"[\"'\]]?\s*[:=]?\s*[\"'(\[]?$"
)
_CAMEL_PER = re.compile(r"(?<=[a-z])Per(?=[A-Z])")
_WORD = re.compile(r"[A-Z]?[a-z\u00b5]+|[A-Z]+(?![a-z])")
_TIME_WORDS = frozenset(
    {*_SECONDS, "time", "latency", "elapsed", "duration", "runtime", "took", "dt"} - {"s", "h", "min"}
)
# Nouns that programs write with a prefix: `kit/s`, `Mtok/s`, `GB/s`.
_COUNTED = frozenset(
    re.findall(
        r"\w+",
        """it its iter iters iteration iterations step steps b byte bytes bit bits tok toks token tokens sample samples
        img imgs image images seq seqs example examples req reqs request requests frame frames word words flop flops op
        ops item items row rows batch batches char chars pixel pixels px""",
    )
)

_SAY_UNIT = "set workload.metric_unit, such as s_per_step or M"


class RateText(NamedTuple):
    """Meaning of the text before or after a number.

    Attributes:
        prefix: factor of the unit's prefix; 1 without a prefix.
        seconds: seconds in the unit of time; `None` without a unit of time.
        is_time: whether the number is a time; `None` if unknown.
        per_work: whether the time is per amount of work, as in `s/it`.
        noun: noun of the work; empty if unknown.
        words: the text.
        num: amount of work of the time, such as 100 in `ms / 100 steps`.
    """

    prefix: float = 1.0
    seconds: float | None = None
    is_time: bool | None = None
    per_work: bool = False
    noun: str = ""
    words: str = ""
    num: int = 1


def read(before: str, after: str, unit: str, *, is_unit_given: bool = False) -> RateText:
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
    behind = _read_text(after, unit, is_beside=True)
    if behind.is_time is not None and (behind.per_work or not behind.is_time):
        return behind
    ahead = read_label(before, unit)
    if behind.is_time and ahead.is_time is False:
        raise UnreadableError(f"{ahead.words} is a rate, but {behind.words.strip()} is a time", _SAY_UNIT)
    if behind.is_time:
        return behind
    return ahead._replace(prefix=ahead.prefix if behind.prefix == 1 else behind.prefix)


def read_label(text: str, unit: str) -> RateText:
    """Return the meaning of a label at the end of a text: `tok/sec: `, `time per step (ms): `."""
    label = _LABEL.search(text[-80:])
    if label is None:
        return RateText()
    if label["unit"] is not None:
        inside = _read_text(f" {label['unit']}", unit, is_beside=False)
        if inside.is_time is not None:
            return inside
    words = _CAMEL_PER.sub("_per_", label["words"])
    for begin in (match.start() for match in re.finditer(rf"(?<!{_LETTER}){_LETTER}", words)):
        part = _read_text(words[begin:], unit, is_beside=False)
        if part.is_time is not None and (part.per_work or not part.is_time):
            return part
    parts = [word.lower() for word in _WORD.findall(words)]
    if not _TIME_WORDS & set(parts):
        return RateText(words=words)
    return RateText(is_time=True, seconds=_SECONDS.get(parts[-1]), words=words)


def to_unit(text: RateText, setting: MetricUnit | None) -> MetricUnit:
    """Return the unit of a number from the text next to it, completed by the user's unit.

    Raises:
        UnreadableError: the number is a time of unknown work.
    """
    if text.is_time and not text.per_work and (setting is None or (not setting.is_time and text.seconds is not None)):
        raise UnreadableError(f"{text.words.strip()} is a time of unknown work", _SAY_UNIT)
    if text.is_time and (text.per_work or text.seconds is not None):
        assert text.seconds is not None
        return MetricUnit(scale=text.seconds / text.num, is_time=True)
    if text.is_time is False or setting is None:
        return MetricUnit(scale=text.prefix / (text.seconds or 1.0) * _find_prefix(text, setting))
    return setting if text.prefix == 1 or setting.is_time else MetricUnit(scale=text.prefix)


def _find_prefix(text: RateText, setting: MetricUnit | None) -> float:
    """Return the user's scale for a rate without a prefix, such as `80 tok/s` with `workload.metric_unit=k`."""
    return (
        setting.scale if setting is not None and not setting.is_time and text.prefix == 1 and text.seconds == 1 else 1.0
    )


def _read_text(text: str, unit: str, *, is_beside: bool) -> RateText:
    if (time := _TIME_PER.match(text)) is not None and time["noun"] not in _SECONDS:
        parsed = RateText(seconds=_SECONDS[time["time"]], is_time=True, per_work=True, noun=time["noun"], words=time[0])
        return parsed._replace(num=max(1, int(time["num"] or 1)))
    prefix = 1.0
    if is_beside and (scaled := _PREFIX.match(text)) is not None:
        prefix = _parse_scale(scaled["prefix"] or scaled["spaced"])
        text = text[scaled.end() :]
    if (rate := _PER_TIME.match(text)) is not None:
        work = rate["work"] or ""
        scale, noun = _split(work, unit) if prefix == 1 else (prefix, work)
        return RateText(prefix=scale, seconds=_SECONDS[rate["time"]], is_time=False, noun=noun, words=rate[0])
    if prefix == 1 and (time := _BARE_TIME.match(text)) is not None:
        return RateText(seconds=_SECONDS[time["time"]], is_time=True, words=time[0])
    return RateText(prefix=prefix)


def _split(work: str, unit: str) -> tuple[float, str]:
    """Split a unit into the factor of its prefix and its noun; the workload's work unit has no prefix."""
    if work.lower() in (unit.lower(), work_units.format_singular(unit).lower()):
        return 1.0, work
    for length in (2, 1):
        prefix, noun = work[:length], work[length:]
        is_prefix = prefix[:1] in (*SCALES, "K") and prefix[1:] in ("", "i")
        if is_prefix and (not noun or noun.lower() in _COUNTED):
            return _parse_scale(prefix), noun
    return 1.0, work


def _parse_scale(prefix: str) -> float:
    exponent = "kMGT".index(prefix[0].replace("K", "k")) + 1
    return float(1024**exponent) if prefix.endswith("i") else 1000.0**exponent
