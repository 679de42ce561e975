"""The keys of sessions: numbers to merge by, and the ids of emitted sessions. A key is a value of each of some columns,
of any type or NULL, or of none at all."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray


def key_numbers(keys: Sequence[pa.Array], size: int) -> NDArray[np.int64]:
    """Equal numbers, from 0, for equal keys; NULL equals NULL."""
    numbers = np.zeros(size, np.int64)
    for key in keys:
        codes = _codes(key)
        numbers = _codes(pa.array(numbers * (int(codes.max(initial=0)) + 1) + codes)) if numbers.any() else codes
    return numbers


def session_ids(keys: Sequence[pa.Array], start: NDArray[np.int64]) -> pa.Array:
    """The same for the same key and start, in every run and on every machine."""
    parts = [*(_sized(key) for key in keys), _sized(pa.array(start))]
    texts = pc.binary_join_element_wise(*parts, b"")
    return pa.array([blake2b(text, digest_size=16).hexdigest() for text in texts.to_pylist()], pa.string())


def _codes(values: pa.Array) -> NDArray[np.int64]:
    codes: NDArray[np.int64] = values.dictionary_encode("encode").indices.to_numpy().astype(np.int64)
    return codes


def _sized(values: pa.Array) -> pa.Array:
    """Each value after its length, so that no two keys read alike when their values are joined; NULL has none."""
    found = _bytes(values)
    size = pc.binary_length(found).cast(pa.string()).cast(pa.binary())
    return pc.fill_null(pc.binary_join_element_wise(size, found, b":"), b"-")


def _bytes(values: pa.Array) -> pa.Array:
    kind = values.type
    if pa.types.is_decimal(kind):
        return values.view(pa.binary(kind.byte_width)).cast(pa.binary())
    if pa.types.is_floating(kind) or pa.types.is_temporal(kind):
        # How such values are written may change with a library; their bits do not.
        values = values.view(pa.int32() if kind.bit_width == 32 else pa.int64())
    is_number = pa.types.is_integer(values.type) or pa.types.is_boolean(values.type)
    return (values.cast(pa.string()) if is_number else values).cast(pa.binary())
