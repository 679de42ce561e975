"""Kafka for tests: one that is given, or a broker of our own, which can be killed."""

import functools
import json
import os
import signal
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyspark
from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from tests.services import tokens
from tests.services.libraries import java, libraries
from tests.services.server import Server, free_port

VERSION = "3.9.2"
_SECONDS = 30.0
_COORDINATES = (f"org.apache.kafka:kafka_2.13:{VERSION}", "org.slf4j:slf4j-reload4j:1.7.36")
_LOG4J = """
log4j.rootLogger=WARN, stdout
log4j.appender.stdout=org.apache.log4j.ConsoleAppender
log4j.appender.stdout.layout=org.apache.log4j.PatternLayout
log4j.appender.stdout.layout.ConversionPattern=%d %p %c %m%n
"""

Value = Mapping[str, Any] | str | bytes | None


class Kafka:
    """A cluster, wherever it runs, as a test sees it: without the product."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self._failed: list[Any] = []

    @functools.cached_property
    def admin(self) -> AdminClient:
        return AdminClient(self.client())

    @functools.cached_property
    def producer(self) -> Producer:
        return Producer(self.client(**{"linger.ms": 0}))

    def client(self, **more: Any) -> dict[str, Any]:
        return {"bootstrap.servers": self.bootstrap, "log_level": 0, **more}

    def new_topic(self, partitions: int = 1, name: str | None = None, **config: str) -> str:
        name = name or f"t{uuid4().hex[:12]}"
        settings = {key.replace("_", "."): value for key, value in config.items()}
        _done(self.admin.create_topics([NewTopic(name, partitions, 1, config=settings)]))
        _wait(lambda: len(self._metadata(name)) == partitions)
        return name

    def delete_topic(self, name: str) -> None:
        _done(self.admin.delete_topics([name]))
        _wait(lambda: name not in self.admin.list_topics(timeout=_SECONDS).topics)

    def add_partitions(self, name: str, total: int) -> None:
        _done(self.admin.create_partitions([NewPartitions(name, total)]))
        _wait(lambda: len(self._metadata(name)) == total)
        self.__dict__.pop("producer", None)  # it would learn of them a while later

    def truncate(self, name: str, before: int, partition: int = 0) -> None:
        """What lies before this offset goes."""
        _done(self.admin.delete_records([TopicPartition(name, partition, before)]))

    def send(
        self,
        topic: str,
        values: Iterable[Value],
        *,
        key: str | bytes | None = None,
        partition: int = -1,
        headers: Sequence[tuple[str, bytes]] = (),
        timestamp: int = 0,
    ) -> None:
        for value in values:
            self.produce(topic, value, key=key, partition=partition, headers=headers, timestamp=timestamp)
        self.flush()

    def produce(
        self,
        topic: str,
        value: Value,
        *,
        key: str | bytes | None = None,
        partition: int = -1,
        headers: Sequence[tuple[str, bytes]] = (),
        timestamp: int = 0,
    ) -> None:
        """Sent with the next `flush` at the latest."""
        told = {"headers": list(headers), "timestamp": timestamp, "on_delivery": self._told}
        while True:
            try:
                self.producer.produce(topic, _bytes(value), key, partition, **told)
            except BufferError:
                self.producer.poll(0.1)
            else:
                self.producer.poll(0)
                return

    def flush(self) -> None:
        assert self.producer.flush(_SECONDS) == 0
        failed, self._failed = self._failed, []
        assert not failed, failed

    def _told(self, error: Any, _: Message) -> None:
        if error is not None:
            self._failed.append(error)

    def read(self, topic: str, *, isolation: str = "read_committed") -> list[Message]:
        """All that is there now, partition by partition."""
        settings = {
            "group.id": uuid4().hex,
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 10,
        }
        consumer = Consumer(self.client(**settings, **{"enable.partition.eof": True, "auto.offset.reset": "earliest"}))
        try:
            waiting = {TopicPartition(topic, number, 0).partition for number in self._metadata(topic)}
            consumer.assign([TopicPartition(topic, number, -2) for number in waiting])
            found: list[Message] = []
            deadline = time.monotonic() + _SECONDS
            while waiting:
                assert time.monotonic() < deadline, f"{topic} has no end"
                if some := consumer.consume(10_000, 0.1):
                    deadline = time.monotonic() + _SECONDS
                for message in some:
                    if message.error() is None:
                        found.append(message)
                    else:
                        waiting.discard(message.partition())
            return sorted(found, key=lambda message: (message.partition(), message.offset()))
        finally:
            consumer.close()

    def values(self, topic: str) -> list[Any]:
        """Of a topic of JSON."""
        return [None if message.value() is None else json.loads(message.value()) for message in self.read(topic)]

    def committed(self, group: str, topic: str) -> dict[int, int]:
        consumer = Consumer(self.client(**{"group.id": group}))
        try:
            asked = [TopicPartition(topic, number) for number in self._metadata(topic)]
            return {one.partition: one.offset for one in consumer.committed(asked, _SECONDS) if one.offset >= 0}
        finally:
            consumer.close()

    def _metadata(self, topic: str) -> Mapping[int, Any]:
        return self.admin.list_topics(topic, timeout=_SECONDS).topics[topic].partitions


class OwnKafka(Server, Kafka):
    """A broker of our own. `kill` is a crash: what it acknowledged is there after `start`."""

    def __init__(self) -> None:
        Server.__init__(self)
        Kafka.__init__(self, f"127.0.0.1:{self.port}")
        self._settings = self.folder / "broker.properties"
        (self.folder / "log4j.properties").write_text(_LOG4J, encoding="utf-8")
        lines = (f"{key}={value}\n" for key, value in self.properties(free_port()).items())
        self._settings.write_text("".join(lines), encoding="utf-8")
        self.format()
        self.start()

    def properties(self, controller: int) -> dict[str, Any]:
        return {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "inter.broker.listener.name": "PLAINTEXT",
            "log.dirs": self.folder / "logs",
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 4,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "transaction.state.log.num.partitions": 4,
            "group.initial.rebalance.delay.ms": 0,
            "auto.create.topics.enable": "false",
            # Tests send records of any time.
            "log.retention.ms": -1,
            "log.cleaner.dedupe.buffer.size": 4 << 20,
        }

    def format(self, *more: str) -> None:
        cluster = "4L6g3nShT-eMCtK--X86sw"
        self.run(*_java("kafka.tools.StorageTool"), "format", "-t", cluster, "-c", str(self._settings), *more)

    def command(self) -> Sequence[str]:
        options = ("-Xmx512m", "-XX:TieredStopAtLevel=1", f"-Dlog4j.configuration=file:{self.folder}/log4j.properties")
        return [*_java("kafka.Kafka", *options), str(self._settings)]

    def kill(self) -> None:
        self.stop(signal.SIGKILL)

    def answers(self) -> bool:
        with suppress(KafkaException):
            return bool(AdminClient(self.client()).list_topics(timeout=1).brokers)
        return False


class SecureKafka(OwnKafka):
    """Also has a listener that asks for a login over TLS, one that asks for a certificate, and one that asks for a
    signed token. `alice` may log in."""

    password = 'pa"ss\\w0rd'

    def __init__(self) -> None:
        self.sasl_port, self.mtls_port, self.token_port = free_port(), free_port(), free_port()
        super().__init__()

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def properties(self, controller: int) -> dict[str, Any]:
        self._make_certificates()
        tokens.prepare(self.folder)
        plain = super().properties(controller)
        ports = {"SASL": self.sasl_port, "MTLS": self.mtls_port, "TOKEN": self.token_port}
        places = ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items())
        protocols = "SASL:SASL_SSL,MTLS:SSL,TOKEN:SASL_SSL"
        password = self.password.replace("\\", "\\\\").replace('"', '\\"')
        modules = "org.apache.kafka.common.security"
        return plain | {
            "listeners": f"{plain['listeners']},{places}",
            "advertised.listeners": f"{plain['advertised.listeners']},{places}",
            "listener.security.protocol.map": f"{plain['listener.security.protocol.map']},{protocols}",
            "listener.name.sasl.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
            "listener.name.token.sasl.enabled.mechanisms": "OAUTHBEARER",
            "listener.name.token.oauthbearer.sasl.jaas.config": (
                f"{modules}.oauthbearer.OAuthBearerLoginModule required;"
            ),
            "listener.name.token.oauthbearer.sasl.server.callback.handler.class": (
                f"{modules}.oauthbearer.OAuthBearerValidatorCallbackHandler"
            ),
            "listener.name.token.oauthbearer.sasl.oauthbearer.jwks.endpoint.url": f"file://{self.path('jwks.json')}",
            # In a file of properties a backslash stands for itself when it is doubled.
            "listener.name.sasl.plain.sasl.jaas.config": (
                f'{modules}.plain.PlainLoginModule required user_alice="{password}";'.replace("\\", "\\\\")
            ),
            "listener.name.sasl.scram-sha-256.sasl.jaas.config": f"{modules}.scram.ScramLoginModule required;",
            "listener.name.sasl.scram-sha-512.sasl.jaas.config": f"{modules}.scram.ScramLoginModule required;",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": self.path("server.pem"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.path("ca.crt"),
            "listener.name.mtls.ssl.client.auth": "required",
        }

    def format(self, *more: str) -> None:
        users = [f"SCRAM-SHA-{bits}=[name=alice,password={self.password}]" for bits in (256, 512)]
        super().format(*more, *(word for user in users for word in ("--add-scram", user)))

    def _make_certificates(self) -> None:
        self._certificate("ca", "ca", "-x509")
        self._certificate("other", "ca", "-x509")
        for name in ("server", "client"):
            self._certificate(name, "127.0.0.1")
            self.run(
                "openssl", "x509", "-req", "-in", f"{name}.crt", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial",
                "-days", "2", "-copy_extensions", "copy", "-out", f"{name}.signed",
            )  # fmt: skip
            signed, key = (Path(self.path(f"{name}.{kind}")).read_text(encoding="utf-8") for kind in ("signed", "key"))
            Path(self.path(f"{name}.pem")).write_text(key + signed, encoding="utf-8")

    def _certificate(self, name: str, subject: str, *how: str) -> None:
        names = () if how else ("-addext", "subjectAltName=IP:127.0.0.1")
        self.run(
            "openssl", "req", *how, "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={subject}",
            *names, "-keyout", f"{name}.key", "-out", f"{name}.crt",
        )  # fmt: skip


@functools.cache
def kafka() -> Kafka:
    """One for all tests of this process."""
    if given := os.environ.get("EMATIX_TEST_KAFKA_URL"):
        return Kafka(given)
    return OwnKafka()


@contextmanager
def own_kafka() -> Iterator[OwnKafka]:
    """One for this test alone, which may kill it."""
    server = OwnKafka()
    try:
        yield server
    finally:
        server.remove()


@contextmanager
def secure_kafka() -> Iterator[SecureKafka]:
    server = SecureKafka()
    try:
        yield server
    finally:
        server.remove()


def _java(main: str, *options: str) -> list[str]:
    scala = next((Path(pyspark.__file__).parent / "jars").glob("scala-library-*.jar"))
    return [java(), *options, "-cp", f"{libraries(f'kafka-{VERSION}', *_COORDINATES)}/*:{scala}", main]


def _bytes(value: Value) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else json.dumps(value).encode()


def _done(futures: Mapping[Any, Any]) -> None:
    for future in futures.values():
        future.result(_SECONDS)


def _wait(condition: Any) -> None:
    """Other brokers, and this one's own caches, learn of a topic a moment later."""
    deadline = time.monotonic() + _SECONDS
    while True:
        with suppress(KafkaException, KeyError):
            if condition():
                return
        assert time.monotonic() < deadline
        time.sleep(0.02)
