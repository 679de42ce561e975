"""Protobuf messages and Spark's types, both ways, and rows to Protobuf in Confluent's form."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from ematix_flow.sinks.protobuf_files import ProtobufUnsuited, compiled, message_at
from ematix_flow.sinks.schema_registry import Unwritable

if TYPE_CHECKING:
    import pyarrow as pa
    from google.protobuf.descriptor import Descriptor, FieldDescriptor
    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructType

FIRST = b"\x00"
"""How Confluent's form names the first message of a file, which is the one that is written."""
TIMESTAMP = "google.protobuf.Timestamp"
DATE = "google.type.Date"
WRAPPERS = frozenset(
    f"google.protobuf.{kind}Value"
    for kind in ("Bool", "Bytes", "Double", "Float", "Int32", "Int64", "String", "UInt32", "UInt64")
)

Make = Callable[[Any], Any]
"""A value of Python's to one that a message takes."""

_WRITTEN = {
    "boolean": "bool", "tinyint": "int32", "smallint": "int32", "int": "int32", "bigint": "int64", "float": "float",
    "double": "double", "string": "string", "binary": "bytes", "timestamp": TIMESTAMP,
    # As texts: what Protobuf has for them is not part of it, but has to be imported from elsewhere.
    "date": "string", "timestamp_ntz": "string",
}  # fmt: skip
_KEYS = ("boolean", "tinyint", "smallint", "int", "bigint", "string")
_IMPORT = 'import "google/protobuf/timestamp.proto";'
# Comments and texts are tokens of their own, so that no brace in them counts.
_TOKENS = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'|\bmessage\b|[{}]", re.DOTALL)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def spark_schema(message: Descriptor, inside: tuple[str, ...] = ()) -> StructType:
    """The columns of a message. A field that is always there is a column all the same that may be NULL: others may have
    been written before it was."""
    from pyspark.sql.types import StructField, StructType

    if message.full_name in inside:
        raise ProtobufUnsuited(
            f"message {message.full_name} holds itself, which no column can",
            next_step="declare the other columns with `schema`",
        )
    within = (*inside, message.full_name)
    return StructType([StructField(f.name, _spark_type(f, within), not f.is_required) for f in message.fields])


def _spark_type(field: FieldDescriptor, inside: tuple[str, ...]) -> DataType:
    from pyspark.sql.types import ArrayType, MapType

    if is_map(field):
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        return MapType(_one(key, inside), _one(value, inside))
    return ArrayType(_one(field, inside)) if field.is_repeated else _one(field, inside)


def _one(field: FieldDescriptor, inside: tuple[str, ...]) -> DataType:
    from pyspark.sql.types import DateType, TimestampType

    if field.message_type is None:
        return _simple(field)
    name = field.message_type.full_name
    if name in WRAPPERS:
        return _one(field.message_type.fields_by_name["value"], inside)
    known = {TIMESTAMP: TimestampType(), DATE: DateType()}.get(name)
    return known or spark_schema(field.message_type, inside)


def _simple(field: FieldDescriptor) -> DataType:
    """What has no sign is wider than what has; an enumeration is the name of its value."""
    from google.protobuf.descriptor import FieldDescriptor as Proto
    from pyspark.sql import types as T

    kinds: dict[int, DataType] = {
        Proto.CPPTYPE_INT32: T.IntegerType(),
        Proto.CPPTYPE_INT64: T.LongType(),
        Proto.CPPTYPE_UINT32: T.LongType(),
        Proto.CPPTYPE_UINT64: T.DecimalType(20, 0),
        Proto.CPPTYPE_DOUBLE: T.DoubleType(),
        Proto.CPPTYPE_FLOAT: T.FloatType(),
        Proto.CPPTYPE_BOOL: T.BooleanType(),
        Proto.CPPTYPE_ENUM: T.StringType(),
        Proto.CPPTYPE_STRING: T.StringType(),
    }
    return T.BinaryType() if field.type == Proto.TYPE_BYTES else kinds[field.cpp_type]


