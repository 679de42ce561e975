"""JSON records that come to a target many as one, against the same records that come to it row by row."""

import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from ematix_flow.errors import FlowError
from ematix_flow.result import RunResult
from ematix_flow.sinks.ahead import AHEAD, ROWS, TABLE, in_order, marks
from ematix_flow.sinks.json_writer import json_objects
from ematix_flow.state.store import Store
from ematix_flow.streams.failures import BadRowError
from ematix_flow.streams.json_reader import reader
from ematix_flow.streams.one_pass import read_ahead
from ematix_flow.streams.run import run_spec
from ematix_flow.toml import load_toml
from tests.awkward import SCHEMA, fill, letters, record
from tests.services.kafka import Kafka
from tests.topics import Topics

# Neither a table of PostgreSQL nor the writer of JSON takes a struct as it is.
FLAT = SCHEMA.removesuffix(", o struct<x: long>")
COUNTS = "rows_consumed", "dlq_rows", "dropped_rows", "batches", "status"
LIMIT = "max_rows_per_batch = 700"


class Ways:
    """The same declaration run both ways, as pipelines of their own with targets of their own."""

    def __init__(self, topics: Topics, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.topics, self.url, self._patch, self.ahead = topics, url, monkeypatch, 0

        def reading(*given: Any) -> DataFrame:
            self.ahead += 1
            return read_ahead(*given)

        monkeypatch.setattr("ematix_flow.streams.sources.kafka.read_ahead", reading)

    def run(self, topic: str, name: str, *, ahead: bool = True, target: str = "", **declared: Any) -> RunResult:
        """Into the table `name`, or into the topic `target`."""
        self._patch.setattr("ematix_flow.streams.sources.kafka._BACKLOG", 0 if ahead else 1 << 60)
        given: dict[str, Any] = {"schema": FLAT, "on_error": "dlq", "reading": LIMIT} | declared
        if target:
            text = self.topics.toml(topic, name=name, target=target, top='delivery = "exactly_once"', **given)
        else:
            text = self.topics.toml(topic, name=name, **given)
            place = f'kind = "postgres"\nurl = "{self.url}"\ntable = "{name}"'
            text = text.replace(f'kind = "duckdb"\npath = "{self.topics.database}"\ntable = "orders"', place)
        (spec,) = load_toml(text=text)
        return run_spec(spec, bounded=True)

    def both(self, topic: str, **declared: Any) -> tuple[RunResult, RunResult]:
        before = self.ahead
        one = self.run(topic, "ahead", **declared)
        assert self.ahead > before, "it was to be read ahead"
        before = self.ahead
        other = self.run(topic, "rows", ahead=False, **declared)
        assert self.ahead == before
        assert {name: getattr(one, name) for name in COUNTS} == {name: getattr(other, name) for name in COUNTS}
        assert list(one.rows_written.values()) == list(other.rows_written.values())
        assert _in_words("ahead") == _in_words("rows")
        return one, other

    def rows(self, name: str) -> list[str]:
        """As PostgreSQL writes them, which knows times before those of Python."""
        with psycopg.connect(self.url) as db:
            of = f"attrelid = '{name}'::regclass AND attnum > 0 AND attname <> '_loaded_at'"
            found = db.execute(f"SELECT attname FROM pg_attribute WHERE {of} ORDER BY attnum").fetchall()
            listed = ", ".join(f'"{column}"' for (column,) in found if column != "_batch_id")
            return [row for (row,) in db.execute(f"SELECT ROW({listed})::text FROM {name} ORDER BY 1").fetchall()]


@pytest.fixture
def ways(kafka: Kafka, tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch, spark: object) -> Ways:
    return Ways(Topics(kafka, tmp_path), postgres_url, monkeypatch)


@pytest.fixture
def topic(ways: Ways) -> Iterator[str]:
    """1,500 records, some of them awkward."""
    name = ways.topics.kafka.new_topic(2)
    fill(ways.topics.kafka, name, range(1500), seed=5)
    yield name
    ways.topics.kafka.delete_topic(name)


def _in_words(name: str) -> list[str]:
    """The dead letters, whatever the table is called."""
    return [str(letter).replace(f'"{name}', '"orders') for letter in letters(name)]


def test_most_of_the_records_are_plain(ways: Ways, topic: str) -> None:
    """Otherwise the tests below say nothing."""
    read = reader(to_arrow_schema(StructType.fromDDL(FLAT), timezone="UTC"))
    values = pa.array([message.value() for message in ways.topics.kafka.read(topic)], pa.binary())
    assert 0.5 < read(values).is_valid().to_numpy(zero_copy_only=False).mean() < 1


def told(kafka: Kafka, topic: str) -> list[tuple[Any, ...]]:
    """Records as readers understand them, with their members in order."""
    found = kafka.read(topic)
    return sorted((str(m.key()), m.partition(), list(json.loads(m.value()).items())) for m in found)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "declared",
    [{"on_error": "drop"}, {"sql": "SELECT customer AS who, ts, price, _offset, _key, _timestamp FROM source"}],
    ids=["all", "some"],
)
def test_a_table_holds_the_same(ways: Ways, topic: str, declared: dict[str, str]) -> None:
    one, _ = ways.both(topic, **declared)
    assert ways.rows("ahead") == ways.rows("rows")
    assert one.rows_consumed > one.rows_written["ahead"] > 1000
    # More of them, in a table that is there.
    fill(ways.topics.kafka, topic, range(1500, 2200), seed=6)
    ways.both(topic, **declared)
    assert ways.rows("ahead") == ways.rows("rows")


