"""Spark's types as PostgreSQL writes them, PostgreSQL's as Spark holds them, and how values travel between them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ematix_flow.errors import FlowError
from ematix_flow.sinks.drift import TableColumn, Types, unless_text
from ematix_flow.sinks.map_keys import IN_A_DATABASE, json_text
from ematix_flow.sinks.tables import quoted
from ematix_flow.sinks.widening import holds, name_of, spark_named

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructField

NO_EQUALITY = frozenset({"json", "xml", "point", "line", "lseg", "box", "path", "polygon", "circle"})
"""Types that have no `=`, or one that says something else."""

_NESTED = ("array", "map", "struct", "variant")
_SIMPLE = {
    "boolean": "BOOLEAN",
    "tinyint": "SMALLINT",
    "smallint": "SMALLINT",
    "int": "INTEGER",
    "bigint": "BIGINT",
    "float": "REAL",
    "double": "DOUBLE PRECISION",
    "string": "TEXT",
    "binary": "BYTEA",
    "date": "DATE",
    "timestamp": "TIMESTAMPTZ",
    "timestamp_ntz": "TIMESTAMP",
    "void": "TEXT",
    **dict.fromkeys(_NESTED, "JSONB"),
}
_AS_SPARK = {
    "boolean": "boolean", "smallint": "smallint", "integer": "int", "bigint": "bigint", "real": "float",
    "double precision": "double", "date": "date", "bytea": "binary", "timestamp without time zone": "timestamp_ntz",
    "timestamp with time zone": "timestamp", "numeric": "decimal(38,18)",
}  # fmt: skip
"""What is not here is held as text, which PostgreSQL reads: text, uuid, json, enumerations, its own arrays, others."""
_TEXTS = frozenset({"text", "character varying", "bpchar", "name", "citext"})
_MOST_DIGITS = 38


def column_type(column: TableColumn) -> str:
    from pyspark.sql.types import DecimalType

    if column.kind in {"UUID", "JSON", "JSONB", "INTERVAL"}:
        return column.kind
    if column.max_length:
        return f"VARCHAR({column.max_length})"
    if isinstance(column.type, DecimalType):
        return f"NUMERIC({column.type.precision}, {column.type.scale})"
    if name_of(column.type) not in _SIMPLE:
        raise FlowError(
            f"PostgreSQL has no column type for Spark's {column.type.simpleString()}",
            next_step="cast the column in the transform, for example to string",
        )
    return _SIMPLE[name_of(column.type)]


def spark_type(declared: str) -> DataType:
    """`declared` is how PostgreSQL itself writes the type, such as `character varying(5)`."""
    from pyspark.sql.types import DecimalType, StringType

    if found := re.fullmatch(r"numeric\((\d+),(-?\d+)\)", declared):
        precision, scale = int(found[1]), int(found[2])
        if precision <= _MOST_DIGITS and 0 <= scale <= precision:
            return DecimalType(precision, scale)
        declared = "numeric"
    plain = re.sub(r"^(timestamp)\(\d\)", r"\1", declared)
    return spark_named(_AS_SPARK[plain]) if plain in _AS_SPARK else StringType()


def max_length(declared: str) -> int | None:
    found = re.fullmatch(r"character(?: varying)?\((\d+)\)", declared)
    return int(found[1]) if found else None


def staging_type(kind: DataType, *, exact: bool) -> str:
    """An exact text is staged as its bytes: PostgreSQL would not even copy one that it refuses, and then nobody could
    say which row it is in."""
    if is_text(kind):
        return "BYTEA" if exact else "TEXT"
    return column_type(TableColumn("", kind))


def encoded(rows: DataFrame, field: StructField, *, exact: bool) -> Column:
    """A column of rows as it is staged, computed where the rows are."""

    column, name = rows[f"`{field.name.replace('`', '``')}`"], name_of(field.dataType)
    if name in _NESTED:
        column = json_text(column, field.dataType, IN_A_DATABASE)
    if name == "tinyint":
        column = column.cast("smallint")
    if is_text(field.dataType):
        column = column.cast("string").cast("binary") if exact else column.cast("string")
    return column.alias(field.name)


def is_staged_as_it_is(kind: DataType) -> bool:
    """Whether `encoded` leaves such a column alone, where it is not exact."""
    return name_of(kind) not in {*_NESTED, "tinyint", "void"}


def decoded(name: str, staged: DataType, column: TableColumn | None, *, exact: bool) -> str:
    """A staged column as the table has it, by the name that it has there."""
    value = f"convert_from({quoted(name)}, 'UTF8')" if exact and is_text(staged) else quoted(name)
    return in_table(value, column) if column else f"{value} AS {quoted(name)}"


def in_table(value: str, column: TableColumn) -> str:
    """A value in the type of a column, by its name."""
    return f"CAST({value} AS {_unlimited(column.kind)}) AS {quoted(column.name)}"


def is_text(kind: DataType) -> bool:
    return name_of(kind) in {"string", "void", *_NESTED}


def _unlimited(declared: str) -> str:
    """Without the length of a text: a cast would cut off what is longer, an INSERT refuses it."""
    plain = re.sub(r"^(character(?: varying)?)\(\d+\)$", r"\1", declared)
    return "bpchar" if plain == "character" else plain


def _staged_as(column: TableColumn, given: TableColumn) -> DataType | None:
    from pyspark.sql.types import DecimalType

    name = name_of(given.type)
    if column.kind in {"json", "jsonb"} and name in _NESTED:
        return given.type
    if column.kind == "numeric" and isinstance(given.type, DecimalType):
        return given.type
    if name_of(column.type) == "string" and _unlimited(column.kind) not in _TEXTS:
        return column.type if name in {"string", "void"} else None
    return column.type if holds(column.type, given.type) else None


TYPES = Types(named=column_type, staged_as=_staged_as, widened=unless_text(_staged_as))
