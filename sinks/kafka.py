"""The Kafka target, at least once: records are made while a batch is staged, and sent while it is applied."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ematix_flow.connections import KafkaConnection
from ematix_flow.errors import FlowError
from ematix_flow.sinks.base import (
    ROW,
    Applied,
    Batch,
    Capabilities,
    NeedsRows,
    Staged,
    TargetRefused,
    TargetUnavailable,
)
from ematix_flow.sinks.kafka_client import MOST_BYTES, asked, java_properties, missing_topic, topics
from ematix_flow.sinks.kafka_limits import SIZE, UNKNOWN, limits
from ematix_flow.sinks.kafka_login import KafkaRefused, Properties
from ematix_flow.sinks.kafka_records import Payload, are_placed, check_columns, records
from ematix_flow.sinks.kafka_schemas import WITH_SCHEMAS, registered
from ematix_flow.sinks.schema_registry import Unwritable
from ematix_flow.specs import Target
from ematix_flow.state.fence import Fence

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

# How long a record may wait for its broker. Java's default is two minutes, in which nobody hears of the trouble.
_DELIVERY_MS, _REQUEST_MS = 30_000, 20_000
# Java's own. Several records together may not be more than a topic takes, either.
_BATCH_BYTES = 16 << 10
_COMPRESSION = ("compression.type", "compression.codec")
TOO_LARGE = "raise max.message.bytes of the topic, or write less per row"
_WHY = "_flow_why"
_REFUSALS = ("AuthenticationException", "AuthorizationException", "SslAuthentication")


@dataclass(frozen=True, kw_only=True)
class StagedRecords(Staged):
    """In Spark's memory and, where that is full, on its disk."""

    records: DataFrame
    is_beyond: bool = False
    """One of them is larger than its topic takes."""


