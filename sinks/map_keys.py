"""Keys of maps for JSON, where they are texts: Spark writes values as one reads them, and keys as it holds them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType

IN_A_DATABASE = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""Options of Spark's for a nested value that a column of a database holds as JSON."""


def json_text(value: Column, kind: DataType, options: Mapping[str, str]) -> Column:
    from pyspark.sql import functions as F

    return F.to_json(with_text_keys(value, kind, options), dict(options))


def with_text_keys(value: Column, kind: DataType, options: Mapping[str, str]) -> Column:
    """The value, with the keys of all maps in it as they would be written if they were values: with these
    options of Spark's for JSON, which tell the form of times."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType, MapType, StructType

    if not has_other_keys(kind):
        return value
    match kind:
        case ArrayType():
            return F.transform(value, lambda one: with_text_keys(one, kind.elementType, options))
        case MapType():
            values = F.transform_values(value, lambda _, one: with_text_keys(one, kind.valueType, options))
            return F.transform_keys(values, lambda key, _: _text(key, kind.keyType, options))
        case StructType():
            fields = [(field.name, field.dataType) for field in kind.fields]
            inside = [with_text_keys(value[name], part, options).alias(name) for name, part in fields]
            return F.when(value.isNotNull(), F.struct(*inside))
    return value


def has_other_keys(kind: DataType) -> bool:
    """Whether there are maps in it whose keys are not written like values."""
    from pyspark.sql.types import ArrayType, BooleanType, MapType, NumericType, StringType, StructType

    match kind:
        case ArrayType():
            return has_other_keys(kind.elementType)
        case MapType():
            is_plain = isinstance(kind.keyType, StringType | NumericType | BooleanType)
            return not is_plain or has_other_keys(kind.valueType)
        case StructType():
            return any(has_other_keys(field.dataType) for field in kind.fields)
    return False


def _text(key: Column, kind: DataType, options: Mapping[str, str]) -> Column:
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType, BinaryType, StructType, TimestampNTZType, TimestampType

    match kind:
        case TimestampType():
            return F.date_format(key, options["timestampFormat"])
        case TimestampNTZType():
            return F.date_format(key, options["timestampNTZFormat"])
        case BinaryType():
            # As MIME has it, in lines; values are not.
            return F.translate(F.base64(key), "\r\n", "")
        case ArrayType() | StructType():
            return F.to_json(key, dict(options))
    return key.cast("string")
