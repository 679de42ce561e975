"""Kafka as a target, against a real broker."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ematix_flow import run_pipeline
from ematix_flow.errors import DeclarationError
from ematix_flow.sinks.kafka_client import TopicNotFound
from ematix_flow.sinks.kafka_login import KafkaRefused
from ematix_flow.state.dead_letters import DeadLetters
from ematix_flow.state.home import dead_letters_of
from ematix_flow.streams.failures import BadRowError
from tests.services.kafka import Kafka
from tests.topics import Topics, numbered

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.usefixtures("spark")


@pytest.fixture
def topics(kafka: Kafka, tmp_path: Path) -> Topics:
    return Topics(kafka, tmp_path)


def test_rows_become_records_with_key_headers_partition_and_topic(topics: Topics) -> None:
    kafka = topics.kafka
    source, one, two = kafka.new_topic(), kafka.new_topic(3), kafka.new_topic()
    kafka.send(source, numbered(range(4)), key="original")
    result = topics.run(
        source,
        target=one,
        sql=f"""
            SELECT id, CASE WHEN amount > 0 THEN amount END AS amount, _key,
              TIMESTAMP '2026-01-01 00:00:00.123456Z' AS seen,
              map('n', string(id)) AS _h, CASE WHEN id < 2 THEN 2 END AS _p, CASE WHEN id = 3 THEN '{two}' END AS _t
            FROM source""",
        writing='message_key_column = "id"\nheaders_column = "_h"\npartition_column = "_p"\ntopic_column = "_t"',
    )
    assert result.rows_written == {one: 4}
    found = kafka.read(one)
    assert sorted((m.key(), m.headers()) for m in found) == [
        (b"0", [("n", b"0")]), (b"1", [("n", b"1")]), (b"2", [("n", b"2")]),
    ]  # fmt: skip
    assert [m.partition() for m in found if m.key() in (b"0", b"1")] == [2, 2]
    assert {m.key(): json.loads(m.value()) for m in found}[b"0"] == {
        "id": 0, "_key": "b3JpZ2luYWw=", "seen": "2026-01-01T00:00:00.123456Z",
    }  # fmt: skip
    assert [json.loads(m.value())["id"] for m in kafka.read(two)] == [3]


@pytest.mark.slow
def test_bytes_pass_as_they_are_with_key_and_headers(topics: Topics) -> None:
    kafka = topics.kafka
    source, target = kafka.new_topic(2), kafka.new_topic(2)
    kafka.send(source, [b"\x00\xff", None], key=b"\x01", headers=[("h", b"\x02"), ("h", b"\x03")])
    topics.run(
        source,
        target=target,
        connection='payload_format = "raw_bytes"',
        schema=None,
        writing='message_key_column = "_key"\nheaders_column = "_headers"\npartition_column = "_partition"',
    )
    before, after = (
        [(m.partition(), m.key(), m.value(), m.headers()) for m in kafka.read(t)] for t in (source, target)
    )
    assert after == before


def test_a_target_that_cannot_work_is_told_in_words(topics: Topics) -> None:
    kafka = topics.kafka
    source, target = kafka.new_topic(), kafka.new_topic()
    kafka.send(source, numbered([1]))
    with pytest.raises(TopicNotFound, match=f"target '{target}x': there is no topic \"{target}x\""):
        topics.run(source, target=f"{target}x")
    with pytest.raises(DeclarationError) as wrong:
        topics.run(source, target=target, writing='message_key_column = "ID"\nheaders_column = "id"')
    assert [str(problem) for problem in wrong.value.problems] == [
        f"target '{target}' message_key_column: found \"ID\", which is no column of the rows; allowed: id, amount; "
        'did you mean "id"?',
        f"target '{target}' headers_column: column \"id\" is bigint; "
        "allowed: a map of texts, or array<struct<key: string, value: binary>>",
    ]
    words = (
        f"topic {source} partition 0 offset 0: it is for partition 7 of topic {target}, which has the partitions 0 to 0"
    )
    with pytest.raises(BadRowError, match=words):
        topics.run(source, target=target, sql="SELECT id, 7 AS p FROM source", writing='partition_column = "p"')
    # All of it was tried with the same batch, which goes at last.
    assert topics.run(source, target=target).rows_written == {target: 1}
    assert Counter(m.value() for m in kafka.read(target)) == {b'{"id":1,"amount":0.5}': 1}


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_a_row_for_a_place_that_is_not_there_is_a_bad_row(topics: Topics, delivery: str) -> None:
    kafka = topics.kafka
    source, target, other = kafka.new_topic(2), kafka.new_topic(2), kafka.new_topic()
    places = [(target, 1), (None, None), ("nowhere", 0), (other, 1), (other, 0), (target, -1), (target, None), ("", 0)]
    for i, (topic, number) in enumerate(places):
        kafka.send(source, [{"id": i, "topic": topic, "number": number}], partition=i % 2)
    result = topics.run(
        source,
        schema="id long, topic string, number int",
        sql="SELECT id, topic AS _to, number AS _number FROM source",
        target=target,
        on_error="dlq",
        writing='topic_column = "_to"\npartition_column = "_number"',
        top=f'delivery = "{delivery}"',
    )
    assert (result.rows_written, result.dlq_rows) == ({target: 4}, {"write": 4})
    assert Counter(row["id"] for row in kafka.values(target)) == Counter([0, 1, 6])
    assert kafka.values(other) == [{"id": 4}]
    letters = DeadLetters(dead_letters_of("orders"))
    assert [(one.position, one.error) for one in letters.all()] == [
        (f"{source}/0/1", 'there is no topic "nowhere"'),
        (f"{source}/1/1", f"it is for partition 1 of topic {other}, which has the partitions 0 to 0"),
        (f"{source}/1/2", f"it is for partition -1 of topic {target}, which has the partitions 0 to 1"),
        (f"{source}/1/3", 'there is no topic ""'),
    ]
    letters.close()


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_extra_properties_are_for_both_ends(topics: Topics, delivery: str) -> None:
    kafka = topics.kafka
    source, target = kafka.new_topic(), kafka.new_topic()
    kafka.send(source, numbered([1]))
    extra = '"linger.ms" = 5, "request.timeout.ms" = 40000, "compression.type" = "gzip", "enable.auto.commit" = false'
    connection, top = f"extra = {{{extra}}}", f'delivery = "{delivery}"'
    assert topics.run(source, target=target, connection=connection, top=top).rows_written == {target: 1}
    if delivery == "at_least_once":
        kafka.send(source, numbered([2]))
        wrong = connection.replace("}", ', "delivery.timeout.ms" = 10}')
        with pytest.raises(KafkaRefused, match=r"does not take its properties: .*delivery\.timeout\.ms"):
            topics.run(source, target=target, connection=wrong, top=top)


ONCE = 'delivery = "exactly_once"'
PER_MINUTE = """
[transform.window]
kind = "tumbling"
duration_ms = 60000
event_time_column = "at"
late_data = "dlq"
[[transform.window.aggregations]]
agg = "count"
as = "rows"
"""


def test_exactly_once_is_a_transaction_per_part_with_its_fence(topics: Topics) -> None:
    kafka = topics.kafka
    source, target = kafka.new_topic(3), kafka.new_topic(2)
    for number in range(3):
        kafka.send(source, numbered(range(number * 10, number * 10 + 10)), key=f"k{number}", partition=number)
    declaration = {
        "target": target,
        "top": ONCE,
        "sql": "SELECT id, _key, _headers FROM source",
        "writing": 'message_key_column = "_key"\nheaders_column = "_headers"',
    }
    assert topics.run(source, **declaration).rows_written == {target: 30}
    kafka.send(source, numbered([30]), partition=0)
    assert topics.run(source, **declaration).rows_written == {target: 1}
    found = kafka.read(target)
    assert Counter(json.loads(m.value())["id"] for m in found) == Counter(range(31))
    by_key = [json.loads(m.value())["id"] for m in found if m.key() == b"k1"]
    assert by_key == list(range(10, 20))


@pytest.mark.parametrize("operator", ["", PER_MINUTE], ids=["stateless", "windowed"])
def test_a_small_batch_keeps_bad_rows_that_are_too_long_to_be_counted(topics: Topics, operator: str) -> None:
    kafka = topics.kafka
    source, target = kafka.new_topic(), kafka.new_topic()
    declaration = {"target": target, "top": ONCE, "on_error": "dlq", "more": operator}
    declaration["schema"] = "id long, at timestamp"
    kafka.send(source, [{"id": 1, "at": "2026-01-01T00:00:30Z"}])
    topics.run(source, **declaration)
    unreadable, late = "x" * 5000, {"id": 2, "at": "2026-01-01T00:00:10Z", "padding": "y" * 5000}
    kafka.send(source, [unreadable, late, {"id": 3, "at": "2026-01-01T00:05:00Z"}])
    result = topics.run(source, **declaration)
    lost = {unreadable.encode(): "decode"} | ({json.dumps(late).encode(): "late"} if operator else {})
    assert result.dlq_rows == Counter(lost.values())
    letters = DeadLetters(dead_letters_of("orders"))
    assert {letter.payload: letter.stage for letter in letters.find()} == lost
    letters.close()
    column = "window_start" if operator else "id"
    starts = ["2026-01-01T00:00:00.000000Z", "2026-01-01T00:05:00.000000Z"]
    assert [row[column] for row in kafka.values(target)] == (starts if operator else [1, 2, 3])


def test_a_batch_of_few_rows_that_are_too_large_for_the_driver(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    kafka = topics.kafka
    source, target = kafka.new_topic(), kafka.new_topic()
    declaration = {"target": target, "top": ONCE, "on_error": "drop", "sql": "SELECT id FROM source WHERE id > 1"}
    kafka.send(source, numbered([1]))
    topics.run(source, **declaration)
    kafka.send(source, [*numbered([0, 2, 3]), "broken"])

    def refused(rows: DataFrame) -> None:
        rows.collect()
        raise RuntimeError("Total size of results is bigger than spark.driver.maxResultSize")

    monkeypatch.setattr("ematix_flow.streams.shaping._collected", refused)
    result = topics.run(source, **declaration)
    assert (result.rows_consumed, result.rows_written, result.dropped_rows) == (4, {target: 2}, {"decode": 1})
    assert [row["id"] for row in kafka.values(target)] == [2, 3]


@pytest.mark.slow
def test_parts_of_several_sources_are_kept_apart_also_if_they_read_the_same_topic(topics: Topics) -> None:
    kafka = topics.kafka
    one, two, target = kafka.new_topic(2), kafka.new_topic(), kafka.new_topic()
    kafka.send(one, numbered([1]), partition=0)
    kafka.send(one, numbered([2]), partition=1)
    kafka.send(two, numbered([3]))
    files = topics.folder / "files"
    files.mkdir()
    (files / "a.jsonl").write_text('{"id": 4}\n')
    cluster = f'kind = "kafka"\nbootstrap_servers = "{kafka.bootstrap}"\n'
    names = {"first": one, "second": two, "again": one}
    sources = [f'[[sources]]\n{cluster}name = "{name}"\nquery = "{topic}"\n' for name, topic in names.items()]
    sources.append(f'[[sources]]\nkind = "object_store_local"\npath = "{files}"\nformat = "json_lines"\nname = "f"\n')
    text = "".join(f'{source}schema = "id long"\n' for source in sources)
    declaration = f'pipeline_name = "all"\n{ONCE}\n{text}[target]\n{cluster}topic = "{target}"\n'
    result = run_pipeline(config_str=declaration, bounded=True)
    assert result.rows_written == {target: 6}
    found = Counter((row["source_name"], row["id"]) for row in kafka.values(target))
    assert found == Counter([("first", 1), ("first", 2), ("second", 3), ("again", 1), ("again", 2), ("f", 4)])
