"""Values of JSON that fit their columns: of some that do not, Spark's parser makes other values."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from ematix_flow.streams import catalyst

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType

# Otherwise the text of a number would be a date, so many days after 1970.
STRICTLY = {"enableDateTimeParsingFallback": "false"}
FIRST, LAST = "0001-01-01 00:00:00", "9999-12-31 23:59:59.999999"
"""The times that a calendar has; 202601 would be the first day of that year."""
# The same in seconds: with more of them Spark's parser begins anew.
FIRST_SECOND, LAST_SECOND = -62_135_596_800, 253_402_300_799
_INFINITY = r'[:\[,]\s*"?[-+]?(INF|Infinity)'
_TIMES = frozenset({"timestamp"})
_DATED = frozenset({"date", "timestamp", "timestamp_ntz"})
_FLOATING = frozenset({"float", "double"})


def wider(kind: DataType, *, times: bool = True) -> DataType:
    """What a column is read as before it is looked at once more. Decimals are texts, because Spark's JSON parser takes
    minutes for 1e99999999 and its cast of a text does not; timestamps, because a time alone would be one of today; and
    bytes are shorts, because 255 would be -1."""
    from pyspark.sql import types

    match kind:
        case types.DecimalType():
            return types.StringType()
        case types.TimestampType() if times:
            return types.StringType()
        case types.ByteType():
            return types.ShortType()
        case types.ArrayType():
            return types.ArrayType(wider(kind.elementType, times=times))
        case types.MapType():
            return types.MapType(kind.keyType, wider(kind.valueType, times=times))
        case types.StructType():
            return types.StructType([types.StructField(f.name, wider(f.dataType, times=times)) for f in kind.fields])
    return kind


def fitting(found: Column, kind: DataType, again: Column) -> tuple[Column, Column | None]:
    """The value of a column of this type, from what was found as the wider one; and whether it does not fit, if it may
    not. `again` is the value with times that Spark's parser has read, which alone can tell a number of seconds from
    a year."""
    from pyspark.sql import functions as F

    value, wrong = found, []
    if wider(kind) != kind:
        value = _cast(found, kind)
        if _has(kind, _TIMES):
            value = F.when(_any(found, kind, _TIMES, _is_number), _cast(again, kind)).otherwise(value)
            wrong.append(_any(found, kind, _TIMES, _is_no_time))
        wrong.append(found.isNotNull() & value.isNull())
    if _has(kind, _DATED):
        wrong.append(_any(value, kind, _DATED, _is_in_no_calendar))
    return value, reduce(or_, wrong) if wrong else None


def overflow(values: Iterable[tuple[Column, DataType]], text: Column) -> Column | None:
    """Whether there is infinity among these values without being in their text, in words; None if there can be none."""
    infinite = [_any(value, kind, _FLOATING, _is_infinite) for value, kind in values if _has(kind, _FLOATING)]
    # The text is asked once, not by each column: Spark would then ask it for all rows.
    return reduce(or_, infinite) & ~text.rlike(_INFINITY) if infinite else None


def _cast(found: Column, kind: DataType) -> Column:
    """Strict, but tried: an array of which one element is no decimal is no array of decimals."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    if not isinstance(kind, ArrayType | MapType | StructType):
        return found.try_cast(kind)
    return catalyst.column(catalyst.tried(catalyst.expression(found.cast(kind))))


def _has(kind: DataType, names: frozenset[str]) -> bool:
    """Whether values are of one of these types, or some are inside of them."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    match kind:
        case ArrayType():
            return _has(kind.elementType, names)
        case MapType():
            return _has(kind.valueType, names)
        case StructType():
            return any(_has(field.dataType, names) for field in kind.fields)
    return kind.typeName() in names


def _any(value: Column, kind: DataType, names: frozenset[str], test: Callable[[Column, DataType], Column]) -> Column:
    """Whether the test is true of a value of one of these types, or of one inside."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType, MapType, StructType

    match kind:
        case ArrayType() if test is _is_infinite and kind.elementType.typeName() in _FLOATING:
            # Takes a tenth of the time of a test of each number.
            found = [F.array_contains(value, infinity) for infinity in _infinities(kind.elementType)]
            return F.coalesce(reduce(or_, found), F.lit(False))
        case ArrayType():
            return F.coalesce(F.exists(value, lambda one: _any(one, kind.elementType, names, test)), F.lit(False))
        case MapType():
            return _any(F.map_values(value), ArrayType(kind.valueType), names, test)
        case StructType():
            inside = [field for field in kind.fields if _has(field.dataType, names)]
            return reduce(or_, [_any(value[field.name], field.dataType, names, test) for field in inside])
    return F.coalesce(test(value, kind), F.lit(False))


def _is_number(text: Column, kind: DataType) -> Column:
    from pyspark.sql import functions as F

    return F.when(~_has_date(text), text.try_cast("long").isNotNull())


def _is_no_time(text: Column, kind: DataType) -> Column:
    """Neither seconds of the calendar nor with a date."""
    from pyspark.sql import functions as F

    are_known = text.try_cast("long").between(FIRST_SECOND, LAST_SECOND)
    return F.when(~_has_date(text), ~F.coalesce(are_known, text.try_cast("date").isNotNull()))


def _has_date(text: Column) -> Column:
    """As ISO 8601 has it, at a glance: to try a cast in vain takes as long as to read the whole object."""
    from pyspark.sql import functions as F

    month = F.substring(text, 5, 4)
    return month.startswith("-") & month.endswith("-")


def _is_in_no_calendar(time: Column, kind: DataType) -> Column:
    from pyspark.sql import functions as F

    return ~time.between(F.lit(FIRST).cast(kind), F.lit(LAST).cast(kind))


def _is_infinite(number: Column, kind: DataType) -> Column:
    return number.isin(*_infinities(kind))


def _infinities(kind: DataType) -> list[Column]:
    from pyspark.sql import functions as F

    return [F.lit(word).cast(kind) for word in ("Infinity", "-Infinity")]