@pytest.mark.parametrize(
    "declared",
    [
        {"sql": "SELECT *, _key FROM source", "writing": 'message_key_column = "_key"'},
        {
            "on_error": "drop",
            "sql": "SELECT price, ts, customer AS who, id FROM source",
            "writing": 'message_key_column = "id"',
        },
    ],
    ids=["all", "some"],
)
def test_a_topic_holds_the_same(ways: Ways, topic: str, declared: dict[str, str]) -> None:
    kafka = ways.topics.kafka
    targets = [kafka.new_topic(), kafka.new_topic()]
    for name, target in zip(("ahead", "rows"), targets, strict=True):
        result = ways.run(topic, name, ahead=name == "ahead", target=target, **declared)
        assert sum(result.rows_written.values()) == len(kafka.read(target)) > 1000
    assert ways.ahead == 1
    assert told(kafka, targets[0]) == told(kafka, targets[1])
    assert letters("ahead") == letters("rows")


def test_few_records_come_the_same_way_by_the_driver(ways: Ways) -> None:
    kafka = ways.topics.kafka
    source, targets = kafka.new_topic(2), {"ahead": kafka.new_topic(), "rows": kafka.new_topic()}
    for numbers in (range(290, 310), range(310, 350)):
        fill(kafka, source, numbers, seed=numbers.start)
        for name, target in targets.items():
            ways.run(source, name, ahead=name == "ahead", target=target)
    assert told(kafka, targets["ahead"]) == told(kafka, targets["rows"])
    assert letters("ahead") == letters("rows") != []


@pytest.mark.parametrize("target", ["", "topic"])
def test_nothing_but_bad_records_is_no_row(ways: Ways, target: str) -> None:
    kafka = ways.topics.kafka
    topic, place = kafka.new_topic(), kafka.new_topic() if target else ""
    kafka.send(topic, ["broken", "[1]"])
    result = ways.run(topic, "ahead", target=place)
    assert (result.rows_consumed, result.dlq_rows) == (2, {"decode": 2})
    assert list(result.rows_written.values()) == [0]
    kafka.send(topic, [record(1, 1)])
    assert list(ways.run(topic, "ahead", target=place).rows_written.values()) == [1]


def test_what_a_table_refuses_is_found_row_by_row(ways: Ways, topic: str) -> None:
    """Some rows of the second batch, in a table with a constraint."""
    for name in ("ahead", "rows"):
        with psycopg.connect(ways.url) as db:
            db.execute(f"CREATE TABLE {name} (id bigint CHECK (id % 100 <> 99), customer text)")
    one, _ = ways.both(topic, sql="SELECT id, customer FROM source")
    assert one.dlq_rows["write"] >= 14
    assert ways.rows("ahead") == ways.rows("rows")


