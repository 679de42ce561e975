"""The dead-letter topic: each bad record once, as it was, with what is known of its failure in headers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import chain
from typing import TYPE_CHECKING

from ematix_flow.connections import Connection, KafkaConnection
from ematix_flow.sinks.base import TargetUnavailable
from ematix_flow.sinks.kafka_client import asked, missing_topic, topics
from ematix_flow.sinks.kafka_lanes import Fenced, produced, sent_once, transactional
from ematix_flow.sinks.kafka_limits import UNKNOWN, limits
from ematix_flow.sinks.kafka_login import KafkaRefused
from ematix_flow.state.dead_letters import DeadLetter

if TYPE_CHECKING:
    from confluent_kafka import Producer

PREFIX = "emat-dlq-"
_TOLD = (
    "id", "pipeline", "stage", "error_code", "error", "source", "position", "event_ts", "failed_at", "attempt",
    "payload_format", "status",
)  # fmt: skip


class DeadLetterTopic:
    """Called with the letters of a batch, gives them on, and has sent them when the last one was taken."""

    def __init__(self, topic: str, connection: Connection) -> None:
        assert isinstance(connection, KafkaConnection)
        self._topic, self._connection = topic, connection
        known = asked(connection, topics)
        if topic not in known:
            raise missing_topic(topic, known, "dead_letter_topic")
        self._most = limits(connection, [topic]).get(topic, UNKNOWN)

    def __call__(
        self, pipeline: str, generation: str, batch: int, letters: Iterable[DeadLetter]
    ) -> Iterator[DeadLetter]:
        waiting = iter(letters)
        first = next(waiting, None)
        if first is None:
            return
        taken: list[DeadLetter] = []

        def send(producer: Producer) -> None:
            for letter in chain([first], waiting):
                taken.append(letter)
                self._send(producer, letter)

        from confluent_kafka import KafkaError, KafkaException

        fenced = Fenced(transactional(self._connection, self._most), pipeline, generation, batch)
        try:
            done = sent_once(fenced, "dead-letters", self._topic, send)
        except KafkaException as error:
            words = f"dead letters could not be sent to topic {self._topic}: {error.args[0].str()}"
            if error.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE:
                step = "raise max.message.bytes of the topic: a letter is its record and what is known of its failure"
                raise KafkaRefused(words, next_step=step) from error
            raise TargetUnavailable(words, next_step="see that Kafka runs; the batch is tried again") from error
        yield from taken if done else chain([first], waiting)

    def _send(self, producer: Producer, letter: DeadLetter) -> None:
        moment = letter.arrived or letter.event_ts
        millis = 0 if moment is None else max(0, int(moment.timestamp() * 1000))
        produced(
            producer, self._topic, letter.payload, letter.key, headers=_headers(letter), timestamp=millis
        )  # fmt: skip


def _headers(letter: DeadLetter) -> list[tuple[str, bytes]]:
    facts = {name: getattr(letter, name) for name in _TOLD}
    return [
        (f"{PREFIX}{name.replace('_', '-')}", _text(value).encode())
        for name, value in facts.items()
        if value is not None
    ]


def _text(value: object) -> str:
    return value.astimezone(UTC).isoformat() if isinstance(value, datetime) else str(value)
