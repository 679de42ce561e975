"""The lag of a Kafka source: what is in its topics beyond the last committed batch, and for how long."""

from __future__ import annotations

import threading
import time
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ematix_flow.connections import KafkaConnection
from ematix_flow.errors import FlowError
from ematix_flow.sinks.kafka_client import librdkafka_properties, opened, topics
from ematix_flow.streams.lagging import Lag
from ematix_flow.streams.sources.kafka_topics import Notes

if TYPE_CHECKING:
    from confluent_kafka import Consumer, TopicPartition
    from confluent_kafka.admin import AdminClient

# Of one who asks for numbers, who asks again in a while.
_SECONDS = 3.0


class KafkaLag:
    """Clients of its own, because it is asked by another thread than the pipeline's, at any time."""

    def __init__(self, connection: KafkaConnection, notes: Notes) -> None:
        self._connection, self._notes = connection, notes
        self._turn = threading.Lock()

    def __call__(self) -> Lag | None:
        """None if Kafka does not answer, or has no such topic any more."""
        from confluent_kafka import KafkaException

        with self._turn:
            try:
                return self._asked()
            except (KafkaException, FlowError):
                return None

    def _asked(self) -> Lag:
        from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, TopicPartition

        known = self._notes.wanted.among(topics(self._reader, _SECONDS), "lag")
        places = [TopicPartition(topic, number) for topic, count in known.items() for number in range(count)]
        ends, begins = self._offsets(places, OFFSET_END), self._offsets(places, OFFSET_BEGINNING)
        read = self._notes.next()
        waiting: list[TopicPartition] = []
        records: dict[tuple[str, int], int] = {}
        for place, end in ends.items():
            position = max(read.get(place[0], {}).get(place[1], 0), begins[place])
            records[place] = max(0, end - position)
            if position < end:
                waiting.append(TopicPartition(*place, position))
        return Lag(records, self._oldest(waiting))

    def _offsets(self, places: list[TopicPartition], end: int) -> dict[tuple[str, int], int]:
        """At one of the two ends."""
        from confluent_kafka import IsolationLevel, admin

        # So that it asks for a new token, if it logs in with one that expires.
        self._admin.poll(0)
        spec: Any = admin.OffsetSpec  # type: ignore[attr-defined]  # not among what its types say, but documented
        asked = self._admin.list_offsets(
            dict.fromkeys(places, spec(end)), isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=_SECONDS
        )
        return {(place.topic, place.partition): answer.result().offset for place, answer in asked.items()}

    def _oldest(self, waiting: list[TopicPartition]) -> float:
        """By the time of the first record of each partition that waits."""
        if not waiting:
            return 0.0
        self._reader.assign(waiting)
        times: dict[tuple[str, int], int] = {}
        deadline = time.monotonic() + _SECONDS
        while len(times) < len(waiting) and time.monotonic() < deadline:
            for message in self._reader.consume(len(waiting), 0.1):
                if message.error() is None:
                    times.setdefault((str(message.topic()), int(message.partition() or 0)), message.timestamp()[1])
        self._reader.unassign()
        return max(0.0, time.time() - min(times.values()) / 1000) if times else 0.0

    @cached_property
    def _admin(self) -> AdminClient:
        from confluent_kafka.admin import AdminClient

        return opened(AdminClient, librdkafka_properties(self._connection))

    @cached_property
    def _reader(self) -> Consumer:
        from confluent_kafka import Consumer

        ours = {"group.id": "ematix-flow-lag", "enable.auto.commit": False, "isolation.level": "read_committed"}
        return opened(Consumer, {**librdkafka_properties(self._connection), **ours, "queued.max.messages.kbytes": 1024})
