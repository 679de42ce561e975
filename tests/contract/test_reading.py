"""How batches of a database source are planned and read, without Spark: one snapshot for all, no row twice."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from ematix_flow.connections import PostgresConnection
from ematix_flow.specs import Source
from ematix_flow.streams.sources.database import postgres as postgres_source
from ematix_flow.streams.sources.database.base import SourceUnavailable
from ematix_flow.streams.sources.database.reader import Incremental, Reading, Snapshots
from ematix_flow.streams.sources.database.source import DatabaseSource
from tests.contract.origins import ORIGINS, Base, OfPostgres, values


@pytest.fixture(params=ORIGINS, ids=lambda origin: origin.name)
def origin(request: pytest.FixtureRequest, tmp_path: Path) -> Base:
    made: Base = request.param(tmp_path)
    made.run("CREATE TABLE orders (id int, n int)")
    return made


def reading(origin: Base, **more: Any) -> Reading:
    looked = DatabaseSource.look(Source(origin.connection, "orders"), origin.connection, "orders")
    return Reading(looked.database, looked.relation, looked.table, tuple(looked.columns), "run", partitions=4, **more)


def ids(reader: Any, start: dict[str, Any], end: dict[str, Any]) -> Counter[int]:
    return ids_of(reader, reader.partitions(start, end))


def ids_of(reader: Any, parts: Any) -> Counter[int]:
    return Counter(int(id) for part in parts for batch in reader.read(part) for id in batch["id"].to_pylist())


def test_parallel_readers_of_postgres_share_a_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_source, "_SLICE_BYTES", 8192)
    origin = OfPostgres(tmp_path)
    origin.run("CREATE TABLE orders (id int, n int)", "INSERT INTO orders SELECT i, i FROM generate_series(1, 20000) i")
    reader = Snapshots(reading(origin))
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    parts = reader.partitions(reader.initialOffset(), end)
    assert len(parts) == 4
    origin.run("DELETE FROM orders WHERE id % 2 = 0", "INSERT INTO orders SELECT -i, i FROM generate_series(1, 5000) i")
    assert ids_of(reader, parts) == Counter(range(1, 20001))
    # Read again for another target, it is the same.
    assert ids_of(reader, parts) == Counter(range(1, 20001))
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    reader.commit(end)


def test_a_batch_is_what_was_planned_whatever_comes_meanwhile(origin: Base) -> None:
    origin.run(f"INSERT INTO orders VALUES {values([(i, i // 3) for i in range(30)])}")
    how = reading(origin, incremental="n", keys=("id",), lookback=2, max_rows=9)
    reader = Incremental(how)
    assert reader.getDefaultReadLimit() == ReadMaxRows(9)
    start, read, rounds = reader.initialOffset(), Counter[int](), 0
    while (end := reader.latestOffset(start, ReadMaxRows(9))) != start:
        parts = reader.partitions(start, end)
        # Between planning and reading: a tie, one that is late, and one that is new.
        if rounds < 3:
            top = int(end["value"])
            origin.run(f"INSERT INTO orders VALUES {values([(100 + 3 * rounds + i, top + i - 1) for i in range(3)])}")
        now = ids_of(reader, parts)
        assert rounds != 1 or ids(reader, start, end) == now, "a repeated batch"
        read += now
        start, rounds = end, rounds + 1
    assert rounds >= 4
    assert read == Counter([*range(30), *range(100, 109)])
    again = Incremental(how)
    again.prepareForTriggerAvailableNow()
    assert again.latestOffset(start, ReadMaxRows(9)) == start


def test_texts_are_followed_whatever_is_in_them(origin: Base) -> None:
    """Also through a query in the words of the database, with quotes of its own."""
    origin.run("CREATE TABLE words (id int, n varchar(20))")
    for number, word in enumerate(["a", "it's", 'q"q', "back\\slash", "z"]):
        origin.fill("words", [number, word])
    text = '"x"' if origin.name == "mysql" else "'x'"
    query = f"SELECT id, n, {text} AS x FROM words"
    looked = DatabaseSource.look(Source(origin.connection, query), origin.connection, "orders")
    reader = Incremental(
        Reading(looked.database, looked.relation, "", tuple(looked.columns), "run", incremental="n", keys=("id",))
    )
    start, read = reader.initialOffset(), Counter[int]()
    while (end := reader.latestOffset(start, ReadMaxRows(1))) != start:
        read += ids(reader, start, end)
        start = end
    assert read == Counter(range(5))


def test_a_server_that_is_away_is_told_as_such(tmp_path: Path) -> None:
    gone = PostgresConnection(url="postgresql://127.0.0.1:1/nothing")
    with pytest.raises(SourceUnavailable, match=r"127\.0\.0\.1:1/nothing cannot be read now"):
        DatabaseSource.look(Source(gone, "orders"), gone, "orders")
