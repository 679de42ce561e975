"""Change envelopes in Avro become the JSON of Kafka Connect, schema included; no Spark and no registry."""

import io
import json
from dataclasses import dataclass, field
from typing import Any

import fastavro

from ematix_flow.cdc.logical import fields_of
from ematix_flow.sinks.schema_registry import UnknownSchema
from ematix_flow.streams.avro_envelopes import _read, connect_schema

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


@dataclass
class Known:
    url: str = "memory"
    texts: dict[int, str] = field(default_factory=dict)
    text: str = ""

    def schema(self, id: int) -> "Known":
        if id not in self.texts:
            raise UnknownSchema(f"{id}")
        return Known(text=self.texts[id])


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
    registry: Any = Known(texts={3: json.dumps(ENVELOPE)})
    text, problem = _read(b"\x00" + (3).to_bytes(4, "big") + out.getvalue(), registry)
    assert problem is None
    read = json.loads(text or "")
    assert read["payload"] == {**envelope, "after": {**row, "price": "MDk="}}
    assert [one["field"] for one in read["schema"]["fields"]] == ["before", "after"]
    assert _read(b"\x00\x00\x00\x00\x09x", registry) == (None, "schema 9 is not in the registry")
    assert "cannot be read with schema 3" in str(_read(b"\x00\x00\x00\x00\x03\x02", registry)[1])
    assert "tombstone" in str(_read(None, registry)[1])
