"""MySQL and MariaDB as a target beyond what all targets share: their types, their refusals, a server that goes away."""

import sys
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pymysql
import pytest
from pyspark.sql import SparkSession

from ematix_flow import MySQLConnection
from ematix_flow.errors import FlowError, MissingExtra
from ematix_flow.sinks import mysql_address
from ematix_flow.sinks.base import TargetRefused, TargetUnavailable
from ematix_flow.sinks.mysql_address import understood
from ematix_flow.sinks.mysql_load import ingest
from ematix_flow.sinks.opening import open_sink
from ematix_flow.sinks.tables import MODES, Dialect, Load
from ematix_flow.specs import Target
from tests.contract.backends import MariaDB as Backend
from tests.contract.feeding import Feed, at
from tests.orders import Orders
from tests.services.mysql import MySQL, connected, mariadb, mysql, own_mariadb

SOME_UUID = "6f9619ff-8b86-d011-b42d-00c04fc964ff"


@pytest.fixture
def backend(tmp_path: Path, spark: SparkSession) -> Backend:
    return Backend(tmp_path, spark)


@pytest.mark.usefixtures("spark")
def test_a_pipeline_sets_aside_what_mysql_refuses_and_goes_on(orders: Orders) -> None:
    """By a check, as a duplicate, in a character set that lacks it, as too large, and as a number that it does not
    know."""
    orders.in_mysql(
        "CREATE TABLE orders (Id bigint UNIQUE, name varchar(5) CHARACTER SET latin1, n smallint CHECK (n < 9), "
        "d double)"
    )
    orders.arrive(
        "a.jsonl",
        [
            {"id": 1, "name": "ä", "n": "1", "d": 0.1},
            {"id": 1, "name": "twice", "n": "1", "d": 1.0},
            {"id": 2, "name": "日本", "n": "1", "d": 1.0},
            {"id": 3, "name": "long", "n": "9", "d": 1.0},
            {"id": 4, "name": "too long", "n": "1", "d": 1.0},
            {"id": 5, "name": "nan", "n": "1", "d": 1.0},
            {"id": 6, "name": None, "n": None, "d": None},
        ],
    )
    result = orders.run(
        schema="id long, name string, n string, d double",
        sql="SELECT id, name, CAST(n AS SMALLINT) AS n, IF(name = 'nan', double('NaN'), d) AS d FROM source",
        on_error="dlq",
        targets=("mysql",),
    )
    assert orders.in_mysql("SELECT * FROM orders ORDER BY 1") == [(1, "ä", 1, 0.1), (6, None, None, None)]
    assert result.rows_written == {"orders": 2}
    errors = [letter.error for letter in sorted(orders.dead_letters(), key=lambda letter: letter.position)]
    for error, words in zip(errors, ["Duplicate", "Incorrect string", "CONSTRAINT", "5", "NaN"], strict=True):
        assert words in error
    assert orders.in_mysql("SHOW TABLES LIKE '%staged%'") == []


def test_a_table_made_by_others_gets_values_of_its_own_types(backend: Backend) -> None:
    MySQL.query(
        backend.url,
        """
        CREATE TABLE orders (`Id` char(36) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci PRIMARY KEY,
            feels enum('calm', 'wild'), amount int unsigned, big bigint unsigned, body json, name varchar(20) CHARACTER
            SET utf8mb4 COLLATE utf8mb4_general_ci, seen timestamp(3) NULL, day datetime NULL, flag bit(1),
            single float, twice bigint AS (amount * 2) STORED, made int NOT NULL DEFAULT 7,
            n int NOT NULL AUTO_INCREMENT UNIQUE)
        """,
    )
    columns = (
        "ID string, feels string, amount bigint, big decimal(20, 0), body struct<b: int, a: string>, name string, "
        "seen timestamp, day timestamp, flag boolean, single float"
    )
    feed = Feed(backend, columns, mode="merge", keys=["id"])
    moment = datetime(2026, 5, 1, 23, 59, 59, 123456, tzinfo=UTC)
    row = (SOME_UUID, "wild", 2**32 - 1, Decimal(2**64 - 1), {"b": 1, "a": None}, "ann", moment, moment, True, 0.1)
    feed.write(row)
    before = MySQL.query(backend.url, "SELECT n FROM orders")
    feed.write(row)
    names = ("feels", "amount", "big", "name", "seen", "flag", "made")
    kept = moment.replace(microsecond=123000)
    assert feed.values(*names) == [("wild", 2**32 - 1, 2**64 - 1, "ann", kept, True, 7)]
    # In the order of this table `ANN` is the same text, but not the same content.
    feed.write((SOME_UUID.upper(), "wild", 1, Decimal(1), None, "ANN", moment, moment, False, 16777217.0))
    assert feed.values("name", "amount", "twice") == [("ANN", 1, 2)]
    assert MySQL.query(backend.url, "SELECT n FROM orders") == before
    with pytest.raises(TargetRefused, match="feels"):
        feed.write((SOME_UUID, "odd", 3, None, None, None, None, None, None, None))


