"""Change data capture through a pipeline: envelopes in, tables out."""

import json
import os
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from ematix_flow import CDC, KafkaConnection, ObjectStoreLocalConnection
from ematix_flow.errors import FlowError
from ematix_flow.specs import PipelineSpec, Source, Transform
from ematix_flow.streams.run import run_spec
from ematix_flow.testing import PipelineTest, pipeline_test
from tests.contract.backends import Backend, Delta, DuckDB, MariaDB, Postgres, SQLite
from tests.integration.test_kafka_schemas import avro
from tests.services.kafka import kafka
from tests.services.schema_registry import schema_registry
from tests.unit.test_avro_envelopes import ENVELOPE

pytestmark = pytest.mark.usefixtures("spark")

CUSTOMERS = """
pipeline_name = "customers"
[source]
kind = "object_store_local"
path = "/unused"
format = "json_lines"
[target]
kind = "duckdb"
path = "unused.duckdb"
mode = "merge"
[target.table]
name = "customers"
primary_key = ["id"]
"""
CHANGES = """
[transform.cdc]
"""


def change(op: str, at: int | None, after: Any = None, before: Any = None, **more: Any) -> dict[str, Any]:
    source = {"lsn": at, "ts_ms": 1_700_000_000_000, "schema": "public", "table": "customers"}
    return {"before": before, "after": after, "source": source, "op": op, "ts_ms": 1_700_000_000_001, **more}


def rows(test: PipelineTest) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in test.rows()]


def test_creates_updates_and_deletes_become_the_current_state() -> None:
    with pipeline_test(CUSTOMERS + CHANGES) as test:
        test.feed(
            [
                change("r", 1, {"id": 1, "name": "Ann", "age": 30}),
                change("c", 2, {"id": 2, "name": "Bob", "age": None}),
                change("u", 3, {"id": 1, "name": "Anna", "age": 31}),
                "null",
            ]
        )
        first = test.run()
        assert rows(test) == [(1, "Anna", 31), (2, "Bob", None)]
        counted = {"creates": 2, "updates": 1, "deletes": 0, "skipped": 1, "idempotent_skipped": 0, "truncates": 0}
        assert first.changes == counted
        # A late change, a delete, an update of a row that is not there, and a change of a row that is gone.
        test.feed([change("u", 2, {"id": 1, "name": "late", "age": 0}), change("d", 4, before={"id": 2})])
        test.feed(
            [change("u", 5, {"id": 3, "name": "Cem", "age": 3}), change("u", 3, {"id": 2, "name": "x", "age": 1})]
        )
        second = test.run()
        assert rows(test) == [(1, "Anna", 31), (3, "Cem", 3)]
        assert (second.changes["idempotent_skipped"], second.changes["deletes"]) == (2, 1)
        test.feed(change("u", 3, {"id": 2, "name": "x", "age": 1}))
        assert test.run().changes["idempotent_skipped"] == 1
        assert rows(test) == [(1, "Anna", 31), (3, "Cem", 3)]
        assert test.metric("cdc_creates_total") == 2
        assert test.metric("cdc_idempotent_skipped_total") == 3


@pytest.mark.slow
def test_a_column_that_is_absent_or_not_logged_keeps_its_value() -> None:
    with pipeline_test(CUSTOMERS + CHANGES) as test:
        test.feed(change("c", 1, {"id": 1, "name": "Ann", "notes": "long"}))
        test.run()
        test.feed([change("u", 5, {"id": 1, "name": "Eva"}), change("u", 6, {"id": 1, "notes": None})])
        test.feed(change("c", 7, {"id": 2, "name": "Bob", "notes": "first"}))
        test.feed(change("u", 8, {"id": 2, "name": "Bo", "notes": "__debezium_unavailable_value"}))
        test.run()
        assert rows(test) == [(1, "Eva", None), (2, "Bo", "first")]
        # What an older change says of a column does not come back with a newer one that leaves it out.
        test.feed([change("u", 2, {"id": 1, "name": "old", "notes": "old"}), change("u", 9, {"id": 1, "notes": "new"})])
        test.run()
        assert rows(test) == [(1, "Eva", "new"), (2, "Bo", "first")]
        # After a delete nothing is left.
        test.feed([change("d", 10, before={"id": 1}), change("c", 11, {"id": 1, "notes": "again"})])
        test.run()
        assert rows(test) == [(1, None, "again"), (2, "Bo", "first")]


