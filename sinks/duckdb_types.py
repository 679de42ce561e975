"""Spark's types as DuckDB writes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ematix_flow.errors import FlowError

if TYPE_CHECKING:
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


def column_type(kind: DataType) -> str:
    from pyspark.sql.types import ArrayType, DecimalType, MapType, StructType

    match kind:
        case DecimalType():
            return f"DECIMAL({kind.precision}, {kind.scale})"
        case ArrayType():
            return f"{column_type(kind.elementType)}[]"
        case MapType():
            return f"MAP({column_type(kind.keyType)}, {column_type(kind.valueType)})"
        case StructType():
            fields = ", ".join(f'"{f.name}" {column_type(f.dataType)}' for f in kind.fields)
            return f"STRUCT({fields})"
    name = kind.simpleString().split("(")[0]
    name = {"char": "string", "varchar": "string"}.get(name, name)
    if name not in _SIMPLE:
        raise FlowError(
            f"DuckDB has no column type for Spark's {kind.simpleString()}",
            next_step="cast the column in the transform, for example to string",
        )
    return _SIMPLE[name]
