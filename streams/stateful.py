"""Binds a kernel to Spark: rows are spread over groups, each of which has one state and meets the kernel once a batch.

Rows that are bad already pass beside it in a group of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ematix_flow.sinks.base import EVENT_TIME
from ematix_flow.state.kernel import GONE, TIME, Operator
from ematix_flow.streams.envelope import ERROR, IS_BAD, IS_GOOD, PAYLOAD, POSITION, Origin, as_timestamp
from ematix_flow.streams.packing import (
    BAD,
    BLOCK,
    BUCKET,
    NOTE,
    PIECE,
    REASON,
    TABLE,
    TICK,
    packing,
    stepping,
    unpacking,
)
from ematix_flow.streams.tagging import KEEP
from ematix_flow.streams.watermark import moved_by, never_late

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

_UNKNOWN = Origin("")


def stateful(
    rows: DataFrame, operator: Operator, origin: Origin = _UNKNOWN, ticks: DataFrame | None = None
) -> DataFrame:
    """What the operator emits, with `ERROR` for late rows that are kept and for those that were bad before, and rows
    that only have a `NOTE`, which are not to be kept.

    Every action on the result runs the kernel: materialise it once per batch, all partitions of it.
    """
    import pyarrow as pa
    from pyspark.sql import functions as F
    from pyspark.sql.pandas.types import to_arrow_schema

    timed = _timed(rows, operator, origin)
    given = timed.select(*_given(timed, operator))
    grouped = timed.select(_bucket(timed, operator), ERROR, *_given(timed, operator))
    if ticks is not None:
        bucket = F.lit(TICK).cast("int").alias(BUCKET)
        # They are left out by `packing`; a filter here would be moved to where the watermark does not see them.
        grouped = grouped.unionByName(ticks.select(bucket, TIME), allowMissingColumns=True)
    moving = moved_by(grouped, TIME, operator.lateness_ms)
    packed = moving.mapInArrow(packing(operator), f"{BLOCK} long, {BUCKET} int, {PIECE} long, {TABLE} binary")
    schema = to_arrow_schema(given.schema, timezone="UTC")
    if operator.prepared is not None:
        schema = (
            operator.prepared(schema.append(pa.field(BUCKET, pa.int32())).empty_table(), BUCKET)
            .drop_columns([BUCKET])
            .schema
        )
    stepped = (
        never_late(packed)
        .groupBy(BLOCK, BUCKET)
        .applyInPandasWithState(
            stepping(operator, schema),
            outputStructType=f"{TABLE} binary",
            stateStructType="state binary",
            outputMode="append",
            timeoutConf="EventTimeTimeout",
        )
    )
    return _results(stepped, given.schema, operator, origin)


def _given(timed: DataFrame, operator: Operator) -> list[Column]:
    """What a kernel gets of each row."""
    from pyspark.sql import functions as F

    names = [*operator.keys, *operator.inputs, TIME]
    if operator.late == "dlq":
        names += [name for name in (POSITION, PAYLOAD) if name in timed.columns]
    return [F.col(f"`{name}`") for name in dict.fromkeys(names)]


def _results(stepped: DataFrame, given: StructType, operator: Operator, origin: Origin) -> DataFrame:
    """Emitted, late and bad rows, and notes, as one table, in which each has only what is its own."""
    from pyspark.sql import functions as F
    from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
    from pyspark.sql.types import BooleanType, StringType, StructField, StructType

    output = from_arrow_schema(operator.output, prefer_timestamp_ntz=True)
    gone = [StructField(GONE, BooleanType())] if operator.withdraws else []
    carried = [StructField(f.name, f.dataType) for f in given.fields if f.name in {POSITION, PAYLOAD, TIME}]
    told = [StructField(name, StringType()) for name in (REASON, ERROR, NOTE)]
    schema = StructType([*output.fields, *gone, *carried, *told])
    rows = stepped.mapInArrow(unpacking(to_arrow_schema(schema, timezone="UTC")), schema)
    rows = rows.withColumnRenamed(TIME, EVENT_TIME)
    late = F.when(F.col(REASON).isNotNull(), origin.error(rows, "late", F.lit("late"), F.col(REASON)))
    return rows.select(
        *[F.col(f"`{name}`") for name in output.names],
        *[field.name for field in gone],
        *([F.col(f"`{operator.time_column}`").alias(EVENT_TIME)] if operator.time_column else []),
        F.coalesce(ERROR, late).alias(ERROR),
        F.col(NOTE).isNull().alias(KEEP),
        NOTE,
    )


def _timed(rows: DataFrame, operator: Operator, origin: Origin) -> DataFrame:
    """Rows that are bad or wanted, the good ones with their event time; one that has none is bad. Keys that are equal
    are written alike."""
    from pyspark.sql import functions as F

    if KEEP in rows.columns:
        rows = rows.where(f"{IS_BAD} OR {KEEP}")
    given = F.col(f"`{operator.event_time}`")
    time = as_timestamp(given, rows.select(given).schema[0].dataType)
    rows = rows.withColumn(TIME, F.when(F.expr(IS_GOOD), time))
    message = F.lit(f"column {operator.shown_event_time}: there is no event time")
    without = origin.error(rows, "event_time", F.lit("no-event-time"), message)
    rows = rows.withColumn(ERROR, F.coalesce(ERROR, F.when(F.col(TIME).isNull(), without)))
    return rows.withColumns({name: _alike(rows, name) for name in operator.keys if _is_float(rows, name)})


def _is_float(rows: DataFrame, name: str) -> bool:
    return rows.schema[name].dataType.typeName() in {"float", "double"}


def _alike(rows: DataFrame, name: str) -> Column:
    """-0.0 is 0.0, and there is one NaN."""
    from pyspark.sql import functions as F

    kind, value = rows.schema[name].dataType, F.col(f"`{name}`")
    return F.when(value == 0, F.lit(0.0)).when(F.isnan(value), F.lit(float("nan"))).otherwise(value).cast(kind)


def _bucket(rows: DataFrame, operator: Operator) -> Column:
    from pyspark.sql import functions as F

    keys = [F.col(f"`{name}`") for name in operator.keys]
    bucket = F.pmod(F.xxhash64(*keys), F.lit(operator.buckets)) if keys else F.lit(0)
    return F.when(F.expr(IS_GOOD), bucket).otherwise(BAD).cast("int").alias(BUCKET)
