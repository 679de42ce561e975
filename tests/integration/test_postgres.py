"""PostgreSQL as a target beyond what all targets share: its types, its refusals, and a server that goes away."""

import sys
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import psycopg
import pytest
from pyspark.sql import SparkSession

from ematix_flow import PostgresConnection
from ematix_flow.errors import FlowError, MissingExtra
from ematix_flow.sinks.base import TargetRefused, TargetUnavailable
from ematix_flow.sinks.opening import open_sink
from ematix_flow.sinks.tables import MODES, Dialect, Load
from ematix_flow.specs import Target
from tests.contract.backends import Postgres as Backend
from tests.contract.feeding import Feed
from tests.orders import Orders
from tests.services.postgres import Postgres, own_postgres

SOME_UUID = "6f9619ff-8b86-d011-b42d-00c04fc964ff"


@pytest.fixture
def backend(tmp_path: Path, spark: SparkSession) -> Backend:
    return Backend(tmp_path, spark)


@pytest.mark.usefixtures("spark")
def test_a_pipeline_sets_aside_what_postgres_refuses_and_goes_on(orders: Orders) -> None:
    """By a check, by a constraint that waits for the end of the transaction, and as text that it cannot hold."""
    orders.in_postgres(
        'CREATE TABLE orders ("Id" bigint UNIQUE DEFERRABLE INITIALLY DEFERRED, name varchar(5), '
        "n numeric CHECK (n < 9))"
    )
    orders.arrive(
        "a.jsonl",
        [
            {"id": 1, "name": "ä", "n": 1},
            {"id": 1, "name": "twice", "n": 1},
            {"id": 2, "name": "nul\0", "n": 1},
            {"id": 3, "name": "long", "n": 9},
            {"id": 4, "name": "too long", "n": 1},
            {"id": 5, "name": None, "n": None},
        ],
    )

    result = orders.run(schema="id long, name string, n int", on_error="dlq", targets=("postgres",))

    assert orders.in_postgres("SELECT * FROM orders ORDER BY 1") == [(1, "ä", Decimal(1)), (5, None, None)]
    assert result.rows_written == {"orders": 2}
    errors = [letter.error for letter in sorted(orders.dead_letters(), key=lambda letter: letter.position)]
    for error, words in zip(errors, ["unique", "0x00", "check", "5"], strict=True):
        assert words in error
    left = orders.in_postgres("SELECT relname FROM pg_class WHERE relname LIKE '%staged%'")
    assert left == []


def test_every_type_has_its_column_and_comes_back_as_it_was(backend: Backend) -> None:
    """All that the shared case has but for the NUL character, and what only a declared class can say."""
    moment = datetime(2026, 5, 1, 23, 59, 59, 999999, tzinfo=UTC)
    values: dict[str, tuple[str, Any]] = {
        "yes boolean": ("boolean", True),
        "tiny tinyint": ("smallint", -128),
        "small smallint": ("smallint", -(2**15)),
        "whole int": ("integer", 2**31 - 1),
        "big bigint": ("bigint", -(2**63)),
        "single float": ("real", 1.5),
        "real double": ("double precision", 0.1),
        "exact decimal(38, 10)": ("numeric(38,10)", Decimal("-1234567890123456789012345678.0123456789")),
        "text string": ("text", "ünï'\"\n\\ %s 007"),
        "bytes binary": ("bytea", b"\0\xff"),
        "day date": ("date", date(1, 1, 1)),
        "moment timestamp": ("timestamp with time zone", moment),
        "wall timestamp_ntz": ("timestamp without time zone", moment.replace(year=9999, tzinfo=None)),
        "many array<int>": ("jsonb", [1, None]),
        "by_name map<string, int>": ("jsonb", {"a": 1}),
        "both struct<a: int, b: string>": ("jsonb", {"a": 1, "b": None}),
    }
    feed = Feed(backend, ", ".join(values))
    full = [value for _, value in values.values()]
    feed.write(full, [None] * len(full))
    (empty, found) = sorted(feed.rows(), key=lambda row: row["big"] is not None)
    assert list(found.values()) == full
    assert set(empty.values()) == {None}
    types = (
        "SELECT format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = 'orders'::regclass AND attnum > 0"
    )
    assert [kind for (kind,) in Postgres.query(backend.url, types)] == [kind for kind, _ in values.values()]


