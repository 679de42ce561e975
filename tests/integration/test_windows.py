"""Windows through Spark: what a user finds in the target, in the result and among the dead letters."""

import json
import os
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from itertools import product
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ematix_flow import (
    Aggregation,
    DuckDBConnection,
    ObjectStoreLocalConnection,
    Window,
    run_pipeline,
    run_streaming_pipeline,
    udaf,
)
from ematix_flow.errors import FlowError, UsageError
from ematix_flow.result import RunResult
from ematix_flow.streams.replay import replay
from ematix_flow.streams.run import run_spec
from ematix_flow.streams.runner import BatchReport
from ematix_flow.toml import load_toml
from ematix_flow.windows.aggregates.errors import WindowFailed
from tests.kernels.session_oracle import Oracle as SessionOracle
from tests.kernels.window_oracle import WindowOracle
from tests.orders import Orders, aggregation
from tests.waiting import wait_for

pytestmark = pytest.mark.usefixtures("spark")

SCHEMA = "user string, amount long, at timestamp"
ONE_FILE = 'max_files_per_batch = 1\nevent_time_column = "at"'
SUMS = aggregation("count", "n") + aggregation("sum", "total", column="amount")


def at(second: float) -> str:
    """Seconds after 2026-01-01T00:00:00Z."""
    return datetime.fromtimestamp(1_767_225_600 + second, UTC).isoformat()


def click(user: str | None, amount: int | None, second: float) -> dict[str, Any]:
    return {"user": user, "amount": amount, "at": at(second)}


def run(orders: Orders, window: str, *, flush: bool = True, **declared: Any) -> RunResult:
    return run_pipeline(config_str=text(orders, window, **declared), bounded=True, flush=flush)


def text(orders: Orders, window: str, *, lateness_ms: int = 0, idle_ms: int = 60_000, **declared: Any) -> str:
    watermark = f"[watermark]\nlateness_ms = {lateness_ms}\nsource_idleness_ms = {idle_ms}\n"
    return orders.toml(
        source=declared.pop("source", ONE_FILE),
        schema=SCHEMA,
        more=f'{watermark}[transform.window]\ngroup_by = ["user"]\n{window}\n{SUMS}',
        **declared,
    )


def found(orders: Orders, columns: str = "user, n, total") -> list[tuple[Any, ...]]:
    """Beginning and end in seconds, then the columns."""
    ends = "epoch(window_start) - 1767225600, epoch(window_end) - 1767225600"
    return orders.in_database(
        f"SELECT {ends}, {columns.replace('user', chr(34) + 'user' + chr(34))} FROM orders ORDER BY ALL"
    )


def test_tumbling_windows_close_once_and_what_comes_later_is_counted(orders: Orders) -> None:
    tumbling = 'kind = "tumbling"\nduration_ms = 10000'
    orders.arrive("0.jsonl", [click("a", 1, 0), click("a", 2, 9.999999), click(None, 4, 10), click("b", None, 3)])
    orders.arrive("1.jsonl", [click("a", 8, 12), click("a", 16, 5), {"user": "a", "amount": 5}])
    orders.arrive("2.jsonl", [click("a", 32, 9), click("c", 64, 25)])

    # 12 s minus 2 is the watermark for the third file, so 9 s is late; 25 - 2 closes the second window at the end.
    first = run(orders, tumbling, flush=False, lateness_ms=2000, on_error="drop")
    assert found(orders) == [(0, 10, "a", 3, 19), (0, 10, "b", 1, None), (10, 20, "a", 1, 8), (10, 20, None, 1, 4)]
    assert first.rows_consumed == 9
    assert first.rows_written == {"orders": 4}
    assert (first.late_rows, first.dropped_rows, first.dlq_rows) == ({"drop": 1}, {"event_time": 1}, {})
    assert first.watermark == datetime.fromisoformat(at(23))

    # The next run goes on with the window that was left open, and flushes to its end and no further.
    orders.arrive("3.jsonl", [click("c", 1, 29)])
    second = run(orders, tumbling, lateness_ms=2000, on_error="drop")
    assert found(orders)[4:] == [(20, 30, "c", 2, 65)]
    assert (second.rows_consumed, second.late_rows, second.watermark) == (1, {}, datetime.fromisoformat(at(30)))

    # A flush does not make newer rows late, and closes nothing twice.
    orders.arrive("4.jsonl", [click("c", 1, 29), click("d", 7, 30)])
    third = run(orders, tumbling, lateness_ms=2000, on_error="drop")
    assert found(orders)[5:] == [(30, 40, "d", 1, 7)]
    assert third.late_rows == {"drop": 1}


