"""How large a record may be is for its topic to say, against a real broker."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message, Producer

from ematix_flow.sinks.kafka_login import KafkaRefused
from ematix_flow.state.dead_letters import DeadLetters
from ematix_flow.state.home import dead_letters_of
from ematix_flow.streams.failures import BadRowError
from tests.services.kafka import Kafka
from tests.topics import Topics, numbered

pytestmark = pytest.mark.usefixtures("spark")

EACH_WAY = pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
# Of one row, more than fits.
NOTES = "SELECT id, repeat('x', CASE WHEN id = 7 THEN 3000 ELSE 100 END) AS note FROM source"


@pytest.fixture
def topics(kafka: Kafka, tmp_path: Path) -> Topics:
    return Topics(kafka, tmp_path)


def top(delivery: str) -> str:
    return f'delivery = "{delivery}"'


@EACH_WAY
def test_a_record_of_megabytes_goes_where_its_topic_takes_it(topics: Topics, delivery: str) -> None:
    kafka = topics.kafka
    source, wide = kafka.new_topic(), kafka.new_topic(max_message_bytes="4000000")
    kafka.send(source, numbered([1]))
    sql = "SELECT id, repeat('x', 3000000) AS note FROM source"
    assert topics.run(source, sql=sql, target=wide, top=top(delivery)).rows_written == {wide: 1}
    assert [len(row["note"]) for row in kafka.values(wide)] == [3_000_000]


@EACH_WAY
@pytest.mark.parametrize("rows", [500, 12_000])
def test_one_that_is_too_large_is_a_bad_row(topics: Topics, delivery: str, rows: int) -> None:
    """The others land, though all of them together are more than the topic takes at once; of few rows the driver sends
    them, of many Spark's tasks."""
    kafka = topics.kafka
    source, small = kafka.new_topic(), kafka.new_topic(max_message_bytes="2000")
    kafka.send(source, numbered(range(rows)))
    result = topics.run(source, sql=NOTES, target=small, on_error="dlq", top=top(delivery))
    assert (result.rows_written, result.dlq_rows) == ({small: rows - 1}, {"write": 1})
    found = [row["id"] for row in kafka.values(small)]
    assert found == [i for i in range(rows) if i != 7]
    letters = DeadLetters(dead_letters_of("orders"))
    (letter,) = letters.all()
    assert (letter.position, letter.payload) == (f"{source}/0/7", b'{"id": 7, "amount": 3.5}')
    assert letter.error == f"the record has 3088 bytes, and topic {small} takes no more than 2000 (max.message.bytes)"
    letters.close()
    kafka.send(source, numbered([7, rows]))
    again = topics.run(source, sql=NOTES, target=small, on_error="drop", top=top(delivery))
    assert (again.rows_written, again.dropped_rows) == ({small: 1}, {"write": 1})


@EACH_WAY
def test_it_stops_a_pipeline_that_does_not_say_otherwise(topics: Topics, delivery: str) -> None:
    kafka = topics.kafka
    source, small = kafka.new_topic(), kafka.new_topic(max_message_bytes="2000")
    kafka.send(source, numbered(range(10)))
    with pytest.raises(BadRowError, match=f"write: topic {source} partition 0 offset 7: the record has 3088 bytes"):
        topics.run(source, sql=NOTES, target=small, top=top(delivery))
    assert kafka.values(small) == []


def test_among_many_rows_that_come_as_one(topics: Topics) -> None:
    kafka, rows = topics.kafka, 120_000
    source, small = kafka.new_topic(2), kafka.new_topic(max_message_bytes="2000")
    for i in range(rows):
        kafka.produce(source, {"id": i, "note": "x" * (3000 if i == 77_777 else 10)}, partition=i % 2)
    kafka.flush()
    schema = "id long, note string"
    result = topics.run(source, schema=schema, target=small, on_error="dlq", top=top("exactly_once"))
    assert (result.rows_written, result.dlq_rows) == ({small: rows - 1}, {"write": 1})
    assert {row["id"] for row in kafka.values(small)} == {*range(rows)} - {77_777}


@EACH_WAY
def test_each_topic_has_its_own_limit(topics: Topics, delivery: str) -> None:
    kafka = topics.kafka
    source, small, wide = kafka.new_topic(), kafka.new_topic(max_message_bytes="2000"), kafka.new_topic()
    kafka.send(source, numbered(range(10)))
    sql = f"SELECT id, repeat('x', 3000) AS note, CASE id WHEN 3 THEN '{small}' ELSE '{wide}' END AS _to FROM source"
    writing = 'topic_column = "_to"'
    result = topics.run(source, sql=sql, target=wide, on_error="dlq", writing=writing, top=top(delivery))
    assert (result.rows_written, result.dlq_rows) == ({wide: 9}, {"write": 1})
    assert (len(kafka.values(wide)), kafka.values(small)) == (9, [])


@EACH_WAY
def test_what_is_compressed_only_kafka_can_judge(topics: Topics, delivery: str) -> None:
    kafka = topics.kafka
    source, small = kafka.new_topic(), kafka.new_topic(max_message_bytes="2000")
    kafka.send(source, numbered(range(10)))
    declaration = {"target": small, "connection": 'extra = {"compression.type" = "gzip"}', "top": top(delivery)}
    assert topics.run(source, sql=NOTES, **declaration).rows_written == {small: 10}
    kafka.send(source, numbered([10]))
    sql = "SELECT id, concat_ws('', transform(sequence(1, 300), n -> sha2(string(n), 256))) AS note FROM source"
    with pytest.raises(KafkaRefused, match=r"larger|too large") as refused:
        topics.run(source, sql=sql, **declaration)
    assert refused.value.next_step == "raise max.message.bytes of the topic, or write less per row"


def test_the_largest_record_is_the_one_that_kafka_takes(topics: Topics) -> None:
    """To the byte, with a key and headers, and without them."""
    kafka = topics.kafka
    source, small = kafka.new_topic(), kafka.new_topic(max_message_bytes="2000")
    kafka.send(source, ["x"])
    more = "map('one', 'a', 'two', repeat('b', 70)) AS _more"
    sql = f"SELECT repeat('x', {{bytes}}) AS value, {{key}} AS _key, {more} FROM source"
    declaration = {"connection": 'payload_format = "raw_bytes"', "schema": None, "target": small, "on_error": "drop"}
    declaration |= {"top": top("exactly_once")}
    for key in ("NULL", "repeat('k', 100)"):
        for headers in (False, True):
            beside = {"key": None if key == "NULL" else "k" * 100}
            beside |= {"headers": [("one", "a"), ("two", "b" * 70)] if headers else []}
            largest = next(size for size in range(2000, 0, -1) if taken(kafka, small, "x" * size, **beside))
            writing = 'message_key_column = "_key"\n' + ('headers_column = "_more"' if headers else "")
            for size, lands in ((largest, 1), (largest + 1, 0)):
                name = f"{key[:3]}{headers}{lands}"
                text = sql.format(bytes=size, key=key)
                result = topics.run(source, name=name, sql=text, writing=writing, **declaration)
                assert (result.rows_written, result.dropped_rows) == ({small: lands}, {} if lands else {"write": 1})


def taken(kafka: Kafka, topic: str, value: str, **beside: object) -> bool:
    lands = []

    def told(error: KafkaError | None, _: Message) -> None:
        lands.append(error is None)

    producer = Producer(kafka.client())
    producer.produce(topic, value, on_delivery=told, **beside)
    producer.flush()
    return lands == [True]