def is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def is_wide(field: FieldDescriptor) -> bool:
    """No whole number of Spark's holds all of its values."""
    from google.protobuf.descriptor import FieldDescriptor as Proto

    return bool(field.cpp_type == Proto.CPPTYPE_UINT64)


def proto_text(columns: StructType, topic: str) -> str:
    """A file with one message of these columns. Each may be NULL, which a field without `optional` could not tell."""
    name = re.sub(r"\W", "_", topic)
    message = "\n".join(_message(columns, f"{name}_value" if not name[:1].isdigit() else f"_{name}_value", ""))
    imports = f"{_IMPORT}\n\n" if TIMESTAMP in message else ""
    return f'syntax = "proto3";\n\n{imports}{message}\n'


def extended(text: str, imported: Mapping[str, str], columns: StructType) -> str:
    """With fields for more columns at the end of the first message. The rest of the text stays as it was written."""
    depth, begun = 0, False
    for token in _TOKENS.finditer(text):
        begun = begun or token[0] == "message"
        depth += {"{": 1, "}": -1}.get(token[0], 0) if begun else 0
        if token[0] == "}" and begun and depth == 0:
            break
    else:
        raise ProtobufUnsuited("the registered schema is no text", next_step="add the columns to it in the registry")
    lines = "\n".join(_fields_text(columns, _free_number(message_at(compiled(text, imported), (0,)))))
    grown = f"{text[: token.start()].rstrip()}\n{lines}\n{text[token.start() :]}"
    if TIMESTAMP in lines and _IMPORT not in text:
        begin = re.search(r"^\s*(?:syntax|edition|package)\b[^;]*;", grown, re.MULTILINE)
        at = begin.end() if begin else 0
        grown = f"{grown[:at]}\n\n{_IMPORT}{grown[at:]}"
    return grown


def _free_number(message: Descriptor) -> int:
    """Above all that the message has, has had or keeps for others."""
    from google.protobuf.descriptor_pb2 import DescriptorProto

    own = DescriptorProto()
    message.CopyToProto(own)
    ends = [one.end for one in (*own.reserved_range, *own.extension_range)]
    free: int = max([0, *(field.number for field in own.field), *(end - 1 for end in ends)]) + 1
    # In between are numbers that Protobuf keeps to itself.
    return free if free < 19_000 else max(free, 20_000)


def _fields_text(columns: StructType, first: int, indent: str = "  ") -> list[str]:
    """Lines of a message, numbered from `first`, with the messages that they need."""
    lines: list[str] = []
    for number, field in enumerate(columns.fields, first):
        if not _NAME.fullmatch(field.name):
            raise ProtobufUnsuited(
                f'a column named "{field.name}" cannot be a field of Protobuf',
                next_step="rename it in the transform: letters, digits and _, no digit at the beginning",
            )
        lines += _field(field.dataType, field.name, number, indent)
    return lines


def _message(columns: StructType, name: str, indent: str) -> list[str]:
    return [f"{indent}message {name} {{", *_fields_text(columns, 1, f"{indent}  "), f"{indent}}}"]


def _field(kind: DataType, name: str, number: int, indent: str) -> list[str]:
    from pyspark.sql.types import ArrayType, MapType

    match kind:
        case MapType():
            if kind.keyType.simpleString() not in _KEYS:
                raise _unsuited(f"a map from {kind.keyType.simpleString()}")
            nested, value = _type(kind.valueType, name, indent)
            key = _WRITTEN[kind.keyType.simpleString()]
            return [*nested, f"{indent}map<{key}, {value}> {name} = {number};"]
        case ArrayType():
            nested, element = _type(kind.elementType, name, indent)
            return [*nested, f"{indent}repeated {element} {name} = {number};"]
    nested, word = _type(kind, name, indent)
    return [*nested, f"{indent}optional {word} {name} = {number};"]


