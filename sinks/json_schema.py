"""JSON Schema for columns, as far as a registry is asked: which properties there are, and of which type."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ematix_flow.sinks.registered_fields import Fields, Known

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

_KINDS = {
    "boolean": "boolean", "tinyint": "integer", "smallint": "integer", "int": "integer", "bigint": "integer",
    "float": "number", "double": "number", "string": "string", "binary": "string", "date": "string",
    "timestamp": "string", "timestamp_ntz": "string",
}  # fmt: skip


def json_schema(columns: StructType, topic: str) -> str:
    properties = {field.name: {"type": _kind(field.dataType)} for field in columns.fields}
    return json.dumps({"title": topic, "type": "object", "properties": properties})


def extended(text: str, _imported: Mapping[str, str], columns: StructType) -> str:
    """With properties for more columns."""
    schema = json.loads(text)
    more = json.loads(json_schema(columns, ""))["properties"]
    return json.dumps({**schema, "properties": {**schema.get("properties", {}), **more}})


def json_fields(text: str) -> Fields:
    schema = json.loads(text)
    known = {}
    for name, described in schema.get("properties", {}).items():
        kinds = described.get("type") if isinstance(described, dict) else None
        words = [kinds] if isinstance(kinds, str) else list(kinds or ())
        # A whole number is a number, and a property without a type takes everything.
        words += ["integer"] if "number" in words else []
        known[name] = Known(tuple(words), required=name in schema.get("required", ()))
    return Fields(known, closed=schema.get("additionalProperties") is False)


def _kind(kind: DataType) -> str:
    word = kind.simpleString()
    if word.startswith("decimal"):
        return "number"
    return _KINDS.get(word, "array" if word.startswith("array") else "object")
