"""One type for columns of two sources that are to be compared or to stand under each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

_MOST_DIGITS = 38


def common_type(one: DataType, other: DataType) -> DataType | None:
    """The type that holds the values of both as they are; None if there is none."""
    from pyspark.sql.types import ArrayType, MapType, NullType, StructType

    match one, other:
        case (NullType(), known) | (known, NullType()):
            return known
        case ArrayType(), ArrayType():
            element = common_type(one.elementType, other.elementType)
            return element and ArrayType(element, one.containsNull or other.containsNull)
        case MapType(), MapType():
            key, value = common_type(one.keyType, other.keyType), common_type(one.valueType, other.valueType)
            return key and value and MapType(key, value, one.valueContainsNull or other.valueContainsNull)
        case StructType(), StructType():
            return _common_struct(one, other)
        case _:
            return one if one == other else _common_plain(one, other)


def _common_struct(one: StructType, other: StructType) -> StructType | None:
    """Fields belong together by their places, as in a cast, which must not give a value another name."""
    from pyspark.sql.types import StructField, StructType

    if one.names != other.names:
        return None
    fields = []
    for field, same in zip(one.fields, other.fields, strict=True):
        kind = common_type(field.dataType, same.dataType)
        if kind is None:
            return None
        fields.append(StructField(field.name, kind, field.nullable or same.nullable, field.metadata))
    return StructType(fields)


def _common_plain(one: DataType, other: DataType) -> DataType | None:
    from pyspark.sql import types as T

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
