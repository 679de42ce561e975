"""Kafka transactions with a fence in them: whoever sends a part of a batch once, does it with these.

A part has a transactional id of its own, so that whoever opens it ends what an earlier process, or an earlier attempt
of a task, may still have open. The fence is the number of the batch, committed as the offset of a consumer group that
nobody reads by; Kafka shows records and fence together or not at all.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from ematix_flow.connections import KafkaConnection
from ematix_flow.sinks.kafka_client import MOST_BYTES, librdkafka_properties, opened
from ematix_flow.sinks.kafka_login import KafkaRefused, Properties

if TYPE_CHECKING:
    import pyarrow as pa
    from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

# Longer than any part should take, shorter than brokers allow by default. Readers wait as long if the process dies and
# is not started again.
_TRANSACTION_MS = 300_000
_CALL_SECONDS = 30.0
# librdkafka may not come back at all from a call during which its broker went away, whatever time it was given.
_HANGING_SECONDS = _CALL_SECONDS + 5
_TRIES = 3
# A producer has threads and memory, and a worker meets all partitions of a topic in turn.
MOST_KEPT = 16
_TAKEN_OVER = frozenset({"_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH", "_STATE"})

RECORD = ("key", "value", "headers", "topic", "partition")

_kept: dict[str, Lane] = {}


@dataclass(frozen=True)
class Fenced:
    """What every part of a batch must know."""

    properties: Properties = field(repr=False)
    name: str
    """Of the pipeline and the target, in transactional ids."""
    generation: str
    batch: int
    reached: Callable[[str], None] = lambda _: None
    """Called at points where a crash is worth a test."""


class Sent(NamedTuple):
    """What became of a part."""

    part: str
    done: bool
    code: str = ""
    failure: str = ""


def transactional(connection: KafkaConnection, most: int) -> Properties:
    """A batch of records, too, has to be no larger than its topic takes."""
    return {
        "transaction.timeout.ms": _TRANSACTION_MS,
        "enable.idempotence": True,
        # Large requests; the commit does not wait for one to be full. A broker takes a megabyte by default.
        "linger.ms": 50,
        "batch.size": min(512 << 10, most),
        "batch.num.messages": 100_000,
        "message.max.bytes": MOST_BYTES,
        "queue.buffering.max.messages": 0,
        "queue.buffering.max.kbytes": 64 << 10,
        # The commit tells whether all is there.
        "delivery.report.only.error": True,
        **librdkafka_properties(connection),
    }


class Lane:
    """The producer of one part. It stays open between batches, because opening it takes longer than a small batch."""

    is_open = False
    """It is in a transaction."""

    def __init__(self, fenced: Fenced, name: str, topic: str) -> None:
        from confluent_kafka import Consumer, Producer, TopicPartition

        self.name = name
        group = {"group.id": f"{name}/{fenced.generation}", "enable.auto.commit": False}
        readable = {"isolation.level": "read_committed"}
        self.generation = fenced.generation
        self.group: Consumer = opened(Consumer, {**fenced.properties, **group, **readable})
        self.producer: Producer = opened(Producer, {**fenced.properties, "transactional.id": name})
        fence = partial(self.group.committed, [TopicPartition(topic, 0)], _CALL_SECONDS)
        # Both clients connect at the same time.
        connecting = threading.Thread(target=_tried, args=(fence,), daemon=True)
        connecting.start()
        # librdkafka waits half a second before it asks for a transaction if it is connected to no broker by then. The
        # first answer may be of one that it gives up for the same one by its number; the second is of that.
        for _ in range(2):
            patiently(partial(self.producer.list_topics, topic, _CALL_SECONDS))
        # Ends what another producer of this name has open; only then is the fence final.
        patiently(partial(self.producer.init_transactions, _CALL_SECONDS))
        connecting.join()
        (found,) = fence()
        self.last = int(found.offset)
        """The newest batch that is there, or a number below zero."""

    @contextmanager
    def dropped_if_it_fails(self) -> Iterator[None]:
        """Nobody knows what state it is in then; who opens it next ends what it has open."""
        try:
            yield
        except BaseException:
            _drop(self.name)
            raise

    def abort(self) -> None:
        """What it has sent is never seen."""
        with self.dropped_if_it_fails():
            patiently(partial(self.producer.abort_transaction, _CALL_SECONDS))
            self.is_open = False

    def close(self) -> None:
        """Not waited for: what ended a lane may keep it from ending."""
        threading.Thread(target=_end, args=(self.producer, self.group), daemon=True).start()


def _tried(call: Callable[[], object]) -> None:
    """It is called again by who wants to know how it ends."""
    from confluent_kafka import KafkaException

    with suppress(KafkaException):
        call()


def _end(producer: Producer, group: Consumer) -> None:
    group.close()
    producer.purge()


def sent_once(fenced: Fenced, part: str, topic: str, send: Callable[[Producer], None]) -> bool:
    """Send a part in one transaction with its fence, which is kept in `topic`. False if it is there already."""
    lane = begun(fenced, part, topic)
    if lane is None:
        return False
    with lane.dropped_if_it_fails():
        send(lane.producer)
    return committed(lane, fenced.batch, fenced.reached)


def committed(lane: Lane, batch: int, reached: Callable[[str], None]) -> bool:
    with lane.dropped_if_it_fails():
        reached("apply/before-commit")
        patiently(partial(lane.producer.commit_transaction, _CALL_SECONDS))
        reached("apply/after-commit")
        lane.is_open, lane.last = False, batch
    return True


def attempted(part: str, send: Callable[[], bool]) -> Sent:
    """A failure is told, not raised: Spark would try again at once, and bury the words."""
    from confluent_kafka import KafkaException

    try:
        return Sent(part, send())
    except KafkaException as error:
        return Sent(part, False, error.args[0].name(), error.args[0].str())
    except KafkaRefused as error:
        return Sent(part, False, error.code, error.found)


def begun(fenced: Fenced, part: str, topic: str) -> Lane | None:
    """A lane in a transaction that holds the fence; None if it is there already. The fence comes first, because Kafka
    answers it: a producer whose name another worker has taken over meanwhile hears of it before it took any row."""
    from confluent_kafka import KafkaException, TopicPartition

    name = f"ematix-flow/{fenced.name}/{part}"
    for left in reversed(range(_TRIES)):
        lane = _kept.get(name)
        if lane is None or lane.is_open or lane.generation != fenced.generation:
            _drop(name)
            lane = Lane(fenced, name, topic)
            _keep(lane)
        if lane.last >= fenced.batch:
            return None
        mark = [TopicPartition(topic, 0, fenced.batch)]
        try:
            # It is asked now and then whether a login has to be renewed; between records that would cost a tenth.
            lane.producer.poll(0)
            lane.producer.begin_transaction()
            reader = lane.group.consumer_group_metadata()
            patiently(partial(lane.producer.send_offsets_to_transaction, mark, reader, _CALL_SECONDS))
        except BaseException as error:
            _drop(name)
            if not left or not isinstance(error, KafkaException) or not _is_taken_over(error.args[0]):
                raise
        else:
            lane.is_open = True
            return lane
    raise AssertionError("the last try returns or raises")


def produced_all(producer: Producer, topic: str, batch: pa.RecordBatch) -> None:
    """Records with some of the columns `RECORD`, as they name their topics, or to this one."""
    given = {name: batch.column(name).to_pylist() for name in batch.schema.names}
    nothing: list[None] = [None] * batch.num_rows
    if given.keys() == {"key", "value"}:
        # Each call counts: this is where most of the time goes.
        produce = producer.produce
        for key, value in zip(given["key"], given["value"], strict=True):
            try:
                produce(topic, value, key)
            except BufferError:
                produced(producer, topic, value, key)
    else:
        columns = [given.get(name, nothing) for name in RECORD]
        for key, value, headers, placed, partition in zip(*columns, strict=True):
            told = [(one["key"], one["value"]) for one in headers or ()]
            place = topic if placed is None else placed, value, key, -1 if partition is None else partition
            produced(producer, *place, headers=told)


def produced(producer: Producer, *record: Any, **more: Any) -> None:
    """Waits while the producer holds as much as it may, but not for a broker that takes nothing."""
    deadline = time.monotonic() + _CALL_SECONDS
    while True:
        try:
            producer.produce(*record, **more)
        except BufferError as error:
            if time.monotonic() > deadline:
                raise _unanswered() from error
            producer.poll(0.1)
        else:
            return


def patiently(call: Callable[[], object]) -> None:
    """What librdkafka calls retriable has not failed: the same call goes on with it."""
    from confluent_kafka import KafkaException

    for left in reversed(range(_TRIES)):
        try:
            _in_time(call)
        except KafkaException as error:
            if not left or not error.args[0].retriable():
                raise
        else:
            return


def _in_time(call: Callable[[], object]) -> None:
    """A call that does not come back is left behind, with its producer, whose name the next one takes over."""
    failures: list[BaseException] = []

    def made() -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - it is raised by whoever waits
            failures.append(error)

    thread = threading.Thread(target=made, daemon=True)
    thread.start()
    thread.join(_HANGING_SECONDS)
    if thread.is_alive():
        raise _unanswered()
    if failures:
        raise failures[0]


def _unanswered() -> KafkaException:
    from confluent_kafka import KafkaError, KafkaException

    return KafkaException(KafkaError(KafkaError._TIMED_OUT, "Kafka did not answer in time"))  # noqa: SLF001


def _is_taken_over(error: KafkaError) -> bool:
    return bool(error.fatal()) or error.name() in _TAKEN_OVER


def _keep(lane: Lane) -> None:
    idle = [name for name, one in _kept.items() if not one.is_open]
    for name in idle[: max(0, len(_kept) + 1 - MOST_KEPT)]:
        _drop(name)
    _kept[lane.name] = lane


def _drop(name: str) -> None:
    if lane := _kept.pop(name, None):
        lane.close()
