"""Joins of two streams: the keys that must be equal and how far apart in time two rows may be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from ematix_flow.model import Complaint, Declared, check
from ematix_flow.specs.fields import Name, Names, NotNegativeMs, WholeMs
from ematix_flow.specs.window import LateData, reopen_complaints


class Join(Declared):
    """Rows of two sources with equal keys and `min_delta_ms <= right time - left time <= max_delta_ms`."""

    left_source: Name
    """Name of the left source."""
    right_source: Name
    """Name of the right source."""
    left_keys: Names = Field(min_length=1)
    """Key columns of the left source."""
    right_keys: Names = Field(min_length=1)
    """Key columns of the right source, in the same order."""
    time_window_ms: NotNegativeMs | None = None
    """Largest distance in time, in both directions."""
    min_delta_ms: WholeMs | None = None
    """Smallest `right time - left time`; may be negative."""
    max_delta_ms: WholeMs | None = None
    """Largest `right time - left time`."""
    kind: Literal["inner", "left_outer", "right_outer", "full_outer"] = "inner"
    """Which rows without a partner are kept."""
    event_time_column: Name = "_event_ts"
    """Column with the event time, on both sides."""
    late_data: LateData = "drop"
    """What happens to rows that come too late to be joined."""
    allowed_lateness_ms: NotNegativeMs | None = None
    """How much later than the watermark a row may come and still be joined."""
    left_column_prefix: str = "left_"
    """Put before the column names of the left source."""
    right_column_prefix: str = "right_"
    """Put before the column names of the right source."""

    @property
    def deltas(self) -> tuple[int, int]:
        """Smallest and largest `right time - left time`, however they were declared."""
        if self.time_window_ms is not None:
            return -self.time_window_ms, self.time_window_ms
        return self.min_delta_ms or 0, self.max_delta_ms or 0

    @check
    def _two_sides(self) -> Iterator[Complaint]:
        if self.left_source == self.right_source:
            yield Complaint(
                ("right_source",), f'found "{self.right_source}", which is also left_source', "another source"
            )

    @check
    def _keys_pair_up(self) -> Iterator[Complaint]:
        if len(self.left_keys) != len(self.right_keys):
            found = f"{_count(len(self.right_keys))}, but left_keys has {len(self.left_keys)}"
            yield Complaint(("right_keys",), found, "as many columns as left_keys, in the same order")

    @check
    def _one_time_bound(self) -> Iterator[Complaint]:
        deltas = [key for key in ("min_delta_ms", "max_delta_ms") if getattr(self, key) is not None]
        if self.time_window_ms is not None:
            for key in deltas:
                yield Complaint(
                    (key,), "given together with time_window_ms", "time_window_ms, or min_delta_ms and max_delta_ms"
                )
        elif not deltas:
            yield Complaint(
                ("time_window_ms",), "missing; a join needs time_window_ms, or min_delta_ms and max_delta_ms"
            )
        elif len(deltas) == 1:
            absent = "max_delta_ms" if deltas == ["min_delta_ms"] else "min_delta_ms"
            yield Complaint((absent,), f"missing; {deltas[0]} needs {absent}")
        elif (self.min_delta_ms or 0) > (self.max_delta_ms or 0):
            yield Complaint(
                ("min_delta_ms",), f"found {self.min_delta_ms}", f"at most max_delta_ms, {self.max_delta_ms}"
            )

    @check
    def _lateness_fits(self) -> Iterator[Complaint]:
        yield from reopen_complaints(self.late_data, self.allowed_lateness_ms)

    @check
    def _prefixes_differ(self) -> Iterator[Complaint]:
        if self.left_column_prefix == self.right_column_prefix:
            found = f'found "{self.right_column_prefix}", which is also left_column_prefix'
            yield Complaint(("right_column_prefix",), found, "another prefix, so that no two columns have one name")


def _count(columns: int) -> str:
    return "1 column" if columns == 1 else f"{columns} columns"
