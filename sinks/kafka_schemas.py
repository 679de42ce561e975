"""The schema that a Kafka target writes by: the newest of its topic, or one that is made from the columns. Whether
anything may be registered, and how exactly rows must fit, is the target's `schema_registration`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ematix_flow.connections import KafkaConnection
from ematix_flow.errors import DeclarationError, Problem
from ematix_flow.problems import near
from ematix_flow.sinks import avro, json_schema, protobuf, protobuf_files
from ematix_flow.sinks.kafka_records import Payload, written
from ematix_flow.sinks.registered_fields import Fields, fields_of
from ematix_flow.sinks.schema_registry import Registry, Schema, UnknownSchema, registry_of
from ematix_flow.specs import Target

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


@dataclass(frozen=True)
class _Form:
    kind: str
    """As registries call it."""
    made: Callable[[StructType, str], str]
    """A schema of columns, for a topic."""
    extended: Callable[[str, Mapping[str, str], StructType], str]
    """A schema, those that it imports, and more columns: the schema with these."""
    fields: Callable[[str, Mapping[str, str]], Fields]
    """Of a schema and those that it imports."""
    needed: Callable[[], None] = lambda: None


def _protobuf_fields(text: str, imported: Mapping[str, str]) -> Fields:
    message = protobuf_files.message_at(protobuf_files.compiled(text, imported), (0,))
    return fields_of(protobuf.spark_schema(message))


_FORMS = {
    "avro": _Form(
        "AVRO",
        avro.avro_schema,
        avro.extended,
        lambda text, _: fields_of(avro.spark_schema(text), avro.with_defaults(text)),
        avro.needed,
    ),
    "protobuf": _Form("PROTOBUF", protobuf.proto_text, protobuf.extended, _protobuf_fields, protobuf_files.needed),
    "json_schema": _Form(
        "JSON", json_schema.json_schema, json_schema.extended, lambda text, _: json_schema.json_fields(text)
    ),
}
WITH_SCHEMAS = frozenset(_FORMS)
"""The formats of records that name a schema of a registry."""


def registered(
    schema: StructType, target: Target, connection: KafkaConnection, user: str
) -> tuple[Payload, StructType]:
    """With the columns that rows must have to be written by it."""
    from pyspark.sql.types import StructType

    name = connection.payload_format
    form = _FORMS[name]
    form.needed()
    if target.topic is None or target.topic_column is not None:
        problem = Problem(f"{user} topic_column", f"has no meaning for {name}: a schema belongs to one topic", "topic")
        raise DeclarationError(user, [problem])
    columns = StructType([schema[name] for name in written(schema.fieldNames(), target)])
    registry = registry_of(connection, user)
    found = _agreed(registry, form, columns, target, user)
    imported = registry.referenced(found)
    known = form.fields(found.text, imported).known
    fitting = [
        (known[field.name].column or field) if field.name in known and field.name in columns.fieldNames() else field
        for field in schema.fields
    ]
    # A row that does not fit the schema is a bad row, found before it comes here.
    return Payload(name, found, registry.header(found.id), imported), StructType(fitting)


def _agreed(registry: Registry, form: _Form, columns: StructType, target: Target, user: str) -> Schema:
    """The schema that is there, and fits; or a new one, where one may be registered."""
    from pyspark.sql.types import StructType

    assert target.topic is not None
    subject, may_register = registry.subject_of(target.topic), target.schema_registration in {None, "register"}
    found = registry.latest(subject)
    if found is None and not may_register:
        raise UnknownSchema(
            f"{user}: the registry has no schema of {subject}, and schema_registration is "
            f'"{target.schema_registration}"',
            next_step='register one, or let the pipeline do it: schema_registration = "register"',
        )
    if found is None:
        return registry.register(subject, form.made(columns, target.topic), form.kind)
    if found.kind != form.kind:
        problem = Problem(f"{user} payload_format", f"{subject} is registered as {found.kind}", "its own format")
        raise DeclarationError(user, [problem])
    imported = registry.referenced(found)
    fields = form.fields(found.text, imported)
    new = StructType([field for field in columns.fields if field.name not in fields.known])
    # What takes any other field need not know these, and a registry would refuse to have it know less.
    if new.fields and may_register and fields.closed:
        grown = form.extended(found.text, imported, new)
        return registry.register(subject, grown, form.kind, found.references)
    problems = _misfits(columns, fields, f"{user} column", subject)
    if target.schema_registration == "check":
        made = form.fields(form.made(columns, target.topic), {})
        problems += _differences(made, fields, f"{user} column", subject)
    if problems:
        raise DeclarationError("schema", problems)
    return found


def _misfits(columns: StructType, fields: Fields, place: str, subject: str) -> list[Problem]:
    """What cannot be written by the schema."""
    names, known = columns.fieldNames(), fields.known
    unknown = [
        Problem(f"{place} {name}", f"{subject}, as registered, has no such field", ", ".join(known), near(name, known))
        for name in names
        if name not in known and fields.closed
    ]
    missing = [
        Problem(f"{place} {name}", f"missing; {subject}, as registered, has it without a default")
        for name, field in known.items()
        if field.required and name not in names
    ]
    return unknown + missing


def _differences(made: Fields, fields: Fields, place: str, subject: str) -> list[Problem]:
    """What could be written only as something else."""
    problems = []
    for name, own in made.known.items():
        known = fields.known.get(name)
        if known is None and not fields.closed:
            problems.append(Problem(f"{place} {name}", f"{subject}, as registered, does not say what it is"))
        elif known is not None and known.words and not set(own.words) & set(known.words):
            found = f"is {own.words[0]}, and {known.words[0]} in {subject}, as registered"
            problems.append(Problem(f"{place} {name}", found, "the same; cast it in the transform"))
    return problems
