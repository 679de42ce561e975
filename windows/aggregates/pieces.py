"""The pieces that results are made of. Each is kept once, however many aggregates need it: a sum and an average of one
column share their total."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ematix_flow.windows.grouping import COUNTED, Columns, Hashed, Request

if TYPE_CHECKING:
    import pyarrow as pa


class Piece(Protocol):
    """Frozen and compared by value."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """The columns of the rows that it reads, besides their time."""

    @property
    def types(self) -> tuple[pa.DataType, ...]:
        """Of the columns that hold it in a partial result. Spark must know them, because it carries them."""

    def start(self, rows: pa.Table) -> Request:
        """Of rows."""

    def merge(self, parts: Columns) -> Request:
        """Of the columns of partial results, the earlier ones first."""


@dataclass(frozen=True)
class Result:
    """One aggregate as it was declared."""

    field: pa.Field
    pieces: tuple[Piece, ...]
    finish: Callable[..., pa.Array]
    """Of the columns of the pieces, one after the other."""
    words: str
    """How it was declared."""


@dataclass(frozen=True)
class Rows:
    """How many rows there are."""

    inputs: tuple[str, ...] = ()

    @property
    def types(self) -> tuple[pa.DataType, ...]:
        return _int64()

    def start(self, rows: pa.Table) -> Request:
        return Hashed([COUNTED])

    def merge(self, parts: Columns) -> Request:
        return Hashed([(parts[0], "sum")])


@dataclass(frozen=True)
class Count:
    """How many values are not NULL."""

    column: str

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.column,)

    @property
    def types(self) -> tuple[pa.DataType, ...]:
        return _int64()

    def start(self, rows: pa.Table) -> Request:
        values = rows[self.column]
        return Hashed([(values, "count") if values.null_count else COUNTED])

    def merge(self, parts: Columns) -> Request:
        return Hashed([(parts[0], "sum")])


@dataclass(frozen=True)
class Extreme:
    """The least or the greatest value; NaN is greater than every number."""

    column: str
    type: pa.DataType
    function: str
    """min or max."""

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.column,)

    @property
    def types(self) -> tuple[pa.DataType, ...]:
        return (self.type,)

    def start(self, rows: pa.Table) -> Request:
        return self._of(rows[self.column])

    def merge(self, parts: Columns) -> Request:
        return self._of(parts[0])

    def _of(self, values: Any) -> Request:
        import pyarrow as pa
        import pyarrow.compute as pc

        if self.function == "min" or not pa.types.is_floating(self.type) or not pc.any(pc.is_nan(values)).as_py():
            return Hashed([(values, self.function)])
        nan = pa.scalar(float("nan"), self.type)  # Arrow passes over it
        return Hashed([(values, "max"), (pc.is_nan(values), "any")], lambda most, some: [pc.if_else(some, nan, most)])


def _int64() -> tuple[pa.DataType, ...]:
    import pyarrow as pa

    return (pa.int64(),)
