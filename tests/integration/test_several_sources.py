"""Several sources in one pipeline: their rows under each other, or SQL over their names; one watermark for all."""

import json
import threading
from datetime import UTC, datetime
from typing import Any

import pytest

from ematix_flow.errors import DeclarationError, FlowError
from ematix_flow.streams.run import run_spec
from ematix_flow.streams.transform import BadSql
from ematix_flow.testing import PipelineTest, pipeline_test
from ematix_flow.toml import load_toml
from tests.orders import Orders, aggregation
from tests.waiting import wait_for

pytestmark = pytest.mark.usefixtures("spark")

TWO = """
pipeline_name = "shops"
[[sources]]
name = "web"
kind = "object_store_local"
path = "/unused"
format = "json_lines"
schema = "id int, amount double, ts timestamp"
event_time_column = "ts"
max_files_per_batch = 1
[[sources]]
name = "shop"
kind = "object_store_local"
path = "/unused"
format = "parquet"
schema = "id long, till string, ts timestamp"
event_time_column = "ts"
max_files_per_batch = 1
[target]
kind = "duckdb"
path = "unused.duckdb"
[target.table]
name = "orders"
"""
PER_TEN_SECONDS = """
[transform.window]
kind = "tumbling"
duration_ms = 10000
group_by = ["source_name"]
"""
PER_TEN_SECONDS += aggregation("count", "n")


def at(second: float) -> str:
    return datetime.fromtimestamp(1_767_225_600 + second, UTC).isoformat()


def sold(id: int, second: float = 0, **more: Any) -> dict[str, Any]:
    return {"id": id, "ts": at(second), **more}


def both(shops: PipelineTest, web: list[Any], shop: list[Any]) -> None:
    shops.feed(web, source="web")
    shops.feed(shop, source="shop")


def rows(shops: PipelineTest, *columns: str) -> list[tuple[Any, ...]]:
    return [tuple(row[column] for column in columns) for row in shops.rows()]


def test_rows_of_all_sources_stand_under_each_other_with_the_name_of_theirs() -> None:
    with pipeline_test(TWO + '[transform]\non_error = "dlq"') as shops:
        both(shops, [sold(1, amount=2.5), "no JSON"], [sold(1, till="a"), sold(2**40), '{"id": "x"}'])
        first = shops.run()
        assert rows(shops, "id", "amount", "till", "source_name") == [
            (1, 2.5, None, "web"),
            (1, None, "a", "shop"),
            (2**40, None, None, "shop"),
        ]
        assert (first.rows_consumed, first.dlq_rows) == (5, {"decode": 2})
        letters = {letter.source: letter for letter in shops.dead_letters()}
        assert (letters["web"].payload, letters["shop"].payload) == (b"no JSON", b'{"id": "x"}')

        shops.feed(sold(3), source="web")
        assert shops.run().rows_consumed == 1
        assert len(shops.rows()) == 4


def test_a_select_over_source_sees_all_of_them_and_one_over_names_each() -> None:
    over_all = '[transform]\nsql = "SELECT id + 1 AS id, source_name FROM source WHERE id < 3"'
    with pipeline_test(TWO + over_all) as shops:
        both(shops, [sold(1), sold(5)], [sold(2)])
        shops.run()
        assert rows(shops, "id", "source_name") == [(2, "web"), (3, "shop")]

    # Columns of the two SELECTs belong together by their places; a row that fails is known by its own source.
    by_name = """[transform]
on_error = "dlq"
sql = '''SELECT id, CAST(amount AS STRING) AS said, web.ts FROM web
UNION ALL SELECT id, CAST(CAST(till AS INT) AS STRING), ts FROM shop AS s WHERE s.id > 0'''
"""
    with pipeline_test(TWO + by_name) as shops:
        both(shops, [sold(1, amount=2.5)], [sold(2, till="7"), sold(3, till="seven"), sold(0)])
        result = shops.run()
        assert rows(shops, "id", "said") == [(1, "2.5"), (2, "7")]
        assert result.dlq_rows == {"transform": 1}
        (letter,) = shops.dead_letters()
        assert (letter.source, json.loads(letter.payload)["id"]) == ("shop", 3)


