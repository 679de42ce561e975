"""What an operator holds: how many groups in which windows, and when the last of them is due.

Only groups that a batch touches tell of themselves, so the sums are kept beside the checkpoint, one note per batch that
changed them; a batch that is repeated begins with the sums of the batch before it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from ematix_flow.state import durable
from ematix_flow.state.kernel import Operator, Step
from ematix_flow.state.store import Store
from ematix_flow.windows.aggregates.errors import WindowFailed

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# As many as Spark keeps plans of batches for, which is how far a pipeline can be taken back.
_KEPT = 100

Slots = dict[str, tuple[int, int | None]]
"""How many groups each has, and when it is due if it is not emitted yet."""


@dataclass(frozen=True)
class Held:
    slots: Slots = field(default_factory=dict)
    state_bytes: int = 0
    latest: tuple[int | None, ...] = ()
    """How far event time has come in each source."""
    buffers: Mapping[str, int] = field(default_factory=dict)
    """Rows that each side of a join holds."""

    @property
    def groups(self) -> int:
        return sum(groups for groups, _ in self.slots.values())

    @property
    def windows(self) -> int:
        """Of sessions, each is a window."""
        return sum(groups if name.startswith("b") else 1 for name, (groups, _) in self.slots.items())

    @property
    def last_deadline(self) -> int | None:
        return max((due for _, due in self.slots.values() if due is not None), default=None)

    def changed_by(self, notes: Iterable[Mapping[str, Any]], latest: tuple[int | None, ...]) -> Held:
        slots, size, buffers = dict(self.slots), self.state_bytes, Counter(self.buffers)
        for note in notes:
            size += note["bytes"]
            buffers.update({side: rows for side, rows, _ in note["buffers"]})
            for name, groups, due in note["slots"]:
                total = slots.get(name, (0, None))[0] + groups
                slots[name] = (total, due)
                if not total:
                    del slots[name]
        return Held(slots, size, latest, dict(buffers))

    def check(self, most: int | None) -> None:
        sessions = sum(groups for name, (groups, _) in self.slots.items() if name.startswith("b"))
        name, groups = max(((n, g) for n, (g, _) in self.slots.items()), key=lambda each: each[1], default=("", 0))
        if most is None or max(groups, sessions) <= most:
            return
        window = f"{sessions} sessions are open"
        if not sessions:
            window = f"the window that begins at {_EPOCH + timedelta(microseconds=int(name)):%Y-%m-%d %H:%M:%S %Z}"
            window += f" has {groups} groups"
        raise WindowFailed(
            f"{window}, and max_groups_per_window is {most}; nothing of the batch was written",
            next_step="raise max_groups_per_window, or group by fewer columns; then the pipeline goes on where it was",
            arrived=True,
        )


@dataclass(frozen=True)
class Told:
    """What the groups of one batch told."""

    held: Held = field(default_factory=Held)
    late: Counter[str] = field(default_factory=Counter)
    """Rows that came too late, by policy."""
    emitted: int = 0
    late_by_side: Counter[str] = field(default_factory=Counter)
    """Rows that came too late to a join."""


class OpenWindows:
    """Of one pipeline, from batch to batch."""

    def __init__(self, store: Store, operator: Operator) -> None:
        self._folder = store.checkpoint / "windows"
        self._most = operator.max_groups
        durable.make(self._folder)

    def held(self, before: int | None = None) -> Held:
        """What was held after the last batch, or before one."""
        numbers = [number for number in self._numbers() if before is None or number < before]
        if not numbers:
            return Held()
        note = json.loads((self._folder / str(max(numbers))).read_text(encoding="utf-8"))
        slots = {name: tuple(slot) for name, slot in note["slots"].items()}
        return Held(slots, note["bytes"], tuple(note["latest"]), note["buffers"])

    def told(self, batch: int, notes: Iterable[str], latest: tuple[int | None, ...]) -> Told:
        """From the notes of a batch, which fails here if a window has become too large."""
        read = [json.loads(note) for note in notes]
        held = self.held(batch).changed_by(read, latest)
        held.check(self._most)
        late = sum((Counter(note["late"]) for note in read), Counter())
        by_side = sum((Counter({side: late for side, _, late in note["buffers"]}) for note in read), Counter())
        return Told(held, late, sum(note["emitted"] for note in read), by_side)

    def remember(self, batch: int, held: Held) -> None:
        if held == self.held(batch):
            return
        note = {"slots": held.slots, "bytes": held.state_bytes, "latest": held.latest, "buffers": held.buffers}
        durable.write(self._folder / str(batch), json.dumps(note))
        old = sorted(number for number in self._numbers() if number < batch - _KEPT)
        for number in old[:-1]:
            (self._folder / str(number)).unlink()

    def _numbers(self) -> list[int]:
        return [int(file.name) for file in self._folder.iterdir() if file.name.isdecimal()]


def note_of(step: Step, bucket: int, grown: int) -> str:
    """What a group tells of a step; `grown` is by how many bytes its state did."""
    slots = [(f"b{bucket}" if s.start is None else str(s.start), s.groups, s.deadline) for s in step.slots]
    note = {"slots": slots, "bytes": grown, "late": step.late_rows, "emitted": step.emitted.num_rows}
    return json.dumps(note | {"buffers": [(buffer.side, buffer.rows, buffer.late) for buffer in step.buffers]})
