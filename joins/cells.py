"""The state of a join as a table of one row: a cell per side, the rows that it holds as an Arrow stream.

So a side that did not change is not written again, and reading it copies nothing.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

SIDES = ("left", "right")


def cells_of(state: pa.Table | None) -> list[pa.Buffer | None]:
    """Nothing for a side that holds no rows."""
    return [None, None] if state is None else [_cell(state[name].chunk(0)) for name in SIDES]


def state_of(cells: list[pa.Buffer | None]) -> pa.Table | None:
    if all(cell is None for cell in cells):
        return None
    return pa.table([_column(cell) for cell in cells], names=SIDES)


def read(cell: pa.Buffer) -> pa.Table:
    return pa.ipc.open_stream(cell).read_all()


def written(rows: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    return sink.getvalue()


def _cell(column: pa.LargeBinaryArray) -> pa.Buffer | None:
    """As it lies there; what a scalar gives is a copy."""
    if column.null_count:
        return None
    _, offsets, values = column.buffers()
    begin, end = np.frombuffer(offsets, np.int64, 2, column.offset * 8)
    return values.slice(int(begin), int(end - begin))


def _column(cell: pa.Buffer | None) -> pa.Array:
    if cell is None:
        return pa.nulls(1, pa.large_binary())
    offsets = pa.py_buffer(np.array([0, cell.size]))
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), 1, [None, offsets, cell])
