"""Session windows: rows of a key that follow each other within a gap, emitted once the watermark has passed them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from ematix_flow.specs.window import LateData
from ematix_flow.state.kernel import GONE, REVISION, ROWS, Slot, Step, watermark_after
from ematix_flow.windows.aggregates import Aggregates

if TYPE_CHECKING:
    import pyarrow as pa

    from ematix_flow.windows.session_spans import Bools, Ints
    from ematix_flow.windows.session_state import Shown

_MS = 1000


@dataclass(frozen=True)
class Sessions:
    """Emits a session when the watermark is past its last row + gap, or at once when a row would make it too long.

    Under `reopen` a session that was emitted is kept for a while, and emitted again when it changed. Rows that stand
    for it under another start are withdrawn then: a session that grows to the front, or merges others, has a new id.
    """

    name: ClassVar[str] = "session"
    state_version: ClassVar[int] = 1

    keys: tuple[pa.Field, ...]
    aggregates: Aggregates
    gap_us: int
    max_us: int | None
    """Longest time from the first row of a session to its last one."""
    late: LateData
    allowed_us: int
    """How long a session that was emitted can still change; only under `reopen`."""
    names: tuple[str, str, str] = ("window_start", "window_end", "session_id")

    @property
    def output(self) -> pa.Schema:
        import pyarrow as pa

        start, end, id = self.names
        moment = pa.timestamp("us", "UTC")
        session = [pa.field(start, moment), pa.field(end, moment), pa.field(id, pa.string())]
        revision = [pa.field(REVISION, pa.int64())] if self.late == "reopen" else []
        return pa.schema([*session, *self.keys, *self.aggregates.output, *revision])

    def describe(self) -> Mapping[str, str]:
        return {
            "window": f"sessions with a gap of {self.gap_us // _MS} ms",
            "aggregations": self.aggregates.describe(),
        }

    def step(self, state: pa.Table | None, rows: pa.Table, watermark: int) -> Step:
        import numpy as np

        from ematix_flow.windows.session_intake import taken
        from ematix_flow.windows.session_state import is_unseen, state_schema
        from ematix_flow.windows.session_turns import Limits

        held = state_schema(self.keys, self.aggregates).empty_table() if state is None else state
        none_cut, is_late, behind = np.zeros(held.num_rows, np.bool_), np.zeros(rows.num_rows, np.bool_), 0
        left, emitted = self._closed(held, is_unseen(held, self.gap_us), none_cut, watermark)
        if rows.num_rows:
            limits = Limits(self.gap_us, self.max_us, self._allowed, watermark)
            intake = taken(left, rows, self.keys, self.aggregates, limits)
            is_late, behind = intake.is_late, intake.behind
            if intake.changed.num_rows:
                kept, again = self._closed(intake.changed, intake.is_unseen, intake.is_cut, watermark)
                left, emitted = _together(intake.others, kept), _together(emitted, again)
        is_same = left is held
        return Step(
            state=state if is_same else left if left.num_rows else None,
            emitted=emitted,
            late=rows.filter(is_late) if self.late == "dlq" else rows.slice(0, 0),
            deadline=self._deadline(left, watermark),
            late_rows=self._late_rows(int(is_late.sum()), behind),
            slots=() if is_same else (self._slot(left, left.num_rows - held.num_rows, watermark),),
        )

    @property
    def _allowed(self) -> int:
        return self.allowed_us if self.late == "reopen" else 0

    @property
    def _emitted_schema(self) -> pa.Schema:
        import pyarrow as pa

        return self.output.append(pa.field(GONE, pa.bool_())) if self.late == "reopen" else self.output

    def _closed(self, sessions: pa.Table, unseen: Bools, is_cut: Bools, watermark: int) -> tuple[pa.Table, pa.Table]:
        """The sessions that are kept - the same table, if all are as they were - and what is emitted."""
        import numpy as np

        from ematix_flow.windows.session_state import SHOWN, START, Shown, ints

        end = self._end(sessions)
        is_due = unseen & (is_cut | (end < watermark))
        is_kept = ~is_cut & (end + self._allowed >= watermark)
        if not is_due.any():
            return sessions if is_kept.all() else sessions.filter(is_kept), self._emitted_schema.empty_table()
        shown, due = Shown.of(sessions), np.flatnonzero(is_due)
        revision = shown.revisions(len(end))[due] + 1
        emitted = self._emitted(sessions, due, revision, shown[is_due[shown.session]])
        now = Shown(due, ints(sessions, START)[due], end[due], revision)
        column = (shown[~is_due[shown.session]] + now).column(len(end))
        return sessions.drop_columns([SHOWN]).append_column(SHOWN, column).filter(is_kept), emitted

    def _emitted(self, sessions: pa.Table, due: Ints, revision: Ints, shown: Shown) -> pa.Table:
        """Sessions with their results, after the rows whose place they take."""
        import pyarrow as pa

        from ematix_flow.windows.session_state import START, ints

        rows = sessions.take(pa.array(due))
        results = self.aggregates.finish(rows.select([ROWS, *(part.name for part in self.aggregates.partials)]))
        start, end = ints(rows, START), self._end(rows)
        if self.late != "reopen":
            return self._rows(rows, start, end, results)
        present = self._rows(rows, start, end, [*results, pa.array(revision), pa.repeat(False, len(due))])
        gone = shown[shown.start != ints(sessions, START)[shown.session]]
        if not len(gone.session):
            return present
        nothing = [pa.nulls(len(gone.session), field.type) for field in self.output][-len(results) - 1 :]
        withdrawn = sessions.take(pa.array(gone.session))
        absent = self._rows(withdrawn, gone.start, gone.end, [*nothing, pa.repeat(True, len(gone.session))])
        return _together(absent, present)

    def _rows(self, sessions: pa.Table, start: Ints, end: Ints, rest: list[Any]) -> pa.Table:
        import pyarrow as pa

        from ematix_flow.windows.grouping import in_one_piece
        from ematix_flow.windows.session_keys import session_ids

        keys = [in_one_piece(sessions[key.name]) for key in self.keys]
        moments = [pa.array(times).cast(pa.timestamp("us", "UTC")) for times in (start, end)]
        return pa.table([*moments, session_ids(keys, start), *keys, *rest], schema=self._emitted_schema)

    def _end(self, sessions: pa.Table) -> Ints:
        from ematix_flow.windows.session_state import LAST, ints

        return ints(sessions, LAST) + self.gap_us

    def _late_rows(self, late: int, behind: int) -> Mapping[str, int]:
        counted = {"dlq" if self.late == "dlq" else "drop": late, "reopen": behind}
        return {what: count for what, count in counted.items() if count}

    def _deadline(self, sessions: pa.Table, watermark: int) -> int | None:
        """When the first one is to be emitted or, if it was, forgotten."""
        import numpy as np

        end = self._end(sessions)
        return watermark_after(int(np.where(end < watermark, end + self._allowed, end).min())) if len(end) else None

    def _slot(self, sessions: pa.Table, more: int, watermark: int) -> Slot:
        end = self._end(sessions)
        waiting = end[end >= watermark]
        return Slot(None, more, watermark_after(int(waiting.max())) if len(waiting) else None)


def _together(first: pa.Table, second: pa.Table) -> pa.Table:
    import pyarrow as pa

    return pa.concat_tables([first, second]).combine_chunks()
