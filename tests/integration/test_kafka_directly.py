"""A backlog of JSON that goes to a topic exactly once: the workers that read it send it, into transactions that are
committed when the batch is applied, or it goes the other way."""

import os
import signal
import tempfile
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from multiprocessing.connection import Listener
from pathlib import Path

import pytest

from ematix_flow.result import RunResult
from ematix_flow.sinks.base import TargetUnavailable
from ematix_flow.sinks.kafka_directly import Outbox, Workers, _serve
from ematix_flow.sinks.kafka_lanes import Fenced
from tests.services.kafka import Kafka
from tests.topics import Topics, numbered

pytestmark = pytest.mark.usefixtures("spark")

KEYS = 5
# More than the driver would send by itself.
MANY = 12_000


class Watched(Workers):
    """Notes what came of each batch, and lets a test do harm at either step."""

    sent: list[int | None]
    before_counting: Callable[[Workers], None]
    before_committing: Callable[[Workers], None]

    def rows(self):  # type: ignore[no-untyped-def]
        self.before_counting(self)
        found = super().rows()
        self.sent.append(found)
        return found

    def commit(self, reached):  # type: ignore[no-untyped-def]
        self.before_committing(self)
        return super().commit(reached)


class Backlog:
    def __init__(self, kafka: Kafka, folder: Path, partitions: int = 2) -> None:
        self.kafka, self.topics, self.partitions = kafka, Topics(kafka, folder), partitions
        self.source, self.target = kafka.new_topic(partitions), kafka.new_topic(2)
        self.produced = 0

    def produce(self, count: int) -> None:
        for row in numbered(range(self.produced, self.produced + count)):
            number = row["id"]
            self.kafka.produce(self.source, row, key=f"k{number % KEYS}", partition=number % self.partitions)
        self.kafka.flush()
        self.produced += count

    def run(self, *, sql: str = "SELECT *, _key FROM source") -> RunResult:
        return self.topics.run(
            self.source,
            sql=sql,
            on_error="dlq",
            target=self.target,
            writing='message_key_column = "_key"',
            top='delivery = "exactly_once"',
        )

    def check(self) -> None:
        """Each row once, and those of a key that come from one partition in their order."""
        assert Counter(row["id"] for row in self.kafka.values(self.target)) == Counter(range(self.produced))
        found: dict[tuple[bytes, int], list[int]] = defaultdict(list)
        for message, row in zip(self.kafka.read(self.target), self.kafka.values(self.target), strict=True):
            assert message.key() == f"k{row['id'] % KEYS}".encode()
            found[message.key(), row["id"] % self.partitions].append(row["id"])
        assert all(ids == sorted(ids) for ids in found.values())


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Watched]]:
    Watched.sent = []
    Watched.before_counting = Watched.before_committing = staticmethod(lambda _: None)  # type: ignore[assignment]
    monkeypatch.setattr("ematix_flow.sinks.kafka_transactions.Workers", Watched)
    monkeypatch.setattr("ematix_flow.streams.sources.kafka._BACKLOG", 0)
    return Watched


@pytest.fixture
def backlog(kafka: Kafka, tmp_path: Path, watched: type[Watched]) -> Backlog:
    return Backlog(kafka, tmp_path)


def test_a_batch_is_sent_by_those_who_read_it(backlog: Backlog, watched: type[Watched]) -> None:
    """And the driver sends a small one between two of them, in the same transactions."""
    for count in (MANY, 100, MANY):
        backlog.produce(count)
        result = backlog.run()
        assert (result.rows_consumed, result.rows_written) == (count, {backlog.target: count})
        backlog.check()
    assert watched.sent == [MANY, MANY]


def test_a_batch_of_which_something_takes_spark_goes_the_other_way(backlog: Backlog, watched: type[Watched]) -> None:
    backlog.produce(MANY)
    backlog.kafka.send(backlog.source, ["broken"], partition=1)
    result = backlog.run()
    assert (result.rows_consumed, result.rows_written) == (MANY + 1, {backlog.target: MANY})
    assert result.dlq_rows == {"decode": 1}
    assert watched.sent == [None]
    backlog.check()


def test_more_partitions_than_workers_have_producers_for(kafka: Kafka, tmp_path: Path, watched: type[Watched]) -> None:
    backlog = Backlog(kafka, tmp_path, partitions=40)
    backlog.produce(MANY)
    assert backlog.run().rows_written == {backlog.target: MANY}
    # Two workers are too few; Spark may have more of them idle from before.
    assert watched.sent in ([None], [MANY])
    backlog.check()


def test_a_place_for_sockets_that_has_too_long_a_name(
    backlog: Backlog, watched: type[Watched], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("x" * 120)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    backlog.produce(MANY)
    assert backlog.run().rows_written == {backlog.target: MANY}
    assert watched.sent == [None]
    backlog.check()


def kill(workers: Workers) -> None:
    """Those that hold transactions open."""
    for socket in workers.sockets():
        os.kill(int(Path(socket).name), signal.SIGKILL)


def test_a_worker_that_dies_before_all_is_staged(backlog: Backlog, watched: type[Watched]) -> None:
    backlog.produce(MANY)
    watched.before_counting = staticmethod(kill)  # type: ignore[assignment]
    assert backlog.run().rows_written == {backlog.target: MANY}
    assert watched.sent == [None]
    backlog.check()


def test_a_worker_that_dies_before_the_batch_is_applied(backlog: Backlog, watched: type[Watched]) -> None:
    backlog.produce(MANY)
    watched.before_committing = staticmethod(kill)  # type: ignore[assignment]
    with pytest.raises(TargetUnavailable, match="a worker ended"):
        backlog.run()
    watched.before_committing = staticmethod(lambda _: None)  # type: ignore[assignment]
    assert backlog.run().rows_written == {backlog.target: MANY}
    assert watched.sent == [MANY, MANY]
    backlog.check()


@pytest.mark.parametrize(("parts", "counted"), [(("a/0", "a/1"), 20), (("a/0", "a/0"), None)])
def test_what_two_workers_have_sent_of_one_part_is_not_committed(parts: tuple[str, str], counted: int | None) -> None:
    """One of them has shut out the other one."""
    workers = Workers(Fenced({}, "orders/out", "g", 1), 60_000)
    for number, part in enumerate(parts):
        outbox = Outbox(workers.told)
        outbox.lanes[part], outbox.rows[part] = None, 10
        listener = Listener(str(Path(workers.told.folder, str(number))), "AF_UNIX")
        threading.Thread(target=_serve, args=(listener, outbox), daemon=True).start()
    assert workers.rows() == counted
    workers.abort()
    assert not Path(workers.told.folder).exists()


def test_a_transaction_that_is_soon_over_is_not_committed() -> None:
    workers = Workers(Fenced({}, "orders/out", "g", 1), 0)
    assert workers.rows() is None
    workers.abort()
