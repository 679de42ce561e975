"""Kafka Connect's types and Debezium's logical types: what the schema in an envelope says of the values of its row."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import Column

_PLAIN = {
    "int8": "smallint", "int16": "smallint", "int32": "int", "int64": "bigint", "float": "float", "float32": "float",
    "double": "double", "float64": "double", "boolean": "boolean", "string": "string", "bytes": "binary",
}  # fmt: skip
_CONNECT, _TIME, _DATA = "org.apache.kafka.connect.data.", "io.debezium.time.", "io.debezium.data."
_DATES = frozenset({f"{_CONNECT}Date", f"{_TIME}Date"})
# By how many of them make a second.
_MOMENTS = {
    f"{_CONNECT}Timestamp": 10**3,
    f"{_TIME}Timestamp": 10**3,
    f"{_TIME}MicroTimestamp": 10**6,
    f"{_TIME}NanoTimestamp": 10**9,
}
_TIMES = {
    f"{_CONNECT}Time": 10**3,
    f"{_TIME}Time": 10**3,
    f"{_TIME}MicroTime": 10**6,
    f"{_TIME}NanoTime": 10**9,
}
_DURATIONS = {f"{_TIME}MicroDuration": 10**6, f"{_TIME}NanoDuration": 10**9}
_INTERVAL = f"{_TIME}Interval"
_INTERVAL_PARTS = r"^P(-?\d+)Y(-?\d+)M(-?\d+)DT(-?\d+)H(-?\d+)M(-?[\d.]+)S$"
_ZONED = f"{_TIME}ZonedTimestamp"
# As a declared table calls them; a target that has no such type takes the text.
_OWN = {
    f"{_DATA}Json": "JSONB", f"{_DATA}Uuid": "UUID", _INTERVAL: "INTERVAL", **dict.fromkeys(_DURATIONS, "INTERVAL"),
}  # fmt: skip
_DECIMAL, _VARIABLE = f"{_CONNECT}Decimal", f"{_DATA}VariableScaleDecimal"
_GEOMETRY = f"{_DATA}geometry."
_MOST_DIGITS = 38
_VARIABLE_SCALE = 18


@dataclass(frozen=True)
class Field:
    """A column of the row in an envelope."""

    kind: str
    """The type in Spark's words."""
    logical: str = ""
    scale: int = 0

    @property
    def is_plain(self) -> bool:
        """Its values stand in the JSON as they are."""
        timed = _DATES | _MOMENTS.keys() | _TIMES.keys() | _DURATIONS.keys() | {_INTERVAL}
        return self.logical not in timed | {_DECIMAL, _VARIABLE} and not self.logical.startswith(_GEOMETRY)

    @property
    def own(self) -> str:
        """The type that a database may have for its texts."""
        return _OWN.get(self.logical, "")


@lru_cache(maxsize=100)
def fields_of(schema: str) -> Mapping[str, Field]:
    """Of the row after a change, or else before it; none if the text is no schema of an envelope."""
    try:
        found = {field.get("field"): field for field in json.loads(schema)["fields"]}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}
    row = found.get("after") or found.get("before") or {}
    return {field["field"]: _field(field) for field in row.get("fields", ()) if "field" in field}


def _field(schema: Mapping[str, Any]) -> Field:
    logical, given = schema.get("name") or "", schema.get("parameters") or {}
    if logical in _DATES:
        return Field("date", logical)
    if logical in _MOMENTS:
        return Field("timestamp_ntz", logical)
    if logical == _ZONED:
        return Field("timestamp", logical)
    if logical == _DECIMAL:
        scale = int(given.get("scale", 0))
        digits = int(given.get("connect.decimal.precision", _MOST_DIGITS))
        return Field(f"decimal({min(max(digits, scale, 1), _MOST_DIGITS)},{scale})", logical, scale)
    if logical == _VARIABLE:
        return Field(f"decimal({_MOST_DIGITS},{_VARIABLE_SCALE})", logical)
    if logical.startswith(_GEOMETRY):
        return Field("binary", logical)
    return Field("string" if logical in _TIMES | _DURATIONS else _named(schema), logical)


