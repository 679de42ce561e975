"""Binds a kernel to Spark: rows are spread over groups, each of which has one state and meets the kernel once a batch.

Rows that are bad already pass beside it in a group of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from ematix_flow.sinks.ahead import AHEAD
from ematix_flow.sinks.ahead import TABLE as READ
from ematix_flow.sinks.base import EVENT_TIME
from ematix_flow.state.kernel import GONE, TIME, Operator
from ematix_flow.streams.columns import quoted
from ematix_flow.streams.envelope import ERROR, IS_BAD, IS_GOOD, Origin, as_timestamp
from ematix_flow.streams.observed import timed
from ematix_flow.streams.packing import (
    BLOCK,
    BUCKET,
    CARRIED,
    CLOCK,
    HORIZON,
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
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

_UNKNOWN = Origin("")
_PACKED = f"{BLOCK} long, {BUCKET} int, {PIECE} long, {TABLE} binary, {CLOCK} timestamp"


@dataclass(frozen=True)
class Input:
    """The rows of one source, or of one branch of the transform, that come to an operator."""

    rows: DataFrame
    """Bad ones are tagged."""
    event_time: str
    columns: Mapping[str, Column]
    """What the kernel gets of each row, besides `TIME`."""
    keys: Sequence[Column]
    """Rows for which these are equal meet in one group."""
    origin: Origin = _UNKNOWN
    ticks: DataFrame | None = None


def input_of(rows: DataFrame, operator: Operator, origin: Origin = _UNKNOWN, ticks: DataFrame | None = None) -> Input:
    """For an operator whose keys and inputs are columns of the rows. Keys that are equal are written alike."""
    from pyspark.sql import functions as F

    columns = {name: F.col(quoted(name)) for name in (*operator.keys, *operator.inputs)}
    columns |= {name: alike(columns[name], rows.schema[name].dataType) for name in operator.keys}
    keys = [columns[name] for name in operator.keys]
    return Input(rows, operator.event_time, columns, keys, origin, ticks)


def stateful(inputs: Sequence[Input], operator: Operator, origin: Origin = _UNKNOWN) -> DataFrame:
    """What the operator emits, with `ERROR` for late rows that are kept and for those that were bad before, and rows
    that only have a `NOTE`, which are not to be kept. Late rows of any input carry what `origin` says of them.

    Every action on the result runs the kernel: materialise it once per batch, all partitions of it.
    """
    given = [_given(each, operator) for each in inputs]
    packed = [
        _packed(each, rows, operator, number) for number, (each, rows) in enumerate(zip(inputs, given, strict=True))
    ]
    stepped = (
        never_late(reduce(lambda some, more: some.unionByName(more), packed))
        .groupBy(BLOCK, BUCKET)
        .applyInPandasWithState(
            stepping(operator, _stepped_schema(given, operator)),
            outputStructType=f"{TABLE} binary",
            stateStructType="state binary",
            outputMode="append",
            timeoutConf="EventTimeTimeout",
        )
    )
    return _results(stepped, [rows.schema for rows in given], operator, origin)


def alike(value: Column, kind: DataType) -> Column:
    """-0.0 is 0.0, and there is one NaN."""
    from pyspark.sql import functions as F

    if kind.typeName() not in {"float", "double"}:
        return value
    return F.when(value == 0, F.lit(0.0)).when(F.isnan(value), F.lit(float("nan"))).otherwise(value).cast(kind)


def _given(each: Input, operator: Operator) -> DataFrame:
    """Rows that are bad or wanted, with what a kernel gets of each. With a horizon, also those that bring nothing
    else: these have neither an error nor a time."""
    from pyspark.sql import functions as F

    rows = _timed(each, operator)
    columns = [column.alias(name) for name, column in each.columns.items()]
    carried = [name for name in CARRIED if name in rows.columns] if operator.late == "dlq" else []
    carried += [name for name in (HORIZON, AHEAD) if name in rows.columns]
    if operator.prepared is None:  # otherwise it is found when the rows have become fewer
        bucket = F.pmod(F.xxhash64(*each.keys), F.lit(operator.buckets)) if each.keys else F.lit(0)
        columns.append(bucket.cast("int").alias(BUCKET))
    return rows.select(ERROR, *columns, TIME, *carried)


def _timed(each: Input, operator: Operator) -> DataFrame:
    """With the event time of good rows; one that has none is bad."""
    from pyspark.sql import functions as F

    rows = each.rows
    if KEEP in rows.columns and HORIZON not in rows.columns:
        rows = rows.where(f"{IS_BAD} OR {KEEP}")
    given = F.col(quoted(each.event_time))
    time = as_timestamp(given, rows.select(given).schema[0].dataType)
    is_row = F.col(KEEP) if HORIZON in rows.columns else F.lit(True)
    is_row = F.col(AHEAD)[READ].isNull() if AHEAD in rows.columns else is_row
    rows = rows.withColumn(TIME, F.when(F.expr(IS_GOOD) & is_row, time))
    message = F.lit(f"column {operator.shown_event_time}: there is no event time")
    without = each.origin.error(rows, "event_time", F.lit("no-event-time"), message)
    return rows.withColumn(ERROR, F.coalesce(ERROR, F.when(is_row & F.col(TIME).isNull(), without)))


def _packed(each: Input, rows: DataFrame, operator: Operator, number: int) -> DataFrame:
    """In tables, few of them, each with the latest event time in it: so the watermark looks at few rows, too."""
    from pyspark.sql import functions as F

    packed = rows.mapInArrow(packing(operator), _PACKED)
    if each.ticks is not None:
        nothing = F.lit(None).cast("binary").alias(TABLE)
        place = [F.lit(0).cast("long").alias(name) for name in (BLOCK, PIECE)]
        bucket, clock = F.lit(TICK).cast("int").alias(BUCKET), F.col(TIME).alias(CLOCK)
        # They are left out by `stepping`; a filter here would be moved to where the watermark does not see them.
        packed = packed.unionByName(each.ticks.select(*place, bucket, nothing, clock))
    return moved_by(timed(packed, CLOCK, number), CLOCK, operator.lateness_ms).drop(CLOCK)


def _stepped_schema(given: Sequence[DataFrame], operator: Operator) -> pa.Schema:
    """Of the rows as the kernel gets them: a row has nothing in the columns that only other inputs have."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    schemas = [to_arrow_schema(rows.drop(ERROR, HORIZON, AHEAD).schema, timezone="UTC") for rows in given]
    # A constant is never NULL, which is nothing that a state depends on.
    schema = pa.schema([field.with_nullable(True) for field in pa.unify_schemas(schemas, promote_options="default")])
    if operator.prepared is not None:
        return operator.prepared(schema.empty_table()).schema
    return schema.remove(schema.get_field_index(BUCKET))


