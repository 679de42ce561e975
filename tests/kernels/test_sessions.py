"""Session windows against an oracle that works row by row, over random histories."""

import pickle
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ematix_flow.specs.window import Aggregation, LateData
from ematix_flow.state.kernel import GONE, NO_WATERMARK, TIME, Step, from_bytes, to_bytes
from ematix_flow.windows.aggregates import aggregates_for
from ematix_flow.windows.sessions import Sessions
from tests.kernels.session_oracle import MS, Oracle, Row

KEYS = (pa.field("who", pa.string()), pa.field("no", pa.int32()))
WHO = (("a", 7), (None, None), ("a", None))
MOMENT = pa.timestamp("us", "UTC")
SCHEMA = pa.schema([*KEYS, pa.field("value", pa.int64()), pa.field(TIME, MOMENT), pa.field("payload", pa.int64())])
AGGREGATES = aggregates_for(
    [
        Aggregation(agg="count", as_="n"),
        *(Aggregation(agg=agg, as_=agg, column="value") for agg in ("sum", "first", "last", "collect_list")),
    ],
    SCHEMA,
    (),
    TIME,
)


@dataclass(frozen=True)
class History:
    kernel: Sessions
    lateness: int
    batches: list[list[Row]]
    wakes: list[bool]
    """After which batches Spark has time to call a group that is due."""


