"""How far an incremental source has come: the highest value, and which rows near it were read."""

from __future__ import annotations

import base64
import hashlib
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

_KINDS: dict[str, Any] = {
    "int": int,
    "float": float,
    "decimal": Decimal,
    "text": str,
    "datetime": datetime.fromisoformat,
    "date": date.fromisoformat,
}


@dataclass(frozen=True)
class Position:
    """Every row below `value`, less what is looked back at, was read; of those from there up to it, the ones in `seen`,
    by a hash of their key. None is the position before the first row."""

    value: Any = None
    seen: frozenset[int] = frozenset()
    at: int = 0
    """When it was found, in microseconds since 1970; no part of what it is."""

    def low(self, lookback: int) -> Any:
        """The lowest value at which rows may still come."""
        return lowered(self.value, lookback)

    def same(self, other: Position) -> bool:
        return (self.value, self.seen) == (other.value, other.seen)

    def to_json(self) -> dict[str, Any]:
        packed = struct.pack(f"<{len(self.seen)}q", *sorted(self.seen))
        kind, text = written(self.value)
        return {"kind": kind, "value": text, "seen": base64.b64encode(packed).decode(), "at": self.at}

    @classmethod
    def from_json(cls, offset: dict[str, Any]) -> Position:
        packed = base64.b64decode(offset["seen"])
        seen = frozenset(struct.unpack(f"<{len(packed) // 8}q", packed))
        value = _KINDS[offset["kind"]](offset["value"]) if offset["kind"] else None
        return cls(value, seen, offset["at"])


def written(value: Any) -> tuple[str, str]:
    """The kind of a value and its text."""
    match value:
        case None:
            return "", ""
        case datetime():
            return "datetime", value.isoformat()
        case date():
            return "date", value.isoformat()
        case bool() | int():
            return "int", str(int(value))
        case float():
            return "float", repr(value)
        case Decimal():
            return "decimal", str(value)
        case str():
            return "text", value
    raise TypeError(f"{type(value).__name__} has no order that could be followed")


def lowered(value: Any, lookback: int) -> Any:
    """Milliseconds of a time, as much of a number."""
    if not lookback or value is None:
        return value
    try:
        match value:
            case datetime():
                return value - timedelta(milliseconds=lookback)
            case date():
                return value - timedelta(days=-(-lookback // 86_400_000))
            case int() | float() | Decimal():
                return value - lookback
            case str():
                return _earlier(value, lookback)
    except OverflowError:
        return type(value).min if isinstance(value, date) else value
    except ValueError:
        pass
    raise TypeError(f"a lookback needs a column of numbers or times, and this one holds {type(value).__name__}")


def _earlier(text: str, milliseconds: int) -> str:
    """Of a time that is kept as text, in the same form."""
    moment = datetime.fromisoformat(text) - timedelta(milliseconds=milliseconds)
    if len(text) <= len("2026-01-01"):
        return moment.date().isoformat()
    written = moment.isoformat(text[10], "microseconds" if "." in text else "seconds")
    return written.removesuffix("+00:00") + "Z" if text.endswith("Z") else written


def hashed(keys: Iterable[Any]) -> Iterable[int]:
    """Of each key, as text."""
    for key in keys:
        digest = hashlib.blake2b(str(key).encode("utf-8", "surrogatepass"), digest_size=8).digest()
        yield struct.unpack("<q", digest)[0]


def between(low: Any, high: Any, parts: int) -> list[Any]:
    """Values that cut a range into about equal parts; none if these have no middle."""
    match low, high:
        case (datetime(), datetime()) | (int(), int()) | (Decimal(), Decimal()) if high > low:
            step = (high - low) / parts
        case _:
            return []
    if isinstance(low, datetime):
        return [low + step * number for number in range(1, parts)]
    if isinstance(low, int):
        return sorted({low + (high - low) * number // parts for number in range(1, parts)} - {low})
    return [low + step * number for number in range(1, parts)]