@pytest.mark.parametrize(
    ("source", "batches", "queries"), [('event_time_column = "at"', (2, 2), 2), (ONE_FILE, (4, 3), 3)]
)
def test_what_is_open_is_closed_by_a_batch_of_the_same_query(
    orders: Orders, source: str, batches: tuple[int, int], queries: int
) -> None:
    """The batch after the rows, if they come in one; otherwise Spark has to find first that there are no more rows. It
    does not look if these have not moved the watermark, and then a tick is needed."""
    tumbling = 'kind = "tumbling"\nduration_ms = 10000'
    orders.arrive("0.jsonl", [click("a", 1, 0), click("a", 2, 12)])
    orders.arrive("1.jsonl", [click("a", 4, 13)])
    starts: list[object] = []
    (spec,) = load_toml(text=text(orders, tumbling, source=source, lateness_ms=2000))
    first = run_spec(spec, bounded=True, on_start=starts.append)
    assert found(orders) == [(0, 10, "a", 1, 1), (10, 20, "a", 2, 6)]
    assert (first.batches, first.watermark) == (batches[0], datetime.fromisoformat(at(20)))
    orders.arrive("2.jsonl", [click("a", 8, 19), click("a", 16, 20)])
    second = run_spec(spec, bounded=True, on_start=starts.append)
    assert found(orders)[2:] == [(20, 30, "a", 1, 16)]
    assert (second.batches, second.late_rows) == (batches[1], {"drop": 1})
    assert second.watermark == datetime.fromisoformat(at(30))
    assert len(starts) == queries


@pytest.mark.parametrize(("step", "batch"), [("release", 0), ("plan", 1), ("save", 1)])
def test_a_run_that_is_killed_before_its_windows_close_closes_them_in_the_next(
    orders: Orders, step: str, batch: int
) -> None:
    tumbling = 'kind = "tumbling"\nduration_ms = 10000'
    orders.arrive("0.jsonl", [click("a", 1, 0), click("a", 2, 12)])
    (spec,) = load_toml(text=text(orders, tumbling, source='event_time_column = "at"'))

    def die(at_step: str, number: int) -> None:
        if (at_step, number) == (step, batch):
            raise KeyError(at_step)

    with pytest.raises(FlowError):
        run_spec(spec, bounded=True, on_step=die)
    # A run in between that leaves open what is open changes nothing.
    run_spec(spec, bounded=True, flush=False)
    # Rows that have come since are in time, because the plan of what was killed is not theirs.
    orders.arrive("1.jsonl", [click("a", 4, 25)])
    result = run_spec(spec, bounded=True)
    assert found(orders) == [(0, 10, "a", 1, 1), (10, 20, "a", 1, 2), (20, 30, "a", 1, 4)]
    assert (result.late_rows, result.watermark) == ({}, datetime.fromisoformat(at(30)))


def test_hopping_windows_are_emitted_again_when_they_change(orders: Orders) -> None:
    hopping = 'kind = "hopping"\nduration_ms = 10000\nhop_ms = 5000\nlate_data = "reopen"\nallowed_lateness_ms = 10000'
    merged = {"table": 'mode = "merge"\nkeys = ["window_start", "user"]', "targets": ("duckdb", "json_lines")}
    orders.arrive("0.jsonl", [click("a", 1, -3), click("a", 2, 4), click("b", 4, 20)])
    orders.arrive("1.jsonl", [click("a", 8, 6), click("a", 16, -7), click("b", 32, 21)])
    orders.arrive("2.jsonl", [click("a", 64, 12)])
    result = run(orders, hopping, **merged)

    # The watermark is 20 s for the second file and 21 s for the third, so windows up to 10 s and 11 s are final.
    assert found(orders, "user, n, total, _revision") == [
        (-10, 0, "a", 1, 1, 0),
        (-5, 5, "a", 2, 3, 0),
        (0, 10, "a", 1, 2, 0),
        (5, 15, "a", 2, 72, 1),
        (10, 20, "a", 1, 64, 0),
        (15, 25, "b", 2, 36, 0),
        (20, 30, "b", 2, 36, 0),
    ]
    assert result.late_rows == {"reopen": 2, "drop": 1}
    again = [row for row in orders.in_files() if row["window_start"].startswith("2026-01-01T00:00:05")]
    assert [(row["total"], row["_revision"]) for row in again] == [(8, 0), (72, 1)]


