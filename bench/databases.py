"""Databases as targets and sources, on servers of their own, one after the other; PostgreSQL flushes what it commits.

    python -m bench.databases [--scale 1.0] [--only kafka|append|merge|read]

kafka: JSON records -> table, against the same read and decode with Spark's noop sink, in turn; of the times and of
their ratios, the medians of the rounds. append: Parquet -> table, against
the same read with that sink, Spark's JDBC writer, pandas and ematix-flow 1.0.0. merge: rows into ten times as many,
half of them changed, against MERGE of the database from a table that is there already. read: table -> DuckDB, against
ADBC and ConnectorX alone. What runs in Spark runs once over fewer rows before the clock starts.
"""

from __future__ import annotations

import argparse
import functools
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import functions as F

from bench import rivals
from bench.original import VERSION, original
from ematix_flow import (
    DuckDBConnection,
    KafkaConnection,
    MySQLConnection,
    ObjectStoreLocalConnection,
    PostgresConnection,
    run_streaming_pipeline,
)
from ematix_flow.specs import SparkSettings
from ematix_flow.streams.session import session_for
from tests.services import server
from tests.services.kafka import OwnKafka, own_kafka
from tests.services.mysql import mariadb
from tests.services.postgres import OwnPostgres

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The machine changes its speed within minutes.
ROUNDS = 5
# So many rows for those who take minutes for a million.
FEW = 200_000
SCHEMA = "id long, customer string, amount double, price decimal(12,2), paid boolean, ts timestamp"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--only", choices=["kafka", "append", "merge", "read"])
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bench-databases-"))
    os.environ["EMATIX_FLOW_HOME"] = str(folder / "home")
    spark = session_for(SparkSettings(master="local[2]"), jar_groups={"kafka"})
    million = int(1_000_000 * given.scale)
    try:
        for name, work in {"kafka": kafka, "append": append, "merge": merge, "read": read}.items():
            if given.only in {None, name}:
                work(spark, folder / name, million)
    finally:
        spark.stop()
        server.end_all()
        shutil.rmtree(folder)


