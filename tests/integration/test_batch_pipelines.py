"""`@ematix.pipeline`: in the database where that is possible, through Spark where it is not, with the same result."""

import sqlite3
import sys
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import duckdb
import pytest
from pyspark.sql import SparkSession

from ematix_flow import DuckDBConnection, Source, SQLiteConnection, ematix, pk
from ematix_flow.connections import Connection
from ematix_flow.errors import DeclarationError, FlowError
from ematix_flow.normalize import deduplicate_by, derive, filter_where, sql, trim, upper
from ematix_flow.types import BigInt, Double, Integer, Numeric, String, Text
from tests.contract.origins import ORIGINS, Base, OfDuckDB, OfPostgres


@ematix.table(schema="main", name="orders")
class Orders:
    id: Annotated[BigInt, pk()]
    name: Text | None
    amount: Double | None


@ematix.table(schema="main", name="prices")
class Prices:
    id: Annotated[BigInt, pk()]
    amount: Numeric[10, 2]


@ematix.table(schema="main", name="names")
class Names:
    id: Annotated[BigInt, pk()]
    name: Annotated[Text, trim(), upper()] | None


@ematix.table(schema="main", name="people")
class People:
    id: Annotated[BigInt, pk()]
    full_name: Annotated[Text, derive("concat(first, ' ', last)"), upper()]
    place: Annotated[Text, sql("concat(col, ', ', region)")] | None


@ematix.table(schema="main", name="audited")
class Audited:
    id: Annotated[BigInt, pk()]
    _batch_id: Text


@pytest.fixture(params=ORIGINS, ids=lambda origin: origin.name)
def origin(request: pytest.FixtureRequest, tmp_path: Path) -> Base:
    made: Base = request.param(tmp_path)
    if made.name == "mysql":
        made.run("DROP DATABASE IF EXISTS main")  # of this name there is one per server
    made.run("CREATE TABLE raw (id int, label varchar(20), amount decimal(10, 2), seen int)")
    return made


def filled(origin: Base, *rows: tuple[Any, ...]) -> None:
    listed = ", ".join(f"({id}, {'NULL' if name is None else repr(name)}, {a}, {s})" for id, name, a, s in rows)
    origin.run("DELETE FROM raw", f"INSERT INTO raw VALUES {listed}")


def declared(origin: Base, *, target: type = Orders, **keywords: Any) -> Any:
    @ematix.pipeline(
        target=target,
        source_connection=origin.connection,
        target_connection=keywords.pop("target_connection", origin.connection),
        source_table=keywords.pop("source_table", "raw"),
        column_map=keywords.pop("column_map", {"name": "label"}),
        **keywords,
    )
    def load() -> None:
        """Orders."""

    return load


def counts(result: Any) -> tuple[int, ...]:
    return (
        result.rows_inserted, result.rows_updated, result.rows_unchanged, result.rows_deleted, result.rows_closed,
    )  # fmt: skip


def test_the_database_does_it_alone(origin: Base) -> None:
    """No Spark: merge with counts, NULL-safe, the last of a key by its time, deletes hard and soft."""
    filled(
        origin, (1, "a", 1, 1), (2, None, 2, 1), (2, "before", 2, 2), (2, "later", 2, 2), (2, "no time", 2, "NULL"),
        (3, "c", "NULL", 1),
    )  # fmt: skip
    load = declared(origin, mode="merge", keys=["id"], event_timestamp_column="seen", handle_deletes="hard")
    first = load.sync()
    assert (first.status, first.path, counts(first)) == ("success", "same_db", (3, 0, 0, 0, 0))
    assert rows(origin) == [(1, "a", 1.0), (2, "later", 2.0), (3, "c", None)]
    assert counts(load.sync()) == (0, 0, 3, 0, 0)
    filled(origin, (1, "a", 1, 1), (2, None, 2, 1), (4, "d", 4, 1))
    assert counts(load.sync()) == (1, 1, 1, 1, 0)
    assert rows(origin) == [(1, "a", 1.0), (2, None, 2.0), (4, "d", 4.0)]

    narrow = declared(
        origin, mode="scd1", keys=["id"], update_columns=["name"], compare_columns=["amount"], name="narrow"
    )
    filled(origin, (1, "other", 1, 1), (2, "set", 9, 1))
    assert counts(narrow.sync()) == (0, 1, 1, 0, 0)
    assert rows(origin) == [(1, "a", 1.0), (2, "set", 2.0), (4, "d", 4.0)]
    again = declared(origin, mode="truncate", name="again", source_table="raw")
    assert counts(again.sync()) == (2, 0, 0, 3, 0)


