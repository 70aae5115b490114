"""Tables of options: `python -m pipeline.plan.option_tables` updates those in docs/configuration.md."""

from __future__ import annotations

import dataclasses
import enum
import json
import re
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import MISSING

from pipeline.base.domain.records import Limits
from pipeline.base.system import factory
from pipeline.base.system.command_parser import CommandParser
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.plan import config_schema, option_loader
from pipeline.plan.workload_config import WorkloadConfig

PAGE = PROJECT_DIR / "docs/configuration.md"
_TABLE = re.compile(r"(<!-- options: ([\w.]+) -->\n).*?(<!-- end -->)", re.DOTALL)
_COMMON = {field.name for field in dataclasses.fields(WorkloadConfig)}
_WORDS = {str: "text", dict: "map", Any: "text or list"}
_STUDY = "study"
_PARTS = {
    "data": config_schema.DataConfig,
    "gpu": config_schema.GpuConfig,
    "limits": Limits,
    "listeners.NAME": config_schema.ListenerConfig,
    "pack": config_schema.PackConfig,
    "tracking": config_schema.TrackingConfig,
    "window": config_schema.WindowConfig,
}
"""Classes of the keys that every study has, by the parent of these keys."""
OTHER_TABLES = {_STUDY, *_PARTS, *option_loader.BASES}
"""Names of the tables beside those of workloads."""


def list_rows(kind: type[Any], *, is_whole: bool = False) -> Iterator[tuple[str, str, str, str]]:
    """Yield key, type, default and meaning of each option that a workload's class adds to its base classes.

    `is_whole` includes inherited options, except for the keys of every workload.
    """
    annotated = vars(kind).get("__annotations__", {})
    for row in _list_fields(kind, "workload"):
        name = row[0].removeprefix("workload.")
        if name not in _COMMON if is_whole else name in annotated:
            yield row


def fill_tables(text: str) -> str:
    """Return a page with its tables regenerated from the classes."""
    return _TABLE.sub(lambda match: f"{match[1]}{_make_table(match[2])}{match[3]}", text)


def _make_table(name: str) -> str:
    if name in option_loader.BASES:
        return _format_table([name], _list_choices(name))
    if name == _STUDY:
        kinds = (config_schema.Config, config_schema.SweepConfig)
        return _format_table([], (row for kind in kinds for row in _list_fields(kind, "")))
    if name in _PARTS:
        return _format_table([], _list_fields(_PARTS[name], name))
    return _format_table([], list_rows(option_loader.KINDS.get(name) or factory.find(name, name)))


def _format_table(columns: list[str], rows: typing.Iterable[tuple[str, ...]]) -> str:
    heads = ["key", *columns, "type", "default", "meaning"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    return "\n".join([*lines, *(f"| `{key}` | {' | '.join(cells)} |" for key, *cells in rows), ""])


def _list_choices(group: str) -> Iterator[tuple[str, ...]]:
    """Yield the options of a group's choices, each with the choices that have it."""
    base = set(_list_fields(option_loader.BASES[group], group))
    choices: dict[tuple[str, ...], list[str]] = {}
    for choice, kind in option_loader.list_choices(group).items():
        for row in _list_fields(kind, group):
            choices.setdefault(row, []).append("all" if row in base else f"`{choice}`")
    for (key, *cells), names in sorted(choices.items(), key=lambda entry: entry[0] in base):
        yield (key, ", ".join(dict.fromkeys(names)), *cells)


def _list_fields(kind: type[Any], parent: str) -> Iterator[tuple[str, str, str, str]]:
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        if meaning := field.metadata.get("help"):
            key = f"{parent}.{field.name}" if parent else field.name
            type_of_value = field.metadata.get("values") or _describe_type(hints[field.name], field.metadata)
            shown = field.metadata.get("shown") or _describe_default(field, parent)
            yield key, type_of_value, shown, meaning


def _describe_type(hint: Any, metadata: Mapping[str, Any]) -> str:
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


def _describe_default(field: dataclasses.Field[Any], parent: str) -> str:
    if field.default_factory is not dataclasses.MISSING:
        return f"`{json.dumps(field.default_factory())}`"
    if field.default in (dataclasses.MISSING, MISSING):
        return f"by {parent}"
    value = field.default
    is_text = isinstance(value, enum.Enum | str)
    return f"`{getattr(value, 'name', value)}`" if is_text else f"`{json.dumps(value)}`"


def main() -> None:
    """Update the tables of the page."""
    CommandParser(description="Update the tables of options in docs/configuration.md.").parse_args()
    PAGE.write_text(fill_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
