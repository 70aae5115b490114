"""A mistake in the declaration of an option is one line that names the class and the option."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

import pytest

from pipeline.base.system.errors import ConfigError
from pipeline.plan import option_loader
from workloads.options import CONTENT, option

Colour = enum.Enum("Colour", "red blue", start=0)


@pytest.mark.parametrize(
    ("kind", "declared", "message"),
    [
        (int, option(3, help="x", least="a"), "least='a' must be a number"),  # type: ignore[arg-type]
        (int, option(3, help="x", least=True), "least=True must be a number"),
        (str, option("a", help="x", least=3), "least=3 limits numbers, but a value must be a text"),
        (str, option("a", help="x", choices="abc"), "choices='abc' must be a tuple, such as ('a', 'b')"),  # type: ignore[arg-type]
        (int, option(3, help="x", choices=(3, "a")), "choices has 'a', which must be an int"),
        (str, option("a", help="x", path="plac"), "path='plac' must be PLACE or CONTENT of workloads.options"),
        (str, option("a", help="x", braces=3), "braces=3 must be a text"),  # type: ignore[arg-type]
        (str, option("a", help=3), "help=3 must be a text"),  # type: ignore[arg-type]
        (str, option("a", help="x", is_flag="no"), "is_flag='no' must be True or False"),  # type: ignore[arg-type]
        (int, option("big", help="x"), "the default 'big' must be an int"),
        (int, option(None, help="x"), "the default None must be an int"),
        (list[int], option([1, "b"], help="x"), "the default [1, 'b'] must be of type list[int]"),
        (Colour, option("green", help="x"), "the default 'green' must be one of red, blue"),
        (int, option(3, help="x", least=5), "the default 3 must be at least 5"),
        (int, option(3, help="x", choices=(1, 2)), "the default 3 must be one of 1, 2"),
    ],
)
def test_a_wrong_declaration_names_the_class_and_the_option(
    monkeypatch, kind: Any, declared: Any, message: str
) -> None:
    monkeypatch.setitem(globals(), "Products", dataclasses.make_dataclass("Products", [("size", kind, declared)]))
    with pytest.raises(ConfigError) as refused:
        option_loader.load(f"{__name__}.Products")
    assert str(refused.value) == f"/schema/{__name__}.Products: size: {message}; correct it"


def test_right_declarations_are_accepted(monkeypatch) -> None:
    fields = [
        ("steps", int | None, option(None, help="x", least=1)),
        ("share", float, option(1, help="x", choices=(0.5, 1))),
        ("sizes", list[int], option([3], help="x", least=1)),
        ("file", str, option(help="x", path=CONTENT)),
    ]
    monkeypatch.setitem(globals(), "Fine", dataclasses.make_dataclass("Fine", fields, kw_only=True))
    assert option_loader.load(f"{__name__}.Fine")(file="a").steps is None


def test_a_class_that_python_refuses_is_named_with_its_line(monkeypatch, tmp_path) -> None:
    text = "from dataclasses import dataclass\nfrom workloads.options import option\n\n@dataclass\nclass Wrong:\n"
    (tmp_path / "wrong_options.py").write_text(f"{text}    size: int = option(3)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"missing 1 .*: 'help' \(wrong_options\.py:6\); correct the module$"):
        option_loader.load("wrong_options.Wrong")
