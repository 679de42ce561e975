"""The five fields of a cron schedule, read when it is declared."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_LENGTHS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
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

    def numbers(self, text: str) -> set[int]:
        """All that a text without problems means."""
        found: set[int] = set()
        for part in map(_PART.fullmatch, text.split(",")):
            assert part is not None
            first = self.low if part["first"] == "*" else self._number(part["first"])
            open_end = part["first"] == "*" or part["step"]
            last = self._number(part["last"]) if part["last"] else self.high if open_end else first
            assert first is not None
            assert last is not None
            found |= set(range(first, last + 1, int(part["step"] or 1)))
        return found

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
    problems = (field.problem(part) for field, part in zip(_FIELDS, parts, strict=True))
    return next(filter(None, problems), "") or _never(*parts[2:])


def _never(day: str, month: str, weekday: str) -> str:
    """A day that no month has. With a day of the week beside it, either of the two is enough."""
    if weekday != "*" or min(_FIELDS[2].numbers(day)) <= max(_LENGTHS[one - 1] for one in _FIELDS[3].numbers(month)):
        return ""
    return f'day of month: no month of "{month}" has a day "{day}"'
