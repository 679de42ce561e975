"""Tumbling and hopping windows against an oracle that works row by row, over random histories."""

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ematix_flow.specs import Aggregation, Window
from ematix_flow.state.kernel import NO_WATERMARK, TIME, Operator, from_bytes, to_bytes
from ematix_flow.windows.operator import window_operator
from tests.kernels.window_oracle import Row, WindowOracle

MS = 1000
SCHEMA = pa.schema({"key": pa.string(), "value": pa.int64(), TIME: pa.timestamp("us", "UTC")})
AGGREGATIONS = (
    Aggregation(agg="count", as_="n"),
    Aggregation(agg="sum", column="value", as_="total"),
    Aggregation(agg="min", column="value", as_="least"),
)

# Around 1970, so that times before it occur; short, so that windows meet; some at the borders, some beside them.
moments = st.integers(-40, 40).map(lambda ms: ms * MS) | st.integers(-40 * MS, 40 * MS)
rows = st.tuples(st.sampled_from(["a", "b", None]), st.none() | st.integers(-9, 9), moments)
batches = st.lists(st.lists(rows, max_size=6), max_size=8)
lengths = st.sampled_from([(10, 10), (10, 5), (10, 4), (9, 6), (7, 1), (1, 1)])
policies = st.sampled_from([("drop", 0), ("dlq", 0), ("reopen", 0), ("reopen", 7), ("reopen", 30)])


@settings(max_examples=300, deadline=None)
@given(batches, lengths, policies, st.integers(0, 12))
def test_any_history(batches: Any, lengths: Any, policy: Any, lateness: int) -> None:
    check(batches, lengths, policy, lateness)


@pytest.mark.slow
@settings(max_examples=10_000, deadline=None)
@given(batches, lengths, policies, st.integers(0, 12))
def test_very_many_histories(batches: Any, lengths: Any, policy: Any, lateness: int) -> None:
    check(batches, lengths, policy, lateness)


def check(batches: list[list[Row]], lengths: tuple[int, int], policy: tuple[str, int], lateness: int) -> None:
    duration, hop = lengths
    late_data, allowed = policy
    window = Window(
        kind="tumbling" if duration == hop else "hopping",
        duration_ms=duration,
        hop_ms=hop,
        group_by=("key",),
        aggregations=AGGREGATIONS,
        late_data=late_data,
        allowed_lateness_ms=allowed if late_data == "reopen" else None,
    )
    operator = window_operator(window, SCHEMA, event_time="at")
    oracle = WindowOracle(duration * MS, hop * MS, late_data, allowed * MS)
    state, watermark, held, deadline = None, NO_WATERMARK, Counter[int](), None
    # In the end, far enough for every window to close and to be forgotten.
    for batch in [*batches, [], [("end", 0, 10**6 * MS)], []]:
        emitted, late, counts = oracle.step(batch, watermark)
        is_due = deadline is not None and deadline <= watermark
        if batch or is_due:
            before = from_bytes(to_bytes(state, operator.kernel), operator.kernel) if state is not None else None
            step = operator.kernel.step(before, as_given(batch, operator), watermark)
            state = step.state if step.state is not before else state
            deadline = step.deadline if state is not None else None
            assert Counter(as_rows(step.emitted)) == Counter(emitted)
            assert as_rows(step.late.select(SCHEMA.names)) == late if late_data == "dlq" else not step.late.num_rows
            assert dict(step.late_rows) == counts
            assert deadline is None or deadline > watermark
            for slot in step.slots:
                held[slot.start or 0] += slot.groups
            assert all(slot.deadline is None or slot.deadline > watermark for slot in step.slots)
        else:
            assert not emitted
        seen = [time for _, _, time in batch]
        watermark = max(watermark, *(time // MS * MS - lateness * MS for time in seen)) if seen else watermark
    assert not any(start < 10**6 * MS - duration * MS for start in held if held[start])


def as_given(batch: list[Row], operator: Operator) -> pa.Table:
    """Rows as they come to the kernel: as panes, unless late ones are to be kept."""
    keys, values, times = zip(*batch, strict=True) if batch else ((), (), ())
    table = pa.table([pa.array(keys, pa.string()), pa.array(values, pa.int64()), as_times(times)], schema=SCHEMA)
    if operator.prepared is None:
        return table
    halves = [table.slice(0, len(table) // 2), table.slice(len(table) // 2)]
    return pa.concat_tables([operator.prepared(half) for half in halves])


def as_times(micros: tuple[int, ...]) -> pa.Array:
    return pa.array(micros, pa.int64()).cast(pa.timestamp("us", "UTC"))


def as_rows(table: pa.Table) -> list[tuple[Any, ...]]:
    """With times as numbers."""
    columns = [c.cast("int64") if pa.types.is_timestamp(c.type) else c for c in table.columns]
    return list(zip(*(column.to_pylist() for column in columns), strict=True))
