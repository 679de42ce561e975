"""What travels beside the columns of the payload: when a row happened, and what is wrong with it.

`_event_ts` is usable by name but not part of `*`. `_flow_error` is NULL for a good row; for a bad one it holds
everything its dead letter needs. Bad rows are tagged, never raised; the runner splits by the tag. Nothing else is made
for each good row, because on the way of millions of them every byte counts.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from ematix_flow.errors import DeclarationError, Problem

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

EVENT_TS = "_event_ts"
ERROR = "_flow_error"
IS_BAD = f"{ERROR} IS NOT NULL"
IS_GOOD = f"{ERROR} IS NULL"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Decoded:
    """Rows as a decoder read them, and expressions over them. One projection evaluates all of it, so that what only a
    bad row needs costs a good one nothing."""

    rows: DataFrame
    columns: Mapping[str, Column]
    """The payload's columns, in the order of the schema."""
    arrived: Column
    """When the source received the row."""
    wrong: Column
    """Whether the row cannot be read; the rest is looked at only then."""
    code: str
    message: Column
    position: Column
    payload: Column


@dataclass(frozen=True)
class BadRow:
    """What is kept of a row that cannot be used."""

    position: str
    source: str
    stage: str
    code: str
    message: str | None
    event_ts: datetime | None
    payload: bytes

    @classmethod
    def read(cls, error: str) -> BadRow:
        """From `_flow_error`."""
        facts = json.loads(error)
        micros = facts.get("event_micros")
        return cls(
            position=facts["position"],
            source=facts["source"],
            stage=facts["stage"],
            code=facts["code"],
            message=facts.get("message"),
            event_ts=None if micros is None else _EPOCH + timedelta(microseconds=micros),
            payload=base64.b64decode(facts.get("payload") or ""),
        )


def wrapped(decoded: Decoded, source: str, schema: StructType, event_time_column: str | None) -> DataFrame:
    """Decoded rows as the rest of the pipeline sees them: the payload's columns, `_event_ts`, `_flow_error`."""
    from pyspark.sql import functions as F

    declared = _event_time(decoded, source, schema, event_time_column)
    # A text, because an empty struct costs every good row a tenth of its time and an empty text nothing.
    error = F.to_json(
        F.struct(
            decoded.position.alias("position"),
            F.lit(source).alias("source"),
            F.lit("decode").alias("stage"),
            F.lit(decoded.code).alias("code"),
            decoded.message.alias("message"),
            # Without a declared time the source is asked, once per bad row, when it arrived.
            (F.lit(None).cast("long") if declared is None else F.unix_micros(declared)).alias("event_micros"),
            decoded.payload.cast("binary").alias("payload"),
        ),
    )
    columns = dict(decoded.columns)
    columns.setdefault(EVENT_TS, decoded.arrived if declared is None else declared)
    return decoded.rows.select(
        *[column.alias(name) for name, column in columns.items()], F.when(decoded.wrong, error).alias(ERROR)
    )


def good(rows: DataFrame) -> DataFrame:
    return rows.where(IS_GOOD).drop(ERROR)


def bad(rows: DataFrame) -> DataFrame:
    """The errors of the tagged rows, each with a number that makes its position its own.

    Lines of one block of a file share their position, because Spark's text reader does not count them. Blocks are cut
    at the same bytes every time, so the row number within the batch is the same when the batch is repeated.
    """
    from pyspark.sql import functions as F

    return rows.select(F.monotonically_increasing_id().alias("number"), ERROR).where(IS_BAD)


def _event_time(decoded: Decoded, source: str, schema: StructType, declared: str | None) -> Column | None:
    names = list(decoded.columns)
    if declared is not None and declared not in names:
        problem = Problem(f"source {source!r} event_time_column", f'found "{declared}"', allowed=", ".join(names))
        raise DeclarationError("event time", [problem])
    name = declared or (EVENT_TS if EVENT_TS in names else None)
    return None if name is None else as_timestamp(decoded.columns[name], schema[name].dataType)


def as_timestamp(column: Column, kind: DataType) -> Column:
    """Whole numbers are milliseconds since 1970, as everywhere in this API; a text that is no time becomes NULL."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import IntegralType

    return F.timestamp_millis(column) if isinstance(kind, IntegralType) else column.try_cast("timestamp")