@pytest.mark.slow
def test_a_changed_key_takes_the_old_row_away() -> None:
    with pipeline_test(CUSTOMERS.replace('["id"]', '["shop", "id"]') + CHANGES) as test:
        test.feed(
            [
                change("c", 1, {"shop": "a", "id": 1, "name": "Ann"}),
                change("c", 2, {"shop": "b", "id": 1, "name": "Bo"}),
            ]
        )
        test.run()
        moved = change("u", 3, {"shop": "a", "id": 9, "name": "Ann"}, {"shop": "a", "id": 1, "name": "Ann"})
        test.feed(moved)
        assert test.run().changes["updates"] == 1
        assert rows(test) == [("a", 9, "Ann"), ("b", 1, "Bo")]


@pytest.mark.slow
def test_a_truncate_empties_the_table_at_its_place() -> None:
    with pipeline_test(CUSTOMERS + CHANGES) as test:
        test.feed([change("c", 1, {"id": 1, "name": "a"}), change("c", 9, {"id": 3, "name": "later"})])
        test.run()
        test.feed([change("c", 2, {"id": 2, "name": "b"}), change("t", 5), change("c", 6, {"id": 4, "name": "d"})])
        assert test.run().changes["truncates"] == 1
        assert rows(test) == [(3, "later"), (4, "d")]
        test.feed(change("c", 4, {"id": 5, "name": "older"}))
        assert test.run().changes["idempotent_skipped"] == 1
        assert rows(test) == [(3, "later"), (4, "d")]


@pytest.mark.parametrize(("mode", "left"), [("ignore", [(1, "a"), (2, "b")]), ("fail", [(1, "a")])])
@pytest.mark.slow
def test_a_truncate_by_policy(mode: str, left: list[Any]) -> None:
    with pipeline_test(f'{CUSTOMERS}{CHANGES}truncate_mode = "{mode}"') as test:
        test.feed(change("c", 1, {"id": 1, "name": "a"}))
        test.run()
        test.feed([change("t", 2), change("c", 3, {"id": 2, "name": "b"})])
        if mode == "fail":
            with pytest.raises(FlowError, match="truncated"):
                test.run()
        else:
            assert test.run().changes["skipped"] == 1
        assert rows(test) == left


@pytest.mark.slow
def test_soft_deletes_mark_rows_and_ignored_ones_change_nothing() -> None:
    soft = 'delete_mode = "soft"\nsoft_delete_column = "gone"'
    with pipeline_test(CUSTOMERS + CHANGES + soft) as test:
        test.feed([change("c", 1, {"id": 1, "name": "a"}), change("c", 2, {"id": 2, "name": "b"})])
        test.feed([change("d", 3, before={"id": 2}), change("d", 4, before={"id": 7})])
        test.run()
        assert rows(test) == [(1, "a", False), (2, "b", True)]
        test.feed([change("d", 5, before={"id": 1}), change("c", 6, {"id": 2, "name": "again"})])
        test.run()
        assert rows(test) == [(1, "a", True), (2, "again", False)]
    with pipeline_test(CUSTOMERS + CHANGES + 'delete_mode = "ignore"') as test:
        test.feed([change("c", 1, {"id": 1, "name": "a"}), change("d", 2, before={"id": 1})])
        assert test.run().changes["skipped"] == 1
        assert rows(test) == [(1, "a")]


@pytest.mark.slow
def test_bad_envelopes_are_kept_one_by_one() -> None:
    with pipeline_test(CUSTOMERS + '[transform]\non_error = "dlq"' + CHANGES) as test:
        test.feed(
            [
                change("c", 1, {"id": 1, "name": "good"}),
                "no json",
                json.dumps(change("c", 9, {"id": 8})) + json.dumps({"two": {"in": "one line"}}),
                json.dumps(change("c", 9, {"id": 8})) + "}",
                {"hello": "world"},
                change("x", 2, {"id": 2, "name": "?"}),
                change("c", 3, {"name": "no key"}),
                change("u", 4),
                change("c", 6, {"id": 3, "name": "good"}),
            ]
        )
        result = test.run()
        assert (result.rows_consumed, result.dlq_rows) == (9, {"decode": 7})
        assert rows(test) == [(1, "good"), (3, "good")]
        words = " ".join(str(letter.error) for letter in test.dead_letters())
        for said in ("does not say the key", 'operation "x"', "has no operation", "no row after the change"):
            assert said in words
        test.feed([change("c", 7, {"id": "seven", "name": "no number"}), change("c", 8, {"id": 4, "name": "good"})])
        assert test.run().dlq_rows == {"decode": 1}
        assert 'column id: cannot read "seven" as bigint' in str(test.dead_letters()[-1].error)
        assert len(test.rows()) == 3


