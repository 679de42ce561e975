"""What a Kafka cluster has of the topics of a source, asked from the driver: offsets, samples, and what is lost."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ematix_flow.connections import KafkaConnection
from ematix_flow.errors import FlowError
from ematix_flow.sinks.kafka_client import asked, missing_topic, topics
from ematix_flow.specs.topics import is_pattern, topic_names
from ematix_flow.streams.source_order import place_of

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

Positions = dict[str, dict[int, int]]
"""By topic and partition, the offset of the next record."""

# Enough to meet the rare columns and to know the size of a record, little enough to read at every start.
_SAMPLED_RECORDS = 10_000
_SAMPLE_SECONDS = 10.0
_ASK_SECONDS = 10.0
# In Spark's words, and in Java's.
_LOSSES = (
    "KAFKA_DATA_LOSS", "Some data may have been lost", "LOST_TOPIC_PARTITIONS_IN_END_OFFSET",
    "END_OFFSET_HAS_GREATER_OFFSET_FOR_TOPIC_PARTITION", "RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET",
    "UnknownTopicOrPartitionException", "KafkaIllegalStateException",
)  # fmt: skip


class DataLost(FlowError):
    """Records of a Kafka topic were gone before they were read."""

    code = "data-lost"

    def __init__(self, words: str) -> None:
        super().__init__(
            words,
            next_step='put them back, or set on_data_loss = "skip" in the source to go on with what is there; '
            "`flow rewind` starts all over",
        )

    @classmethod
    def found_in(cls, error: BaseException) -> DataLost | None:
        """From what ended a query; None if it was something else."""
        text = str(error)
        if not any(condition in text for condition in _LOSSES):
            return None
        reason = re.search(r"Reason:\s*(.+?)\s*(?:with consumer group|SQLSTATE|\n\n|$)", text, re.DOTALL)
        said = reason[1] if reason else next(line for line in text.splitlines() if any(c in line for c in _LOSSES))
        return cls(f"records of a topic are gone before they were read: {' '.join(said.split())}")


@dataclass(frozen=True)
class Subscription:
    """The topics that `query` means."""

    query: str

    @property
    def is_pattern(self) -> bool:
        return is_pattern(self.query)

    @property
    def names(self) -> list[str]:
        return topic_names(self.query)

    @property
    def spark_option(self) -> dict[str, str]:
        return {"subscribePattern": self.query} if self.is_pattern else {"subscribe": ",".join(self.names)}

    def takes(self, topic: str) -> bool:
        return bool(re.fullmatch(self.query, topic)) if self.is_pattern else topic in self.names

    def among(self, known: Mapping[str, int], user: str) -> dict[str, int]:
        """Those that are there. A pattern may match none yet; a name has to be there."""
        if not self.is_pattern:
            for name in self.names:
                if name not in known:
                    raise missing_topic(name, known, user)
        return {topic: partitions for topic, partitions in known.items() if self.takes(topic)}


def ranges(connection: KafkaConnection, wanted: Subscription, user: str) -> dict[str, dict[int, tuple[int, int]]]:
    """By topic and partition, the first offset that is there and the one after the last."""
    from confluent_kafka import TopicPartition

    def offsets(consumer: Consumer) -> dict[str, dict[int, tuple[int, int]]]:
        found = wanted.among(topics(consumer), user)
        return {
            topic: {
                number: consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=_ASK_SECONDS)
                for number in range(partitions)
            }
            for topic, partitions in found.items()
        }

    return asked(connection, offsets, **{"isolation.level": "read_committed"})


def sample(connection: KafkaConnection, there: Mapping[str, Mapping[int, tuple[int, int]]]) -> list[Message]:
    """The oldest records of each partition."""
    from confluent_kafka import TopicPartition

    filled = [
        TopicPartition(topic, number, low)
        for topic, partitions in there.items()
        for number, (low, high) in partitions.items()
        if low < high
    ]
    each = max(1, _SAMPLED_RECORDS // max(1, len(filled)))

    def records(consumer: Consumer) -> list[Message]:
        found: list[Message] = []
        for partition in filled:
            consumer.assign([partition])
            found += _first(consumer, each)
        return found

    return asked(connection, records, **{"isolation.level": "read_committed", "enable.partition.eof": True})


def _first(consumer: Consumer, most: int) -> list[Message]:
    """Of the one partition that is assigned."""
    found: list[Message] = []
    deadline = time.monotonic() + _SAMPLE_SECONDS
    while len(found) < most and time.monotonic() < deadline:
        for message in consumer.consume(most - len(found), 0.2):
            if message.error() is not None:
                return found
            found.append(message)
    return found


@dataclass(frozen=True)
class Notes:
    """What Spark has written down of the positions of one source."""

    checkpoint: Path
    source: str
    wanted: Subscription

    def end_of(self, batch: int) -> Positions | None:
        """Where a batch ends; None if it is not planned yet."""
        file = self.checkpoint / "offsets" / str(batch)
        if not file.exists():
            return None
        # A version, facts about the batch, and one line per source.
        lines = file.read_text(encoding="utf-8").splitlines()[2:]
        place = place_of(self.checkpoint, self.source)
        for line in lines if place is None else lines[place : place + 1]:
            positions = positions_in(line)
            if positions and all(self.wanted.takes(topic) for topic in positions):
                return positions
        return None

    def next(self) -> Positions:
        """Where the next batch begins; nothing if that is still to be decided."""
        last = max((int(file.name) for file in (self.checkpoint / "offsets").glob("[0-9]*")), default=None)
        if last is None:
            return {}
        done = last if (self.checkpoint / "commits" / str(last)).exists() else last - 1
        return self.end_of(done) or {}


def check_nothing_is_lost(
    positions: Positions,
    there: Mapping[str, Mapping[int, tuple[int, int]]],
    user: str,
    anew: Collection[str] = (),
) -> None:
    """`anew` are topics that are not those that were read, although they have their names."""
    lost = []
    for topic, partitions in positions.items():
        for number, position in partitions.items():
            held = there.get(topic, {}).get(number)
            place = f"topic {topic} partition {number}"
            if held is None:
                lost.append(f"{place} is gone; it was read up to offset {position}")
            elif position < held[0]:
                several = position + 1 < held[0]
                gone = f"offsets {position} to {held[0] - 1} are gone" if several else f"offset {position} is gone"
                lost.append(f"{place}: {gone}, the first one there is {held[0]}")
            elif position > held[1]:
                lost.append(f"{place} ends at offset {held[1]}, but was read up to {position}: it was made anew")
            elif topic in anew and held[0] < position:
                lost.append(
                    f"{place} was read up to offset {position}, and then its topic was made anew: "
                    f"offsets {held[0]} to {position - 1} were not read"
                )
    if lost:
        raise DataLost(f"{user}: " + "; ".join(lost))


def positions_in(line: str) -> Positions | None:
    try:
        found: Any = json.loads(line)
    except ValueError:
        return None
    if not isinstance(found, dict) or not all(isinstance(of, dict) for of in found.values()):
        return None
    return {topic: {int(number): int(offset) for number, offset in of.items()} for topic, of in found.items()}
