"""Aggregates that are the value of one row: first, last, arg_min, arg_max."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ematix_flow.state.kernel import TIME
from ematix_flow.windows.aggregates.ordering import ordinals
from ematix_flow.windows.grouping import Columns, Folded, Request

if TYPE_CHECKING:
    import pyarrow as pa

    from ematix_flow.windows.aggregates.ordering import Integers


@dataclass(frozen=True)
class Chosen:
    """The row that comes first by some column, then by time, then by arrival; one with a NULL is none of them.

    Kept are the values of its columns and its time.
    """

    columns: tuple[str, ...]
    """The last one decides, before the time does, if `by_value`."""
    column_types: tuple[pa.DataType, ...]
    by_value: bool = False
    backwards: bool = False
    """Choose the greatest value; without `by_value`, the row that comes last."""

    @property
    def inputs(self) -> tuple[str, ...]:
        return self.columns

    @property
    def types(self) -> tuple[pa.DataType, ...]:
        import pyarrow as pa

        return (*self.column_types, pa.timestamp("us", "UTC"))

    def start(self, rows: pa.Table) -> Request:
        return self.merge([rows[name] for name in (*self.columns, TIME)])

    def merge(self, parts: Columns) -> Request:
        return Folded(parts, self._fold)

    def _fold(self, ids: Integers, groups: int, *columns: Any) -> Columns:
        import numpy as np
        import pyarrow as pa

        valid = np.logical_and.reduce([column.is_valid().to_numpy(zero_copy_only=False) for column in columns])
        times = ordinals(columns[-1])
        last = self.backwards and not self.by_value
        orders = [~times if last else times]
        if self.by_value:
            values = ordinals(columns[-2])
            orders.insert(0, ~values if self.backwards else values)
        rows = _chosen(ids, groups, np.flatnonzero(valid), orders, last)
        at = pa.array(rows, mask=rows < 0)
        return [column.take(at) for column in columns]


def _chosen(ids: Integers, groups: int, rows: Integers, orders: list[Integers], last: bool) -> Integers:
    """Of each group the row with the least orders, and of equal ones the first or last; -1 where there is none."""
    import numpy as np

    for order in orders:
        least = np.full(groups, np.iinfo(np.int64).max)
        np.minimum.at(least, ids[rows], order[rows])
        rows = rows[order[rows] == least[ids[rows]]]
    chosen = np.full(groups, -1)
    kept = rows if last else rows[::-1]
    chosen[ids[kept]] = kept  # what is written last stays
    return chosen