@pytest.mark.slow
def test_the_wrapper_with_its_schema_and_binlog_places() -> None:
    with pipeline_test(CUSTOMERS + CHANGES) as test:

        def logged(file: str, pos: int, after: Any) -> dict[str, Any]:
            inner = change("u", None, after)
            inner["source"] = {"file": file, "pos": pos, "ts_ms": 1, "db": "shop", "table": "customers"}
            return {"schema": None, "payload": inner}

        test.feed(
            [logged("bin.999999", 5, {"id": 1, "name": "old"}), logged("bin.1000000", 4, {"id": 1, "name": "new"})]
        )
        test.feed(
            [logged("bin.1000000", 2, {"id": 1, "name": "late"}), logged("bin.1000000", 10, {"id": 2, "name": "b"})]
        )
        test.feed([logged("bin.1000000", 9, {"id": 2, "name": "older"})])
        test.run()
        assert rows(test) == [(1, "new"), (2, "b")]


@pytest.mark.slow
def test_maxwell() -> None:
    with pipeline_test(CUSTOMERS + CHANGES + 'envelope = "maxwell"') as test:

        def logged(type: str, ts: int, data: Any, **more: Any) -> dict[str, Any]:
            return {"database": "shop", "table": "customers", "type": type, "ts": ts, "data": data, **more}

        test.feed(
            [
                logged("bootstrap-start", 1, {}),
                logged("bootstrap-insert", 1, {"id": 1, "name": "Ann"}),
                logged("bootstrap-complete", 1, {}),
                logged("insert", 2, {"id": 2, "name": "Bob"}),
                logged("update", 3, {"id": 5, "name": "Bob"}, old={"id": 2}),
                logged("delete", 3, {"id": 1, "name": "Ann"}),
            ]
        )
        changes = test.run().changes
        assert rows(test) == [(5, "Bob")]
        assert (changes["creates"], changes["updates"], changes["deletes"], changes["skipped"]) == (2, 1, 1, 2)


@pytest.mark.slow
def test_an_envelope_of_ones_own() -> None:
    custom = """envelope = "custom"
op_field = "meta.kind"
after_field = "data.row"
key_field = "key"
ts_field = "meta.when"
op_map = {INS = "create", UPD = "update", DEL = "delete"}
"""
    with pipeline_test(CUSTOMERS + CHANGES + custom) as test:

        def logged(kind: str, when: Any, row: Any, key: Any) -> dict[str, Any]:
            return {"meta": {"kind": kind, "when": when}, "data": {"row": row}, "key": key}

        test.feed([logged("INS", 10, {"id": 1, "name": "Ann"}, 1), logged("UPD", 9, {"id": 1, "name": "late"}, 1)])
        test.feed([logged("INS", 11, {"id": 2, "name": "Bob"}, {"id": 2}), logged("DEL", 12, None, {"id": 2})])
        test.feed([logged("INS", 11, {"id": 3, "name": "Cem"}, 3), logged("DEL", 12, None, 3)])
        test.feed([logged("INS", 11, {"id": 4, "name": "Dan"}, 4), logged("UPD", 11, {"id": 4, "name": "Dana"}, 4)])
        test.run()
        assert rows(test) == [(1, "Ann"), (4, "Dana")]


