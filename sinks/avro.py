"""Avro schemas and Spark's types, both ways, and rows to Avro in Confluent's form."""

from __future__ import annotations

import importlib.util
import io
import json
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from ematix_flow.errors import FlowError, MissingExtra
from ematix_flow.sinks.schema_registry import Unwritable

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructType

Avro = Any
"""A schema as JSON has it: a name, a list, or an object."""

_SIMPLE = {
    "boolean": "boolean", "int": "int", "long": "bigint", "float": "float", "double": "double", "string": "string",
    "bytes": "binary", "fixed": "binary", "enum": "string",
}  # fmt: skip
_LOGICAL = {
    "date": "date", "timestamp-millis": "timestamp", "timestamp-micros": "timestamp",
    "local-timestamp-millis": "timestamp_ntz", "local-timestamp-micros": "timestamp_ntz",
}  # fmt: skip
# Python's own types for these have no place in Spark; without the logical type they are texts and numbers.
_NOT_LOGICAL = ("uuid", "time-millis", "time-micros", "duration")


class AvroUnsuited(FlowError):
    """An Avro schema, or columns, that have no counterpart on the other side."""

    code = "avro-unsuited"


def needed() -> None:
    if importlib.util.find_spec("fastavro") is None:
        raise MissingExtra("fastavro", "avro")


def plain(schema: Avro) -> Avro:
    """Without logical types that Spark does not know."""
    if isinstance(schema, list):
        return [plain(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: value for key, value in schema.items() if key != "logicalType" or value not in _NOT_LOGICAL}
    return {key: plain(value) if key in {"type", "items", "values", "fields"} else value for key, value in kept.items()}


def spark_schema(text: str) -> StructType:
    """The columns of a record."""
    from pyspark.sql.types import StructType

    found = _spark_type(plain(json.loads(text)), {})[0]
    if not isinstance(found, StructType):
        raise AvroUnsuited("the registered schema is no record", next_step="register a record of the columns")
    return found


def _spark_type(schema: Avro, known: dict[str, DataType]) -> tuple[DataType, bool]:
    """And whether it may be NULL."""
    from pyspark.sql.types import ArrayType, DataType, DecimalType, MapType, StructField, StructType

    if isinstance(schema, list):
        others = [one for one in schema if one != "null"]
        if len(others) != 1:
            raise AvroUnsuited(
                f"a union of several types ({json.dumps(schema)[:80]}) is no column",
                next_step="declare the other columns with `schema`, or use one type and null",
            )
        return _spark_type(others[0], known)[0], len(others) < len(schema)
    if isinstance(schema, str):
        return (known[schema], False) if schema in known else (DataType.fromDDL(_SIMPLE[schema]), False)
    kind, logical = schema["type"], schema.get("logicalType")
    if isinstance(kind, dict | list):
        return _spark_type(kind, known)
    if kind == "array":
        return ArrayType(*_spark_type(schema["items"], known)), False
    if kind == "map":
        from pyspark.sql.types import StringType

        return MapType(StringType(), *_spark_type(schema["values"], known)), False
    if kind == "record":
        fields = [StructField(one["name"], *_spark_type(one["type"], known)) for one in schema["fields"]]
        found: DataType = StructType(fields)
    elif logical == "decimal":
        found = DecimalType(schema["precision"], schema.get("scale", 0))
    else:
        found = DataType.fromDDL(_LOGICAL.get(logical or "", _SIMPLE[kind]))
    for name in {schema.get("name"), f"{schema.get('namespace')}.{schema.get('name')}"} if "name" in schema else ():
        known[str(name)] = found
    return found, False


def avro_schema(columns: StructType, topic: str) -> str:
    """A record of these columns, each of which may be null."""
    name = re.sub(r"\W", "_", topic)
    return json.dumps(_avro_type(columns, f"{name}_value" if not name[:1].isdigit() else f"_{name}_value"))


def extended(text: str, _imported: Mapping[str, str], columns: StructType) -> str:
    """With fields for more columns, which older records do not have."""
    schema = json.loads(text)
    more = _avro_type(columns, schema["name"])["fields"]
    return json.dumps({**schema, "fields": [*schema["fields"], *more]})


def with_defaults(text: str) -> frozenset[str]:
    return frozenset(field["name"] for field in json.loads(text)["fields"] if "default" in field)


def _avro_type(kind: DataType, name: str) -> Avro:
    from pyspark.sql.types import ArrayType, DecimalType, MapType, StructType

    match kind:
        case StructType():
            fields = [
                {"name": f.name, "type": ["null", _avro_type(f.dataType, f"{name}_{f.name}")], "default": None}
                for f in kind.fields
            ]
            return {"type": "record", "name": name, "fields": fields}
        case ArrayType():
            return {"type": "array", "items": ["null", _avro_type(kind.elementType, f"{name}_item")]}
        case MapType():
            return {"type": "map", "values": ["null", _avro_type(kind.valueType, f"{name}_value")]}
        case DecimalType():
            return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    named = {"tinyint": "int", "smallint": "int"} | {spark: avro for avro, spark in reversed(_SIMPLE.items())}
    logical = {"date": "int", "timestamp": "long", "timestamp_ntz": "long"}
    word = kind.simpleString()
    if word in logical:
        forms = {"date": "date", "timestamp": "timestamp-micros", "timestamp_ntz": "local-timestamp-micros"}
        return {"type": logical[word], "logicalType": forms[word]}
    if word not in named:
        raise AvroUnsuited(f"column of type {word} has no counterpart in Avro", next_step="cast it in the transform")
    return {"fixed": "bytes", "enum": "string"}.get(named[word], named[word])


def encoded(row: Column, header: bytes, text: str) -> Column:
    """A struct of columns as Avro with its header."""
    from pyspark.sql.pandas.functions import arrow_udf

    function = arrow_udf(_encoder(header, text), "binary")  # type: ignore[call-overload]
    return cast("Column", function(row))


def _encoder(header: bytes, text: str) -> Callable[[pa.Array], pa.Array]:
    # A lambda below, because Spark would look for the meaning of a function's annotations.
    def encode(rows: pa.Array) -> pa.Array:
        import fastavro
        import pyarrow as pa

        schema, values = fastavro.parse_schema(plain(json.loads(text))), []
        for row in rows.to_pylist(maps_as_pydicts="strict"):
            out = io.BytesIO()
            out.write(header)
            try:
                fastavro.schemaless_writer(out, schema, row)
            except Exception as error:
                raise Unwritable(str(error) or type(error).__name__) from error
            values.append(out.getvalue())
        return pa.array(values, pa.binary())

    return lambda rows: encode(rows)  # noqa: PLW0108
