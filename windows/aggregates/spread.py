"""Variance and standard deviation of a sample: count, mean and sum of squared distances, which merge without loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ematix_flow.windows.grouping import Columns, Folded, Hashed, Request

if TYPE_CHECKING:
    import pyarrow as pa

    from ematix_flow.windows.aggregates.ordering import Integers


@dataclass(frozen=True)
class Spread:
    """How far numbers are from their mean."""

    column: str

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.column,)

    @property
    def types(self) -> tuple[pa.DataType, ...]:
        import pyarrow as pa

        return (pa.int64(), pa.float64(), pa.float64())

    def start(self, rows: pa.Table) -> Request:
        import pyarrow as pa

        values = rows[self.column].cast(pa.float64(), safe=False)
        return Hashed([(values, function) for function in ("count", "mean", "variance", "min", "max")], _distances)

    def merge(self, parts: Columns) -> Request:
        return Folded(parts, _merged)


def _distances(counts: pa.Array, means: pa.Array, variances: pa.Array, least: pa.Array, most: pa.Array) -> Columns:
    """Equal values have no distance, though their sum, divided by how many there are, may be another number."""
    import pyarrow.compute as pc

    # Neither the least nor the greatest is NaN if there is a number, but then the variance is.
    equal = pc.and_(pc.equal(least, most), pc.is_finite(variances)).fill_null(False)
    distances = pc.if_else(equal, 0.0, pc.multiply(variances, counts))
    return [counts, pc.if_else(equal, least, means).fill_null(0.0), distances.fill_null(0.0)]


def _merged(ids: Integers, groups: int, *parts: Any) -> Columns:
    """Chan's formula, for any number of parts."""
    import numpy as np
    import pyarrow as pa

    counts, means, distances = (part.to_numpy() for part in parts)
    total, near = np.zeros(groups, dtype=np.int64), np.zeros(groups)
    np.add.at(total, ids, counts)
    # Counted from a mean of the group, so that equal values have no distance at all, however large they are.
    near[ids[counts > 0]] = means[counts > 0]
    with np.errstate(all="ignore"):  # infinities have no mean
        share = np.where(counts, counts / np.maximum(total, 1)[ids], 0.0)
        mean = near + np.bincount(ids, np.where(counts, (means - near[ids]) * share, 0.0), groups)
        apart = np.where(counts, counts * (means - mean[ids]) ** 2, 0.0)
        distance = np.bincount(ids, distances + apart, groups)
    return [pa.array(column) for column in (total, mean, distance)]


def variance(counts: pa.Array, means: pa.Array, distances: pa.Array) -> pa.Array:
    """Of a sample, so there is none of a single value."""
    import pyarrow as pa
    import pyarrow.compute as pc

    others = pc.if_else(pc.greater(counts, 1), pc.subtract(counts, 1), pa.scalar(None, pa.int64()))
    return pc.divide(distances, others.cast(pa.float64()))


def deviation(counts: pa.Array, means: pa.Array, distances: pa.Array) -> pa.Array:
    import pyarrow.compute as pc

    return pc.sqrt(variance(counts, means, distances))
