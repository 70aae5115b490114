"""Violations of the schemas in `tests/data/schemas`, as one sentence for each."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from jsonschema import Draft202012Validator, ValidationError


def violations(value: Any, schema: dict[str, Any]) -> Iterator[str]:
    """Yield one sentence for each rule of a schema that a value breaks."""
    Draft202012Validator.check_schema(schema)
    for error in Draft202012Validator(schema).iter_errors(value):
        yield from map(_describe, _find_causes(error))


def _find_causes(error: ValidationError) -> Iterator[ValidationError]:
    """Yield the violations of the choice of a `oneOf` that the value fits best, or the violation itself."""
    choices = itertools.groupby(error.context or (), key=lambda cause: cause.schema_path[0])
    causes = min((list(choice) for _, choice in choices), key=len, default=None)
    if causes is None:
        yield error
    for cause in causes or ():
        yield from _find_causes(cause)


def _describe(error: ValidationError) -> str:
    path = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in error.absolute_path)
    rule, value = error.validator_value, error.instance
    unknown = [key for key in value if key not in error.schema.get("properties", {})] if isinstance(value, dict) else []
    texts = {
        "additionalProperties": f"{', '.join(unknown)} is unknown",
        "const": f"{value!r} is not {rule!r}",
        "enum": f"{value!r} is not one of {rule}",
        "pattern": f"{value!r} is too long or does not match {rule}",
        "maxLength": f"{value!r} is too long or does not match",
        "minItems": f"{len(value) if isinstance(value, list) else ''} items",
        "minimum": f"{value} is below {rule}",
        "maximum": f"{value} is above {rule}",
        "type": f"{value!r} is not of type {rule}",
    }
    return f"${path}: {texts.get(str(error.validator), error.message)}"
