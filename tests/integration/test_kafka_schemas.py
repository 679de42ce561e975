"""Records with schemas of a registry, there and back, against a real registry."""

import io
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pytest

from ematix_flow.errors import DeclarationError
from ematix_flow.state.dead_letters import DeadLetters
from ematix_flow.state.home import dead_letters_of
from ematix_flow.streams.replay import replay
from ematix_flow.toml import load_toml
from tests.services.kafka import Kafka
from tests.services.schema_registry import SchemaRegistry
from tests.topics import Topics

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("spark")]

AT = datetime(2026, 3, 1, 8, 30, 0, 123456, tzinfo=UTC)
ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "day", "type": ["null", {"type": "int", "logicalType": "date"}], "default": None},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["a", "b"]}, "default": "a"},
        {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []},
        {"name": "ref", "type": ["null", {"type": "string", "logicalType": "uuid"}], "default": None},
    ],
}
ROW = {"id": 1, "amount": Decimal("1.50"), "at": AT, "day": date(2026, 3, 1), "kind": "b", "tags": ["x"], "ref": None}


def avro(schema: Any, id: int, row: Any) -> bytes:
    out = io.BytesIO(b"\x00" + id.to_bytes(4, "big"))
    out.seek(5)
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), row)
    return out.getvalue()


def read_avro(registry: SchemaRegistry, value: bytes) -> Any:
    schema = fastavro.parse_schema(registry.schema(int.from_bytes(value[1:5], "big")))
    return fastavro.schemaless_reader(io.BytesIO(value[5:]), schema, None)


def test_avro_is_read_by_the_schema_it_was_written_with_and_written_by_the_newest(
    kafka: Kafka, registry: SchemaRegistry, tmp_path: Path
) -> None:
    topics = Topics(kafka, tmp_path)
    source, target = kafka.new_topic(), kafka.new_topic()
    first = registry.register(f"{source}-value", ORDER)
    connection = f'payload_format = "avro"\nschema_registry_url = "{registry.url}"'
    kafka.send(source, [avro(ORDER, first, ROW), b"\x00\x00\x00\xff\xffx", b"plain", avro(ORDER, first, ROW)[:-3]])
    # A version that others write from now on: a new field, which is not asked for, and one that is gone.
    later = {**ORDER, "fields": [f for f in ORDER["fields"] if f["name"] != "day"]}  # type: ignore[union-attr,call-overload,index]
    later["fields"] = [*later["fields"], {"name": "more", "type": "string", "default": ""}]
    second = registry.register(f"{source}-value", later)
    declaration = {"connection": connection, "schema": None, "on_error": "dlq", "target": target}

    result = topics.run(source, **declaration)
    assert (result.rows_written, result.dlq_rows) == ({target: 1}, {"decode": 3})
    kafka.send(source, [avro(later, second, ROW | {"id": 2, "more": "m"})])
    topics.run(source, **declaration, top='delivery = "exactly_once"')
    rows = [read_avro(registry, message.value()) for message in kafka.read(target)]
    assert [{k: v for k, v in row.items() if k != "more"} for row in rows] == [
        {k: v for k, v in (ROW | {"id": i}).items() if k != "day"} for i in (1, 2)
    ]
    letters = DeadLetters(dead_letters_of("orders"))
    reasons = [letter.error for letter in letters.all()]
    assert reasons[0] == "schema 65535 is not in the registry"
    assert reasons[1].startswith("the record does not begin as those do")
    assert reasons[2].startswith(f"the record cannot be read with schema {first}")
    letters.close()
    (spec,) = load_toml(text=topics.toml(source, **declaration))
    assert replay(spec).failed_again == 3


def test_declared_columns_and_a_registered_schema_decide_what_fits(
    kafka: Kafka, registry: SchemaRegistry, tmp_path: Path
) -> None:
    topics = Topics(kafka, tmp_path)
    source, target = kafka.new_topic(), kafka.new_topic()
    id = registry.register(f"{source}-value", ORDER)
    fields = [{"name": "id", "type": "int"}, {"name": "note", "type": "string"}]
    registry.register(f"{target}-value", {"type": "record", "name": "Noted", "fields": fields})
    kafka.send(source, [avro(ORDER, id, ROW | {"id": i}) for i in (1, 2**40, 3)])
    declaration = {
        "connection": f'payload_format = "avro"\nschema_registry_url = "{registry.url}"',
        "schema": "id long, absent string",
        "on_error": "drop",
        "target": target,
    }
    with pytest.raises(DeclarationError, match=r"column absent: t.*-value, as registered, has no such field"):
        topics.run(source, **declaration)
    sql = "SELECT id, CASE WHEN id < 3 THEN 'n' END AS note FROM source"
    result = topics.run(source, **declaration, sql=sql)
    assert (result.rows_written, result.dropped_rows) == ({target: 1}, {"write": 2})
    assert [read_avro(registry, m.value()) for m in kafka.read(target)] == [{"id": 1, "note": "n"}]


def test_json_with_a_schema_has_its_header(kafka: Kafka, registry: SchemaRegistry, tmp_path: Path) -> None:
    topics = Topics(kafka, tmp_path)
    source, target = kafka.new_topic(), kafka.new_topic()
    kafka.send(source, [b'\x00\x00\x00\x00\x07{"id": 1}', b'{"id": 2}', b"\x00\x00\x00\x00\x07broken"])
    connection = f'payload_format = "json_schema"\nschema_registry_url = "{registry.url}"'
    result = topics.run(source, connection=connection, schema=None, on_error="drop", target=target)
    assert (result.rows_written, result.dropped_rows) == ({target: 1}, {"decode": 2})
    (message,) = kafka.read(target)
    assert message.value()[5:] == b'{"id":1}'
    known = registry.schema(int.from_bytes(message.value()[1:5], "big"))
    assert known["properties"] == {"id": {"type": "integer"}}
