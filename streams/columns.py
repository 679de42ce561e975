"""Columns by their names, whatever is in them, and what to say of a value that does not fit its declared type."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def misfit(name: str, kind: DataType) -> Column:
    """In words; NULL for a value that fits."""
    from pyspark.sql import functions as F

    column = F.col(quoted(name))
    text = F.coalesce(column.try_cast("string"), F.to_json(F.struct(column)))
    words = F.concat(F.lit(f'column {name}: cannot read "'), text, F.lit(f'" as {kind.simpleString()}'))
    return F.when(column.isNotNull() & column.try_cast(kind).isNull(), words)
