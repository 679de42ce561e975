"""Windows over JSON records, read and handed on many at once, against the same records read row by row."""

import json
import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from ematix_flow.errors import FlowError
from ematix_flow.result import RunResult
from ematix_flow.state.dead_letters import DeadLetters
from ematix_flow.state.home import dead_letters_of
from ematix_flow.streams.failures import BadRowError
from ematix_flow.streams.one_pass import needed, read_ahead
from ematix_flow.streams.run import run_spec
from ematix_flow.toml import load_toml
from tests.orders import aggregation
from tests.services.kafka import Kafka, Value
from tests.topics import Topics

pytestmark = pytest.mark.usefixtures("spark")

BEGIN = 1_767_225_600
SCHEMA = "id long, customer string, amount double, price decimal(12,2), ms long, ts timestamp, o struct<x: long>"
# What depends on the order of the rows, and on the order of additions, is the same, too.
AGGREGATES = "".join(
    aggregation(agg, alias, **more)
    for agg, alias, more in [
        ("count", "n", {}),
        ("sum", "amounts", {"column": "amount"}),
        ("sum", "prices", {"column": "price"}),
        ("avg", "mean", {"column": "amount"}),
        ("first", "first_id", {"column": "id"}),
        ("last", "last_id", {"column": "id"}),
        ("arg_max", "dearest", {"column": "id", "mode": "amount"}),
        ("collect_list", "ids", {"column": "id"}),
        ("count_distinct", "different", {"column": "amount"}),
        ("max", "latest", {"column": "ts"}),
    ]
)
TUMBLING = 'kind = "tumbling"\nduration_ms = 1000'
WINDOW = f'{TUMBLING}\ngroup_by = ["customer"]\nevent_time_column = "ts"'
ALL = "rows_consumed", "rows_written", "late_rows", "dlq_rows", "dropped_rows", "watermark", "batches", "status"


def at(second: float) -> str:
    return datetime.fromtimestamp(BEGIN + second, UTC).isoformat().replace("+00:00", "Z")


def record(number: int, second: float, **other: Any) -> dict[str, Any]:
    amount = number % 977 / 7
    return {
        "id": number, "customer": f"c{number % 7}", "amount": amount, "price": round(amount, 2),
        "ms": int((BEGIN + second) * 1000), "ts": at(second), "o": {"x": number}, **other,
    }  # fmt: skip


def awkward(number: int, second: float) -> Value:
    """Among plain records: some that only Spark reads, some that nobody can read, some that are late."""
    plain = record(number, second)
    choices: list[Value] = [
        None, b"", b"\xff{", "[1]", "null", "broken", json.dumps(plain) + "}", {**plain, "ts": None},
        {**plain, "ts": "yesterday"}, {**plain, "ts": "0000-12-31T00:00:00Z"}, {**plain, "ms": 1 << 62},
        {**plain, "ms": None}, {**plain, "id": "x"}, {**plain, "o": [1]}, {"id": number},
        # Good ones that are not plain.
        json.dumps(plain, indent=1), json.dumps(plain) + "\n", {**plain, "ts": at(second).replace("T", " ")[:-1]},
        {**plain, "amount": "1.5"}, {**plain, "price": "1e1"}, {**plain, "ts": at(second)[:10]},
        # Plain ones that are not like the others.
        {**plain, "customer": None}, {**plain, "amount": None}, {**plain, "unknown": {"a": [1, {"b": None}]}},
        {**plain, "o": {"x": 1, "y": [[]]}}, record(number, second - 5), record(number, -86_400), plain,
        {key: plain[key] for key in reversed(plain)}, {**plain, "ts": at(second).replace("Z", "+02:00")},
    ]  # fmt: skip
    return choices[number % len(choices)]


def fill(kafka: Kafka, topic: str, numbers: range, *, seed: int) -> None:
    """Rows of a second come together, a few of them awkward, to two partitions; some come twice."""
    chance = random.Random(seed)
    for number in numbers:
        second = number / 100
        value = awkward(number, second) if chance.random() < 0.1 else record(number, second)
        for _ in range(2 if chance.random() < 0.05 else 1):
            kafka.produce(topic, value, key=f"k{number}", partition=number % 2, timestamp=(BEGIN + number) * 1000)
    kafka.flush()