def test_a_table_made_by_others_gets_values_of_its_own_types(backend: Backend) -> None:
    Postgres.query(
        backend.url,
        """
        CREATE TYPE mood AS ENUM ('calm', 'wild');
        CREATE DOMAIN positive AS int CHECK (VALUE > 0);
        CREATE TABLE orders (id uuid PRIMARY KEY, feels mood, amount positive, body json, parts jsonb, code char(4),
            many int[], exact numeric, twice int GENERATED ALWAYS AS (2) STORED, made int DEFAULT 7)
        """,
    )
    columns = (
        "ID string, feels string, amount int, body string, parts array<struct<at: timestamp_ntz, b: int>>, "
        "code string, many string, exact decimal(38, 30)"
    )
    feed = Feed(backend, columns, mode="merge", keys=["id"])
    row = (SOME_UUID, "wild", 3, '{"a": 1}', [{"at": None, "b": 2}], "ab", "{1,2}", Decimal("0." + "1" * 30))
    feed.write(row)
    before = Postgres.query(backend.url, "SELECT xmin FROM orders")
    feed.write(row)

    assert Postgres.query(backend.url, "SELECT xmin FROM orders") == before
    assert feed.values("feels", "amount", "body", "code", "many", "exact", "made") == [
        ("wild", 3, '{"a": 1}', "ab  ", [1, 2], Decimal("0." + "1" * 30), 7)
    ]
    assert feed.values("parts") == [([{"at": None, "b": 2}],)]
    with pytest.raises(TargetRefused, match="mood"):
        feed.write((SOME_UUID, "odd", 3, None, None, None, None, None))


def test_only_rows_of_the_copies_that_spark_counted_are_applied(backend: Backend) -> None:
    """An attempt that is given up, or whose success is not heard of, leaves its rows behind."""
    feed = Feed(backend, "id long, name string", mode="merge", keys=["id"])
    staged: Any = feed.stage((1, "a"))
    Postgres.query(backend.url, f"INSERT INTO {staged.table} SELECT * FROM {staged.table}")
    Postgres.query(backend.url, f"UPDATE {staged.table} SET id = 2, _flow_copy = 0 WHERE ctid = '(0,2)'")
    batch = feed._batch()
    feed.sink.apply(staged, batch, batch.fence("orders"))
    assert feed.values("id") == [(1,)]


def test_rows_that_are_only_added_are_as_many_as_spark_has_counted(backend: Backend) -> None:
    """They have no numbers by which those of an attempt that was given up could be left out."""
    feed = Feed(backend, "id long, name string")
    staged: Any = feed.stage((1, "a"), (2, "b"))
    Postgres.query(backend.url, f"INSERT INTO {staged.table} SELECT * FROM {staged.table}")
    batch = feed._batch()
    with pytest.raises(TargetUnavailable, match="4 rows were staged instead of 2"):
        feed.sink.apply(staged, batch, batch.fence("orders"))
    assert feed.rows() == []
    Postgres.query(
        backend.url,
        "CREATE FUNCTION odd() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN IF NEW.id = 2 THEN RETURN NULL; END IF; RETURN NEW; END';"
        "CREATE TRIGGER odd BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION odd()",
    )
    assert feed.write((1, "a"), (2, "b"), (3, "nöl")).counts["inserted"] == 2
    assert feed.values("id", "name") == [(1, "a"), (3, "nöl")]