def test_soft_deletes_are_taken_back(origin: Base) -> None:
    filled(origin, (1, "a", 1, 1), (2, "b", 2, 1))
    load = declared(origin, mode="merge", keys=["id"], handle_deletes="soft")
    load.sync()
    filled(origin, (1, "a", 1, 1))
    assert counts(load.sync()) == (0, 0, 1, 1, 0)
    assert counts(load.sync()) == (0, 0, 1, 0, 0)
    assert [bool(flag) for _, flag in rows(origin, "id, _is_deleted")] == [False, True]
    filled(origin, (1, "a", 1, 1), (2, "b", 2, 1))
    assert counts(load.sync()) == (0, 1, 1, 0, 0)
    assert [bool(flag) for _, flag in rows(origin, "id, _is_deleted")] == [False, False]


@pytest.mark.slow
def test_through_spark_to_several_targets(tmp_path: Path, spark: SparkSession) -> None:
    """Postgres to two DuckDB tables, one of them a history; with normalizers and transforms before and after."""
    origin = OfPostgres(tmp_path)
    origin.run("CREATE TABLE raw (id bigint, label varchar(20), amount decimal(10, 2), seen timestamptz)")
    origin.run(
        "INSERT INTO raw VALUES (1, ' a ', 1, '2026-01-01'), (1, ' b ', 1, '2026-01-02'), (2, 'x', 1, '2026-01-01'), "
        "(3, 'out', 9, '2026-01-01')"
    )
    out = DuckDBConnection(path=str(tmp_path / "out.duckdb"))
    done: list[str] = []

    @ematix.pipeline(
        targets=[
            ematix.target(Names, mode="merge", keys=["id"], handle_deletes="hard"),
            ematix.target(Orders, mode="scd2", keys=["id"], handle_deletes="soft"),
        ],
        source_connection=origin.connection,
        target_connection=out,
        event_timestamp_column="seen",
        transforms_post=["CREATE TABLE IF NOT EXISTS done AS SELECT 1 AS one", lambda: done.append("yes")],
    )
    def load(source: Connection) -> str:
        return "SELECT id, label AS name, amount, seen FROM raw WHERE amount < 5"

    assert [row["name"] for row in load.preview(5, spark=spark)] == ["A", "B", "X"]
    looked = load.dry_run()
    assert (looked.status, looked.path, counts(looked)) == ("dry_run", "cross_db", (0, 0, 0, 0, 0))
    result = load.sync(spark=spark)
    assert (result.path, counts(result)) == ("cross_db", (5, 0, 0, 0, 0))
    assert result.targets["main.names"]["inserted"] == 2
    assert done == ["yes"]
    origin.run("DELETE FROM raw WHERE id = 2")
    second = load.sync(spark=spark)
    assert second.targets["main.names"] == {"inserted": 0, "updated": 0, "unchanged": 1, "deleted": 1, "closed": 0}
    assert second.targets["main.orders"]["closed"] == 1
    with duckdb.connect(str(tmp_path / "out.duckdb"), read_only=True) as db:
        assert db.execute("SELECT id, name FROM names").fetchall() == [(1, "B")]
        history = "SELECT id, name, is_current FROM orders ORDER BY id, valid_from"
        assert db.execute(history).fetchall() == [(1, " a ", False), (1, " b ", True), (2, "x", False)]


@pytest.mark.slow
def test_new_rows_are_appended_once_through_spark(tmp_path: Path, spark: SparkSession) -> None:
    origin = OfDuckDB(tmp_path)
    origin.run("CREATE TABLE raw (id bigint, label varchar, amount decimal(10, 2), seen int)")
    filled(origin, (1, "a", 1, 1), (2, "b", 2, 2), (2, "b", 2, 2))
    load = declared(
        origin,
        target_connection=DuckDBConnection(path=str(tmp_path / "out.duckdb")),
        incremental_column="seen",
        transforms_pre=[deduplicate_by("id"), filter_where("amount > 0")],
    )
    assert counts(load.sync(spark=spark)) == (2, 0, 0, 0, 0)
    origin.run("INSERT INTO raw VALUES (3, 'c', 3, 2), (4, 'd', 0, 3)")
    assert counts(load.sync(spark=spark)) == (1, 0, 0, 0, 0)