def _named(schema: Mapping[str, Any]) -> str:
    match schema.get("type"):
        case "array":
            return f"array<{_field(schema['items']).kind}>"
        case "map":
            return f"map<{_field(schema['keys']).kind}, {_field(schema['values']).kind}>"
        case "struct":
            inner = ", ".join(f"`{field['field']}`: {_field(field).kind}" for field in schema.get("fields", ()))
            return f"struct<{inner}>"
        case str(plain):
            return _PLAIN.get(plain, "string")
    return "string"


def readable(text: Column, field: Field) -> Column:
    """A value as a text that every type reads which can hold it: a date, a time or a number, written out."""
    from pyspark.sql import functions as F

    if field.logical in _DATES:
        return F.date_from_unix_date(text.try_cast("int")).cast("string")
    if field.logical in _MOMENTS:
        return _moment(text, _MOMENTS[field.logical])
    if field.logical in _TIMES:
        return _time(text, _TIMES[field.logical])
    if field.logical in _DURATIONS:
        return _time(text, _DURATIONS[field.logical])
    if field.logical == _INTERVAL:
        return F.regexp_replace(text, _INTERVAL_PARTS, "$1 years $2 mons $3 days $4 hours $5 mins $6 secs")
    if field.logical == _DECIMAL:
        return _decimal(text, F.lit(str(field.scale)))
    if field.logical == _VARIABLE:
        return _decimal(F.get_json_object(text, "$.value"), F.get_json_object(text, "$.scale"))
    if field.logical.startswith(_GEOMETRY):
        return F.get_json_object(text, "$.wkb")
    return text


def _micros(text: Column, per_second: int) -> Column:
    from pyspark.sql import functions as F

    number = text.try_cast("bigint")
    if per_second <= 10**6:
        return number * F.lit(10**6 // per_second)
    # Downwards also before 1970.
    return F.floor(number.cast("decimal(20,0)") / F.lit(per_second // 10**6)).cast("bigint")


def _moment(text: Column, per_second: int) -> Column:
    from pyspark.sql import functions as F

    micros, day = _micros(text, per_second), F.lit(86_400 * 10**6)
    clock = F.pmod(micros, day)
    # Whole numbers: as floating point, the last microsecond of the year 9999 would be one of the next.
    date = F.date_from_unix_date(F.call_function("div", micros - clock, day).cast("int")).cast("string")
    return F.concat(date, F.lit("T"), _clock(clock), F.lit("Z"))


def _time(text: Column, per_second: int) -> Column:
    """MySQL's times of day may be negative, and longer than a day."""
    from pyspark.sql import functions as F

    micros = _micros(text, per_second)
    return F.concat(F.when(micros < 0, F.lit("-")).otherwise(F.lit("")), _clock(F.abs(micros)))


def _clock(micros: Column) -> Column:
    """Of microseconds since midnight."""
    from pyspark.sql import functions as F

    seconds = F.floor(micros / F.lit(10**6)).cast("bigint")
    parts = [F.floor(seconds / 3600), F.floor(seconds / 60) % 60, seconds % 60, micros % F.lit(10**6)]
    written = F.format_string("%02d:%02d:%02d.%06d", *[part.cast("bigint") for part in parts])
    # It would write NULL out, too.
    return F.when(micros.isNotNull(), written)


def _decimal(text: Column, scale: Column) -> Column:
    """The bytes are a number in two's complement, the most significant one first."""
    from pyspark.sql import functions as F

    octets = F.try_to_binary(text, F.lit("base64"))
    places = F.sequence(F.lit(1), F.length(octets))

    def octet(place: Column) -> Column:
        return F.conv(F.hex(F.substring(octets, place, F.lit(1))), 16, 10).cast("decimal(38,0)")

    zero = F.lit(0).cast("decimal(38,0)")
    sign = F.when(octet(F.lit(1)) >= 128, F.lit(-1).cast("decimal(38,0)")).otherwise(zero)
    whole = F.aggregate(places, sign, lambda sum_, place: (sum_ * 256 + octet(place)).cast("decimal(38,0)"))
    number = F.when(F.length(octets) > 0, whole)
    return F.concat(number.cast("string"), F.lit("E-"), scale)
