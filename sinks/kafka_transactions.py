"""The Kafka target, exactly once: each part of a batch is one transaction, which also holds the fence of the part.

A part is what one Spark task has of a batch: the records of one partition of a topic, a piece of a file, a share of the
state. A batch that is repeated has the same rows in the same parts, though not always in the same order of tasks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from ematix_flow.errors import FlowError
from ematix_flow.sinks.base import PART, Batch, Capabilities, TargetUnavailable
from ematix_flow.sinks.kafka import KafkaSink
from ematix_flow.sinks.kafka_client import KafkaRefused
from ematix_flow.sinks.kafka_lanes import Fenced, produced, sent_once, transactional
from ematix_flow.state.fence import Fence

if TYPE_CHECKING:
    import pyarrow as pa
    from confluent_kafka import Producer
    from pyspark.sql import DataFrame

_RESULT = "part string, done boolean, code string, failure string"


class TransactionalKafkaSink(KafkaSink):
    capabilities = Capabilities(
        fenced=True,
        transactional=True,
        parted=True,
        modes=frozenset({"append"}),
        visibility="what one task writes is one Kafka transaction, seen at once by readers with "
        "isolation.level = read_committed",
    )
    _whole = False

    def _made(self, rows: DataFrame) -> DataFrame:
        made = super()._made(rows)
        self._whole = _is_shuffled(made)
        return made

    def _sent(self, made: DataFrame, batch: Batch, fence: Fence) -> bool:
        name, properties = f"{fence.pipeline}/{fence.target}", transactional(self._connection)
        fenced = Fenced(properties, name, fence.generation, fence.batch, batch.reached)
        # From memory, where it lies in the order in which it was computed.
        parts = made.coalesce(1) if self._whole else made
        results = parts.mapInArrow(partial(_send, fenced, self._target.topic, self._whole), _RESULT).collect()
        if failures := [part for part in results if part["failure"]]:
            raise self._told(failures[0]["code"], failures[0]["failure"])
        return not results or any(part["done"] for part in results)

    def _told(self, code: str, words: str) -> FlowError:
        if code == "INVALID_TRANSACTION_TIMEOUT":
            return KafkaRefused(
                f"{self._user}: {words}",
                next_step='set extra = {"transaction.timeout.ms" = ...} to no more than the brokers allow '
                "(transaction.max.timeout.ms)",
            )
        if "AUTHORIZATION" in code or "AUTHENTICATION" in code or code == "MSG_SIZE_TOO_LARGE":
            return KafkaRefused(f"{self._user}: {words}", next_step="correct the connection, the rights or the rows")
        return TargetUnavailable(
            f"{self._user}: a transaction could not be committed: {words}",
            next_step="see that Kafka runs and that nobody else writes with this pipeline's name; a transaction that "
            "takes longer than transaction.timeout.ms is ended by Kafka: take smaller batches",
        )


def _is_shuffled(made: DataFrame) -> bool:
    """Whether Spark may divide the rows otherwise when the batch is repeated, say on a machine with more cores. The
    state of an operator is divided once and for all."""
    plan = made._jdf.queryExecution().executedPlan().toString()  # noqa: SLF001
    return re.search(r"\bExchange\b", plan.partition("WithState")[0]) is not None


def _send(
    fenced: Fenced, topic: str | None, whole: bool, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """One part, in a worker. A failure is told, not raised: Spark would try again at once, and bury the words."""
    import pyarrow as pa
    from confluent_kafka import KafkaException

    first = next((batch for batch in batches if batch.num_rows), None)
    if first is None:
        return
    part = "batch" if whole else _part(first)
    code, failure, done = "", "", False

    def send(producer: Producer) -> None:
        _produce(producer, first)
        for batch in batches:
            _produce(producer, batch)

    try:
        # Without a topic of its own, the fence is where the first record goes.
        done = sent_once(fenced, part, topic or first.column("topic")[0].as_py(), send)
    except KafkaException as error:
        code, failure = error.args[0].name(), error.args[0].str()
    yield pa.record_batch([[part], [done], [code], [failure]], names=["part", "done", "code", "failure"])


def _part(first: pa.RecordBatch) -> str:
    from pyspark import TaskContext

    if PART in first.schema.names and first.column(PART)[0].is_valid:
        return str(first.column(PART)[0].as_py())
    context = TaskContext.get()
    return f"task-{context.partitionId() if context else 0}"


def _produce(producer: Producer, batch: pa.RecordBatch) -> None:
    topics, values, keys, partitions = (batch.column(name) for name in ("topic", "value", "key", "partition"))
    records = zip(topics.to_pylist(), values.to_pylist(), keys.to_pylist(), strict=True)
    if "headers" not in batch.schema.names and partitions.null_count == len(partitions):
        # Each call counts: this is where most of the time goes.
        produce = producer.produce
        for record in records:
            try:
                produce(*record)
            except BufferError:
                produced(producer, *record)
    else:
        headers = batch.column("headers").to_pylist() if "headers" in batch.schema.names else [None] * len(topics)
        for record, partition, given in zip(records, partitions.to_pylist(), headers, strict=True):
            told = [(one["key"], one["value"]) for one in given or ()]
            produced(producer, *record, -1 if partition is None else partition, headers=told)
    producer.poll(0)
