"""The rows that come to a step, by side: which of them are taken in, and how many come too late."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ematix_flow.joins.kernel import SIDE, Side
from ematix_flow.state.kernel import TIME

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Arrivals:
    side: Side
    rows: pa.Table
    """Those that are taken in: its columns."""
    time: Ints
    """Of the rows that are taken in."""
    late: int
    """How many came too late."""
    behind: int
    """How many came after their deadline, but not too late."""


def arrivals(
    rows: pa.Table, sides: Sequence[Side], waits: Sequence[int], allowed: int, watermark: int
) -> tuple[list[Arrivals], Bools]:
    """Left and right, and which rows are too late. The deadline of a row is at its time + what its side `waits`."""
    if not rows.num_rows:
        return [Arrivals(side, _columns(rows, side), np.zeros(0, np.int64), 0, 0) for side in sides], np.zeros(0, bool)
    number, time = rows[SIDE].to_numpy(), rows[TIME].cast(pa.int64()).to_numpy()
    ahead = time - (watermark - allowed) + np.where(number == 0, *waits)
    is_late, is_behind = ahead < 0, ahead < allowed
    found = []
    for place, side in enumerate(sides):
        is_here = number == place
        is_taken = is_here & ~is_late
        late, taken = int((is_here & is_late).sum()), int(is_taken.sum())
        behind = int((is_here & is_behind).sum()) - late
        here = _columns(rows, side)
        if taken < rows.num_rows:
            here, times = here.filter(pa.array(is_taken)), time[is_taken]
        else:
            times = time
        if not side.outer:
            here, times = _with_keys(here, times, side)
        found.append(Arrivals(side, here, times, late, behind))
    return found, is_late


def _columns(rows: pa.Table, side: Side) -> pa.Table:
    columns = rows.select([column.name for column in side.columns])
    # The rows of the other side have no values in them.
    schema = pa.schema([column.with_nullable(True) for column in side.columns])
    return columns if columns.schema.equals(schema) else columns.cast(schema)


def _with_keys(rows: pa.Table, time: Ints, side: Side) -> tuple[pa.Table, Ints]:
    """Without those that can never have a partner."""
    is_whole = None
    for key in side.keys:
        if rows[key].null_count:
            is_valid = pc.is_valid(rows[key]).to_numpy()
            is_whole = is_valid if is_whole is None else is_whole & is_valid
    return (rows, time) if is_whole is None else (rows.filter(pa.array(is_whole)), time[is_whole])
