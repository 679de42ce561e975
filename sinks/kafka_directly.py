"""Records that the workers which read a batch send at once, into transactions that stay open: nobody reads them there,
so that the batch is staged. The driver has the workers commit them when it is applied.

It knows its workers by the sockets in a folder, so they have to be on its machine; and a transaction must not outlive
the time that Kafka gives it. A batch that cannot go this way goes another one: the transactions are ended, and the
batch is read once more.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ematix_flow.sinks.kafka_lanes import MOST_KEPT, Fenced, Lane, Sent, attempted, begun, committed, produced_all
from ematix_flow.sinks.kafka_login import KafkaRefused, Properties

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import SparkContext

T = TypeVar("T")

_ASKED = "flow.kafka.directly"
_LEFT = "left"
# Of the time that Kafka gives a transaction, what may be gone before it is to be committed.
_SHARE = 0.5


@dataclass(frozen=True)
class Asked:
    """What the driver tells workers of a batch."""

    name: str
    generation: str
    batch: int
    folder: str
    until: float
    """When the time of transactions is over, as a Unix time."""


class Outbox:
    """What one worker has sent of a batch."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.lanes: dict[str, Lane | None] = {}
        """By part; None where the fence was there already."""
        self.rows: Counter[str] = Counter()
        """By part."""
        self.is_over = False

    def counted(self) -> Counter[str]:
        return self.rows

    def commit(self, reached: Callable[[str], None]) -> list[Sent]:
        self.is_over = True
        return [
            attempted(part, partial(committed, lane, self.asked.batch, reached)) if lane else Sent(part, False)
            for part, lane in self.lanes.items()
        ]

    def abort(self) -> None:
        from confluent_kafka import KafkaException

        self.is_over = True
        for lane in self.lanes.values():
            if lane is not None and lane.is_open:
                with suppress(KafkaException):
                    lane.abort()
        self.lanes.clear()


_outboxes: dict[str, Outbox] = {}
"""Of this worker, by the folders of their batches."""


@dataclass(frozen=True)
class Directly:
    """Makes the taker of a task, in a worker."""

    properties: Properties = field(repr=False)
    topic: str

    def __call__(self) -> Taker | None:
        """None if the driver has not asked for it."""
        from pyspark import TaskContext

        context = TaskContext.get()
        asked = context.getLocalProperty(_ASKED) if context else None
        return Taker(self, Asked(**json.loads(asked))) if asked else None


class Taker:
    """Sends what one task reads, the records of one partition."""

    def __init__(self, how: Directly, asked: Asked) -> None:
        self._how, self._asked = how, asked
        self._left = Path(asked.folder, _LEFT)
        self._parts: set[str] = set()

    def is_left(self) -> bool:
        """By any of the workers."""
        return self._left.exists()

    def leave(self) -> None:
        """Something cannot be sent from here, and so the whole batch goes another way."""
        self._left.touch()

    def take(self, part: str, records: pa.Table) -> None:
        from confluent_kafka import KafkaException

        try:
            if time.time() > self._asked.until or not self._taken(part, records):
                self.leave()
        except (KafkaException, KafkaRefused, OSError):
            # It is tried again the other way, and told there. A socket may not be had where its path would be too long.
            self.leave()

    def _taken(self, part: str, records: pa.Table) -> bool:
        outbox = _outboxes.get(self._asked.folder) or _opened(self._asked)
        if part not in self._parts:
            # A task that was tried before may have left half of it.
            if part in outbox.lanes or len(outbox.lanes) >= MOST_KEPT:
                return False
            self._parts.add(part)
            asked = self._asked
            fenced = Fenced(self._how.properties, asked.name, asked.generation, asked.batch)
            outbox.lanes[part] = begun(fenced, part, self._how.topic)
        if lane := outbox.lanes[part]:
            with lane.dropped_if_it_fails():
                for batch in records.to_batches():
                    produced_all(lane.producer, self._how.topic, batch)
        outbox.rows[part] += len(records)
        return True


def _opened(asked: Asked) -> Outbox:
    """With a thread that hears what is to become of it."""
    listener = Listener(str(Path(asked.folder, str(os.getpid()))), "AF_UNIX")
    outbox = _outboxes[asked.folder] = Outbox(asked)
    threading.Thread(target=_serve, args=(listener, outbox), daemon=True).start()
    return outbox


def _serve(listener: Listener, outbox: Outbox) -> None:
    with listener:
        while not outbox.is_over:
            with suppress(OSError, EOFError), listener.accept() as connection:
                connection.send(connection.recv()(outbox))
    _outboxes.pop(outbox.asked.folder, None)


class Workers:
    """Those that have sent what they read of a batch, as the driver sees them."""

    def __init__(self, fenced: Fenced, time_ms: int) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="ematix-flow-"))
        until = time.time() + time_ms / 1000 * _SHARE
        self.told = Asked(fenced.name, fenced.generation, fenced.batch, str(self._folder), until)

    @contextmanager
    def asked(self, context: SparkContext) -> Iterator[None]:
        """Spark jobs that this thread starts meanwhile send what they read."""
        context.setLocalProperty(_ASKED, json.dumps(asdict(self.told)))
        try:
            yield
        finally:
            context.setLocalProperty(_ASKED, None)  # type: ignore[arg-type]  # which takes it away

    def rows(self) -> int | None:
        """How many are ready to be committed; None if it cannot be all of the batch."""
        if Path(self._folder, _LEFT).exists() or time.time() > self.told.until:
            return None
        try:
            counts = self._each(Outbox.counted)
        except (OSError, EOFError):
            # One of them is gone, and with it what it had sent.
            return None
        rows = sum(counts, Counter())
        # A task that was tried again elsewhere has shut out who tried it before.
        return rows.total() if len(rows) == sum(map(len, counts)) else None

    def commit(self, reached: Callable[[str], None]) -> list[Sent]:
        try:
            return [one for sent in self._each(partial(Outbox.commit, reached=reached)) for one in sent]
        except (OSError, EOFError):
            return [Sent("", False, "_DESTROY", "a worker ended before it had committed what it had sent")]

    def abort(self) -> None:
        """What was not committed."""
        for name in self.sockets():
            with suppress(OSError, EOFError):
                _told(name, Outbox.abort)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _each(self, call: Callable[[Outbox], T]) -> list[T]:
        sockets = self.sockets()
        with ThreadPoolExecutor(max(1, len(sockets))) as threads:
            return list(threads.map(lambda name: _told(name, call), sockets))

    def sockets(self) -> list[str]:
        """Each has the number of its process for a name."""
        return [str(path) for path in self._folder.iterdir() if path.name != _LEFT]


def _told(socket: str, call: Callable[[Outbox], T]) -> T:
    with Client(socket, "AF_UNIX") as connection:
        connection.send(call)
        answer: T = connection.recv()
    return answer
