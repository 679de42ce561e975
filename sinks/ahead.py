"""Rows that workers have read before Spark saw them: an Arrow table as bytes is one row, and those of its neighbours
that were left to Spark follow it, each with its place among them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

AHEAD = "_flow_ahead"
"""A struct of the table, how many rows it stands for, and before which row of the table any other row came."""
TABLE, ROWS, PLACE = "table", "rows", "place"
KIND = f"struct<{TABLE}: binary, {ROWS}: bigint, {PLACE}: bigint>"

# Spark counts rows when it brings some together for a worker, and knows nothing of their size; and while it does, the
# worker waits.
_TOGETHER_BYTES = 16 << 20
_NO_TABLE = -1


def marks(table: bytes, rows: int, places: pa.Array, at_once: int) -> pa.StructArray:
    """`AHEAD` of a table of so many rows, and of those that follow it. Before it come empty tables, so many that Spark
    does not bring more together than fits, if it takes `at_once` rows."""
    import pyarrow as pa

    empty = at_once * len(table) // _TOGETHER_BYTES
    tables = pa.array([*[b""] * empty, table, *[None] * len(places)], pa.binary())
    counts = pa.array([*[0] * empty, rows, *[1] * len(places)], pa.int64())
    before = pa.concat_arrays([pa.nulls(empty + 1, pa.int64()), places])
    return pa.StructArray.from_arrays([tables, counts, before], [TABLE, ROWS, PLACE])


def in_order(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """All rows as they would have come if Spark had read each of them, a table for each batch of records."""
    import pyarrow as pa
    import pyarrow.compute as pc

    block: list[pa.RecordBatch] = []
    for batch in batches:
        if AHEAD not in batch.schema.names:
            yield pa.Table.from_batches([batch])
            continue
        sizes = pc.fill_null(pc.binary_length(pc.struct_field(batch[AHEAD], TABLE)), _NO_TABLE).to_pylist()
        begins = [place for place, size in enumerate(sizes) if size != _NO_TABLE]
        for begin, end in pairwise([0, *begins, len(batch)]):
            # The empty tables are more than all others.
            if begin == end or (sizes[begin] == 0 and end == begin + 1):
                continue
            if block and sizes[begin] != _NO_TABLE:
                yield _together(block)
                block = []
            block.append(batch.slice(begin, end - begin))
    if block:
        yield _together(block)


def unpacked(batches: Iterable[pa.RecordBatch], columns: Collection[str]) -> Iterator[pa.RecordBatch]:
    """The same as batches of those of these columns that there are; none is empty."""
    wanted = {*columns, AHEAD}
    narrow = (batch.select([name for name in batch.schema.names if name in wanted]) for batch in batches)
    for table in in_order(narrow):
        yield from table.combine_chunks().to_batches()


def _together(block: Sequence[pa.RecordBatch]) -> pa.Table:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    rows = pa.Table.from_batches(block)
    packed: Any = pc.struct_field(rows[AHEAD].slice(0, 1), TABLE)[0]
    judged = rows.slice(1).drop_columns([AHEAD])
    if not packed.as_buffer().size:
        return judged
    read = pa.ipc.open_stream(packed.as_buffer()).read_all().select(judged.column_names).cast(judged.schema)
    if not judged.num_rows:
        return read
    places = pc.struct_field(rows[AHEAD].slice(1), PLACE).to_numpy()
    order = np.argsort(np.concatenate([2 * np.arange(len(read)) + 1, 2 * places]), kind="stable")
    return pa.concat_tables([read, judged]).take(pa.array(order))