def test_a_table_of_other_types_gets_its_rows_one_by_one(ways: Ways, topic: str) -> None:
    for name in ("ahead", "rows"):
        with psycopg.connect(ways.url) as db:
            db.execute(f"CREATE TABLE {name} (id text NOT NULL, amount real)")
    ways.both(topic, sql="SELECT id, amount FROM source", writing='on_drift = "ignore"')
    assert ways.rows("ahead") == ways.rows("rows")


def test_the_first_bad_record_stops_both_ways_alike(ways: Ways) -> None:
    topic = ways.topics.kafka.new_topic()
    ways.topics.kafka.send(topic, [record(1, 1), "broken", record(2, 2), record(3, 3)])
    failures = []
    for name in ("ahead", "rows"):
        with pytest.raises(BadRowError, match="partition 0 offset 1") as failed:
            ways.run(topic, name, ahead=name == "ahead", on_error="fail")
        failures.append(str(failed.value))
    assert failures[0] == failures[1]
    assert ways.rows("ahead") == []


@pytest.mark.parametrize("target", ["", "topic"])
def test_a_batch_that_is_repeated_the_other_way_is_the_same(
    ways: Ways, topic: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How many records wait may be another number after a crash."""
    kafka = ways.topics.kafka
    place, other = (kafka.new_topic(), kafka.new_topic()) if target else ("", "")
    with monkeypatch.context() as patched:
        patched.setattr(Store, "save", _dying_at(1))
        with pytest.raises(FlowError):
            ways.run(topic, "ahead", target=place)
    ways.run(topic, "ahead", ahead=False, target=place)
    ways.run(topic, "rows", ahead=False, target=other)
    if target:
        assert told(kafka, place) == told(kafka, other) != []
    else:
        assert ways.rows("ahead") == ways.rows("rows") != []
    assert letters("ahead") == letters("rows") != []


def _dying_at(number: int) -> Any:
    save = Store.save

    def saved(self: Store, batch: int) -> None:
        save(self, batch)
        if batch == number:
            raise KeyError(batch)

    return saved


def test_no_more_comes_together_than_fits() -> None:
    """Spark takes so many rows at once, whatever they hold."""
    import pyarrow.compute as pc

    table = b"x" * (10 << 20)
    mark = marks(table, 2000, pa.array([3, 5]), 2000)
    tables = pc.struct_field(mark, TABLE).to_pylist()
    before = tables.index(table)
    assert (before + 1) * (16 << 20) >= 2000 * len(table)
    assert {*tables[:before]} == {b""}
    assert tables[before + 1 :] == [None, None]
    assert pc.sum(pc.struct_field(mark, ROWS)).as_py() == 2002
    nothing = pa.record_batch({"id": pa.nulls(1, pa.int64()), AHEAD: marks(b"", 0, pa.nulls(0, pa.int64()), 1)})
    assert list(in_order([nothing])) == []


KINDS = {
    "text": (pa.string(), st.text(st.characters(exclude_categories=["Cs"]))),
    "whole": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "small": (pa.int8(), st.integers(-128, 127)),
    "number": (pa.float64(), st.floats(allow_nan=False, allow_infinity=False)),
    "truth": (pa.bool_(), st.booleans()),
    "price": (pa.decimal128(12, 2), st.decimals(-9_999_999, 9_999_999, places=2)),
    "odd \" name": (pa.string(), st.sampled_from(["", "\\", '"', "\n\t\x01", "é\U0001f600"])),
}  # fmt: skip


@given(st.lists(st.fixed_dictionaries({name: st.none() | values for name, (_, values) in KINDS.items()}), min_size=1))
def test_objects_say_what_rows_hold(rows: list[dict[str, Any]]) -> None:
    table = pa.table({name: pa.array([row[name] for row in rows], kind) for name, (kind, _) in KINDS.items()})
    texts = json_objects(table).to_pylist()
    found = [json.loads(text, parse_float=str) for text in texts]
    wanted = [{name: row[name] for name in KINDS if row[name] is not None} for row in rows]
    assert [list(one) for one in found] == [list(one) for one in wanted]
    for one, row in zip(found, wanted, strict=True):
        for name, value in row.items():
            is_number = isinstance(value, float | Decimal)
            assert (type(value)(one[name]) if is_number else one[name]) == value
