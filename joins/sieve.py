"""Leaves out rows that have no partner, before rows are sorted: most of them, at a fraction of what sorting costs.

Time is cut into lengths as long as the partners of a row can lie apart, so they lie in one of two lengths that follow
each other. A table of marks, found by a hash of key and length, tells whether anything is there, or might be.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ematix_flow.joins.arrivals import Bools, Ints

Slots = NDArray[np.uint64]

_MARKS_PER_ROW = 8
# Odd, with bits all over: neighbours end far apart.
_SPREAD_KEY, _SPREAD_LENGTH = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)


def sieved(left: tuple[Ints, Ints], right: tuple[Ints, Ints], least: int, most: int) -> tuple[Bools, Bools]:
    """Which rows of either side, given as keys and times, may have a partner: all that have one, and a few others.

    There must be rows on both sides.
    """
    (key_left, time_left), (key_right, time_right) = left, right
    begin, length = int(time_right.min()), most - least + 1
    bits = ((len(key_left) + len(key_right)) * _MARKS_PER_ROW).bit_length()
    there = _slots(key_right, (time_right - begin) // length, bits)
    here = (time_left + (least - begin)) // length
    first, second = _slots(key_left, here, bits), _slots(key_left, here + 1, bits)
    marks = np.zeros(2**bits, np.bool_)
    marks[there] = True
    is_left = marks[first] | marks[second]
    marks[there] = False
    marks[first[is_left]] = marks[second[is_left]] = True
    return is_left, marks[there]


def _slots(key: Ints, length: Ints, bits: int) -> Slots:
    mixed: Slots = key.view(np.uint64) * _SPREAD_KEY + length.view(np.uint64) * _SPREAD_LENGTH
    mixed ^= mixed >> np.uint64(32)
    mixed *= _SPREAD_KEY
    return mixed >> np.uint64(64 - bits)
