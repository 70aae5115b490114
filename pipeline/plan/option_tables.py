"""Tables of workload options: `python -m pipeline.plan.option_tables` updates those in docs/configuration.md."""

from __future__ import annotations

import dataclasses
import enum
import json
import re
import types
import typing
from collections.abc import Iterator
from typing import Any

from omegaconf import MISSING

from pipeline.base.system import factory
from pipeline.base.system.command_parser import CommandParser
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.plan import option_loader
from pipeline.plan.workload_config import WorkloadConfig

PAGE = PROJECT_DIR / "docs/configuration.md"
_TABLE = re.compile(r"(<!-- options: ([\w.]+) -->\n).*?(<!-- end -->)", re.DOTALL)
_HEAD = "| key | type | default | meaning |\n|---|---|---|---|\n"
_COMMON = {field.name for field in dataclasses.fields(WorkloadConfig)}
_WORDS = {str: "text", dict: "map", Any: "text or list"}


def list_rows(kind: type[Any], *, is_whole: bool = False) -> Iterator[tuple[str, str, str, str]]:
    """Yield key, type, default and meaning of each option that a class adds to its base classes.

    `is_whole` includes inherited options, except for the keys of every workload.
    """
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        above = _COMMON if is_whole else {field.name} - set(vars(kind).get("__annotations__", {}))
        if field.name not in above and (meaning := field.metadata.get("help")):
            kind_of_value = _describe_type(hints[field.name], field.metadata)
            yield f"workload.{field.name}", kind_of_value, _describe_default(field), meaning


def fill_tables(text: str) -> str:
    """Return a page with its tables regenerated from the option classes."""
    return _TABLE.sub(lambda match: f"{match[1]}{_HEAD}{_make_table(match[2])}{match[3]}", text)


def _make_table(name: str) -> str:
    kind = option_loader.KINDS.get(name) or factory.find(name, name)
    return "".join(f"| `{key}` | {' | '.join(cells)} |\n" for key, *cells in list_rows(kind))


def _describe_type(hint: Any, metadata: typing.Mapping[str, Any]) -> str:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        hint = next(part for part in typing.get_args(hint) if part is not type(None))
    if metadata.get("path"):
        return "path"
    values: typing.Iterable[Any] | None = (
        hint.__members__ if isinstance(hint, enum.EnumType) else metadata.get("choices")
    )
    if values:
        return ", ".join(f"`{value:g}`" if isinstance(value, float) else f"`{value}`" for value in values)
    kind = typing.get_origin(hint) or hint
    return _WORDS.get(kind, getattr(kind, "__name__", str(kind)))


def _describe_default(field: dataclasses.Field[Any]) -> str:
    if field.default_factory is not dataclasses.MISSING:
        return f"`{json.dumps(field.default_factory())}`"
    if field.default in (dataclasses.MISSING, MISSING):
        return "by workload"
    value = field.default
    is_text = isinstance(value, enum.Enum | str)
    return f"`{getattr(value, 'name', value)}`" if is_text else f"`{json.dumps(value)}`"


def main() -> None:
    """Update the tables of the page."""
    CommandParser(description="Update the tables of options in docs/configuration.md.").parse_args()
    PAGE.write_text(fill_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
