"""The minimal kernel against an oracle that works row by row, over random histories."""

from collections import Counter
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from ematix_flow.state.kernel import NO_WATERMARK, TIME, from_bytes, to_bytes
from tests.counting import MINUTE, Counting

SCHEMA = pa.schema({"shop": pa.string(), "amount": pa.float64(), TIME: pa.timestamp("us", "UTC")})

# Around 1970, so that times before it occur; a few minutes, so that windows meet.
moments = st.integers(-3 * MINUTE, 3 * MINUTE)
rows = st.tuples(st.sampled_from(["a", "b", None]), st.integers(-9, 9).map(float), moments)
histories = st.lists(st.tuples(st.lists(rows, max_size=6), st.integers(0, 2 * MINUTE)), max_size=8)


class Oracle:
    def __init__(self) -> None:
        self.open: dict[tuple[int, Any], tuple[int, float]] = {}

    def step(self, rows: list[Any], watermark: int) -> tuple[Counter[Any], Counter[Any]]:
        due = [window for window in self.open if window[0] + MINUTE <= watermark]
        emitted = Counter((*window, *self.open.pop(window)) for window in due)
        late: Counter[Any] = Counter()
        for shop, amount, moment in rows:
            start = moment // MINUTE * MINUTE
            if start + MINUTE <= watermark:
                late[shop, amount, moment] += 1
            else:
                orders, total = self.open.get((start, shop), (0, 0.0))
                self.open[start, shop] = (orders + 1, total + amount)
        return emitted, late


@settings(deadline=None)  # the first example also loads code
@given(histories)
def test_it_agrees_with_the_oracle(history: list[tuple[list[Any], int]]) -> None:
    kernel, oracle = Counting(), Oracle()
    state: pa.Table | None = None
    watermark = NO_WATERMARK
    for batch, (taken, advance) in enumerate(history):
        given_state = None if state is None else from_bytes(to_bytes(state, kernel), kernel)
        done = kernel.step(given_state, pa.table(list(zip(*taken, strict=True)) or [[]] * 3, schema=SCHEMA), watermark)

        emitted, late = oracle.step(taken, watermark)
        assert Counter(_plain(done.emitted, "window_start", "shop", "orders", "amount")) == emitted
        assert Counter(_plain(done.late, *SCHEMA.names)) == late
        assert (done.state is None) == (not oracle.open)
        assert done.deadline == min((start + MINUTE for start, _ in oracle.open), default=None)
        assert done.deadline is None or done.deadline > watermark
        if given_state is not None and not emitted and late.total() == len(taken):
            assert done.state is given_state, "nothing changed, so nothing is to be written"
        state, watermark = done.state, (-4 * MINUTE if batch == 0 else watermark) + advance


def _plain(table: pa.Table, *names: str) -> list[tuple[Any, ...]]:
    columns = [table[name] for name in names]
    columns = [column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column for column in columns]
    return list(zip(*(column.to_pylist() for column in columns), strict=True))