def test_texts_are_the_same_only_to_the_letter(backend: Backend) -> None:
    """In a table of our own, as a key and as content; reserved words and quotes in names."""
    feed = Feed(backend, 'select string, `a"b` string', mode="merge", keys=["select"])
    feed.write(("x", "a"), ("X", "a"), ("x ", "a"), ("é", "a"), ("e", "a"), ("\U0001f600", ""))
    feed.write(("x", "A"), ("X", "a "), ("é", None))
    assert feed.values("select", 'a"b') == sorted(
        [("x", "A"), ("X", "a "), ("x ", "a"), ("é", None), ("e", "a"), ("\U0001f600", "")], key=repr
    )


@pytest.mark.parametrize("server", [mariadb, pytest.param(mysql, marks=pytest.mark.slow)])
def test_rows_arrive_the_same_whether_the_server_lets_them_be_loaded_or_not(server: Any, spark: SparkSession) -> None:
    import pyarrow as pa

    texts = ["", None, "\\N", "NULL", "a\tb\nc\\", "'\"`\0\r\x1a", "\U0001f600", "%s"]
    rows = pa.table(
        {
            "t": texts,
            "b": [None if text is None else text.encode() + b"\xff" for text in texts],
            "d": pa.array([Decimal("0.1"), None, *[Decimal("-12.5")] * 6], pa.decimal128(30, 4)),
            "f": pa.array([0.1, None, 1e300, -0.0, float("nan"), float("inf"), 1e-300, 1 / 3], pa.float64()),
            "m": pa.array([datetime(1, 1, 1, tzinfo=UTC), None, *[at(1)] * 6], pa.timestamp("us", "UTC")),
            "y": pa.array([True, None, *[False] * 6]),
            "_flow_copy": pa.array(range(8), pa.int64()),
        }
    )
    url, held = server().new_database(), []
    for allowed in ("ON", "OFF"):
        MySQL.query(server().url, f"SET GLOBAL local_infile = {allowed}")
        MySQL.query(
            url,
            "CREATE OR REPLACE TABLE s (t longtext, b longblob, d decimal(30, 4), f double, m datetime(6), y boolean, "
            "_flow_copy bigint, _flow_wrong text) CHARACTER SET utf8mb4"
            if server is mariadb
            else "DROP TABLE IF EXISTS s;\nCREATE TABLE s (t longtext, b longblob, d decimal(30, 4), f double, "
            "m datetime(6), y boolean, _flow_copy bigint, _flow_wrong text)",
        )
        assert ingest(understood(MySQLConnection(url=url), ""), '"s"', rows.to_reader(max_chunksize=3)) == ""
        held.append(MySQL.query(url, "SELECT * FROM s ORDER BY _flow_copy"))
    loaded, inserted = held
    assert loaded == inserted
    assert [row[0] for row in loaded] == texts
    assert [row[1] for row in loaded] == rows["b"].to_pylist()
    assert [row[3] for row in loaded] == [0.1, None, 1e300, -0.0, None, None, 1e-300, 1 / 3]
    assert [row[4] for row in loaded][:3] == [
        moment and moment.replace(tzinfo=None) for moment in rows["m"].to_pylist()[:3]
    ]
    assert [bool(row[-1]) for row in loaded] == [False, False, False, False, True, True, False, False]
    if server is mariadb:
        MySQL.query(server().url, "SET GLOBAL local_infile = ON")


def test_a_server_that_goes_away_and_one_that_lets_nobody_in(tmp_path: Path, spark: SparkSession) -> None:
    with own_mariadb(durable=True) as server:
        feed = Feed(Backend(tmp_path, spark, server), "id long, name string")
        staged, batch = feed.stage((1, "a")), feed._batch()
        server.kill()
        with pytest.raises(TargetUnavailable, match="cannot take the batch now"):
            feed.sink.apply(staged, batch, batch.fence("orders"))
        server.start()
        staged, batch = feed.stage((1, "a")), replace(batch, reached=lambda _: server.kill())
        with pytest.raises(TargetUnavailable, match="cannot take the batch now"):
            feed.sink.apply(staged, batch, batch.fence("orders"))
        server.start()
        assert feed.rows() == []
        # Rows of an attempt that Spark does not know of are left out; rows that are missing are not taken for none.
        staged, batch = feed.stage((1, "a")), feed._batch()
        within = server.within("main")
        MySQL.query(within, f"INSERT INTO {staged.table.replace(chr(34), '`')} VALUES (2, 'b', 0, 7, NULL)")  # type: ignore[attr-defined]
        assert feed.sink.apply(staged, batch, batch.fence("orders")).done
        assert feed.values("id") == [(1,)]
        staged = feed.stage((2, "b"))
        MySQL.query(within, f"DROP TABLE {staged.table.replace(chr(34), '`')}")  # type: ignore[attr-defined]
        with pytest.raises(TargetUnavailable, match="gone"):
            feed.sink.apply(staged, replace(batch, number=1), replace(batch, number=1).fence("orders"))

        MySQL.query(
            server.url,
            "CREATE USER reader@localhost IDENTIFIED BY 'right';\nGRANT SELECT ON main.* TO reader@localhost;\n"
            "CREATE TABLE main.old (id bigint) ENGINE = MyISAM",
        )
        place = f"127.0.0.1:{server.port}"
        for url, table, words in (
            (f"mysql://reader:wr0ng%2Fsecret@{place}/main", "orders", "Access denied"),
            (f"mysql://reader:right@{place}/main", "orders", "command denied"),
            (f"mysql://reader:right@{place}/nowhere", "orders", "Access denied"),
            (server.within("main"), "old", "MyISAM"),
        ):
            sink = open_sink(Target(connection=MySQLConnection(url=url), table=table), "orders")
            with pytest.raises(FlowError, match=words) as error:
                sink.prepare(spark.range(1).schema)
            assert not error.value.transient
            assert "wr0ng" not in str(error.value)
            assert place in str(error.value) or words == "MyISAM"


