"""Joins of two streams through Spark: what a user finds in the target, in the result and among the dead letters."""

import json
from collections import Counter
from datetime import UTC, datetime
from decimal import Decimal
from itertools import product
from random import Random
from typing import Any

import pytest

from ematix_flow.errors import DeclarationError
from ematix_flow.testing import PipelineTest, pipeline_test
from tests.kernels.join_oracle import LEFT, RIGHT, Oracle, Row

pytestmark = pytest.mark.usefixtures("spark")

TWO = """
pipeline_name = "paid"
[[sources]]
name = "orders"
kind = "object_store_local"
path = "/unused"
format = "json_lines"
schema = "id int, item string, ts timestamp"
event_time_column = "ts"
max_files_per_batch = 1
[[sources]]
name = "payments"
kind = "object_store_local"
path = "/unused"
format = "json_lines"
schema = "order_id long, amount decimal(10,2), ts timestamp"
event_time_column = "ts"
max_files_per_batch = 1
[target]
kind = "duckdb"
path = "unused.duckdb"
[target.table]
name = "paid"
[transform.join]
left_source = "orders"
right_source = "payments"
left_keys = ["id"]
right_keys = ["order_id"]
"""
KINDS = {
    "inner": (False, False),
    "left_outer": (True, False),
    "right_outer": (False, True),
    "full_outer": (True, True),
}
OFTEN = (("full_outer", "reopen"),)
SECOND = 1_000_000
WITHIN_TEN_SECONDS = TWO + "time_window_ms = 10000\n"
UP_TO_TEN_LATER = TWO + "min_delta_ms = 0\nmax_delta_ms = 10000\n"


def at(second: float) -> str:
    return datetime.fromtimestamp(1_767_225_600 + second, UTC).isoformat()


def order(id: int | None, second: float, item: str = "book") -> dict[str, Any]:
    return {"id": id, "item": item, "ts": at(second)}


def payment(id: int | None, second: float, amount: str = "9.50") -> dict[str, Any]:
    return {"order_id": id, "amount": amount, "ts": at(second)}


def both(paid: PipelineTest, orders: list[Any], payments: list[Any]) -> None:
    paid.feed(orders, source="orders")
    paid.feed(payments, source="payments")


def found(paid: PipelineTest) -> list[tuple[Any, ...]]:
    """Key and second of both sides."""

    def second(time: datetime | None) -> float | None:
        return None if time is None else round(time.timestamp() - 1_767_225_600, 3)

    rows = [
        (row["left_id"], second(row["left_ts"]), row["right_order_id"], second(row["right_ts"])) for row in paid.rows()
    ]
    return sorted(rows, key=repr)


def test_rows_meet_within_their_bounds_however_they_come() -> None:
    with pipeline_test(WITHIN_TEN_SECONDS) as paid:
        both(paid, [order(1, 0), order(2, 5), order(None, 5)], [payment(1, 10), payment(2, 15.001), payment(None, 5)])
        first = paid.run(flush=False)
        assert found(paid) == [(1, 0, 1, 10)]
        assert (first.rows_consumed, first.rows_written) == (6, {"paid": 1})
        assert list(paid.rows()[0]) == [
            "left_id", "left_item", "left_ts", "right_order_id", "right_amount", "right_ts",
        ]  # fmt: skip
        assert paid.metric("join_buffer_rows", side="left") == 2, "the one without a key is not kept"

        # The watermark is the least of both sides, 5 s, so what happened at -4 s is still to be joined.
        both(paid, [order(2, 25, item="pen")], [payment(1, -4)])
        second = paid.run(flush=False)
        assert found(paid) == [(1, 0, 1, -4), (1, 0, 1, 10), (2, 25, 2, 15.001)]
        assert second.watermark == datetime.fromisoformat(at(15.001))
        paid.run()
        assert paid.metric("join_buffer_rows", side="left") == paid.metric("join_buffer_rows", side="right") == 0
        assert paid.metric("state_bytes") == 0


@pytest.mark.parametrize(
    "kind", ["full_outer", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("left_outer", "right_outer"))]
)
def test_rows_without_a_partner_come_once_their_time_is_over(kind: str) -> None:
    with pipeline_test(UP_TO_TEN_LATER + f'kind = "{kind}"') as paid:
        both(paid, [order(1, 0), order(2, 1), order(None, 2)], [payment(1, 5), payment(9, 12.5), payment(1, -1)])
        paid.run(flush=False)
        # The watermark is 2 s now: it has passed the payment of -1 s, which no order can follow any more.
        gone = [(None, None, 1, -1)] if kind != "left_outer" else []
        assert found(paid) == sorted([(1, 0, 1, 5), *gone], key=repr)
        paid.run()
        left = [(2, 1, None, None), (None, 2, None, None)] if kind != "right_outer" else []
        right = [(None, None, 9, 12.5), (None, None, 1, -1)] if kind != "left_outer" else []
        assert found(paid) == sorted([(1, 0, 1, 5), *left, *right], key=repr)
        again = paid.run()
        assert again.rows_written == {"paid": 0}, "once"