def test_late_rows_are_kept_as_they_were_though_bad_ones_fail(orders: Orders) -> None:
    tumbling = 'kind = "tumbling"\nduration_ms = 10000\nlate_data = "dlq"'
    late = json.dumps(click("a", 2, 1))
    orders.arrive("0.jsonl", [click("a", 1, 15)])
    orders.arrive("1.jsonl", [late, click("a", 4, 16)])
    result = run(orders, tumbling)

    assert found(orders) == [(10, 20, "a", 2, 5)]
    assert (result.late_rows, result.dlq_rows) == ({"dlq": 1}, {"late": 1})
    (letter,) = orders.dead_letters()
    assert (letter.stage, letter.payload) == ("late", late.encode())
    assert letter.position.endswith("1.jsonl#1")
    assert letter.event_ts == datetime.fromisoformat(at(1))

    # By itself it would be a second window with one row.
    with pytest.raises(UsageError, match="would not meet the rows"):
        replay(load_toml(text=text(orders, tumbling))[0])


def test_too_many_groups_stop_the_pipeline_and_nothing_is_lost(orders: Orders) -> None:
    tumbling = 'kind = "tumbling"\nduration_ms = 10000\nmax_groups_per_window = {}'
    orders.arrive("0.jsonl", [click("a", 1, 0), click("b", 1, 1)])
    run(orders, tumbling.format(2), flush=False)
    orders.arrive("1.jsonl", [click("c", 1, 2)])
    with pytest.raises(WindowFailed) as caught:
        run(orders, tumbling.format(2))
    said = str(caught.value)
    assert said.startswith(
        "the window that begins at 2026-01-01 00:00:00 UTC has 3 groups, and max_groups_per_window is 2"
    )

    run(orders, tumbling.format(3))
    assert found(orders) == [(0, 10, user, 1, 1) for user in "abc"]


def test_too_many_values_stop_the_pipeline_which_goes_on_with_a_higher_limit(orders: Orders) -> None:
    def limited(most: int) -> str:
        exact = aggregation("count_distinct", "values", column="amount", mode="exact")
        return f'kind = "tumbling"\nduration_ms = 10000\n{exact}max_distinct_values_per_group = {most}'

    orders.arrive("0.jsonl", [click("a", 1, 0), click("a", 2, 1)])
    run(orders, limited(2), flush=False)
    orders.arrive("1.jsonl", [click("a", 3, 2)])
    with pytest.raises(WindowFailed, match="more than 2 distinct values of amount"):
        run(orders, limited(2))

    run(orders, limited(3))
    assert found(orders, '"values", n') == [(0, 10, 3, 3)]


def test_sessions_grow_merge_and_take_back_what_they_absorbed(orders: Orders) -> None:
    sessions = 'kind = "session"\ngap_ms = 10000\nlate_data = "reopen"\nallowed_lateness_ms = 80000'
    merged = {"table": 'mode = "merge"\nkeys = ["session_id"]', "targets": ("duckdb", "json_lines")}
    orders.arrive("0.jsonl", [click("a", 1, 0), click("a", 2, 10), click("a", 4, 35), click("b", 8, 90)])
    # Each of the first two sessions of a has ended, and one row bridges them.
    orders.arrive("1.jsonl", [click("a", 16, 18), click("a", 32, 27), click("b", 64, 91)])
    result = run(orders, sessions, **merged)

    assert found(orders, "user, n, total, _revision") == [(0, 45, "a", 5, 55, 1), (90, 101, "b", 2, 72, 0)]
    assert result.late_rows == {"reopen": 2}
    # Files have no rows to take back: what was emitted stays, and the newer revision comes after it.
    assert [(row["user"], row["total"], row["_revision"]) for row in orders.in_files()] == [
        ("a", 3, 0),
        ("a", 4, 0),
        ("a", 55, 1),
        ("b", 72, 0),
    ]
    ids = [row["session_id"] for row in orders.in_files()]
    assert ids[0] == ids[2] != ids[1]


POLICIES = {"drop": 0, "dlq": 0, "reopen": 4_000}
LENGTHS = {"tumbling": (5, 5), "hopping": (6, 4), "session": (2, 0)}
# One every time, all of them with the slow tests.
OFTEN = (("hopping", "reopen"),)


