"""The decoder of JSON: what it takes, and the place that an error names."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from pipeline.base.system.json_decoder import JsonValueError, decode, encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    name: str
    start: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
    inners: tuple[Inner, ...]
    mode: Literal["mps", "mig"] | None = None
    rates: Mapping[str, float] = field(default_factory=dict)
    points: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    options: tuple[tuple[str, object], ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    is_new: bool = False


WHOLE = {
    "inners": [{"name": "a", "start": 1}],
    "mode": "mig",
    "rates": {"a": 1},
    "points": {"loss": [[1, 0.5]]},
    "options": [["loads", [[1, {"b": 2}]]]],
    "details": {"any": [1, None]},
    "is_new": True,
}


def test_what_was_encoded_is_decoded() -> None:
    decoded = decode(Outer, WHOLE)
    assert decoded.inners == (Inner(name="a", start=1),) and isinstance(decoded.rates["a"], float)
    assert decoded.options == (("loads", ((1, (("b", 2),)),)),) and hash(decoded.options)
    assert decoded.details == {"any": [1, None]}
    assert decode(Outer, encode(decoded)) == decoded
    assert decode(Outer, {"inners": []}) == Outer(inners=())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"inners": None}, "inners must be a list, not null"),
        ({"inners": "ab"}, 'inners must be a list, not "ab"'),
        ({"inners": {"name": "a"}}, 'inners must be a list, not {"name": "a"}'),
        ({"inners": [{"name": "a"}, 3]}, "inners[1] must be an object, not 3"),
        ({"inners": [{"start": 3}]}, "inners[0]: key 'name' is missing"),
        ({"inners": [{"name": "a", "start": "4"}]}, 'inners[0].start must be a whole number, not "4"'),
        ({"inners": [{"name": "a", "start": 4.0}]}, "inners[0].start must be a whole number, not 4.0"),
        ({"inners": [{"name": "a", "start": True}]}, "inners[0].start must be a whole number, not true"),
        ({"inners": [{"name": "a", "stop": 1}]}, "inners[0]: unknown key 'stop'; known keys are name, start"),
        ({"mode": "mpss"}, 'mode must be one of mps, mig, not "mpss"'),
        ({"mode": ["mps"]}, 'mode must be one of mps, mig, not ["mps"]'),
        ({"rates": []}, "rates must be an object, not []"),
        ({"rates": {"a b.c": "x"}}, 'rates.a b.c must be a number, not "x"'),
        ({"rates": {1: 2.0}}, "rates: the key 1 must be a text"),
        ({"rates": {"a": False}}, "rates.a must be a number, not false"),
        ({"points": {"loss": [[1, "x"]]}}, 'points.loss[0][1] must be a number, not "x"'),
        ({"is_new": 1}, "is_new must be true or false, not 1"),
        ({"colour": 1}, "unknown key 'colour'; known keys are inners, mode, "),
        ({7: 1}, "the key 7 must be a text"),
        ({"inners": "x" * 1000}, f'inners must be a list, not "{"x" * 39}...'),
        ({"inners": 10**5000}, "inners must be a list, not a value of type int"),
    ],
)
def test_an_error_is_one_line_that_names_the_place(changes: dict[Any, Any], message: str) -> None:
    with pytest.raises(JsonValueError) as refused:
        decode(Outer, WHOLE | changes)
    assert str(refused.value).startswith(message) and "\n" not in str(refused.value)


@pytest.mark.parametrize("raw", [None, 3, "text", [], [["inners", []]], True])
def test_what_is_no_object_at_all_is_refused(raw: object) -> None:
    with pytest.raises(JsonValueError, match=r"^must be an object, not "):
        decode(Outer, raw)


@pytest.mark.parametrize(
    "changes",
    [{"rates": {"a": value}} for value in (-1, math.inf, math.nan, 10**400)] + [{"inners": [{"name": ""}]}],
)
def test_figures_and_texts_are_checked_where_that_is_asked_for(changes: dict[str, Any]) -> None:
    with pytest.raises(JsonValueError, match=r"finite and not negative|must be a text"):
        decode(Outer, WHOLE | changes, are_figures_checked=True)
    if changes != {"rates": {"a": 10**400}}:
        decode(Outer, WHOLE | changes)
    else:
        with pytest.raises(JsonValueError, match=r"rates\.a is too large"):
            decode(Outer, WHOLE | changes)


def test_what_is_nested_without_end_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(JsonValueError):
        decode(Outer, WHOLE | {"options": [["a", endless]]})
    with pytest.raises(JsonValueError, match=r"inners\[0\] must be an object, not a value of type list"):
        decode(Outer, {"inners": endless})
