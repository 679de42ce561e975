"""Lengths of time as they are declared: a timedelta, seconds, or a text such as "90s", "15m", "6h" or "30d"."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

from ematix_flow.problems import complain, shown

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_ALLOWED = 'seconds, or a text such as "90s", "15m", "6h" or "30d"'


def _duration(value: Any) -> timedelta:
    if isinstance(value, timedelta):
        length = value
    elif isinstance(value, int | float) and not isinstance(value, bool):
        length = timedelta(seconds=value)
    elif isinstance(value, str) and (found := re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smhd]?)\s*", value)):
        length = timedelta(seconds=float(found[1]) * _SECONDS[found[2] or "s"])
    else:
        raise complain(f"found {shown(value)}", _ALLOWED)
    if length <= timedelta():
        raise complain(f"found {shown(value)}", "more than nothing")
    return length


Duration = Annotated[
    timedelta,
    BeforeValidator(_duration),
    PlainSerializer(lambda value: value.total_seconds()),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "number", "exclusiveMinimum": 0}]}),
]
