"""Rows on their way to a kernel and back: Arrow tables as bytes, one per group and piece of input.

Spark hands rows to Python code with state as pandas frames, in which a nullable integer or a decimal is not what it
was; bytes are. All of this runs in Spark's workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from ematix_flow.sinks.ahead import in_order
from ematix_flow.state.kernel import TIME, Operator, Step, from_bytes, to_bytes
from ematix_flow.streams.buckets import buckets_of
from ematix_flow.streams.envelope import ERROR, KEY, PAYLOAD, POSITION, SOURCE
from ematix_flow.streams.open_windows import note_of
from ematix_flow.streams.watermark import for_spark, from_spark

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from pyspark.sql.streaming.state import GroupState

BLOCK, BUCKET, PIECE, TABLE = "_flow_block", "_flow_bucket", "_flow_piece", "_flow_table"
CLOCK = "_flow_clock"
"""How far a table shows event time to have come: the latest time in it, or its horizon."""
HORIZON = "_flow_horizon"
"""In microseconds since 1970, where rows do not come in the order of their times: none before it will come."""
NOTE = "_flow_note"
"""What a group tells of a step, in a row of its own."""
REASON = "_flow_reason"
BAD, TICK = -1, -2
"""Buckets of rows that pass beside the kernel, and of those that only move the watermark."""
CARRIED = (SOURCE, POSITION, PAYLOAD, KEY)
"""What the dead letter of a late row needs."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Rows that are looked at together: many, because each look costs the same; few enough for a worker's memory.
_AT_ONCE_ROWS, _AT_ONCE_BYTES = 1_000_000, 256 << 20
# Few results go together, because Spark takes as long for a batch of one row as for one of a hundred.
_TOGETHER_ROWS = 1_000


