"""The schema that a Kafka target writes by: the newest of its topic, or one made from the columns and registered."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ematix_flow.connections import KafkaConnection
from ematix_flow.errors import DeclarationError, Problem
from ematix_flow.problems import near
from ematix_flow.sinks.avro import avro_schema, needed, spark_schema
from ematix_flow.sinks.kafka_records import Payload, written
from ematix_flow.sinks.schema_registry import registry_of, subject_of
from ematix_flow.specs import Target

if TYPE_CHECKING:
    from pyspark.sql.types import StructField, StructType

_KINDS = {"avro": "AVRO", "json_schema": "JSON"}


def registered(
    schema: StructType, target: Target, connection: KafkaConnection, user: str
) -> tuple[Payload, StructType]:
    """With the columns that rows must have to be written by it."""
    from pyspark.sql.types import StructField, StructType

    form = connection.payload_format
    if form == "avro":
        needed()
    if target.topic is None or target.topic_column is not None:
        problem = Problem(f"{user} topic_column", f"has no meaning for {form}: a schema belongs to one topic", "topic")
        raise DeclarationError(user, [problem])
    registry, subject = registry_of(connection, user), subject_of(target.topic)
    columns = StructType([schema[name] for name in written(schema.fieldNames(), target)])
    found = registry.latest(subject)
    if found is None:
        text = avro_schema(columns, target.topic) if form == "avro" else _json_schema(columns, target.topic)
        return Payload(form, registry.register(subject, text, _KINDS[form])), schema
    if found.kind != _KINDS[form]:
        problem = Problem(f"{user} payload_format", f"{subject} is registered as {found.kind}", "its own format")
        raise DeclarationError(user, [problem])
    if form == "json_schema":
        return Payload(form, found), schema
    known = {field.name: field for field in spark_schema(found.text).fields}
    _check(columns, known, found.text, f"{user} column", subject)
    # A row that does not fit the schema is a bad row, found before it comes here.
    return Payload(form, found), StructType(
        [
            StructField(field.name, known[field.name].dataType, known[field.name].nullable)
            if field.name in columns.fieldNames()
            else field
            for field in schema.fields
        ]
    )


def _check(columns: StructType, known: Mapping[str, StructField], text: str, place: str, subject: str) -> None:
    names = columns.fieldNames()
    unknown = [
        Problem(f"{place} {name}", f"{subject}, as registered, has no such field", ", ".join(known), near(name, known))
        for name in names
        if name not in known
    ]
    optional = {field["name"] for field in json.loads(text)["fields"] if "default" in field}
    missing = [
        Problem(f"{place} {name}", f"missing; {subject}, as registered, has it without a default")
        for name, field in known.items()
        if not field.nullable and name not in optional and name not in names
    ]
    if unknown or missing:
        raise DeclarationError("schema", [*unknown, *missing])


def _json_schema(columns: StructType, topic: str) -> str:
    kinds = {
        "boolean": "boolean", "tinyint": "integer", "smallint": "integer", "int": "integer", "bigint": "integer",
        "float": "number", "double": "number", "string": "string", "binary": "string", "date": "string",
        "timestamp": "string", "timestamp_ntz": "string",
    }  # fmt: skip

    def kind(word: str) -> str:
        if word.startswith("decimal"):
            return "number"
        return kinds.get(word, "array" if word.startswith("array") else "object")

    properties = {field.name: {"type": kind(field.dataType.simpleString())} for field in columns.fields}
    return json.dumps({"title": topic, "type": "object", "properties": properties})
