"""Why a row could not be read, in words: Spark only says that it could not, so its bytes are looked at once more."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from math import isinf
from typing import TYPE_CHECKING, Any

from ematix_flow.streams.json_values import FIRST_SECOND, LAST_SECOND

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

_SHOWN = 60


def why_bad_json(payload: bytes, schema: StructType) -> str:
    try:
        text = payload.decode("utf-8")
    except UnicodeDecodeError as error:
        return f"not UTF-8 text (byte {error.start})"
    try:
        value = json.loads(text, parse_float=_Number)
    except RecursionError:
        return "nested too deeply"
    except ValueError as error:
        return f"not valid JSON: {error}"
    if not isinstance(value, dict):
        return f"expected a JSON object, found {_kind(value)}"
    misfits = [
        f"{place} should be {kind.simpleString()}, found {_shown(found)}"
        for field in schema.fields
        for place, kind, found in _misfits(field.name, field.dataType, value.get(field.name))
    ]
    return "; ".join(misfits) or "a value does not fit the declared columns"


class _Number(float):
    """With its digits, of which there may be more than a number can hold."""

    def __init__(self, text: str) -> None:
        self.text = text


def _misfits(place: str, kind: DataType, value: Any) -> Iterator[tuple[str, DataType, Any]]:
    """The values that are not plausible for a column, or for a part of it; only used to choose which ones to name."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(kind, ArrayType) and isinstance(value, list):
        for number, element in enumerate(value):
            yield from _misfits(f"{place}[{number}]", kind.elementType, element)
    elif isinstance(kind, MapType) and isinstance(value, dict):
        for key, element in value.items():
            yield from _misfits(f"{place}.{key}", kind.valueType, element)
    elif isinstance(kind, StructType) and isinstance(value, dict):
        for field in kind.fields:
            yield from _misfits(f"{place}.{field.name}", field.dataType, value.get(field.name))
    elif value is not None and not _fits(value, kind):
        yield place, kind, value


def _fits(value: Any, kind: DataType) -> bool:
    from pyspark.sql.types import DecimalType

    name, is_number = kind.typeName(), isinstance(value, int | float) and not isinstance(value, bool)
    if isinstance(kind, DecimalType):
        return _is_decimal(value, kind.precision - kind.scale)
    if name in _WHOLE:
        return is_number and isinstance(value, int) and value in _WHOLE[name]
    if name in _FLOATING:
        return value in _WORDS if isinstance(value, str) else is_number and _is_in_range(value, _FLOATING[name])
    if name in ("date", "timestamp", "timestamp_ntz"):
        return _is_time(value) if isinstance(value, str) else name == "timestamp" and is_number and value in _SECONDS
    if name == "boolean":
        return isinstance(value, bool)
    return name not in ("array", "map", "struct")


_WHOLE = {
    kind: range(-(1 << bits - 1), 1 << bits - 1)
    for kind, bits in (("byte", 8), ("short", 16), ("integer", 32), ("long", 64))
}
_FLOATING = {"float": "<f", "double": "<d"}
_WORDS = frozenset({"NaN", "Infinity", "+Infinity", "-Infinity", "+INF", "-INF"})
_SECONDS = range(FIRST_SECOND, LAST_SECOND + 1)
_DATE = re.compile(r"\s*\+?(\d{4})(?:-(\d\d?)(?:-(\d\d?)(?:[T ].*)?)?)?\s*")


def _is_decimal(value: Any, whole_digits: int) -> bool:
    try:
        number = Decimal(value.text if isinstance(value, _Number) else str(value))
    except InvalidOperation:
        return False
    return number.is_finite() and (not number or number.adjusted() < whole_digits)


def _is_in_range(number: float, form: str) -> bool:
    try:
        struct.pack(form, number)
    except OverflowError:
        return False
    # What was infinity already is not too large.
    return not (isinstance(number, _Number) and isinf(number))


def _is_time(text: str) -> bool:
    found = _DATE.fullmatch(text)
    try:
        if found is not None:
            date(*[int(part or 1) for part in found.groups()])
        if found is not None and found[3] and ":" in text:
            datetime.fromisoformat(text)
    except ValueError:
        return False
    return found is not None


def _kind(value: Any) -> str:
    names = {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def _shown(value: Any) -> str:
    text = value.text if isinstance(value, _Number) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
