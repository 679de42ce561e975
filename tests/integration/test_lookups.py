"""Lookups: every origin with its types, versions that a repeated batch finds again, refreshing that may fail."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql import DataFrame, SparkSession

from ematix_flow import (
    DeltaLocalConnection,
    DuckDBConnection,
    Lookup,
    MySQLConnection,
    ObjectStoreLocalConnection,
    PostgresConnection,
    SQLiteConnection,
)
from ematix_flow.errors import FlowError
from ematix_flow.state.store import Store
from ematix_flow.streams.lookup_base import LookupBusy, LookupFailed
from ematix_flow.streams.lookups import Lookups
from tests.orders import Orders
from tests.services.mysql import MySQL
from tests.services.postgres import Postgres


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(Store("orders", tmp_path / "state")) as opened:
        yield opened


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def from_sqlite(path: Path, **given: Any) -> Lookup:
    return Lookup(
        connection=SQLiteConnection(path=str(path)),
        **({"table": "customers"} if not given.get("query") else {}) | given,
    )


def customers(path: Path, *names: str) -> None:
    """The table `customers` of an SQLite file holds these names and no others."""
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE IF NOT EXISTS customers (id INTEGER PRIMARY KEY, name TEXT)")
        db.execute("DELETE FROM customers")
        db.executemany("INSERT INTO customers VALUES (?, ?)", enumerate(names))


def read(lookup: Lookup, store: Store, spark: SparkSession) -> DataFrame:
    return Lookups({"customers": lookup}, store, spark).tables(0)["customers"]


def names(rows: DataFrame) -> list[str]:
    return sorted(row.name for row in rows.collect())


def versions(store: Store) -> int:
    return len(list((store.folder / "checkpoint" / "lookups" / "customers").iterdir()))


def test_sqlite_columns_have_the_type_of_what_they_hold(tmp_path: Path, store: Store, spark: SparkSession) -> None:
    file = tmp_path / "odd name?.db"
    with closing(sqlite3.connect(file)) as db, db:
        db.execute("CREATE TABLE customers (i INTEGER, r REAL, t TEXT, b BLOB, d DECIMAL(9, 2), m, none, no_int INT)")
        db.execute("INSERT INTO customers VALUES (9007199254740993, 1, 'ä😀', x'00ff', 3, 1, NULL, NULL)")
        db.execute("INSERT INTO customers VALUES (NULL, 2.5, CAST(x'ff' AS TEXT), NULL, 2.25, 'two', NULL, NULL)")
    rows = read(from_sqlite(file, schema="main"), store, spark)
    kinds = ["bigint", "double", "string", "binary", "double", "string", "string", "bigint"]
    assert [kind for _, kind in rows.dtypes] == kinds
    assert [tuple(row) for row in rows.collect()] == [
        (9007199254740993, 1.0, "ä😀", b"\x00\xff", 3.0, "1", None, None),
        (None, 2.5, "\ufffd", None, 2.25, "two", None, None),
    ]


def test_a_query_may_find_nothing_and_still_has_columns(tmp_path: Path, store: Store, spark: SparkSession) -> None:
    customers(tmp_path / "crm.db")
    rows = read(from_sqlite(tmp_path / "crm.db", query="SELECT id, upper(name) AS name FROM customers;"), store, spark)
    assert rows.dtypes == [("id", "bigint"), ("name", "string")]
    assert rows.collect() == []


def test_duckdb_columns_keep_their_types_or_become_text(tmp_path: Path, store: Store, spark: SparkSession) -> None:
    columns = {
        "170141183460469231731687303715884105::HUGEINT": ("decimal(38,0)", "170141183460469231731687303715884105"),
        "18446744073709551615::UBIGINT": ("decimal(20,0)", "18446744073709551615"),
        "1.50::DECIMAL(9, 2)": ("decimal(9,2)", "1.50"),
        "'6b1c1f0e-0000-4000-8000-000000000000'::UUID": ("string", "6b1c1f0e-0000-4000-8000-000000000000"),
        "TIME '10:00:01'": ("string", "10:00:01"),
        "INTERVAL 1 DAY": ("string", "1 day"),
        "'a'::ENUM ('a', 'b')": ("string", "a"),
        "DATE '1969-12-31'": ("date", "1969-12-31"),
        "TIMESTAMP '2026-01-01 10:00:00.000001'": ("timestamp_ntz", "2026-01-01 10:00:00.000001"),
        "TIMESTAMP_NS '2026-01-01 10:00:00.000001'": ("timestamp_ntz", "2026-01-01 10:00:00.000001"),
        "TIMESTAMPTZ '2026-01-01 10:00:00+00'": ("timestamp", "2026-01-01 10:00:00"),
        "[1, NULL]": ("array<int>", "[1, null]"),
        "{'a': 1, 'b': 'x'}": ("struct<a:int,b:string>", "{1, x}"),
        "MAP {'k': 1}": ("map<string,int>", "{k -> 1}"),
        "true": ("boolean", "true"),
        "1::TINYINT": ("tinyint", "1"),
    }
    path = tmp_path / "crm.duckdb"
    selected = ", ".join(f'{value} AS "c{number}"' for number, value in enumerate(columns))
    with duckdb.connect(str(path)) as db:
        db.execute(f"CREATE SCHEMA crm.crm; CREATE TABLE crm.crm.customers AS SELECT {selected}")
    lookup = Lookup(connection=DuckDBConnection(path=str(path)), schema="crm", table="customers")
    rows = read(lookup, store, spark)
    texts = rows.selectExpr(*[f"CAST({name} AS STRING) {name}" for name in rows.columns]).collect()[0]
    assert list(zip([kind for _, kind in rows.dtypes], texts, strict=True)) == list(columns.values())
    with duckdb.connect(str(path)) as db:
        assert db.execute("SELECT count(*) FROM crm.crm.customers").fetchone() == (1,), "nobody holds the file any more"


@pytest.mark.parametrize("form", ["parquet", "orc", "csv", "json_lines"])
def test_files_of_every_format_are_read_from_a_folder_or_a_glob(
    form: str, tmp_path: Path, store: Store, spark: SparkSession
) -> None:
    rows = spark.createDataFrame([(1, "ada", 1.5), (2, "bob", None)], "id int, name string, score double")
    writer = rows.coalesce(1).write.option("header", True)
    writer.format({"json_lines": "json"}.get(form, form)).save(str(tmp_path / "crm" / "customers"))
    connection = ObjectStoreLocalConnection(path=str(tmp_path / "crm"), format=form)
    found = read(Lookup(connection=connection, query="cust*" if form == "csv" else "customers"), store, spark)
    assert sorted((row.id, row.name, row.score) for row in found.collect()) == [(1, "ada", 1.5), (2, "bob", None)]


def test_delta_tables_are_found_by_schema_and_table_or_by_folder(
    tmp_path: Path, store: Store, spark: SparkSession
) -> None:
    connection = DeltaLocalConnection(path=str(tmp_path / "lake"))
    written = spark.sql("SELECT 1L AS id, 'ada' AS name, DATE '2026-01-01' AS since").write.format("delta")
    written.save(str(tmp_path / "lake" / "crm" / "customers"))
    by_table = {"customers": Lookup(connection=connection, schema="crm", table="customers")}
    assert names(Lookups(by_table, store, spark).tables(0)["customers"]) == ["ada"]
    written.mode("append").save(str(tmp_path / "lake" / "crm" / "customers"))
    by_folder = {"customers": Lookup(connection=connection, query="crm.customers")}
    assert names(Lookups(by_folder, store, spark).tables(0)["customers"]) == ["ada"], "batch 0 has its version"
    assert names(Lookups(by_folder, store, spark).tables(1)["customers"]) == ["ada", "ada"]
    with pytest.raises(FlowError, match=r"lookup 'customers': there is no Delta table at .*lake/orders"):
        Lookups({"customers": Lookup(connection=connection, table="orders")}, store, spark).tables(2)


def test_a_batch_that_is_planned_again_sees_what_it_saw(tmp_path: Path, store: Store, spark: SparkSession) -> None:
    file, declared = tmp_path / "crm.db", {"customers": from_sqlite(tmp_path / "crm.db")}
    customers(file, "ada")
    first_process = Lookups(declared, store, spark)
    assert names(first_process.tables(0)["customers"]) == ["ada"]
    customers(file, "ada", "bob")
    assert names(first_process.tables(1)["customers"]) == ["ada"], "static: once per start"
    second_process = Lookups(declared, store, spark)
    assert names(second_process.tables(1)["customers"]) == ["ada"], "batch 1 is planned again"
    assert names(second_process.tables(2, spark.newSession())["customers"]) == ["ada", "bob"]
    assert versions(store) == 2
    second_process.tables(3)
    assert versions(store) == 1, "no batch needs the first any more"
    (store.checkpoint / "lookups.json").unlink()
    assert names(Lookups(declared, store, spark).tables(1)["customers"]) == ["ada", "bob"], (
        "a new checkpoint starts anew"
    )


def test_a_refresh_that_fails_keeps_what_there_is_and_says_so_once(
    tmp_path: Path, store: Store, spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    file, clock = tmp_path / "crm.db", Clock()
    customers(file, "ada")
    lookups = Lookups({"customers": from_sqlite(file, refresh_interval_ms=1000)}, store, spark, clock)
    lookups.tables(0)
    customers(file, "bob")
    clock.now = 0.9
    assert names(lookups.tables(1)["customers"]) == ["ada"]
    clock.now = 1.0
    assert names(lookups.tables(1)["customers"]) == ["ada"], "never within a batch"
    assert names(lookups.tables(2)["customers"]) == ["bob"]
    file.rename(tmp_path / "away.db")
    clock.now = 2.0
    with caplog.at_level(logging.WARNING):
        assert names(lookups.tables(3)["customers"]) == ["bob"]
        lookups.tables(4)
    (warning,) = caplog.records
    assert warning.message == "lookup not refreshed"
    assert vars(warning)["lookup"] == "customers"
    assert "there is no file" in vars(warning)["reason"]
    (tmp_path / "away.db").rename(file)
    customers(file, "eve")
    clock.now = 3.0
    assert names(lookups.tables(5)["customers"]) == ["eve"]


def test_files_that_have_not_changed_are_not_copied_again(tmp_path: Path, store: Store, spark: SparkSession) -> None:
    file = tmp_path / "customers.csv"
    file.write_text("id,name\n1,ada\n")
    declared = {"customers": Lookup(connection=ObjectStoreLocalConnection(path=str(file)))}
    Lookups(declared, store, spark).tables(0)
    Lookups(declared, store, spark).tables(1)
    assert versions(store) == 1
    file.write_text("id,name\n1,eve\n")
    assert names(Lookups(declared, store, spark).tables(2)["customers"]) == ["eve"]


def _empty_database(path: Path) -> None:
    sqlite3.connect(path).close()
    path.touch()


@pytest.mark.parametrize(
    ("prepare", "lookup", "message"),
    [
        (lambda _: None, from_sqlite, "lookup 'customers': there is no file .*origin"),
        (_empty_database, from_sqlite, "lookup 'customers': .*origin refuses to be read: no such table"),
        (_empty_database, lambda p: from_sqlite(p, query="SELECT FROM x"), "syntax error(.|\n)*correct `query`"),
        (
            lambda p: duckdb.connect(str(p)).close(),
            lambda p: Lookup(connection=DuckDBConnection(path=str(p)), table="customers"),
            "lookup 'customers': .* Table with name customers does not exist",
        ),
        (
            lambda p: p.write_text("no database, but a text that is long enough for one" * 99),
            lambda p: Lookup(connection=DuckDBConnection(path=str(p)), table="customers"),
            "refuses to be read: .*not a valid DuckDB database",
        ),
        (
            Path.mkdir,
            lambda p: Lookup(connection=ObjectStoreLocalConnection(path=str(p), format="csv")),
            "lookup 'customers': there is no file at .*origin",
        ),
        (
            lambda p: p.write_text('{"id": 1}\n{"id": 2, "na'),
            lambda p: Lookup(connection=ObjectStoreLocalConnection(path=str(p), format="json_lines")),
            "lookup 'customers': .*origin cannot be read: .*[Mm]alformed",
        ),
    ],
    ids=["no file", "no table", "bad query", "no table in duckdb", "no database", "no files", "half a file"],
)
def test_what_cannot_be_read_at_the_start_is_told_in_words(
    prepare: Callable[[Path], None], lookup: Callable[[Path], Lookup], message: str,
    tmp_path: Path, store: Store, spark: SparkSession,
) -> None:  # fmt: skip
    prepare(tmp_path / "origin")
    with pytest.raises(FlowError, match=message) as raised:
        read(lookup(tmp_path / "origin"), store, spark)
    assert raised.value.next_step
    assert not list(store.checkpoint.glob("lookups.json"))


def test_a_pipeline_joins_what_is_there_when_it_starts(orders: Orders) -> None:
    file = orders.folder / "crm.db"
    lookup = f'[transform.lookups.customers]\nkind = "sqlite"\npath = "{file}"\ntable = "customers"'
    sql = "SELECT s.id, c.name FROM source s LEFT JOIN customers c ON c.id = s.id"
    customers(file, "ada", "bob")
    orders.numbered(range(3))
    orders.run(sql=sql, more=lookup)
    customers(file, "eve")
    orders.arrive("later.jsonl", [{"id": 0, "amount": 1.0}])
    orders.run(sql=sql, more=lookup)
    assert orders.in_database() == [(0, "ada"), (0, "eve"), (1, "bob"), (2, None)]


def test_servers_are_read_with_their_types(
    postgres_url: str, mariadb_url: str, store: Store, spark: SparkSession
) -> None:
    made = "CREATE TABLE customers (id BIGINT, name VARCHAR(9), owes NUMERIC(12, 2), seen DATE, {} BOOLEAN)"
    filled = "INSERT INTO customers VALUES (1, 'ä', 0.10, '1969-12-31', true), (2, NULL, NULL, NULL, NULL)"
    for ask, url in ((Postgres.query, postgres_url), (MySQL.query, mariadb_url)):
        ask(url, made.format('"odd name"' if url is postgres_url else "`odd name`"))
        ask(url, filled)
    ours, theirs = PostgresConnection(url=postgres_url), MySQLConnection(url=mariadb_url)
    query = "SELECT * FROM customers WHERE id > 0;"
    for lookup in (
        Lookup(connection=ours, schema="public", table="customers"),
        Lookup(connection=ours, query=query),
        Lookup(connection=theirs, table="customers"),
    ):
        rows = read(lookup, store, spark)
        assert rows.dtypes == [
            ("id", "bigint"), ("name", "string"), ("owes", "decimal(12,2)"), ("seen", "date"), ("odd name", "boolean"),
        ]  # fmt: skip
        found = sorted(tuple(row) for row in rows.collect())
        assert found == [(1, "ä", Decimal("0.10"), date(1969, 12, 31), True), (2, None, None, None, None)]
    assert not list(store.checkpoint.glob("lookups/*/*-raw"))


def test_a_server_that_refuses_or_is_away_says_so(postgres_url: str, store: Store, spark: SparkSession) -> None:
    empty = Lookup(connection=PostgresConnection(url=postgres_url), table="customers")
    with pytest.raises(LookupFailed, match=r"lookup 'customers': PostgreSQL at .* refuses: .*does not exist"):
        read(empty, store, spark)
    away = Lookup(connection=PostgresConnection(url="postgresql://postgres@127.0.0.1:1/postgres"), table="customers")
    with pytest.raises(LookupBusy, match=r"lookup 'customers': PostgreSQL at .* cannot be read now"):
        read(away, store, spark)