def test_a_side_that_never_produced_leaves_the_other_one_alone() -> None:
    with pipeline_test(WITHIN_TEN_SECONDS + 'kind = "left_outer"') as paid:
        paid.feed([order(1, 0), order(2, 50)], source="orders")
        assert paid.run(flush=False).rows_written == {"paid": 0}, "the payments may still come"
        last = paid.run()
        assert found(paid) == [(1, 0, None, None), (2, 50, None, None)]
        assert last.watermark == datetime.fromisoformat(at(60.001))


def test_late_rows_are_counted_by_side_and_match_nothing() -> None:
    late = WITHIN_TEN_SECONDS + 'kind = "full_outer"\nlate_data = "dlq"'
    with pipeline_test(late) as paid:
        both(paid, [order(1, 100)], [payment(1, 100)])
        paid.run(flush=False)
        both(paid, [order(1, 89.999), order(2, 90)], [payment(1, 89), payment(1, 85)])
        result = paid.run(flush=False)
        assert (result.late_rows, result.dlq_rows) == ({"dlq": 3}, {"late": 3})
        assert found(paid) == [(1, 100, 1, 100)]
        kept = {(letter.source, json.loads(letter.payload)["ts"]) for letter in paid.dead_letters("late")}
        assert kept == {("orders", at(89.999)), ("payments", at(89)), ("payments", at(85))}
        assert paid.metric("join_late_rows_total", side="left") == 1
        assert paid.metric("join_late_rows_total", side="right") == 2


def test_what_was_alone_is_replaced_when_a_late_partner_is_allowed() -> None:
    merged = UP_TO_TEN_LATER.replace('name = "paid"\n[tr', 'name = "paid"\nprimary_key = ["left_id"]\n[tr')
    merged = merged.replace('kind = "duckdb"', 'kind = "duckdb"\nmode = "merge"')
    reopen = 'kind = "left_outer"\nlate_data = "reopen"\nallowed_lateness_ms = 60000'
    with pipeline_test(merged + reopen) as paid:
        both(paid, [order(1, 0), order(2, 30)], [payment(7, 30)])
        paid.run(flush=False)
        assert [(row["left_id"], row["right_order_id"], row["_revision"]) for row in paid.rows()] == [(1, None, 0)]
        paid.feed([payment(1, 4)], source="payments")
        result = paid.run(flush=False)
        assert [(row["left_id"], row["right_order_id"], row["_revision"]) for row in paid.rows()] == [(1, 1, 1)]
        assert result.late_rows == {"reopen": 1}


def test_a_select_is_over_the_joined_rows() -> None:
    sql = """[transform]
on_error = "dlq"
sql = "SELECT left_id AS id, CAST(left_item AS INT) AS pages, right_amount FROM source WHERE right_amount > 1"
"""
    with pipeline_test(WITHIN_TEN_SECONDS.replace("[transform.join]", sql + "[transform.join]")) as paid:
        orders = [order(1, 0, item="300"), order(2, 0, item="many"), order(3, 0, item="x")]
        both(paid, orders, [payment(1, 1), payment(2, 1), payment(3, 1, amount="0.5")])
        result = paid.run()
        assert [(row["id"], row["pages"]) for row in paid.rows()] == [(1, 300)]
        assert result.dlq_rows == {"transform": 1}
        (letter,) = paid.dead_letters()
        assert json.loads(letter.payload)["left_item"] == "many"
        assert letter.source == "orders, payments"


def test_a_bad_join_says_what_is_wrong() -> None:
    wrong = WITHIN_TEN_SECONDS.replace('["order_id"]', '["oder_id"]')
    with pytest.raises(DeclarationError, match=r"right_keys\[0\].*order_id"), pipeline_test(wrong):
        pass
    wrong = WITHIN_TEN_SECONDS.replace('["id"]', '["item"]')
    with pipeline_test(wrong) as paid, pytest.raises(DeclarationError, match=r"string.*bigint"):
        paid.run()