def kafka(spark: SparkSession, folder: Path, million: int) -> None:
    with own_kafka() as cluster:
        warm, topic = (_produced(cluster, rows) for rows in (million // 10, million))
        connection, url = KafkaConnection(bootstrap_servers=cluster.bootstrap), _database()

        def noop(topic: str, run: str) -> None:
            read = spark.readStream.format("kafka").option("kafka.bootstrap.servers", cluster.bootstrap)
            rows = read.option("subscribe", topic).option("startingOffsets", "earliest").load()
            parsed = rows.select(F.from_json(F.col("value").cast("string"), SCHEMA).alias("o")).select("o.*")
            writer = parsed.writeStream.format("noop").option("checkpointLocation", str(folder / f"noop-{topic}-{run}"))
            writer.trigger(availableNow=True).start().awaitTermination()

        def pipeline(topic: str, run: str, sql: str | None = None) -> None:
            run_streaming_pipeline(
                name=f"from-{topic}-{run}{' and nothing' if sql else ''}", source=connection, source_query=topic,
                schema=SCHEMA, bounded=True, spark=spark, target=PostgresConnection(url=url), target_table="orders",
                transform_sql=sql,
            )  # fmt: skip

        works = {
            "Spark's noop sink, decoded": noop,
            "read, decoded and counted, none kept": functools.partial(
                pipeline, sql="SELECT * FROM source WHERE id < 0"
            ),
            "PostgreSQL, exactly once": pipeline,
        }
        for work in works.values():
            work(warm, "first")
        taken: dict[str, list[float]] = {name: [] for name in works}
        for number in range(ROUNDS):
            for name, work in list(works.items())[:: -1 if number % 2 else 1]:
                taken[name].append(_timed(lambda work=work, run=str(number): work(topic, run)))
    print(f"kafka, {million:,} JSON records, medians of {ROUNDS} rounds")
    own = next(iter(taken.values()))
    for name, seconds in taken.items():
        ratios = [one / noop for one, noop in zip(seconds, own, strict=True)]
        told = f"{statistics.median(ratios):.2f} x noop ({min(ratios):.2f}..{max(ratios):.2f})"
        _line(name, million, statistics.median(seconds), told)


def _produced(cluster: OwnKafka, rows: int) -> str:
    topic = cluster.new_topic(2)
    for i in range(rows):
        at = f"2026-01-01T{i // 3600 % 24:02d}:{i // 60 % 60:02d}:{i % 60:02d}Z"
        value = (
            f'{{"id": {i}, "customer": "customer-{i % 9973}", "amount": {i % 100_000 / 100}, '
            f'"price": {i % 9_999 / 100}, "paid": true, "ts": "{at}"}}'
        )
        cluster.produce(topic, value, partition=i % 2)
    cluster.flush()
    return topic


def append(spark: SparkSession, folder: Path, million: int) -> None:
    rows, some = 2 * million, min(FEW, million)
    _written(folder / "in", 0, rows)
    _written(folder / "few", 0, some)
    _noop(spark, folder, "warm-up")
    noop = _timed(lambda: _noop(spark, folder, "noop"))
    print(f"append, {rows:,} rows from Parquet")
    _line("Spark's noop sink", rows, noop)
    targets = {
        "PostgreSQL": PostgresConnection(url=_database()),
        "MariaDB": MySQLConnection(url=mariadb().new_database()),
    }
    for name, connection in targets.items():
        _copy(spark, folder / "few", connection, f"warm-{connection.kind}", table="few")
        taken = _timed(lambda c=connection: _copy(spark, folder / "in", c, f"append-{c.kind}"))
        _line(f"{name}, exactly once", rows, taken, f"{taken / noop:.2f} x noop")
    driver = rivals.jdbc_driver(folder / "jdbc")
    found = rivals.run(rivals.JDBC, folder / "in", folder / "few", _database(), driver)
    _line("PostgreSQL, Spark's JDBC writer", found["rows"], found["seconds"])
    others = rivals.installed(folder / "others")
    found = rivals.run(rivals.PANDAS, folder / "few", _database(), some, environment=others)
    _line("PostgreSQL, pandas.to_sql", found["rows"], found["seconds"])
    theirs = original(_declared(folder / "few"), some, folder / "original")
    (began, _), (ended, read) = theirs["seen"]
    _line(f"PostgreSQL, ematix-flow {VERSION}", read, max(ended - began, 1e-9), f"{read:,} of {some:,} read")


def _declared(folder: Path) -> str:
    """For the original, whose tables have to be there."""
    url = _database()
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(
            "CREATE TABLE orders (id int8, customer text, amount float8, price numeric, paid bool, ts timestamptz)"
        )
    return f"""
pipeline_name = "orders"
source_query = "{folder.name}"
[source]
kind = "object_store_local"
path = "{folder.parent}"
format = "parquet"
[target]
kind = "postgres"
url = "{url}"
[target.table]
schema = "public"
name = "orders"
"""


def merge(spark: SparkSession, folder: Path, million: int) -> None:
    """A million rows, half of which are there and differ, into ten million."""
    _written(folder / "held", 0, 10 * million)
    _written(folder / "new", 10 * million - million // 2, million, amount=1.0)
    url = _database()
    connection = PostgresConnection(url=url)
    _copy(spark, folder / "held", connection, "held", mode="merge", keys=["id"])
    _copy(spark, folder / "new", connection, "staged", table="staged")
    _written(folder / "few", 0, million // 10)
    for number in range(2):
        _copy(spark, folder / "few", connection, f"warm-{number}", table="few", mode="merge", keys=["id"])
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("CREATE TABLE twin AS SELECT * FROM orders")
        db.execute("ALTER TABLE twin ADD PRIMARY KEY (id)")
        db.execute("VACUUM ANALYZE")
        columns = ("customer", "amount", "price", "paid", "ts")
        assigned = ", ".join(f"{name} = s.{name}" for name in columns)
        own = _timed(
            lambda: db.execute(
                f"MERGE INTO twin AS t USING staged AS s ON t.id = s.id WHEN MATCHED THEN UPDATE SET {assigned} "
                f"WHEN NOT MATCHED THEN INSERT VALUES (s.id, {', '.join('s.' + name for name in columns)})"
            )
        )
    taken = _timed(lambda: _copy(spark, folder / "new", connection, "merged", mode="merge", keys=["id"]))
    print(f"merge of {million:,} rows into {10 * million:,}, PostgreSQL")
    _line("MERGE from a table that is there", million, own)
    _line("pipeline from Parquet, exactly once", million, taken, f"{taken / own:.2f} x MERGE")


def read(spark: SparkSession, folder: Path, million: int) -> None:
    from adbc_driver_postgresql import dbapi

    rows = 2 * million
    _written(folder / "in", 0, rows)
    url = _database()
    _copy(spark, folder / "in", PostgresConnection(url=url), "filled")
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("VACUUM ANALYZE orders")

    def alone() -> None:
        with dbapi.connect(url) as db, db.cursor() as cursor, closing(duckdb.connect(str(folder / "alone.db"))) as out:
            cursor.execute("SELECT id, customer, amount, CAST(price AS text) AS price, paid, ts FROM orders")
            found = cursor.fetch_record_batch()
            out.register("found", found)
            out.execute("CREATE TABLE orders AS SELECT * REPLACE (CAST(price AS DECIMAL(12, 2)) AS price) FROM found")

    def pipeline(query: str = "orders") -> None:
        run_streaming_pipeline(
            name=f"read {query}", source=PostgresConnection(url=url), source_query=query, source_name="orders",
            target=DuckDBConnection(path=str(folder / "out.db")), target_table="orders", bounded=True, spark=spark,
        )  # fmt: skip

    pipeline(f"SELECT * FROM orders WHERE id < {rows // 10}")
    own, taken = _timed(alone), _timed(pipeline)
    print(f"read, {rows:,} rows of PostgreSQL into DuckDB")
    _line("ADBC alone", rows, own)
    others = rivals.installed(folder / "others")
    found = rivals.run(rivals.CONNECTORX, url, folder / "connectorx.db", environment=others)
    _line("ConnectorX alone, 2 connections", found["rows"], found["seconds"])
    _line("pipeline, exactly once", rows, taken, f"{taken / own:.2f} x ADBC")


@functools.cache
def _server() -> OwnPostgres:
    return OwnPostgres(durable=True)


def _database() -> str:
    return _server().new_database()


def _written(folder: Path, first: int, rows: int, amount: float | None = None) -> None:
    """In four files."""
    folder.mkdir(parents=True)
    chance = np.random.default_rng(7)
    for number, ids in enumerate(np.array_split(np.arange(first, first + rows), 4)):
        money = np.full(len(ids), amount) if amount is not None else chance.random(len(ids)) * 100
        cents = pa.array((money * 100).astype(np.int64)).cast(pa.decimal128(20, 0)).cast(pa.decimal128(12, 2))
        table = pa.table(
            {
                "id": ids,
                "customer": pa.array([f"customer-{i % 9973}" for i in ids]),
                "amount": money,
                "price": cents,
                "paid": chance.random(len(ids)) < 0.5,
                "ts": pa.array(1_767_225_600_000_000 + ids * 1000).cast(pa.timestamp("us", "UTC")),
            }
        )
        pq.write_table(table, folder / f"{number}.parquet")


def _copy(spark: SparkSession, folder: Path, target: Any, name: str, table: str = "orders", **more: Any) -> None:
    run_streaming_pipeline(
        name=name, source=ObjectStoreLocalConnection(path=str(folder), format="parquet"), schema=SCHEMA, target=target,
        target_table=table, bounded=True, spark=spark, **more,
    )  # fmt: skip


def _noop(spark: SparkSession, folder: Path, name: str) -> None:
    rows = spark.readStream.schema(SCHEMA).parquet(str(folder / "in"))
    writer = rows.writeStream.format("noop").option("checkpointLocation", str(folder / f"checkpoint-{name}"))
    writer.trigger(availableNow=True).start().awaitTermination()


def _timed(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _line(name: str, rows: int, seconds: float, more: str = "") -> None:
    print(f"  {name:38} {seconds:7.2f} s  {rows / seconds:12,.0f} rows/s  {more}", flush=True)


if __name__ == "__main__":
    main()
