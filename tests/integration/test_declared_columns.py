"""What a declared schema says of its columns, beside their types."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.orders import Orders
from tests.services.kafka import Kafka
from tests.topics import Topics

pytestmark = pytest.mark.usefixtures("spark")

NULL_IN_ID = "column id: NULL, but it is NOT NULL"


@pytest.fixture
def topics(kafka: Kafka, tmp_path: Path) -> Topics:
    return Topics(kafka, tmp_path)


def test_null_in_a_column_that_is_not_null_makes_a_bad_row(orders: Orders) -> None:
    bad = [b'{"id": null, "x": 1}', b'{"x": 2}']
    orders.arrive("a.jsonl", [*bad, {"id": 3}])
    result = orders.run(schema="id long NOT NULL, x int", on_error="dlq", targets=("json_lines",))
    assert orders.in_files() == [{"id": 3}]
    assert result.dlq_rows == {"decode": 2}
    assert {letter.payload: letter.error for letter in orders.dead_letters()} == dict.fromkeys(bad, NULL_IN_ID)


def test_null_in_a_csv_column_that_is_not_null_makes_a_bad_row(orders: Orders) -> None:
    orders.arrive("a.csv", ["id,x", ",1", "2,2"])
    orders.run(schema="id long NOT NULL, x int", form="csv", on_error="dlq", targets=("json_lines",))
    assert orders.in_files() == [{"id": 2, "x": 2}]
    assert [letter.error for letter in orders.dead_letters()] == [NULL_IN_ID]


@pytest.mark.parametrize("sql", [None, "SELECT id, x + 1 AS x FROM source"])
@pytest.mark.parametrize("backlog", [1, 100_000])
def test_null_in_a_record_is_found_among_many_too(
    topics: Topics, backlog: int, sql: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ematix_flow.streams.sources.kafka._BACKLOG", backlog)
    topic, to = topics.kafka.new_topic(1), topics.kafka.new_topic(1)
    topics.kafka.send(topic, ['{"id": null, "x": 1}', '{"id": 2, "x": 1}', '{"x": 3}', "{}", '{"id": 4}'])
    result = topics.run(topic, schema="id long NOT NULL, x int", sql=sql, target=to, on_error="dlq")
    assert result.dlq_rows == {"decode": 3}
    assert [json.loads(message.value())["id"] for message in topics.kafka.read(to)] == [2, 4]


def test_texts_with_a_length_are_texts(orders: Orders) -> None:
    row = {"a": "abcde", "b": "x", "c": [{"d": "abcde"}], "m": {"k": "abcde"}}
    orders.arrive("a.jsonl", [row])
    schema = "a varchar(3), b char(3), c array<struct<d: varchar(2)>>, m map<string, character(2)>"
    orders.run(schema=schema, targets=("json_lines",))
    assert orders.in_files() == [row]
