"""Dead letters of Kafka sources: in the topic as they were, and through the pipeline again."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ematix_flow import run_pipeline
from ematix_flow.errors import DeclarationError
from ematix_flow.sinks.kafka_client import TopicNotFound
from ematix_flow.sinks.kafka_login import KafkaRefused
from ematix_flow.streams.replay import replay
from ematix_flow.toml import load_toml
from tests.orders import Orders
from tests.services.kafka import Kafka
from tests.topics import Topics, numbered

pytestmark = pytest.mark.usefixtures("spark")

AT = datetime(2026, 3, 1, 8, 30, tzinfo=UTC)
PER_MINUTE = """
[transform.window]
kind = "tumbling"
duration_ms = 60000
late_data = "dlq"
[[transform.window.aggregations]]
agg = "count"
as = "orders"
"""


def test_bad_records_go_to_their_topic_once_and_can_be_replayed(kafka: Kafka, tmp_path: Path) -> None:
    topics = Topics(kafka, tmp_path)
    source, dead = kafka.new_topic(2), kafka.new_topic()
    kafka.send(source, [{"id": 2}], key=b"\x00k", partition=1, timestamp=int(AT.timestamp() * 1000))
    kafka.send(source, [*numbered([1]), "broken"], partition=0)
    declaration = {
        "top": f'dead_letter_topic = "{dead}"',
        "on_error": "dlq",
        "reading": 'event_time_column = "id"',
        "sql": "SELECT id, 10 / (id - 2) AS share FROM source",
    }
    assert topics.run(source, **declaration).dlq_rows == {"decode": 1, "transform": 1}
    found = {message.value(): message for message in kafka.read(dead)}
    assert set(found) == {b"broken", b'{"id": 2}'}
    record = found[b'{"id": 2}']
    headers = {name: value.decode() for name, value in record.headers()}
    assert (record.key(), record.timestamp()[1]) == (b"\x00k", int(AT.timestamp() * 1000))
    assert headers.pop("emat-dlq-id")
    assert datetime.fromisoformat(headers.pop("emat-dlq-failed-at")) > AT
    assert headers == {
        "emat-dlq-pipeline": "orders",
        "emat-dlq-stage": "transform",
        "emat-dlq-error-code": "divide-by-zero",
        "emat-dlq-error": "column share: (10 / (id - 2)) fails with id = 2",
        "emat-dlq-source": source,
        "emat-dlq-position": f"{source}/1/0",
        "emat-dlq-event-ts": "1970-01-01T00:00:00.002000+00:00",
        "emat-dlq-attempt": "1",
        "emat-dlq-payload-format": "json",
        "emat-dlq-status": "pending",
    }
    better = declaration | {"sql": "SELECT id, CAST(0 AS double) AS share FROM source"}
    (spec,) = load_toml(text=topics.toml(source, **better))
    result = replay(spec)
    assert (result.succeeded, result.failed_again) == (1, 1)
    assert topics.in_database("SELECT id FROM orders ORDER BY id") == [(1,), (2,)]


def test_a_replayed_record_has_its_key_and_headers_as_long_as_its_topic_has_it(kafka: Kafka, tmp_path: Path) -> None:
    topics = Topics(kafka, tmp_path)
    source, target = kafka.new_topic(2), kafka.new_topic()
    moment = int(AT.timestamp() * 1000)
    for number, key in ((2, b"b"), (1, b"a"), (3, b"c")):
        headers = [("h", key), ("nothing", None)]
        kafka.send(source, [{"id": number}], key=key, partition=number % 2, headers=headers, timestamp=moment)
    kafka.truncate(source, 1, partition=0)
    kafka.send(source, [{"id": 4}], key=b"d", partition=0)
    declaration = {
        "target": target,
        "on_error": "dlq",
        "schema": "id long",
        "sql": "SELECT 1 / (id - id) AS x, id, _timestamp AS at, _key, _headers FROM source",
        "writing": 'message_key_column = "_key"\nheaders_column = "_headers"',
    }
    assert topics.run(source, **declaration).dlq_rows == {"transform": 3}
    kafka.truncate(source, 2, partition=0)
    better = declaration | {"sql": "SELECT id, _timestamp AS at, _key, _headers FROM source"}
    (spec,) = load_toml(text=topics.toml(source, **better))
    assert replay(spec).succeeded == 3
    found = {json.loads(message.value())["id"]: message for message in kafka.read(target)}
    told = {number: (message.key(), message.headers()) for number, message in found.items()}
    assert told == {
        1: (b"a", [("h", b"a"), ("nothing", None)]),
        3: (b"c", [("h", b"c"), ("nothing", None)]),
        4: (None, None),
    }
    assert json.loads(found[1].value())["at"] == "2026-03-01T08:30:00.000000Z"


def test_a_late_record_has_its_key_and_time(kafka: Kafka, tmp_path: Path) -> None:
    topics = Topics(kafka, tmp_path)
    source, dead = kafka.new_topic(), kafka.new_topic()
    text = topics.toml(
        source,
        schema="id long, at timestamp",
        reading='event_time_column = "at"',
        top=f'dead_letter_topic = "{dead}"',
        more=PER_MINUTE,
    )
    for minutes in ((0, 5), (1,)):
        for minute in minutes:
            row = {"id": minute, "at": f"2026-03-01T08:{minute:02}:00Z"}
            kafka.send(source, [row], key=f"k{minute}", timestamp=int(AT.timestamp() * 1000) + minute)
        result = run_pipeline(config_str=text, bounded=True, flush=False)
    assert (result.late_rows, result.dlq_rows) == ({"dlq": 1}, {"late": 1})
    (letter,) = kafka.read(dead)
    assert (letter.key(), letter.timestamp()[1]) == (b"k1", int(AT.timestamp() * 1000) + 1)
    assert json.loads(letter.value())["id"] == 1
    headers = dict(letter.headers())
    assert (headers["emat-dlq-stage"], headers["emat-dlq-position"]) == (b"late", f"{source}/0/2".encode())
    assert headers["emat-dlq-event-ts"] == b"2026-03-01T08:01:00+00:00"


def test_a_tombstone_stays_one(kafka: Kafka, tmp_path: Path) -> None:
    """It is no record of zero bytes, neither as a letter nor when it is replayed."""
    topics = Topics(kafka, tmp_path)
    source, target, dead = kafka.new_topic(), kafka.new_topic(), kafka.new_topic()
    for key, value in ((b"gone", None), (b"empty", b"")):
        kafka.send(source, [value], key=key)
    declaration = {
        "top": f'dead_letter_topic = "{dead}"',
        "connection": 'payload_format = "raw_bytes"',
        "schema": None,
        "on_error": "dlq",
        "target": target,
        "sql": "SELECT value, _key, 1 / _partition AS share FROM source",
        "writing": 'message_key_column = "_key"',
    }
    assert topics.run(source, **declaration).dlq_rows == {"transform": 2}
    assert [(m.key(), m.value()) for m in kafka.read(dead)] == [(b"gone", None), (b"empty", b"")]
    (spec,) = load_toml(text=topics.toml(source, **declaration | {"sql": "SELECT value, _key FROM source"}))
    assert replay(spec).succeeded == 2
    assert {m.key(): m.value() for m in kafka.read(target)} == {b"gone": None, b"empty": b""}


def test_a_topic_that_cannot_be_is_told(kafka: Kafka, tmp_path: Path, orders: Orders) -> None:
    source = kafka.new_topic()
    with pytest.raises(TopicNotFound, match='dead_letter_topic: there is no topic "nowhere"'):
        Topics(kafka, tmp_path).run(source, on_error="dlq", top='dead_letter_topic = "nowhere"')
    small = kafka.new_topic(max_message_bytes="2000")
    kafka.send(source, ["x" * 1900])
    with pytest.raises(KafkaRefused, match=f"could not be sent to topic {small}: .*too large"):
        Topics(kafka, tmp_path).run(source, on_error="dlq", top=f'dead_letter_topic = "{small}"')
    with pytest.raises(DeclarationError, match="neither a source nor a target is kafka"):
        orders.run_text('dead_letter_topic = "nowhere"\n' + orders.toml(on_error="dlq"))
