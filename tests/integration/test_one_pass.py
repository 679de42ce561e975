"""Windows over JSON records, read and handed on many at once, against the same records read row by row."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from ematix_flow.errors import FlowError
from ematix_flow.result import RunResult
from ematix_flow.streams.failures import BadRowError
from ematix_flow.streams.one_pass import needed, read_ahead
from ematix_flow.streams.run import run_spec
from ematix_flow.toml import load_toml
from tests.awkward import SCHEMA, fill, letters, record
from tests.orders import aggregation
from tests.services.kafka import Kafka
from tests.topics import Topics

pytestmark = pytest.mark.usefixtures("spark")

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
