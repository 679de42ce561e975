"""Which of several rows of one key count: the last of a batch for merge, one per moment for scd2.

A NULL in a key is a value like any other: two rows whose keys are NULL in the same columns have the same key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ematix_flow.sinks.base import EVENT_TIME, HIDDEN, ORDER
from ematix_flow.specs import Target
from ematix_flow.table import SCD2_COLUMNS, VALID_FROM

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ROW_HASH = "row_hash"


def resolved(rows: DataFrame, target: Target) -> DataFrame:
    """The rows of a batch that count, as the mode of the target has it."""
    if target.mode == "merge":
        return latest_per_key(rows, target.merge_keys)
    if target.mode == "scd2":
        return versions(rows, target.merge_keys, target.compare_columns)
    return rows.drop(EVENT_TIME, ORDER)


def latest_per_key(rows: DataFrame, keys: Sequence[str]) -> DataFrame:
    """One row per key: the last by event time, then by order, without these two columns."""
    return _last(rows, keys, (EVENT_TIME, ORDER)).drop(EVENT_TIME, ORDER)


def versions(rows: DataFrame, keys: Sequence[str], compared: Sequence[str] = ()) -> DataFrame:
    """One row per key and event time: the last by order, with `valid_from` and `row_hash` instead of these two. Where
    columns to compare are named, only they tell one version from another."""
    added = {column.name for column in SCD2_COLUMNS}
    plain = rows.drop(*(name for name in rows.columns if name.lower() in added))
    last = _last(plain, (*keys, EVENT_TIME), (ORDER,))
    fixed, chosen = {key.lower() for key in keys}, {name.lower() for name in compared}
    content = [n for n in plain.columns if n.lower() not in fixed and (not chosen or n.lower() in chosen)]
    hashed = last.withColumns({VALID_FROM: last[EVENT_TIME], ROW_HASH: row_hash(last, content)})
    return hashed.drop(EVENT_TIME, ORDER)


def row_hash(rows: DataFrame, columns: Sequence[str]) -> Column:
    """The same for equal contents whatever the order of the columns, the time zone of the session and the width of the
    numbers. A NULL is left out, so that a column added to the table later leaves the hash of older rows as it was."""
    from pyspark.sql import functions as F

    named = {name.lower(): rows[_quoted(name)] for name in columns if name not in HIDDEN}
    if not named:
        return F.sha2(F.lit("{}"), 256)
    content = F.struct(*(named[name].alias(name) for name in sorted(named)))
    # Spark's own text form of a time stops at milliseconds and follows the session's zone.
    form = {
        "timeZone": "UTC",
        "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSX",
        "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
        "ignoreNullFields": "true",
    }
    return F.sha2(F.to_json(content, form), 256)


def _last(rows: DataFrame, keys: Sequence[str], by: Sequence[str]) -> DataFrame:
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    rank = "_flow_rank"
    window = Window.partitionBy(*(rows[_quoted(key)] for key in keys)).orderBy(*(rows[name].desc() for name in by))
    return rows.withColumn(rank, F.row_number().over(window)).where(F.col(rank) == 1).drop(rank)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
