"""Delta tables as targets and as sources: what the behaviour suite of all targets does not show."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import duckdb
import pytest
from pyspark.sql import SparkSession

from ematix_flow import (
    DeltaLocalConnection,
    DuckDBConnection,
    SQLiteConnection,
    ematix,
    pk,
    run_pipeline,
    run_streaming_pipeline,
)
from ematix_flow.errors import DeclarationError, FlowError
from ematix_flow.result import RunResult
from ematix_flow.sinks.base import TargetRefused, TargetUnavailable
from ematix_flow.sinks.delta_table import write_errors_in_words
from ematix_flow.specs import Lookup, PipelineSpec, Source, SparkSettings, Target, Transform
from ematix_flow.streams.needs import jar_groups_of
from ematix_flow.streams.session import DeltaMissing, session_for
from ematix_flow.types import BigInt, Double, String, Text
from tests.contract.backends import TABLE, Delta
from tests.contract.feeding import Feed, at
from tests.orders import Orders

INTO_THE_LAKE = """
[[targets]]
kind = "delta_local"
path = "{lake}"
partition_by = ["parity"]
table = ["shop", "orders"]
"""
OUT_OF_THE_LAKE = """
pipeline_name = "copy"
[source]
kind = "delta_local"
path = "{lake}"
query = "shop.orders"
max_files_per_batch = 2
{schema}
[transform]
on_error = "dlq"
[target]
kind = "object_store_local"
path = "{outbox}"
format = "json_lines"
"""


def test_a_table_is_written_by_one_pipeline_and_followed_by_another(orders: Orders, spark: SparkSession) -> None:
    lake = orders.folder / "lake"
    into = {"sql": "SELECT *, id % 2 AS parity FROM source", "targets": (), "more": INTO_THE_LAKE.format(lake=lake)}
    copy = OUT_OF_THE_LAKE.format(lake=lake, outbox=orders.outbox, schema="")
    orders.numbered(range(3))
    assert orders.run(**into).rows_written == {"shop.orders": 3}
    assert sorted(folder.name for folder in (lake / "shop" / "orders").glob("parity=*")) == ["parity=0", "parity=1"]
    assert run_pipeline(config_str=copy, bounded=True).rows_consumed == 3
    orders.arrive("more.jsonl", [{"id": 3, "amount": 1.5}])
    orders.run(**into)
    assert run_pipeline(config_str=copy, bounded=True).rows_consumed == 1
    assert orders.ids_in_files() == [0, 1, 2, 3]
    assert set(orders.in_files()[-1]) == {"id", "amount", "parity"}
    spark.sql(f"DELETE FROM delta.`{lake}/shop/orders` WHERE id = 0")
    with pytest.raises(FlowError, match="read as a log of added rows") as error:
        run_pipeline(config_str=copy, bounded=True)
    assert (error.value.code, error.value.transient) == ("source-changed", False)


@pytest.mark.slow
def test_a_change_feed_is_followed_and_a_batch_pipeline_reads_the_table_anew(
    tmp_path: Path, spark: SparkSession
) -> None:
    lake, table = DeltaLocalConnection(path=str(tmp_path / "lake")), f"delta.`{tmp_path}/lake/shop/orders`"
    feed = "TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')"
    spark.sql(f"CREATE TABLE {table} (id long, name string) USING delta {feed}")
    spark.sql(f"INSERT INTO {table} VALUES (1, 'a'), (2, 'b'), (3, 'c')")
    followed, copied = DuckDBConnection(path=str(tmp_path / "f.db")), DuckDBConnection(path=str(tmp_path / "c.db"))

    @ematix.table(schema="main", name="orders")
    class Copy:
        id: Annotated[BigInt, pk()]
        name: Text | None

    @ematix.pipeline(
        target=Copy, mode="merge", handle_deletes="hard", source_connection=lake, target_connection=copied,
        source_table="shop.orders",
    )  # fmt: skip
    def copy() -> None:
        """The table as it is."""

    def now(path: str) -> list[tuple[Any, ...]]:
        with duckdb.connect(path, read_only=True) as db:
            return db.execute("SELECT id, name FROM orders ORDER BY id").fetchall()

    def follow() -> RunResult:
        return run_streaming_pipeline(
            name="follow", source=lake, source_query="shop.orders", change_feed=True, target=followed,
            target_table="orders", mode="merge", keys=["id"], bounded=True, spark=spark,
            transform_sql="SELECT id, upper(name) AS name FROM source",
        )  # fmt: skip

    follow()
    assert copy.sync(spark=spark).rows_inserted == 3
    spark.sql(f"UPDATE {table} SET name = 'changed' WHERE id = 2")
    spark.sql(f"DELETE FROM {table} WHERE id = 1")
    spark.sql(f"INSERT INTO {table} VALUES (4, 'd')")
    follow()
    assert now(followed.path) == [(2, "CHANGED"), (3, "C"), (4, "D")]
    again = copy.sync(spark=spark)
    assert (again.rows_inserted, again.rows_updated, again.rows_unchanged, again.rows_deleted) == (1, 1, 1, 1)
    assert now(copied.path) == [(2, "changed"), (3, "c"), (4, "d")]


def test_declared_columns_of_a_source_are_cast_and_must_be_there(orders: Orders, spark: SparkSession) -> None:
    lake = orders.folder / "lake"
    spark.createDataFrame([("1",), ("x",)], "id string").write.format("delta").save(f"{lake}/shop/orders")
    copy = OUT_OF_THE_LAKE.format(lake=lake, outbox=orders.outbox, schema='schema = "id long"')
    run_pipeline(config_str=copy, bounded=True)
    assert orders.in_files() == [{"id": 1}]
    (letter,) = orders.dead_letters("copy")
    assert (letter.payload, letter.error) == (b'{"id":"x"}', 'column id: cannot read "x" as bigint')
    with pytest.raises(DeclarationError, match=r'no column ids.*did you mean "id"'):
        run_pipeline(config_str=copy.replace("id long", "ids long").replace("copy", "another"), bounded=True)


def test_a_declared_class_becomes_the_table_and_its_checks_find_rows(tmp_path: Path, spark: SparkSession) -> None:
    @ematix.table(schema="main", name=TABLE)
    class Declared:
        id: Annotated[BigInt, pk()]
        name: String[5] | None
        amount: Double | None

    feed = Feed(Delta(tmp_path, spark), "id int, name string, amount double", table=Declared)
    feed.write((1, "a", 1.0))
    (row,) = feed.rows()
    assert list(row) == ["id", "name", "amount", "_loaded_at", "_batch_id"]
    assert (row["id"], row["_batch_id"], row["_loaded_at"].tzname()) == (1, "shop/0", "UTC")
    assert [(f.name, f.nullable, f.metadata) for f in feed.schema.fields] == [
        ("id", False, {}),
        ("name", True, {"max_length": 5}),
        ("amount", True, {}),
    ]
    spark.sql(f"ALTER TABLE delta.`{tmp_path}/lake/main/{TABLE}` ADD CONSTRAINT positive CHECK (amount > 0)")
    staged = feed.stage((2, "b", 1.0), (3, "c", -1.0), (4, "d", None))
    reason = "CHECK constraint positive (amount > 0) violated"
    assert feed.refusals(staged) == {1: reason, 2: reason}
    with pytest.raises(TargetRefused, match="positive"):
        feed.write((3, "c", -1.0))
    assert feed.values("id") == [(1,)]


@pytest.mark.slow
def test_odd_names_and_maps_merge(tmp_path: Path, spark: SparkSession) -> None:
    folder = tmp_path / "it's `odd`, #1 = 100%"
    feed = Feed(
        Delta(folder, spark),
        "`order id` long, `a=b` string, tags map<string, int>",
        mode="merge",
        keys=["order id"],
        partition_by=["a=b"],
    )
    feed.write((1, "x/y", {"a": 1}), (2, None, None))
    feed.write((1, "x/y", {"a": 2}), (2, None, None), (3, "z", {}))
    found = spark.read.format("delta").load(str(folder / "lake" / "main" / TABLE))
    rows = found.orderBy("order id").toArrow().to_pylist(maps_as_pydicts="strict")
    assert [tuple(row.values()) for row in rows] == [(1, "x/y", {"a": 2}), (2, None, None), (3, "z", {})]


@pytest.mark.slow
def test_a_closed_version_of_history_keeps_its_end(tmp_path: Path, spark: SparkSession) -> None:
    feed = Feed(Delta(tmp_path, spark), "id long, name string", mode="scd2", keys=["id"])
    feed.write((1, "a"), (2, "a"), hours=[2, 2])
    ended = f"valid_to = timestamp '{at(6)}', is_current = false"
    spark.sql(f"UPDATE delta.`{tmp_path}/lake/main/{TABLE}` SET {ended}")
    feed.write((1, "b"), (1, "a"), (2, "a"), hours=[4, 8, 6])
    assert feed.values("id", "name", "valid_from", "valid_to", "is_current") == [
        (1, "a", at(2), at(4), False),
        (1, "a", at(8), None, True),
        (1, "b", at(4), at(6), False),
        (2, "a", at(2), at(6), False),
        (2, "a", at(6), None, True),
    ]


@pytest.mark.slow
def test_a_lost_race_is_tried_again(tmp_path: Path, spark: SparkSession) -> None:
    begun, go_on = tmp_path / "begun", tmp_path / "go-on"

    def wait(number: int) -> int:
        begun.touch()
        _until(go_on)
        return number

    def update() -> None:
        with write_errors_in_words(table, 7):
            spark.sql(f"UPDATE delta.`{table}` SET id = wait(id)")

    table = str(tmp_path / "table")
    spark.range(2).coalesce(1).write.format("delta").save(table)
    spark.udf.register("wait", wait, "long")
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(update)
        _until(begun)
        spark.sql(f"DELETE FROM delta.`{table}` WHERE id = 0")
        go_on.touch()
        with pytest.raises(TargetUnavailable, match=r"changed .*/table while batch 7 was being written") as error:
            slow.result()
    assert error.value.transient


def test_a_session_without_delta_is_refused_with_the_settings_it_needs(spark: SparkSession) -> None:
    plain = spark.newSession()
    plain.conf.unset("spark.sql.catalog.spark_catalog")
    with pytest.raises(DeltaMissing, match=r"spark.jars=.*delta-spark[^\n]*\n +spark.sql.extensions=io.delta"):
        session_for(SparkSettings(), spark=plain, jar_groups={"delta"})


def test_a_pipeline_needs_delta_wherever_it_meets_a_delta_table() -> None:
    delta, other = DeltaLocalConnection(path="lake"), SQLiteConnection(path="a.db")

    def groups(source: object = other, target: object = other, **lookups: Lookup) -> set[str]:
        return jar_groups_of(
            PipelineSpec(
                name="p",
                sources=[Source(connection=source, query="t")],
                targets=[Target(connection=target, table="t")],
                transform=Transform(lookups=lookups),
            )
        )

    assert groups() == set()
    assert groups(source=delta) == groups(target=delta) == groups(l=Lookup(connection=delta)) == {"delta"}


def _until(file: Path) -> None:
    deadline = time.monotonic() + 60
    while not file.exists():
        assert time.monotonic() < deadline, f"{file} never came"
        time.sleep(0.02)
