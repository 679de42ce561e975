"""How SQLite keeps Spark's values: whole numbers, floating point and bytes as they are, all else as text."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ematix_flow.sinks.drift import TableColumn, Types
from ematix_flow.sinks.map_keys import IN_A_DATABASE, json_text
from ematix_flow.sinks.widening import name_of, spark_named

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructField

_INTEGERS = ("tinyint", "smallint", "int", "bigint")
# Never INTEGER: as a primary key, that is SQLite's own row number, which turns a NULL into the next free one.
_SIMPLE = {
    "boolean": "BOOLEAN",
    "tinyint": "TINYINT",
    "smallint": "SMALLINT",
    "int": "INT",
    "bigint": "BIGINT",
    "float": "REAL",
    "double": "DOUBLE",
    "binary": "BLOB",
}
# A text that looks like a number becomes one in a NUMERIC column, with 15 digits that are sure.
_SURE_DIGITS = 15
_LONG_DIGITS = 18
_TIMES = {"timestamp": IN_A_DATABASE["timestampFormat"], "timestamp_ntz": IN_A_DATABASE["timestampNTZFormat"]}
_NUMERIC_NAMES = {"BOOL": "boolean", "TIME": "timestamp", "DATE": "date"}


def column_type(column: TableColumn) -> str:
    return f"VARCHAR({column.max_length})" if column.max_length else _SIMPLE.get(name_of(column.type), "TEXT")


def affinity(declared: str) -> str:
    """What a column prefers to keep, by the rules that SQLite applies to the name of its type."""
    upper = declared.upper()
    for name, parts in (("INTEGER", ("INT",)), ("TEXT", ("CHAR", "CLOB", "TEXT")), ("BLOB", ("BLOB",))):
        if any(part in upper for part in parts):
            return name
    if not upper:
        return "BLOB"
    return "REAL" if any(part in upper for part in ("REAL", "FLOA", "DOUB")) else "NUMERIC"


def spark_type(declared: str) -> DataType:
    """What rows are cast to when they have to become what the table says."""
    from pyspark.sql.types import DecimalType

    simple = {"INTEGER": "bigint", "TEXT": "string", "BLOB": "binary", "REAL": "double"}
    if (name := affinity(declared)) in simple:
        return spark_named(simple[name])
    for part, known in _NUMERIC_NAMES.items():
        if part in declared.upper():
            return spark_named(known)
    if found := re.search(r"\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)", declared):
        return DecimalType(int(found[1]), int(found[2] or 0))
    return spark_named("decimal(38,18)" if re.search("DEC|NUM", declared.upper()) else "string")


def max_length(declared: str) -> int | None:
    found = re.search(r"CHAR\w*\s*\(\s*(\d+)\s*\)", declared.upper())
    return int(found[1]) if found else None


def _staged_as(column: TableColumn, given: TableColumn) -> DataType | None:
    """The rows' own type where the column keeps its values whole; SQLite itself checks nothing."""
    from pyspark.sql.types import DecimalType, StringType

    name, held = name_of(given.type), column.type
    match affinity(column.kind):
        case "TEXT":
            if name == "binary":
                return None
            return StringType() if name in {*_INTEGERS, "boolean", "float", "double"} else given.type
        case "INTEGER":
            whole = (
                isinstance(given.type, DecimalType) and given.type.scale == 0 and given.type.precision <= _LONG_DIGITS
            )
            return held if whole else given.type if name in {*_INTEGERS, "boolean", "void"} else None
        case "REAL":
            return held if name in {"tinyint", "smallint", "int", "float", "double", "void"} else None
        case "BLOB":
            return given.type if not column.kind or name in {"binary", "void"} else None
    return _in_numeric(held, given.type)


def _widened(column: TableColumn, given: TableColumn) -> DataType | None:
    """A column of numbers keeps any number that it can keep whole, whatever its declared type; nothing is altered."""
    from pyspark.sql.types import DecimalType

    fitting = _staged_as(column, given)
    if fitting is not None or affinity(column.kind) not in {"INTEGER", "REAL", "NUMERIC"}:
        return fitting
    if isinstance(given.type, DecimalType):
        return given.type if given.type.precision <= _SURE_DIGITS else None
    return given.type if name_of(given.type) in {"float", "double", *_INTEGERS} else None


def encoded(rows: DataFrame, field: StructField) -> Column:
    """A column of rows as SQLite keeps it, computed where the rows are."""
    from pyspark.sql import functions as F

    column, name = rows[f"`{field.name.replace('`', '``')}`"], name_of(field.dataType)
    if name in _TIMES:
        return F.date_format(column, _TIMES[name]).alias(field.name)
    if name in {"array", "map", "struct", "variant"}:
        return json_text(column, field.dataType, IN_A_DATABASE).alias(field.name)
    whole = {"boolean": "bigint", "float": "double"} | dict.fromkeys(_INTEGERS, "bigint")
    if name in {"double", "binary"}:
        return column
    return column.cast(whole.get(name, "string")).alias(field.name)


def _in_numeric(held: DataType, given: DataType) -> DataType | None:
    from pyspark.sql.types import DecimalType

    name, known = name_of(given), name_of(held)
    if known in {"timestamp", "date"}:
        return given if name in {"date", *_TIMES} else None
    if known == "boolean":
        return given if name == "boolean" else None
    if known == "string":
        return given if name not in {"binary", *_INTEGERS} else None
    if isinstance(given, DecimalType):
        return given if given.precision <= _SURE_DIGITS else None
    return given if name in {*_INTEGERS, "float", "double", "void"} else None


TYPES = Types(named=column_type, staged_as=_staged_as, widened=_widened)
