"""Records of a topic once more: what a dead letter does not keep of the record that it was."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache, partial
from itertools import islice
from typing import TYPE_CHECKING, cast

from ematix_flow.config import connect
from ematix_flow.connections import KafkaConnection
from ematix_flow.sinks.kafka_client import asked
from ematix_flow.specs import PipelineSpec
from ematix_flow.state.dead_letters import DeadLetter
from ematix_flow.streams.envelope import Carried

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

_ASKED_FOR = {"_key", "_headers", "_timestamp"}
_LETTERS_AT_ONCE = 1000
# Bad records often come one after the other; to read on for so many is quicker than to begin elsewhere.
_NEAR = 500
_ANSWER_SECONDS = 10.0
_NOWHERE = 1 << 62

_Place = tuple[str, int, int]


def with_records(letters: Iterable[DeadLetter], spec: PipelineSpec) -> Iterator[DeadLetter]:
    """With key, headers and time of the record, as long as its topic has it, for pipelines that name these."""
    clusters: dict[str, KafkaConnection] = {}
    if _ASKED_FOR & Carried.by(spec).named:
        for name, source in zip(spec.source_names, spec.sources, strict=True):
            if isinstance(cluster := connect(source.connection), KafkaConnection):
                clusters[name] = cluster
    waiting = iter(letters)
    while some := list(islice(waiting, _LETTERS_AT_ONCE)):
        found: dict[str, dict[_Place, Message]] = {}
        for name, cluster in clusters.items():
            found[name] = _records(cluster, sorted(_place(one.position) for one in some if one.source == name))
        for letter in some:
            there = found.get(letter.source)
            yield letter if there is None else _completed(letter, there.get(_place(letter.position)))


def _place(position: str) -> _Place:
    topic, partition, offset = position.rsplit("/", 2)
    return topic, int(partition), int(offset)


def _completed(letter: DeadLetter, record: Message | None) -> DeadLetter:
    # A topic that was made anew has other records at the same places.
    if record is None or record.value() != letter.payload:
        return letter
    headers = cast("list[tuple[str, bytes | None]]", record.headers() or [])
    arrived = datetime.fromtimestamp(record.timestamp()[1] / 1000, UTC)
    return replace(letter, key=record.key(), headers=tuple(headers), arrived=arrived)


def _records(cluster: KafkaConnection, places: list[_Place]) -> dict[_Place, Message]:
    """Those that are still there."""
    from confluent_kafka import TopicPartition

    def found(consumer: Consumer) -> dict[_Place, Message]:
        records: dict[_Place, Message] = {}
        following: _Place | None = None
        kept = cache(partial(_kept, consumer))
        for topic, number, offset in places:
            if offset not in kept(topic, number):
                continue
            near = following is not None and following[:2] == (topic, number) and 0 <= offset - following[2] < _NEAR
            if not near:
                consumer.assign([TopicPartition(topic, number, offset)])
            found_at, record = _first_since(consumer, offset)
            following = topic, number, found_at + 1
            if record is not None and found_at == offset:
                records[topic, number, offset] = record
        return records

    return asked(cluster, found) if places else {}


def _kept(consumer: Consumer, topic: str, number: int) -> range:
    """The offsets that a partition has."""
    from confluent_kafka import KafkaException, TopicPartition

    try:
        return range(*consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=_ANSWER_SECONDS))
    except KafkaException:
        # The topic is gone; if all of Kafka were, the pipeline would find out.
        return range(0)


def _first_since(consumer: Consumer, offset: int) -> tuple[int, Message | None]:
    """Of the partition that is being read, with its offset."""
    deadline = time.monotonic() + _ANSWER_SECONDS
    while time.monotonic() < deadline:
        record = consumer.poll(_ANSWER_SECONDS)
        if record is not None and record.error() is None and (there := int(record.offset() or 0)) >= offset:
            return there, record
    return _NOWHERE, None
