"""In JSON, a key of a map is written as a value of its type is."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from tests.orders import Orders
from tests.services.kafka import Kafka
from tests.topics import Topics

pytestmark = pytest.mark.usefixtures("spark")

KEYS = {
    "t": "timestamp'2026-01-01T00:00:00.5Z'",
    "n": "timestamp_ntz'2026-01-01 10:00:00'",
    "d": "date'2026-01-01'",
    "s": "named_struct('x', 0, 'd', date'2026-01-01')",
    "a": "array(date'2026-01-01')",
    "b": f"cast('{'hi' * 50}' AS binary)",
    "i": "7",
}
WRITTEN: dict[str, Any] = {
    "t": {"2026-01-01T00:00:00.500000Z": 1},
    "n": {"2026-01-01T10:00:00.000000": 1},
    "d": {"2026-01-01": 1},
    "s": {'{"x":0,"d":"2026-01-01"}': 1},
    "a": {'["2026-01-01"]': 1},
    "b": {base64.b64encode(b"hi" * 50).decode(): 1},
    "i": {"7": 1},
}
INSIDE = {"l": [{"m": {"2026-01-01": {"2026-01-02": 1}}}, None]}
MAPS = [f"map({key}, 1) AS {name}" for name, key in KEYS.items()]
SQL = f"""SELECT {", ".join(MAPS)},
    array(named_struct('m', map(date'2026-01-01', map(date'2026-01-02', 1))), NULL) AS l FROM source"""


@pytest.fixture
def topics(kafka: Kafka, tmp_path: Path) -> Topics:
    return Topics(kafka, tmp_path)


def test_in_files_of_json_lines(orders: Orders) -> None:
    orders.arrive("a.jsonl", [{"id": 1}])
    orders.run(sql=SQL, targets=("json_lines",))
    assert orders.in_files() == [WRITTEN | INSIDE]


def test_in_records(topics: Topics) -> None:
    topic, to = topics.kafka.new_topic(1), topics.kafka.new_topic(1)
    topics.kafka.send(topic, [{"id": 1}])
    topics.run(topic, sql=SQL, target=to, writing='message_key_column = "s"')
    (record,) = topics.kafka.read(to)
    value, key = record.value(), record.key()
    assert value is not None
    assert key is not None
    assert json.loads(value) == WRITTEN | INSIDE
    assert json.loads(key) == WRITTEN["s"]
