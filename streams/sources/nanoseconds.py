"""Parquet columns of times in nanoseconds, as pandas writes them: Spark reads numbers, of which we make times."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import StructField, StructType

_LOOKED_AT = 8


def nanosecond_columns(files: Iterable[Path]) -> set[str]:
    """By the first few files; those of one folder are written by one program and do not differ in this."""
    import pyarrow as pa
    from pyarrow.parquet import read_schema

    found: set[str] = set()
    for file in islice(files, _LOOKED_AT):
        try:
            schema = read_schema(file)
        except (OSError, pa.ArrowException):  # no Parquet; Spark says so when it reads it
            continue
        found |= {one.name for one in schema if pa.types.is_timestamp(one.type) and one.type.unit == "ns"}
    return found


def as_numbers(schema: StructType, columns: set[str]) -> StructType:
    """The schema with which Spark can read such columns."""
    from pyspark.sql.types import LongType, StructField, StructType

    return StructType([StructField(f.name, LongType()) if f.name in columns and _is_time(f) else f for f in schema])


def as_times(schema: StructType, columns: set[str]) -> StructType:
    """What the schema that Spark infers means."""
    from pyspark.sql.types import StructField, StructType, TimestampType

    return StructType([StructField(f.name, TimestampType()) if f.name in columns else f for f in schema])


def time_of(field: StructField) -> Column:
    """From a column of nanoseconds; what is finer than a microsecond is cut off."""
    from pyspark.sql import functions as F

    name = f"`{field.name.replace('`', '``')}`"
    # `div` alone would cut off towards 1970.
    return F.expr(f"timestamp_micros(({name} - pmod({name}, 1000)) div 1000)").cast(field.dataType)


def _is_time(field: StructField) -> bool:
    from pyspark.sql.types import TimestampNTZType, TimestampType

    return isinstance(field.dataType, TimestampType | TimestampNTZType)
