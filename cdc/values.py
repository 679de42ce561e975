"""Values of rows in an envelope, which are texts, as the types of the columns that they go to."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType

UNAVAILABLE = (
    "__debezium_unavailable_value",
    "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ==",
    '["__debezium_unavailable_value"]',
)
"""What Debezium writes, as text, bytes and array, where the database did not log a large value that has not changed."""

# A number that stands for a time is in the unit that puts it between 1973 and 5138.
_SECONDS, _MILLIS, _MICROS = 10**11, 10**14, 10**17


def decoded(text: Column, kind: DataType) -> Column:
    """NULL also where the text is no value of this type."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import (
        ArrayType,
        BinaryType,
        BooleanType,
        DateType,
        IntegralType,
        MapType,
        StringType,
        StructType,
        TimestampNTZType,
        TimestampType,
    )

    match kind:
        case StringType():
            return text.cast(kind)
        case BooleanType():
            return text.try_cast(kind)
        case IntegralType():
            truth = F.when(text == "true", 1).when(text == "false", 0)
            return F.coalesce(text.try_cast(kind), truth.cast(kind))
        case DateType():
            days = F.date_from_unix_date(text.try_cast("int"))
            return F.coalesce(days, text.try_cast(kind))
        case TimestampType():
            return F.coalesce(_moment(text), text.try_cast(kind))
        case TimestampNTZType():
            utc = F.expr("'UTC'")
            return F.coalesce(
                F.convert_timezone(F.current_timezone(), utc, _moment(text).cast(kind)), text.try_cast(kind)
            )
        case BinaryType():
            return F.try_to_binary(text, F.lit("base64"))
        case ArrayType() | MapType() | StructType():
            return F.from_json(text, kind)  # type: ignore[arg-type]  # maps are taken, too
    return text.try_cast(kind)


def _moment(text: Column) -> Column:
    from pyspark.sql import functions as F

    number = text.try_cast("bigint")
    size = F.abs(number)
    return (
        F.when(size < _SECONDS, F.timestamp_seconds(number))
        .when(size < _MILLIS, F.timestamp_millis(number))
        .when(size < _MICROS, F.timestamp_micros(number))
        .otherwise(F.timestamp_micros(F.call_function("div", number, F.lit(1000))))
    )