@st.composite
def histories(draw: st.DrawFn) -> History:
    late: LateData = draw(st.sampled_from(["reopen", "drop", "dlq"]))
    kernel = Sessions(
        keys=KEYS[: draw(st.integers(0, 2))],
        aggregates=AGGREGATES,
        gap_us=draw(st.integers(1, 5)) * MS,
        max_us=draw(st.none() | st.integers(1, 15).map(lambda n: n * MS)),
        late=late,
        allowed_us=draw(st.integers(0, 20)) * MS if late == "reopen" else 0,
    )
    # Around 1970 and not in whole milliseconds only. Each batch begins where the one before did, or further on.
    now, batches = -20, []
    for move in draw(st.lists(st.integers(0, 12), min_size=1, max_size=8)):
        now += move
        keys_and_times = draw(st.lists(st.tuples(st.sampled_from(WHO), st.integers(now - 30, now + 10)), max_size=8))
        batches.append([(who[: len(kernel.keys)], time * MS // 2) for who, time in keys_and_times])
    numbers = iter(range(1_000))
    rows = [[(key, None if (n := next(numbers)) % 5 == 3 else n, time) for key, time in batch] for batch in batches]
    wakes = draw(st.lists(st.booleans(), min_size=len(batches), max_size=len(batches)))
    return History(kernel, draw(st.integers(0, 6)) * MS, rows, wakes)


def agrees(history: History) -> None:
    run = Run(history.kernel)
    for rows, wakes in zip(history.batches, history.wakes, strict=True):
        run.step(rows)
        run.advance(max((time // MS * MS - history.lateness for _, _, time in rows), default=NO_WATERMARK))
        if wakes and run.is_due:
            run.step([])
    if run.last_emission is not None:
        run.advance(run.last_emission)
        run.step([])
    assert run.last_emission is None, "a flush leaves nothing that is not emitted"
    while run.deadline is not None:
        run.advance(run.deadline)
        run.step([])
    assert run.state is None
    assert run.held == 0


class Run:
    """Steps the kernel and the oracle together; the state goes through bytes."""

    def __init__(self, kernel: Sessions) -> None:
        self.kernel: Sessions = pickle.loads(pickle.dumps(kernel))
        reopens = kernel.late == "reopen"
        self.oracle = Oracle(kernel.gap_us, kernel.max_us, reopens, kernel.allowed_us)
        self.state: pa.Table | None = None
        self.watermark = NO_WATERMARK
        self.deadline: int | None = None
        self.last_emission: int | None = None
        self.held = 0
        self.ids: dict[str, tuple[Any, ...]] = {}

    @property
    def is_due(self) -> bool:
        return self.deadline is not None and self.deadline <= self.watermark

    def advance(self, watermark: int) -> None:
        self.watermark = max(self.watermark, watermark)

    def step(self, rows: list[Row]) -> None:
        given_state = None if self.state is None else from_bytes(to_bytes(self.state, self.kernel), self.kernel)
        table = table_of(rows)
        done = self.kernel.step(given_state, table, self.watermark)
        self.oracle.step(rows, self.watermark)

        self.same_rows(done)
        self.same_late_rows(done, table)
        self.same_state(done, given_state)
        self.state, self.deadline = done.state, done.deadline

    def same_rows(self, done: Step) -> None:
        assert done.emitted.schema.names == [
            *self.kernel.output.names,
            *([GONE] if self.kernel.late == "reopen" else []),
        ]
        rows = [self.plain(row) for row in done.emitted.cast(plain_schema(done.emitted.schema)).to_pylist()]
        wanted = [row for withdrawn, row in self.oracle.emitted for row in [*withdrawn, row]]
        assert Counter(rows) == Counter(wanted)
        for withdrawn, row in self.oracle.emitted:
            assert all(rows.index(each) < rows.index(row) for each in withdrawn)

    def plain(self, row: dict[str, Any]) -> tuple[Any, ...]:
        key = tuple(row[field.name] for field in self.kernel.keys)
        named = (row["window_start"], key)
        assert self.ids.setdefault(row["session_id"], named) == named
        values = row["collect_list"] if row["collect_list"] is None else tuple(row["collect_list"])
        results = (row["n"], row["sum"], row["first"], row["last"], values, row.get("_revision"))
        return (row.get(GONE, False), row["window_start"], row["window_end"], key, *results)

    def same_late_rows(self, done: Step, table: pa.Table) -> None:
        late = Counter(self.oracle.late)
        what = "dlq" if self.kernel.late == "dlq" else "drop"
        assert done.late_rows == {what: n for what, n in ((what, late.total()), ("reopen", self.oracle.reopened)) if n}
        assert done.late.schema == SCHEMA
        if self.kernel.late == "dlq":
            given = table.to_pylist()
            assert all(row == given[row["payload"]] for row in done.late.to_pylist())
            kept = done.late.cast(plain_schema(SCHEMA)).to_pylist()
            names = [field.name for field in self.kernel.keys]
            assert Counter((tuple(row[name] for name in names), row["value"], row[TIME]) for row in kept) == late
        else:
            assert not done.late.num_rows

    def same_state(self, done: Step, given_state: pa.Table | None) -> None:
        held = len(self.oracle.sessions())
        assert (0 if done.state is None else done.state.num_rows) == held
        assert done.state is None or held
        assert done.deadline == self.oracle.deadline()
        assert done.deadline is None or done.deadline > self.watermark
        if not self.oracle.is_changed:
            assert done.state is given_state, "nothing changed, so nothing is to be written"
            assert not done.slots
            return
        (slot,) = done.slots
        self.held += slot.groups
        self.last_emission = slot.deadline
        assert (slot.start, self.held, slot.deadline) == (None, held, self.oracle.last_emission())


def table_of(rows: list[Row]) -> pa.Table:
    keys: list[tuple[Any, ...]] = [(*key, None, None) for key, _, _ in rows]
    columns = [[key[place] for key in keys] for place in range(len(KEYS))]
    values, times = [value for _, value, _ in rows], [time for _, _, time in rows]
    return pa.table([*columns, values, pa.array(times, pa.int64()).cast(MOMENT), range(len(rows))], schema=SCHEMA)


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Moments as numbers."""
    return pa.schema([field.with_type(pa.int64()) if field.type == MOMENT else field for field in schema])


UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@settings(UNHURRIED, max_examples=300)
@given(histories())
def test_it_agrees_with_the_oracle(history: History) -> None:
    agrees(history)


@pytest.mark.slow
@settings(UNHURRIED, max_examples=10_000)
@given(histories())
def test_it_agrees_with_the_oracle_over_and_over(history: History) -> None:
    agrees(history)


@pytest.mark.parametrize(("late", "allowed", "cap"), [("drop", 0, None), ("dlq", 0, 9), ("reopen", 15, 9)])
def test_it_agrees_over_many_keys_at_once(late: LateData, allowed: int, cap: int | None) -> None:
    """What small histories cannot show: keys side by side that merge, are late, are cut and stay as they were."""
    chance = Random(7)
    kernel = Sessions(KEYS, AGGREGATES, 2 * MS, cap and cap * MS, late, allowed * MS)
    batches = []
    for now in range(0, 50, 10):
        keys = [(chance.choice(["a", "b", None]), chance.randrange(50)) for _ in range(400)]
        batches.append([(key, chance.randrange(9), chance.randrange(now - 20, now + 10) * MS) for key in keys])
    agrees(History(kernel, 3 * MS, batches, [True] * len(batches)))


def test_a_session_that_grows_to_the_front_takes_back_what_was_shown() -> None:
    kernel = Sessions(KEYS[:1], AGGREGATES, 10 * MS, None, "reopen", 100 * MS)
    first = kernel.step(None, table_of([(("a",), 1, 50 * MS), (("a",), 2, 80 * MS)]), NO_WATERMARK)
    assert not first.emitted.num_rows
    ended = kernel.step(first.state, table_of([]), 91 * MS)
    assert shown(ended.emitted) == [(50, 60, 1, 0, False), (80, 90, 2, 0, False)]

    bridged = kernel.step(ended.state, table_of([(("a",), 4, 60 * MS), (("a",), 8, 70 * MS)]), 91 * MS)
    assert shown(bridged.emitted) == [(80, 90, None, None, True), (50, 90, 15, 1, False)]
    before = kernel.step(bridged.state, table_of([(("a",), 16, 45 * MS)]), 91 * MS)
    assert shown(before.emitted) == [(50, 90, None, None, True), (45, 90, 31, 2, False)]

    taken_back, ids = before.emitted["session_id"][0], bridged.emitted["session_id"]
    assert taken_back == ids[1] == ended.emitted["session_id"][0]
    assert ids[0] == ended.emitted["session_id"][1]
    assert before.late_rows == {"reopen": 1}
    assert before.deadline == 191 * MS, "forgotten when no row can change it any more"
    assert kernel.step(before.state, table_of([]), 191 * MS).state is None


def test_a_session_that_would_be_too_long_is_emitted_at_once() -> None:
    kernel = Sessions((), AGGREGATES, 10 * MS, 20 * MS, "drop", 0)
    rows: list[Row] = [((), 1, 0), ((), 2, 10 * MS), ((), 4, 20 * MS), ((), 8, 21 * MS)]
    done = kernel.step(None, table_of(rows), NO_WATERMARK)

    assert shown(done.emitted) == [(0, 30, 7, None, False)]
    assert done.deadline == 32 * MS


def test_ids_tell_keys_apart_and_never_change() -> None:
    fields = [pa.string(), pa.binary(), pa.int64(), pa.float64(), pa.decimal128(9, 2), pa.bool_(), pa.date32(), MOMENT]
    keys = tuple(pa.field(f"k{place}", type) for place, type in enumerate(fields))
    noon = datetime(2024, 2, 29, 12, tzinfo=UTC)
    full = ("é", b"\xff", -5, float("nan"), Decimal("1.50"), True, noon.date(), noon)
    same_text = ("1", b"1", 1, 1.0, Decimal("1.00"), True, date(1970, 1, 2), datetime(1970, 1, 1, tzinfo=UTC))
    moved = ("11", b"", *same_text[2:])
    empty = ("", b"", *same_text[2:])
    kernel = Sessions(
        keys, aggregates_for([Aggregation(agg="count", as_="n")], pa.schema(keys), (), TIME), MS, None, "drop", 0
    )
    given_keys = [full, same_text, moved, empty, (None,) * 8, (None, b"", *same_text[2:])]
    columns = [pa.array(values, key.type) for key, values in zip(keys, zip(*given_keys, strict=True), strict=True)]
    times = pa.array([0] * len(given_keys), pa.int64()).cast(MOMENT)
    rows = pa.table([*columns, times], names=[*(key.name for key in keys), TIME])

    emitted = kernel.step(kernel.step(None, rows, NO_WATERMARK).state, rows.slice(0, 0), 2 * MS).emitted
    assert emitted["n"].to_pylist() == [1] * len(given_keys)
    ids = dict(zip(emitted["k0"].to_pylist(), emitted["session_id"].to_pylist(), strict=True))
    assert len(set(emitted["session_id"].to_pylist())) == len(given_keys)
    assert (ids["é"], ids["1"]) == ("209c2e75640daf1d845a1126b8637042", "f6eb696e20e452f30dc8030c5d43bcac")


def shown(emitted: pa.Table) -> list[tuple[Any, ...]]:
    """Start and end in milliseconds, sum, revision, withdrawn or not."""
    rows = emitted.cast(plain_schema(emitted.schema)).to_pylist()
    return [
        (row["window_start"] // MS, row["window_end"] // MS, row["sum"], row.get("_revision"), row.get(GONE, False))
        for row in rows
    ]
