"""Which session each row belongs to: spans of one key that lie within a gap of each other become one.

Held sessions of a key always lie further apart than the gap. Hence a row whose own span has ended, which is before the
last row of everything that is held, lies within the gap of a held session if it is not too far before the first one;
and what came of earlier rows of its batch changes nothing in that. So no order is needed to tell which rows are late,
nor to merge. Only the cap on the length of a session depends on the order of rows, and keys that reach it are few.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from ematix_flow.windows.session_turns import Limits, Session, Turn

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

TOO_LATE = -1
_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Spans:
    """Held sessions, then rows in the order of their arrival; a row spans one moment."""

    key: Ints
    """Numbers from 0."""
    start: Ints
    last: Ints
    held: int
    """How many of them are held sessions."""


@dataclass(frozen=True)
class Assigned:
    """Sessions, numbered by key and time, the ones that were cut in the order in which that happened."""

    number: Ints
    """Of the session of each span, or `TOO_LATE`."""
    start: Ints
    last: Ints
    is_cut: Bools
    """The sessions that left for good when a row would have made them too long."""
    is_behind: Bools
    """The rows whose session had ended when they were taken in."""


def assigned(spans: Spans, limits: Limits) -> Assigned:
    is_late, is_behind = _lateness(spans, limits)
    on_time = np.flatnonzero(np.append(np.ones(spans.held, np.bool_), ~is_late))
    merged = replace(_merged(spans, on_time, limits.gap), is_behind=is_behind)
    if limits.longest is None:
        return merged
    grown = np.bincount(merged.number[on_time], minlength=len(merged.start)) > 1
    is_long = grown & (merged.last - merged.start > limits.longest)
    if not is_long.any():
        return merged
    long_keys = np.unique(spans.key[on_time][is_long[merged.number[on_time]]])
    return _cut(spans, on_time, np.isin(spans.key, long_keys), is_behind, limits)


def _lateness(spans: Spans, limits: Limits) -> tuple[Bools, Bools]:
    """Which rows are too late, and which are not but come after their session had ended."""
    key, time = spans.key[spans.held :], spans.start[spans.held :]
    ended = limits.watermark - limits.gap
    if not len(time) or time.min() >= ended:
        return np.zeros(len(time), np.bool_), np.zeros(len(time), np.bool_)
    is_open = spans.last[: spans.held] >= ended
    is_late = (time < ended - limits.allowed) & (time < _first(spans, slice(None))[key] - limits.gap)
    is_behind = (time < ended) & ~is_late & (time < _first(spans, is_open)[key] - limits.gap)
    return is_late, is_behind


def _first(spans: Spans, which: Bools | slice) -> Ints:
    """The earliest start among some held sessions of each key."""
    first = np.full(int(spans.key.max()) + 1, _NEVER)
    np.minimum.at(first, spans.key[: spans.held][which], spans.start[: spans.held][which])
    return first


def _merged(spans: Spans, places: Ints, gap: int) -> Assigned:
    """As if sessions could have any length."""
    order = places[np.lexsort((spans.start[places], spans.key[places]))]
    key, start, last = spans.key[order], spans.start[order], spans.last[order]
    # Of what came before in a key, the latest held session or the latest row reaches furthest.
    latest = np.maximum.accumulate(np.where(order < spans.held, np.arange(len(order)), 0))
    reach = np.where(key[latest] == key, np.maximum(last, last[latest]), last)
    begins = np.ones(len(order), np.bool_)
    begins[1:] = (key[1:] != key[:-1]) | (start[1:] > reach[:-1] + gap)
    ends = np.append(begins[1:], True)[: len(order)]
    number = np.full(len(spans.key), TOO_LATE)
    number[order] = np.cumsum(begins) - 1
    nothing = np.zeros(int(begins.sum()), np.bool_)
    return Assigned(number, start[begins], reach[ends], nothing, np.zeros(0, np.bool_))


def _cut(spans: Spans, on_time: Ints, is_long: Bools, is_behind: Bools, limits: Limits) -> Assigned:
    """Takes the rows of some keys in turn, and merges the rest."""
    merged = _merged(spans, on_time[~is_long[on_time]], limits.gap)
    sessions: list[Session] = []
    behind: list[int] = []
    for held, rows in _by_key(spans, np.flatnonzero(is_long)):
        turn = Turn(held, limits)
        for time, place in rows:
            turn.take(time, place)
        sessions += turn.sessions()
        behind += turn.behind
    places = [place for session in sessions for place in session.places]
    numbers = np.arange(len(sessions)) + len(merged.start)
    merged.number[places] = np.repeat(numbers, [len(session.places) for session in sessions])
    is_behind = is_behind & ~is_long[spans.held :]
    is_behind[np.array(behind, np.int64) - spans.held] = True
    return Assigned(
        merged.number,
        np.append(merged.start, [session.start for session in sessions]),
        np.append(merged.last, [session.last for session in sessions]),
        np.append(merged.is_cut, [session.is_cut for session in sessions]),
        is_behind,
    )


def _by_key(spans: Spans, places: Ints) -> Iterator[tuple[list[Session], list[tuple[int, int]]]]:
    """The held sessions of each key, and its rows as (time, place); both in the order of time, then of arrival."""
    order = places[np.lexsort((spans.start[places], spans.key[places]))]
    columns = (spans.key[order], spans.start[order], spans.last[order], order)
    for _, group in groupby(zip(*(column.tolist() for column in columns), strict=True), itemgetter(0)):
        held, rows = [], []
        for _, start, last, place in group:
            if place < spans.held:
                held.append(Session(start, last, [place]))
            else:
                rows.append((start, place))
        yield held, rows
