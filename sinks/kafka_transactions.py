"""The Kafka target, exactly once: each part of a batch is one transaction, which also holds the fence of the part.

A part is what one Spark task has of a batch: the records of one partition of a topic, a piece of a file, a share of the
state. A batch that is repeated has the same rows in the same parts, though not always in the same order of tasks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ematix_flow.errors import FlowError
from ematix_flow.sinks.ahead import AHEAD, unpacked
from ematix_flow.sinks.base import (
    PART,
    ROW,
    Batch,
    Capabilities,
    Made,
    NeedsRows,
    Staged,
    Taking,
    TargetUnavailable,
)
from ematix_flow.sinks.kafka import TOO_LARGE, KafkaSink, StagedRecords
from ematix_flow.sinks.kafka_directly import Directly, Workers
from ematix_flow.sinks.kafka_lanes import (
    RECORD,
    Fenced,
    Sent,
    attempted,
    produced_all,
    sent_once,
    transactional,
)
from ematix_flow.sinks.kafka_limits import SIZE
from ematix_flow.sinks.kafka_login import KafkaRefused
from ematix_flow.sinks.kafka_records import are_placed, record, records_ahead
from ematix_flow.sinks.kafka_schemas import WITH_SCHEMAS
from ematix_flow.state.fence import Fence

if TYPE_CHECKING:
    import pyarrow as pa
    from confluent_kafka import Producer
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

_RESULT = "part string, done boolean, code string, failure string"
_MAY_SHUFFLE = re.compile(
    "Join|Aggregate|Sort|Window|Distinct|Deduplicate|Repartition|Rebalance|Limit|Offset|Tail|Intersect|Except|CoGroup"
)
_TASK = "_flow_task"
# A batch that is no larger is sent by the driver: workers would take longer to begin, and to take over from each other.
_SMALL_BYTES = 1 << 20
_AT_ONCE = 8
# Large batches between one that could not be sent ahead, which cost up to a second reading, and the next try.
_PAUSE = 20


@dataclass(frozen=True, kw_only=True)
class Collected(Staged):
    """In the driver."""

    rows: pa.Table


@dataclass(frozen=True, kw_only=True)
class SentAhead(Staged):
    """In transactions that workers hold open."""

    workers: Workers


class TransactionalKafkaSink(KafkaSink):
    capabilities = Capabilities(
        fenced=True,
        transactional=True,
        refuses_rarely=True,
        parted=True,
        modes=frozenset({"append"}),
        visibility="what one task writes is one Kafka transaction, seen at once by readers with "
        "isolation.level = read_committed",
    )
    _whole = False
    _workers: Workers | None = None
    _pause = 0
    """How many large batches are not sent ahead from now on."""

    def _made(self, rows: DataFrame) -> DataFrame:
        made = super()._made(rows)
        self._whole = _is_shuffled(made)
        return made

    @property
    def shapes(self) -> bool:
        """Records that rows have places for have to be looked at before they are sent, and what is written by a schema
        may fail on rows that are not sent."""
        return not are_placed(self._target) and self._connection.payload_format not in WITH_SCHEMAS

    def shape(self, schema: StructType) -> Mapping[str, Column]:
        from pyspark.sql import functions as F

        return record(schema, self._target, self._payload) | {_TASK: F.spark_partition_id()}

    def tables(self, schema: StructType) -> Made | None:
        is_json = self.shapes and self._connection.payload_format == "json"
        is_plain = is_json and self._target.headers_column is None
        return records_ahead(schema, self._target, self._most) if is_plain else None

    @property
    def taking(self) -> Taking:
        return Directly(transactional(self._connection, self._least), str(self._target.topic))

    def stage_shaped(self, shaped: DataFrame | pa.Table, batch: Batch) -> Staged:
        import pyarrow as pa

        self._whole = False
        if isinstance(shaped, pa.Table):
            self.forget()
            return self._here(shaped)
        return self._sent_ahead(shaped, batch) or self._kept(shaped.drop(_TASK))

    def _sent_ahead(self, shaped: DataFrame, batch: Batch) -> Staged | None:
        """By the workers that read the rows; None if they have to go another way."""
        context = shaped.sparkSession.sparkContext
        if AHEAD not in shaped.columns or not str(context.master).startswith("local"):
            return None
        self._pause = max(0, self._pause - 1)
        if self._pause:
            return None
        self.forget()
        fenced = self._fenced(batch, batch.fence(self._name))
        self._workers = Workers(fenced, int(str(fenced.properties["transaction.timeout.ms"])))
        with self._workers.asked(context):
            shaped.write.format("noop").mode("overwrite").save()
        rows = self._workers.rows()
        if rows is None:
            self._pause = _PAUSE
            return None
        return SentAhead(Path(), workers=self._workers, uncounted=rows)

    def stage(self, rows: DataFrame, batch: Batch) -> Staged:
        """Few rows are brought here at once; Spark would take longer to keep them. Those that may be refused are looked
        at again, and so are those that are too large to be brought here."""
        if not batch.is_small or ROW in rows.columns:
            return super().stage(rows, batch)
        self.forget()
        made = self._made(rows)
        try:
            with self._unwritable_told():
                here = _collected(made, self._whole)
        except Exception as error:
            # What the driver may take of Spark; rows can be large, or become many.
            if "maxResultSize" not in str(error):
                raise
            raise NeedsRows from error
        return self._here(here)

    def _here(self, rows: pa.Table) -> Collected:
        import pyarrow.compute as pc

        if self._is_beyond(pc.max(rows.column(SIZE)).as_py() or 0):
            raise NeedsRows
        return Collected(Path(), rows=rows)

    def _sent(self, staged: Staged, batch: Batch, fence: Fence) -> bool:
        results = self._results(staged, self._fenced(batch, fence))
        if failures := [one for one in results if one.failure]:
            raise self._told(failures[0].code, failures[0].failure)
        return not results or any(one.done for one in results)

    def _fenced(self, batch: Batch, fence: Fence) -> Fenced:
        name, properties = f"{fence.pipeline}/{fence.target}", transactional(self._connection, self._least)
        return Fenced(properties, name, fence.generation, fence.batch, batch.reached)

    def forget(self) -> None:
        super().forget()
        if self._workers is not None:
            self._workers.abort()
            self._workers = None

    def _results(self, staged: Staged, fenced: Fenced) -> list[Sent]:
        topic = self._target.topic
        if isinstance(staged, SentAhead):
            return staged.workers.commit(fenced.reached)
        if isinstance(staged, Collected):
            return _sent_from_here(staged.rows, fenced, topic, self._whole)
        assert isinstance(staged, StagedRecords)
        # From memory, where it lies in the order in which it was computed.
        made = staged.records
        if _bytes_held(made) <= _SMALL_BYTES:
            return _sent_from_here(_collected(made, self._whole), fenced, topic, self._whole)
        parts = made.coalesce(1) if self._whole else made
        told = parts.drop(ROW, SIZE).mapInArrow(partial(_send, fenced, topic, self._whole), _RESULT).collect()
        return [Sent(*one) for one in told]

    def _told(self, code: str, words: str) -> FlowError:
        if code == "INVALID_TRANSACTION_TIMEOUT":
            return KafkaRefused(
                f"{self._user}: {words}",
                next_step='set extra = {"transaction.timeout.ms" = ...} to no more than the brokers allow '
                "(transaction.max.timeout.ms)",
            )
        if code == "MSG_SIZE_TOO_LARGE":
            return KafkaRefused(f"{self._user}: {words}", next_step=TOO_LARGE)
        if "AUTHORIZATION" in code or "AUTHENTICATION" in code or code == KafkaRefused.code:
            return KafkaRefused(f"{self._user}: {words}", next_step="correct the connection or its rights")
        return TargetUnavailable(
            f"{self._user}: a transaction could not be committed: {words}",
            next_step="see that Kafka runs and that nobody else writes with this pipeline's name; a transaction that "
            "takes longer than transaction.timeout.ms is ended by Kafka: take smaller batches",
        )


def _is_shuffled(made: DataFrame) -> bool:
    """Whether Spark may divide the rows otherwise when the batch is repeated, say on a machine with more cores. The
    state of an operator is divided once and for all."""
    execution = made._jdf.queryExecution()  # noqa: SLF001
    # Known already, while the plan of execution takes a while to make.
    if not _MAY_SHUFFLE.search(_after_operator(execution.analyzed())):
        return False
    return re.search(r"\bExchange\b", _after_operator(execution.executedPlan())) is not None


def _after_operator(plan: Any) -> str:
    return str(plan.toString()).partition("WithState")[0]


def _bytes_held(made: DataFrame) -> int:
    """Of rows that are in Spark's memory."""
    plan = made.select("*")._jdf.queryExecution().optimizedPlan()  # noqa: SLF001
    return int(str(plan.stats().sizeInBytes()))


