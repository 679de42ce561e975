"""The five fields of a cron schedule, read when it is declared."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_PART = re.compile(r"(?P<first>\*|\w+)(?:-(?P<last>\w+))?(?:/(?P<step>\d+))?")


@dataclass(frozen=True)
class _Field:
    name: str
    low: int
    high: int
    names: Sequence[str] = ()
    """Words for the numbers from `low` on."""

    def problem(self, text: str) -> str:
        return next(filter(None, map(self._problem_of, text.split(","))), "")

    def _problem_of(self, part: str) -> str:
        found = _PART.fullmatch(part)
        if found is None:
            return f'{self.name}: "{part}" is no number, range or step'
        if found["step"] is not None and int(found["step"]) == 0:
            return f'{self.name}: "{part}" has a step of 0'
        if found["first"] == "*":
            return f'{self.name}: "{part}" is no range' if found["last"] else ""
        ends = [self._number(end) for end in (found["first"], found["last"] or found["first"])]
        if any(end is None or not self.low <= end <= self.high for end in ends):
            return f'{self.name}: "{part}" is not from {self.low} to {self.high}'
        return f'{self.name}: "{part}" runs backwards' if ends[0] > ends[1] else ""  # type: ignore[operator]

    def _number(self, word: str) -> int | None:
        if word.isdecimal():
            return int(word)
        low = word.lower()
        return self.low + self.names.index(low) if low in self.names else None


_FIELDS = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of month", 1, 31),
    _Field("month", 1, 12, _MONTHS),
    _Field("day of week", 0, 7, _DAYS),
)


def schedule_problem(schedule: str) -> str:
    """What is wrong with a schedule; an empty text if nothing is."""
    parts = schedule.split()
    if len(parts) != len(_FIELDS):
        return f"has {len(parts)} fields"
    return next(filter(None, (field.problem(part) for field, part in zip(_FIELDS, parts, strict=True))), "")
