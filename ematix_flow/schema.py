"""The JSON schema of a TOML document, made from the models, for editors that complete and check as one types."""

from __future__ import annotations

from typing import Any

from pydantic import AliasChoices, BaseModel

from ematix_flow.connections import CONNECTION_KINDS, Connection
from ematix_flow.specs import Lookup, PipelineSpec, Source, Target
from ematix_flow.specs.fields import data_kinds
from ematix_flow.specs.target import takes
from ematix_flow.toml_shape import ENDS, RENAMED, SHARED

Json = dict[str, Any]

_SYNONYMS = {"json_lines": "jsonl", "merge": "scd1"}
"""Values that a validator accepts besides those the type lists."""


def json_schema() -> Json:
    """Draft 2020-12 schema of a document: one pipeline, or several as `[[pipelines]]`."""
    definitions: Json = {}
    pipeline = _object(PipelineSpec, definitions)
    for model in (Source, Target, Lookup):
        definitions[model.__name__] = _with_connection(model, definitions)
    definitions["Pipeline"] = _document(pipeline, definitions)
    several = {
        "type": "object",
        "properties": {
            "pipelines": {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/Pipeline"}},
            **{key: pipeline["properties"][key] for key in SHARED},
        },
        "required": ["pipelines"],
        "additionalProperties": False,
    }
    schema: Json = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "ematix-flow pipelines",
        "if": {"required": ["pipelines"]},
        "then": several,
        "else": {"$ref": "#/$defs/Pipeline"},
        "$defs": definitions,
    }
    return schema


def _document(pipeline: Json, definitions: Json) -> Json:
    """The spec with the keys of the document: `pipeline_name`, one or several ends, and the shorthands."""
    properties = dict(pipeline["properties"])
    for key, name in RENAMED.items():
        properties[key] = properties.pop(name)
    by_name = definitions["Source.connection"]["properties"]
    properties["source_query"] = {**by_name["query"], "description": "`query` of the one source."}
    properties["max_rows_per_batch"] = {
        **by_name["max_rows_per_batch"],
        "description": "Most rows that one micro-batch takes from each source without a limit of its own.",
    }
    for end, (_, model) in ENDS.items():
        properties[end] = {"$ref": f"#/$defs/{model.__name__}"}
    return {
        **pipeline,
        "properties": properties,
        "required": list(RENAMED),
        "allOf": [{"oneOf": [{"required": [one]}, {"required": [several]}]} for one, (several, _) in ENDS.items()],
    }


def _with_connection(model: type[BaseModel], definitions: Json) -> Json:
    """A table that names its connection, or has a kind and the fields of that kind between its own."""
    own = _object(model, definitions)
    if model is Target:
        own["properties"]["table"] = _table(own["properties"]["table"])
    names = [f"{model.__name__}.connection"]
    definitions[names[0]] = own
    for kind in data_kinds():
        names.append(f"{model.__name__}.{kind}")
        definitions[names[-1]] = _merged(own, CONNECTION_KINDS[kind], kind, model, definitions)
    return {"description": own.get("description", ""), "oneOf": [{"$ref": f"#/$defs/{name}"} for name in names]}


def _merged(own: Json, connection: type[Connection], kind: str, model: type[BaseModel], definitions: Json) -> Json:
    theirs = _object(connection, definitions)
    mine = {key: value for key, value in own["properties"].items() if key != "connection"}
    if model is Target:
        mine = {key: value for key, value in mine.items() if takes(kind, key)}
    written = {key: value for key, value in theirs["properties"].items() if key not in ("kind", "name")}
    properties = {"kind": {"const": kind}, **written, **mine}
    required = [key for key in own.get("required", []) if key != "connection"]
    merged: Json = {"type": "object", "description": theirs.get("description", ""), "additionalProperties": False}
    either: list[Json] = []
    for key in theirs.get("required", []):
        synonyms = _spellings(connection, key)
        properties |= dict.fromkeys(synonyms, properties[key])
        if len(synonyms) > 1:
            either.append({"oneOf": [{"required": [synonym]} for synonym in synonyms]})
        elif key != "kind":
            required.append(key)
    merged |= {"properties": properties, "required": ["kind", *required]}
    return {**merged, "allOf": either} if either else merged


def _spellings(connection: type[Connection], key: str) -> list[str]:
    """The ways to write a key of a connection, such as `url` and `dsn`."""
    field = connection.model_fields.get(key)
    alias = field.validation_alias if field else None
    return [str(choice) for choice in alias.choices] if isinstance(alias, AliasChoices) else [key]


def _table(table: Json) -> Json:
    short = [
        {"type": "string", "minLength": 1},
        {"type": "array", "items": {"type": "string"}, "minItems": 2, "maxItems": 2},
    ]
    return {"description": table.get("description", ""), "anyOf": [{"$ref": "#/$defs/TableRef"}, *short]}


def _object(model: type[BaseModel], definitions: Json) -> Json:
    """The schema of one model; the models below it go to the definitions."""
    schema: Json = _tidy(model.model_json_schema(ref_template="#/$defs/{model}"))
    for name, below in schema.pop("$defs", {}).items():
        definitions.setdefault(name, below)
    return schema


def _tidy(schema: Any) -> Any:
    """Without the null that TOML does not have and the titles that only repeat the key; with the synonyms of values."""
    if isinstance(schema, list):
        return [_tidy(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: _tidy(part) for key, part in schema.items() if not (key == "title" and isinstance(part, str))}
    if kept.get("default", 0) is None:
        del kept["default"]
    if "enum" in kept:
        kept["enum"] = [*kept["enum"], *(_SYNONYMS[value] for value in kept["enum"] if value in _SYNONYMS)]
    options = [option for option in kept.get("anyOf", ()) if option != {"type": "null"}]
    if len(options) == 1:
        del kept["anyOf"]
        return {**options[0], **kept}
    return kept