class KafkaSink:
    capabilities = Capabilities(
        fenced=False,
        transactional=False,
        refuses_rarely=True,
        modes=frozenset({"append"}),
        visibility="records appear one by one while the batch is applied; "
        'delivery = "exactly_once" writes them in transactions',
    )

    def __init__(self, target: Target, connection: KafkaConnection, name: str) -> None:
        self._target, self._connection, self._name = target, connection, name
        self._user = f"target {name!r}"
        self._held: DataFrame | None = None
        self._payload = Payload(connection.payload_format)
        if are_placed(target):
            self.capabilities = replace(self.capabilities, refuses=True)
        self._check_topic()
        self._limits = {} if target.topic is None else limits(connection, [target.topic])
        """What topics take, as far as it was asked and is known."""

    def prepare(self, schema: StructType) -> StructType:
        check_columns(schema, self._target, self._connection.payload_format, self._name)
        if self._connection.payload_format not in WITH_SCHEMAS:
            return schema
        self._payload, fitting = registered(schema, self._target, self._connection, self._user)
        return fitting

    def stage(self, rows: DataFrame, batch: Batch) -> Staged:
        return self._kept(self._made(rows))

    def _kept(self, made: DataFrame) -> StagedRecords:
        from pyspark.sql import functions as F

        self.forget()
        self._held = made.persist()
        with self._unwritable_told():
            # All columns are kept, and hardly a row is read again.
            beyond = self._held.where(F.col(SIZE) > self._most).select(SIZE).collect()
        is_beyond = bool(beyond) and self._is_beyond(max(size for (size,) in beyond))
        if is_beyond and ROW not in made.columns:
            raise NeedsRows
        return StagedRecords(Path(), records=self._held, is_beyond=is_beyond)

    def refusals(self, staged: Staged, batch: Batch) -> dict[int, str]:
        return dict(self._refused(staged).select(ROW, _WHY).collect())

    def apply(self, staged: Staged, batch: Batch, fence: Fence) -> Applied:
        is_looked_at = are_placed(self._target) or (isinstance(staged, StagedRecords) and staged.is_beyond)
        if is_looked_at and (first := self._refused(staged).first()):
            raise TargetRefused(f"{self._user}: {first[_WHY]}", next_step="correct the transform, or the topic")
        batch.reached("apply/before-sending")
        return Applied(self._sent(staged, batch, fence))

    def _made(self, rows: DataFrame) -> DataFrame:
        return records(rows, self._target, self._payload)

    def _sent(self, staged: Staged, batch: Batch, fence: Fence) -> bool:
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException

        assert isinstance(staged, StagedRecords)
        # Idempotent, so that an answer that was lost on its way does not double a record.
        ours = {
            "enable.idempotence": "true",
            "acks": "all",
            "request.timeout.ms": _REQUEST_MS,
            "max.block.ms": _DELIVERY_MS,
            "max.request.size": MOST_BYTES,
            "batch.size": min(_BATCH_BYTES, self._least),
        }
        properties: Properties = ours | java_properties(self._connection)
        # Java wants it to be no less, and `extra` may hold either.
        least = sum(int(str(properties.get(wait, 0))) for wait in ("request.timeout.ms", "linger.ms"))
        properties = {"delivery.timeout.ms": max(_DELIVERY_MS, least)} | properties
        try:
            options = {f"kafka.{key}": str(value) for key, value in properties.items()}
            options |= {} if are_placed(self._target) else {"topic": str(self._target.topic)}
            staged.records.drop(ROW, SIZE).write.format("kafka").options(**options).save()
        except (PySparkException, Py4JJavaError) as error:
            raise self._failure(str(error)) from error
        return True

    @contextmanager
    def _unwritable_told(self) -> Iterator[None]:
        """Columns of the right types may still hold what a schema has no place for."""
        from pyspark.errors import PythonException

        try:
            yield
        except PythonException as error:
            found = re.search(rf"{Unwritable.__name__}: (.+)", str(error))
            if self._payload.schema is None or found is None:
                raise
            raise TargetRefused(
                f"{self._user}: a row cannot be written by schema {self._payload.schema.id}: {found[1].strip()}",
                next_step="leave such rows out in the transform, or give them another value",
            ) from error

    def _check_topic(self) -> None:
        known = asked(self._connection, topics)
        if self._target.topic is not None and self._target.topic not in known:
            raise missing_topic(self._target.topic, known, self._user)

    @property
    def _is_compressed(self) -> bool:
        """Then nobody knows how large a record is in the end."""
        return any(self._connection.extra.get(name, "none") != "none" for name in _COMPRESSION)

    @property
    def _most(self) -> int:
        """How large any record may be, unless it chooses its topic."""
        if self._is_compressed or self._target.topic_column is not None:
            return UNKNOWN
        return self._limits.get(str(self._target.topic), UNKNOWN)

    @property
    def _least(self) -> int:
        """What all of the topics take."""
        return min(self._limits.values(), default=UNKNOWN)

    def _is_beyond(self, largest: int) -> bool:
        """What a topic takes may have been changed since it was asked."""
        if largest > self._most:
            self._limits |= limits(self._connection, list(self._limits))
        return largest > self._most

    def _refused(self, staged: Staged) -> DataFrame:
        """The rows that name a topic or a partition that is not there, for which a producer would wait in vain, and
        those that are larger than their topic takes."""
        from pyspark.sql import functions as F

        assert isinstance(staged, StagedRecords)
        made, size = staged.records, F.col(SIZE)
        if not are_placed(self._target):
            return made.withColumn(_WHY, _too_large(size, str(self._target.topic), self._most)).where(size > self._most)
        topic, partition = F.col("topic"), F.col("partition")
        named = [name for (name,) in made.where(topic.isNotNull()).select("topic").distinct().collect()]
        known = asked(self._connection, topics) if named else {}
        self._limits |= limits(self._connection, [name for name in named if name in known])
        why = F.when(topic.isNull(), F.lit(f"column {self._target.topic_column} is NULL, and names no topic"))
        for name in named:
            if name not in known:
                why = why.when(topic == name, F.lit(f'there is no topic "{name}"'))
                continue
            most = UNKNOWN if self._is_compressed else self._limits.get(name, UNKNOWN)
            why = why.when((topic == name) & (size > most), _too_large(size, name, most))
            there = f", which has the partitions 0 to {known[name] - 1}"
            words = F.concat(F.lit("it is for partition "), partition.cast("string"), F.lit(f" of topic {name}{there}"))
            why = why.when((topic == name) & ~partition.between(0, known[name] - 1), words)
        return made.withColumn(_WHY, why).where(F.col(_WHY).isNotNull())

    def _failure(self, words: str) -> FlowError:
        """From what Java raised in a task."""
        said = _told(words)
        if "RecordTooLarge" in words:
            return KafkaRefused(f"{self._user}: {said}", next_step=TOO_LARGE)
        if "ConfigException" in words:
            return KafkaRefused(
                f"{self._user}: Kafka's client does not take its properties: {said}", next_step="correct `extra`"
            )
        if any(refusal in words for refusal in _REFUSALS):
            return KafkaRefused(f"{self._user}: {said}", next_step="correct the connection, or the rights of its user")
        return TargetUnavailable(f"{self._user}: records could not be sent: {said}", next_step="see that Kafka runs")

    def forget(self) -> None:
        if self._held is not None:
            self._held.unpersist()
            self._held = None


def _too_large(size: Column, topic: str, most: int) -> Column:
    from pyspark.sql import functions as F

    taken = f" bytes, and topic {topic} takes no more than {most} (max.message.bytes)"
    return F.concat(F.lit("the record has "), size.cast("string"), F.lit(taken))


def _told(words: str) -> str:
    """The innermost of Java's causes that Kafka has raised."""
    found = re.findall(r"org\.apache\.kafka[\w.$]*: ([^\n]+)", words)
    return found[-1].strip() if found else words.strip().splitlines()[0]