def _type(kind: DataType, name: str, indent: str) -> tuple[list[str], str]:
    """The messages that have to be there for it, and its name."""
    from pyspark.sql.types import DecimalType, StructType

    if isinstance(kind, StructType):
        own = f"{name[:1].upper()}{name[1:]}Value"
        return _message(kind, own, indent), own
    word = "string" if isinstance(kind, DecimalType) else _WRITTEN.get(kind.simpleString())
    if word is None:
        raise _unsuited(kind.simpleString())
    return [], word


def _unsuited(kind: str) -> ProtobufUnsuited:
    return ProtobufUnsuited(
        f"column of type {kind} has no counterpart in Protobuf", next_step="cast it in the transform"
    )


def encoded(row: Column, header: bytes, text: str, imported: Mapping[str, str]) -> Column:
    """A struct of columns as the first message of a file, with its header."""
    from pyspark.sql.pandas.functions import arrow_udf

    function = arrow_udf(_encoder(header, text, imported), "binary")  # type: ignore[call-overload]
    return cast("Column", function(row))


def _encoder(header: bytes, text: str, imported: Mapping[str, str]) -> Callable[[pa.Array], pa.Array]:
    makers: list[Make] = []

    # A lambda below, because Spark would look for the meaning of a function's annotations.
    def encode(rows: pa.Array) -> pa.Array:
        import pyarrow as pa

        if not makers:
            makers.append(message_maker(message_at(compiled(text, imported), (0,))))
        start, make = header + FIRST, makers[0]
        try:
            values = [start + make(row).SerializeToString() for row in rows.to_pylist(maps_as_pydicts="strict")]
        except Exception as error:
            raise Unwritable(str(error) or type(error).__name__) from error
        return pa.array(values, pa.binary())

    return lambda rows: encode(rows)  # noqa: PLW0108


def message_maker(message: Descriptor) -> Make:
    """From a row, a dict, to a message. NULL leaves a field out."""
    from google.protobuf.message_factory import GetMessageClass

    new = GetMessageClass(message)
    if message.full_name in WRAPPERS:
        return lambda value: new(value=value)
    if message.full_name == TIMESTAMP:
        return lambda value: new(**_since_epoch(value))
    if message.full_name == DATE:
        return lambda value: new(year=value.year, month=value.month, day=value.day)
    makers = {field.name: _maker(field) for field in message.fields}

    def make(row: Mapping[str, Any]) -> Any:
        return new(**{name: makers[name](value) for name, value in row.items() if value is not None})

    return make


def _maker(field: FieldDescriptor) -> Make:
    if is_map(field):
        value = _one_maker(field.message_type.fields_by_name["value"])
        return lambda entries: {key: value(_there(one, field)) for key, one in entries.items()}
    one = _one_maker(field)
    return (lambda items: [one(_there(item, field)) for item in items]) if field.is_repeated else one


def _one_maker(field: FieldDescriptor) -> Make:
    if field.message_type is not None:
        made: list[Make] = []

        def make(value: Any) -> Any:
            # Not before it is needed: a message may hold itself.
            if not made:
                made.append(message_maker(field.message_type))
            return made[0](value)

        return make
    if is_wide(field):
        return int
    return partial(_enum_number, field) if field.enum_type is not None else lambda value: value


def _enum_number(field: FieldDescriptor, name: str) -> int:
    known = field.enum_type.values_by_name
    if name not in known:
        raise ValueError(f'column {field.name} holds "{name}", which is none of {", ".join(known)}')
    return int(known[name].number)


def _there(value: Any, field: FieldDescriptor) -> Any:
    if value is None:
        raise ValueError(f"column {field.name} holds a NULL, which lists and maps of Protobuf cannot")
    return value


def _since_epoch(time: datetime) -> dict[str, int]:
    since = (time if time.tzinfo else time.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
    return {"seconds": since.days * 86_400 + since.seconds, "nanos": since.microseconds * 1000}
