"""Spark's types as they stand in the columns of a Delta table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ematix_flow.sinks.drift import TableColumn, Types
from ematix_flow.sinks.widening import holds, widened

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructField

_DECLARED_TEXT = "__CHAR_VARCHAR_TYPE_STRING"
"""Key of a field's metadata under which Spark keeps `varchar(10)`; the field itself is a string."""


def column_type(kind: DataType) -> str:
    from pyspark.sql.types import ArrayType, MapType, NullType, StructType

    match kind:
        case ArrayType():
            return f"ARRAY<{column_type(kind.elementType)}>"
        case MapType():
            return f"MAP<{column_type(kind.keyType)}, {column_type(kind.valueType)}>"
        case StructType():
            return f"STRUCT<{', '.join(f'{quoted(f.name)}: {column_type(f.dataType)}' for f in kind.fields)}>"
        case NullType():
            return "STRING"
    return kind.simpleString().upper()


def named(column: TableColumn) -> str:
    return f"VARCHAR({column.max_length})" if column.max_length else column_type(column.type)


def found(field: StructField) -> TableColumn:
    """A column of a table that is there."""
    declared = str(field.metadata.get(_DECLARED_TEXT, ""))
    length = declared.partition("(")[2].rstrip(")")
    return TableColumn(field.name, field.dataType, field.nullable, max_length=int(length) if length else None)


def has_map(kind: DataType) -> bool:
    """Spark does not compare maps, nor what holds one."""
    return "map<" in kind.simpleString()


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _staged_as(column: TableColumn, given: TableColumn) -> DataType | None:
    return column.type if holds(column.type, given.type) else None


TYPES = Types(
    named=named,
    staged_as=_staged_as,
    widened=lambda column, given: widened(column.type, given.type),
)
