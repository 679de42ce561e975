"""A spec becomes one StreamingQuery."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ematix_flow.specs import PipelineSpec
from ematix_flow.state.kernel import Operator
from ematix_flow.state.store import Store
from ematix_flow.streams.envelope import ERROR, EVENT_TS, OURS, Carried
from ematix_flow.streams.failures import spark_words
from ematix_flow.streams.observed import counted, observed
from ematix_flow.streams.operators import operator_of
from ematix_flow.streams.sources.base import StreamSource
from ematix_flow.streams.stateful import stateful
from ematix_flow.streams.ticks import Ticks
from ematix_flow.streams.transform import BadSql, SqlTransform, Transformed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

BatchTransform = Callable[["DataFrame", Mapping[str, "DataFrame"]], "DataFrame"]


@dataclass(frozen=True)
class Plan:
    """The streaming rows, bad ones tagged, and the SQL that is still to be applied to the good rows of each batch."""

    rows: DataFrame
    batch_transform: BatchTransform | None = None
    operator: Operator | None = None
    """Each look at the rows of a batch would run it once more."""
    ticks: Ticks | None = None
    """Move its watermark when no row does."""


def plan(spec: PipelineSpec, source: StreamSource, session: SparkSession, store: Store) -> Plan:
    """Read, decode, transform, operate, count."""
    planned = _without_operator(spec, source, session)
    operator = operator_of(spec, planned.rows, store)
    if operator is None:
        return replace(planned, rows=observed(planned.rows))
    if planned.batch_transform is not None:
        raise BadSql(
            "the SELECT needs a whole batch at once, and what feeds windows or joins must work row by row",
            next_step="leave grouping, sorting and lookups to the window or join, or to a pipeline of its own",
        )
    ticks = Ticks(store, 0, operator.lateness_ms)
    rows = stateful(counted(planned.rows), operator, source.origin, ticks.read(session))
    return Plan(observed(rows), operator=operator, ticks=ticks)


def _without_operator(spec: PipelineSpec, source: StreamSource, session: SparkSession) -> Plan:
    rows = source.read(session, Carried.by(spec))
    payload, sql = source.payload_schema.fieldNames(), spec.transform.sql
    if EVENT_TS not in payload and not re.search(rf"\b{EVENT_TS}\b", sql or "", re.IGNORECASE):
        # Counting keeps Spark from leaving out what nobody asks for.
        rows = rows.drop(EVENT_TS)
    if sql is None:
        return Plan(rows)
    transform = SqlTransform(sql, spec.transform.dialect, tuple(payload), source.origin)

    def over_a_batch(good: DataFrame, lookups: Mapping[str, DataFrame]) -> DataFrame:
        return _with_room_for_errors(_understood(transform, good, lookups))

    if spec.transform.lookups:
        return Plan(rows, over_a_batch)
    # Also for a SELECT that is applied per batch: a mistake in it is found now and not in the first batch.
    transformed = _understood(transform, rows, {})
    return Plan(transformed.rows) if transformed.row_wise else Plan(rows, over_a_batch)


def start(
    spec: PipelineSpec, rows: DataFrame, run: Callable[[DataFrame, int], None], store: Store, *, bounded: bool
) -> StreamingQuery:
    checkpoint = str(store.checkpoint)
    writer = rows.writeStream.queryName(store.pipeline).option("checkpointLocation", checkpoint).foreachBatch(run)
    if bounded:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{spec.trigger_interval_ms or 0} milliseconds").start()


def _understood(transform: SqlTransform, rows: DataFrame, lookups: Mapping[str, DataFrame]) -> Transformed:
    from pyspark.errors import AnalysisException, ParseException

    try:
        return transform(rows, lookups)
    except (AnalysisException, ParseException) as error:
        said = re.sub(rf"(?:, )?`[^`]*{OURS}\w*`", "", spark_words(error)[1])
        words = f"Spark refuses the transform: {said}"
        raise BadSql(words, next_step="correct the transform") from error


def _with_room_for_errors(transformed: Transformed) -> DataFrame:
    from pyspark.sql import functions as F

    rows = transformed.rows
    return rows if transformed.tagged else rows.withColumn(ERROR, F.lit(None).cast("string"))
