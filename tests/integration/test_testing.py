"""The test kit: a pipeline between servers that do not exist, run by the real engine."""

import runpy
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import pytest
from pyspark.sql import SparkSession

from ematix_flow import DuckDBConnection, KafkaConnection, Lookup, PostgresConnection, Target, ematix, pk
from ematix_flow.errors import FlowError, UsageError
from ematix_flow.state.dead_letters import DeadLetter, DeadLetters
from ematix_flow.testing import pipeline_test
from ematix_flow.toml import load_toml
from ematix_flow.types import BigInt, Text
from tests.docs.snippets import ROOT, blocks

BETWEEN_SERVERS = """
pipeline_name = "orders"
dead_letter_topic = "bad-orders"

[source]
connection = "a broker that only production knows"
query = "orders"
schema = "id long, amount string"

[transform]
sql = "SELECT id, CAST(amount AS DOUBLE) AS amount, _event_ts AS placed_at FROM source"
on_error = "dlq"

[state_store]
kind = "postgres"
url = "postgresql://nowhere/state"

[spark]
master = "spark://nowhere:7077"

[[targets]]
kind = "postgres"
url = "postgresql://nowhere/shop"
mode = "merge"
[targets.table]
schema = "analytics"
name = "orders"
primary_key = ["id"]

[[targets]]
kind = "kafka"
bootstrap_servers = "nowhere:9092"
group_id = "orders"
topic = "orders-out"
message_key_column = "id"
"""

START = datetime(2000, 1, 1, tzinfo=UTC)
NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)


def test_a_pipeline_between_servers_runs_without_them_and_goes_on_where_it_ended(spark: SparkSession) -> None:
    with pipeline_test(BETWEEN_SERVERS, spark=spark) as orders:
        assert orders.rows("orders-out") == orders.dead_letters() == []
        orders.feed([{"id": 2, "amount": "1"}, {"id": 1, "amount": "12.5"}], event_time="2026-01-01T00:00:00Z")
        orders.feed('{"id": 3}', source="orders")
        assert orders.run().batches == 1
        first = [
            {"id": 1, "amount": 12.5, "placed_at": NEW_YEAR},
            {"id": 2, "amount": 1.0, "placed_at": NEW_YEAR},
            {"id": 3, "amount": None, "placed_at": START},
        ]
        assert orders.rows("analytics.orders") == orders.rows("orders-out") == first

        orders.advance_to(NEW_YEAR + timedelta(minutes=5))
        orders.feed([{"id": 2, "amount": "2"}, {"id": 4, "amount": "x"}, b"\xff{"])
        assert orders.run() == orders.result
        assert orders.result.rows_written == {"analytics.orders": 1, "orders-out": 1}
        changed = {"id": 2, "amount": 2.0, "placed_at": NEW_YEAR + timedelta(minutes=5)}
        assert orders.rows("analytics.orders") == [first[0], changed, first[2]]
        assert orders.rows("orders-out") == [*first[:2], changed, first[2]]
        assert orders.metric("rows_written_total", target="orders-out") == 4
        assert orders.metric("end_to_end_latency_seconds_count") == 2

        (undecoded,), (uncast,) = orders.dead_letters("decode"), orders.dead_letters("transform")
        assert (undecoded.source, undecoded.payload, undecoded.event_ts) == ("orders", b"\xff{", changed["placed_at"])
        assert uncast.payload == b'{"id": 4, "amount": "x"}'
        assert len(orders.dead_letters()) == 2
        assert orders.metric("dlq_writes_total", stage="decode") == 1


@ematix.table(schema="shop")
class Prices:
    sku: Annotated[Text, pk()]
    price: BigInt


@ematix.streaming_pipeline(
    source=KafkaConnection(bootstrap_servers="nowhere:9092", group_id="prices"),
    source_query="prices",
    schema="sku string, price long, changed_at long",
    event_time_column="changed_at",
    max_rows_per_batch=1,
    transform_sql="SELECT sku, price FROM source",
    targets=[Target(connection=PostgresConnection(url="postgresql://nowhere/shop"), table=Prices, mode="scd2")],
)
def prices() -> None: ...


def test_a_history_follows_the_clock_and_limits_make_a_batch_of_every_feed(spark: SparkSession) -> None:
    with pipeline_test(prices, spark=spark) as test:
        test.advance_to("2026-01-01T00:00:00")
        test.feed([{"sku": "a", "price": 1}])
        test.feed([{"sku": "a", "price": 2}])
        test.feed([{"sku": "a", "price": 0, "changed_at": 0}], event_time="2030-01-01")
        assert test.run().batches == 3
        epoch, second = datetime(1970, 1, 1, tzinfo=UTC), NEW_YEAR + timedelta(seconds=1)
        assert test.rows() == [
            {"sku": "a", "price": 0, "valid_from": epoch, "valid_to": NEW_YEAR, "is_current": False},
            {"sku": "a", "price": 1, "valid_from": NEW_YEAR, "valid_to": second, "is_current": False},
            {"sku": "a", "price": 2, "valid_from": second, "valid_to": None, "is_current": True},
        ]


