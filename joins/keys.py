"""The keys of both sides of a join as numbers: equal numbers for equal keys, of any plain type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from ematix_flow.joins.arrivals import Bools, Ints

_MANY = 2**31
"""Numbers stay below this, so that two of them make one that is still in 64 bits."""


def key_numbers(
    left: Sequence[pa.ChunkedArray], right: Sequence[pa.ChunkedArray], which: tuple[Bools, Bools]
) -> tuple[Ints, Ints]:
    """From 0, of those rows of either side that are asked for; none of these may have a NULL in its key.

    The parts of the keys come in the same order on both sides, and with the same types.
    """
    is_in = np.concatenate(which)
    numbers = np.zeros(0, np.int64)
    for place, (here, there) in enumerate(zip(left, right, strict=True)):
        codes = _small(_codes(pa.chunked_array([*here.chunks, *there.chunks]))[is_in])
        numbers = _small(numbers * (int(codes.max(initial=0)) + 1) + codes) if place else codes
    of_left, of_right = np.split(numbers, [np.count_nonzero(which[0])])
    return of_left, of_right


def _codes(values: pa.ChunkedArray) -> Ints:
    """Any numbers, equal for equal values; anything for NULL."""
    kind = values.type
    if pa.types.is_floating(kind):
        return np.concatenate([_float_bits(chunk) for chunk in values.chunks])
    if pa.types.is_boolean(kind):
        values = values.cast(pa.int8())
    elif not (pa.types.is_integer(kind) or (pa.types.is_temporal(kind) and not pa.types.is_interval(kind))):
        # All chunks have one dictionary.
        encoded = values.dictionary_encode("encode")
        values = pa.chunked_array([chunk.indices for chunk in encoded.chunks])
    return np.concatenate([_integers(chunk) for chunk in values.chunks])


def _integers(values: pa.Array) -> Ints:
    width = values.type.bit_width // 8
    stored = np.frombuffer(values.buffers()[1], f"i{width}", len(values), values.offset * width)
    return stored.astype(np.int64, copy=False)


def _float_bits(values: pa.Array) -> Ints:
    """-0.0 is 0.0, and one NaN is like another."""
    numbers = values.cast(pa.float64()).to_numpy(zero_copy_only=False) + 0.0
    return np.where(np.isnan(numbers), np.nan, numbers).view(np.int64)


def _small(codes: Ints) -> Ints:
    """From 0 and below `_MANY`: as they lie, if they lie close enough, otherwise in the order of their first rows."""
    if not len(codes):
        return codes
    least, most = int(codes.min()), int(codes.max())
    if most - least < _MANY:
        return codes - least
    dense: Ints = pa.array(codes).dictionary_encode().indices.to_numpy().astype(np.int64)
    return dense
