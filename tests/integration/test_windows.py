"""Windows through Spark: what a user finds in the target, in the result and among the dead letters."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from ematix_flow import run_pipeline
from ematix_flow.result import RunResult
from ematix_flow.windows.aggregates.errors import WindowFailed
from tests.orders import Orders

pytestmark = pytest.mark.usefixtures("spark")

SCHEMA = "user string, amount long, at timestamp"
ONE_FILE = 'max_files_per_batch = 1\nevent_time_column = "at"'
SUMS = """
[[transform.window.aggregations]]
agg = "count"
as = "n"
[[transform.window.aggregations]]
agg = "sum"
column = "amount"
as = "total"
"""


def at(second: float) -> str:
    """Seconds after 2026-01-01T00:00:00Z."""
    return datetime.fromtimestamp(1_767_225_600 + second, UTC).isoformat()


def click(user: str | None, amount: int | None, second: float) -> dict[str, Any]:
    return {"user": user, "amount": amount, "at": at(second)}


def run(orders: Orders, window: str, *, flush: bool = True, lateness_ms: int = 0, **declared: Any) -> RunResult:
    text = orders.toml(
        source=declared.pop("source", ONE_FILE),
        schema=SCHEMA,
        more=f'[watermark]\nlateness_ms = {lateness_ms}\n[transform.window]\ngroup_by = ["user"]\n{window}\n{SUMS}',
        **declared,
    )
    return run_pipeline(config_str=text, bounded=True, flush=flush)


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


def test_too_many_groups_stop_the_pipeline_and_nothing_is_lost(orders: Orders) -> None:
    tumbling = 'kind = "tumbling"\nduration_ms = 10000\nmax_groups_per_window = {}'
    orders.arrive("0.jsonl", [click("a", 1, 0), click("b", 1, 1)])
    run(orders, tumbling.format(2), flush=False)
    orders.arrive("1.jsonl", [click("c", 1, 2)])
    with pytest.raises(WindowFailed) as caught:
        run(orders, tumbling.format(2))
    said = str(caught.value)
    assert "2026-01-01 00:00:00 UTC has 3 groups" in said
    assert "max_groups_per_window is 2" in said

    run(orders, tumbling.format(3))
    assert found(orders) == [(0, 10, user, 1, 1) for user in "abc"]
