"""Whether topics are still those that were read: one that was deleted and made anew has its old name and a new id."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ematix_flow.connections import KafkaConnection
from ematix_flow.sinks.kafka_client import librdkafka_properties, opened
from ematix_flow.state.home import file_name
from ematix_flow.state.store import Store

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

_SECONDS, _BETWEEN_SECONDS = 5.0, 1.0
# Of a broker that does not give its topics any.
_NONE = "AAAAAAAAAAAAAAAAAAAAAA"


class Identity:
    """The ids of the topics of a source, kept with its checkpoint."""

    def __init__(self, connection: KafkaConnection, store: Store, source: str) -> None:
        self._connection, self._store = connection, store
        self._next = 0.0
        self._memory = f"topics.{file_name(source)}.json"
        self._known: dict[str, str] = json.loads(store.recall(self._memory) or "{}")

    def asked(self, topics: Iterable[str]) -> Mapping[str, Future[Any]]:
        """A question that is on its way; `found` has the answer. It costs a small batch milliseconds, so that not every
        one asks."""
        from confluent_kafka import TopicCollection

        if not (names := list(topics)) or time.monotonic() < self._next:
            return {}
        self._next = time.monotonic() + _BETWEEN_SECONDS
        # So that it asks for a new token, if it logs in with one that expires.
        self._admin.poll(0)
        return self._admin.describe_topics(TopicCollection(names), request_timeout=_SECONDS)

    def found(self, asked: Mapping[str, Future[Any]]) -> dict[str, str]:
        """Without those that are gone or give no id: whoever reads them finds out."""
        from confluent_kafka import KafkaException

        ids = {}
        for topic, answer in asked.items():
            try:
                ids[topic] = str(answer.result().topic_id)
            except KafkaException:
                continue
        return {topic: id for topic, id in ids.items() if id != _NONE}

    def anew(self, ids: Mapping[str, str]) -> set[str]:
        """Those that are not what they were."""
        return {topic for topic, id in ids.items() if self._known.get(topic, id) != id}

    def accept(self, ids: Mapping[str, str]) -> None:
        """These are read from now on."""
        if any(self._known.get(topic) != id for topic, id in ids.items()):
            self._known |= ids
            self._store.remember(self._memory, json.dumps(self._known))

    @cached_property
    def _admin(self) -> AdminClient:
        from confluent_kafka.admin import AdminClient

        return opened(AdminClient, librdkafka_properties(self._connection))
