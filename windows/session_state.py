"""Held sessions as a table, a row per session: its span, its key, its partial results and what targets show of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ematix_flow.state.kernel import ROWS
from ematix_flow.windows.aggregates import Aggregates
from ematix_flow.windows.grouping import in_one_piece
from ematix_flow.windows.session_spans import Bools, Ints

START, LAST, SHOWN = "_flow_start", "_flow_last", "_flow_shown"

_ROW = pa.struct({"start": pa.int64(), "end": pa.int64(), "revision": pa.int64()})


def state_schema(keys: Sequence[pa.Field], aggregates: Aggregates) -> pa.Schema:
    span = [pa.field(START, pa.int64()), pa.field(LAST, pa.int64())]
    parts = [pa.field(ROWS, pa.int64()), *aggregates.partials]
    return pa.schema([*span, *(pa.field(key.name, key.type) for key in keys), *parts, pa.field(SHOWN, pa.list_(_ROW))])


@dataclass(frozen=True)
class Shown:
    """Rows as they were emitted last. A session has several, if it has merged others and was not emitted since."""

    session: Ints
    """The place of the session in its table."""
    start: Ints
    end: Ints
    revision: Ints

    @classmethod
    def of(cls, sessions: pa.Table) -> Shown:
        lists = in_one_piece(sessions[SHOWN])
        rows = lists.flatten()
        values = [rows.field(name).to_numpy() for name in ("start", "end", "revision")]
        return cls(pc.list_parent_indices(lists).to_numpy(), *values)

    def __getitem__(self, which: Bools) -> Shown:
        return Shown(self.session[which], self.start[which], self.end[which], self.revision[which])

    def __add__(self, other: Shown) -> Shown:
        pairs = [(self.session, other.session), (self.start, other.start), (self.end, other.end)]
        return Shown(*(np.concatenate(pair) for pair in [*pairs, (self.revision, other.revision)]))

    def moved(self, places: Ints) -> Shown:
        """To another table, given the place of each session there."""
        return replace(self, session=places[self.session])

    def revisions(self, sessions: int) -> Ints:
        """The highest one of each session, -1 where nothing is shown."""
        highest = np.full(sessions, -1)
        np.maximum.at(highest, self.session, self.revision)
        return highest

    def column(self, sessions: int) -> pa.ListArray:
        order = np.argsort(self.session, kind="stable")
        values = [pa.array(values[order]) for values in (self.start, self.end, self.revision)]
        offsets = np.append(0, np.cumsum(np.bincount(self.session, minlength=sessions)))
        return pa.ListArray.from_arrays(
            pa.array(offsets, pa.int32()), pa.StructArray.from_arrays(values, fields=list(_ROW))
        )


def is_unseen(sessions: pa.Table, gap: int) -> Bools:
    """Not shown as they are now. What is shown has ended, so its span tells: a change inside it is emitted at once."""
    shown = Shown.of(sessions)
    start, end = ints(sessions, START)[shown.session], ints(sessions, LAST)[shown.session] + gap
    unseen = np.ones(sessions.num_rows, np.bool_)
    unseen[shown.session[(shown.start == start) & (shown.end == end)]] = False
    return unseen


def ints(table: pa.Table, name: str) -> Ints:
    values: Ints = table[name].cast(pa.int64()).to_numpy()
    return values
