"""`transactional = true`: the changes of a transaction of the source are applied in one batch, the one in which the
last of them has come."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import duckdb
import pytest
from pyspark.sql import SparkSession

from ematix_flow import CDC, KafkaConnection
from ematix_flow.cdc import transactions
from ematix_flow.errors import FlowError
from ematix_flow.specs import CDCTable, PipelineSpec, Source, Transform
from ematix_flow.streams.change_tables import one_by_one
from ematix_flow.streams.run import run_spec
from ematix_flow.testing import PipelineTest, pipeline_test
from tests.contract.backends import DuckDB
from tests.services.kafka import kafka

pytestmark = pytest.mark.usefixtures("spark")

SHOP = """
pipeline_name = "shop"
[source]
kind = "object_store_local"
path = "/unused"
format = "json_lines"
[transform]
on_error = "dlq"
[transform.cdc]
transactional = true
{more}
[transform.cdc.tables."shop.customers"]
table = "customers"
keys = ["id"]
[transform.cdc.tables."shop.orders"]
table = "orders"
keys = ["id"]
[target]
kind = "duckdb"
path = "unused.duckdb"
mode = "merge"
"""
CUSTOMERS, ORDERS, OTHERS = "shop.customers", "shop.orders", "shop.others"


class Transaction:
    """As Debezium tells of one."""

    def __init__(self, number: int) -> None:
        self.number, self.at = number, number * 100
        self.counts: dict[str, int] = {}

    @property
    def id(self) -> str:
        """With the place in the log, as PostgreSQL's are."""
        return f"{self.number}:{self.at + sum(self.counts.values())}"

    def begin(self) -> dict[str, Any]:
        return {"status": "BEGIN", "id": self.id, "ts_ms": 1, "event_count": None, "data_collections": None}

    def change(self, table: str, op: str, after: Any = None, before: Any = None) -> dict[str, Any]:
        self.counts[table] = self.counts.get(table, 0) + 1
        order = sum(self.counts.values())
        schema, _, name = table.rpartition(".")
        source = {"lsn": self.at + order, "ts_ms": 1, "db": "d", "schema": schema, "table": name}
        of = {"id": self.id, "total_order": order, "data_collection_order": self.counts[table]}
        return {"before": before, "after": after, "source": source, "op": op, "ts_ms": 1, "transaction": of}

    def end(self) -> dict[str, Any]:
        counts = [{"data_collection": name, "event_count": count} for name, count in self.counts.items()]
        return {**self.begin(), "status": "END", "event_count": sum(self.counts.values()), "data_collections": counts}


def tables(test: PipelineTest) -> tuple[list[Any], list[Any]]:
    customers, orders = ([tuple(row.values()) for row in test.rows(name)] for name in ("customers", "orders"))
    return customers, orders


@pytest.mark.parametrize("few", [transactions.FEW, pytest.param(0, marks=pytest.mark.slow, id="as if there were many")])
def test_a_transaction_is_applied_when_all_of_it_has_come(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "FEW", few)
    with pipeline_test(SHOP.format(more="")) as test:
        one, two = Transaction(1), Transaction(2)
        snapshot = {**Transaction(0).change(CUSTOMERS, "r", {"id": 1, "name": "Ann"}), "transaction": None}
        order = one.change(ORDERS, "c", {"id": 7, "amount": 3})
        named = one.change(CUSTOMERS, "u", {"id": 1, "name": "Anna"})
        elsewhere = one.change(OTHERS, "c", {"id": 1})
        assert elsewhere["transaction"]["total_order"] == 3
        test.feed([snapshot, one.begin(), order, two.begin(), two.change(ORDERS, "c", {"id": 9, "amount": 1})])
        first = test.run()
        assert tables(test) == ([(1, "Ann")], [])
        assert (first.rows_consumed, first.held_changes, first.changes["skipped"]) == (5, 2, 2)
        assert (test.metric("cdc_held_changes"), test.metric("cdc_held_transactions")) == (2, 2)
        # The end comes before the last change, and a change comes twice. That of a table that is not listed is not
        # waited for.
        test.feed([one.end(), order])
        assert test.run().held_changes == 2
        assert tables(test) == ([(1, "Ann")], [])
        test.feed(named)
        third = test.run()
        assert tables(test) == ([(1, "Anna")], [(7, 3)])
        assert (third.held_changes, third.changes["creates"], third.changes["updates"]) == (1, 2, 1)
        # A bad envelope is one of the changes of its transaction, and kept when the others are applied.
        test.feed(two.change(ORDERS, "c", {"amount": 2}))
        assert test.run().dlq_rows == {}
        test.feed(two.end())
        assert test.run().dlq_rows == {"decode": 1}
        assert tables(test) == ([(1, "Anna")], [(7, 3), (9, 1)])
        assert (test.metric("cdc_held_changes"), test.metric("cdc_held_transactions")) == (0, 0)