def test_the_first_select_names_the_columns() -> None:
    first_of_the_second = "SELECT id AS order_id, till FROM shop UNION ALL SELECT -id, NULL FROM web"
    with pipeline_test(TWO + f'[transform]\nsql = "{first_of_the_second}"') as shops:
        both(shops, [sold(1)], [sold(2, till="a")])
        shops.run()
        assert rows(shops, "order_id", "till") == [(-1, None), (2, "a")]

    with pipeline_test(
        TWO + '[transform]\nsql = "SELECT id, NULL AS till FROM web UNION ALL SELECT * FROM shop"'
    ) as shops:
        both(shops, [sold(1)], [sold(2)])
        with pytest.raises(BadSql, match="2 from web and 3 from shop columns"):
            shops.run()


@pytest.mark.parametrize(
    ("of_all", "ids"),
    [
        ("LIMIT 3", 3),
        ("OFFSET 3", 1),
        ("SORT BY id LIMIT 3 OFFSET 2", 2),
        ("ORDER BY id LIMIT 2", [1, 2]),
    ],
)
def test_what_follows_a_union_is_meant_for_all_of_it(of_all: str, ids: int | list[int]) -> None:
    sql = f"SELECT id FROM web UNION ALL SELECT id FROM shop {of_all}"
    with pipeline_test(TWO + f'[transform]\non_error = "dlq"\nsql = "{sql}"') as shops:
        both(shops, [sold(1), sold(3), "no JSON"], [sold(2), sold(4)])
        result = shops.run()
        assert (result.rows_consumed, result.dlq_rows) == (5, {"decode": 1})
        found = [id for (id,) in rows(shops, "id")]
        assert found == ids if isinstance(ids, list) else len(found) == ids


@pytest.mark.parametrize(
    ("transform", "found"),
    [
        ("SELECT id FROM source WHERE source_name = 'web' -- not from shop", {1}),
        ("SELECT id, 'shop' AS tag, id AS web FROM source", {1, 2}),
        ("WITH web AS (SELECT id + 1 AS id FROM source) SELECT id FROM web", {2, 3}),
        ("WITH web AS (SELECT id + 1 AS id FROM web) SELECT id FROM `WEB` JOIN Shop USING (id)", {2}),
        ("SELECT a.id FROM (SELECT id FROM web) a LEFT ANTI JOIN shop USING (id)", {1}),
    ],
)
def test_a_name_is_that_of_a_source_where_a_table_stands(transform: str, found: set[int]) -> None:
    with pipeline_test(TWO + f'[transform]\nsql = "{transform}"') as shops:
        both(shops, [sold(1)], [sold(2)])
        shops.run()
        assert {id for (id,) in rows(shops, "id")} == found


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT id + 1 AS id FROM ords",
        "SELECT o.id + 1 AS id FROM Ords AS o",
        "SELECT max(o.id) + 1 AS id FROM ords o JOIN source USING (id)",
    ],
)
@pytest.mark.parametrize("dialect", ["spark", "duckdb"])
def test_a_single_source_is_known_by_its_name(orders: Orders, sql: str, dialect: str) -> None:
    orders.arrive("a.jsonl", [{"id": 1}])
    text = orders.toml(source='name = "ords"', sql=sql, targets=("json_lines",))
    orders.run_text(text.replace("[transform]", f'[transform]\ndialect = "{dialect}"'))
    assert orders.ids_in_files() == [2]