@pytest.mark.slow
def test_declared_columns_have_their_types() -> None:
    declared = 'format = "json_lines"\nschema = "id long, price decimal(10,2), at timestamp, day date, ok boolean"'
    with pipeline_test(CUSTOMERS.replace('format = "json_lines"', declared) + CHANGES) as test:
        row = {"id": 1, "price": "12.50", "at": 1_700_000_000_000_000, "day": 19_000, "ok": True, "unknown": 1}
        test.feed(json.dumps(change("c", 1, row)))
        test.run()
        (found,) = test.rows()
        assert (str(found["price"]), found["at"].year, str(found["day"]), found["ok"]) == (
            "12.50", 2023, "2022-01-08", True,
        )  # fmt: skip
        assert "unknown" not in found


@pytest.mark.slow
def test_logical_types_are_what_the_schema_of_the_envelope_says() -> None:
    connect, time = "org.apache.kafka.connect.data.", "io.debezium.time."
    columns: dict[str, tuple[str, str, Any, str]] = {
        "id": ("int32", "", 7, "7"),
        "price": ("bytes", f"{connect}Decimal", "MDk=", "123.45"),
        "debt": ("bytes", f"{connect}Decimal", "//8=", "-0.01"),
        "day": ("int32", f"{time}Date", 19_000, "2022-01-08"),
        "millis": ("int64", f"{time}Timestamp", 1_700_000_000_123, "2023-11-14 22:13:20.123000"),
        "micros": ("int64", f"{time}MicroTimestamp", -1, "1969-12-31 23:59:59.999999"),
        "nanos": ("int64", f"{time}NanoTimestamp", 5_000, "1970-01-01 00:00:00.000005"),
        "zoned": ("string", f"{time}ZonedTimestamp", "2024-05-01T12:00:00+02:00", "2024-05-01 10:00:00+00:00"),
        "clock": ("int64", f"{time}MicroTime", 3_723_000_004, "01:02:03.000004"),
        "enum": ("string", "io.debezium.data.Enum", "red", "red"),
        "raw": ("bytes", "", "AQI=", "b'\\x01\\x02'"),
    }
    fields = [
        {"field": name, "type": kind, "name": logical or None, "parameters": {"scale": "2"}}
        for name, (kind, logical, _, _) in columns.items()
    ]
    schema = {"type": "struct", "fields": [{"field": "after", "type": "struct", "fields": fields}]}
    with pipeline_test(CUSTOMERS + CHANGES) as test:
        row = {name: value for name, (_, _, value, _) in columns.items()}
        test.feed({"schema": schema, "payload": change("c", 1, row)})
        test.run()
        (found,) = test.rows()
        assert {name: str(value) for name, value in found.items()} == {name: one[3] for name, one in columns.items()}


@pytest.mark.parametrize(
    ("policy", "left"),
    [
        ("skip", [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]),
        ("evolve", [{"id": 1, "name": "a", "age": None}, {"id": 2, "name": "b", "age": 3}]),
        ("try_evolve", [{"id": 1, "name": "a", "age": None}, {"id": 2, "name": "b", "age": 3}]),
        ("fail", [{"id": 1, "name": "a"}]),
    ],
)
@pytest.mark.slow
def test_a_new_column_follows_the_policy(policy: str, left: list[dict[str, Any]]) -> None:
    with pipeline_test(f'{CUSTOMERS}{CHANGES}schema_evolution = "{policy}"') as test:
        test.feed(change("c", 1, {"id": 1, "name": "a"}))
        test.run()
        test.feed(change("c", 2, {"id": 2, "name": "b", "age": 3}))
        if policy == "fail":
            with pytest.raises(FlowError, match="column age of the changes is not in the table"):
                test.run()
        else:
            test.run()
        assert test.rows() == left


def test_a_target_without_a_key_is_refused_in_words() -> None:
    with pipeline_test(CUSTOMERS.replace('mode = "merge"', "").replace('primary_key = ["id"]', "") + CHANGES) as test:
        test.feed(change("c", 1, {"id": 1}))
        with pytest.raises(FlowError, match="changes are applied by key"):
            test.run()


