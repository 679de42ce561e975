"""Takes rows into sessions: which session each belongs to, and what the sessions come to with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ematix_flow.state.kernel import ROWS, TIME
from ematix_flow.windows.aggregates import Aggregates
from ematix_flow.windows.grouping import in_one_piece
from ematix_flow.windows.session_keys import key_numbers
from ematix_flow.windows.session_spans import TOO_LATE, Assigned, Bools, Ints, Spans, assigned
from ematix_flow.windows.session_state import LAST, START, Shown, ints, is_unseen
from ematix_flow.windows.session_turns import Limits

_NUMBER = "_flow_session"


@dataclass(frozen=True)
class Taken:
    others: pa.Table
    """The held sessions that nothing happened to."""
    changed: pa.Table
    """The sessions that rows came to, and those that were cut; old and new ones."""
    is_unseen: Bools
    """Those of the changed sessions that targets do not show as they are."""
    is_cut: Bools
    """Those of the changed sessions that leave for good."""
    is_late: Bools
    """The rows that were not taken in."""
    behind: int
    """How many rows were taken in after their session had ended."""


def taken(held: pa.Table, rows: pa.Table, keys: Sequence[pa.Field], aggregates: Aggregates, limits: Limits) -> Taken:
    values = [
        pa.concat_arrays([in_one_piece(held[key.name]), in_one_piece(rows[key.name]).cast(key.type)]) for key in keys
    ]
    found = _assigned(held, rows, values, limits)
    of_held, of_row = np.split(found.number, [held.num_rows])
    is_late = of_row == TOO_LATE
    has_rows = np.zeros(len(found.start), np.bool_)
    has_rows[of_row[~is_late]] = True
    is_changed = (has_rows | found.is_cut)[of_held]
    joined, of_joined = held.filter(is_changed), of_held[is_changed]
    parts = _merged(aggregates, joined, of_joined, rows.filter(~is_late), of_row[~is_late])
    number = ints(parts, _NUMBER)
    member, place = _places(found.number, len(found.start)), _places(number, len(found.start))
    columns = [
        pa.array(found.start[number]),
        pa.array(found.last[number]),
        *(value.take(pa.array(member[number])) for value in values),
        *parts.drop_columns([_NUMBER]).columns,
        Shown.of(joined).moved(place[of_joined]).column(len(number)),
    ]
    changed = pa.table(columns, schema=held.schema)
    return Taken(
        others=held.filter(~is_changed),
        changed=changed,
        is_unseen=has_rows[number] | is_unseen(changed, limits.gap),
        is_cut=found.is_cut[number],
        is_late=is_late,
        behind=int(found.is_behind.sum()),
    )


def _assigned(held: pa.Table, rows: pa.Table, keys: Sequence[pa.Array], limits: Limits) -> Assigned:
    times = ints(rows, TIME)
    start, last = np.append(ints(held, START), times), np.append(ints(held, LAST), times)
    return assigned(Spans(key_numbers(keys, len(start)), start, last, held.num_rows), limits)


def _merged(aggregates: Aggregates, held: pa.Table, of_held: Ints, rows: pa.Table, of_row: Ints) -> pa.Table:
    """The partial results of each session, in the order of their numbers."""
    names = [ROWS, *(part.name for part in aggregates.partials)]
    parts = held.select(names).add_column(0, _NUMBER, pa.array(of_held))
    rows = rows.select([*aggregates.inputs, TIME]).append_column(_NUMBER, pa.array(of_row))
    started = aggregates.start(rows, [_NUMBER])
    return aggregates.merge(pa.concat_tables([parts, started]), [_NUMBER]).sort_by(_NUMBER)


def _places(number: Ints, size: int) -> Ints:
    """Where each number occurs, at least once."""
    places = np.zeros(size, np.int64)
    occurs = number != TOO_LATE
    places[number[occurs]] = np.flatnonzero(occurs)
    return places
