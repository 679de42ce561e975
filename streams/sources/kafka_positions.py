"""Where a Kafka source begins and where a range of it ends: from what people write to an offset for every partition."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from ematix_flow.connections import KafkaConnection
from ematix_flow.errors import UsageError
from ematix_flow.sinks.kafka_client import asked
from ematix_flow.specs.position import Position
from ematix_flow.streams.sources.kafka_topics import Positions, check_nothing_is_lost

if TYPE_CHECKING:
    from confluent_kafka import Consumer

There = Mapping[str, Mapping[int, tuple[int, int]]]
"""By topic and partition, the first offset and the one after the last."""
_SECONDS = 10.0


def begin_at(position: Position, there: There, connection: KafkaConnection, user: str, *, strict: bool) -> Positions:
    """`strict`: that offsets are gone is told. A partition that ends earlier is read from its end on."""
    wanted = _offsets(position, there, connection, user, unnamed="earliest")
    if strict:
        ended = {t: {n: min(o, there[t][n][1]) for n, o in of.items()} for t, of in wanted.items()}
        check_nothing_is_lost(ended, there, user)
    return _within(wanted, there)


def end_before(position: Position, there: There, connection: KafkaConnection, user: str) -> Positions:
    """The first offsets that are no longer in the range; never beyond what is there now."""
    return _within(_offsets(position, there, connection, user, unnamed="latest"), there)


def _within(wanted: Positions, there: There) -> Positions:
    return {t: {n: min(max(o, there[t][n][0]), there[t][n][1]) for n, o in of.items()} for t, of in wanted.items()}


def _offsets(position: Position, there: There, connection: KafkaConnection, user: str, *, unnamed: str) -> Positions:
    """`unnamed` is the end that stands for partitions without an offset of their own."""
    for topic, number in position.offsets:
        if not any(number in of for name, of in there.items() if topic in (None, name)):
            known = ", ".join(f"{name}/0 to {len(of) - 1}" for name, of in there.items()) or "none"
            raise UsageError(
                f"{user}: there is no partition {number if topic is None else f'{topic}/{number}'}",
                next_step=f"name some of these: {known}",
            )
    at = _by_time(position.time, there, connection) if position.time else {}

    def one(topic: str, number: int) -> int:
        if position.time is not None:
            return at[topic, number]
        if position.offset is not None:
            return position.offset
        named = position.offsets.get((topic, number), position.offsets.get((None, number)))
        return there[topic][number][(position.end or unnamed) == "latest"] if named is None else named

    return {topic: {number: one(topic, number) for number in of} for topic, of in there.items()}


def _by_time(time: datetime, there: There, connection: KafkaConnection) -> dict[tuple[str, int], int]:
    """The first record of each partition that is not older; its end if there is none."""
    from confluent_kafka import TopicPartition

    millis = -(-int(time.timestamp() * 1_000_000) // 1000)
    wanted = [TopicPartition(topic, number, millis) for topic, of in there.items() for number in of]

    def found(consumer: Consumer) -> list[TopicPartition]:
        return list(consumer.offsets_for_times(wanted, timeout=_SECONDS)) if wanted else []

    return {
        (one.topic, one.partition): one.offset if one.offset >= 0 else there[one.topic][one.partition][1]
        for one in asked(connection, found)
    }
