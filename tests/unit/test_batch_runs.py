"""What a batch pipeline does around its load, shown in one DuckDB file and without Spark."""

import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import duckdb
import pytest

from ematix_flow import DuckDBConnection, SQLiteConnection, ematix, pipelines, pk, transforms
from ematix_flow.batch.after import AfterFailed
from ematix_flow.batch.quality import QualityFailed
from ematix_flow.errors import FlowError
from ematix_flow.jobs import FunctionFailed
from ematix_flow.state.history import Run, runs_of
from ematix_flow.state.memory import Memory
from ematix_flow.types import BigInt, Date, Numeric, Text, TimestampTZ


@ematix.table(schema="main", name="orders")
class Orders:
    id: Annotated[BigInt, pk()]
    name: Text | None


@ematix.table(schema="main", name="named")
class Named:
    id: Annotated[BigInt, pk()]
    name: Text


class Shop:
    def __init__(self, folder: Path) -> None:
        self.connection = DuckDBConnection(path=str(folder / "shop.duckdb"))
        self.run("CREATE TABLE raw AS SELECT 1::bigint AS id, 'a' AS name UNION ALL SELECT 2, NULL")

    def run(self, sql: str) -> list[tuple[Any, ...]]:
        with duckdb.connect(self.connection.path) as db:
            return db.execute(sql).fetchall()

    def pipeline(self, function: Any = lambda: None, **keywords: Any) -> Any:
        given = {"target": Orders, "mode": "merge", "source_table": "raw", "name": "load", **keywords}
        if "targets" in given:
            del given["target"], given["mode"]
        return ematix.pipeline(target_connection=self.connection, **given)(function)


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    monkeypatch.setenv("EMATIX_FLOW_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(pipelines, "_declared", {})
    monkeypatch.setattr(transforms, "_declared", {})
    return Shop(tmp_path)


def test_steps_after_a_load_get_what_they_take(shop: Shop) -> None:
    given: list[Any] = []

    @ematix.transform(target_connection=shop.connection)
    def counted(connection: Any) -> None:
        connection.execute("CREATE OR REPLACE TABLE counted AS SELECT COUNT(*) AS n FROM orders")

    shop.pipeline(name="other", target=Named, source_table="(SELECT id, 'x' AS name FROM raw) AS r")
    steps = [
        "CREATE OR REPLACE VIEW first AS FROM orders WHERE id = 1",
        lambda: given.append("called"),
        lambda connection, result: given.append((connection.execute("SELECT name FROM first"), result.rows_inserted)),
        ematix.transform_ref("counted"),
        counted,
    ]
    result = shop.pipeline(transforms_post=steps).sync()
    assert (result.status, given) == ("success", ["called", ([("a",)], 2)])
    assert shop.run("SELECT n FROM counted") == [(2,)]
    with pytest.raises(AfterFailed, match='transforms_post 1 failed: there is no pipeline "cuonted"'):
        shop.pipeline(transforms_post=[ematix.transform_ref("cuonted")]).sync()


def test_a_step_that_fails_undoes_itself_and_stops_the_others_unless_they_go_on(shop: Shop, tmp_path: Path) -> None:
    def half(connection: Any) -> None:
        connection.execute("CREATE TABLE half AS SELECT 1 AS one")
        raise ValueError("no more")

    with pytest.raises(AfterFailed, match="transforms_post 1 failed: no more"):
        shop.pipeline(transforms_post=[half, "CREATE TABLE done AS SELECT 1 AS one"]).sync()
    assert shop.run("SELECT table_name FROM duckdb_tables() WHERE table_name IN ('half', 'done')") == []
    assert shop.run("SELECT COUNT(*) FROM orders") == [(2,)]
    going_on = {"transforms_post": [half, "CREATE TABLE done AS SELECT 1 AS one"], "continue_on_failure_post": True}
    result = shop.pipeline(**going_on).sync()
    assert (result.status, result.errors) == ("success", {"transforms_post 1": "no more"})
    assert shop.run("FROM done") == [(1,)]
    lite = tmp_path / "lite.sqlite"
    with pytest.raises(FunctionFailed, match='transform "half" failed: ValueError: no more'):
        ematix.transform(target_connection=SQLiteConnection(path=str(lite)))(half).run()
    with closing(sqlite3.connect(lite)) as db:
        assert db.execute("SELECT name FROM sqlite_master").fetchall() == []


def test_a_target_that_is_not_as_expected_is_told_or_a_failure(shop: Shop) -> None:
    def sound(t: Any) -> None:
        t.column("id").not_null().unique().between(1, 9)
        t.column("name").not_null().regex("^[a-z]$").is_in(["a", "b"])
        t.row_count(at_most=1).condition("nmae IS NULL")

    broken = shop.pipeline(expectations=sound).sync().failed_expectations
    assert broken[:2] == ("main.orders: name.not_null: 1 rows do not meet it", "main.orders: row_count: 2 rows")
    assert broken[2].startswith("main.orders: nmae IS NULL: cannot be checked: Binder Error")
    with pytest.raises(QualityFailed, match="named: 1 rows do not meet it"):
        shop.pipeline(expectations={"named": "name IS NOT NULL"}, on_quality_failure="fail").sync()
    assert shop.pipeline(expectations=["id > 0"], on_quality_failure="fail").sync().failed_expectations == ()


@pytest.mark.parametrize("kind", ["duckdb", "sqlite"])
def test_numbers_and_times_are_expected_as_python_has_them(shop: Shop, tmp_path: Path, kind: str) -> None:
    """SQLite keeps decimals and times as texts."""
    types = {"duckdb": (Numeric[10, 2], TimestampTZ, Date), "sqlite": (Text, Text, Text)}[kind]
    columns = dict(zip(("id", "price", "seen", "day"), (BigInt, *types), strict=True))
    priced = ematix.table(schema="main", name="priced")(type("Priced", (), {"__annotations__": columns}))
    rows = "SELECT 1 AS id, '10.50' AS price, '2026-01-31T12:00:00.000000Z' AS seen, '2026-01-31' AS day"
    connection: Any = shop.connection
    if kind == "sqlite":
        connection = SQLiteConnection(path=str(tmp_path / "shop.sqlite"))
        (tmp_path / "shop.sqlite").touch()
    else:
        rows = rows.replace(" AS price", "::decimal(10, 2) AS price").replace(" AS seen", "::timestamptz AS seen")
        rows = rows.replace(" AS day", "::date AS day")

    def sound(t: Any) -> None:
        t.column("price").between(Decimal("9.75"), 100).is_in([Decimal("10.5")])
        t.column("seen").between(datetime(2026, 1, 31, 12, tzinfo=UTC), datetime(2026, 1, 31, 13, tzinfo=UTC))
        t.freshness("day", within="36500d")

    def unsound(t: Any) -> None:
        t.column("price").between(Decimal(0), Decimal(9))
        t.column("seen").between(datetime(2026, 1, 31, 13, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC))
        t.freshness("day", within="1d")

    def checked(expectations: Any) -> tuple[str, ...]:
        given = {"target": priced, "target_connection": connection, "mode": "truncate", "name": "priced"}
        result = ematix.pipeline(**given, expectations=expectations)(lambda _: rows).sync()
        return tuple(words.partition(": ")[2] for words in result.failed_expectations)

    assert checked(sound) == ()
    assert checked(unsound) == (
        "price.between: 1 rows do not meet it",
        "seen.between: 1 rows do not meet it",
        "day.freshness: the newest value is 2026-01-31 00:00:00",
    )


def test_a_run_is_tried_again_and_does_nothing_twice(shop: Shop) -> None:
    calls: list[str] = []

    def asked(source: Any) -> str:
        calls.append("asked")
        if len(calls) == 1:
            raise OSError("not yet")
        return "SELECT id, name FROM raw"

    def after() -> None:
        calls.append("after")
        if calls.count("after") == 1:
            raise OSError("nor yet")

    often = {"max_attempts": 3, "backoff": "fixed", "base_secs": 0}
    load = shop.pipeline(asked, mode="append", source_table=None, retry=often, transforms_post=[after])
    assert load.sync().rows_inserted == 2
    assert calls == ["asked", "asked", "after", "asked", "after"]
    assert shop.run("SELECT COUNT(*) FROM orders") == [(2,)], "appended once"
    calls.clear()
    with pytest.raises(FunctionFailed, match="OSError: not yet"):
        shop.pipeline(asked, source_table=None).sync()


def test_one_target_that_fails_leaves_the_others_to_be_loaded(shop: Shop) -> None:
    targets = [ematix.target(Named, mode="merge"), ematix.target(Orders, mode="merge")]
    with pytest.raises(FlowError, match="NOT NULL"):
        shop.pipeline(targets=targets).sync()
    result = shop.pipeline(targets=targets, continue_on_failure=True).sync()
    assert (result.status, list(result.errors), result.targets["main.orders"]["inserted"]) == (
        "failed", ["main.named"], 2,
    )  # fmt: skip


def test_the_history_tells_how_the_whole_run_ended(shop: Shop) -> None:
    """What fails after the rows were written has failed, and one run of several targets is one run."""

    def latest(pipeline: Any) -> Run:
        with closing(Memory(pipeline.name, pipeline.state_store)) as memory:
            return runs_of(memory)[0]

    good = shop.pipeline(name="good")
    result = good.sync()
    assert (latest(good).run_id, latest(good).status) == (result.run_id, "success")
    assert latest(good).counters["row_counts"]["main.orders"]["inserted"] == 2
    for name, code, keywords in (
        ("checked", "quality-failed", {"expectations": ["id > 1"], "on_quality_failure": "fail"}),
        ("followed", "after-failed", {"transforms_post": ["SELEC 1"]}),
        ("asked", "function-failed", {"function": lambda: 1 / 0}),
    ):
        bad = shop.pipeline(name=name, **keywords)
        with pytest.raises(FlowError):
            bad.sync()
        assert (latest(bad).status, latest(bad).error_code) == ("failed", code)
    targets = [ematix.target(Named, mode="merge"), ematix.target(Orders, mode="merge")]
    often = {"max_attempts": 2, "base_secs": 0}
    part = shop.pipeline(name="part", targets=targets, continue_on_failure=True, retry=often)
    result = part.sync()
    assert (latest(part).run_id, latest(part).status) == (result.run_id, "failed")
    with closing(Memory("part", part.state_store)) as memory:
        assert len(runs_of(memory)) == 2, "the target that failed was tried again"


def test_columns_and_times_that_targets_name_themselves(shop: Shop) -> None:
    shop.run("CREATE TABLE events AS SELECT * FROM (VALUES (1::bigint, 'old', 1), (1, 'new', 2)) AS t(id, label, seen)")
    targets = [ematix.target(Orders, mode="merge", column_map={"name": "label"}, event_timestamp_column="seen")]
    assert shop.pipeline(targets=targets, source_table="events").sync().path == "same_db"
    assert shop.run("SELECT id, name FROM orders") == [(1, "new")]


def test_a_connection_that_only_a_target_names_is_that_of_source_and_steps_too(shop: Shop) -> None:
    own = [ematix.target(Orders, mode="merge", target_connection=shop.connection)]
    declared = ematix.pipeline(targets=own, transforms_post=["CREATE TABLE beside AS SELECT 1 AS one"])
    assert declared(lambda _: "SELECT id, name FROM raw").sync().path == "same_db"
    assert shop.run("FROM beside") == [(1,)]