class Ways:
    """The same declaration run both ways, as pipelines of their own."""

    def __init__(self, topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
        self.topics, self._patch, self.ahead = topics, monkeypatch, 0

        def reading(*given: Any) -> DataFrame:
            self.ahead += 1
            return read_ahead(*given)

        monkeypatch.setattr("ematix_flow.streams.sources.kafka.read_ahead", reading)

    def many_are_waiting(self, *, really: bool) -> None:
        self._patch.setattr("ematix_flow.streams.sources.kafka._BACKLOG", 0 if really else 1 << 60)

    def toml(self, topic: str, name: str, window: str, *, more: str = "", **declared: Any) -> str:
        given = {"schema": SCHEMA, "on_error": "dlq"} | declared
        text = f"[transform.window]\n{window}\n{AGGREGATES}\n{more}"
        return self.topics.toml(topic, name=name, more=text, **given).replace('table = "orders"', f'table = "{name}"')

    def run(self, topic: str, name: str, *, ahead: bool, flush: bool = True, **declared: Any) -> RunResult:
        self.many_are_waiting(really=ahead)
        (spec,) = load_toml(text=self.toml(topic, name, **declared))
        before = self.ahead
        result = run_spec(spec, bounded=True, flush=flush)
        assert (self.ahead > before) == ahead
        return result

    def compare(self, topic: str, **declared: Any) -> RunResult:
        one, other = (self.run(topic, name, ahead=name == "ahead", **declared) for name in ("ahead", "rows"))
        assert {name: getattr(one, name) for name in ALL if name != "rows_written"} == {
            name: getattr(other, name) for name in ALL if name != "rows_written"
        }
        assert sum(one.rows_written.values()) == sum(other.rows_written.values()) > 0
        assert self.rows("ahead") == self.rows("rows")
        assert letters("ahead") == letters("rows")
        return one

    def rows(self, name: str) -> list[tuple[Any, ...]]:
        return self.topics.in_database(f"SELECT * FROM {name} ORDER BY ALL")


def letters(name: str) -> list[tuple[Any, ...]]:
    kept = DeadLetters(dead_letters_of(name))
    found = [(one.position, one.stage, one.error_code, one.error, one.event_ts, one.payload) for one in kept.all()]
    kept.close()
    return found


@pytest.fixture
def ways(kafka: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ways:
    return Ways(Topics(kafka, tmp_path), monkeypatch)


@pytest.mark.parametrize(
    ("window", "declared"),
    [
        (WINDOW, {}),
        (f'{TUMBLING}\ngroup_by = ["customer"]\nevent_time_column = "ms"', {"on_error": "drop"}),
        (f'{TUMBLING}\ngroup_by = ["price", "id"]', {"reading": 'event_time_column = "ts"'}),
        (
            'kind = "hopping"\nduration_ms = 3000\nhop_ms = 1000\ngroup_by = ["who"]\nevent_time_column = "ts"\n'
            'late_data = "reopen"\nallowed_lateness_ms = 2000',
            {"sql": "SELECT customer AS who, * FROM source"},
        ),
        (f"{TUMBLING}", {"sql": "SELECT ts, id, price, amount FROM source;"}),
    ],
    ids=["column", "milliseconds", "source", "hopping", "record"],
)
def test_both_ways_come_to_the_same(ways: Ways, window: str, declared: dict[str, str]) -> None:
    """Over two runs and several batches, so that there are late rows and states."""
    kafka = ways.topics.kafka
    topic = kafka.new_topic(2)
    limits = f"max_rows_per_batch = 700\n{declared.get('reading', '')}"
    given = declared | {"window": window, "reading": limits, "more": "[watermark]\nlateness_ms = 500"}
    fill(kafka, topic, range(1500), seed=1)
    first = ways.compare(topic, flush=False, **given)
    bad = first.dropped_rows if declared.get("on_error") == "drop" else first.dlq_rows
    has_own_time = "event_time_column" in window + limits
    assert first.rows_consumed > 1500
    assert bad.keys() == ({"decode", "event_time"} if has_own_time else {"decode"})
    fill(kafka, topic, range(1000, 2000), seed=2)
    second = ways.compare(topic, **given)
    assert sum(second.late_rows.values()) > 0


def test_the_first_bad_record_stops_both_ways_alike(ways: Ways) -> None:
    topic = ways.topics.kafka.new_topic()
    ways.topics.kafka.send(topic, [record(1, 1), "broken", record(2, 2, ts=None), record(3, 3)])
    declared = {"window": f'{TUMBLING}\nevent_time_column = "ts"', "on_error": "fail"}
    with pytest.raises(BadRowError, match="partition 0 offset 1") as one:
        ways.run(topic, "ahead", ahead=True, **declared)
    with pytest.raises(BadRowError) as other:
        ways.run(topic, "rows", ahead=False, **declared)
    assert str(one.value) == str(other.value)


def test_a_batch_that_is_repeated_the_other_way_is_the_same(ways: Ways) -> None:
    """How many records wait may be another number after a crash."""
    topic = ways.topics.kafka.new_topic(2)
    fill(ways.topics.kafka, topic, range(600), seed=3)

    def die(step: str, batch: int) -> None:
        if (step, batch) == ("apply", 1):
            raise KeyError(step)

    for name in ("ahead", "rows"):
        (spec,) = load_toml(text=ways.toml(topic, name, WINDOW, reading="max_rows_per_batch = 250"))
        ways.many_are_waiting(really=True)
        with pytest.raises(FlowError):
            run_spec(spec, bounded=True, on_step=die)
        ways.many_are_waiting(really=name == "ahead")
        run_spec(spec, bounded=True)
    assert ways.rows("ahead") == ways.rows("rows") != []
    assert letters("ahead") == letters("rows") != []


LEFT_TO_SPARK = {
    "an expression": {"sql": "SELECT customer, ts, id, price, amount * 2 AS amount FROM source"},
    "a cast": {"sql": "SELECT *, CAST(id AS string) AS text FROM source"},
    "a filter": {"sql": "SELECT * FROM source WHERE id > 1"},
    "a part of a struct": {"sql": "SELECT *, o.x FROM source"},
    "what lies beside the payload": {"sql": "SELECT *, _offset FROM source"},
    "a subquery": {"sql": "SELECT * FROM (SELECT * FROM source) AS inner_one"},
    "another spelling": {"sql": "SELECT CUSTOMER AS customer, ts, id, price, amount FROM source"},
    "a lookup": {"more": '[transform.lookups.rates]\nkind = "duckdb"\npath = "x.db"\ntable = "rates"'},
    "late rows that are kept": {"window": f'{WINDOW}\nlate_data = "dlq"'},
    "sessions": {"window": 'kind = "session"\ngap_ms = 1000\nevent_time_column = "ts"'},
    "keys with -0.0": {"window": f'{TUMBLING}\ngroup_by = ["amount"]\nevent_time_column = "ts"'},
    "keys beside the payload": {"window": f'{TUMBLING}\ngroup_by = ["_key"]\nevent_time_column = "ts"'},
    "times that are texts": {"window": f'{TUMBLING}\nevent_time_column = "customer"'},
    "two event times": {"sql": "SELECT *, ts AS _event_ts FROM source", "window": TUMBLING},
    "types that Arrow does not read": {"schema": f"{SCHEMA}, m map<string, long>"},
}


@pytest.mark.parametrize("declared", LEFT_TO_SPARK.values(), ids=LEFT_TO_SPARK)
def test_what_is_left_to_spark(ways: Ways, declared: dict[str, str]) -> None:
    (spec,) = load_toml(text=ways.toml("orders", "orders", **{"window": WINDOW} | declared))
    assert needed(spec, StructType.fromDDL(declared.get("schema", SCHEMA))) is None


@pytest.mark.parametrize("dialect", ["spark", "duckdb"])
@pytest.mark.parametrize("sql", [None, "SELECT * FROM source", "select customer, ts, id, price, amount from source;"])
def test_names_alone_are_not(ways: Ways, dialect: str, sql: str | None) -> None:
    text = ways.toml("orders", "orders", WINDOW, sql=sql)
    (spec,) = load_toml(text=text.replace("[transform]", f'[transform]\ndialect = "{dialect}"'))
    assert needed(spec, StructType.fromDDL(SCHEMA)) is not None


def test_a_few_records_are_read_as_ever(ways: Ways) -> None:
    topic = ways.topics.kafka.new_topic()
    ways.topics.kafka.send(topic, [record(1, 1)])
    (spec,) = load_toml(text=ways.toml(topic, "few", WINDOW))
    run_spec(spec, bounded=True)
    assert (ways.ahead, len(ways.rows("few"))) == (0, 1)