@pytest.mark.slow
@pytest.mark.parametrize("backend", [DuckDB, SQLite, Postgres, MariaDB, Delta], ids=lambda backend: backend.name)
def test_a_history_has_every_version_and_a_delete_closes_it(
    backend: type[Backend], tmp_path: Path, spark: SparkSession
) -> None:
    target = backend(tmp_path, spark)
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    spec = PipelineSpec(
        name="history",
        sources=[
            Source(
                connection=ObjectStoreLocalConnection(path=str(inbox), format="json_lines"),
                schema="id long, name string, age long",
            )
        ],
        targets=[target.target(mode="scd2", keys=["id"])],
        transform=Transform(cdc=CDC()),
    )

    def arrive(*changes: dict[str, Any]) -> list[tuple[Any, ...]]:
        number = len(list(inbox.iterdir()))
        file = inbox / f"{number}.jsonl"
        file.write_text("".join(json.dumps(one) + "\n" for one in changes), encoding="utf-8")
        os.utime(file, (1_700_000_000 + number,) * 2)
        run_spec(spec, bounded=True, spark=spark)
        found = [
            (row["id"], row["name"], row["age"], second(row["valid_from"]), second(row["valid_to"]))
            for row in target.read(StructType())
        ]
        return sorted(found, key=lambda row: (row[0], row[3]))

    def at(second: int, op: str, place: int, after: Any = None, before: Any = None) -> dict[str, Any]:
        one = change(op, place, after, before)
        one["source"]["ts_ms"] = 1_700_000_000_000 + second * 1000
        return one

    first = [
        at(1, "c", 1, {"id": 1, "name": "a", "age": 1}),
        at(5, "u", 3, {"id": 1, "name": "c", "age": 1}),
        at(3, "u", 2, {"id": 1, "name": "b", "age": 1}),
        at(2, "c", 4, {"id": 2, "name": "x", "age": 2}),
        at(6, "d", 5, None, {"id": 2}),
    ]
    versions = [(1, "a", 1, 1, 3), (1, "b", 1, 3, 5), (1, "c", 1, 5, None), (2, "x", 2, 2, 6)]
    assert arrive(*first) == versions
    # Again, and one that is late.
    assert arrive(*first) == versions
    versions[2:3] = [(1, "c", 1, 5, 8), (1, "e", 1, 8, None)]
    assert arrive(at(8, "u", 8, {"id": 1, "name": "e"})) == versions
    versions[2:3] = [(1, "c", 1, 5, 7), (1, "d", 1, 7, 8)]
    assert arrive(at(7, "u", 7, {"id": 1, "name": "d", "age": 1})) == versions
    versions[4:] = [(1, "e", 1, 8, 9), (2, "x", 2, 2, 6), (2, "again", 3, 9, 10)]
    versions[3] = (1, "d", 1, 7, 8)
    assert (
        arrive(at(9, "d", 9, None, {"id": 1}), at(9, "c", 10, {"id": 2, "name": "again", "age": 3}), at(10, "t", 11))
        == versions
    )
    # A delete that comes before what it ends.
    assert arrive(at(20, "d", 30, None, {"id": 3})) == versions
    versions.append((3, "z", 5, 15, 20))
    late = at(15, "c", 25, {"id": 3, "name": "z", "age": 5}), at(20, "u", 29, {"id": 3, "name": "y", "age": 5})
    assert arrive(*late) == versions
    versions.append((3, "back", 6, 21, None))
    assert arrive(at(21, "c", 31, {"id": 3, "name": "back", "age": 6})) == versions


def second(moment: Any) -> int | None:
    if moment is None:
        return None
    given = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
    given = given if given.tzinfo else given.replace(tzinfo=UTC)
    return int(given.timestamp()) - 1_700_000_000


@pytest.mark.slow
def test_a_topic_with_tombstones(tmp_path: Path, spark: SparkSession) -> None:
    server = kafka()
    topic = server.new_topic()
    sent = [
        change("c", 1, {"id": 1, "name": "a"}),
        change("c", 2, {"id": 2, "name": "b"}),
        change("d", 3, None, {"id": 2}),
    ]
    server.send(topic, [*(json.dumps(one) for one in sent), None, "no json"], key="k")
    target = DuckDB(tmp_path, spark)
    spec = PipelineSpec(
        name="topic",
        sources=[Source(connection=KafkaConnection(bootstrap_servers=server.bootstrap), query=topic)],
        targets=[target.target(keys=["id"])],
        transform=Transform(cdc=CDC(), on_error="dlq"),
    )
    result = run_spec(spec, bounded=True, spark=spark)
    assert target.read(StructType()) == [{"id": 1, "name": "a"}]
    assert (result.changes["skipped"], result.dlq_rows) == (1, {"decode": 1})


