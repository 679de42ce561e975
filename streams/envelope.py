"""What travels beside every row: where it came from, when it happened, its original bytes and what is wrong with it.

A row is the payload's columns, the hidden column `_event_ts` (usable by name, not part of `*`) and the hidden struct
`_flow`. Bad rows are tagged in `_flow.error`, never raised; the runner splits by the tag.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ematix_flow.errors import DeclarationError, Problem

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

FLOW = "_flow"
EVENT_TS = "_event_ts"
IS_BAD = f"{FLOW}.error IS NOT NULL"
IS_GOOD = f"{FLOW}.error IS NULL"

# What a decoder adds to the columns of the payload.
POSITION, ARRIVED, PAYLOAD, ERROR = "_flow_position", "_flow_arrived", "_flow_payload", "_flow_error"


def tag(wrong: Column, stage: str, code: str, message: Column | None = None) -> Column:
    """The error of a bad row; NULL for a good one."""
    from pyspark.sql import functions as F

    reason = message if message is not None else F.lit(None).cast("string")
    return F.when(wrong, F.struct(F.lit(stage).alias("stage"), F.lit(code).alias("code"), reason.alias("message")))


def wrapped(decoded: DataFrame, source: str, schema: StructType, event_time_column: str | None) -> DataFrame:
    """Decoded rows with their envelope: payload columns, `_event_ts`, `_flow`."""
    from pyspark.sql import functions as F

    names = schema.fieldNames()
    event_ts = _event_time(source, schema, event_time_column)
    flow = F.struct(
        F.lit(source).alias("source"),
        F.col(POSITION).alias("position"),
        event_ts.alias("event_ts"),
        F.col(PAYLOAD).alias("payload"),
        F.col(ERROR).alias("error"),
    )
    hidden = [flow.alias(FLOW)] if EVENT_TS in names else [event_ts.alias(EVENT_TS), flow.alias(FLOW)]
    return decoded.select(*[F.col(f"`{name}`") for name in names], *hidden)


def good(rows: DataFrame) -> DataFrame:
    return rows.where(IS_GOOD).drop(FLOW)


def bad(rows: DataFrame) -> DataFrame:
    """The envelopes of the tagged rows, for their dead letters, each with a position of its own.

    Lines of one block of a file share their position, because Spark's text reader does not count them. Blocks are cut
    at the same bytes every time, so the row number within the batch is the same when the batch is repeated.
    """
    from pyspark.sql import functions as F

    numbered = rows.withColumn("_row", F.monotonically_increasing_id())
    position = F.concat(f"{FLOW}.position", F.lit("+"), "_row").alias("position")
    others = [f"{FLOW}.{part}" for part in ("source", "event_ts", "payload", "error")]
    return numbered.where(IS_BAD).select(position, *others)


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
