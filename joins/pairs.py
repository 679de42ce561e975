"""Finds the rows of two sides that belong together: equal keys, times that lie near enough, and one of the two is new.

Right rows are sorted by key and time, and each left row looks up where those near it begin and end. So a key that many
rows have costs no more than many keys do, except for the pairs that it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ematix_flow.joins.arrivals import Bools, Ints
from ematix_flow.joins.keys import key_numbers
from ematix_flow.joins.side_rows import SideRows
from ematix_flow.joins.sieve import sieved

Pairs = tuple[Ints, Ints]
"""The places of left rows, and of the right rows that they belong to."""

_NONE = (np.zeros(0, np.int64), np.zeros(0, np.int64))
_LAST = np.iinfo(np.int64).max
_WORTH_SIEVING = 2_000
"""Fewer rows are sorted in no time."""


def matching_pairs(left: SideRows, right: SideRows, types: Sequence[pa.DataType], least: int, most: int) -> Pairs:
    """By the place of the left row, then of the right one; each pair in the step in which the second of them came."""
    # Where nothing comes to the other side, what is held has no new pairs.
    from_left, from_right = 0 if right.came else left.held, 0 if left.came else right.held
    if from_left == len(left.time) or from_right == len(right.time):
        return _NONE
    lefts, rights = _sieved(*_candidates((left, from_left), (right, from_right), types), least, most)
    if not len(lefts.place) or not len(rights.place):
        return _NONE
    points, ranges = _sorted(lefts, rights, least, most)
    is_new = ranges.place >= left.held
    found = [
        _inside(points, ranges.where(is_new)),
        _inside(points.where(points.place >= right.held), ranges.where(~is_new)),
    ]
    of_left, of_right = (np.concatenate(places) for places in zip(*found, strict=True))
    # How equal times are sorted differs between processors; the order of places does not.
    first, second = np.divmod(np.sort(of_left * len(right.time) + of_right), len(right.time))
    return first, second


@dataclass(frozen=True)
class _Rows:
    """Those of a side that can have partners."""

    place: Ints
    key: Ints
    """Numbers from 0."""
    time: Ints

    def where(self, which: Bools) -> _Rows:
        return _Rows(self.place[which], self.key[which], self.time[which])


@dataclass(frozen=True)
class _Points:
    """Right rows, by key and time."""

    place: Ints
    code: Ints

    def where(self, which: Bools) -> _Points:
        return _Points(self.place[which], self.code[which])


@dataclass(frozen=True)
class _Ranges:
    """Which points left rows look for, by key and time: to look them up in this order is several times faster."""

    place: Ints
    first: Ints
    last: Ints

    def where(self, which: Bools | Ints) -> _Ranges:
        return _Ranges(self.place[which], self.first[which], self.last[which])


def _candidates(
    left: tuple[SideRows, int], right: tuple[SideRows, int], types: Sequence[pa.DataType]
) -> tuple[_Rows, _Rows]:
    """Of either side the rows from a place on that are not forgotten and have no NULL in their key."""
    keys_left, is_left = _keys(*left, types)
    keys_right, is_right = _keys(*right, types)
    if not is_left.any() or not is_right.any():
        return _Rows(*_NONE, _NONE[0]), _Rows(*_NONE, _NONE[0])
    numbers = key_numbers(keys_left, keys_right, (is_left, is_right))
    lefts, rights = (
        _Rows(place := np.flatnonzero(which) + begin, number, side.time[place])
        for (side, begin), which, number in zip((left, right), (is_left, is_right), numbers, strict=True)
    )
    return lefts, rights


def _keys(side: SideRows, begin: int, types: Sequence[pa.DataType]) -> tuple[list[pa.ChunkedArray], Bools]:
    """The parts of the keys from a row on, and which of these rows can have partners."""
    is_in, keys = side.is_kept[begin:], []
    for name, wanted in zip(side.side.keys, types, strict=True):
        key = side.rows[name].slice(begin)
        if key.null_count:
            is_in = is_in & pc.is_valid(key).to_numpy()
        # Among floats, large integers are as inexact as floats are.
        keys.append(key if key.type == wanted else key.cast(wanted, safe=not pa.types.is_floating(wanted)))
    return keys, is_in


def _sieved(left: _Rows, right: _Rows, least: int, most: int) -> tuple[_Rows, _Rows]:
    if len(left.place) + len(right.place) < _WORTH_SIEVING:
        return left, right
    may_left, may_right = sieved((left.key, left.time), (right.key, right.time), least, most)
    return left.where(may_left), right.where(may_right)


def _sorted(left: _Rows, right: _Rows, least: int, most: int) -> tuple[_Points, _Ranges]:
    """A code is key and time in one number."""
    keys = max(int(left.key.max()), int(right.key.max())) + 1
    time, first, last, span = _ranges(right.time, left.time, least, most, _LAST // keys)
    code, begin = right.key * span + time, left.key * span
    ranges, order = _Ranges(left.place, begin + first, begin + last), np.argsort(code)
    return _Points(right.place[order], code[order]), ranges.where(np.argsort(ranges.first))


def _ranges(points: Ints, times: Ints, least: int, most: int, longest: int) -> tuple[Ints, Ints, Ints, int]:
    """The points as numbers from 0, the first and the last number near each of the times, and how many numbers to
    reserve for a key: one more than there are, because a range before all points ends with -1."""
    begin, end = int(points.min()), int(points.max())
    if (span := end - begin + 2) < longest:
        first, last = times + (least - begin), times + (most - begin)
        return points - begin, np.clip(first, 0, span - 1), np.clip(last, -1, span - 2), span
    moments, numbers = np.unique(points, return_inverse=True)
    first, last = np.searchsorted(moments, times + least), np.searchsorted(moments, times + most, "right") - 1
    return numbers, first, last, len(moments) + 1


def _inside(points: _Points, ranges: _Ranges) -> Pairs:
    if not len(points.place) or not len(ranges.place):
        return _NONE
    start = np.searchsorted(points.code, ranges.first)
    hits = np.flatnonzero(np.append(points.code, _LAST)[start] <= ranges.last)
    start = start[hits]
    counts = np.searchsorted(points.code, ranges.last[hits], "right") - start
    sums = np.cumsum(counts)
    found = np.arange(counts.sum()) + np.repeat(start - sums + counts, counts)
    return np.repeat(ranges.place[hits], counts), points.place[found]
