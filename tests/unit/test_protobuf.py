"""Protobuf schemas without a registry: compiled from their text, to columns and back, and grown by columns."""

import base64
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from ematix_flow.sinks.protobuf import extended, message_maker, proto_text, spark_schema
from ematix_flow.sinks.protobuf_files import ProtobufUnsuited, compiled, message_at
from ematix_flow.sinks.schema_registry import ConfluentRegistry, Schema, SchemaId, UnknownSchema
from ematix_flow.streams.protobuf_reader import _indexes, _reading
from ematix_flow.streams.registered_reader import ReadRecord, Unreadable

NESTED = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
import "money.proto";
message Order {   // } not the end
  int64 id = 1;
  optional string note = 2;
  Kind kind = 3;
  repeated string tags = 4;
  map<string, Line> lines = 5;
  google.protobuf.Timestamp at = 6;
  google.protobuf.Int32Value rank = 7;
  Money price = 8;
  uint64 big = 9;
  oneof by { string card = 10; bool cash = 11; }
  message Line { int32 count = 1; }
  enum Kind { NEW = 0; OLD = 1; }
  reserved 20 to 30;
}
message Other { message Inner { string word = 1; } string name = 1; }
"""
MONEY = 'syntax = "proto3"; package shop; message Money { sint32 cents = 1; }'
IMPORTED = {"money.proto": MONEY}
AT = datetime(2026, 3, 1, 8, 30, 0, 123456, tzinfo=UTC)
ROW = {
    "id": 1,
    "note": None,
    "kind": "OLD",
    "tags": ["x", "y"],
    "lines": {"a": {"count": 2}},
    "at": AT,
    "rank": 0,
    "price": {"cents": -5},
    "big": Decimal(2**64 - 1),
    "card": None,
    "cash": False,
}


class Known(ConfluentRegistry):
    """Schemas by id, without a server."""

    def __init__(self, *texts: str) -> None:
        super().__init__(f"memory://{id(self)}")
        object.__setattr__(self, "texts", texts)

    def schema(self, id: SchemaId) -> Schema:
        texts: tuple[str, ...] = self.texts  # type: ignore[attr-defined]
        assert isinstance(id, int)
        if id >= len(texts):
            raise UnknownSchema("unknown", next_step="")
        return Schema(id, texts[id], "PROTOBUF")

    def referenced(self, schema: Schema) -> dict[str, str]:
        return IMPORTED


def columns(**kinds: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in kinds.items()])


def written(text: str, row: Mapping[str, Any], *indexes: int) -> bytes:
    message = message_at(compiled(text, IMPORTED), indexes or (0,))
    return bytes(message_maker(message)(row).SerializeToString())


def read(reader: ReadRecord, id: int, content: bytes) -> Any:
    return reader(id, content)


def test_a_message_is_columns_and_a_row_comes_back_as_it_went() -> None:
    found = spark_schema(message_at(compiled(NESTED, IMPORTED), (0,)))
    assert found.simpleString() == (
        "struct<id:bigint,note:string,kind:string,tags:array<string>,lines:map<string,struct<count:int>>,at:timestamp,"
        "rank:int,price:struct<cents:int>,big:decimal(20,0),card:string,cash:boolean>"
    )
    reader = _reading(Known(NESTED), 0)
    assert read(reader, 0, b"\x00" + written(NESTED, ROW)) == ROW | {"lines": [("a", {"count": 2})]}
    empty = read(reader, 0, b"\x00")
    assert (empty["id"], empty["note"], empty["kind"], empty["at"], empty["rank"]) == (0, None, "NEW", None, None)


def test_message_indexes_name_a_message() -> None:
    assert _indexes(b"\x00rest") == ((0,), 1)
    assert _indexes(b"\x04\x02\x00rest") == ((1, 0), 3)
    assert _indexes(b"\x02\x80\x02rest") == ((128,), 3)
    for cut in (b"", b"\x04\x02", b"\x01\x00", b"\x02\xff\xff\xff\xff\xff\xff"):
        with pytest.raises(Unreadable, match="does not tell after its header which message"):
            _indexes(cut)
    everything = _reading(Known(NESTED), None)
    assert read(everything, 0, b"\x04\x02\x00" + written(NESTED, {"word": "w"}, 1, 0)) == {"word": "w"}
    with pytest.raises(Unreadable, match=r"schema 0 has no message at \[7\]"):
        everything(0, b"\x02\x0e")
    with pytest.raises(Unreadable, match=r"is a shop\.Other, and shop\.Order is read"):
        _reading(Known(NESTED), 0)(0, b"\x02\x02")
    with pytest.raises(UnknownSchema):
        everything(5, b"\x00")
    with pytest.raises(Unreadable, match="cannot be read with schema 0"):
        everything(0, b"\x00" + written(NESTED, ROW)[:-1])


def test_records_of_other_versions_are_read_by_the_numbers_of_their_fields() -> None:
    first = 'syntax = "proto3"; message M { int64 id = 1; string name = 2; }'
    later = 'syntax = "proto3"; message M { int64 id = 1; string title = 2; optional string more = 3; }'
    both = Known(first, later)
    value = b"\x00" + written(later, {"id": 3, "title": "t", "more": "m"})
    assert _reading(both, 0)(1, value) == {"id": 3, "name": "t"}
    assert _reading(both, None)(1, value) == {"id": 3, "title": "t", "more": "m"}


def test_columns_become_a_message_that_holds_them() -> None:
    given = columns(
        id=LongType(),
        at=TimestampType(),
        day=DateType(),
        price=DecimalType(10, 2),
        tags=ArrayType(StringType()),
        small=ByteType(),
        raw=BinaryType(),
        line=columns(count=IntegerType(), at=TimestampType()),
        lines=ArrayType(columns(n=LongType())),
        by=MapType(StringType(), DoubleType()),
    )
    text = proto_text(given, "shop.orders-1")
    message = message_at(compiled(text, {}), (0,))
    assert message.name == "shop_orders_1_value"
    assert spark_schema(message).simpleString() == (
        "struct<id:bigint,at:timestamp,day:string,price:string,tags:array<string>,small:int,raw:binary,"
        "line:struct<count:int,at:timestamp>,lines:array<struct<n:bigint>>,by:map<string,double>>"
    )
    before = {"id": 1, "at": datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)}
    assert _reading(Known(text), 0)(0, b"\x00" + written(text, before))["at"] == before["at"]
    unsuited = {"interval": DayTimeIntervalType(), "a map from date": MapType(DateType(), LongType())}
    for words, kind in unsuited.items():
        with pytest.raises(ProtobufUnsuited, match=words):
            proto_text(columns(x=kind), "t")
    with pytest.raises(ProtobufUnsuited, match='"a-b" cannot be a field'):
        proto_text(columns(**{"a-b": LongType()}), "t")


def test_more_columns_go_to_the_end_of_the_first_message() -> None:
    grown = extended(NESTED, IMPORTED, columns(extra=columns(n=IntegerType()), seen=TimestampType()))
    assert "// } not the end" in grown
    before, after = (message_at(compiled(text, IMPORTED), (0,)) for text in (NESTED, grown))
    assert {f.name: f.number for f in after.fields}.items() - {f.name: f.number for f in before.fields}.items() == {
        ("extra", 31),
        ("seen", 32),
    }
    small = extended('syntax = "proto3"; message M { int64 id = 1; }', {}, columns(at=TimestampType()))
    assert [f.name for f in message_at(compiled(small, {}), (0,)).fields] == ["id", "at"]


def test_descriptors_in_base64_are_read_as_well() -> None:
    file = FileDescriptorProto()
    compiled(NESTED, IMPORTED).CopyToProto(file)
    text = base64.b64encode(file.SerializeToString()).decode()
    assert message_at(compiled(text, IMPORTED), (0,)).full_name == "shop.Order"


def test_what_cannot_be_is_told_in_words() -> None:
    with pytest.raises(ProtobufUnsuited, match=r"money\.proto.*not found"):
        compiled(NESTED, {})
    with pytest.raises(ProtobufUnsuited, match="message Tree holds itself"):
        spark_schema(message_at(compiled('syntax = "proto3"; message Tree { Tree left = 1; }', {}), (0,)))
    make = message_maker(message_at(compiled(NESTED, IMPORTED), (0,)))
    with pytest.raises(ValueError, match='column kind holds "LATE", which is none of NEW, OLD'):
        make({"kind": "LATE"})
    with pytest.raises(ValueError, match="column tags holds a NULL"):
        make({"tags": ["a", None]})


def test_dates_of_googles_own_type() -> None:
    text = 'syntax = "proto3"; import "google/type/date.proto"; message M { google.type.Date day = 1; }'
    more = {
        "google/type/date.proto": 'syntax = "proto3"; package google.type; '
        "message Date { int32 year = 1; int32 month = 2; int32 day = 3; }"
    }
    message = message_at(compiled(text, more), (0,))
    assert spark_schema(message).simpleString() == "struct<day:date>"
    made = message_maker(message)({"day": date(2026, 3, 1)})
    assert (made.day.year, made.day.month, made.day.day) == (2026, 3, 1)