def test_any_other_select_over_names_is_applied_to_each_batch() -> None:
    joined = '[transform]\nsql = "SELECT w.id, w.amount, s.till FROM web w JOIN shop s ON w.id = s.id"'
    with pipeline_test(TWO + joined) as shops:
        both(shops, [sold(1, amount=2.5), sold(2)], [sold(1, till="a"), sold(3)])
        assert shops.run().rows_consumed == 4
        assert shops.rows() == [{"id": 1, "amount": 2.5, "till": "a"}]

    with pipeline_test(TWO + '[transform]\nsql = "SELECT x FROM web JOIN shop USING (id)"') as shops:
        both(shops, [sold(1)], [sold(1)])
        with pytest.raises(FlowError, match="`x`"):
            shops.run()


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT w.*, s._event_ts AS at FROM web w JOIN shop s USING (id)",
        "SELECT * FROM (SELECT *, _event_ts AS at FROM shop) JOIN (SELECT id, amount FROM web) USING (id)",
        "SELECT *, web._event_ts AS at FROM web LEFT SEMI JOIN shop USING (id)",
    ],
)
@pytest.mark.parametrize("dialect", ["spark", "duckdb"])
def test_what_lies_beside_the_columns_is_no_part_of_a_star(sql: str, dialect: str) -> None:
    sql = sql.replace("LEFT SEMI", "SEMI") if dialect == "duckdb" else sql
    with pipeline_test(TWO + f'[transform]\ndialect = "{dialect}"\nsql = "{sql}"') as shops:
        both(shops, [sold(1, amount=2.5)], [sold(1)])
        shops.run()
        (row,) = shops.rows()
        assert row["at"] == row["ts"] == datetime.fromisoformat(at(0))
        assert set(row) - {"till"} == {"id", "amount", "ts", "at"}


def test_columns_that_cannot_stand_under_each_other_are_refused() -> None:
    with pipeline_test(TWO.replace("id long", "id string, source_name string")) as shops:
        both(shops, [sold(1)], [])
        with pytest.raises(DeclarationError, match="source_name"):
            shops.run()
    with pipeline_test(TWO.replace("id long", "id string")) as shops:
        both(shops, [sold(1)], [])
        with pytest.raises(DeclarationError, match='id: is int in source "web" and string in source "shop"'):
            shops.run()


def test_the_watermark_is_that_of_the_source_that_is_behind_also_after_a_restart() -> None:
    with pipeline_test(TWO + PER_TEN_SECONDS) as shops:
        shops.feed([sold(1, 1), sold(2, 35)], source="web")
        first = shops.run(flush=False)
        assert (shops.rows(), first.watermark) == ([], None), "nothing came from the shop yet"

        shops.feed([sold(1, 2), sold(2, 12)], source="shop")
        second = shops.run(flush=False)
        assert rows(shops, "source_name", "n") == [("shop", 1), ("web", 1)]
        assert second.watermark == datetime.fromisoformat(at(12))

        # Only the shop goes on, past the web, whose clock the first run of this process has told.
        shops.feed([sold(1, 60)], source="shop")
        third = shops.run(flush=False)
        assert third.watermark == datetime.fromisoformat(at(35))
        assert shops.metric("watermark_seconds", source="shop") == 1_767_225_660
        assert shops.metric("watermark_seconds", source="web") == 1_767_225_635

        last = shops.run()
        assert last.watermark == datetime.fromisoformat(at(70))
        assert sum(n for (n,) in rows(shops, "n")) == 5


def test_a_source_that_is_idle_does_not_hold_the_others_back(orders: Orders) -> None:
    (orders.folder / "shop").mkdir()
    text = TWO.replace("/unused", str(orders.inbox), 1).replace("/unused", str(orders.folder / "shop"))
    text = text[: text.index("[target]")] + f'[target]\nkind = "object_store_local"\npath = "{orders.outbox}"\n'
    text += 'format = "json_lines"\n[watermark]\nsource_idleness_ms = 1500\n' + PER_TEN_SECONDS
    orders.arrive("0.jsonl", [sold(1, 1), sold(2, 15)])
    stop = threading.Event()

    def feed() -> None:
        """Keeps one source busy, so that only the other one is idle."""
        for number in range(1, 100):
            orders.arrive(f"{number}.jsonl", [sold(number, 15 + number / 10)])
            if stop.wait(0.5):
                return

    feeding = threading.Thread(target=feed)
    feeding.start()
    running = threading.Thread(target=run_spec, args=(load_toml(text=text)[0],), kwargs={"stop": stop})
    running.start()
    try:
        wait_for(lambda: any(file.stat().st_size for file in orders.outbox.glob("*.jsonl")))
    finally:
        stop.set()
        running.join()
        feeding.join()
    assert [row["n"] for row in orders.in_files()] == [1]
