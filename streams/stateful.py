"""Binds a kernel to Spark: rows travel to it, and its results back, as Arrow tables packed into bytes.

Spark hands rows to Python code with state as pandas frames, in which a nullable integer or a decimal is not what it
was. So tables are packed before the shuffle, one row of bytes per group and piece of input, and unpacked after the
kernel. Rows that are bad already pass beside it in a group of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from ematix_flow.sinks.base import EVENT_TIME
from ematix_flow.state.kernel import NO_WATERMARK, TIME, Operator, Step, from_bytes, to_bytes
from ematix_flow.streams.envelope import ERROR, IS_BAD, IS_GOOD, PAYLOAD, POSITION, Origin, as_timestamp
from ematix_flow.streams.tagging import KEEP
from ematix_flow.streams.watermark import moved_by, never_late

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.streaming.state import GroupState
    from pyspark.sql.types import StructType

LATE = "_flow_late"
"""Whether the row came too late for the operator. Such a row is tagged as bad, in the stage `late`."""

_PANE, _BUCKET, _PIECE, _TABLE, _REASON = "_flow_pane", "_flow_bucket", "_flow_piece", "_flow_table", "_flow_reason"
_BAD = -1
_UNKNOWN = Origin("")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def stateful(rows: DataFrame, operator: Operator, origin: Origin = _UNKNOWN) -> DataFrame:
    """What the operator emits, with `LATE`, and `ERROR` for late rows and for those that were bad before.

    Every action on the result runs the kernel: materialise it once per batch, all partitions of it.
    """
    from pyspark.sql.pandas.types import to_arrow_schema

    timed = moved_by(_timed(rows, operator, origin), TIME, operator.lateness_ms)
    given = timed.select(*_given(timed, operator))
    grouped = timed.select(*_groups(operator), ERROR, *_given(timed, operator))
    packed = grouped.mapInArrow(_packed, f"{_PANE} long, {_BUCKET} int, {_PIECE} long, {_TABLE} binary")
    stepped = (
        never_late(packed)
        .groupBy(_PANE, _BUCKET)
        .applyInPandasWithState(
            _stepping(operator, to_arrow_schema(given.schema, timezone="UTC")),
            outputStructType=f"{_TABLE} binary",
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
    """Emitted, late and bad rows as one table, in which each has only what is its own."""
    from pyspark.sql import functions as F
    from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
    from pyspark.sql.types import StringType, StructField, StructType

    output = from_arrow_schema(operator.output, prefer_timestamp_ntz=True)
    # Without the marks that fields of `given` have, above all that of the watermark.
    carried = [StructField(f.name, f.dataType) for f in given.fields if f.name in {POSITION, PAYLOAD, TIME}]
    told = [StructField(_REASON, StringType()), StructField(ERROR, StringType())]
    schema = StructType([*output.fields, *carried, *told])
    rows = stepped.mapInArrow(_unpacking(to_arrow_schema(schema, timezone="UTC")), schema)
    rows = rows.withColumnRenamed(TIME, EVENT_TIME)
    is_late = F.col(_REASON).isNotNull()
    late = origin.error(rows, "late", F.lit("late"), F.col(_REASON))
    return rows.select(
        *[F.col(f"`{name}`") for name in output.names],
        is_late.alias(LATE),
        F.coalesce(ERROR, F.when(is_late, late)).alias(ERROR),
    )


def _timed(rows: DataFrame, operator: Operator, origin: Origin) -> DataFrame:
    """Rows that are bad or wanted, the good ones with their event time; one that has none is bad."""
    from pyspark.sql import functions as F

    if KEEP in rows.columns:
        rows = rows.where(f"{IS_BAD} OR {KEEP}")
    given = F.col(f"`{operator.event_time}`")
    time = as_timestamp(given, rows.select(given).schema[0].dataType)
    rows = rows.withColumn(TIME, F.when(F.expr(IS_GOOD), time))
    message = F.lit(f"column {operator.event_time}: there is no event time")
    without = origin.error(rows, "event_time", F.lit("no-event-time"), message)
    return rows.withColumn(ERROR, F.coalesce(ERROR, F.when(F.col(TIME).isNull(), without)))


def _groups(operator: Operator) -> list[Column]:
    from pyspark.sql import functions as F

    micros = F.unix_micros(TIME)
    pane = F.lit(0) if operator.pane_ms is None else micros - F.pmod(micros, F.lit(operator.pane_ms * 1000))
    keys = [F.col(f"`{name}`") for name in operator.keys]
    bucket = F.pmod(F.xxhash64(*keys), F.lit(operator.buckets)) if keys else F.lit(0)
    is_good = F.expr(IS_GOOD)
    return [
        F.when(is_good, pane).otherwise(0).cast("long").alias(_PANE),
        F.when(is_good, bucket).otherwise(_BAD).cast("int").alias(_BUCKET),
    ]


def _packed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Each piece of input, cut by group. Pieces are numbered, because a shuffle does not keep their order, and a
    repeated batch should give a kernel the same rows in the same order."""
    import numpy as np
    import pyarrow as pa
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    piece = context.partitionId() << 32
    for batch in batches:
        pane, bucket = (batch.column(name).to_numpy() for name in (_PANE, _BUCKET))
        order = np.lexsort((bucket, pane))
        pane, bucket = pane[order], bucket[order]
        first = np.flatnonzero(np.diff(pane, prepend=pane[:1] - 1) | np.diff(bucket, prepend=bucket[:1] - 1))
        rows = batch.drop_columns([_PANE, _BUCKET]).take(pa.array(order))
        cut = [rows.slice(i, j - i) for i, j in zip(first, [*first[1:], len(order)], strict=True)]
        tables = [
            _as_bytes(part.select([ERROR]) if group == _BAD else part.drop_columns([ERROR]))
            for group, part in zip(bucket[first], cut, strict=True)
        ]
        pieces = [piece] * len(first)
        yield pa.RecordBatch.from_pydict(
            {_PANE: pane[first], _BUCKET: bucket[first], _PIECE: pieces, _TABLE: pa.array(tables, pa.binary())}
        )
        piece += 1


