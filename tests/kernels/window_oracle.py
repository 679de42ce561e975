"""Tumbling and hopping windows row by row, as the documentation defines them."""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

Row = tuple[Any, Any, int]
"""Key, value and event time."""


@dataclass
class WindowOracle:
    duration: int
    hop: int
    late_data: str
    allowed: int = 0
    values: dict[tuple[int, Any], list[Any]] = field(default_factory=lambda: defaultdict(list))
    revisions: dict[tuple[int, Any], int] = field(default_factory=dict)
    closed: set[tuple[int, Any]] = field(default_factory=set)

    def step(self, rows: list[Row], watermark: int) -> tuple[list[Any], list[Row], dict[str, int]]:
        """What is emitted, the late rows, and how many there are by policy."""
        due = [w for w in self.values if w[0] + self.duration <= watermark and w not in self.closed]
        emitted = [self._emit(window) for window in due]
        late, counts, changed = [], {"drop": 0, "dlq": 0, "reopen": 0}, []
        for row in rows:
            key, value, time = row
            windows = self._starts(time)
            last_end = max(windows) + self.duration
            if last_end + self.allowed <= watermark:
                counts["dlq" if self.late_data == "dlq" else "drop"] += 1
                late.append(row)
                continue
            counts["reopen"] += last_end <= watermark
            for start in windows:
                end = start + self.duration
                if end > watermark:
                    self.values[start, key].append(value)
                elif self.late_data == "reopen" and end + self.allowed > watermark:
                    self.values[start, key].append(value)
                    if (start, key) not in changed:
                        changed.append((start, key))
        emitted += [self._emit(window) for window in changed]
        return emitted, late, {policy: count for policy, count in counts.items() if count}

    def _starts(self, time: int) -> list[int]:
        last = time // self.hop * self.hop
        return [s for s in range(last, time - self.duration, -self.hop) if s <= time < s + self.duration]

    def _emit(self, window: tuple[int, Any]) -> Any:
        self.closed.add(window)
        self.revisions[window] = self.revisions.get(window, -1) + 1
        known = [value for value in self.values[window] if value is not None]
        revision = (self.revisions[window],) if self.late_data == "reopen" else ()
        start, key = window
        count = len(self.values[window])
        total = sum(known) if known else None
        return (start, start + self.duration, key, count, total, min(known, default=None), *revision)