def test_a_column_is_derived_from_columns_that_only_the_source_has(tmp_path: Path, spark: SparkSession) -> None:
    origin = OfDuckDB(tmp_path)
    origin.run(
        "CREATE TABLE raw (id bigint, first varchar, last varchar, town varchar, region varchar, age int)",
        "INSERT INTO raw VALUES (1, 'Ada', 'Byron', 'London', 'UK', 36)",
    )
    of_table = declared(origin, target=People, mode="merge", column_map={"place": "town"})
    of_query = ematix.pipeline(target=People, target_connection=origin.connection, mode="merge", name="of_query")(
        lambda _: "SELECT id, first, last, town AS place, region, now() AS seen FROM raw"
    )
    written = [(1, "ADA BYRON", "London, UK")]
    assert [tuple(row.values()) for row in of_table.preview(spark=spark)] == written
    assert counts(of_table.sync(spark=spark)) == (1, 0, 0, 0, 0)
    assert origin.rows("SELECT id, full_name, place FROM main.people") == written
    with pytest.raises(FlowError, match=r"column seen \(timestamp\) is not in the table"):
        of_query.sync(spark=spark)
    timed = ematix.pipeline(
        target=People, target_connection=origin.connection, mode="merge", name="timed", event_timestamp_column="seen"
    )(of_query.function)
    assert counts(timed.sync(spark=spark)) == (0, 0, 1, 0, 0)


