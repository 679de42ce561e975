"""A place in a stream as people write it: one of its ends, a time, an offset, or offsets of single partitions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema

from ematix_flow.problems import complain, shown

HOW = 'earliest, latest, a time such as "2026-01-31T08:00:00Z", an offset, or offsets such as "orders/0=5, orders/1=7"'
_OFFSET = re.compile(r"(?:([A-Za-z0-9._-]+)/)?(\d+)\s*=\s*(\d+)")


@dataclass(frozen=True)
class Position:
    """Exactly one of these is set."""

    end: str | None = None
    """earliest or latest."""
    time: datetime | None = None
    """The first record of this time or a later one."""
    offset: int | None = None
    """In every partition."""
    offsets: Mapping[tuple[str | None, int], int] = field(default_factory=dict)
    """By topic and partition; without a topic, of every one. Partitions that are not named are not limited."""

    @classmethod
    def of(cls, text: str) -> Position:
        """ValueError if it is none."""
        words = text.strip()
        if words in ("earliest", "latest"):
            return cls(end=words)
        if words.isdecimal():
            return cls(offset=int(words))
        if "=" in words:
            return cls(offsets=dict(map(_one_offset, words.split(","))))
        moment = datetime.fromisoformat(words)
        return cls(time=moment if moment.tzinfo else moment.replace(tzinfo=UTC))

    def is_after(self, other: Position) -> bool:
        """As far as it can be told without asking the source."""
        if self.time and other.time:
            return self.time > other.time
        if self.offset is not None and other.offset is not None:
            return self.offset > other.offset
        return (self.end, other.end) == ("latest", "earliest")


def _one_offset(words: str) -> tuple[tuple[str | None, int], int]:
    found = _OFFSET.fullmatch(words.strip())
    if found is None:
        raise ValueError(words)
    return (found[1], int(found[2])), int(found[3])


def _written(value: Any) -> Any:
    """TOML and Python have times and numbers of their own."""
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).isoformat()
    if isinstance(value, date):
        return datetime.combine(value, time(), UTC).isoformat()
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    try:
        Position.of(text)
    except (ValueError, AttributeError):
        raise complain(f"found {shown(value)}", HOW) from None
    return text


PositionText = Annotated[str, BeforeValidator(_written), WithJsonSchema({"type": ["string", "integer"]})]
"""What `Position.of` reads. To editors, a time of TOML is a string."""
