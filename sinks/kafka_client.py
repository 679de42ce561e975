"""Kafka clients for a declared connection: its properties for Java and for librdkafka, and errors in our words."""

from __future__ import annotations

import importlib.util
import json
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from ematix_flow.connections import KafkaConnection
from ematix_flow.errors import FlowError, MissingExtra
from ematix_flow.sinks.kafka_login import KafkaRefused, Properties, check_token, java_login, librdkafka_login

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError

T = TypeVar("T")

CONNECT_SECONDS = 10.0
_ONE_TRY_SECONDS = 1.0
# How large a record may be is for the topic to say. Clients would refuse more than a megabyte before they ask it.
MOST_BYTES = 50 << 20
_UNKNOWN = "No such configuration property"


class KafkaUnavailable(FlowError):
    """No broker of the cluster can be reached now."""

    code = "kafka-unavailable"
    transient = True


class TopicNotFound(FlowError):
    """A topic that is not there."""

    code = "topic-not-found"


def java_properties(connection: KafkaConnection) -> Properties:
    """For the clients in Spark."""
    return {
        "bootstrap.servers": connection.bootstrap_servers,
        **java_login(connection),
        **connection.extra,
    }


def librdkafka_properties(connection: KafkaConnection) -> Properties:
    """For the clients in Python. What only Java knows is left out by `opened`."""
    return {
        "bootstrap.servers": connection.bootstrap_servers,
        # It prints a line per failed attempt to connect; what it has to say comes to us as errors.
        "log_level": 0,
        # A client that has found the cluster waits for half of this before it connects to the first broker of it.
        "reconnect.backoff.ms": 20,
        # As Java does it, so that a key has its partition whoever writes it.
        "partitioner": "murmur2_random",
        **librdkafka_login(connection),
        **connection.extra,
    }


def opened(make: Callable[[Properties], T], properties: Mapping[str, Any]) -> T:
    """A client. `extra` may hold what only Java's clients know, which ignore what they do not know."""
    from confluent_kafka import KafkaException

    left = dict(properties)
    if provider := left.get("oauth_cb"):
        check_token(provider)
    while True:
        try:
            return make(left)
        except KafkaException as error:
            words = error.args[0].str()
            unknown = next((key for key in left if f'"{key}"' in words), None)
            if _UNKNOWN not in words or unknown is None:
                raise KafkaRefused(
                    f"Kafka's client does not take its properties: {words}", next_step="correct `extra`"
                ) from error
            del left[unknown]


def asked(connection: KafkaConnection, question: Callable[[Consumer], T], **more: Any) -> T:
    """Ask the cluster with a client of its own. A refusal is told at once, silence after a while."""
    from confluent_kafka import Consumer

    needed(connection)
    heard: list[KafkaError] = []
    given = {"group.id": connection.group_id or "ematix-flow", "enable.auto.commit": False, **more}
    properties = {**librdkafka_properties(connection), **given, "error_cb": heard.append}
    consumer = opened(Consumer, properties)
    try:
        return answered(lambda: question(consumer), lambda: consumer.poll(0), heard, connection)
    finally:
        consumer.close()


def answered(
    question: Callable[[], T], listen: Callable[[], Any], heard: list[KafkaError], connection: KafkaConnection
) -> T:
    """Ask until there is an answer. `listen` lets the client tell what it has `heard` of its brokers."""
    from confluent_kafka import KafkaException

    deadline = time.monotonic() + CONNECT_SECONDS
    while True:
        try:
            return question()
        except KafkaException as error:
            listen()
            failure = failed([*heard, error.args[0]], connection)
            if not failure.transient or time.monotonic() > deadline:
                raise failure from error


def topics(consumer: Consumer, seconds: float = _ONE_TRY_SECONDS) -> dict[str, int]:
    """All topics that may be seen, with their numbers of partitions."""
    found = consumer.list_topics(timeout=seconds).topics
    return {name: len(topic.partitions) for name, topic in found.items() if topic.error is None}


def failed(errors: Iterable[KafkaError], connection: KafkaConnection) -> FlowError:
    """The most telling of what a client heard."""
    from confluent_kafka import KafkaError

    refusals = {
        KafkaError._AUTHENTICATION: "the login was refused",  # noqa: SLF001
        KafkaError.SASL_AUTHENTICATION_FAILED: "the login was refused",
        KafkaError.UNSUPPORTED_SASL_MECHANISM: "the cluster does not know this way to log in",
        KafkaError._SSL: "TLS failed",  # noqa: SLF001
        KafkaError.TOPIC_AUTHORIZATION_FAILED: "the topic may not be used",
        KafkaError.GROUP_AUTHORIZATION_FAILED: "the consumer group may not be used",
        KafkaError.CLUSTER_AUTHORIZATION_FAILED: "the cluster may not be used",
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "transactions may not be used",
    }
    heard = list(errors)
    for error in heard:
        if error.code() in refusals:
            raise_words = f"Kafka at {connection.bootstrap_servers}: {refusals[error.code()]}: {_plain(error)}"
            return KafkaRefused(
                raise_words, next_step="correct the user, password or certificate of the connection, or its rights"
            )
    return KafkaUnavailable(
        f"Kafka at {connection.bootstrap_servers} does not answer: {_plain(heard[-1])}",
        next_step="start it, or correct bootstrap_servers; a listener that wants TLS or a login closes the connection "
        "of a client that offers neither",
    )


def needed(connection: KafkaConnection) -> None:
    if importlib.util.find_spec("confluent_kafka") is None:
        raise MissingExtra("confluent_kafka", connection.driver_extra)


def missing_topic(topic: str, known: Iterable[str], user: str) -> TopicNotFound:
    from difflib import get_close_matches

    there = sorted(name for name in known if not name.startswith("__"))
    near = get_close_matches(topic, there, n=1)
    hint = f'did you mean "{near[0]}"? ' if near else ""
    shown = ", ".join(there[:10]) + (" ..." if len(there) > 10 else "") or "none"
    return TopicNotFound(
        f'{user}: there is no topic "{topic}"',
        tried=[f"topics of the cluster: {shown}"],
        next_step=f"{hint}create it, or correct its name",
    )


def json_text(value: Any) -> str:
    """Short, and the same for equal values."""
    return json.dumps(value, separators=(",", ":"), sort_keys=True)


def _plain(error: KafkaError) -> str:
    """Without librdkafka's address of itself in front."""
    words = str(error.str())
    return words.rpartition("]: ")[2] if "thrd:" in words else words
