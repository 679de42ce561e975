"""Joins of two streams against an oracle that works row by row, over random histories."""

import pickle
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ematix_flow.joins.cells import cells_of, read
from ematix_flow.joins.kernel import SIDE, Side, StreamJoin
from ematix_flow.joins.sieve import sieved
from ematix_flow.specs.window import LateData
from ematix_flow.state.kernel import GONE, NO_WATERMARK, TIME, Step, from_bytes, to_bytes
from tests.kernels.join_oracle import LEFT, MS, RIGHT, Emitted, Key, Oracle, Row

MOMENT = pa.timestamp("us", "UTC")
NAMES = ("left", "right")
COLUMNS = (
    (pa.field("left_who", pa.string()), pa.field("left_no", pa.int32()), pa.field("left_number", pa.int64())),
    (pa.field("right_number", pa.int64()), pa.field("right_who", pa.string()), pa.field("right_no", pa.int64())),
)
KEYS = (("left_who", "left_no"), ("right_who", "right_no"))
TYPES = (pa.string(), pa.int64())
SCHEMA = pa.schema(
    [
        pa.field(SIDE, pa.int8()),
        pa.field(TIME, MOMENT),
        *COLUMNS[LEFT],
        *COLUMNS[RIGHT],
        pa.field("payload", pa.int64()),
    ]
)
WHO: tuple[Key, ...] = (("a", 7), ("a", 8), ("a", None), (None, 7))
KINDS = {"inner": (False, False), "left": (True, False), "right": (False, True), "full": (True, True)}


def join(
    outer: tuple[bool, bool] = (False, False),
    least: int = -5 * MS,
    most: int = 5 * MS,
    late: LateData = "drop",
    allowed: int = 0,
    keys: int = 1,
) -> StreamJoin:
    left, right = (Side(NAMES[side], COLUMNS[side], KEYS[side][:keys], outer[side]) for side in (LEFT, RIGHT))
    return StreamJoin(left, right, TYPES[:keys], least, most, late, allowed)


@dataclass(frozen=True)
class History:
    kernel: StreamJoin
    lateness: int
    batches: list[list[Row]]
    wakes: list[bool]
    """After which batches Spark has time to call a group that is due."""


