"""Which bucket a key belongs to. States lie there, so it is the same on every machine and in every release."""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ematix_flow.windows.grouping import in_one_piece

_NULL = np.uint64(0x9E3779B97F4A7C15)
_ODD = np.uint64(0xBF58476D1CE4E5B9)


def buckets_of(keys: Sequence[pa.Array | pa.ChunkedArray], size: int, buckets: int) -> NDArray[np.int32]:
    """Of each of so many keys, which are a value of each of some columns, or of none at all."""
    mixed = np.zeros(size, np.uint64)
    for key in keys:
        mixed = _stirred(mixed + _numbers(in_one_piece(key)))
    return (mixed % np.uint64(buckets)).astype(np.int32)


def _numbers(values: pa.Array) -> NDArray[np.uint64]:
    """Equal for equal values; NULL is one of them."""
    kind = values.type
    if pa.types.is_null(kind):
        return np.full(len(values), _NULL)
    if pa.types.is_boolean(kind):
        values = values.cast(pa.int8())
    elif pa.types.is_decimal(kind):
        values = values.view(pa.binary(kind.byte_width))
    if pa.types.is_primitive(values.type):
        width = values.type.bit_width // 8
        numbers = np.frombuffer(values.buffers()[1], f"u{width}", len(values), values.offset * width).astype(np.uint64)
    else:
        texts = values.cast(pa.binary()).to_pylist()
        numbers = np.fromiter((crc32(text or b"") for text in texts), np.uint64, len(texts))
    return np.where(pc.is_null(values).to_numpy(zero_copy_only=False), _NULL, numbers) if values.null_count else numbers


def _stirred(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """So that keys which follow each other, or differ in few bits, are spread evenly."""
    for shift in (32, 29):
        numbers = (numbers ^ (numbers >> np.uint64(shift))) * _ODD
    return numbers ^ (numbers >> np.uint64(32))
