"""Session windows as API.md words them: one row at a time, all rows of a session kept, nothing clever."""

from dataclasses import dataclass, field

MS = 1000
Row = tuple[tuple[object, ...], int | None, int]
"""Key, value, time in microseconds."""
Emitted = tuple[object, ...]
"""Withdrawn or not, start, end, key, count, sum, first, last, list of values, revision."""


@dataclass(eq=False)
class Session:
    rows: list[Row]
    """In the order of their arrival."""
    shown: list[tuple[int, int]] = field(default_factory=list)
    """Start and end of the rows that targets show for it."""
    revision: int = -1
    is_changed: bool = True

    @property
    def start(self) -> int:
        return min(time for _, _, time in self.rows)

    @property
    def last(self) -> int:
        return max(time for _, _, time in self.rows)


@dataclass
class Oracle:
    gap: int
    cap: int | None
    reopens: bool
    allowed: int
    """0 unless it reopens."""
    held: dict[tuple[object, ...], list[Session]] = field(default_factory=dict)
    emitted: list[tuple[list[Emitted], Emitted]] = field(default_factory=list)
    """By the last step: each row after those that it takes the place of."""
    late: list[Row] = field(default_factory=list)
    reopened: int = 0
    is_changed: bool = False

    def step(self, rows: list[Row], watermark: int) -> None:
        self.emitted, self.late, self.reopened, self.is_changed = [], [], 0, False
        self.close(watermark)
        for row in sorted(rows, key=lambda row: row[2]):
            self.take(row, watermark)
        self.close(watermark)
        self.held = {key: sessions for key, sessions in self.held.items() if sessions}

    def sessions(self) -> list[Session]:
        return [session for sessions in self.held.values() for session in sessions]

    def close(self, watermark: int) -> None:
        for session in self.sessions():
            if watermark > session.last + self.gap:
                self.emit(session)
            if watermark > session.last + self.gap + self.allowed:
                self.forget(session)

    def take(self, row: Row, watermark: int) -> None:
        key, _, time = row
        sessions = self.held.setdefault(key, [])
        near = [each for each in sessions if each.start - self.gap <= time <= each.last + self.gap]
        near.sort(key=lambda session: session.start)
        end = max([time, *(session.last for session in near)]) + self.gap
        if watermark > end + self.allowed:
            self.late.append(row)
            return
        self.is_changed = True
        self.reopened += watermark > end
        while near and self.cap is not None and span(near, time) > self.cap:
            self.emit(near[0])
            self.forget(near.pop(0))
        for session in near:
            sessions.remove(session)
        sessions.append(
            Session(
                rows=[each for session in near for each in session.rows] + [row],
                shown=[each for session in near for each in session.shown],
                revision=max((session.revision for session in near), default=-1),
            )
        )

    def emit(self, session: Session) -> None:
        if not session.is_changed:
            return
        self.is_changed, session.is_changed = True, False
        key, start, end = session.rows[0][0], session.start, session.last + self.gap
        session.revision += 1
        withdrawn = [(True, *shown, key, *[None] * 6) for shown in session.shown if shown[0] != start]
        session.shown = [(start, end)]
        revision = session.revision if self.reopens else None
        self.emitted.append((withdrawn, (False, start, end, key, *results(session.rows), revision)))

    def forget(self, session: Session) -> None:
        self.is_changed = True
        self.held[session.rows[0][0]].remove(session)

    def deadline(self) -> int | None:
        """When something is to be done next."""
        moments = [each.last + self.gap + (0 if each.is_changed else self.allowed) for each in self.sessions()]
        return min(map(first_millisecond_after, moments), default=None)

    def last_emission(self) -> int | None:
        moments = [each.last + self.gap for each in self.sessions() if each.is_changed]
        return max(map(first_millisecond_after, moments), default=None)


def span(sessions: list[Session], time: int) -> int:
    return max([time, *(each.last for each in sessions)]) - min([time, *(each.start for each in sessions)])


def results(rows: list[Row]) -> Emitted:
    values = [value for _, value, _ in sorted(rows, key=lambda row: row[2]) if value is not None]
    ends = (values[0], values[-1]) if values else (None, None)
    return (len(rows), sum(values) if values else None, *ends, tuple(values))


def first_millisecond_after(moment: int) -> int:
    return next(MS * n for n in range(moment // MS, moment // MS + 2) if n * MS > moment)