def packing(operator: Operator) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Rows cut by group. Pieces are numbered, because a shuffle does not keep their order, and a repeated batch should
    give a kernel the same rows in the same order."""

    def packed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        import pyarrow.compute as pc
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        piece = context.partitionId() << 32
        for rows in _pieces(batches):
            bad, good = rows.slice(0, 0).select([ERROR]), rows.drop_columns([ERROR])
            if rows[ERROR].null_count < len(rows):
                bad = rows.filter(pc.is_valid(rows[ERROR])).select([ERROR])
            if rows[TIME].null_count:
                good = good.filter(pc.is_valid(rows[TIME]))
            latest = pc.max(good[TIME])
            if HORIZON in rows.column_names:
                latest, good = pc.max(rows[HORIZON]).cast(latest.type), good.drop_columns([HORIZON])
            if operator.prepared is not None and good.num_rows:
                good = operator.prepared(good)
                keys = [good[name] for name in operator.keys]
                good = good.append_column(BUCKET, pa.array(buckets_of(keys, len(good), operator.buckets)))
            groups = [(0, BAD, bad)] if bad.num_rows else []
            groups += _cut(good, operator.block_ms)
            if groups or latest.is_valid:
                blocks, buckets, tables = zip(*groups or [(0, TICK, bad.slice(0, 0))], strict=True)
                packed_tables = pa.array([as_bytes(table) for table in tables], pa.binary())
                columns = {BLOCK: blocks, BUCKET: pa.array(buckets, pa.int32()), PIECE: [piece] * len(blocks)}
                columns |= {TABLE: packed_tables, CLOCK: pa.repeat(latest, len(blocks))}
                yield pa.RecordBatch.from_pydict(columns)
            piece += 1

    return packed


def stepping(
    operator: Operator, schema: pa.Schema
) -> Callable[[tuple[int, int], Iterable[pd.DataFrame], GroupState], Iterator[pd.DataFrame]]:
    """One group in one batch. `schema` is that of the rows as the kernel gets them."""
    kernel = operator.kernel

    def step(key: tuple[int, int], frames: Iterable[pd.DataFrame], group: GroupState) -> Iterator[pd.DataFrame]:
        import pandas as pd
        import pyarrow as pa

        if key[1] == TICK:
            yield pd.DataFrame({TABLE: []})
            return
        pieces = [piece for frame in frames for piece in zip(frame[PIECE], frame[TABLE], strict=True)]
        tables = [table for _, table in sorted(pieces)]
        if key[1] == BAD:
            yield pd.DataFrame({TABLE: tables})
            return
        rows = pa.concat_tables([schema.empty_table(), *map(_from_bytes, tables)], promote_options="default")
        watermark = from_spark(group.getCurrentWatermarkMs())
        before = group.get[0] if group.exists else None
        state = from_bytes(before, kernel) if before is not None else None
        done = kernel.step(state, rows, watermark)
        blob = before
        if done.state is not state or group.hasTimedOut:
            blob = to_bytes(done.state, kernel) if done.state is not None else None
            _keep(group, done, blob, watermark)
        results = [done.emitted] if done.emitted.num_rows else []
        results += [_told(done.late, watermark)] if done.late.num_rows else []
        grown = len(blob or b"") - len(before or b"")
        if grown or done.slots or done.late_rows or results:
            results.append(pa.table({NOTE: [note_of(done, key[1], grown)]}))
        yield pd.DataFrame({TABLE: [as_bytes(table) for table in results]})

    return step


def unpacking(schema: pa.Schema) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Results as rows of one table, in which each has only what is its own."""

    def unpacked(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            together = schema.empty_table()
            for packed in batch.column(0):
                together = pa.concat_tables([together, _as(_from_bytes(packed.as_buffer()), schema)])
                if together.num_rows >= _TOGETHER_ROWS:
                    yield from together.combine_chunks().to_batches()
                    together = schema.empty_table()
            yield from together.combine_chunks().to_batches()

    return unpacked


def _as(table: pa.Table, schema: pa.Schema) -> pa.Table:
    import pyarrow as pa

    columns = [
        table.column(f.name).cast(f.type) if f.name in table.column_names else pa.nulls(len(table), f.type)
        for f in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _pieces(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    import pyarrow as pa

    together: list[pa.Table] = []
    rows = size = 0
    for table in in_order(batches):
        together.append(table)
        rows, size = rows + table.num_rows, size + table.nbytes
        if rows >= _AT_ONCE_ROWS or size >= _AT_ONCE_BYTES:
            yield pa.concat_tables(together).combine_chunks()
            together, rows, size = [], 0, 0
    if together:
        yield pa.concat_tables(together).combine_chunks()


def _cut(rows: pa.Table, block_ms: int | None) -> list[tuple[int, int, pa.Table]]:
    import numpy as np
    import pyarrow as pa

    if not rows.num_rows:
        return []
    bucket = rows[BUCKET].to_numpy()
    time = rows[TIME].cast("int64").to_numpy()
    block = np.zeros(len(rows), dtype=np.int64) if block_ms is None else time - time % (block_ms * 1000)
    order = np.lexsort((bucket, block))
    block, bucket = block[order], bucket[order]
    first = np.flatnonzero(np.diff(block, prepend=block[:1] - 1) | np.diff(bucket, prepend=bucket[:1] - 1))
    sorted_rows = rows.drop_columns([BUCKET]).take(pa.array(order))
    ends = [*first[1:], len(order)]
    tables = [sorted_rows.slice(i, j - i) for i, j in zip(first, ends, strict=True)]
    return list(zip(block[first].tolist(), bucket[first].tolist(), tables, strict=True))


def _keep(group: GroupState, done: Step, blob: bytes | None, watermark: int) -> None:
    if blob is not None:
        group.update((blob,))
    elif group.exists:
        group.remove()
    if blob is not None and done.deadline is not None:
        assert done.deadline > watermark, f"a deadline of {done.deadline} is due at {watermark}"
        group.setTimeoutTimestamp(for_spark(done.deadline))


def _told(late: pa.Table, watermark: int) -> pa.Table:
    """Late rows, of which only what is ours is kept, with what to say about them."""
    import pyarrow as pa

    kept = late.select([name for name in (*CARRIED, TIME) if name in late.column_names])
    at = (_EPOCH + timedelta(microseconds=watermark)).isoformat(timespec="milliseconds")
    return kept.append_column(REASON, pa.repeat(f"the row came after the watermark, which was at {at}", len(late)))


def as_bytes(table: pa.Table) -> bytes:
    """For `_from_bytes`, and for whoever reads Arrow's streams."""
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write(table)
    return bytes(sink.getvalue())


def _from_bytes(packed: bytes | pa.Buffer) -> pa.Table:
    import pyarrow as pa

    return pa.ipc.open_stream(packed).read_all()
