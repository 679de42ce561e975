"""Makes the rows that a join emits of the places of the rows that they are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ematix_flow.joins.arrivals import Bools, Ints
from ematix_flow.joins.side_rows import SideRows
from ematix_flow.state.kernel import GONE, REVISION, TIME

# Also the place of what is put behind all rows.
_NOWHERE = -1
_BEFORE = np.iinfo(np.int64).min


@dataclass(frozen=True)
class Part:
    """Rows that are emitted one after the other."""

    left: Ints
    """Places among the rows of the side, or `_NOWHERE`."""
    right: Ints
    is_again: Bools
    """Their revision is 1 instead of 0."""
    is_gone: bool = False
    """They are withdrawn."""

    @classmethod
    def alone(cls, left: Ints, right: Ints, *, is_gone: bool = False) -> Part:
        """Rows of the left side without a right one, then rows of the right side."""
        return cls(
            left=np.concatenate([left, np.full(len(right), _NOWHERE)]),
            right=np.concatenate([np.full(len(left), _NOWHERE), right]),
            is_again=np.zeros(len(left) + len(right), np.bool_),
            is_gone=is_gone,
        )


def emitted(parts: Sequence[Part], left: SideRows, right: SideRows, schema: pa.Schema) -> pa.Table:
    """With the event time, which is that of the later row, a revision and a mark of what is withdrawn: those of these
    columns that the schema has."""
    parts = [part for part in parts if len(part.left)]
    if not parts:
        return schema.empty_table()
    places = [np.concatenate([part.left for part in parts]), np.concatenate([part.right for part in parts])]
    columns = dict(zip(schema.names, [*_taken(left, places[0]), *_taken(right, places[1])], strict=False))
    times = np.maximum(_times(left, places[0]), _times(right, places[1]))
    columns[TIME] = pa.array(times).cast(schema.field(TIME).type)
    columns[GONE] = is_gone = np.repeat([part.is_gone for part in parts], [len(part.left) for part in parts])
    revision = np.concatenate([part.is_again for part in parts]).astype(np.int64)
    columns[REVISION] = pa.array(revision, mask=is_gone)
    return pa.table([columns[name] for name in schema.names], schema=schema)


def _taken(side: SideRows, places: Ints) -> list[pa.Array]:
    is_nowhere = places == _NOWHERE
    if is_nowhere.all():
        return [pa.nulls(len(places), column.type) for column in side.side.columns]
    taken: list[pa.Array] = side.rows.take(pa.array(places, mask=is_nowhere)).columns
    return taken


def _times(side: SideRows, places: Ints) -> Ints:
    """Nowhere is before all times."""
    return np.append(side.time, _BEFORE)[places]
