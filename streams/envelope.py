"""What travels beside the columns of the payload: when a row happened, and what is wrong with it.

`_event_ts` is usable by name but not part of `*`. `_flow_error` is NULL for a good row; for a bad one it holds
everything its dead letter needs. Bad rows are tagged, never raised; the runner splits by the tag. Nothing else is made
for each good row, because on the way of millions of them every byte counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ematix_flow.errors import DeclarationError, Problem

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

EVENT_TS = "_event_ts"
ERROR = "_flow_error"
IS_BAD = f"{ERROR} IS NOT NULL"
IS_GOOD = f"{ERROR} IS NULL"

# What a decoder gives beside the payload's columns: where the row stands, when it arrived, its bytes, what is wrong.
POSITION, ARRIVED, PAYLOAD, REASON = "_flow_position", "_flow_arrived", "_flow_payload", "_flow_reason"


def reason(wrong: Column, stage: str, code: str, message: Column | None = None) -> Column:
    """Why a row is bad; NULL for a good one."""
    from pyspark.sql import functions as F

    words = message if message is not None else F.lit(None).cast("string")
    return F.when(wrong, F.struct(F.lit(stage).alias("stage"), F.lit(code).alias("code"), words.alias("message")))


def wrapped(decoded: DataFrame, source: str, schema: StructType, event_time_column: str | None) -> DataFrame:
    """Decoded rows as the rest of the pipeline sees them: the payload's columns, `_event_ts`, `_flow_error`."""
    from pyspark.sql import functions as F

    event_ts = _event_time(source, schema, event_time_column)
    error = F.when(
        F.col(REASON).isNotNull(),
        F.struct(
            F.col(POSITION).alias("position"),
            F.lit(source).alias("source"),
            f"{REASON}.*",
            event_ts.alias("event_ts"),
            F.col(PAYLOAD).alias("payload"),
        ),
    )
    names = schema.fieldNames()
    hidden = [error.alias(ERROR)] if EVENT_TS in names else [event_ts.alias(EVENT_TS), error.alias(ERROR)]
    return decoded.select(*[F.col(f"`{name}`") for name in names], *hidden)


def good(rows: DataFrame) -> DataFrame:
    return rows.where(IS_GOOD).drop(ERROR)


def bad(rows: DataFrame) -> DataFrame:
    """The errors of the tagged rows, for their dead letters, each with a position of its own.

    Lines of one block of a file share their position, because Spark's text reader does not count them. Blocks are cut
    at the same bytes every time, so the row number within the batch is the same when the batch is repeated.
    """
    from pyspark.sql import functions as F

    numbered = rows.select(ERROR, F.monotonically_increasing_id().alias("number")).where(IS_BAD)
    return numbered.select(f"{ERROR}.*", "number")


def _event_time(source: str, schema: StructType, declared: str | None) -> Column:
    from pyspark.sql import functions as F

    names = schema.fieldNames()
    if declared is not None and declared not in names:
        problem = Problem(f"source {source!r} event_time_column", f'found "{declared}"', allowed=", ".join(names))
        raise DeclarationError("event time", [problem])
    name = declared or (EVENT_TS if EVENT_TS in names else None)
    return F.col(ARRIVED) if name is None else as_timestamp(F.col(f"`{name}`"), schema[name].dataType)


def as_timestamp(column: Column, kind: DataType) -> Column:
    """Whole numbers are milliseconds since 1970, as everywhere in this API; a text that is no time becomes NULL."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import IntegralType

    return F.timestamp_millis(column) if isinstance(kind, IntegralType) else column.try_cast("timestamp")
