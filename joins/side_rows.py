"""The rows of one side of a join during a step: those that it held, then those that came, and what became of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ematix_flow.joins.arrivals import Arrivals, Bools, Ints
from ematix_flow.joins.cells import read, written
from ematix_flow.joins.kernel import Side
from ematix_flow.state.kernel import TIME

MATCHED, SHOWN = "_flow_matched", "_flow_shown"

_NOWHERE = np.zeros(0, np.int64)


@dataclass
class SideRows:
    side: Side
    rows: pa.Table
    """The columns of the side, in one piece."""
    time: Ints
    deadline: Ints
    held: int
    """How many of the rows were held before."""
    is_kept: Bools
    """Those that can still find partners."""
    is_matched: Bools
    """Those of an outer side that have found a partner; on an inner one nobody asks."""
    is_shown: Bools
    """Those of an outer side that were emitted as orphans, then or since."""
    is_marked: bool = False
    """A row that was held was matched for the first time, or became an orphan."""

    @classmethod
    def of(cls, came: Arrivals, cell: pa.Buffer | None, wait: int, ended: int) -> SideRows:
        """A row is forgotten if its deadline, which is at its time + `wait`, lies before `ended`."""
        side, rows, time, matched, shown = came.side, came.rows, came.time, _none(0), _none(0)
        if cell is not None:
            stored = read(cell)
            before = stored.select(range(len(side.columns)))
            rows = pa.concat_tables([before, rows]) if came.rows.num_rows else before
            time = np.concatenate([_numpy(stored[TIME]), time])
            if side.outer:
                matched, shown = _numpy(stored[MATCHED]), _numpy(stored[SHOWN])
        held, deadline = len(time) - len(came.time), time + wait
        more = _none(len(time) - len(matched))
        return cls(
            side=side,
            rows=rows.combine_chunks(),
            time=time,
            deadline=deadline,
            held=held,
            is_kept=deadline >= ended,
            is_matched=np.concatenate([matched, more]),
            is_shown=np.concatenate([shown, more]),
        )

    @property
    def came(self) -> int:
        return len(self.time) - self.held

    @property
    def growth(self) -> int:
        """How many more rows are kept than were held, or fewer."""
        return int(np.count_nonzero(self.is_kept)) - self.held

    @property
    def is_changed(self) -> bool:
        return self.came > 0 or self.is_marked or not self.is_kept.all()

    def orphans(self, watermark: int, *, until: int | None = None) -> Ints:
        """Those of the rows, or of the first ones up to `until`, that became orphans; each is told once."""
        if not self.side.outer:
            return _NOWHERE
        is_due = (self.deadline[:until] < watermark) & ~self.is_matched[:until] & ~self.is_shown[:until]
        places = np.flatnonzero(is_due)
        if len(places):
            self.is_shown[places] = self.is_marked = True
        return places

    def partnered(self, places: Ints) -> Ints:
        """Takes note that rows have found partners; those that are no longer the orphans that they were shown as."""
        if not self.side.outer:
            return _NOWHERE
        is_new = _none(len(self.time))
        is_new[places] = True
        is_new &= ~self.is_matched
        self.is_matched |= is_new
        self.is_marked |= bool(is_new.any())
        return np.flatnonzero(is_new & self.is_shown)

    def next_orphan(self) -> int | None:
        """The first deadline of a row that has no partner yet, and must be emitted if that stays so."""
        if not self.side.outer:
            return None
        deadlines = self.deadline[self.is_kept & ~self.is_matched & ~self.is_shown]
        return int(deadlines.min()) if len(deadlines) else None

    def last_deadline(self) -> int | None:
        deadlines = self.deadline[self.is_kept]
        return int(deadlines.max()) if len(deadlines) else None

    def cell(self) -> pa.Buffer | None:
        """The rows that are kept."""
        if not self.is_kept.any():
            return None
        flags = {MATCHED: self.is_matched, SHOWN: self.is_shown} if self.side.outer else {}
        columns = {TIME: self.time, **flags}
        rows = self.rows
        if not self.is_kept.all():
            rows = rows.filter(pa.array(self.is_kept))
            columns = {name: values[self.is_kept] for name, values in columns.items()}
        for name, values in columns.items():
            rows = rows.append_column(name, pa.array(values))
        return written(rows)


def _none(size: int) -> Bools:
    return np.zeros(size, np.bool_)


def _numpy(column: pa.ChunkedArray) -> NDArray[Any]:
    values: NDArray[Any] = (
        column.chunk(0).to_numpy(zero_copy_only=False) if column.num_chunks == 1 else column.to_numpy()
    )
    return values