VISITS = """
pipeline_name = "visits"
[source]
kind = "kafka"
bootstrap_servers = "broker:9092"
query = "clicks"
schema = "user string, at timestamp"
event_time_column = "at"
[transform.window]
kind = "tumbling"
duration_ms = 60000
late_data = "dlq"
[[transform.window.aggregations]]
agg = "count"
as = "clicks"
[target]
kind = "duckdb"
path = "visits.duckdb"
table = "visits"
"""


def test_windows_close_when_the_clock_has_passed_them(spark: SparkSession) -> None:
    with pipeline_test(VISITS, spark=spark) as visits:
        visits.feed([{"user": "ada"}, {"user": "bob"}], event_time="2026-01-01T00:00:30Z")
        visits.run(flush=False)
        assert visits.rows() == []
        visits.advance_to("2026-01-01T00:01:00Z")
        visits.run(flush=False)
        assert [row["clicks"] for row in visits.rows()] == [2]
        visits.feed([{"user": "cy"}], event_time="2026-01-01T00:00:59Z")
        visits.run()
        assert [row["user"] for row in visits.late_rows()] == ["cy"]
        assert visits.metric("windows_emitted_total") == 1


def test_a_run_that_fails_shows_nothing_and_is_counted(spark: SparkSession) -> None:
    with pipeline_test(BETWEEN_SERVERS.replace('on_error = "dlq"', ""), spark=spark) as orders:
        orders.feed([{"id": 1, "amount": "1"}, "{"])
        with pytest.raises(FlowError, match="line 2"):
            orders.run()
        assert orders.rows("orders-out") == []
        assert orders.metric("errors_total") == 1


def test_late_rows_are_those_kept_as_late(spark: SparkSession) -> None:
    with pipeline_test(BETWEEN_SERVERS, spark=spark) as orders:
        orders.run()
        late, bad = b'{"id": 1, "amount": "1"}', b"{"
        letters = DeadLetters(next(orders._folder.rglob("dead_letters.db")))
        letters.put(
            DeadLetter("orders", stage, "", "", "orders", payload.decode(), None, "json_lines", payload, START)
            for stage, payload in (("late", late), ("decode", bad))
        )
        letters.close()
        assert orders.late_rows() == [{"id": 1, "amount": "1"}]


def test_every_form_of_a_declaration_is_the_same_pipeline(spark: SparkSession, tmp_path: Path) -> None:
    (spec,) = load_toml(text=BETWEEN_SERVERS)
    file = tmp_path / "orders.toml"
    file.write_text(BETWEEN_SERVERS, encoding="utf-8")
    for form in (BETWEEN_SERVERS, file, str(file), spec):
        with pipeline_test(form, spark=spark) as orders:
            assert orders.spec == spec
    database = DuckDBConnection(path="nowhere.duckdb")
    keywords = {"name": "orders", "source": "broker", "source_query": "orders", "target": database, "target_table": "t"}
    # A topic may be called like a lookup.
    lookups = {"orders": Lookup(connection="a database that only production knows", table="orders")}
    with pipeline_test({**keywords, "lookups": lookups}, lookups={"orders": [{"id": 1}]}, spark=spark) as orders:
        assert orders.spec.target_names == ("t",)
    with pytest.raises(UsageError, match="declared are orders"), pipeline_test(file, pipeline="other"):
        pass


def test_unknown_names_are_told_with_the_known_ones(spark: SparkSession) -> None:
    with pipeline_test(BETWEEN_SERVERS, spark=spark) as orders:
        with pytest.raises(UsageError, match=r"no source 'order'\n.*: orders"):
            orders.feed([], source="order")
        with pytest.raises(UsageError, match=r"several targets\n.*analytics.orders, orders-out"):
            orders.rows()
        with pytest.raises(UsageError, match='"noon" is not a time'):
            orders.advance_to("noon")
        with pytest.raises(UsageError, match="never goes back"):
            orders.advance_to("1999-12-31")
        with pytest.raises(UsageError, match="a set, which JSON cannot say"):
            orders.feed({"id": {1}})
    with (
        pytest.raises(UsageError, match="no lookup 'customers'"),
        pipeline_test(BETWEEN_SERVERS, lookups={"customers": []}),
    ):
        pass


def test_the_example_of_the_documentation_passes(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for block in blocks((ROOT / "docs/testing.md").read_text(encoding="utf-8")):
        Path(block.name).write_text(block.body, encoding="utf-8")
    tests = [call for name, call in runpy.run_path("test_orders.py").items() if name.startswith("test_")]
    assert len(tests) == 2
    for test in tests:
        test()