def _collected(made: DataFrame, whole: bool) -> pa.Table:
    """In the order in which it was computed, with the task of each row."""
    from pyspark.sql import functions as F

    return made.withColumn(_TASK, F.lit(0) if whole else F.spark_partition_id()).toArrow()


def _sent_from_here(rows: pa.Table, fenced: Fenced, topic: str | None, whole: bool) -> list[Sent]:
    """The same parts as tasks would send, side by side."""
    import pyarrow.compute as pc

    tasks = pc.unique(rows.column(_TASK)).to_pylist()
    if not tasks:
        return []

    def sent(task: int) -> Sent:
        batches = rows.filter(pc.equal(rows.column(_TASK), task)).to_batches()
        part = "batch" if whole else _part(batches[0], task)
        return _sent(fenced, topic or _topic(batches[0]), part, batches)

    return list(_threads().map(sent, tasks))


@cache
def _threads() -> ThreadPoolExecutor:
    """To begin one would take longer than to send a small part."""
    return ThreadPoolExecutor(_AT_ONCE, "kafka-parts")


def _send(
    fenced: Fenced, topic: str | None, whole: bool, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """One part, in a worker."""
    import pyarrow as pa
    from pyspark import TaskContext

    first = next((batch for batch in batches if batch.num_rows), None)
    if first is None:
        return
    context = TaskContext.get()
    part = "batch" if whole else _part(first, context.partitionId() if context else 0)
    sent = _sent(fenced, topic or _topic(first), part, chain([first], batches))
    yield pa.record_batch([[value] for value in sent], names=list(Sent._fields))


def _sent(fenced: Fenced, topic: str, part: str, batches: Iterable[pa.RecordBatch]) -> Sent:
    def send(producer: Producer) -> None:
        for batch in unpacked(batches, RECORD):
            produced_all(producer, topic, batch)

    return attempted(part, partial(sent_once, fenced, part, topic, send))


def _topic(first: pa.RecordBatch) -> str:
    """Without a topic of its own, the fence of a part is where its first record goes."""
    return str(first.column("topic")[0].as_py())


def _part(first: pa.RecordBatch, task: int) -> str:
    if PART in first.schema.names and first.column(PART)[0].is_valid:
        return str(first.column(PART)[0].as_py())
    return f"task-{task}"
