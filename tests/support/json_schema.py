"""A validator for those keywords of JSON Schema (draft 2020-12) that `tests/data/schemas` uses; others are errors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

_TYPES = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool}
_SAID = {
    "$schema",
    "$comment",
    "title",
    "type",
    "const",
    "enum",
    "pattern",
    "maxLength",
    "minimum",
    "maximum",
    "minItems",
    "maxItems",
    "oneOf",
    "items",
}
_SAID |= {"minProperties", "required", "properties", "patternProperties", "additionalProperties", "propertyNames"}


def violations(value: Any, schema: dict[str, Any], where: str = "$") -> Iterator[str]:
    """Yield one sentence for each rule of a schema that a value breaks."""
    assert schema.keys() <= _SAID, f"{where}: {schema.keys() - _SAID} is not supported"
    kind = schema.get("type")
    if kind and (not isinstance(value, _TYPES[kind]) or (kind == "integer" and isinstance(value, bool))):
        yield f"{where}: {value!r} is not of type {kind}"
        return
    if "const" in schema and value != schema["const"]:
        yield f"{where}: {value!r} is not {schema['const']!r}"
    if "enum" in schema and value not in schema["enum"]:
        yield f"{where}: {value!r} is not one of {schema['enum']}"
    longest, pattern = schema.get("maxLength", 10**6), schema.get("pattern", "")
    if isinstance(value, str) and (not re.search(pattern, value) or len(value) > longest):
        yield f"{where}: {value!r} is too long or does not match {pattern}"
    if isinstance(value, int) and value < schema.get("minimum", value):
        yield f"{where}: {value} is below {schema['minimum']}"
    if isinstance(value, int) and value > schema.get("maximum", value):
        yield f"{where}: {value} is above {schema['maximum']}"
    yield from _find_in_choices(value, schema, where)
    if isinstance(value, list):
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
            yield f"{where}: {len(value)} items"
        for number, element in enumerate(value):
            yield from violations(element, schema.get("items", {}), f"{where}[{number}]")
    if isinstance(value, dict):
        yield from _find_in_object(value, schema, where)


def _find_in_choices(value: Any, schema: dict[str, Any], where: str) -> Iterator[str]:
    choices = [list(violations(value, choice, where)) for choice in schema.get("oneOf", ())]
    if choices and choices.count([]) != 1:
        yield from min(choices, key=len) or [f"{where}: {value!r} fits several choices"]


def _find_in_object(value: dict[str, Any], schema: dict[str, Any], where: str) -> Iterator[str]:
    yield from (f"{where}: {key} is missing" for key in schema.get("required", ()) if key not in value)
    if len(value) < schema.get("minProperties", 0):
        yield f"{where}: {len(value)} properties"
    for key, member in value.items():
        inner = [schema["properties"][key]] if key in schema.get("properties", {}) else []
        inner += [
            subschema for pattern, subschema in schema.get("patternProperties", {}).items() if re.search(pattern, key)
        ]
        other = schema.get("additionalProperties", {})
        if not inner and other is False:
            yield f"{where}: {key} is unknown"
        for each_schema in inner or [other or {}]:
            yield from violations(member, each_schema, f"{where}.{key}")
        yield from violations(key, schema.get("propertyNames", {}), f"{where}: key")