@pytest.mark.slow
def test_a_window_may_follow_as_a_stage_of_its_own() -> None:
    window = """
[transform.window]
kind = "tumbling"
duration_ms = 60000
group_by = ["item"]
late_data = "dlq"
[[transform.window.aggregations]]
agg = "count"
as = "n"
[[transform.window.aggregations]]
agg = "sum"
column = "amount"
as = "amount"
"""
    sql = '[transform]\nsql = "SELECT left_item AS item, right_amount AS amount FROM source"\n'
    declared = UP_TO_TEN_LATER.replace("[transform.join]", sql + "[transform.join]") + 'kind = "left_outer"\n' + window
    with pipeline_test(declared) as paid:
        both(paid, [order(1, 5), order(2, 50), order(3, 56), order(4, 58)], [payment(1, 6), payment(3, 61)])
        first = paid.run(flush=False)
        # The payment of 61 s counts in the second minute; nothing is over yet, because partners may still come.
        assert paid.rows() == []
        assert first.rows_consumed == 6

        # What stayed alone comes out when its time is over, and is in time for its window all the same.
        both(paid, [order(5, 300)], [payment(5, 301)])
        second = paid.run(flush=False)
        minute = [(row["window_start"].minute, row["n"], row["amount"]) for row in paid.rows()]
        assert minute == [(0, 3, Decimal("9.50")), (1, 1, Decimal("9.50"))]
        assert (second.late_rows, second.rows_written) == ({}, {"paid": 2})

        last = paid.run()
        assert [row["n"] for row in paid.rows()] == [3, 1, 1]
        assert last.watermark == datetime.fromisoformat(at(360))
        assert paid.metric("rows_consumed_total") == 8
        assert paid.metric("rows_written_total", target="paid") == 3
        assert paid.metric("windows_emitted_total") == 3
        assert paid.metric("end_to_end_latency_seconds_count") == 0  # no batch that wrote had rows of its own
        assert paid.metric("state_bytes") == 0


@pytest.mark.parametrize(
    ("kind", "late"),
    [
        pytest.param(kind, late, marks=[pytest.mark.slow] * ((kind, late) not in OFTEN))
        for kind, late in product(KINDS, ("drop", "reopen", "dlq"))
    ],
)
def test_a_random_history_comes_out_as_the_oracle_says(kind: str, late: str) -> None:
    least, most, lateness, allowed = -4, 7, 3, 5 if late == "reopen" else 0
    oracle = Oracle(
        least=least * SECOND, most=most * SECOND, outer=KINDS[kind], reopens=late == "reopen", allowed=allowed * SECOND
    )
    chance, latest, watermark = Random(f"{kind} {late}"), [-(2**61)] * 2, -(2**62)
    expected: Counter[Any] = Counter()
    late_rows: Counter[str] = Counter()
    more = f'kind = "{kind}"\nlate_data = "{late}"\nmin_delta_ms = {least * 1000}\nmax_delta_ms = {most * 1000}\n'
    more += f"allowed_lateness_ms = {allowed * 1000}\n" if late == "reopen" else ""

    def step(rows: list[Row]) -> None:
        oracle.step(rows, watermark)
        expected.update((left, right) for left, right, _, gone in oracle.emitted if not gone)
        late_rows.update({"dlq" if late == "dlq" else "drop": len(oracle.late), "reopen": oracle.reopened})

    with pipeline_test(TWO + more + f"[watermark]\nlateness_ms = {lateness * 1000}\n") as paid:
        number = 0
        for batch in range(6):
            rows = []
            for side in (LEFT, RIGHT):
                for _ in range(chance.randint(1, 12)):
                    key, second = chance.choice([1, 2, 3, None]), 6 * batch + chance.randint(-8, 8)
                    rows.append(Row(side, (key,), number, second * SECOND))
                    number += 1
            both(
                paid,
                [order(row.key[0], row.time / SECOND, item=str(row.number)) for row in rows if row.side == LEFT],
                [payment(row.key[0], row.time / SECOND, str(row.number)) for row in rows if row.side == RIGHT],
            )
            step(rows)
            latest = [max(latest[side], *(row.time for row in rows if row.side == side)) for side in (LEFT, RIGHT)]
            watermark = min(latest) - lateness * SECOND
        result = paid.run()
        step([])
        watermark = max(watermark, oracle.last_deadline(watermark) or watermark)
        step([])
        found = Counter(
            (None if row["left_item"] is None else int(row["left_item"]), _whole(row["right_amount"]))
            for row in paid.rows()
        )
        assert found == expected
        assert result.late_rows == dict(+late_rows)


def _whole(amount: Decimal | None) -> int | None:
    return None if amount is None else int(amount)