@pytest.mark.parametrize(
    ("kind", "late"),
    [pytest.param(*case, marks=[pytest.mark.slow] * (case not in OFTEN)) for case in product(LENGTHS, POLICIES)],
)
def test_a_random_history_comes_out_as_the_oracle_says(orders: Orders, kind: str, late: str) -> None:
    """What the kernels are tested with, through files, Spark's watermark and a target, in two runs."""
    (duration, hop), allowed = LENGTHS[kind], POLICIES[late]
    oracle = (
        SessionOracle(duration * 1_000_000, None, late == "reopen", allowed * 1000)
        if kind == "session"
        else WindowOracle(duration * 1_000_000, hop * 1_000_000, late, allowed * 1000)
    )
    declared = f'kind = "{kind}"\nlate_data = "{late}"\n'
    declared += f"gap_ms = {duration}000\n" if kind == "session" else f"duration_ms = {duration}000\n"
    declared += f"hop_ms = {hop}000\n" if kind == "hopping" else ""
    declared += f"allowed_lateness_ms = {allowed}\n" if late == "reopen" else ""

    chance, watermark = Random(f"{kind} {late}"), -(2**62)
    expected: Counter[Any] = Counter()
    late_rows: Counter[str] = Counter()
    for number in range(5):
        clicks = [
            (chance.choice(["a", "b", None]), chance.choice([None, 1, 2, 4]), number * 6 + chance.randrange(-12, 8))
            for _ in range(12)
        ]
        orders.arrive(f"{number}.jsonl", [click(user, amount, second) for user, amount, second in clicks])
        rows = [(user, amount, second * 1_000_000) for user, amount, second in clicks]
        step(oracle, rows, watermark, late, expected, late_rows)
        watermark = max(watermark, *(micros - 1_000_000 for _, _, micros in rows))
    step(oracle, [], watermark, late, expected, late_rows)
    step(oracle, [], 2**61, late, expected, late_rows)

    target = {"lateness_ms": 1000, "targets": ("json_lines",)}
    first = run(orders, declared, flush=False, **target)
    second = run(orders, declared, **target)
    columns = ["user", "n", "total", *(["_revision"] if late == "reopen" else [])]
    assert Counter(in_files(orders, *columns)) == expected
    assert Counter(first.late_rows) + Counter(second.late_rows) == late_rows
    assert len(orders.dead_letters()) == late_rows["dlq"]


