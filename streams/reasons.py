"""Why a row could not be read, in words: Spark only says that it could not, so its bytes are looked at once more."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_SHOWN = 60


def why_bad_json(payload: bytes, schema: StructType) -> str:
    try:
        text = payload.decode("utf-8")
    except UnicodeDecodeError as error:
        return f"not UTF-8 text (byte {error.start})"
    try:
        value = json.loads(text)
    except RecursionError:
        return "nested too deeply"
    except ValueError as error:
        return f"not valid JSON: {error}"
    if not isinstance(value, dict):
        return f"expected a JSON object, found {_kind(value)}"
    misfits = [
        f"{f.name} should be {f.dataType.simpleString()}, found {_shown(value[f.name])}"
        for f in schema.fields
        if not _fits(value.get(f.name), f.dataType.simpleString())
    ]
    return "; ".join(misfits) or "a value does not fit the declared columns"


def _fits(value: Any, kind: str) -> bool:
    """Whether a value is plausible for a column; only used to choose which columns to name."""
    if value is None or kind == "string":
        return True
    if kind in _RANGES:
        low, high = _RANGES[kind]
        return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
    if kind == "boolean":
        return isinstance(value, bool)
    if kind in {"double", "float"} or kind.startswith("decimal"):
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind.startswith("array"):
        return isinstance(value, list)
    if kind.startswith(("struct", "map")):
        return isinstance(value, dict)
    return kind not in {"date", "timestamp", "timestamp_ntz"} or _is_time(value)


_RANGES = {
    kind: (-(1 << bits - 1), (1 << bits - 1) - 1)
    for kind, bits in (("tinyint", 8), ("smallint", 16), ("int", 32), ("bigint", 64))
}


def _is_time(value: Any) -> bool:
    from datetime import datetime

    if not isinstance(value, str):
        return False
    try:
        datetime.fromisoformat(value)
    except ValueError:
        return False
    return True


def _kind(value: Any) -> str:
    names = {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