@pytest.mark.slow
def test_a_lock_of_another_program_passes(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    patient = tuple(part.replace("30", "1") for part in mysql_address._SETTINGS)
    monkeypatch.setattr("ematix_flow.sinks.mysql.connected", partial(mysql_address.connected, settings=patient))
    feed = Feed(backend, "id long, name string", mode="merge", keys=["id"])
    feed.write((1, "a"))
    with closing(connected(backend.url)) as other, other.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("UPDATE orders SET name = 'theirs'")
        with pytest.raises(TargetUnavailable, match="Lock wait timeout"):
            feed.write((1, "b"))
        cursor.execute("ROLLBACK")
    assert feed.write((1, "b"), again=True).done
    assert feed.values("id", "name") == [(1, "b")]


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("mysql://me:s3cret/slash@host/db", "not one that MySQL understands"),
        ("postgresql://me:s3cret@host/db", "not one that MySQL understands"),
        ("mysql://me:s3cret@host/db?ssl_moed=REQUIRED", "ssl_moed"),
        ("mysql://me:s3cret@host/db?ssl_mode=maybe", "ssl_mode = maybe"),
        ("mysql://me:s3cret@host", "neither the URL"),
    ],
)
def test_a_url_that_is_none_is_refused_without_repeating_it(url: str, words: str) -> None:
    with pytest.raises(FlowError, match=words) as error:
        open_sink(Target(connection=MySQLConnection(url=url), table="orders"), "orders")
    assert "s3cret" not in str(error.value)
    assert error.value.next_step


def test_a_missing_driver_and_long_names(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = MySQLConnection(url="mysql://h/d")
    with pytest.raises(FlowError, match="64 characters"):
        open_sink(Target(connection=connection, table="ö" * 65), "orders")
    monkeypatch.setitem(sys.modules, "pymysql", None)
    with pytest.raises(MissingExtra) as error:
        open_sink(Target(connection=connection, table="orders"), "orders")
    assert error.value.next_step == "pip install 'ematix-flow-spark[mysql]'"


def test_a_merge_looks_up_keys_in_an_index(mariadb_url: str) -> None:
    """Whether they may be NULL or not."""
    null_safe = Dialect("{} <=> {}", "NOT ({} <=> {})", joins_first=True)
    with closing(connected(mariadb_url)) as db, db.cursor() as cursor:
        cursor.execute("SET sql_mode = 'ANSI_QUOTES'")
        cursor.execute(
            "CREATE TABLE t (id bigint PRIMARY KEY, part varchar(50), name text, KEY parts (part)) CHARSET utf8mb4"
        )
        cursor.execute("CREATE TABLE s1 CHARSET utf8mb4 AS SELECT seq AS id, 'p' AS part, 'x' AS name FROM seq_1_to_10")
        cursor.execute("INSERT INTO t SELECT seq, seq, 'y' FROM seq_1_to_20000")
        cursor.execute("ANALYZE TABLE t")
        for keys, firm, index in ((("id",), {"id"}, "PRIMARY"), (("part",), set(), "parts")):
            load = Load("t", "s1", ("id", "part", "name"), keys, firm=frozenset(firm), dialect=null_safe)
            for statement in MODES["merge"](load):
                cursor.execute(f"EXPLAIN {statement}")
                plan = [row for row in cursor.fetchall() if row[2] == "t"]
                assert index in [row[5] for row in plan], plan


def test_the_driver_sends_no_file_that_a_server_asks_for(mariadb_url: str) -> None:
    """It is told that rows may be loaded, but not that it may read files."""
    with closing(connected(mariadb_url, client_flag=pymysql.constants.CLIENT.LOCAL_FILES)) as db, db.cursor() as cursor:
        cursor.execute("CREATE TABLE s (t text)")
        with pytest.raises(RuntimeError, match="local_infile"):
            cursor.execute("LOAD DATA LOCAL INFILE '/etc/hostname' INTO TABLE s")
