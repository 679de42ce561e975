"""Protobuf in Confluent's form to columns, in Python workers."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from ematix_flow.sinks.protobuf import DATE, TIMESTAMP, WRAPPERS, is_map, is_wide
from ematix_flow.sinks.protobuf_files import ProtobufUnsuited, file_of, message_at
from ematix_flow.sinks.schema_registry import Registry, SchemaId
from ematix_flow.streams.decode import Parsed
from ematix_flow.streams.registered_reader import ReadRecord, Unreadable, registered_columns

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

Take = Callable[[Any], Any]
"""From a message, or a value in one, to a value of Python's."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_files: dict[tuple[Registry, SchemaId], FileDescriptor] = {}


def protobuf_columns(
    rows: DataFrame, column: str, schema: StructType, registry: Registry, reader: SchemaId | None
) -> Parsed:
    """`reader` is the id of the schema whose first message all records are read as, by the numbers of its fields;
    without it each is read as it was written."""
    return registered_columns(rows, column, schema, registry, partial(_reading, registry, reader))


def first_message(registry: Registry, id: SchemaId) -> Descriptor:
    return message_at(_file(registry, id), (0,))


def _reading(registry: Registry, reader: SchemaId | None) -> ReadRecord:
    wanted = None if reader is None else first_message(registry, reader)
    takes: dict[tuple[SchemaId, tuple[int, ...]], Take] = {}

    def read(id: SchemaId, content: bytes) -> dict[str, Any]:
        indexes, begin = _indexes(content)
        take = takes.get((id, indexes))
        if take is None:
            take = takes[id, indexes] = _parser(_written(registry, id, indexes), wanted)
        try:
            row: dict[str, Any] = take(content[begin:])
        except Exception as error:
            words = str(error) or type(error).__name__
            raise Unreadable(f"the record cannot be read with schema {id}: {words}") from error
        return row

    return read


def _written(registry: Registry, id: SchemaId, indexes: tuple[int, ...]) -> Descriptor:
    try:
        return message_at(_file(registry, id), indexes)
    except IndexError:
        raise Unreadable(f"schema {id} has no message at {list(indexes)}") from None
    except ProtobufUnsuited as error:
        raise Unreadable(f"schema {id}: {error.found}") from error


def _file(registry: Registry, id: SchemaId) -> FileDescriptor:
    """A schema of an id never changes."""
    known = _files.get((registry, id))
    if known is None:
        known = _files[registry, id] = file_of(registry, registry.schema(id))
    return known


def _indexes(content: bytes) -> tuple[tuple[int, ...], int]:
    """Which message it is, and where it begins."""
    count, at = _number(content, 0)
    if count == 0:
        return (0,), at
    found = []
    for _ in range(count):
        index, at = _number(content, at)
        found.append(index)
    return tuple(found), at


def _number(content: bytes, at: int) -> tuple[int, int]:
    """Seven bits a byte, the lowest first; negative and positive ones in turn."""
    found = shift = 0
    while at < len(content) and shift < 35:
        byte = content[at]
        found |= (byte & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if byte < 0x80:
            if found & 1:
                break
            return found >> 1, at
    raise Unreadable("the record does not tell after its header which message of the schema it is")


def _parser(written: Descriptor, wanted: Descriptor | None) -> Take:
    from google.protobuf.message_factory import GetMessageClass

    if wanted is not None and written.full_name != wanted.full_name:
        found = f"the record is a {written.full_name}, and {wanted.full_name} is read; declare `schema` to read both"
        raise Unreadable(found)
    parse, take = GetMessageClass(wanted or written).FromString, _taker(wanted or written)
    return lambda content: take(parse(content))


def _taker(message: Descriptor) -> Take:
    if message.full_name == TIMESTAMP:
        return lambda one: _EPOCH + timedelta(seconds=one.seconds, microseconds=one.nanos // 1000)
    if message.full_name == DATE:
        return lambda one: date(one.year, one.month, one.day)
    if message.full_name in WRAPPERS:
        return _value_of(message.fields_by_name["value"])
    takes = [(field.name, _value_of(field)) for field in message.fields]
    return lambda one: {name: take(one) for name, take in takes}


def _value_of(field: FieldDescriptor) -> Take:
    """Of a message: NULL if the field can tell that it is not there."""
    name, get = field.name, attrgetter(field.name)
    if is_map(field):
        one = _one(field.message_type.fields_by_name["value"])
        return lambda message: [(key, one(value) if one else value) for key, value in get(message).items()]
    one = _one(field)
    if field.is_repeated:
        return lambda message: [*map(one, get(message))] if one else list(get(message))
    found: Take = (lambda message: one(get(message))) if one else get
    if field.has_presence and not field.has_default_value:
        return lambda message: found(message) if message.HasField(name) else None
    return found


def _one(field: FieldDescriptor) -> Take | None:
    """None for what is a value of Python's already."""
    if field.message_type is not None:
        made: list[Take] = []

        def take(message: Any) -> Any:
            # Not before it is needed: a message may hold itself.
            if not made:
                made.append(_taker(field.message_type))
            return made[0](message)

        return take
    if field.enum_type is not None:
        names = {value.number: value.name for value in field.enum_type.values}
        # A number that came later than the schema is told as it is.
        return lambda number: names.get(number) or str(number)
    return Decimal if is_wide(field) else None