def test_a_database_of_another_encoding_gets_its_letters_and_refuses_others(
    tmp_path: Path, spark: SparkSession
) -> None:
    backend = Backend(tmp_path, spark)
    latin = f"latin{uuid4().hex}"
    Postgres.query(backend.url, f"CREATE DATABASE {latin} ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    backend.url = urlunsplit(urlsplit(backend.url)._replace(path=f"/{latin}"))
    Postgres.query(backend.url, "CREATE SCHEMA main")
    feed = Feed(backend, "id long, name string")
    feed.write((1, "größe"))
    assert feed.values("name") == [("größe",)]
    assert list(feed.refusals(feed.stage((2, "ok"), (3, "€")))) == [1]


def test_rows_that_a_crash_of_the_server_took_away_are_not_taken_for_none(tmp_path: Path, spark: SparkSession) -> None:
    """Unlogged tables are empty after it. This server wants TLS and a password."""
    with own_postgres(tls=True, durable=True) as server:
        feed = Feed(Backend(tmp_path, spark, server), "id long, name string")
        staged, batch = feed.stage((1, "a")), feed._batch()
        server.kill()
        with pytest.raises(TargetUnavailable, match="refused"):
            feed.sink.apply(staged, batch, batch.fence("orders"))
        with pytest.raises(TargetUnavailable, match="refused"):
            feed.stage((1, "a"))
        server.start()
        with pytest.raises(TargetUnavailable, match="gone"):
            feed.sink.apply(staged, batch, batch.fence("orders"))
        assert feed.rows() == []
        staged, batch = feed.stage((1, "a")), replace(batch, reached=lambda _: server.kill())
        with pytest.raises(TargetUnavailable, match="cannot take the batch now"):
            feed.sink.apply(staged, batch, batch.fence("orders"))
        server.start()
        assert feed.rows() == []
        assert feed.write((1, "a")).done
        assert feed.values("id") == [(1,)]
        for url, words in {
            server.with_password("wr0ng%2Fsecret"): "authentication failed",
            server.url.replace("/postgres?", "/nowhere?"): "does not exist",
            server.url.replace("verify-full", "disable"): "pg_hba.conf",
        }.items():
            sink = open_sink(Target(connection=PostgresConnection(url=url), table="orders"), "orders")
            with pytest.raises(FlowError, match=words) as error:
                sink.prepare(spark.range(1).schema)
            assert not error.value.transient
            assert "wr0ng" not in str(error.value)
            assert f"127.0.0.1:{server.port}" in str(error.value)


@pytest.mark.parametrize("url", ["postgresql://me:s3cret/slash@host/db", "mysql//me:s3cret@host/db"])
def test_a_url_that_is_none_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(FlowError) as error:
        open_sink(Target(connection=PostgresConnection(url=url), table="orders"), "orders")
    assert "s3cret" not in str(error.value)
    assert "postgresql://user:password@host:5432/database" in error.value.next_step


def test_a_missing_driver_is_named_with_the_extra_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "adbc_driver_postgresql", None)
    with pytest.raises(MissingExtra) as error:
        open_sink(Target(connection=PostgresConnection(url="postgresql://h/d"), table="orders"), "orders")
    assert error.value.next_step == "pip install 'ematix-flow-spark[postgres]'"


def test_names_that_postgres_would_cut_off_are_refused() -> None:
    target = Target(connection=PostgresConnection(url="postgresql://h/d"), table="ö" * 32)
    with pytest.raises(FlowError, match="63 bytes"):
        open_sink(target, "orders")


def test_a_merge_compares_no_row_with_every_other(postgres_url: str) -> None:
    """Keys that are never NULL are found in an index, others by a hash."""
    with psycopg.connect(postgres_url) as db:
        db.execute("CREATE TABLE t (id bigint PRIMARY KEY, part text, name text)")
        db.execute("CREATE TABLE s1 AS SELECT i AS id, 'p' AS part, 'x' AS name FROM generate_series(1, 10) AS i")
        db.execute("INSERT INTO t SELECT i, NULL, 'y' FROM generate_series(1, 100000) AS i")
        db.execute("ANALYZE")
        load = Load("t", "s1", ("id", "part", "name"), ("id",), firm=frozenset({"id"}))
        null_safe = Load("t", "s1", ("id", "part", "name"), ("part",), dialect=Dialect(same="ARRAY[{}] = ARRAY[{}]"))
        for how, words in ((load, "t_pkey"), (null_safe, "Hash Cond")):
            for statement in MODES["merge"](how):
                plan = "\n".join(line for (line,) in db.execute(f"EXPLAIN {statement}".encode()))
                assert words in plan
