"""The sessions of one key, built row by row: what a cap on their length asks for, because it depends on the order."""

from __future__ import annotations

from dataclasses import dataclass

_ANY_LENGTH = 2**63


@dataclass(frozen=True)
class Limits:
    """When sessions end, in microseconds."""

    gap: int
    longest: int | None
    """From its first row to its last one."""
    allowed: int
    """How long an ended session can still change."""
    watermark: int


@dataclass(slots=True)
class Session:
    start: int
    last: int
    places: list[int]
    """Where its parts, held sessions and rows, stand among all."""
    is_cut: bool = False
    """It has left for good, because a row would have made it too long."""


class Turn:
    """Takes in the rows of a batch in event-time order.

    So sessions are passed one after the other: a row can only meet the one that began last, and the first one ahead.
    """

    def __init__(self, held: list[Session], limits: Limits) -> None:
        self._gap, self._longest = limits.gap, _ANY_LENGTH if limits.longest is None else limits.longest
        self._ended = limits.watermark - limits.gap
        self._too_late = self._ended - limits.allowed
        self._cut: list[Session] = []
        self._passed: list[Session] = []
        self._ahead = held[::-1]
        self.behind: list[int] = []
        """Rows that were taken in after their session had ended."""

    def take(self, time: int, place: int) -> None:
        while self._ahead and self._ahead[-1].start <= time:
            self._passed.append(self._ahead.pop())
        before = self._passed[-1] if self._passed and time <= self._passed[-1].last + self._gap else None
        after = self._ahead[-1] if self._ahead and self._ahead[-1].start - self._gap <= time else None
        last = after.last if after else max(time, before.last) if before else time
        if last < self._ended:
            if last < self._too_late:
                return
            self.behind.append(place)
        if before and last - before.start > self._longest:
            self._leave(self._passed)
            before = None
        if after and last - min(time, before.start if before else time) > self._longest:
            self._leave(self._ahead)
            after = None
        self._join(before, after, time, place)

    def sessions(self) -> list[Session]:
        """Those that were cut in the order of their leaving, then those that are left."""
        return [*self._cut, *self._passed, *reversed(self._ahead)]

    def _leave(self, sessions: list[Session]) -> None:
        sessions[-1].is_cut = True
        self._cut.append(sessions.pop())

    def _join(self, before: Session | None, after: Session | None, time: int, place: int) -> None:
        if before is None:
            before = self._ahead.pop() if after else Session(time, time, [])
            before.start = time
            self._passed.append(before)
        elif after:
            before.last = after.last
            before.places += self._ahead.pop().places
        before.last = max(before.last, time)
        before.places.append(place)
