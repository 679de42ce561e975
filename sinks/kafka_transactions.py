"""The Kafka target, exactly once: each part of a batch is one transaction, which also holds the fence of the part.

A part is what one Spark task has of a batch: the records of one partition of a topic, a piece of a file, a share of the
state. A batch that is repeated has the same rows in the same parts, though not always in the same order of tasks. Each
part has a transactional id of its own, so that whoever opens it ends what an earlier process, or an earlier attempt of
the task, may still have open. The fence is the number of the batch, committed as the offset of a consumer group that
nobody reads by; Kafka shows rows and fence together or not at all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ematix_flow.errors import FlowError
from ematix_flow.sinks.base import PART, Batch, Capabilities, TargetUnavailable
from ematix_flow.sinks.kafka import KafkaSink
from ematix_flow.sinks.kafka_client import KafkaRefused, Properties, librdkafka_properties, opened
from ematix_flow.state.fence import Fence

if TYPE_CHECKING:
    import pyarrow as pa
    from confluent_kafka import Consumer, KafkaError, Producer
    from pyspark.sql import DataFrame

# Longer than any part should take, shorter than brokers allow by default. Readers wait as long if the process dies and
# is not started again.
_TRANSACTION_MS = 300_000
_CALL_SECONDS = 60.0
_TRIES = 3
_MOST_KEPT = 16
_TAKEN_OVER = frozenset({"_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH", "_STATE"})
_RESULT = "part string, done boolean, code string, failure string"

_kept: dict[str, _Lane] = {}


@dataclass(frozen=True)
class Fenced:
    """What every part of a batch must know."""

    properties: Properties
    name: str
    """Of the pipeline and the target, in transactional ids."""
    generation: str
    batch: int
    topic: str | None
    """Where the fence is kept; without it, in the topic of the part's first record."""
    whole: bool
    """The batch is one part."""
    reached: Callable[[str], None]
    """Called at points where a crash of a worker is worth a test."""


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
        ours = {"transaction.timeout.ms": _TRANSACTION_MS, "enable.idempotence": True}
        fenced = Fenced(
            properties=ours | librdkafka_properties(self._connection),
            name=f"{fence.pipeline}/{fence.target}",
            generation=fence.generation,
            batch=fence.batch,
            topic=self._target.topic,
            whole=self._whole,
            reached=batch.reached,
        )
        # From memory, where it lies in the order in which it was computed.
        parts = made.coalesce(1) if self._whole else made
        results = parts.mapInArrow(partial(_send, fenced), _RESULT).collect()
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
    return re.search(r"\bExchange\b", plan.partition("PandasWithState")[0]) is not None


# In the workers.


class _Lane:
    """The producer of one part. It stays open between batches, because opening it takes longer than a small batch."""

    def __init__(self, fenced: Fenced, name: str, topic: str) -> None:
        from confluent_kafka import Consumer, Producer, TopicPartition

        group = {"group.id": f"{name}/{fenced.generation}", "enable.auto.commit": False}
        readable = {"isolation.level": "read_committed"}
        self.generation = fenced.generation
        self.group: Consumer = opened(Consumer, {**fenced.properties, **group, **readable})
        self.producer: Producer = opened(Producer, {**fenced.properties, "transactional.id": name})
        # Ends what another producer of this name has open; only then is the fence final.
        _patiently(partial(self.producer.init_transactions, _CALL_SECONDS))
        (found,) = self.group.committed([TopicPartition(topic, 0)], _CALL_SECONDS)
        self.last = int(found.offset)
        """The newest batch that is there, or a number below zero."""

    def close(self) -> None:
        self.group.close()


def _send(fenced: Fenced, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """One part. A failure is told rather than raised: Spark would try again at once, and bury the words."""
    import pyarrow as pa
    from confluent_kafka import KafkaException
    from pyspark import TaskContext

    first = next((batch for batch in batches if batch.num_rows), None)
    if first is None:
        return
    context = TaskContext.get()
    part = f"task-{context.partitionId() if context else 0}"
    if fenced.whole:
        part = "batch"
    elif PART in first.schema.names:
        part = first.column(PART)[0].as_py()
    name = f"ematix-flow/{fenced.name}/{part}"
    code, failure, done = "", "", False
    try:
        done = _transaction(fenced, name, first, batches)
    except KafkaException as error:
        _drop(name)
        code, failure = error.args[0].name(), error.args[0].str()
    yield pa.record_batch([[part], [done], [code], [failure]], names=["part", "done", "code", "failure"])


def _transaction(fenced: Fenced, name: str, first: pa.RecordBatch, others: Iterator[pa.RecordBatch]) -> bool:
    """False if the fence shows that the part is there already."""
    topic = fenced.topic or first.column("topic")[0].as_py()
    lane = _begun(fenced, name, topic)
    if lane is None:
        return False
    producer = lane.producer
    _produce(producer, first)
    for batch in others:
        _produce(producer, batch)
    fenced.reached("apply/before-commit")
    _patiently(partial(producer.commit_transaction, _CALL_SECONDS))
    fenced.reached("apply/after-commit")
    lane.last = fenced.batch
    return True


def _begun(fenced: Fenced, name: str, topic: str) -> _Lane | None:
    """A lane in a transaction that holds the fence; None if it is there already. The fence comes first, because Kafka
    answers it: a producer whose name another worker has taken over meanwhile hears of it before it took any row."""
    from confluent_kafka import KafkaException, TopicPartition

    for left in reversed(range(_TRIES)):
        lane = _kept.get(name)
        if lane is None or lane.generation != fenced.generation:
            _drop(name)
            lane = _Lane(fenced, name, topic)
            _keep(name, lane)
        if lane.last >= fenced.batch:
            return None
        mark = [TopicPartition(topic, 0, fenced.batch)]
        try:
            lane.producer.begin_transaction()
            reader = lane.group.consumer_group_metadata()
            _patiently(partial(lane.producer.send_offsets_to_transaction, mark, reader, _CALL_SECONDS))
        except KafkaException as error:
            _drop(name)
            if not left or not _is_taken_over(error.args[0]):
                raise
        else:
            return lane
    raise AssertionError("the last try returns or raises")


def _produce(producer: Producer, batch: pa.RecordBatch) -> None:
    columns = [batch.column(name).to_pylist() for name in ("topic", "value", "key", "partition")]
    headers = batch.column("headers").to_pylist() if "headers" in batch.schema.names else None
    for number, (topic, value, key, partition) in enumerate(zip(*columns, strict=True)):
        given = (topic, value, key, -1 if partition is None else partition)
        told = [(one["key"], one["value"]) for one in headers[number] or ()] if headers else None
        while True:
            try:
                producer.produce(*given, headers=told) if told else producer.produce(*given)
                break
            except BufferError:
                producer.poll(0.1)
    producer.poll(0)


def _patiently(call: Callable[[], None]) -> None:
    """What librdkafka calls retriable has not failed: the same call goes on with it."""
    from confluent_kafka import KafkaException

    for left in reversed(range(_TRIES)):
        try:
            call()
        except KafkaException as error:
            if not left or not error.args[0].retriable():
                raise
        else:
            return


def _is_taken_over(error: KafkaError) -> bool:
    return bool(error.fatal()) or error.name() in _TAKEN_OVER


def _keep(name: str, lane: _Lane) -> None:
    """A producer has threads and memory; a worker meets all partitions of a topic in turn."""
    while len(_kept) >= _MOST_KEPT:
        _drop(next(iter(_kept)))
    _kept[name] = lane


def _drop(name: str) -> None:
    if lane := _kept.pop(name, None):
        lane.close()
