"""Kafka as a source, against a real broker."""

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ematix_flow import run_pipeline
from ematix_flow.errors import FlowError, UsageError
from ematix_flow.ops.metrics import Metrics
from ematix_flow.result import RunResult
from ematix_flow.sinks.kafka_client import KafkaUnavailable, TopicNotFound
from ematix_flow.state.dead_letters import DeadLetters
from ematix_flow.state.home import dead_letters_of
from ematix_flow.streams.failures import BadRowError
from ematix_flow.streams.lagging import lag_of
from ematix_flow.streams.run import run_spec
from ematix_flow.streams.runner import BatchReport
from ematix_flow.streams.sources import kafka_identity
from ematix_flow.streams.sources.kafka_topics import DataLost
from ematix_flow.toml import load_toml
from tests.services.kafka import Kafka
from tests.topics import Topics, numbered
from tests.waiting import wait_for

pytestmark = pytest.mark.usefixtures("spark")

AT = datetime(2026, 3, 1, 8, 30, tzinfo=UTC)
MILLIS = int(AT.timestamp() * 1000)


@pytest.fixture
def topics(kafka: Kafka, tmp_path: Path) -> Topics:
    return Topics(kafka, tmp_path)


@pytest.mark.parametrize("backlog", [1, 100_000])
def test_records_become_rows_once_with_what_kafka_knows_of_them(
    topics: Topics, backlog: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether there are few records to read or many, for which Spark asks Python."""
    monkeypatch.setattr("ematix_flow.streams.sources.kafka._BACKLOG", backlog)
    kafka = topics.kafka
    topic, group = kafka.new_topic(2), f"readers-of-orders-{backlog}"
    kafka.send(topic, numbered([1]), key="k", partition=0, headers=[("h", b"v")], timestamp=MILLIS)
    kafka.send(topic, ['{"id": 2, "amount": 1.0, "unknown": []}', b"\xff{", None], partition=1, timestamp=MILLIS)
    declaration = {
        "connection": f'group_id = "{group}"',
        "sql": "SELECT *, _event_ts AS seen, CAST(_key AS string) AS k, CAST(_headers[0].value AS string) AS h, "
        "concat_ws('/', _topic, _partition, _offset) AS place, _timestamp AS t FROM source",
        "on_error": "dlq",
        "reading": "max_rows_per_batch = 2",
    }
    result = topics.run(topic, **declaration)
    assert (result.rows_consumed, result.rows_written, result.dlq_rows) == (4, {"orders": 2}, {"decode": 2})
    assert result.batches == 2
    found = topics.in_database("SELECT id, amount, seen, k, h, place, t FROM orders ORDER BY id")
    assert [(*row[:2], row[2].astimezone(UTC), *row[3:6]) for row in found] == [
        (1, 0.5, AT, "k", "v", f"{topic}/0/0"),
        (2, 1.0, AT, None, None, f"{topic}/1/0"),
    ]
    assert len(topics.in_database()[0]) == 7  # `*` is the payload alone
    letters = DeadLetters(dead_letters_of("orders"))
    assert [(one.position, one.payload, one.event_ts, one.error) for one in letters.all()] == [
        (f"{topic}/1/1", b"\xff{", AT, "not UTF-8 text (byte 0)"),
        (f"{topic}/1/2", None, AT, "the record has no value: it is a tombstone"),
    ]
    letters.close()
    assert kafka.committed(group, topic) == {0: 1, 1: 3}

    # Records that are sent later, and a partition that is added later, are found.
    kafka.add_partitions(topic, 3)
    kafka.send(topic, numbered([3]), partition=2)
    assert topics.run(topic, **declaration).rows_consumed == 1
    assert topics.run(topic, **declaration).rows_consumed == 0
    assert [row[0] for row in topics.in_database("SELECT id FROM orders ORDER BY id")] == [1, 2, 3]
    assert kafka.committed(group, topic) == {0: 1, 1: 3, 2: 1}


def test_columns_are_inferred_once_and_bytes_are_turned_into_records(topics: Topics) -> None:
    topic = topics.kafka.new_topic()
    assert topics.run(topic, schema=None).batches == 0
    topics.kafka.send(topic, ['{"id": 1,\n "name": "a"}', "broken", *({"id": i, "name": "b"} for i in range(2, 12))])
    declaration = {"schema": None, "on_error": "drop", "top": "batch_bytes = 100"}
    result = topics.run(topic, **declaration)
    assert (result.rows_written, result.dropped_rows) == ({"orders": 11}, {"decode": 1})
    assert 2 <= result.batches <= 4
    topics.kafka.send(topic, [{"id": "later", "name": "c"}, {"id": 12, "name": "c", "new": 1}])
    assert topics.run(topic, **declaration).dropped_rows == {"decode": 1}
    assert topics.in_database("SELECT count(*), max(id) FROM orders") == [(12, 12)]


@pytest.mark.slow
def test_a_list_and_a_pattern_are_several_topics(topics: Topics) -> None:
    kafka = topics.kafka
    one, two = kafka.new_topic(), kafka.new_topic()
    kafka.send(one, [b"\x00\x01", None])
    kafka.send(two, [b"2"])
    raw = {"connection": 'payload_format = "raw_bytes"', "schema": None}
    topics.run(f"{one}, {two}", **raw, sql="SELECT value, _topic AS t FROM source")
    assert sorted(topics.in_database("SELECT t, value FROM orders"), key=str) == sorted(
        [(one, b"\x00\x01"), (one, None), (two, b"2")], key=str
    )
    assert topics.run(f"({one}|{two}).*", **raw, name="by_pattern").rows_consumed == 3
    # A topic that appears later belongs to the pattern, too.
    kafka.new_topic(name=f"{one}-more")
    kafka.send(f"{one}-more", [b"3"])
    assert topics.run(f"({one}|{two}).*", **raw, name="by_pattern").rows_consumed == 1


def test_what_is_not_there_is_told_in_words(topics: Topics) -> None:
    kafka = topics.kafka
    topic = kafka.new_topic()
    with pytest.raises(TopicNotFound, match=f"source '{topic}x': there is no topic \"{topic}x\"") as missing:
        topics.run(f"{topic}x")
    assert f'did you mean "{topic}"?' in missing.value.next_step
    assert not missing.value.transient
    kafka.send(topic, [{"id": "x"}])
    with pytest.raises(BadRowError, match=f"topic {topic} partition 0 offset 0: id should be bigint"):
        topics.run(topic)
    with pytest.raises(FlowError, match="no pattern"):
        topics.run("(orders")
    with pytest.raises(FlowError, match='event_time_column: column "paid" is boolean'):
        topics.run(topic, name="timed", schema="paid boolean", reading='event_time_column = "paid"')


@pytest.mark.slow
def test_latest_begins_after_what_is_there(topics: Topics) -> None:
    topic = topics.kafka.new_topic()
    topics.kafka.send(topic, numbered([1, 2]))
    late = {"connection": 'auto_offset_reset = "latest"'}
    assert topics.run(topic, **late).rows_consumed == 0
    topics.kafka.send(topic, numbered([3]))
    assert topics.run(topic, **late).rows_consumed == 1
    assert topics.in_database("SELECT id FROM orders") == [(3,)]


@pytest.mark.slow
def test_a_pipeline_begins_where_it_is_told(topics: Topics) -> None:
    kafka = topics.kafka
    topic = kafka.new_topic(2)
    for number in range(2):
        for i in range(4):
            kafka.send(topic, numbered([10 * number + i]), partition=number, timestamp=MILLIS + 1000 * i)

    def ids(start: str, name: str) -> list[int]:
        topics.database = topics.folder / f"{name}.db"
        topics.run(topic, reading=f"start = {start}", name=name)
        assert topics.run(topic, reading=f"start = {start}", name=name).rows_consumed == 0
        return [row[0] for row in topics.in_database("SELECT id FROM orders ORDER BY id")]

    assert ids(f'"{topic}/0=3, {topic}/1=2"', "by_partition") == [3, 12, 13]
    assert ids('"1=3"', "one_partition") == [0, 1, 2, 3, 13]
    assert ids("3", "by_offset") == [3, 13]
    assert ids("2026-03-01T08:30:02Z", "by_time") == [2, 3, 12, 13]
    assert ids('"2026-03-01 08:30:02.5"', "between") == [3, 13]
    with pytest.raises(UsageError, match="there is no partition 7"):
        ids('"7=1"', "unknown")
    kafka.truncate(topic, before=2)
    with pytest.raises(DataLost, match=f"topic {topic} partition 0: offset 1 is gone, the first one there is 2"):
        ids("1", "gone")


@pytest.mark.slow
def test_a_range_is_read_beside_the_pipeline(topics: Topics) -> None:
    kafka = topics.kafka
    topic, group = kafka.new_topic(2), "beside"
    for i in range(8):
        kafka.send(topic, numbered([i]), partition=i % 2, timestamp=MILLIS + 1000 * i)
        if i == 4:
            kafka.send(topic, ["broken"], partition=0, timestamp=MILLIS + 4500)
    declaration = {"connection": f'group_id = "{group}"', "on_error": "dlq", "name": "ranged"}
    text = topics.toml(topic, **declaration)

    def backfill(from_: Any = None, to: Any = None) -> RunResult:
        return run_pipeline(config_str=text, bounded=True, from_=from_, to=to)

    # Before it has ever run itself, and again: the same records, a second time.
    for _ in range(2):
        result = backfill(AT + timedelta(seconds=2), "2026-03-01T08:30:05Z")
        assert (result.rows_written, result.dlq_rows) == ({"orders": 3}, {"decode": 1})
    assert kafka.committed(group, topic) == {}
    letters = DeadLetters(dead_letters_of("ranged"))
    assert [one.payload for one in letters.all()] == [b"broken"]
    letters.close()
    assert topics.run(topic, **declaration).rows_consumed == 9
    assert kafka.committed(group, topic) == {0: 5, 1: 4}
    assert backfill("0=1, 1=1", "2").rows_consumed == 2
    assert backfill(to="1=1").rows_consumed == 6
    assert backfill("latest").rows_consumed == 0
    # What comes after the range is not read.
    text = text.replace("[transform]", "max_rows_per_batch = 2\n[transform]").replace(
        str(topics.database), str(topics.database.with_name("elsewhere.db"))
    )
    assert (few := backfill("0=0, 1=0", "1")).rows_consumed == 2
    assert few.batches < 4
    assert topics.run(topic, **declaration).rows_consumed == 0
    counts = "SELECT id, count(*) FROM orders GROUP BY id ORDER BY id"
    assert topics.in_database(counts) == [(0, 2), (1, 2), (2, 5), (3, 4), (4, 4), (5, 1), (6, 2), (7, 1)]


@pytest.mark.slow
def test_two_sources_of_one_topic_have_positions_of_their_own(topics: Topics) -> None:
    kafka = topics.kafka
    topic, group = kafka.new_topic(), "slow-and-fast"
    kafka.send(topic, numbered(range(4)))
    cluster = f'kind = "kafka"\nbootstrap_servers = "{kafka.bootstrap}"\nquery = "{topic}"\nschema = "id long"'
    text = (
        f'pipeline_name = "twice"\n[[sources]]\nname = "slow"\n{cluster}\ngroup_id = "slow"\nmax_rows_per_batch = 1\n'
        f'[[sources]]\nname = "fast"\n{cluster}\ngroup_id = "{group}"\n'
        f'[target]\nkind = "duckdb"\npath = "{topics.database}"\ntable = "orders"\n'
    )
    seen: list[tuple[dict[int, int], dict[int, int]]] = []
    (spec,) = load_toml(text=text)

    def look(_: BatchReport) -> None:
        seen.append((kafka.committed("slow", topic), kafka.committed(group, topic)))

    assert run_spec(spec, bounded=True, on_batch=look).rows_consumed == 8
    assert seen == [({0: i}, {0: 4}) for i in range(1, 5)]
    # Rows that are gone are missed by none of them, as each has read them all.
    kafka.truncate(topic, before=4)
    assert run_pipeline(config_str=text, bounded=True).rows_consumed == 0


def test_records_that_are_gone_stop_the_pipeline_unless_they_may_be_skipped(topics: Topics) -> None:
    kafka = topics.kafka
    topic = kafka.new_topic()
    kafka.send(topic, numbered(range(3)))
    topics.run(topic)
    kafka.send(topic, numbered(range(3, 10)))
    kafka.truncate(topic, before=6)
    with pytest.raises(DataLost, match=f"topic {topic} partition 0: offsets 3 to 5 are gone, the first one there is 6"):
        topics.run(topic)
    assert topics.run(topic, reading='on_data_loss = "skip"').rows_consumed == 4
    kafka.delete_topic(topic)
    with pytest.raises(TopicNotFound):
        topics.run(topic)
    kafka.new_topic(name=topic)
    kafka.send(topic, numbered([100]))
    with pytest.raises(DataLost, match=f"topic {topic} partition 0 ends at offset 1, but was read up to 10"):
        topics.run(topic)
    # By now it is as long as the old one was.
    kafka.send(topic, numbered(range(101, 111)))
    words = "partition 0 was read up to offset 10, and then its topic was made anew: offsets 0 to 9 were not read"
    for _ in range(2):
        with pytest.raises(DataLost, match=words):
            topics.run(topic)
    assert topics.run(topic, reading='on_data_loss = "skip"').rows_consumed == 1
    assert topics.run(topic).rows_consumed == 0


def test_a_topic_that_is_made_anew_while_it_is_read_is_told(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_identity, "_BETWEEN_SECONDS", 0)
    kafka = topics.kafka
    topic = kafka.new_topic()
    kafka.send(topic, numbered(range(4)))
    (spec,) = load_toml(text=topics.toml(topic, reading="max_rows_per_batch = 2"))

    def replace_it(report: BatchReport) -> None:
        if report.number == 0:
            kafka.delete_topic(topic)
            kafka.new_topic(name=topic)
            kafka.send(topic, numbered(range(10, 14)))

    with pytest.raises(DataLost, match=f"topic {topic} partition 0 .* offsets 0 to 1 were not read"):
        run_spec(spec, bounded=True, on_batch=replace_it)


def test_only_committed_transactions_are_read(topics: Topics) -> None:
    from confluent_kafka import Producer

    topic = topics.kafka.new_topic()
    producer = Producer(topics.kafka.client(**{"transactional.id": topic}))
    producer.init_transactions()
    for number, end in enumerate(
        (producer.commit_transaction, producer.abort_transaction, producer.commit_transaction)
    ):
        producer.begin_transaction()
        producer.produce(topic, f'{{"id": {number}}}')
        producer.flush()
        end()
    topics.run(topic)
    assert topics.in_database("SELECT id FROM orders ORDER BY id") == [(0,), (2,)]


@pytest.mark.slow
def test_a_cluster_that_is_away_may_come_back(topics: Topics) -> None:
    topics.kafka = Kafka("127.0.0.1:1")
    with pytest.raises(KafkaUnavailable, match=r"127\.0\.0\.1:1 does not answer") as away:
        topics.run("orders")
    assert away.value.transient


def test_the_lag_is_what_no_committed_batch_has(topics: Topics) -> None:
    kafka = topics.kafka
    topic = kafka.new_topic(2)
    kafka.send(topic, numbered([1, 2]), partition=0)
    topics.run(topic)
    # Kafka may not answer in time while other tests run.
    lag = wait_for(lambda: lag_of("orders"))
    assert (lag.records, lag.seconds) == ({(topic, 0): 0, (topic, 1): 0}, 0)
    kafka.send(topic, numbered(range(5)), partition=1, timestamp=int((time.time() - 60) * 1000))
    (spec,) = load_toml(text=topics.toml(topic))
    metrics = Metrics(spec)
    assert metrics.value("consumer_lag", topic=topic, partition="1") == 5
    assert 60 <= (metrics.value("lag_seconds") or 0) < 120


@pytest.mark.slow
def test_records_that_a_table_refuses_are_known_by_their_position(topics: Topics) -> None:
    kafka = topics.kafka
    topic = kafka.new_topic(3)
    for number, ids in enumerate(([1, 2, 3], [4, 2], [5])):
        kafka.send(topic, [{"id": i, "amount": number} for i in ids], partition=number)
    kafka.send(topic, numbered([5]), partition=2)
    result = topics.run(topic, on_error="dlq", writing='primary_key = ["id"]')
    assert (result.rows_written, result.dlq_rows) == ({"orders": 5}, {"write": 2})
    letters = DeadLetters(dead_letters_of("orders"))
    assert sorted(one.position for one in letters.all()) == [f"{topic}/1/1", f"{topic}/2/1"]
    letters.close()
    assert topics.in_database("SELECT id, amount FROM orders ORDER BY id") == [(1, 0), (2, 0), (3, 0), (4, 1), (5, 2)]