def _results(stepped: DataFrame, given: Sequence[StructType], operator: Operator, origin: Origin) -> DataFrame:
    """Emitted, late and bad rows, and notes, as one table, in which each has only what is its own."""
    from pyspark.sql import functions as F
    from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
    from pyspark.sql.types import BooleanType, StringType, StructField, StructType

    output = from_arrow_schema(operator.output, prefer_timestamp_ntz=True)
    gone = [StructField(GONE, BooleanType())] if operator.withdraws else []
    # Only some inputs may have a key beside their rows.
    known = {f.name: f.dataType for schema in given for f in schema.fields if f.name in {*CARRIED, TIME}}
    carried = [StructField(name, kind) for name, kind in known.items()]
    told = [StructField(name, StringType()) for name in (REASON, ERROR, NOTE)]
    schema = StructType([*output.fields, *gone, *carried, *told])
    rows = stepped.mapInArrow(unpacking(to_arrow_schema(schema, timezone="UTC")), schema)
    rows = rows.withColumnRenamed(TIME, EVENT_TIME)
    late = F.when(F.col(REASON).isNotNull(), origin.error(rows, "late", F.lit("late"), F.col(REASON)))
    return rows.select(
        *[F.col(quoted(name)) for name in output.names],
        *[field.name for field in gone],
        *_event_time_of(operator),
        F.coalesce(ERROR, late).alias(ERROR),
        F.col(NOTE).isNull().alias(KEEP),
        NOTE,
    )


def _event_time_of(operator: Operator) -> list[Column]:
    """When a result happened, for targets that keep the latest."""
    from pyspark.sql import functions as F

    if operator.time_column is None:
        return []
    column = EVENT_TIME if operator.time_column == TIME else quoted(operator.time_column)
    return [F.col(column).alias(EVENT_TIME)]
