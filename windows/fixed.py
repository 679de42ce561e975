"""Tumbling and hopping windows: rows are aggregated into panes, and panes are combined into the windows they lie in.

A pane is as long as both the duration and the distance of two windows can be divided by, so that each window is whole
panes. A tumbling window is one pane.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from ematix_flow.specs.window import LateData
from ematix_flow.state.kernel import NO_WATERMARK, REVISION, ROWS, TIME, Slot, Step
from ematix_flow.windows.aggregates import Aggregates
from ematix_flow.windows.grouping import Hashed, grouped, possibly_among

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    Times = npt.NDArray[np.int64]

PANE = "_flow_pane"
_START, _CHANGED, _UNTIL = "_flow_start", "_flow_changed", b"emitted until"
# Above so many, the keys of overlapping windows are not told apart: a window then counts as many as its fullest pane.
_COUNTED_EXACTLY = 2_000_000


@dataclass(frozen=True)
class FixedWindows:
    """Emits [start, start + duration) once the watermark has reached its end; under `reopen` again when it changed."""

    name: ClassVar[str] = "window"
    # 2: keys are spread over buckets otherwise.
    state_version: ClassVar[int] = 2

    keys: tuple[pa.Field, ...]
    aggregates: Aggregates
    duration_us: int
    hop_us: int
    late: LateData
    allowed_us: int
    """How long an emitted window can still change; 0 except under `reopen`."""
    aggregated: bool
    """Rows come as panes that `prepared` has made of them."""
    names: tuple[str, str] = ("window_start", "window_end")

    @property
    def pane_us(self) -> int:
        return math.gcd(self.duration_us, self.hop_us)

    @property
    def output(self) -> pa.Schema:
        import pyarrow as pa

        moment = pa.timestamp("us", "UTC")
        ends = [pa.field(name, moment) for name in self.names]
        revision = [pa.field(REVISION, pa.int64())] if self.late == "reopen" else []
        return pa.schema([*ends, *self.keys, *self.aggregates.output, *revision])

    def describe(self) -> Mapping[str, str]:
        return {
            "window": f"{self.duration_us // 1000} ms every {self.hop_us // 1000} ms",
            "late_data": self.late,
            "aggregations": self.aggregates.describe(),
        }

    def prepared(self, rows: pa.Table) -> pa.Table:
        """Rows as panes, before they are brought together from wherever they are."""
        panes = self.aggregates.start(self._with_pane(rows), [PANE, *self._names])
        return panes.rename_columns([TIME if name == PANE else name for name in panes.column_names])

    def step(self, state: pa.Table | None, rows: pa.Table, watermark: int) -> Step:
        held = _Held.of(state, self)
        emitted = self._combined(self._spread(held.panes, _between(held.until, watermark)))
        taken, late, late_rows = self._taken(rows, watermark)
        is_stale = self._last_end(_micros(held.panes, PANE)) + self.allowed_us <= watermark
        if state is not None and not (emitted.num_rows or taken.num_rows or is_stale.any()):
            return Step(state, self.output.empty_table(), late, self._deadline(held.panes, watermark), late_rows)
        results, records = self._numbered(emitted, held.records)
        panes = held.panes.filter(~is_stale) if is_stale.any() else held.panes
        if taken.num_rows:
            panes = self._joined(panes, taken)
            if self.late == "reopen":
                changed, records = self._numbered(self._changed(panes, taken, watermark), records)
                results = _together([results, changed])
        records = records.filter(_micros(records, _START) + self.duration_us + self.allowed_us > watermark)
        left = _Held(panes, records, watermark)
        return Step(
            state=left.as_table(),
            emitted=self._finished(results),
            late=late,
            deadline=self._deadline(panes, watermark),
            late_rows=late_rows,
            slots=self._slots(held.panes, panes, watermark),
        )

    @property
    def _names(self) -> list[str]:
        return [key.name for key in self.keys]

    @property
    def _by(self) -> list[str]:
        return [_START, *self._names]

    def _with_pane(self, rows: pa.Table) -> pa.Table:
        import pyarrow as pa

        time = _micros(rows, TIME)
        return rows.append_column(PANE, pa.array(time - time % self.pane_us))

    def _last_end(self, pane: Times) -> Times:
        """The end of the last window that a pane lies in."""
        return pane - pane % self.hop_us + self.duration_us

    def _taken(self, rows: pa.Table, watermark: int) -> tuple[pa.Table, pa.Table, Mapping[str, int]]:
        """The panes of the rows that are in time, the rows that are not where they are kept, and how many are late."""
        import numpy as np

        nothing = rows.slice(0, 0)
        if self.aggregated:
            rows = rows.rename_columns([PANE if name == TIME else name for name in rows.column_names])
            rows = rows.set_column(rows.column_names.index(PANE), PANE, rows[PANE].cast("int64"))
        else:
            rows = self._with_pane(rows)
        end = self._last_end(_micros(rows, PANE))
        is_late, is_behind = end + self.allowed_us <= watermark, end <= watermark
        stands_for = _counts(rows) if self.aggregated else np.ones(len(rows), dtype=np.int64)
        policy = "dlq" if self.late == "dlq" else "drop"
        late_rows = {policy: int(stands_for[is_late].sum()), "reopen": int(stands_for[is_behind & ~is_late].sum())}
        late = rows.filter(is_late).drop_columns([PANE]) if self.late == "dlq" else nothing
        taken = rows.filter(~is_late) if is_late.any() else rows
        if not self.aggregated:
            taken = self.aggregates.start(taken, [PANE, *self._names])
        return taken, late, {policy: count for policy, count in late_rows.items() if count}

    def _joined(self, panes: pa.Table, taken: pa.Table) -> pa.Table:
        """Panes that nothing was added to stay as they are, so that the work follows the keys touched, not the keys
        held."""
        by, taken = [PANE, *self._names], taken.select(panes.column_names)
        if len(taken) >= len(panes):
            return self.aggregates.merge(_together([panes, taken]), by)
        is_touched = possibly_among(panes, taken, by)
        merged = self.aggregates.merge(_together([panes.filter(is_touched), taken]), by)
        return _together([panes.filter(~is_touched), merged])

    def _spread(self, panes: pa.Table, wanted: Callable[[Times], npt.NDArray[np.bool_]]) -> pa.Table:
        """Each pane once per wanted window that it lies in, with the start of the window instead of its own."""
        import pyarrow as pa

        pane = _micros(panes, PANE)
        last = pane - pane % self.hop_us
        pieces = []
        for back in range(-(-self.duration_us // self.hop_us)):
            start = last - back * self.hop_us
            lies_in = (start + self.duration_us > pane) & wanted(start + self.duration_us)
            piece = panes.filter(lies_in)
            pieces.append(piece.set_column(0, _START, pa.array(start[lies_in])))
        return _together(pieces)

    def _combined(self, spread: pa.Table) -> pa.Table:
        """Windows of panes that were spread over them; their results are still to be finished."""
        is_whole = self.hop_us == self.duration_us
        return spread if is_whole or not spread.num_rows else self.aggregates.merge(spread, self._by)

    def _changed(self, panes: pa.Table, taken: pa.Table, watermark: int) -> pa.Table:
        """The windows that were emitted before these rows came: only those that they are in, of their keys."""
        import pyarrow as pa

        is_open_again = _between(watermark - self.allowed_us, watermark)
        touched, spread = self._spread(taken, is_open_again), self._spread(panes, is_open_again)
        marks = _together([
            spread.select(self._by).append_column(_CHANGED, pa.repeat(False, len(spread))),
            touched.select(self._by).append_column(_CHANGED, pa.repeat(True, len(touched))),
        ])  # fmt: skip
        ((is_changed,),) = grouped(marks, self._by, [Hashed([(marks[_CHANGED], "any")])]).answers
        return self._combined(spread).filter(is_changed)

    def _numbered(self, windows: pa.Table, records: pa.Table) -> tuple[pa.Table, pa.Table]:
        """With the revision of each, and what to remember of them and of earlier ones."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if self.late != "reopen":
            return windows, records
        new = windows.select(self._by).append_column(REVISION, pa.nulls(len(windows), pa.int64()))
        both = _together([new, records])
        # The windows come first, in their order.
        known = grouped(both, self._by, [Hashed([(both[REVISION], "max")])])
        ((before,),) = known.answers
        here = pc.add(pc.fill_null(before.slice(0, len(windows)), -1), 1)
        revisions = pa.concat_arrays([here, before.slice(len(windows))])
        return windows.append_column(REVISION, here), pa.table([*known.keys, revisions], schema=both.schema)

    def _finished(self, windows: pa.Table) -> pa.Table:
        import pyarrow as pa

        start = _micros(windows, _START)
        ends = [pa.array(start), pa.array(start + self.duration_us)]
        keys = [windows[name] for name in self._names]
        revision = [windows[REVISION]] if self.late == "reopen" else []
        results = self.aggregates.finish(windows)
        columns = [
            _cast(each, f.type) for each, f in zip([*ends, *keys, *results, *revision], self.output, strict=True)
        ]
        return pa.Table.from_arrays(columns, schema=self.output)

    def _deadline(self, panes: pa.Table, watermark: int) -> int | None:
        """The end of the first window that is not emitted yet, or the time at which a pane can be forgotten."""
        import numpy as np

        if not panes.num_rows:
            return None
        pane = panes[PANE].unique().to_numpy()
        first = pane - self.duration_us
        first_end = first - first % self.hop_us + self.hop_us + self.duration_us
        hops = np.maximum(0, (watermark - first_end) // self.hop_us + 1)
        next_end, last_end = first_end + hops * self.hop_us, self._last_end(pane)
        return int(np.where(next_end <= last_end, next_end, last_end + self.allowed_us).min())

    def _slots(self, before: pa.Table, after: pa.Table, watermark: int) -> tuple[Slot, ...]:
        old, new = self._sizes(before), self._sizes(after)
        return tuple(
            Slot(
                start,
                new.get(start, 0) - old.get(start, 0),
                end if (end := start + self.duration_us) > watermark else None,
            )
            for start in sorted({*old, *new})
            if old.get(start) != new.get(start)
        )

    def _sizes(self, panes: pa.Table) -> dict[int, int]:
        """How many keys each window has."""
        if self.hop_us == self.duration_us:
            starts, counts = _counted(panes, PANE)
        elif len(panes) * (self.duration_us // self.hop_us) <= _COUNTED_EXACTLY:
            spread = self._spread(panes.select([PANE, *self._names]), _between(NO_WATERMARK, -NO_WATERMARK))
            distinct = spread.group_by(self._by, use_threads=False).aggregate([])
            starts, counts = _counted(distinct, _START)
        else:
            pane, filled = _counted(panes, PANE)
            sizes: dict[int, int] = {}
            for each, keys in zip(pane.tolist(), filled.tolist(), strict=True):
                last = each - each % self.hop_us
                for start in range(last, each - self.duration_us, -self.hop_us):
                    sizes[start] = max(sizes.get(start, 0), keys)
            return sizes
        return dict(zip(starts.tolist(), counts.tolist(), strict=True))


@dataclass(frozen=True)
class _Held:
    """What a group keeps."""

    panes: pa.Table
    """`PANE`, the keys, `ROWS` and the unfinished results."""
    records: pa.Table
    """Which windows were emitted, of which keys, with the last revision of each; empty except under `reopen`."""
    until: int
    """Windows up to this end are emitted, or were empty."""

    @classmethod
    def of(cls, state: pa.Table | None, kernel: FixedWindows) -> _Held:
        import pyarrow as pa
        import pyarrow.compute as pc

        fields = [pa.field(PANE, pa.int64()), *kernel.keys, pa.field(ROWS, pa.int64()), *kernel.aggregates.partials]
        remembered = [pa.field(_START, pa.int64()), *kernel.keys, pa.field(REVISION, pa.int64())]
        if state is None:
            return cls(pa.schema(fields).empty_table(), pa.schema(remembered).empty_table(), NO_WATERMARK)
        until = int(state.schema.metadata[_UNTIL])
        if REVISION not in state.column_names:
            return cls(state.replace_schema_metadata(None), pa.schema(remembered).empty_table(), until)
        is_record = pc.is_valid(state[REVISION])
        records = state.filter(is_record).select([PANE, *(key.name for key in kernel.keys), REVISION])
        panes = state.filter(pc.invert(is_record)).drop_columns([REVISION])
        return cls(panes.replace_schema_metadata(None), records.rename_columns([f.name for f in remembered]), until)

    def as_table(self) -> pa.Table | None:
        import pyarrow as pa

        if not self.panes.num_rows and not self.records.num_rows:
            return None
        table = self.panes
        if self.records.num_rows:
            records = self.records.rename_columns([PANE, *self.records.column_names[1:]])
            table = pa.concat_tables([table, records], promote_options="default")
        return table.replace_schema_metadata({_UNTIL: str(self.until)})


def _between(after: int, until: int) -> Callable[[Times], npt.NDArray[np.bool_]]:
    return lambda end: (end > after) & (end <= until)


def _micros(table: pa.Table, column: str) -> Times:
    times: Times = table[column].cast("int64").to_numpy()
    return times


def _counted(table: pa.Table, column: str) -> tuple[Times, Times]:
    """The values that a column has, and how often it has each. They are few, so that sorting would take longer."""
    found = table[column].value_counts()
    return found.field("values").to_numpy(), found.field("counts").to_numpy()


def _counts(table: pa.Table) -> Times:
    counts: Times = table[ROWS].to_numpy()
    return counts


def _together(tables: list[pa.Table]) -> pa.Table:
    import pyarrow as pa

    return pa.concat_tables(tables)


def _cast(column: Any, wanted: pa.DataType) -> Any:
    return column if column.type == wanted else column.cast(wanted)
