"""Columns may have any name that JSON can have."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.orders import Orders
from tests.services.kafka import Kafka
from tests.topics import Topics

pytestmark = pytest.mark.usefixtures("spark")

ROW = '{"id": 1, "a`b": 2, "c.d": {"e`f": "g"}}'
DECLARED = "id long, `a``b` long, `c.d` struct<`e``f`: string>"
TWICE = '{"id": 1, "ID": 2, "o": {"a": 1, "A": 2}, "l": [{"x": 1, "X": 2}]}'


@pytest.fixture
def topics(kafka: Kafka, tmp_path: Path) -> Topics:
    return Topics(kafka, tmp_path)


@pytest.mark.parametrize("schema", [None, DECLARED])
@pytest.mark.parametrize("sql", [None, "SELECT * FROM source"])
def test_a_name_in_a_file_has_a_backtick(orders: Orders, schema: str | None, sql: str | None) -> None:
    orders.arrive("a.jsonl", [ROW])
    orders.run(schema=schema, sql=sql, on_error="dlq", targets=("json_lines",))
    orders.arrive("b.jsonl", ['{"id": 2, "a`b": "x"}'])
    result = orders.run(schema=schema, sql=sql, on_error="dlq", targets=("json_lines",))
    assert orders.in_files() == [json.loads(ROW)]
    assert result.dlq_rows == {"decode": 1}


def test_a_name_in_a_csv_file_has_a_backtick(orders: Orders) -> None:
    orders.arrive("a.csv", ["id,a`b", "1,2", "2,x"])
    orders.run(schema="id long, `a``b` long", form="csv", on_error="dlq", targets=("json_lines",))
    assert orders.in_files() == [{"id": 1, "a`b": 2}]


@pytest.mark.parametrize("backlog", [1, 100_000])
@pytest.mark.parametrize("schema", [None, DECLARED])
def test_a_name_in_a_record_has_a_backtick(
    topics: Topics, schema: str | None, backlog: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ematix_flow.streams.sources.kafka._BACKLOG", backlog)
    topic = topics.kafka.new_topic(1)
    topics.kafka.send(topic, [ROW])
    topics.run(topic, schema=schema)
    assert topics.in_database('SELECT id, "a`b" FROM orders') == [(1, 2)]


def test_names_in_a_file_differ_only_in_case(orders: Orders) -> None:
    """The first one is the column, as it is of columns that are declared."""
    orders.arrive("a.jsonl", [TWICE])
    orders.run(schema=None, targets=("json_lines",))
    assert orders.in_files() == [{"id": 1, "o": {"a": 1}, "l": [{"x": 1}]}]


def test_names_in_a_record_differ_only_in_case(topics: Topics) -> None:
    topic = topics.kafka.new_topic(1)
    topics.kafka.send(topic, [TWICE])
    topics.run(topic, schema=None)
    assert topics.in_database("SELECT id FROM orders") == [(1,)]
