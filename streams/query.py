"""A spec becomes one StreamingQuery."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ematix_flow.specs import PipelineSpec
from ematix_flow.streams import envelope
from ematix_flow.streams.failures import spark_words
from ematix_flow.streams.observed import observed
from ematix_flow.streams.sources.base import StreamSource
from ematix_flow.streams.transform import BadSql, SqlTransform

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


@dataclass(frozen=True)
class Plan:
    """The streaming rows, and the SQL that the runner still has to apply to each batch."""

    rows: DataFrame
    batch_transform: SqlTransform | None = None
    keeps_every_row: bool = False
    """Each good row becomes one row, so that what was read and what is written need only one count."""


def plan(spec: PipelineSpec, source: StreamSource, session: SparkSession) -> Plan:
    """Read, decode, transform. Bad rows travel on only if they are to be kept; otherwise they are counted and left."""
    from pyspark.errors import PySparkException

    keep_bad = spec.transform.on_error == "dlq"
    rows = source.read(session)
    sql = spec.transform.sql
    payload = source.payload_schema.fieldNames()
    if envelope.EVENT_TS not in payload and envelope.EVENT_TS not in (sql or "").lower():
        # Counting keeps Spark from leaving out what nobody asks for.
        rows = rows.drop(envelope.EVENT_TS)
    rows = observed(rows)
    if not keep_bad:
        rows = envelope.good(rows)
    if sql is None:
        return Plan(rows, keeps_every_row=True)
    transform = SqlTransform(sql, spec.transform.dialect, tuple(payload))
    try:
        if transform.row_wise:
            return Plan(transform(rows, keep_bad=keep_bad), keeps_every_row=not transform.filters)
        # Tried on no rows, so that a mistake in it is found now and not in the first batch.
        transform(session.createDataFrame([], rows.drop(envelope.ERROR).schema))
    except PySparkException as error:
        raise BadSql(
            f"Spark refuses the transform: {spark_words(error)[1]}", next_step="correct the transform"
        ) from error
    return Plan(rows, transform)


def start(
    spec: PipelineSpec, rows: DataFrame, run: Callable[[DataFrame, int], None], checkpoint: str, *, bounded: bool
) -> StreamingQuery:
    writer = rows.writeStream.queryName(spec.name).option("checkpointLocation", checkpoint).foreachBatch(run)
    if bounded:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{spec.trigger_interval_ms or 0} milliseconds").start()
