"""Joins of two streams: rows with equal keys whose times lie near enough, and rows that stayed without a partner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ematix_flow.specs.window import LateData
from ematix_flow.state.kernel import GONE, REVISION, TIME, Buffer, Slot, Step, watermark_after

if TYPE_CHECKING:
    import pyarrow as pa

    from ematix_flow.joins.emission import Part
    from ematix_flow.joins.side_rows import SideRows

SIDE = "_flow_side"
"""Which side a row that a kernel is given belongs to: 0 left, 1 right."""

_MS = 1000
# Far beyond every time that a row can have, and still small enough to add to one.
_FOREVER = 2**60


@dataclass(frozen=True)
class Side:
    name: str
    """`left` or `right`."""
    columns: tuple[pa.Field, ...]
    """Its columns of the output, under the names they have there."""
    keys: tuple[str, ...]
    """Those of its columns that must equal the keys of the other side, in the same order."""
    outer: bool
    """Its rows are emitted also if they stay without a partner."""


@dataclass(frozen=True)
class StreamJoin:
    """Emits two rows as one if their keys are equal and `min <= right time - left time <= max`, as soon as both came.

    A row waits for partners until the watermark is past its deadline: its time + max on the left, its time - min on
    the right. A row of an outer side that has none by then is an orphan: emitted once, with NULLs for the other side.
    NULL equals nothing, so a row whose key has a NULL is an orphan or nothing.

    Under `reopen` a row can find partners for a while longer, and `_revision` tells what came of that. It is 0, but 1
    for a match of a row that was emitted as an orphan at any time before. The orphan itself is withdrawn when its row
    finds its first partners. Within one step come the orphans that were due before its rows, then what is withdrawn,
    then the matches, then the orphans among its own rows: of rows with the same key, the last one tells how things are.
    """

    name: ClassVar[str] = "join"
    state_version: ClassVar[int] = 1

    left: Side
    right: Side
    key_types: tuple[pa.DataType, ...]
    """What the keys of both sides are cast to before they are compared."""
    min_us: int
    max_us: int
    late: LateData
    allowed_us: int
    """How long after its deadline a row can still find partners; only under `reopen`."""

    @property
    def output(self) -> pa.Schema:
        import pyarrow as pa

        columns = [column.with_nullable(True) for column in (*self.left.columns, *self.right.columns)]
        return pa.schema([*columns, *([pa.field(REVISION, pa.int64())] if self.late == "reopen" else [])])

    @property
    def withdraws(self) -> bool:
        """Whether it may take back what it emitted, with `GONE`."""
        return self.late == "reopen" and (self.left.outer or self.right.outer)

    def describe(self) -> Mapping[str, str]:
        keys = zip(self.left.keys, self.right.keys, self.key_types, strict=True)
        return {
            "join": self._kind,
            "join keys": ", ".join(f"{left} = {right} ({type})" for left, right, type in keys),
            "join times": f"right - left from {_shown(self.min_us)} to {_shown(self.max_us)}",
            "left columns": ", ".join(f"{column.name} {column.type}" for column in self.left.columns),
            "right columns": ", ".join(f"{column.name} {column.type}" for column in self.right.columns),
        }

    def step(self, state: pa.Table | None, rows: pa.Table, watermark: int) -> Step:
        from ematix_flow.joins.arrivals import arrivals
        from ematix_flow.joins.cells import cells_of, state_of
        from ematix_flow.joins.emission import emitted
        from ematix_flow.joins.side_rows import SideRows

        cells, waits = cells_of(state), (_limited(self.max_us), -_limited(self.min_us))
        came, is_late = arrivals(rows, (self.left, self.right), waits, self._allowed, watermark)
        ended = watermark - self._allowed
        left, right = (SideRows.of(*each, ended) for each in zip(came, cells, waits, strict=True))
        parts = self._parts(left, right, watermark)
        is_changed = left.is_changed or right.is_changed
        if is_changed:
            cells = [side.cell() if side.is_changed else cell for side, cell in zip((left, right), cells, strict=True)]
        late = came[0].late + came[1].late
        return Step(
            state=state_of(cells) if is_changed else state,
            emitted=emitted(parts, left, right, self._emitted_schema),
            late=rows.filter(is_late) if self.late == "dlq" and late else rows.slice(0, 0),
            deadline=self._deadline(left, right),
            late_rows=self._late_rows(late, came[0].behind + came[1].behind),
            slots=(_slot(left, right, watermark),) if is_changed else (),
            buffers=_buffers((left, came[0].late), (right, came[1].late)),
        )

    @property
    def _kind(self) -> str:
        if self.left.outer:
            return "full_outer" if self.right.outer else "left_outer"
        return "right_outer" if self.right.outer else "inner"

    @property
    def _allowed(self) -> int:
        return _limited(self.allowed_us) if self.late == "reopen" else 0

    @property
    def _emitted_schema(self) -> pa.Schema:
        import pyarrow as pa

        fields = [pa.field(TIME, pa.timestamp("us", "UTC")), *([pa.field(GONE, pa.bool_())] if self.withdraws else [])]
        return pa.schema([*self.output, *fields])

    def _parts(self, left: SideRows, right: SideRows, watermark: int) -> list[Part]:
        """What is emitted, in its order."""
        from ematix_flow.joins.emission import Part
        from ematix_flow.joins.pairs import matching_pairs

        due = Part.alone(left.orphans(watermark, until=left.held), right.orphans(watermark, until=right.held))
        of_left, of_right = matching_pairs(left, right, self.key_types, _limited(self.min_us), _limited(self.max_us))
        is_again = left.is_shown[of_left] | right.is_shown[of_right]
        gone = Part.alone(left.partnered(of_left), right.partnered(of_right), is_gone=True)
        late = Part.alone(left.orphans(watermark), right.orphans(watermark))
        return [due, gone, Part(of_left, of_right, is_again), late]

    def _late_rows(self, late: int, behind: int) -> Mapping[str, int]:
        counted = {"dlq" if self.late == "dlq" else "drop": late, "reopen": behind}
        return {what: count for what, count in counted.items() if count}

    def _deadline(self, left: SideRows, right: SideRows) -> int | None:
        """When the first orphan is due. If there will be none: when all rows can be forgotten, since each call forgets
        what it can, and nobody waits for that."""
        orphans = [due for side in (left, right) if (due := side.next_orphan()) is not None]
        if orphans:
            return watermark_after(min(orphans))
        last = _last_deadline(left, right)
        return None if last is None else watermark_after(last + self._allowed)


def _slot(left: SideRows, right: SideRows, watermark: int) -> Slot:
    last = _last_deadline(left, right)
    return Slot(None, left.growth + right.growth, None if last is None or last < watermark else watermark_after(last))


def _last_deadline(left: SideRows, right: SideRows) -> int | None:
    return max((last for side in (left, right) if (last := side.last_deadline()) is not None), default=None)


def _buffers(*sides: tuple[SideRows, int]) -> tuple[Buffer, ...]:
    """Those sides that there is something to tell of."""
    return tuple(Buffer(side.side.name, side.growth, late) for side, late in sides if side.growth or late)


def _limited(duration: int) -> int:
    return max(-_FOREVER, min(duration, _FOREVER))


def _shown(duration: int) -> str:
    return f"{duration / _MS:.15g} ms"
