"""How far event time has come in each source, and which sources bring nothing.

The watermark is the least one of all sources, so one that is idle gets ticks: they take it to where the others are or,
if all are idle, to the last deadline of what is open.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from ematix_flow.streams.observed import Arrived
from ematix_flow.streams.ticks import Ticks

Latest = tuple[int | None, ...]
"""The latest event time of each source, in microseconds since 1970; None before any row of it came."""


class Clocks:
    def __init__(
        self, ticks: Sequence[Ticks], idleness_ms: int, latest: Latest = (), now: Callable[[], float] = time.monotonic
    ) -> None:
        self._ticks, self._idle_after, self._now = ticks, idleness_ms / 1000, now
        self.latest: Latest = latest or (None,) * len(ticks)
        self._last_rows = [now()] * len(ticks)
        self._batch_began: float | None = None
        if len(ticks) > 1:
            self._remind()

    def _remind(self) -> None:
        """Spark remembers the least watermark over a restart, but not whose it was."""
        for ticks, latest in zip(self._ticks, self.latest, strict=True):
            if latest is not None:
                ticks.repeat(latest)

    def after(self, inputs: Mapping[int, Arrived]) -> Latest:
        """With what a batch has brought, which is not committed yet."""
        times = [[t for t in (before, inputs[n].latest) if t is not None] for n, before in enumerate(self.latest)]
        return tuple(max(known, default=None) for known in times)

    def begin(self) -> None:
        self._batch_began = self._now()

    def end(self) -> None:
        self._batch_began = None

    def commit(self, inputs: Mapping[int, Arrived]) -> None:
        self.latest = self.after(inputs)
        for number, arrived in inputs.items():
            if arrived.rows:
                self._last_rows[number] = self._now()

    def tend(self, last_deadline: int | None) -> None:
        """Move what is idle. All of it goes no further than to the last deadline, because the watermark is kept, and
        newer rows must not be late for it."""
        # What a batch in progress holds is not known yet, only what was known when it began.
        now = self._now() if self._batch_began is None else self._batch_began
        idle = {number for number, last in enumerate(self._last_rows) if now - last > self._idle_after}
        if len(idle) == len(self._ticks):
            if self._batch_began is None:
                self.move(last_deadline)
        elif idle:
            others = [time for number, time in enumerate(self.latest) if number not in idle]
            known = [time for time in others if time is not None]
            if len(known) == len(others):
                for number in idle:
                    self._ticks[number].reach(min(known), self.latest[number])

    def move(self, watermark: int | None) -> bool:
        """Let the next batch move the watermark to this, unless all sources are there."""
        if watermark is None:
            return False
        moved = [ticks.move(watermark, latest) for ticks, latest in zip(self._ticks, self.latest, strict=True)]
        return any(moved)
