"""Records with schemas of a registry, there and back, against a real registry."""

import io
import zlib
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import fastavro
import pytest
from google.protobuf.json_format import MessageToDict
from google.protobuf.message_factory import GetMessageClass

from ematix_flow import run_pipeline
from ematix_flow.errors import DeclarationError
from ematix_flow.sinks.protobuf import message_maker
from ematix_flow.sinks.protobuf_files import compiled, message_at
from ematix_flow.sinks.schema_registry import UnknownSchema
from ematix_flow.state.dead_letters import DeadLetters
from ematix_flow.state.home import dead_letters_of
from ematix_flow.streams.failures import BadRowError
from ematix_flow.streams.replay import replay
from ematix_flow.toml import load_toml
from tests.services.apicurio import apicurio
from tests.services.glue import Glue
from tests.services.kafka import Kafka
from tests.services.schema_registry import SchemaRegistry, schema_registry
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
        "writing": 'schema_registration = "off"',
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
    id = registry.register(f"{source}-value", {"type": "object"}, "JSON")
    header, unknown = b"\x00" + id.to_bytes(4, "big"), b"\x00\x00\x0f\xff\xff"
    kafka.send(source, [header + b'{"id": 1}', b'{"id": 2}', header + b"broken", unknown + b'{"id": 3}', b"\x00", None])
    connection = f'payload_format = "json_schema"\nschema_registry_url = "{registry.url}"'
    result = topics.run(source, connection=connection, schema=None, on_error="drop", target=target)
    assert (result.rows_written, result.dropped_rows) == ({target: 1}, {"decode": 5})
    with pytest.raises(BadRowError, match="offset 3: schema 1048575 is not in the registry"):
        topics.run(source, connection=connection, reading="start = 3", name="strict")
    (message,) = kafka.read(target)
    assert message.value()[5:] == b'{"id":1}'
    known = registry.schema(int.from_bytes(message.value()[1:5], "big"))
    assert known["properties"] == {"id": {"type": "integer"}}


