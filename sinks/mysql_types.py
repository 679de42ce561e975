"""Spark's types as MySQL and MariaDB write them, theirs as Spark holds them, and how values travel between them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ematix_flow.errors import FlowError
from ematix_flow.sinks.drift import TableColumn, Types, unless_text
from ematix_flow.sinks.map_keys import IN_A_DATABASE, json_text
from ematix_flow.sinks.widening import holds, name_of, spark_named

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructField

_NESTED = ("array", "map", "struct", "variant")
_SIMPLE = {
    "boolean": "BOOLEAN",
    "tinyint": "TINYINT",
    "smallint": "SMALLINT",
    "int": "INT",
    "bigint": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "string": "LONGTEXT",
    "binary": "LONGBLOB",
    "date": "DATE",
    # TIMESTAMP ends in 2038. Both are UTC.
    "timestamp": "DATETIME(6)",
    "timestamp_ntz": "DATETIME(6)",
    "void": "LONGTEXT",
    **dict.fromkeys(_NESTED, "JSON"),
}
_AS_SPARK = {
    "tinyint(1)": "boolean", "bit(1)": "boolean", "tinyint": "tinyint", "tinyint unsigned": "smallint",
    "smallint": "smallint", "smallint unsigned": "int", "mediumint": "int", "mediumint unsigned": "int", "int": "int",
    "int unsigned": "bigint", "bigint": "bigint", "bigint unsigned": "decimal(20,0)", "bit": "decimal(20,0)",
    "year": "int", "float": "float", "double": "double", "date": "date", "datetime": "timestamp_ntz",
    "timestamp": "timestamp",
    **dict.fromkeys(("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"), "binary"),
}  # fmt: skip
"""What is not here is held as text, which MySQL reads: texts, json, time, enum, set, uuid, inet6."""
_TEXTS = frozenset({"char", "varchar", "tinytext", "text", "mediumtext", "longtext"})
_MOST_DIGITS, _MOST_SCALE = 38, 30
# A row has 65,535 bytes at most, and a character up to four.
_LONGEST_VARCHAR = 4000


def column_type(column: TableColumn) -> str:
    from pyspark.sql.types import DecimalType

    if column.kind in {"JSON", "JSONB"}:
        return "JSON"
    if column.kind == "UUID":
        return "CHAR(36)"
    if isinstance(column.type, DecimalType) and column.type.scale <= _MOST_SCALE:
        return f"DECIMAL({column.type.precision}, {column.type.scale})"
    if name_of(column.type) not in _SIMPLE:
        raise FlowError(
            f"column {column.name}: MySQL has no type for Spark's {column.type.simpleString()}",
            next_step="cast the column in the transform, for example to string",
        )
    if column.max_length and column.max_length <= _LONGEST_VARCHAR:
        return f"{'VARBINARY' if name_of(column.type) == 'binary' else 'VARCHAR'}({column.max_length})"
    return _SIMPLE[name_of(column.type)]


def spark_type(declared: str) -> DataType:
    """`declared` is how the server writes the type, such as `int(10) unsigned`."""
    from pyspark.sql.types import DecimalType, StringType

    if found := re.match(r"decimal\((\d+),(\d+)\)", declared):
        precision, scale = int(found[1]), int(found[2])
        return DecimalType(min(precision, _MOST_DIGITS), min(scale, _MOST_DIGITS))
    if declared in _AS_SPARK:
        return spark_named(_AS_SPARK[declared])
    plain = re.sub(r"\([^)]*\)", "", declared).replace(" zerofill", "")
    if plain.startswith(("float", "double")):
        plain = plain.partition(" ")[0]
    return spark_named(_AS_SPARK[plain]) if plain in _AS_SPARK else StringType()


def max_length(declared: str) -> int | None:
    found = re.match(r"(?:var)?char\((\d+)\)", declared)
    return int(found[1]) if found else None


def staging_type(kind: DataType) -> str:
    return "LONGTEXT" if is_text(kind) else column_type(TableColumn("", kind))


def encoded(rows: DataFrame, field: StructField) -> Column:
    """A column of rows as it is staged, computed where the rows are."""

    column = rows[f"`{field.name.replace('`', '``')}`"]
    if name_of(field.dataType) in _NESTED:
        column = json_text(column, field.dataType, IN_A_DATABASE)
    return (column.cast("string") if is_text(field.dataType) else column).alias(field.name)


def is_text(kind: DataType) -> bool:
    return name_of(kind) in {"string", "void", *_NESTED}


def _staged_as(column: TableColumn, given: TableColumn) -> DataType | None:
    name = name_of(given.type)
    if column.kind == "json" and name in _NESTED:
        return given.type
    if name_of(column.type) == "string" and column.kind.partition("(")[0] not in _TEXTS:
        return column.type if name in {"string", "void"} else None
    return column.type if holds(column.type, given.type) else None


TYPES = Types(named=column_type, staged_as=_staged_as, widened=unless_text(_staged_as))
