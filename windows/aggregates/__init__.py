"""Owns the aggregates of windows: partial results of rows, their merging, and what they come to; pure, over Arrow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from ematix_flow.state.kernel import ROWS, TIME
from ematix_flow.windows.aggregates.declared import results_of
from ematix_flow.windows.aggregates.errors import WindowFailed
from ematix_flow.windows.aggregates.pieces import Piece, Result, Rows
from ematix_flow.windows.grouping import Request, grouped, in_one_piece

if TYPE_CHECKING:
    import pyarrow as pa

    from ematix_flow.specs.window import Aggregation
    from ematix_flow.udf import AggregateUdf

__all__ = ["Aggregates", "WindowFailed", "aggregates_for"]


def aggregates_for(
    wanted: Sequence[Aggregation], schema: pa.Schema, udafs: Sequence[AggregateUdf], event_time: str
) -> Aggregates:
    """Of rows with the columns of a schema; a `DeclarationError` tells all that is wrong at once."""
    return Aggregates(tuple(results_of(wanted, schema, udafs, event_time)))


@dataclass(frozen=True)
class Aggregates:
    """All aggregates of a window. It is sent to Spark's workers, so it pickles."""

    results: tuple[Result, ...]

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        return tuple(dict.fromkeys([Rows(), *(piece for result in self.results for piece in result.pieces)]))

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """The columns of rows that are read, besides their time."""
        return tuple(dict.fromkeys(name for piece in self.pieces for name in piece.inputs if name != TIME))

    @cached_property
    def output(self) -> tuple[pa.Field, ...]:
        """What `finish` gives, in the order of declaration."""
        return tuple(result.field for result in self.results)

    @cached_property
    def partials(self) -> tuple[pa.Field, ...]:
        """The columns of a partial result, besides the keys and `ROWS`."""
        import pyarrow as pa

        return tuple(
            pa.field(f"_flow_{number}_{place}", type)
            for number, piece in enumerate(self.pieces[1:])
            for place, type in enumerate(piece.types)
        )

    def start(self, rows: pa.Table, by: Sequence[str]) -> pa.Table:
        """A partial result of rows: a row per group, in the order of their first rows."""
        return self._table(rows, by, [piece.start(rows) for piece in self.pieces])

    def merge(self, parts: pa.Table, by: Sequence[str]) -> pa.Table:
        """Partial results in one table, the earlier ones first, to one with each group once."""
        columns = self._columns(parts)
        return self._table(parts, by, [piece.merge(columns[piece]) for piece in self.pieces])

    def finish(self, parts: pa.Table) -> list[pa.Array]:
        """The output columns, a value per row of a partial result."""
        columns = {piece: [in_one_piece(part) for part in given] for piece, given in self._columns(parts).items()}
        return [
            result.finish(*(part for piece in result.pieces for part in columns[piece])).cast(result.field.type)
            for result in self.results
        ]

    def describe(self) -> str:
        """All that partial results depend on, in a user's words."""
        return ", ".join(result.words for result in self.results)

    def _columns(self, parts: pa.Table) -> dict[Piece, list[pa.ChunkedArray]]:
        names = iter([ROWS, *(field.name for field in self.partials)])
        return {piece: [parts[next(names)] for _ in piece.types] for piece in self.pieces}

    def _table(self, given: pa.Table, by: Sequence[str], requests: Sequence[Request]) -> pa.Table:
        import pyarrow as pa

        groups = grouped(given, by, requests)
        fields = [*(given.schema.field(name) for name in by), pa.field(ROWS, pa.int64()), *self.partials]
        columns = [*groups.keys, *(column for answer in groups.answers for column in answer)]
        return pa.Table.from_arrays(columns, schema=pa.schema(fields))
