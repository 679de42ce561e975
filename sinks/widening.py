"""Which Spark type holds the values of another without loss, and which one holds the values of both."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, DecimalType, StructType

_DIGITS = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 19}
"""Decimal digits of the whole numbers, from narrow to wide."""
_EXACT_IN = {"float": ("tinyint", "smallint"), "double": ("tinyint", "smallint", "int", "float")}
_TIMES = ("timestamp", "timestamp_ntz")
_NESTED = ("array", "map", "struct")
_MOST_DIGITS = 38


def holds(held: DataType, given: DataType) -> bool:
    """Whether every value of `given` can be cast to `held` and is still itself. Times are UTC with and without zone."""
    from pyspark.sql.types import ArrayType, DecimalType, MapType, StructType

    to, source = name_of(held), name_of(given)
    match held, given:
        case ArrayType(), ArrayType():
            return holds(held.elementType, given.elementType)
        case MapType(), MapType():
            return holds(held.keyType, given.keyType) and holds(held.valueType, given.valueType)
        case StructType(), StructType():
            return _struct_holds(held, given)
        case DecimalType(), _ if source in {*_DIGITS, "decimal"}:
            whole, scale = _digits(given)
            return held.precision - held.scale >= whole and held.scale >= scale
    if source in {to, "void"}:
        return True
    if to in _DIGITS and source in _DIGITS:
        return _DIGITS[to] >= _DIGITS[source]
    if to in _TIMES:
        return source in {*_TIMES, "date"}
    if to == "string":
        return source not in {"binary", *_NESTED}
    return source in _EXACT_IN.get(to, ())


def widened(held: DataType, given: DataType) -> DataType | None:
    """The narrowest type for the values of both, or None if there is none short of text."""
    from pyspark.sql.types import DecimalType, DoubleType

    to, source = name_of(held), name_of(given)
    if holds(held, given):
        return held
    if source != "string" and holds(given, held):
        return given
    numbers = {*_DIGITS, "decimal"}
    if to in numbers and source in numbers:
        (whole, scale), (more_whole, more_scale) = _digits(held), _digits(given)
        precision = max(whole, more_whole) + max(scale, more_scale)
        return DecimalType(precision, max(scale, more_scale)) if precision <= _MOST_DIGITS else None
    approximate = {*_DIGITS, "float", "double"}
    return DoubleType() if to in approximate and source in approximate else None


@cache
def spark_named(name: str) -> DataType:
    """The type of a simple name such as `bigint` or `decimal(10,2)`, without asking Spark's Java process."""
    from pyspark.sql import types as T

    if name.startswith("decimal"):
        precision, scale = name.removeprefix("decimal(").removesuffix(")").split(",")
        return T.DecimalType(int(precision), int(scale))
    simple = (
        T.BooleanType(), T.ByteType(), T.ShortType(), T.IntegerType(), T.LongType(), T.FloatType(), T.DoubleType(),
        T.StringType(), T.BinaryType(), T.DateType(), T.TimestampType(), T.TimestampNTZType(),
    )  # fmt: skip
    return {kind.simpleString(): kind for kind in simple}[name]


def name_of(kind: DataType) -> str:
    """`decimal` of `decimal(10,2)`; the three kinds of text are one."""
    name = kind.simpleString().partition("(")[0].partition("<")[0]
    return {"char": "string", "varchar": "string"}.get(name, name)


def _struct_holds(held: StructType, given: StructType) -> bool:
    same_names = [f.name.lower() for f in held.fields] == [f.name.lower() for f in given.fields]
    return same_names and all(holds(a.dataType, b.dataType) for a, b in zip(held.fields, given.fields, strict=True))


def _digits(kind: DataType | DecimalType) -> tuple[int, int]:
    """Digits before and after the point."""
    from pyspark.sql.types import DecimalType

    if isinstance(kind, DecimalType):
        return kind.precision - kind.scale, kind.scale
    return _DIGITS[name_of(kind)], 0