def _stepping(
    operator: Operator, schema: pa.Schema
) -> Callable[[tuple[int, int], Iterable[pd.DataFrame], GroupState], Iterator[pd.DataFrame]]:
    kernel = operator.kernel

    def step(key: tuple[int, int], frames: Iterable[pd.DataFrame], group: GroupState) -> Iterator[pd.DataFrame]:
        import pandas as pd
        import pyarrow as pa

        pieces = [piece for frame in frames for piece in zip(frame[_PIECE], frame[_TABLE], strict=True)]
        tables = [table for _, table in sorted(pieces)]
        if key[1] == _BAD:
            yield pd.DataFrame({_TABLE: tables})
            return
        rows = pa.concat_tables(map(_from_bytes, tables)) if tables else schema.empty_table()
        watermark = group.getCurrentWatermarkMs() * 1000 or NO_WATERMARK
        state = from_bytes(group.get[0], kernel) if group.exists else None
        done = kernel.step(state, rows, watermark)
        if done.state is not state or group.hasTimedOut:
            _keep(group, done, to_bytes(done.state, kernel) if done.state is not None else None, watermark)
        results = [done.emitted] if done.emitted.num_rows else []
        results += [_told(done.late, watermark)] if done.late.num_rows else []
        yield pd.DataFrame({_TABLE: [_as_bytes(table) for table in results]})

    return step


def _keep(group: GroupState, done: Step, blob: bytes | None, watermark: int) -> None:
    if blob is not None:
        group.update((blob,))
    elif group.exists:
        group.remove()
    if blob is not None and done.deadline is not None:
        assert done.deadline > watermark, f"a deadline of {done.deadline} is due at {watermark}"
        # Spark wakes a group once the watermark is beyond a whole, positive millisecond.
        group.setTimeoutTimestamp(max(1, -(-done.deadline // 1000) - 1))


def _told(late: pa.Table, watermark: int) -> pa.Table:
    """Late rows, of which only what is ours is kept, with what to say about them."""
    import pyarrow as pa

    kept = late.select([name for name in (POSITION, PAYLOAD, TIME) if name in late.column_names])
    at = (_EPOCH + timedelta(microseconds=watermark)).isoformat(timespec="milliseconds")
    return kept.append_column(_REASON, pa.repeat(f"the row came after the watermark, which was at {at}", len(late)))


def _unpacking(schema: pa.Schema) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def unpacked(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            for packed in batch.column(0):
                table = _from_bytes(packed.as_buffer())
                columns = [
                    table.column(f.name).cast(f.type) if f.name in table.column_names else pa.nulls(len(table), f.type)
                    for f in schema
                ]
                yield from pa.Table.from_arrays(columns, schema=schema).to_batches()

    return unpacked


def _as_bytes(table: pa.Table | pa.RecordBatch) -> bytes:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write(table)
    return bytes(sink.getvalue())


def _from_bytes(packed: bytes | pa.Buffer) -> pa.Table:
    import pyarrow as pa

    return pa.ipc.open_stream(packed).read_all()
