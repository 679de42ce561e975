"""Rows as Kafka records: what becomes the value, the key, the headers, the partition and the topic of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from ematix_flow.errors import DeclarationError, Problem
from ematix_flow.problems import near
from ematix_flow.sinks import avro, protobuf
from ematix_flow.sinks.ahead import AHEAD
from ematix_flow.sinks.base import HIDDEN, PART, ROW, Made, NeedsRows
from ematix_flow.sinks.files import TIMES
from ematix_flow.sinks.json_writer import are_writable, json_objects
from ematix_flow.sinks.kafka_limits import MOST_BESIDE, SIZE, size
from ematix_flow.sinks.map_keys import json_text, with_text_keys
from ematix_flow.sinks.schema_registry import Schema
from ematix_flow.specs import Target

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

HEADERS = "array<struct<key: string, value: binary>>"
_VALUE = "value"


@dataclass(frozen=True)
class Payload:
    """How values are written, and by which registered schema."""

    form: str
    schema: Schema | None = None
    header: bytes = b""
    """What names the schema before each value."""
    imported: Mapping[str, str] = field(default_factory=dict)
    """What the schema needs of others, by name."""


def records(rows: DataFrame, target: Target, payload: Payload) -> DataFrame:
    """Columns `key` and `value`; `headers` if there is a column for them; `topic` and `partition` if rows choose one of
    the two; `SIZE`; and `PART` and `ROW` as they came."""
    return rows.select(*[column.alias(name) for name, column in record(rows.schema, target, payload).items()])


def record(schema: StructType, target: Target, payload: Payload) -> dict[str, Column]:
    """The same, as columns over rows of this schema."""
    from pyspark.sql import functions as F

    kinds = {one.name: one.dataType for one in schema.fields}
    columns = {"key": _key(target.message_key_column, kinds), "value": _value(target, payload, kinds)}
    if are_placed(target):
        columns["topic"] = F.coalesce(_or_none(target.topic_column, "string"), F.lit(target.topic).cast("string"))
        columns["partition"] = _or_none(target.partition_column, "int")
    if target.headers_column is not None:
        columns["headers"] = _headers(target.headers_column, kinds[target.headers_column])
    columns[SIZE] = size(columns["key"], columns["value"], columns.get("headers"))
    return columns | {name: F.col(name) for name in (PART, ROW, AHEAD) if name in kinds}


def records_ahead(schema: StructType, target: Target, most: int) -> Made | None:
    """Records as workers make them of many rows at once, with a value in JSON; None if it takes Spark to write them.
    They raise `NeedsRows` if one may be larger than `most`."""
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import BinaryType, BooleanType, IntegralType, StringType

    kinds, key = {one.name: one.dataType for one in schema.fields}, target.message_key_column
    names = written(kinds, target)
    values = to_arrow_schema(schema, timezone="UTC")
    if key is not None and not isinstance(kinds.get(key), BinaryType | StringType | IntegralType | BooleanType):
        return None
    if not are_writable([values.field(name).type for name in names]):
        return None
    return partial(_records_of, key, names, most)


def _records_of(key: str | None, names: Sequence[str], most: int, rows: pa.Table) -> pa.Table:
    import pyarrow as pa
    import pyarrow.compute as pc

    keys = pa.nulls(len(rows), pa.binary()) if key is None else rows[key]
    if not pa.types.is_binary(keys.type):
        keys = keys.cast(pa.string()).cast(pa.binary())
    values = json_objects(rows.select(names))
    if sum(pc.max(pc.binary_length(column)).as_py() or 0 for column in (keys, values)) > most - MOST_BESIDE:
        raise NeedsRows
    return pa.table({"key": keys, "value": values})


def are_placed(target: Target) -> bool:
    """Whether rows choose their topic or their partition."""
    return target.topic_column is not None or target.partition_column is not None


def check_columns(schema: StructType, target: Target, payload_format: str, name: str) -> None:
    """Everything that the target says of its columns, at once."""
    from pyspark.sql.types import ArrayType, BinaryType, IntegralType, MapType, StringType

    kinds = {one.name: one.dataType for one in schema.fields}
    wanted: dict[str, tuple[tuple[type[DataType], ...], str]] = {
        "message_key_column": ((), ""),
        "headers_column": ((MapType, ArrayType), f"a map of texts, or {HEADERS}"),
        "partition_column": ((IntegralType,), "a whole number"),
        "topic_column": ((StringType,), "a text"),
    }
    problems = []
    for option, (types, words) in wanted.items():
        column = getattr(target, option)
        if column is None:
            continue
        place = f"target {name!r} {option}"
        if column not in kinds:
            found = f'found "{column}", which is no column of the rows'
            problems.append(Problem(place, found, ", ".join(kinds), near(column, kinds)))
        elif types and not isinstance(kinds[column], types):
            problems.append(Problem(place, f'column "{column}" is {kinds[column].simpleString()}', words))
    if payload_format == "raw_bytes" and not isinstance(kinds.get(_VALUE), BinaryType | StringType):
        found = f"there is no column {_VALUE} of bytes or text, which raw_bytes writes"
        problems.append(Problem(f"target {name!r} payload_format", found, ", ".join(kinds)))
    if problems:
        raise DeclarationError(f"target {name!r}", problems)


def written(names: Iterable[str], target: Target) -> list[str]:
    """The columns of the value. What tells where a record goes is part of it, unless its name says that it is beside
    it, as `_key` is."""
    routing = {target.message_key_column, target.headers_column, target.partition_column, target.topic_column}
    beside = {name for name in routing if name and name.startswith("_")}.union(HIDDEN)
    return [name for name in names if name not in beside]


def _value(target: Target, payload: Payload, kinds: dict[str, DataType]) -> Column:
    from pyspark.sql import functions as F

    if payload.form == "raw_bytes":
        return _at(_VALUE).cast("binary")
    names = written(kinds, target)
    row = F.struct(*map(_at, names))
    if payload.form == "avro" and payload.schema is not None:
        return avro.encoded(row, payload.header, payload.schema.text)
    if payload.form == "protobuf" and payload.schema is not None:
        return protobuf.encoded(row, payload.header, payload.schema.text, payload.imported)
    row = F.struct(*[with_text_keys(_at(name), kinds[name], TIMES).alias(name) for name in names])
    # Nulls are left out, as in files of JSON lines.
    text = F.to_json(row, {**TIMES, "ignoreNullFields": "true"}).cast("binary")
    return text if payload.schema is None else F.concat(F.lit(payload.header), text)


def _key(name: str | None, kinds: dict[str, DataType]) -> Column:
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType, BinaryType, MapType, StructType

    if name is None:
        return F.lit(None).cast("binary")
    if isinstance(kinds[name], BinaryType):
        return _at(name)
    if isinstance(kinds[name], ArrayType | MapType | StructType):
        return json_text(_at(name), kinds[name], TIMES).cast("binary")
    return _at(name).cast("string").cast("binary")


def _headers(name: str, kind: DataType) -> Column:
    from pyspark.sql import functions as F
    from pyspark.sql.types import MapType

    entries = F.map_entries(_at(name)) if isinstance(kind, MapType) else _at(name)
    return F.transform(
        entries,
        lambda one: F.struct(one["key"].cast("string").alias("key"), one["value"].cast("binary").alias("value")),
    )


def _or_none(name: str | None, kind: str) -> Column:
    from pyspark.sql import functions as F

    return (F.lit(None) if name is None else _at(name)).cast(kind)


def _at(name: str) -> Column:
    from pyspark.sql import functions as F

    return F.col("`" + name.replace("`", "``") + "`")
