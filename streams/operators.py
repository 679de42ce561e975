"""The operator of a pipeline, from its declaration and the rows that come to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ematix_flow.errors import DeclarationError, Problem
from ematix_flow.problems import near
from ematix_flow.sinks.base import EVENT_TIME
from ematix_flow.specs import PipelineSpec
from ematix_flow.state.kernel import Operator
from ematix_flow.state.store import Store
from ematix_flow.streams.branches import Branch
from ematix_flow.streams.envelope import EVENT_TS, OURS
from ematix_flow.windows.operator import BUCKETS, window_operator

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def window_operator_of(spec: PipelineSpec, branches: Sequence[Branch], store: Store) -> Operator:
    """For rows that have the same columns, wherever they come from."""
    from pyspark.sql.pandas.types import to_arrow_schema

    window, rows = spec.transform.window, branches[0].rows
    assert window is not None
    return window_operator(
        window,
        to_arrow_schema(rows.schema, timezone="UTC"),
        event_time=event_time("[transform.window]", window.event_time_column, rows),
        lateness_ms=spec.watermark.lateness_ms,
        buckets=buckets(spec, rows, store),
        udafs=spec.transform.aggregate_udfs,
    )


def event_time(place: str, declared: str, rows: DataFrame) -> str:
    """`_event_ts` belongs to every row, also where the SELECT does not mention it."""
    from pyspark.sql.types import DateType, NumericType, StringType, TimestampNTZType, TimestampType

    names = [name for name in rows.columns if not name.startswith(OURS)]
    if declared not in names:
        if declared == EVENT_TS:
            return EVENT_TIME
        problem = Problem("event_time_column", f'found "{declared}"', ", ".join(names), near(declared, names))
        raise DeclarationError(place, [problem])
    kind = rows.schema[declared].dataType
    if not isinstance(kind, TimestampType | TimestampNTZType | DateType | StringType | NumericType):
        found = f'column "{declared}" is {kind.simpleString()}'
        allowed = "a timestamp, a date, a text that is a time, or milliseconds since 1970"
        raise DeclarationError(place, [Problem("event_time_column", found, allowed)])
    return declared


def buckets(spec: PipelineSpec, rows: DataFrame, store: Store) -> int:
    """States are divided for good when the pipeline first starts: enough for every core to have several."""
    partitions = int(str(rows.sparkSession.conf.get("spark.sql.shuffle.partitions")))
    return spec.spark.state_buckets or store.buckets or max(BUCKETS, 2 * partitions)
