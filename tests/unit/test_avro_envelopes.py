"""Change envelopes in Avro become the JSON of Kafka Connect, schema included; no Spark and no registry."""

import io
import json

import fastavro
import pyarrow as pa

from ematix_flow.cdc.logical import fields_of
from ematix_flow.sinks.schema_registry import ConfluentRegistry, Schema, SchemaId, UnknownSchema
from ematix_flow.streams.avro_envelopes import PROBLEM, _texts, connect_schema

# As Debezium's connector for MySQL registers it: the second row only names the type of the first.
DECIMAL = {
    "type": "bytes", "scale": 2, "precision": 10, "connect.version": 1, "logicalType": "decimal",
    "connect.parameters": {"scale": "2", "connect.decimal.precision": "10"},
    "connect.name": "org.apache.kafka.connect.data.Decimal",
}  # fmt: skip
ROW = {
    "type": "record", "name": "Value", "connect.name": "shop.inventory.orders.Value",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "price", "type": ["null", DECIMAL], "default": None},
        {"name": "day", "type": {"type": "int", "connect.version": 1, "connect.name": "io.debezium.time.Date"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []},
    ],
}  # fmt: skip
ENVELOPE = {
    "type": "record", "name": "Envelope", "namespace": "shop.inventory.orders",
    "fields": [
        {"name": "before", "type": ["null", ROW], "default": None},
        {"name": "after", "type": ["null", "Value"], "default": None},
        {"name": "source", "type": {"type": "record", "name": "Source", "fields": [{"name": "pos", "type": "long"}]}},
        {"name": "op", "type": "string"},
    ],
}  # fmt: skip


class Known(ConfluentRegistry):
    def schema(self, id: SchemaId) -> Schema:
        if id != 3:
            raise UnknownSchema(f"{id}")
        return Schema(id, json.dumps(ENVELOPE), "AVRO")


def read(value: bytes | None) -> tuple[str | None, str | None]:
    (batch,) = _texts(
        "value", "text", Known("memory"), iter([pa.record_batch({"value": pa.array([value], pa.binary())})])
    )
    return batch.column("text")[0].as_py(), batch.column(PROBLEM)[0].as_py()


def test_rows_have_the_types_that_their_schema_says() -> None:
    fields = fields_of(connect_schema(ENVELOPE))
    assert {name: one.kind for name, one in fields.items()} == {
        "id": "bigint", "price": "decimal(10,2)", "day": "date", "at": "timestamp_ntz", "tags": "array<string>",
    }  # fmt: skip


def test_a_record_is_the_json_that_connect_would_have_written() -> None:
    row = {"id": 1, "price": b"\x30\x39", "day": 19_000, "at": 5, "tags": ["x"]}
    envelope = {"before": None, "after": row, "source": {"pos": 7}, "op": "c"}
    out = io.BytesIO()
    bare = json.loads(json.dumps(ENVELOPE).replace('"logicalType"', '"ignored"'))
    fastavro.schemaless_writer(out, fastavro.parse_schema(bare), envelope)
    text, problem = read(b"\x00" + (3).to_bytes(4, "big") + out.getvalue())
    assert problem is None
    told = json.loads(text or "")
    assert told["payload"] == {**envelope, "after": {**row, "price": "MDk="}}
    assert [one["field"] for one in told["schema"]["fields"]] == ["before", "after"]
    assert read(b"\x00\x00\x00\x00\x09x") == (None, "schema 9 is not in the registry")
    assert "cannot be read with schema 3" in str(read(b"\x00\x00\x00\x00\x03\x02")[1])
    assert "tombstone" in str(read(None)[1])