@pytest.mark.slow
def test_many_changes_of_one_key_keep_their_order_while_they_wait() -> None:
    with pipeline_test(SHOP.format(more="")) as test:
        one, later = Transaction(1), Transaction(2)
        changes = [one.change(ORDERS, "u", {"id": 1, "amount": amount}) for amount in range(50)]
        for change in changes:
            change["source"]["lsn"] = 5
        test.feed([one.begin(), *changes[:30]])
        test.run()
        # A newer transaction does not wait for an older one, which then comes too late for the same row.
        newer = [later.begin(), later.change(ORDERS, "c", {"id": 2, "amount": 5}), later.end()]
        test.feed([*newer, *changes[30:]])
        test.run()
        assert tables(test) == ([], [(2, 5)])
        test.feed(one.end())
        test.run()
        assert tables(test) == ([], [(1, 49), (2, 5)])


@pytest.mark.slow
def test_what_is_held_is_applied_when_transactions_no_longer_matter() -> None:
    with pipeline_test(SHOP.format(more="")) as test:
        one, two = Transaction(1), Transaction(2)
        test.feed([one.begin(), one.change(ORDERS, "c", {"id": 1, "amount": 1}), two.begin()])
        test.feed([two.change(ORDERS, "c", {"id": 2, "amount": 2})])
        test.run()
        test.feed(two.end())
        test.run()
        assert tables(test) == ([], [(2, 2)])
        test._offline = one_by_one(test._offline)
        test.feed(Transaction(3).change(CUSTOMERS, "c", {"id": 3, "name": "Cem"}))
        assert test.run().held_changes == 0
        assert tables(test) == ([(3, "Cem")], [(1, 1), (2, 2)])


@pytest.mark.slow
def test_the_last_part_of_a_transaction_that_comes_twice_is_not_held() -> None:
    with pipeline_test(SHOP.format(more="")) as test:
        one = Transaction(1)
        first, last = (one.change(ORDERS, "c", {"id": id, "amount": id}) for id in (1, 2))
        test.feed([one.begin(), first, last, one.end()])
        assert test.run().held_changes == 0
        test.feed(last)
        assert test.run().held_changes == 1
        test.feed(one.end())
        assert test.run().held_changes == 0
        test.feed(last)
        assert test.run().held_changes == 0
        assert tables(test) == ([], [(1, 1), (2, 2)])


@pytest.mark.slow
def test_a_source_that_does_not_tell_of_transactions() -> None:
    one = Transaction(1)
    change = one.change(ORDERS, "c", {"id": 1, "amount": 1})
    with pipeline_test(SHOP.format(more="")) as test:
        test.feed({**change, "transaction": None})
        with pytest.raises(FlowError, match=r"do not say which transaction.*\n.*provide.transaction.metadata = true"):
            test.run()
    with pipeline_test(SHOP.format(more="")) as test:
        test.feed(change)
        with pytest.raises(FlowError, match=r"no BEGIN or END .* ever came.*\n.*<topic.prefix>.transaction"):
            test.run()
        # Once the topic is read, nothing of it is lost.
        test.feed([one.begin(), one.end()])
        test.run()
        assert tables(test) == ([], [(1, 1)])


@pytest.mark.slow
def test_topics_that_are_read_at_different_speeds(tmp_path: Path, spark: SparkSession) -> None:
    """One record of each topic at a time, wrapped as the JSON converter does."""
    server, prefix = kafka(), f"t{uuid4().hex[:8]}"
    topics = {
        name: server.new_topic(name=f"{prefix}.{name}") for name in ("shop.customers", "shop.orders", "transaction")
    }
    done: dict[str, list[Any]] = {name: [] for name in topics}
    for number in range(1, 5):
        one = Transaction(number)
        done["transaction"].append(one.begin())
        for _ in range(number):
            done[ORDERS].append(one.change(ORDERS, "u", {"id": 1, "amount": number}))
        done[CUSTOMERS].append(one.change(CUSTOMERS, "u", {"id": 1, "name": str(number)}))
        done["transaction"].append(one.end())
    for name, records in done.items():
        server.send(topics[name], [json.dumps({"schema": None, "payload": record}) for record in records])
    target = DuckDB(tmp_path, spark)
    listed = {CUSTOMERS: CDCTable(table="customers", keys=["id"]), ORDERS: CDCTable(table="orders", keys=["id"])}
    query = f"{prefix}\\.(shop\\..*|transaction)"
    source = Source(connection=KafkaConnection(bootstrap_servers=server.bootstrap), query=query, max_rows_per_batch=3)
    spec = PipelineSpec(
        name="speeds",
        sources=[source],
        targets=[target.target(mode="merge")],
        transform=Transform(cdc=CDC(tables=listed, transactional=True)),
    )
    seen: list[set[int]] = []

    def look(_: Any) -> None:
        with duckdb.connect(str(tmp_path / "a.duckdb")) as db, suppress(duckdb.CatalogException):
            found = db.execute("SELECT amount FROM orders UNION ALL SELECT CAST(name AS BIGINT) FROM customers")
            seen.append({number for (number,) in found.fetchall()})

    result = run_spec(spec, bounded=True, spark=spark, on_batch=look)
    assert (result.batches > 3, result.held_changes) == (True, 0)
    assert seen[-1] == {4}
    assert all(len(numbers) == 1 for numbers in seen), "both tables are of the same transaction after every batch"