@st.composite
def histories(draw: st.DrawFn) -> History:
    late: LateData = draw(st.sampled_from(["reopen", "drop", "dlq"]))
    least = draw(st.integers(-12, 10)) * MS // 2
    kernel = join(
        outer=draw(st.sampled_from(list(KINDS.values()))),
        least=least,
        most=least + draw(st.integers(0, 12)) * MS // 2,
        late=late,
        allowed=draw(st.integers(0, 20)) * MS if late == "reopen" else 0,
        keys=draw(st.integers(1, 2)),
    )
    # Around 1970 and not in whole milliseconds only. Each batch begins where the one before did, or further on.
    now, batches, number = -20, [], 0
    for move in draw(st.lists(st.integers(0, 12), min_size=1, max_size=8)):
        now += move
        times = st.tuples(st.integers(now - 30, now + 10), st.sampled_from([0, 0, 1, -1]))
        drawn = draw(st.lists(st.tuples(st.integers(LEFT, RIGHT), st.sampled_from(WHO), times), max_size=8))
        batch = []
        for side, who, (halves, more) in drawn:
            batch.append(Row(side, who[: len(kernel.key_types)], number, halves * MS // 2 + more))
            number += 1
        batches.append(batch)
    wakes = draw(st.lists(st.booleans(), min_size=len(batches), max_size=len(batches)))
    return History(kernel, draw(st.integers(0, 6)) * MS, batches, wakes)


def agrees(history: History) -> None:
    run = Run(history.kernel)
    for rows, wakes in zip(history.batches, history.wakes, strict=True):
        run.step(rows)
        run.advance(max((row.time // MS * MS - history.lateness for row in rows), default=NO_WATERMARK))
        if wakes and run.is_due:
            run.step([])
    if run.last_deadline is not None:
        run.advance(run.last_deadline)
        run.step([])
    assert run.oracle.last_deadline(run.watermark) is None, "a flush leaves nothing that waits"
    while run.deadline is not None:
        run.advance(run.deadline)
        run.step([])
    assert run.state is None
    assert run.held == 0
    assert run.buffered == {"left": 0, "right": 0}


class Run:
    """Steps the kernel and the oracle together; the state goes through bytes."""

    def __init__(self, kernel: StreamJoin) -> None:
        self.kernel: StreamJoin = pickle.loads(pickle.dumps(kernel))
        outer = (kernel.left.outer, kernel.right.outer)
        self.oracle = Oracle(kernel.min_us, kernel.max_us, outer, kernel.late == "reopen", kernel.allowed_us)
        self.state: pa.Table | None = None
        self.watermark = NO_WATERMARK
        self.deadline: int | None = None
        self.last_deadline: int | None = None
        self.times: dict[tuple[int, int | None], int] = {}
        """Of all rows, by side and number."""
        self.held = 0
        self.buffered = {"left": 0, "right": 0}

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
        self.times |= {(row.side, row.number): row.time for row in rows}

        self.same_rows(done)
        self.same_late_rows(done, table)
        self.same_state(done, given_state)
        self.same_buffers(done)
        self.state, self.deadline = done.state, done.deadline

    def same_rows(self, done: Step) -> None:
        withdraws = self.kernel.late == "reopen" and (self.kernel.left.outer or self.kernel.right.outer)
        assert done.emitted.schema.names == [*self.kernel.output.names, TIME, *([GONE] if withdraws else [])]
        assert shown(done.emitted) == self.oracle.emitted
        both = [((LEFT, left), (RIGHT, right)) for left, right, *_ in self.oracle.emitted]
        latest = [max(self.times[row] for row in rows if row[1] is not None) for rows in both]
        assert done.emitted[TIME].cast(pa.int64()).to_pylist() == latest

    def same_late_rows(self, done: Step, table: pa.Table) -> None:
        late = {row.number for row in self.oracle.late}
        counts = {"dlq" if self.kernel.late == "dlq" else "drop": len(late), "reopen": self.oracle.reopened}
        assert done.late_rows == {what: n for what, n in counts.items() if n}
        kept = [row for row in table.to_pylist() if row["payload"] in late and self.kernel.late == "dlq"]
        assert done.late.schema == SCHEMA
        assert done.late.to_pylist() == kept

    def same_state(self, done: Step, given_state: pa.Table | None) -> None:
        held = len(self.oracle.held)
        assert done.deadline == self.oracle.deadline()
        assert done.deadline is None or done.deadline > self.watermark
        cells = cells_of(done.state)
        assert [read(cell).num_rows if cell else 0 for cell in cells] == self.held_by_side()
        assert (done.state is None) == (held == 0)
        for side, (before, after) in enumerate(zip(cells_of(given_state), cells, strict=True)):
            is_same = before is after is None or (before and after and before.address == after.address)
            assert is_same or side in self.oracle.changed, "this side was written again for nothing"
        if not self.oracle.changed:
            assert done.state is given_state, "nothing changed, so nothing is to be written"
            assert not done.slots
            return
        (slot,) = done.slots
        self.held += slot.groups
        self.last_deadline = slot.deadline
        assert (slot.start, self.held, slot.deadline) == (None, held, self.oracle.last_deadline(self.watermark))

    def same_buffers(self, done: Step) -> None:
        late = dict.fromkeys(NAMES, 0)
        for buffer in done.buffers:
            assert buffer.rows or buffer.late
            self.buffered[buffer.side] += buffer.rows
            late[buffer.side] += buffer.late
        assert list(self.buffered.values()) == self.held_by_side()
        assert list(late.values()) == [sum(row.side == side for row in self.oracle.late) for side in (LEFT, RIGHT)]

    def held_by_side(self) -> list[int]:
        return [sum(row.side == side for row in self.oracle.held) for side in (LEFT, RIGHT)]


def table_of(rows: list[Row]) -> pa.Table:
    given_rows = []
    for row in rows:
        who, no, *_ = (*row.key, None, None)
        name = NAMES[row.side]
        own = {f"{name}_who": who, f"{name}_no": no, f"{name}_number": row.number}
        given_rows.append({SIDE: row.side, "payload": row.number, **own})
    table = pa.Table.from_pylist(given_rows, SCHEMA)
    times = pa.array([row.time for row in rows], pa.int64()).cast(MOMENT)
    return table.set_column(1, SCHEMA.field(TIME), times)


def shown(emitted: pa.Table) -> list[Emitted]:
    return [
        (row["left_number"], row["right_number"], row.get("_revision"), row.get(GONE, False))
        for row in emitted.to_pylist()
    ]


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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("late", "allowed"), [("drop", 0), ("dlq", 0), ("reopen", 15)])
def test_it_agrees_over_many_keys_at_once(
    kind: str, late: LateData, allowed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What small histories cannot show: keys side by side, and the sieve that only many rows are worth."""
    monkeypatch.setattr("ematix_flow.joins.pairs._WORTH_SIEVING", 2)
    chance = Random(7)
    kernel = join(KINDS[kind], -2 * MS, 3 * MS, late, allowed * MS, keys=2)
    batches, number = [], iter(range(10_000))
    for now in range(0, 50, 10):
        keys: list[Key] = [(chance.choice(["a", "b", None]), chance.choice([*range(30), None])) for _ in range(150)]
        times = [chance.randrange((now - 20) * MS, (now + 10) * MS, 250) for _ in keys]
        sides = [chance.randrange(2) for _ in keys]
        batches.append([Row(*row) for row in zip(sides, keys, number, times, strict=False)])
    agrees(History(kernel, 3 * MS, batches, [True] * len(batches)))


def test_bounds_are_inclusive_on_both_ends() -> None:
    kernel = join(least=-2 * MS, most=5 * MS)
    times = [-2 * MS - 1, -2 * MS, 0, 5 * MS, 5 * MS + 1]
    rows = [Row(LEFT, ("a",), 0, 0), *(Row(RIGHT, ("a",), n, time) for n, time in enumerate(times))]

    assert shown(step(kernel, rows).emitted) == [(0, n, None, False) for n in (1, 2, 3)]


@pytest.mark.parametrize("longest", [10**13, 2**63, 10**30])
def test_bounds_may_be_longer_than_all_time(longest: int) -> None:
    kernel = join((True, True), -longest, longest, "reopen", longest)
    last = 253_402_300_799 * 1000 * MS
    rows = [Row(LEFT, ("a",), 0, -62_135_596_800 * 1000 * MS), Row(RIGHT, ("a",), 0, last), Row(LEFT, ("b",), 1, last)]
    for watermark in (NO_WATERMARK, last):
        done = kernel.step(None, table_of(rows), watermark)
        assert shown(done.emitted) == [(0, 0, 0, False)] * (longest > 10**13)
        assert not done.late_rows or longest == 10**13


def test_null_keys_are_orphans_or_nothing() -> None:
    rows = [Row(side, key, side, 0) for key in (("a", None), (None, 7), (None, None)) for side in (LEFT, RIGHT)]
    nothing = step(join(keys=2), rows)
    assert (nothing.state, nothing.emitted.num_rows, nothing.deadline, nothing.slots) == (None, 0, None, ())

    kernel = join((True, False), keys=2)
    done = step(kernel, rows)
    assert not done.emitted.num_rows
    assert [buffer.side for buffer in done.buffers] == ["left"]
    due = kernel.step(done.state, table_of([]), 5 * MS + MS)
    assert shown(due.emitted) == [(0, None, None, False)] * 3


def test_a_side_that_never_produced_makes_orphans_of_the_other() -> None:
    kernel = join((True, False))
    done = step(kernel, [Row(LEFT, ("a",), n, n * MS) for n in range(3)])
    assert done.deadline == 6 * MS
    assert kernel.step(done.state, table_of([]), 5 * MS).state is done.state, "a row has its deadline to itself"

    first = kernel.step(done.state, table_of([]), 6 * MS)
    assert first.emitted.drop_columns([TIME]).to_pylist() == [
        {"left_who": "a", "left_no": None, "left_number": 0, "right_number": None, "right_who": None, "right_no": None}
    ]
    assert first.deadline == 7 * MS
    rest = kernel.step(first.state, table_of([]), 8 * MS)
    assert (shown(rest.emitted), rest.state) == ([(1, None, None, False), (2, None, None, False)], None)


def test_an_inner_join_is_woken_once_to_forget_its_rows() -> None:
    kernel = join(late="reopen", allowed=10 * MS)
    done = step(kernel, [Row(LEFT, ("a",), 0, 0), Row(RIGHT, ("b",), 0, 3 * MS)])

    assert done.deadline == (3 + 5 + 10 + 1) * MS
    assert done.slots[0].deadline == (3 + 5 + 1) * MS
    assert kernel.step(done.state, table_of([]), 19 * MS).state is None


@pytest.mark.parametrize(("late", "counted", "kept"), [("drop", "drop", 0), ("dlq", "dlq", 1), ("reopen", "drop", 0)])
def test_a_late_row_matches_nothing_and_is_no_orphan(late: LateData, counted: str, kept: int) -> None:
    kernel = join((True, True), late=late)
    held = step(kernel, [Row(RIGHT, ("a",), 0, 5 * MS)], 6 * MS)
    done = kernel.step(held.state, table_of([Row(LEFT, ("a",), 0, 0)]), 6 * MS)

    assert (done.late_rows, done.late.num_rows, done.emitted.num_rows) == ({counted: 1}, kept, 0)
    assert done.state is held.state
    assert [(buffer.side, buffer.rows, buffer.late) for buffer in done.buffers] == [("left", 0, 1)]
    in_time = kernel.step(held.state, table_of([Row(LEFT, ("a",), 0, MS)]), 6 * MS)
    assert (in_time.late_rows, in_time.emitted.num_rows) == ({}, 1)


def test_an_orphan_is_withdrawn_when_its_row_finds_partners() -> None:
    kernel = join((True, True), late="reopen", allowed=100 * MS)
    first = step(kernel, [Row(LEFT, ("a",), 0, 0), Row(LEFT, ("b",), 1, 0)])
    ended = kernel.step(first.state, table_of([]), 6 * MS)
    assert shown(ended.emitted) == [(0, None, 0, False), (1, None, 0, False)]

    late = [Row(RIGHT, ("a",), 0, 0), Row(RIGHT, ("a",), 1, 5 * MS), Row(RIGHT, ("c",), 2, 0)]
    found = kernel.step(ended.state, table_of(late), 6 * MS)
    assert found.late_rows == {"reopen": 2}
    assert shown(found.emitted) == [(0, None, None, True), (0, 0, 1, False), (0, 1, 1, False), (None, 2, 0, False)]
    again = kernel.step(found.state, table_of([Row(RIGHT, ("a",), 3, 1), Row(LEFT, ("a",), 2, 3 * MS)]), 6 * MS)
    assert shown(again.emitted) == [(0, 3, 1, False), (2, 0, 0, False), (2, 1, 0, False), (2, 3, 0, False)]
    assert again.deadline == (5 + 5 + 100 + 1) * MS, "no orphan is to come, so this forgets everything"


def test_an_orphan_that_is_due_is_emitted_before_the_rows_that_withdraw_it() -> None:
    kernel = join((True, False), late="reopen", allowed=100 * MS)
    first = step(kernel, [Row(LEFT, ("a",), 0, 0)])
    done = kernel.step(first.state, table_of([Row(RIGHT, ("a",), 0, 5 * MS)]), 6 * MS)

    assert shown(done.emitted) == [(0, None, 0, False), (0, None, None, True), (0, 0, 1, False)]


NOON = datetime(2024, 2, 29, 12, tzinfo=UTC)
FAR_APART = [-(2**63), 0, 2**63 - 1]


@pytest.mark.parametrize(
    ("left", "right", "common", "values"),
    [
        *((kind, kind, kind, [0, 1, 2]) for kind in (pa.int8(), pa.int16(), pa.int32(), pa.uint8())),
        (pa.int64(), pa.int64(), pa.int64(), FAR_APART),
        (pa.uint64(), pa.uint64(), pa.uint64(), [0, 2**63, 2**64 - 1]),
        (pa.int32(), pa.int64(), pa.int64(), [-(2**31), 0, 2**31 - 1]),
        (pa.int64(), pa.float64(), pa.float64(), [0, 1, 2**53]),
        (pa.int32(), pa.decimal128(9, 2), pa.decimal128(12, 2), [0, 1, -5]),
        (pa.float64(), pa.float64(), pa.float64(), [0.0, 1.5, float("nan")]),
        (pa.float32(), pa.float64(), pa.float64(), [0.0, 1.5, float("inf")]),
        (pa.decimal128(38, 2), pa.decimal128(38, 2), pa.decimal128(38, 2), [Decimal("1.50"), Decimal(-1), Decimal(0)]),
        (pa.string(), pa.string(), pa.string(), ["", "é", "e"]),
        (pa.string(), pa.large_string(), pa.large_string(), ["", "é", "e"]),
        (pa.binary(), pa.binary(), pa.binary(), [b"", b"\0", b"\0\0"]),
        (pa.bool_(), pa.bool_(), pa.bool_(), [True, False]),
        (pa.date32(), pa.date32(), pa.date32(), [date(1969, 12, 31), date(1970, 1, 1), date(9999, 1, 1)]),
        (MOMENT, MOMENT, MOMENT, [NOON, NOON.replace(microsecond=1), NOON.replace(year=4)]),
        (pa.timestamp("us"), pa.timestamp("us"), pa.timestamp("us"), [0, 1, -1]),
    ],
    ids=str,
)
def test_any_type_can_be_a_key(left: pa.DataType, right: pa.DataType, common: pa.DataType, values: list[Any]) -> None:
    """Held and new rows of both sides, in the chunks that rows come in."""
    kernel, rows = keyed(left, right, common, [*values, None], [None, *reversed(values)])
    first = kernel.step(None, rows, NO_WATERMARK)
    again = kernel.step(from_bytes(to_bytes(first.state, kernel), kernel), rows, NO_WATERMARK)

    size = len(values)
    wanted = {(n, size - n) for n in range(size)}
    assert set(zip(*first.emitted.select(["left_n", "right_n"]).to_pydict().values(), strict=True)) == wanted
    assert first.emitted.num_rows == size
    assert again.emitted.num_rows == 3 * size


def test_zeros_are_equal_and_so_are_nans() -> None:
    other_nan = np.array([0x7FF8000000000123], np.int64).view(np.float64)[0]
    kernel, rows = keyed(pa.float64(), pa.float64(), pa.float64(), [-0.0, float("nan")], [0.0, other_nan])
    done = kernel.step(None, rows, NO_WATERMARK)

    assert done.emitted.select(["left_n", "right_n"]).to_pydict() == {"left_n": [0, 1], "right_n": [0, 1]}
    assert np.signbit(done.emitted["left_key"][0].as_py()), "what is emitted is what came"


def keyed(
    left: pa.DataType, right: pa.DataType, common: pa.DataType, of_left: list[Any], of_right: list[Any]
) -> tuple[StreamJoin, pa.Table]:
    sides = [
        Side(name, (pa.field(f"{name}_key", kind), pa.field(f"{name}_n", pa.int64())), (f"{name}_key",), False)
        for name, kind in zip(NAMES, (left, right), strict=True)
    ]
    pieces = []
    for number, (side, values) in enumerate(zip(sides, (of_left, of_right), strict=True)):
        size = len(values)
        own = [pa.array(values, side.columns[0].type), pa.array(range(size), pa.int64())]
        other = [pa.nulls(size, column.type) for column in sides[1 - number].columns]
        times = pa.array([0] * size, pa.int64()).cast(MOMENT)
        columns = [*own, *other] if number == LEFT else [*other, *own]
        names = [SIDE, TIME, *(column.name for each in sides for column in each.columns)]
        pieces.append(pa.table([pa.array([number] * size, pa.int8()), times, *columns], names=names))
    return StreamJoin(sides[LEFT], sides[RIGHT], (common,), 0, 0, "drop", 0), pa.concat_tables(pieces)


@pytest.mark.parametrize("kind", ["inner", "full"])
def test_one_key_for_all_rows_is_not_compared_row_by_row(kind: str) -> None:
    """200,000 rows of a side make 40 billion comparisons, or sorted ones a fraction of a second."""
    size = 200_000
    kernel = replace(join(KINDS[kind]), min_us=-1, max_us=1)
    held = kernel.step(None, of_one_key(size, LEFT, 10), NO_WATERMARK)
    done = kernel.step(held.state, of_one_key(size, RIGHT, 10), NO_WATERMARK)

    assert done.emitted.num_rows == size
    assert done.emitted["left_number"].equals(done.emitted["right_number"])


def of_one_key(size: int, side: int, apart: int) -> pa.Table:
    columns = {field.name: pa.nulls(size, field.type) for field in SCHEMA}
    columns[SIDE] = pa.repeat(pa.scalar(side, pa.int8()), size)
    columns[TIME] = pa.array(np.arange(size) * apart).cast(MOMENT)
    columns[f"{NAMES[side]}_who"] = pa.repeat("a", size)
    columns[f"{NAMES[side]}_number"] = pa.array(np.arange(size))
    return pa.table(columns, schema=SCHEMA)


def test_times_that_do_not_fit_beside_the_keys_are_numbered() -> None:
    """Two keys that lie 2 billion apart, and times that span ten thousand years."""
    kernel, rows = keyed(pa.int64(), pa.int64(), pa.int64(), [0, 2**31 - 1] * 2, [2**31 - 1, 0] * 2)
    years = [-62_135_596_800_000_000, 253_402_300_799_000_000]
    times = [moment for _ in NAMES for year in years for moment in (year, year)]
    rows = rows.set_column(1, TIME, pa.array(times, pa.int64()).cast(MOMENT))
    done = replace(kernel, min_us=-1, max_us=1).step(None, rows, NO_WATERMARK)

    assert done.emitted.select(["left_n", "right_n"]).to_pydict() == {"left_n": [0, 1, 2, 3], "right_n": [1, 0, 3, 2]}


@pytest.mark.parametrize(("least", "most"), [(0, 0), (-3, 4), (-40, -30), (5, 900)])
def test_the_sieve_lets_every_pair_through_and_little_else(least: int, most: int) -> None:
    chance = np.random.default_rng(7)
    sides = [(chance.integers(0, 500, 2_000), chance.integers(-100_000, 100_000, 2_000)) for _ in NAMES]
    (key_left, time_left), (key_right, time_right) = sides
    distance = time_right[None, :] - time_left[:, None]
    matches = (key_left[:, None] == key_right[None, :]) & (distance >= least) & (distance <= most)
    may_left, may_right = sieved(sides[LEFT], sides[RIGHT], least, most)

    assert not (matches.any(axis=1) & ~may_left).any()
    assert not (matches.any(axis=0) & ~may_right).any()
    assert may_left.mean() < 0.3
    assert may_right.mean() < 0.3


def test_all_that_its_state_depends_on_is_described() -> None:
    kernel = join((True, False), keys=2)
    assert kernel.describe() == {
        "join": "left_outer",
        "join keys": "left_who = right_who (string), left_no = right_no (int64)",
        "join times": "right - left from -5 ms to 5 ms",
        "left columns": "left_who string, left_no int32, left_number int64",
        "right columns": "right_number int64, right_who string, right_no int64",
    }
    assert replace(kernel, late="dlq").describe() == kernel.describe()


@pytest.mark.parametrize(("before", "after"), [("drop", "reopen"), ("reopen", "drop"), ("dlq", "reopen")])
def test_the_policy_for_late_rows_may_change_between_two_starts(before: LateData, after: LateData) -> None:
    old, new = (join((True, True), late=late, allowed=20 * MS * (late == "reopen")) for late in (before, after))
    first = step(old, [Row(LEFT, ("a",), 0, 0), Row(RIGHT, ("b",), 0, 0)])
    state = from_bytes(to_bytes(first.state, old), new)
    done = new.step(state, table_of([Row(RIGHT, ("a",), 1, 0)]), 5 * MS)

    assert shown(done.emitted)[0][:2] == (0, 1)


def step(kernel: StreamJoin, rows: list[Row], watermark: int = NO_WATERMARK) -> Step:
    return kernel.step(None, table_of(rows), watermark)
