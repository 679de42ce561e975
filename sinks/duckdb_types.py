"""Spark's types as DuckDB writes them, and DuckDB's as Spark holds them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ematix_flow.errors import FlowError
from ematix_flow.sinks.drift import TableColumn, Types
from ematix_flow.sinks.tables import quoted
from ematix_flow.sinks.widening import holds, name_of, spark_named, widened

if TYPE_CHECKING:
    from duckdb.sqltypes import DuckDBPyType
    from pyspark.sql.types import DataType

_SIMPLE = {
    "boolean": "BOOLEAN",
    "tinyint": "TINYINT",
    "smallint": "SMALLINT",
    "int": "INTEGER",
    "bigint": "BIGINT",
    "float": "REAL",
    "double": "DOUBLE",
    "string": "VARCHAR",
    "binary": "BLOB",
    "date": "DATE",
    "timestamp": "TIMESTAMPTZ",
    "timestamp_ntz": "TIMESTAMP",
    "void": "VARCHAR",
}
_DECLARED = {"UUID": "UUID", "JSON": "JSON", "JSONB": "JSON", "INTERVAL": "INTERVAL"}
_AS_SPARK = {
    "boolean": "boolean", "tinyint": "tinyint", "smallint": "smallint", "integer": "int", "bigint": "bigint",
    "utinyint": "smallint", "usmallint": "int", "uinteger": "bigint", "ubigint": "decimal(20,0)",
    "hugeint": "decimal(38,0)", "uhugeint": "decimal(38,0)", "float": "float", "double": "double", "date": "date",
    "timestamp": "timestamp_ntz", "timestamp_s": "timestamp_ntz", "timestamp_ms": "timestamp_ntz",
    "timestamp_ns": "timestamp_ntz", "timestamp with time zone": "timestamp", "blob": "binary",
}  # fmt: skip
"""What is not here is staged as text, which DuckDB casts: varchar, uuid, json, enum, time and others."""


def column_type(kind: DataType, declared: str = "") -> str:
    from pyspark.sql.types import ArrayType, DecimalType, MapType, StructType

    if declared in _DECLARED:
        return _DECLARED[declared]
    match kind:
        case DecimalType():
            return f"DECIMAL({kind.precision}, {kind.scale})"
        case ArrayType():
            return f"{column_type(kind.elementType)}[]"
        case MapType():
            return f"MAP({column_type(kind.keyType)}, {column_type(kind.valueType)})"
        case StructType():
            fields = ", ".join(f"{quoted(f.name)} {column_type(f.dataType)}" for f in kind.fields)
            return f"STRUCT({fields})"
    if name_of(kind) not in _SIMPLE:
        raise FlowError(
            f"DuckDB has no column type for Spark's {kind.simpleString()}",
            next_step="cast the column in the transform, for example to string",
        )
    return _SIMPLE[name_of(kind)]


def spark_type(kind: DuckDBPyType) -> DataType:
    from pyspark.sql.types import ArrayType, DecimalType, MapType, StringType, StructField, StructType

    parts: Any = dict(kind.children) if kind.id in {"list", "array", "map", "struct", "decimal"} else {}
    match kind.id:
        case "decimal":
            return DecimalType(parts["precision"], parts["scale"])
        case "list" | "array":
            return ArrayType(spark_type(parts["child"]))
        case "map":
            return MapType(spark_type(parts["key"]), spark_type(parts["value"]))
        case "struct":
            return StructType([StructField(name, spark_type(child)) for name, child in parts.items()])
    return spark_named(_AS_SPARK[kind.id]) if kind.id in _AS_SPARK else StringType()


def _staged_as(column: TableColumn, given: TableColumn) -> DataType | None:
    return column.type if holds(column.type, given.type) else None


TYPES = Types(
    named=lambda column: column_type(column.type, column.kind),
    staged_as=_staged_as,
    widened=lambda column, given: widened(column.type, given.type),
)
