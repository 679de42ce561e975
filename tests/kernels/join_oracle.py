"""Joins of two streams as API.md words them: one row at a time, each compared with all the others, nothing clever."""

from dataclasses import dataclass, field

MS = 1000
LEFT, RIGHT = 0, 1
Key = tuple[object, ...]
Emitted = tuple[int | None, int | None, int | None, bool]
"""Number of the left row, number of the right one, revision, withdrawn or not."""


@dataclass(eq=False)
class Row:
    side: int
    key: Key
    number: int
    """In the order of arrival."""
    time: int
    is_matched: bool = False
    is_shown: bool = False
    """It was emitted as an orphan."""


@dataclass
class Oracle:
    least: int
    most: int
    outer: tuple[bool, bool]
    reopens: bool
    allowed: int
    """0 unless it reopens."""
    held: list[Row] = field(default_factory=list)
    """In the order of arrival."""
    emitted: list[Emitted] = field(default_factory=list)
    """By the last step."""
    late: list[Row] = field(default_factory=list)
    reopened: int = 0
    changed: set[int] = field(default_factory=set)
    """The sides of which something was to be written."""

    def step(self, rows: list[Row], watermark: int) -> None:
        self.emitted, self.late, self.reopened, self.changed = [], [], 0, set()
        self.close(watermark)
        self.forget(watermark)
        matches: list[Emitted] = []
        withdrawn: list[Row] = []
        for row in rows:
            if self.is_taken(row, watermark):
                partners = [other for other in self.held if self.belong_together(row, other)]
                matches += [self.matched(row, other, withdrawn) for other in partners]
                self.held.append(row)
                self.changed.add(row.side)
        self.emitted += [self.orphan(row, is_gone=True) for row in left_first(withdrawn)]
        self.emitted += sorted(matches)
        self.close(watermark)

    def close(self, watermark: int) -> None:
        for row in left_first(self.held):
            if self.awaits_its_end(row) and watermark > self.deadline_of(row):
                self.emitted.append(self.orphan(row))
                self.changed.add(row.side)
                row.is_shown = True

    def forget(self, watermark: int) -> None:
        for row in list(self.held):
            if watermark > self.deadline_of(row) + self.allowed:
                self.held.remove(row)
                self.changed.add(row.side)

    def is_taken(self, row: Row, watermark: int) -> bool:
        if watermark > self.deadline_of(row) + self.allowed:
            self.late.append(row)
            return False
        self.reopened += watermark > self.deadline_of(row)
        return self.outer[row.side] or None not in row.key

    def belong_together(self, one: Row, two: Row) -> bool:
        if one.side == two.side or one.key != two.key or None in one.key:
            return False
        left, right = left_first([one, two])
        return self.least <= right.time - left.time <= self.most

    def matched(self, one: Row, two: Row, withdrawn: list[Row]) -> Emitted:
        for row in (one, two):
            if self.outer[row.side] and not row.is_matched:
                row.is_matched = True
                self.changed.add(row.side)
                withdrawn += [row] if row.is_shown else []
        left, right = left_first([one, two])
        revision = int(left.is_shown or right.is_shown) if self.reopens else None
        return (left.number, right.number, revision, False)

    def orphan(self, row: Row, *, is_gone: bool = False) -> Emitted:
        revision = 0 if self.reopens and not is_gone else None
        left, right = (row.number if row.side == side else None for side in (LEFT, RIGHT))
        return (left, right, revision, is_gone)

    def awaits_its_end(self, row: Row) -> bool:
        return self.outer[row.side] and not row.is_matched and not row.is_shown

    def deadline_of(self, row: Row) -> int:
        return row.time + self.most if row.side == LEFT else row.time - self.least

    def deadline(self) -> int | None:
        """When the first orphan is due; without one, when everything can be forgotten."""
        orphans = [self.deadline_of(row) for row in self.held if self.awaits_its_end(row)]
        if orphans:
            return first_millisecond_after(min(orphans))
        ends = [self.deadline_of(row) + self.allowed for row in self.held]
        return first_millisecond_after(max(ends)) if ends else None

    def last_deadline(self, watermark: int) -> int | None:
        """Of the rows whose time has not passed."""
        ends = [end for row in self.held if (end := self.deadline_of(row)) >= watermark]
        return first_millisecond_after(max(ends)) if ends else None


def left_first(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row.side, row.number))


def first_millisecond_after(moment: int) -> int:
    return next(MS * n for n in range(moment // MS, moment // MS + 2) if n * MS > moment)
