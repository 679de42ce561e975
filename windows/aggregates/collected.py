"""Aggregates that keep values: collect_list, collect_set, and an exact count_distinct."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ematix_flow.state.kernel import TIME
from ematix_flow.windows.aggregates.errors import WindowFailed
from ematix_flow.windows.aggregates.ordering import canonical, ordinals
from ematix_flow.windows.grouping import Columns, Folded, Request

if TYPE_CHECKING:
    import pyarrow as pa

    from ematix_flow.windows.aggregates.ordering import Integers

MOST_COLLECTED = 1_000
MOST_DISTINCT = 100_000


@dataclass(frozen=True)
class Collected:
    """Values in the order of their times, then of arrival: all, or each once where it first appears.

    No more than the first `most` are kept; the rest is left out without an error.
    """

    column: str
    type: pa.DataType
    most: int
    once: bool

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.column,)

    @property
    def types(self) -> tuple[pa.DataType, ...]:
        import pyarrow as pa

        return (pa.list_(self.type), pa.list_(pa.timestamp("us", "UTC")))

    def start(self, rows: pa.Table) -> Request:
        return Folded([rows[self.column], rows[TIME]], self._fold)

    def merge(self, parts: Columns) -> Request:
        return Folded(parts, lambda ids, groups, *lists: self._fold(*_opened(ids, groups, *lists)))

    def _fold(self, ids: Integers, groups: int, values: Any, times: Any) -> Columns:
        import numpy as np

        rows = np.flatnonzero(values.is_valid())
        rows = rows[np.lexsort((ordinals(times)[rows], ids[rows]))]
        if self.once:
            rows = rows[first_of_each(ids[rows], values.take(rows))]
        sizes = np.bincount(ids[rows], minlength=groups)
        place = np.arange(len(rows)) - (np.cumsum(sizes) - sizes)[ids[rows]]
        rows = rows[place < self.most]
        sizes = np.minimum(sizes, self.most)
        return [as_lists(values.take(rows), sizes), as_lists(times.take(rows), sizes)]


@dataclass(frozen=True)
class Distinct:
    """Every value once. More than `most` in a group are an error, because any number would be wrong."""

    column: str
    type: pa.DataType
    most: int

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.column,)

    @property
    def types(self) -> tuple[pa.DataType, ...]:
        import pyarrow as pa

        return (pa.list_(self.type),)

    def start(self, rows: pa.Table) -> Request:
        return Folded([rows[self.column]], self._fold)

    def merge(self, parts: Columns) -> Request:
        return Folded(parts, lambda ids, groups, *lists: self._fold(*_opened(ids, groups, *lists)))

    def _fold(self, ids: Integers, groups: int, values: Any) -> Columns:
        import numpy as np

        rows = np.flatnonzero(values.is_valid())
        rows = rows[first_of_each(ids[rows], values.take(rows))]
        sizes = np.bincount(ids[rows], minlength=groups)
        if groups and sizes.max() > self.most:
            raise WindowFailed(
                f"a group has more than {self.most} distinct values of {self.column}, the most that "
                "max_distinct_values_per_group lets count_distinct count exactly",
                next_step='raise max_distinct_values_per_group, or take mode = "approximate", which needs no limit',
            )
        rows = rows[np.argsort(ids[rows], kind="stable")]
        return [as_lists(values.take(rows), sizes)]


def number_of(lists: pa.Array) -> pa.Array:
    import pyarrow as pa

    return lists.value_lengths().cast(pa.int64())


def first_of_each(ids: Integers, values: pa.Array) -> Integers:
    """The rows in which a group has a value for the first time, in their order; equal floats are one value."""
    import numpy as np
    import pyarrow as pa

    pairs = pa.table({"group": ids, "value": canonical(values), "row": np.arange(len(ids))})
    firsts = pairs.group_by(["group", "value"], use_threads=False).aggregate([("row", "min")])["row_min"].to_numpy()
    return np.sort(firsts)


def as_lists(values: pa.Array, sizes: Integers) -> pa.ListArray:
    import numpy as np
    import pyarrow as pa

    return pa.ListArray.from_arrays(pa.array(np.append(0, np.cumsum(sizes)), pa.int32()), values)


def _opened(ids: Integers, groups: int, *lists: Any) -> tuple[Any, ...]:
    """The items of lists, each with the group of its list."""
    import numpy as np

    sizes = lists[0].value_lengths().fill_null(0).to_numpy()
    return (np.repeat(ids, sizes), groups, *(each.flatten() for each in lists))
