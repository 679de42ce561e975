"""Rows of a test as lines of JSON, and the times at which they happened."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

from ematix_flow.errors import UsageError
from ematix_flow.specs import Source
from ematix_flow.streams.envelope import EVENT_TS
from ematix_flow.streams.sources.schemas import declared_schema
from ematix_flow.testing.offline import Row

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

Line = Row | str | bytes

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class TimeColumn:
    """The column of a source that says when a row happened."""

    name: str
    type: DataType | None
    """Unknown where the columns are inferred."""

    def value(self, moment: datetime) -> int | str:
        """In the form in which the source would bring it."""
        from pyspark.sql.types import DateType, IntegralType, TimestampNTZType

        match self.type:
            case IntegralType():
                return microseconds(moment) // 1000
            case DateType():
                return moment.date().isoformat()
            case TimestampNTZType():
                return moment.replace(tzinfo=None).isoformat()
        return moment.isoformat()


def time_column(source: Source, name: str) -> TimeColumn | None:
    """None where the time of a row is that of its arrival."""
    columns = {f.name: f.dataType for f in declared_schema(source.schema, name).fields} if source.schema else {}
    column = source.event_time_column or (EVENT_TS if EVENT_TS in columns else None)
    return TimeColumn(column, columns.get(column)) if column else None


def lines(rows: Iterable[Line] | Line, filled: Row) -> bytes:
    """One line each. `filled` is what a row has where it says nothing itself; text and bytes stand for themselves."""
    some = [rows] if isinstance(rows, Mapping | str | bytes) else rows
    return b"".join(_line(row, filled) + b"\n" for row in some)


def moment(given: str | datetime) -> datetime:
    """A time without a zone is in UTC."""
    try:
        found = datetime.fromisoformat(given) if isinstance(given, str) else given
    except ValueError:
        raise UsageError(f'"{given}" is not a time', next_step="write it as 2026-01-01T12:00:00Z") from None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


def microseconds(at: datetime) -> int:
    """Since 1970, exactly."""
    return (at - _EPOCH) // timedelta(microseconds=1)


def _line(row: Line, filled: Row) -> bytes:
    if isinstance(row, bytes):
        return row
    text = row if isinstance(row, str) else json.dumps({**filled, **row}, default=_as_json)
    return text.encode()


def _as_json(value: Any) -> str:
    match value:
        case date() | time():
            return value.isoformat()
        case bytes():
            return base64.b64encode(value).decode()
        case Decimal() | UUID():
            return str(value)
    raise UsageError(
        f"a row holds {value!r}, a {type(value).__name__}, which JSON cannot say",
        next_step="give it as the text that the source would bring",
    )
