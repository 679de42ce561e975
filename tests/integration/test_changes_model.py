"""Random histories of changes, out of order and repeated, against a dictionary; on every target."""

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from ematix_flow import CDC, ObjectStoreLocalConnection
from ematix_flow.specs import PipelineSpec, Source, Transform
from ematix_flow.streams.run import run_spec
from tests.contract.backends import Backend, Delta, DuckDB, MariaDB, MySQL, Postgres, SQLite
from tests.integration.test_changes import second

pytestmark = [pytest.mark.usefixtures("spark"), pytest.mark.slow]

TARGETS = [DuckDB, SQLite, Postgres, MariaDB, MySQL, Delta]
Table = dict[tuple[str, int], dict[str, Any]]


class History:
    """Changes of a table in the order in which they were made, and what the table is afterwards."""

    def __init__(self, random_: random.Random, changes: int, *, whole: bool) -> None:
        self._random, self._whole = random_, whole
        self.table: Table = {}
        self.events = [self._change(place) for place in range(1, changes + 1)]

    def _change(self, place: int) -> dict[str, Any]:
        chosen = self._random
        key = (chosen.choice("ab"), chosen.randrange(4))
        row = {"a": chosen.randrange(100), "b": chosen.choice(["x", "y", None])}
        roll = chosen.random()
        if roll < 0.03 and self._whole:
            self.table.clear()
            return _event("t", place)
        if key not in self.table:
            self.table[key] = row
            return _event(chosen.choice("cru"), place, _named(key, row))
        if roll < 0.25:
            del self.table[key]
            return _event("d", place, None, _named(key, {}))
        if roll < 0.35 and self._whole:
            new = (chosen.choice("ab"), 4 + chosen.randrange(4))
            del self.table[key]
            self.table[new] = row
            return _event("u", place, _named(new, row), _named(key, {}))
        if not self._whole and roll < 0.7:
            name = chosen.choice("ab")
            self.table[key] |= {name: row[name]}
            unlogged = {"b": "__debezium_unavailable_value"} if name == "a" and roll < 0.5 else {}
            return _event("u", place, _named(key, {name: row[name], **unlogged}))
        self.table[key] = row
        return _event("u", place, _named(key, row))


def _named(key: tuple[str, int], row: dict[str, Any]) -> dict[str, Any]:
    return {"shop": key[0], "id": key[1], **row}


def _event(op: str, place: int, after: Any = None, before: Any = None) -> dict[str, Any]:
    return {"op": op, "after": after, "before": before, "source": {"lsn": place, "ts_ms": 1}, "ts_ms": 2}


def shuffled(events: list[dict[str, Any]], chosen: random.Random) -> list[list[dict[str, Any]]]:
    """In any order, some of them twice."""
    all_of_them = events + chosen.sample(events, len(events) // 3)
    chosen.shuffle(all_of_them)
    return _cut(all_of_them, chosen)


def repeated(events: list[dict[str, Any]], chosen: random.Random) -> list[list[dict[str, Any]]]:
    """In order, as after a restart of the connector: some way back, and on from there."""
    sent: list[dict[str, Any]] = []
    done = 0
    while done < len(events):
        end = min(len(events), done + chosen.randrange(1, 15))
        sent += events[max(0, done - chosen.randrange(12)) : end]
        done = end
    return _cut(sent, chosen)


def _cut(events: list[dict[str, Any]], chosen: random.Random) -> list[list[dict[str, Any]]]:
    places = sorted(chosen.sample(range(1, len(events)), 3))
    return [events[a:b] for a, b in zip([0, *places], [*places, len(events)], strict=True)]


@pytest.mark.parametrize("backend", TARGETS, ids=lambda backend: backend.name)
@pytest.mark.parametrize("seed", [1])
def test_the_table_is_what_the_history_says(
    backend: type[Backend], seed: int, tmp_path: Path, spark: SparkSession
) -> None:
    target = backend(tmp_path, spark)
    for whole in (True, False):
        chosen = random.Random(seed * 2 + whole)
        history = History(chosen, 90, whole=whole)
        batches = (shuffled if whole else repeated)(history.events, chosen)
        inbox = tmp_path / f"inbox-{whole}"
        inbox.mkdir()
        for number, events in enumerate(batches):
            file = inbox / f"{number}.jsonl"
            file.write_text("".join(json.dumps(event) + "\n" for event in events), encoding="utf-8")
            os.utime(file, (1_700_000_000 + number,) * 2)
        table = target.target(mode="merge", keys=["shop", "id"])
        if not whole:
            # Beside the first one, so that it begins with nothing.
            (tmp_path / "again").mkdir()
            target = backend(tmp_path / "again", spark)
            table = target.target(mode="merge", keys=["shop", "id"])
        spec = PipelineSpec(
            name=f"model-{whole}",
            sources=[
                Source(
                    connection=ObjectStoreLocalConnection(path=str(inbox), format="json_lines"),
                    schema="shop string, id long, a long, b string",
                    max_files_per_batch=1,
                )
            ],
            targets=[table],
            transform=Transform(cdc=CDC()),
        )
        result = run_spec(spec, bounded=True, spark=spark)
        found = {(row["shop"], row["id"]): {"a": row["a"], "b": row["b"]} for row in target.read(StructType())}
        assert found == history.table
        assert result.batches == 4
        total = sum(number for what, number in result.changes.items() if what != "skipped")
        assert total == sum(map(len, batches))


@pytest.mark.parametrize("backend", TARGETS, ids=lambda backend: backend.name)
def test_the_history_is_what_the_log_says(backend: type[Backend], tmp_path: Path, spark: SparkSession) -> None:
    """As after restarts of the connector. Every row has a content of its own, so that no version is like the last."""
    chosen = random.Random(4)
    events: list[dict[str, Any]] = []
    versions: dict[tuple[int, int], tuple[int, int | None]] = {}
    current: dict[int, int] = {}
    for place in range(1, 80):
        key = chosen.randrange(6)
        if (began := current.pop(key, None)) is not None:
            versions[key, began] = (began, place)
        if began is not None and chosen.random() < 0.3:
            events.append(_event("d", place, None, {"id": key}))
        else:
            events.append(_event("u" if began else "c", place, {"id": key, "a": place}))
            current[key] = place
            versions[key, place] = (place, None)
        events[-1]["source"]["ts_ms"] = 1_700_000_000_000 + place * 1000
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    for number, some in enumerate(repeated(events, chosen)):
        file = inbox / f"{number}.jsonl"
        file.write_text("".join(json.dumps(event) + "\n" for event in some), encoding="utf-8")
        os.utime(file, (1_700_000_000 + number,) * 2)
    connection = ObjectStoreLocalConnection(path=str(inbox), format="json_lines")
    target = backend(tmp_path, spark)
    spec = PipelineSpec(
        name="history",
        sources=[Source(connection=connection, schema="id long, a long", max_files_per_batch=1)],
        targets=[target.target(mode="scd2", keys=["id"])],
        transform=Transform(cdc=CDC()),
    )
    run_spec(spec, bounded=True, spark=spark)
    found = {
        (row["id"], row["a"]): (second(row["valid_from"]), second(row["valid_to"])) for row in target.read(StructType())
    }
    assert found == versions
