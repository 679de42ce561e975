"""Approximate aggregates with bounded state, by Apache DataSketches: the number of distinct values, and percentiles."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ematix_flow.windows.aggregates.collected import first_of_each
from ematix_flow.windows.aggregates.ordering import is_whole, whole
from ematix_flow.windows.grouping import Columns, Folded, Request

if TYPE_CHECKING:
    import pyarrow as pa

    from ematix_flow.windows.aggregates.ordering import Integers

_LG_K = 12
"""A standard error of 1.6 %, in at most 2.5 KB."""
_KLL_K = 200
"""A rank is off by less than 1.7 %, in about 3 KB; up to some 200 values nothing is."""


@dataclass(frozen=True)
class DistinctSketch:
    """HyperLogLog. Up to some hundred values the number is right in practice."""

    column: str

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.column,)

    @property
    def types(self) -> tuple[pa.DataType, ...]:
        return _binary()

    def start(self, rows: pa.Table) -> Request:
        return Folded([rows[self.column]], _counted)

    def merge(self, parts: Columns) -> Request:
        return Folded(parts, lambda ids, groups, blobs: _joined(ids, groups, blobs, _union))


@dataclass(frozen=True)
class QuantileSketch:
    """KLL over doubles; NaN is no number and is left out."""

    column: str

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.column,)

    @property
    def types(self) -> tuple[pa.DataType, ...]:
        return _binary()

    def start(self, rows: pa.Table) -> Request:
        return Folded([rows[self.column]], _ranked)

    def merge(self, parts: Columns) -> Request:
        return Folded(parts, lambda ids, groups, blobs: _joined(ids, groups, blobs, _ranked_together))


def distinct_count(blobs: pa.Array) -> pa.Array:
    import datasketches
    import pyarrow as pa

    read = datasketches.hll_sketch.deserialize
    return pa.array([0 if blob is None else round(read(blob).get_estimate()) for blob in blobs.to_pylist()], pa.int64())


def percentile(rank: float, blobs: pa.Array) -> pa.Array:
    """A value that occurred: the least one with at least this share of the values up to it."""
    import datasketches
    import pyarrow as pa

    read = datasketches.kll_doubles_sketch.deserialize
    return pa.array(
        [None if blob is None else read(blob).get_quantile(rank, True) for blob in blobs.to_pylist()], pa.float64()
    )


def _counted(ids: Integers, groups: int, values: Any) -> Columns:
    import datasketches
    import numpy as np
    import pyarrow as pa

    rows = np.flatnonzero(values.is_valid())
    rows = rows[first_of_each(ids[rows], values.take(rows))]
    rows = rows[np.argsort(ids[rows], kind="stable")]
    fed = _fed(values.take(rows))
    blobs: list[bytes | None] = [None] * groups
    for group, begin, end in runs(ids[rows]):
        sketch = datasketches.hll_sketch(_LG_K, datasketches.tgt_hll_type.HLL_4)
        for value in fed[begin:end]:
            sketch.update(value)
        blobs[group] = sketch.serialize_compact()
    return [pa.array(blobs, pa.binary())]


def _fed(values: pa.Array) -> list[int] | list[float] | list[str]:
    """The same for equal values in every run; a sketch passes over an empty text, so none is given."""
    import pyarrow as pa

    kind = values.type
    if pa.types.is_boolean(kind) or is_whole(kind):
        numbers: list[int] = (values.cast(pa.int8()) if pa.types.is_boolean(kind) else whole(values)).to_pylist()
        return numbers
    if pa.types.is_floating(kind):
        floats: list[float] = values.to_pylist()
        return floats
    if pa.types.is_decimal(kind):
        return values.cast(pa.string()).to_pylist()  # type: ignore[no-any-return]
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return ["=" + value.decode("latin-1") for value in values.to_pylist()]
    return ["=" + value for value in values.to_pylist()]


def _ranked(ids: Integers, groups: int, values: Any) -> Columns:
    import datasketches
    import numpy as np
    import pyarrow as pa

    numbers = values.cast(pa.float64(), safe=False).fill_null(float("nan")).to_numpy()
    rows = np.flatnonzero(~np.isnan(numbers))
    rows = rows[np.argsort(ids[rows], kind="stable")]
    blobs: list[bytes | None] = [None] * groups
    numbers = numbers[rows]
    for group, begin, end in runs(ids[rows]):
        sketch = datasketches.kll_doubles_sketch(_KLL_K)
        sketch.update(numbers[begin:end])
        blobs[group] = sketch.serialize()
    return [pa.array(blobs, pa.binary())]


def runs(ids: Integers) -> Iterator[tuple[int, int, int]]:
    """Of sorted group numbers: each, and where it begins and ends."""
    import numpy as np

    begins = np.flatnonzero(np.diff(ids, prepend=-1))
    ends = np.append(begins, len(ids))[1:]
    yield from zip(ids[begins].tolist(), begins.tolist(), ends.tolist(), strict=True)


def _joined(ids: Integers, groups: int, given: Any, join: Callable[[list[bytes]], bytes]) -> Columns:
    import pyarrow as pa

    held: list[list[bytes]] = [[] for _ in range(groups)]
    for group, blob in zip(ids.tolist(), given.to_pylist(), strict=True):
        if blob is not None:
            held[group].append(blob)
    joined = [None if not blobs else blobs[0] if len(blobs) == 1 else join(blobs) for blobs in held]
    return [pa.array(joined, pa.binary())]


def _union(blobs: list[bytes]) -> bytes:
    import datasketches

    union = datasketches.hll_union(_LG_K)
    for blob in blobs:
        union.update(datasketches.hll_sketch.deserialize(blob))
    result: bytes = union.get_result(datasketches.tgt_hll_type.HLL_4).serialize_compact()
    return result


def _ranked_together(blobs: list[bytes]) -> bytes:
    import datasketches

    first, *others = (datasketches.kll_doubles_sketch.deserialize(blob) for blob in blobs)
    for other in others:
        first.merge(other)
    result: bytes = first.serialize()
    return result


def _binary() -> tuple[pa.DataType, ...]:
    import pyarrow as pa

    return (pa.binary(),)