@pytest.mark.slow
def test_a_worker_that_a_busy_machine_starts_too_late_is_started_again(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark waits ten seconds for the process that plans the batches of a database."""
    python = tmp_path / "python"
    late = f"case $* in *source_runner*) mkdir {tmp_path}/late 2>/dev/null && exec sleep 11;; esac"
    python.write_text(f'#!/bin/sh\n{late}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(python))
    origin = OfDuckDB(tmp_path)
    origin.run("CREATE TABLE raw (id bigint, label varchar, amount decimal(10, 2), seen int)")
    filled(origin, (1, "a", 1, 1))
    assert counts(declared(origin, force_path="cross_db").sync(spark=spark)) == (1, 0, 0, 0, 0)
    assert (tmp_path / "late").exists()


def test_a_preview_shows_what_transforms_leave(tmp_path: Path, spark: SparkSession) -> None:
    """Not what they leave of the first rows of the source."""
    origin = OfDuckDB(tmp_path)
    origin.run("CREATE TABLE raw AS SELECT range AS id, 'n' || range AS label, range // 2 AS amount FROM range(60)")
    some = [filter_where("label RLIKE '^n[3-5][0-9]{1}$'"), deduplicate_by("amount", order_by="id DESC")]
    load = declared(origin, transforms_pre=some)
    found = sorted(load.preview(3, spark=spark), key=lambda row: row["id"])
    assert [(row["id"], row["name"], type(row["amount"])) for row in found] == [
        (31, "n31", float), (33, "n33", float), (35, "n35", float),
    ]  # fmt: skip
    with pytest.raises(FlowError, match="nowhere"):
        declared(origin, transforms_pre=[filter_where("nowhere > 1")]).preview(spark=spark)


@pytest.mark.parametrize("path", ["same_db", "cross_db"])
def test_columns_that_the_source_lacks_are_told_before_anything_is_read(origin: Base, path: str) -> None:
    """Left out in silence, they would be NULL in every row, and any of several rows of a key would count."""
    wrong = declared(origin, mode="merge", column_map={"name": "lable"}, event_timestamp_column="sen", force_path=path)
    for attempt in (wrong.sync, wrong.dry_run, wrong.preview):
        with pytest.raises(DeclarationError) as error:
            attempt()
        assert [(problem.key, problem.suggestion) for problem in error.value.problems] == [
            ("source 'source' column_map", "label"), ("source 'source' event_timestamp_column", "seen"),
        ]  # fmt: skip


def test_audit_columns_that_a_class_declares_are_filled_and_not_read(origin: Base) -> None:
    filled(origin, (1, "a", 1, 1))
    assert counts(declared(origin, target=Audited, column_map={}).sync()) == (1, 0, 0, 0, 0)
    ((id, batch),) = origin.rows("SELECT id, _batch_id FROM main.audited")
    assert (id, batch) == (1, "load/0")


def test_a_table_made_by_others_needs_no_audit_columns(tmp_path: Path) -> None:
    origin = OfDuckDB(tmp_path)
    origin.run(
        "CREATE TABLE raw (id bigint, label varchar, amount decimal(10, 2), seen int)",
        "CREATE TABLE orders (id bigint, name varchar, amount double)",
        "INSERT INTO orders VALUES (1, 'old', 1)",
    )
    filled(origin, (1, "a", 1, 1), (2, "b", 2, 1))
    assert counts(declared(origin, mode="merge").sync()) == (1, 1, 0, 0, 0)
    assert rows(origin) == [(1, "a", 1.0), (2, "b", 2.0)]
    declared(origin, mode="append", name="more", on_drift="evolve").sync()
    assert {row[0] for row in origin.rows("SELECT _batch_id FROM orders")} == {None, "more/0"}


def test_what_databases_cast_each_in_its_own_way_goes_through_spark(tmp_path: Path) -> None:
    """DuckDB rounds where Spark cuts off, and limits no text; SQLite keeps a text in a column of numbers."""

    def typed(**columns: Any) -> Any:
        return ematix.table(schema="main", name="typed")(type("Typed", (), {"__annotations__": columns}))

    origin = OfDuckDB(tmp_path)
    origin.run("CREATE TABLE raw (id int, label varchar, amount decimal(10, 2), seen int)")
    for path, columns in (
        ("same_db", {"id": BigInt, "label": Text, "amount": Double}),
        ("same_db", {"id": Text, "seen": Double}),
        ("cross_db", {"amount": Integer}),
        ("cross_db", {"label": BigInt}),
        ("cross_db", {"amount": Text}),
        ("cross_db", {"label": String[3]}),
    ):
        assert declared(origin, target=typed(**columns), column_map={}).dry_run().path == path, columns
    summed = ematix.pipeline(target=typed(n=BigInt), target_connection=origin.connection, name="summed")(
        lambda _: "SELECT sum(id) AS n FROM raw"
    )
    assert summed.dry_run().path == "same_db"
    forced = declared(origin, target=typed(amount=Integer), column_map={}, force_path="same_db")
    with pytest.raises(FlowError, match=r"amount is decimal\(10,2\) in the source and int in the table"):
        forced.sync()


def test_columns_that_the_table_lacks_are_left_out_where_drift_is_ignored(origin: Base) -> None:
    filled(origin, (1, "a", 1, 1))
    declared(origin, target=Audited, column_map={}).sync()
    wider = ematix.table(schema="main", name="audited")(
        type("Wider", (), {"__annotations__": {"id": BigInt, "seen": BigInt | None}})
    )
    with pytest.raises(FlowError, match=r"column seen \(bigint\) is not in the table"):
        declared(origin, target=wider, column_map={}).sync()
    filled(origin, (2, "b", 1, 1))
    assert counts(declared(origin, target=wider, column_map={}, on_drift="ignore").sync()) == (1, 0, 0, 0, 0)
    assert [row[0] for row in origin.rows("SELECT id FROM main.audited ORDER BY id")] == [1, 2]


def _of_three(a: Any, b: Any, c: Any) -> None:
    """One too many."""


def test_mistakes_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(DeclarationError) as error:
        ematix.pipeline(target=Orders, mdoe="merge", schedule="daily")(_of_three)
    told = str(error.value)
    assert 'did you mean "mode"' in told
    assert "a, b, c" in told
    assert '"daily"' in told
    with pytest.raises(DeclarationError, match=r'found "nmae".*did you mean "name"'):
        ematix.pipeline(target=Orders, mode="merge", keys=["nmae"])(lambda: None)
    with pytest.raises(DeclarationError, match="no column of the target"):
        ematix.pipeline(target=Orders, column_map={"x": "y"})(lambda: None)
    with pytest.raises(DeclarationError, match="missing, and the function returns nothing"):
        ematix.pipeline(target=Orders, target_connection=OfDuckDB(tmp_path).connection)(lambda: None).sync()
    with pytest.raises(DeclarationError, match="targets"):
        ematix.pipeline(mode="merge")(lambda: None)


def test_a_path_that_is_forced_says_what_stands_in_its_way(tmp_path: Path) -> None:
    origin = OfDuckDB(tmp_path)
    origin.run("CREATE TABLE raw (id bigint, label varchar, amount decimal(10, 2), seen int)")
    load = declared(origin, target=Names, force_path="same_db")
    with pytest.raises(FlowError, match="normalizers"):
        load.sync()
    file = SQLiteConnection(path=str(tmp_path / "a.sqlite"))
    of_decimals = ematix.pipeline(target=Prices, target_connection=file, source_table="raw")(lambda: None)
    with sqlite3.connect(tmp_path / "a.sqlite") as db:
        db.execute("CREATE TABLE raw (id bigint, amount decimal)")
    assert of_decimals.dry_run().path == "cross_db", "SQLite keeps decimals as texts, and Spark writes them"
    assert declared(origin, force_path="cross_db").dry_run().path == "cross_db"

    @ematix.job(target=Orders, target_connection=origin.connection)
    def of_a_source(source: Connection, target: Connection) -> Source:
        return Source(source, "SELECT id, label AS name, amount FROM raw -- all of them", name="source")

    assert of_a_source.sync().path == "same_db"
    with pytest.raises(FlowError, match="nowhere"):
        declared(origin, source_table="nowhere").dry_run()


def rows(origin: Base, columns: str = "id, name, amount") -> list[tuple[Any, ...]]:
    found = origin.rows(f"SELECT {columns} FROM main.orders ORDER BY id")
    return [tuple(float(value) if isinstance(value, Decimal) else value for value in row) for row in found]
