"""Changes of many tables in one stream: each table has its own key, target table, gate and counters."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import duckdb
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from ematix_flow import CDC, KafkaConnection, ObjectStoreLocalConnection
from ematix_flow.errors import FlowError
from ematix_flow.result import RunResult
from ematix_flow.specs import CDCTable, PipelineSpec, Source, Target, Transform
from ematix_flow.streams.run import run_spec
from tests.contract import backends
from tests.contract.backends import Backend, Delta, DuckDB, MariaDB, Postgres, SQLite
from tests.services.kafka import kafka

pytestmark = pytest.mark.usefixtures("spark")

TABLES = {
    "inventory.customers": CDCTable(table="customers", keys=["id"]),
    "inventory.orders": CDCTable(table="orders", keys=["shop", "nr"]),
}
Rows = list[tuple[Any, ...]]


def change(table: str, op: str, at: int, after: Any = None, before: Any = None) -> dict[str, Any]:
    schema, _, name = table.rpartition(".")
    source = {"lsn": at, "ts_ms": 1_700_000_000_000 + at, "db": "shop", "schema": schema, "table": name}
    return {"before": before, "after": after, "source": source, "op": op, "ts_ms": 1_700_000_000_001}


FIRST = [
    change("inventory.customers", "c", 1, {"id": 1, "name": "Ann"}),
    change("inventory.orders", "c", 2, {"shop": "a", "nr": 1, "amount": 5}),
    change("inventory.orders", "c", 3, {"shop": "b", "nr": 1, "amount": 6}),
    change("inventory.customers", "u", 4, {"id": 1, "name": "Anna"}),
    {"op": "c", "after": {"id": 5}, "source": {"lsn": 5}},
]
SECOND = [
    change("inventory.customers", "u", 2, {"id": 1, "name": "late"}),
    change("inventory.orders", "d", 6, None, {"shop": "a", "nr": 1}),
    change("inventory.orders", "u", 7, {"shop": "b", "nr": 2, "amount": 7}, {"shop": "b", "nr": 1}),
]


class Stream:
    """A folder of changes, and the pipeline that reads it."""

    def __init__(self, folder: Path, spark: SparkSession, target: Target, **cdc: Any) -> None:
        self._inbox, self._spark = folder / "inbox", spark
        self._inbox.mkdir()
        self.spec = PipelineSpec(
            name=f"tables-{folder.name}",
            sources=[Source(connection=ObjectStoreLocalConnection(path=str(self._inbox), format="json_lines"))],
            targets=[target],
            transform=Transform(cdc=CDC(**cdc), on_error="dlq"),
        )

    def send(self, *changes: dict[str, Any]) -> RunResult:
        number = len(list(self._inbox.iterdir()))
        file = self._inbox / f"{number}.jsonl"
        file.write_text("".join(json.dumps(one) + "\n" for one in changes), encoding="utf-8")
        os.utime(file, (1_700_000_000 + number,) * 2)
        return run_spec(self.spec, bounded=True, spark=self._spark)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Callable[[Backend, str], Rows]:
    def rows(backend: Backend, table: str) -> Rows:
        monkeypatch.setattr(backends, "TABLE", table)
        return sorted(tuple(row.values()) for row in backend.read(StructType()))

    return rows


@pytest.mark.parametrize(
    "backend",
    [DuckDB, *(pytest.param(one, marks=pytest.mark.slow) for one in (SQLite, Postgres, MariaDB, Delta))],
    ids=lambda backend: backend.name,
)
def test_each_table_goes_its_own_way(
    backend: type[Backend], tmp_path: Path, spark: SparkSession, read: Callable[[Backend, str], Rows]
) -> None:
    target = backend(tmp_path, spark)
    stream = Stream(tmp_path, spark, target.target(mode="merge"), tables=TABLES)
    first = stream.send(*FIRST)
    assert read(target, "customers") == [(1, "Anna")]
    assert read(target, "orders") == [("a", 1, 5), ("b", 1, 6)]
    assert first.dlq_rows == {"decode": 1}
    assert list(first.rows_written.values()) == [2, 2]
    assert first.changes_by_table["inventory.customers"]["updates"] == 1
    assert first.changes["creates"] == 3
    second = stream.send(*SECOND)
    assert read(target, "customers") == [(1, "Anna")]
    assert read(target, "orders") == [("b", 2, 7)]
    counted = {name: (of["deletes"], of["idempotent_skipped"]) for name, of in second.changes_by_table.items()}
    assert counted == {"inventory.customers": (0, 1), "inventory.orders": (1, 0)}


@pytest.mark.slow
def test_a_table_that_is_not_listed(tmp_path: Path, spark: SparkSession, read: Callable[[Backend, str], Rows]) -> None:
    target = DuckDB(tmp_path, spark)
    new = change("inventory.items", "c", 9, {"id": 1, "name": "pen"})
    (tmp_path / "fail").mkdir()
    stream = Stream(tmp_path / "fail", spark, target.target(mode="merge"), tables=TABLES)
    with pytest.raises(FlowError, match=r"changes of inventory.items came"):
        stream.send(*FIRST, new)
    (tmp_path / "ignore").mkdir()
    stream = Stream(tmp_path / "ignore", spark, target.target(mode="merge"), tables=TABLES, unlisted="ignore")
    assert stream.send(*FIRST, new).changes["skipped"] == 1
    assert read(target, "customers") == [(1, "Anna")]


@pytest.mark.slow
def test_a_table_that_is_found_has_the_key_of_its_records(
    tmp_path: Path, spark: SparkSession, read: Callable[[Backend, str], Rows]
) -> None:
    server = kafka()
    prefix = f"t{uuid4().hex[:8]}"
    topics = [server.new_topic(name=f"{prefix}.inventory.{name}") for name in ("customers", "items")]
    server.send(
        topics[0], [json.dumps(change("inventory.customers", "c", 1, {"id": 1, "name": "Ann"}))], key='{"id": 1}'
    )
    wrapped = json.dumps({"schema": {}, "payload": {"shop": "a", "id": 7}})
    pen = {"shop": "a", "id": 7, "name": "pen"}
    server.send(topics[1], [json.dumps(change("inventory.items", "c", 2, pen)), None], key=wrapped)
    target = DuckDB(tmp_path, spark)
    spec = PipelineSpec(
        name="found",
        sources=[
            Source(connection=KafkaConnection(bootstrap_servers=server.bootstrap), query=f"{prefix}\\.inventory\\..*")
        ],
        targets=[target.target(mode="merge")],
        transform=Transform(cdc=CDC(unlisted="create")),
    )
    result = run_spec(spec, bounded=True, spark=spark)
    assert (result.rows_written, result.changes["skipped"]) == ({"customers": 1, "items": 1}, 1)
    gone = change("inventory.items", "d", 3, None, {"shop": "a", "id": 7})
    server.send(topics[1], [json.dumps(gone)], key=wrapped)
    assert run_spec(spec, bounded=True, spark=spark).changes["deletes"] == 1
    assert read(target, "items") == []
    assert read(target, "customers") == [(1, "Ann")]


@pytest.mark.slow
def test_a_row_that_one_table_refuses_stops_all_of_them(
    tmp_path: Path, spark: SparkSession, read: Callable[[Backend, str], Rows]
) -> None:
    target = DuckDB(tmp_path, spark)
    stream = Stream(tmp_path, spark, target.target(mode="merge"), tables=TABLES)
    stream.spec = stream.spec.model_copy(update={"transform": Transform(cdc=CDC(tables=TABLES))})
    with duckdb.connect(str(tmp_path / "a.duckdb")) as db:
        db.execute(
            "CREATE TABLE orders (shop VARCHAR, nr BIGINT, amount BIGINT CHECK (amount < 6), PRIMARY KEY (shop, nr))"
        )
    with pytest.raises(FlowError, match="amount < 6"):
        stream.send(*FIRST[:4])
    assert read(target, "orders") == []
    assert read(target, "customers") == []