def step(
    oracle: Any, rows: list[Any], watermark: int, late: str, expected: Counter[Any], late_rows: Counter[str]
) -> None:
    """Adds what the oracle emits, with times in seconds, and what it says is late."""
    if isinstance(oracle, WindowOracle):
        emitted, _, counts = oracle.step(rows, watermark)
        late_rows.update(counts)
        expected.update((start // 1_000_000, end // 1_000_000, *row[:3], *row[4:]) for start, end, *row in emitted)
        return
    oracle.step([((user,), amount, micros) for user, amount, micros in rows], watermark)
    late_rows.update({"dlq" if late == "dlq" else "drop": len(oracle.late), "reopen": oracle.reopened})
    for _, (_, start, end, (user,), count, total, *_, revision) in oracle.emitted:
        row = (start // 1_000_000, end // 1_000_000, user, count, total)
        expected[(*row, revision) if late == "reopen" else row] += 1


def in_files(orders: Orders, *columns: str) -> list[tuple[Any, ...]]:
    """Beginning and end in seconds, then the columns."""
    return [
        (*(seconds(row[name]) for name in ("window_start", "window_end")), *(row.get(name) for name in columns))
        for row in orders.in_files()
    ]


def seconds(time: str) -> int:
    return int(datetime.fromisoformat(time).timestamp()) - 1_767_225_600


def test_a_quiet_stream_closes_its_windows_and_what_comes_later_is_late(orders: Orders) -> None:
    """Also when the silence goes on over a restart."""
    window = 'kind = "tumbling"\nduration_ms = 10000'
    tumbling = text(orders, window, lateness_ms=5000, idle_ms=1000, targets=("json_lines",))
    emitted = partial(in_files, orders, "user", "n", "total")
    orders.arrive("0.jsonl", [click("a", 1, 3), click("a", 2, 12)])
    with consuming(tumbling) as reports:
        wait_for(lambda: emitted() == [(0, 10, "a", 1, 1), (10, 20, "a", 1, 2)])
        # Its window was emitted, so the row is late; it does not come as a second, partial window.
        orders.arrive("1.jsonl", [click("a", 4, 12), click("b", 8, 21)])
        wait_for(lambda: sum(each.consumed for each in reports) == 4)
    assert sum((each.windows.late for each in reports if each.windows), Counter[str]()) == {"drop": 1}

    with consuming(tumbling):
        wait_for(lambda: emitted()[2:] == [(20, 30, "b", 1, 8)])


@contextmanager
def consuming(declaration: str) -> Iterator[list[BatchReport]]:
    """A daemon, and what its batches tell."""
    (spec,), stop = load_toml(text=declaration), threading.Event()
    reports: list[BatchReport] = []
    with ThreadPoolExecutor(1) as thread:
        daemon = thread.submit(run_spec, spec, stop=stop, on_batch=reports.append)
        try:
            yield reports
        finally:
            stop.set()
            daemon.result(timeout=60)


@udaf(args=["long"], state=["long"], returns="long", name="product")
class Product:
    def __init__(self) -> None:
        self.so_far = 1

    def update_batch(self, values: pa.Array) -> None:
        for value in values.drop_null().to_pylist():
            self.so_far *= value

    def merge_batch(self, states: pa.Array) -> None:
        self.update_batch(states)

    def state(self) -> list[pa.Array]:
        return [pa.array([self.so_far])]

    def evaluate(self) -> int:
        return self.so_far


def test_aggregates_of_every_sort_in_one_window(orders: Orders) -> None:
    """Declared in Python, over all rows together, with an aggregate of the user's own."""
    orders.arrive("0.jsonl", [click("a", 2, 0), click("b", 3, 1), click("a", None, 2)])
    orders.arrive("1.jsonl", [click("b", 7, 3)])
    names = {"count": None, "count_col": "amount", "avg": "amount", "first": "user", "last": "user", "max": "user"}
    names |= {"count_distinct": "user", "variance": "amount", "percentile": "amount", "collect_list": "amount"}
    names |= {"arg_max": "amount", "product": "amount"}
    run_streaming_pipeline(
        name="orders",
        source=ObjectStoreLocalConnection(path=str(orders.inbox), format="json_lines"),
        schema=SCHEMA,
        event_time_column="at",
        window=Window(
            kind="tumbling",
            duration_ms=10_000,
            aggregations=[Aggregation(agg=agg, as_=f"the_{agg}", column=column) for agg, column in names.items()],
        ),
        aggregate_udfs=[Product],
        target=DuckDBConnection(path=str(orders.database)),
        target_table="orders",
        bounded=True,
    )
    ((_, _, *row),) = orders.in_database("SELECT * EXCLUDE (the_arg_max), epoch(the_arg_max) - 1767225600 FROM orders")
    assert row == [4, 3, 4.0, "a", "b", "b", 2, 7.0, 3.0, [2, 3, 7], 42, 3.0]


@pytest.mark.parametrize("files", [*(pytest.param(some, marks=pytest.mark.slow) for some in (1, 7)), 40])
def test_a_backlog_in_order_loses_no_row_whatever_the_batches(orders: Orders, files: int) -> None:
    rows, per_second = 100_000, 20_000
    for number in range(40):
        clock = 1_767_225_600_000_000 + (np.arange(rows) + number * rows) * (1_000_000 // per_second)
        times = pa.array(clock).cast(pa.timestamp("us", "UTC"))
        users = pa.array(np.arange(rows) % 7).cast("string")
        file = orders.inbox / f"{number:02}.parquet"
        pq.write_table(pa.table({"user": users, "amount": pa.array(np.full(rows, 2)), "at": times}), file)
        os.utime(file, (1_767_225_600 + number,) * 2)
    source = f'max_files_per_batch = {files}\nevent_time_column = "at"'
    tumbling, limits = 'kind = "tumbling"\nduration_ms = 10000', {"lateness_ms": 2000, "on_error": "drop"}
    result = run(orders, tumbling, source=source, form="parquet", **limits)

    assert (result.rows_consumed, result.late_rows, result.dropped_rows) == (40 * rows, {}, {})
    windows = orders.in_database(
        "SELECT epoch(window_start) - 1767225600, sum(n), sum(total) FROM orders GROUP BY 1 ORDER BY 1"
    )
    assert windows == [(10 * number, 10 * per_second, 20 * per_second) for number in range(20)]