@pytest.mark.slow
def test_avro_envelopes_have_the_types_and_columns_of_their_schema(tmp_path: Path, spark: SparkSession) -> None:
    server, registry = kafka(), schema_registry()
    topic = server.new_topic()
    later = json.loads(json.dumps(ENVELOPE))
    later["fields"][0]["type"][1]["fields"].append({"name": "city", "type": ["null", "string"], "default": None})

    def sent(schema: dict[str, Any], place: int, op: str, row: dict[str, Any] | None, old: Any = None) -> bytes:
        id = registry.register(f"{topic}-value", schema)
        return avro(schema, id, {"before": old, "after": row, "source": {"pos": place}, "op": op})

    at = datetime(2026, 3, 1, 8, 30, 0, 123456, tzinfo=UTC)
    row = {"id": 1, "price": Decimal("123.45"), "day": 19_000, "at": at, "tags": ["x"]}
    first = [sent(ENVELOPE, 1, "c", row), sent(ENVELOPE, 2, "c", row | {"id": 2, "price": None})]
    server.send(topic, [*first, None, b"no avro", sent(ENVELOPE, 3, "d", None, row | {"id": 2})], key="k")
    target = DuckDB(tmp_path, spark)
    connection = KafkaConnection(
        bootstrap_servers=server.bootstrap, payload_format="avro", schema_registry_url=registry.url
    )
    spec = PipelineSpec(
        name="avro",
        sources=[Source(connection=connection, query=topic)],
        targets=[target.target(keys=["id"])],
        transform=Transform(cdc=CDC(schema_evolution="evolve"), on_error="dlq"),
    )
    result = run_spec(spec, bounded=True, spark=spark)
    assert (result.changes["skipped"], result.changes["deletes"], result.dlq_rows) == (1, 1, {"decode": 1})
    server.send(topic, [sent(later, 4, "c", row | {"id": 3, "city": "Oslo"})], key="k")
    run_spec(spec, bounded=True, spark=spark)
    found = sorted(tuple(one.values()) for one in target.read(StructType()))
    same = (Decimal("123.45"), date(2022, 1, 8), at.replace(tzinfo=None), ["x"])
    assert found == [(1, *same, None), (3, *same, "Oslo")]


@pytest.mark.slow
def test_a_table_that_is_there_keeps_its_rules_and_its_other_columns(tmp_path: Path, spark: SparkSession) -> None:
    target = DuckDB(tmp_path, spark)
    with duckdb.connect(str(tmp_path / "a.duckdb")) as db:
        db.execute(
            "CREATE TABLE orders (id BIGINT PRIMARY KEY, name VARCHAR NOT NULL, age INTEGER CHECK (age >= 0), "
            "origin VARCHAR DEFAULT 'ours')"
        )
        db.execute("INSERT INTO orders VALUES (9, 'there', 1, 'theirs')")
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    spec = PipelineSpec(
        name="rules",
        sources=[Source(connection=ObjectStoreLocalConnection(path=str(inbox), format="json_lines"))],
        targets=[target.target(keys=["id"])],
        transform=Transform(cdc=CDC(), on_error="dlq"),
    )
    changes = [
        change("c", 1, {"id": 1, "name": "a", "age": 5, "unknown": True}),
        change("c", 2, {"id": 2, "name": "b", "age": -1}),
        change("c", 3, {"id": 3, "name": None, "age": 3}),
        change("u", 4, {"id": 1, "age": 6}),
        change("u", 5, {"id": 9, "age": 7}),
    ]
    (inbox / "1.jsonl").write_text("".join(json.dumps(one) + "\n" for one in changes), encoding="utf-8")
    result = run_spec(spec, bounded=True, spark=spark)
    assert result.dlq_rows == {"write": 2}
    found = sorted(tuple(row.values()) for row in target.read(StructType()))
    assert found == [(1, "a", 6, "ours"), (9, "there", 7, "theirs")]
    (inbox / "2.jsonl").write_text(json.dumps(change("d", 6, None, {"id": 9})) + "\n", encoding="utf-8")
    run_spec(spec, bounded=True, spark=spark)
    assert [row["id"] for row in target.read(StructType())] == [1]
