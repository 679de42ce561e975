"""One type for columns of two sources that are to be compared or to stand under each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

_MOST_DIGITS = 38


def common_type(one: DataType, other: DataType) -> DataType | None:
    """The type that holds the values of both as they are; None if there is none."""
    from pyspark.sql import types as T

    if one == other:
        return one
    wholes: list[type[DataType]] = [T.ByteType, T.ShortType, T.IntegerType, T.LongType]
    digits = [3, 5, 10, 19]
    kinds = type(one), type(other)
    if all(kind in wholes for kind in kinds):
        return max((one, other), key=lambda kind: wholes.index(type(kind)))
    if set(kinds) <= {T.FloatType, T.DoubleType}:
        return T.DoubleType()
    if set(kinds) <= {*wholes, T.DecimalType}:
        sized = [
            kind if isinstance(kind, T.DecimalType) else T.DecimalType(digits[wholes.index(type(kind))], 0)
            for kind in (one, other)
        ]
        scale = max(kind.scale for kind in sized)
        precision = scale + max(kind.precision - kind.scale for kind in sized)
        return T.DecimalType(precision, scale) if precision <= _MOST_DIGITS else None
    if set(kinds) <= {*wholes[:3], T.FloatType, T.DoubleType}:
        return T.DoubleType()
    if all(isinstance(kind, T.StringType) for kind in (one, other)):
        return T.StringType()
    return None