PROTO = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
import "money.proto";
message Order {
  int64 id = 1;
  optional string note = 2;
  Money price = 3;
  google.protobuf.Timestamp at = 4;
  repeated string tags = 5;
}
message Return { int64 id = 1; }
"""
MONEY = 'syntax = "proto3"; message Money { int64 cents = 1; }'


def proto(id: int, row: Any, text: str = PROTO, index: bytes = b"\x00") -> bytes:
    message = message_at(compiled(text, {"money.proto": MONEY}), (0,))
    return b"\x00" + id.to_bytes(4, "big") + index + bytes(message_maker(message)(row).SerializeToString())


def read_proto(registry: SchemaRegistry, value: bytes, imported: dict[str, str]) -> Any:
    message = message_at(compiled(registry.text(int.from_bytes(value[1:5], "big")), imported), (0,))
    assert value[5:6] == b"\x00"
    return MessageToDict(GetMessageClass(message).FromString(value[6:]), preserving_proto_field_name=True)


def test_protobuf_is_read_by_its_numbers_and_written_by_the_newest(
    kafka: Kafka, registry: SchemaRegistry, tmp_path: Path
) -> None:
    topics = Topics(kafka, tmp_path)
    source, target, made = kafka.new_topic(), kafka.new_topic(), kafka.new_topic()
    registry.register(f"{source}-money", MONEY, "PROTOBUF")
    money = {"name": "money.proto", "subject": f"{source}-money", "version": 1}
    first = registry.register(f"{source}-value", PROTO, "PROTOBUF", [money])
    registry.register(f"{target}-value", PROTO, "PROTOBUF", [money])
    row = {"id": 1, "note": None, "price": {"cents": 150}, "at": AT, "tags": ["x"]}
    good = proto(first, row)
    kafka.send(source, [good, b"\x00\x00\x00\xff\xff\x00", b"plain", good[:-1], proto(first, row, index=b"\x02\x02")])
    # A version that others write from now on: a field has another name, and there is one more.
    later = PROTO.replace("note = 2", "remark = 2").replace("= 5;", "= 5;\n  string more = 6;")
    second = registry.register(f"{source}-value", later, "PROTOBUF", [money])
    declaration = {
        "connection": f'payload_format = "protobuf"\nschema_registry_url = "{registry.url}"',
        "schema": None,
        "on_error": "dlq",
    }
    result = topics.run(
        source, **declaration, target=target, sql="SELECT id, remark AS note, price, at, tags FROM source"
    )
    assert (result.rows_written, result.dlq_rows) == ({target: 1}, {"decode": 4})
    kafka.send(source, [proto(second, row | {"id": 2, "remark": "r", "more": "m"}, later)])
    exactly = {"top": 'delivery = "exactly_once"', "target": target}
    topics.run(source, **declaration, **exactly, sql="SELECT id, remark AS note, price, at, tags FROM source")
    found = [read_proto(registry, message.value(), {"money.proto": MONEY}) for message in kafka.read(target)]
    common = {"price": {"cents": "150"}, "at": "2026-03-01T08:30:00.123456Z", "tags": ["x"]}
    assert found == [{"id": "1", **common}, {"id": "2", "note": "r", **common}]
    letters = DeadLetters(dead_letters_of("orders"))
    reasons = [letter.error for letter in letters.all()]
    letters.close()
    assert reasons[0] == "schema 65535 is not in the registry"
    assert reasons[1].startswith("the record does not begin as those do")
    assert reasons[2].startswith(f"the record cannot be read with schema {first}")
    assert reasons[3] == "the record is a Return, and Order is read; declare `schema` to read both"

    # Without a schema of the topic, one is made from the columns; declared columns are found by their names.
    declaration |= {"schema": "id bigint, remark string, absent string", "name": "made", "target": made}
    sql = "SELECT id, remark, absent, CAST(1.5 AS decimal(4,2)) AS d, array(id) AS ids FROM source"
    assert topics.run(source, **declaration, sql=sql).rows_written == {made: 3}
    rows = [read_proto(registry, message.value(), {}) for message in kafka.read(made)]
    assert sorted(rows, key=str) == sorted(
        [
            {"id": "1", "d": "1.50", "ids": ["1"]},
            {"id": "2", "remark": "r", "d": "1.50", "ids": ["2"]},
            {"id": "1", "d": "1.50", "ids": ["1"]},
        ],
        key=str,
    )


@pytest.mark.parametrize("form", ["avro", "protobuf", "json_schema"])
@pytest.mark.parametrize("server", [schema_registry, apicurio])
def test_a_target_registers_or_checks_or_does_neither(
    kafka: Kafka, tmp_path: Path, server: Callable[[], SchemaRegistry], form: str
) -> None:
    registry = server()
    topics = Topics(kafka, tmp_path)
    source, target = kafka.new_topic(), kafka.new_topic()
    kafka.send(source, [{"id": 1, "amount": 0.5}])
    cluster = f'payload_format = "{form}"\nschema_registry_url = "{registry.url}"'
    subject = f"{target}-value"

    def run(policy: str, sql: str, name: str) -> Any:
        text = topics.toml(source, name=name, sql=sql, target=target, writing=f'schema_registration = "{policy}"')
        head, _, tail = text.partition("[target]")
        return run_pipeline(config_str=f"{head}[target]\n{cluster}\n{tail}", bounded=True)

    plain, more = "SELECT id, amount FROM source", "SELECT id, amount, 'x' AS more FROM source"
    for policy in ("off", "check"):
        with pytest.raises(UnknownSchema, match=f'no schema of {subject}, and schema_registration is "{policy}"'):
            run(policy, plain, policy)
    assert run("register", plain, "first").rows_written == {target: 1}
    for policy in ("off", "check"):
        assert run(policy, plain, policy).rows_written == {target: 1}
    mistyped = "SELECT id, CAST(amount AS string) AS amount FROM source"
    with pytest.raises(DeclarationError, match=rf"column amount: is string, and \w+ in {subject}, as registered"):
        run("check", mistyped, "mistyped")
    with pytest.raises(DeclarationError, match=f"column more: {subject}, as registered, (has no such|does not say)"):
        run("check", more, "unknown")
    assert registry.versions(subject) == [1]
    assert run("register", more, "grown").rows_written == {target: 1}
    # An object of JSON may have any other property, so that its schema need not grow.
    assert registry.versions(subject) == ([1] if form == "json_schema" else [1, 2])
    if form != "json_schema":
        assert run("check", more, "as grown").rows_written == {target: 1}
        assert run("off", mistyped, "cast").rows_written == {target: 1}


def test_avro_with_the_registry_of_glue(kafka: Kafka, tmp_path: Path) -> None:
    glue, topics = Glue(), Topics(kafka, tmp_path)
    source, target = kafka.new_topic(), kafka.new_topic()
    id = glue.register(source, ORDER)
    body = avro(ORDER, 0, ROW)[5:]
    plain, packed = bytes((3, 0)) + id.bytes, bytes((3, 5)) + id.bytes
    unknown = bytes((3, 0)) + uuid4().bytes
    kafka.send(source, [plain + body, packed + zlib.compress(body), unknown + body, b"\x00\x00\x00\x00\x01" + body])
    head, _, tail = topics.toml(source, schema=None, on_error="dlq", target=target).partition("[target]")
    registry = (
        'payload_format = "avro"\n[NAME.schema_registry]\nkind = "glue_schema_registry"\n'
        f'registry_name = "{glue.name}"\n'
        f'region = "eu-west-1"\nendpoint = "{glue.url}"\naws_access_key_id = "k"\naws_secret_access_key = "s"\n'
    )
    before, _, transform = head.partition("[transform]")
    result = run_pipeline(
        config_str=f"{before}{registry.replace('NAME', 'source')}[transform]{transform}[target]{tail}"
        f"{registry.replace('NAME', 'target')}",
        bounded=True,
    )
    assert (result.rows_written, result.dlq_rows) == ({target: 2}, {"decode": 2})
    letters = DeadLetters(dead_letters_of("orders"))
    reasons = [letter.error for letter in letters.all()]
    letters.close()
    assert reasons[0].endswith("is not in the registry")
    assert reasons[1].endswith("name a schema of a registry: 3, 0 or 5, then 16 bytes of id")
    for message in kafka.read(target):
        value = message.value()
        made = fastavro.parse_schema(glue.schema(UUID(bytes=value[2:18])))
        assert fastavro.schemaless_reader(io.BytesIO(value[18:]), made, None) == ROW
