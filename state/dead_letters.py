"""Rows that could not be used, kept with their original bytes: what may be done with them, and their SQLite file.

A running pipeline and `flow dlq` use them at the same time. Every method may be done again after a crash, and gives
the same end. Databases other than SQLite take the same statements, in their own words (`Dialect`).
"""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, TypeVar

R = TypeVar("R")
T = TypeVar("T")

PENDING, LEASED, PARKED = STATUSES = ("pending", "leased", "parked")

TABLES = """
CREATE TABLE IF NOT EXISTS dead_letters (
    id TEXT PRIMARY KEY, pipeline TEXT NOT NULL, stage TEXT NOT NULL, error_code TEXT NOT NULL, error TEXT NOT NULL,
    source TEXT NOT NULL, position TEXT NOT NULL, event_ts TEXT, failed_at TEXT NOT NULL, attempt INTEGER NOT NULL,
    payload_format TEXT NOT NULL, payload BLOB, status TEXT NOT NULL, replay TEXT
);
CREATE TABLE IF NOT EXISTS replayed (id TEXT PRIMARY KEY, generation TEXT NOT NULL) WITHOUT ROWID;
"""

COLUMNS = (
    "id", "pipeline", "stage", "error_code", "error", "source", "position", "event_ts", "failed_at", "attempt",
    "payload_format", "payload", "status",
)  # fmt: skip

TOLD = ("stage", "error_code", "error", "event_ts", "failed_at", "payload_format", "payload")
"""What a batch that is repeated may tell anew of a letter. How often it was tried, and what became of it, is ours."""

_PUT = f"""
INSERT INTO {{letters}} ({{key}}, {", ".join(COLUMNS[1:])})
SELECT {{new_key}}, {", ".join(f":{column}" for column in COLUMNS[1:])}
WHERE NOT EXISTS (SELECT 1 FROM {{replayed}} WHERE {{mine}} AND id = :id AND generation = :generation)
ON CONFLICT ({{key}}) DO UPDATE SET {", ".join(f"{column} = excluded.{column}" for column in TOLD)}"""

LETTERS = f"SELECT {', '.join(COLUMNS[1:])} FROM {{letters}} WHERE {{mine}} AND id {{one_of_ids}} {{oldest_first}}"

_TRIED_TOO_OFTEN = """
SELECT count(*) FROM {letters} WHERE {mine} AND replay = :replay AND attempt >= :max_attempts AND id {one_of_ids}"""

_FAILED_AGAIN = """
UPDATE {letters} SET stage = :stage, error_code = :error_code, error = :error, failed_at = :failed_at, replay = NULL,
    status = CASE WHEN attempt >= :max_attempts THEN 'parked' ELSE 'pending' END
WHERE {mine} AND id = :id AND replay = :replay"""

_REMEMBER = """
INSERT INTO {replayed} ({key}, generation) SELECT {key}, :generation FROM {letters} WHERE {mine} AND replay = :replay
ON CONFLICT ({key}) DO UPDATE SET generation = excluded.generation"""

_ID_LENGTH = 24
_IS_ID = re.compile(f"[0-9a-f]{{{_ID_LENGTH}}}")

# The daemon and a replay write for moments only; whoever waits longer meets a process that hangs.
_BUSY_SECONDS = 60

# Of what passes through memory, or is written in one transaction.
_AT_ONCE = 2_000


@dataclass(frozen=True)
class DeadLetter:
    pipeline: str
    stage: str
    error_code: str
    error: str
    source: str
    position: str
    event_ts: datetime | None
    payload_format: str
    payload: bytes | None
    failed_at: datetime
    attempt: int = 1
    """How often the row was tried, the first time included."""
    status: str = PENDING
    key: bytes | None = None
    """Of the record that the row was, for a dead-letter topic; not kept elsewhere."""
    arrived: datetime | None = None
    """The time of that record."""
    headers: tuple[tuple[str, bytes | None], ...] = ()
    """Of that record, for a replay."""

    @property
    def id(self) -> str:
        """Derived from where the row came from, so that a replayed batch overwrites instead of adding."""
        where = f"{self.pipeline}\x00{self.source}\x00{self.position}"
        return hashlib.sha256(where.encode()).hexdigest()[:_ID_LENGTH]


@dataclass(frozen=True)
class Which:
    """Some of the letters of a pipeline: those for which everything said here is true."""

    statuses: tuple[str, ...] = STATUSES
    stage: str | None = None
    since: datetime | None = None
    before: datetime | None = None
    ids: tuple[str, ...] | None = None
    limit: int | None = None
    """The oldest so many."""

    def sql(self) -> tuple[str, dict[str, object]]:
        """A SELECT of their ids, oldest first, and its values."""
        terms: dict[str, tuple[str, object]] = {
            "status {one_of_statuses}": ("statuses", list(self.statuses)),
            "stage = :stage": ("stage", self.stage),
            "failed_at >= :since": ("since", self.since),
            "failed_at < :before": ("before", self.before),
            "id {one_of_ids}": ("ids", None if self.ids is None else list(self.ids)),
        }
        used = {term: named for term, named in terms.items() if named[1] is not None}
        sql = f"SELECT id FROM {{letters}} WHERE {{mine}} AND {' AND '.join(used)} {{oldest_first}}"
        values = dict(used.values())
        return (sql, values) if self.limit is None else (f"{sql} LIMIT :most", values | {"most": self.limit})


@dataclass(frozen=True)
class Count:
    stage: str
    error_code: str
    status: str
    letters: int
    oldest: datetime


@dataclass(frozen=True)
class Settled:
    """What became of the letters of a replay."""

    succeeded: int = 0
    failed_again: int = 0
    parked: int = 0
    """Of those that failed again, those that only a replay by id tries once more."""

    def __add__(self, other: Settled) -> Settled:
        return Settled(
            self.succeeded + other.succeeded, self.failed_again + other.failed_again, self.parked + other.parked
        )


class Cursor(Protocol):
    """What SQLite and Postgres have in common."""

    @property
    def rowcount(self) -> int: ...
    def execute(self, sql: str, values: Mapping[str, object], /) -> object: ...
    def executemany(self, sql: str, rows: Sequence[Mapping[str, object]], /) -> object: ...
    def fetchall(self) -> list[tuple[Any, ...]]: ...


@dataclass(frozen=True)
class Dialect:
    """The words in which databases differ."""

    letters: str = "dead_letters"
    replayed: str = "replayed"
    key: tuple[str, ...] = ("id",)
    """Of both tables; what comes before the id tells whose letters they are."""
    one_of: str = "IN (SELECT value FROM json_each({}))"
    collation: str = "BINARY"
    named: str = ":{}"

    def sql(self, text: str) -> str:
        return _in_words(self, text)

    def value(self, value: object) -> object:
        """As the database takes it."""
        if isinstance(value, datetime):
            return value.astimezone(UTC).isoformat()
        return json.dumps(value) if isinstance(value, list) else value


@cache
def _in_words(dialect: Dialect, text: str) -> str:
    said = text.format(
        letters=dialect.letters,
        replayed=dialect.replayed,
        key=", ".join(dialect.key),
        new_key=", ".join(f":{column}" for column in dialect.key),
        mine=" AND ".join(f"{column} = :{column}" for column in dialect.key[:-1]) or "TRUE",
        one_of_ids=dialect.one_of.format(":ids"),
        one_of_statuses=dialect.one_of.format(":statuses"),
        oldest_first=f'ORDER BY failed_at, position COLLATE "{dialect.collation}"',
    )
    return re.sub(r":(\w+)", lambda name: dialect.named.format(name[1]), said)


class DeadLetters:
    """In a SQLite file; a subclass has another place for them."""

    dialect = Dialect()

    def __init__(self, path: Path, generation: str = "") -> None:
        """`generation` is that of the pipeline's checkpoint; only who writes letters needs it."""
        self._facts: dict[str, object] = {"generation": generation}
        # Used from Spark's callback thread and from the caller's, never at the same time.
        self._db = sqlite3.connect(path, timeout=_BUSY_SECONDS, check_same_thread=False)
        self._db.execute("PRAGMA journal_mode=WAL")
        # The batch commits only after this file is on the disk.
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.executescript(TABLES)

    def put(self, letters: Iterable[DeadLetter]) -> int:
        """Step 6 of the commit protocol: all letters of a batch. A batch that is repeated changes neither the status
        of a letter nor its attempts, and does not bring back a letter that was replayed meanwhile."""
        return sum(self._put(some) for some in _portions(letters))

    def find(self, which: Which = Which()) -> Iterator[DeadLetter]:  # noqa: B008 - it is frozen
        """Oldest first; those that are there now, as they are when their turn comes."""
        sql, values = which.sql()
        return self._letters(self._ids(sql, values))

    def all(self) -> list[DeadLetter]:
        return list(self.find())

    def starting_with(self, prefix: str) -> list[DeadLetter]:
        """Letters whose id begins like this; a few, if there are many."""
        begins = "substr(id, 1, length(CAST(:prefix AS text))) = :prefix"
        return list(
            self._letters(
                self._ids(f"SELECT id FROM {{letters}} WHERE {{mine}} AND {begins} LIMIT 5", {"prefix": prefix})
            )
        )

    def count(self, which: Which = Which()) -> int:  # noqa: B008
        sql, values = which.sql()
        ((number,),) = self._ask(f"SELECT count(*) FROM ({sql}) AS chosen", values)
        return int(number)

    def counts(self) -> list[Count]:
        rows = self._ask(
            "SELECT stage, error_code, status, count(*), min(failed_at) FROM {letters} WHERE {mine} "
            "GROUP BY stage, error_code, status"
        )
        return [Count(stage, code, status, number, _moment(at)) for stage, code, status, number, at in sorted(rows)]

    def park(self, ids: Iterable[str]) -> int:
        """Not the leased ones: a replay has them in hand."""
        sql = "UPDATE {letters} SET status = 'parked' WHERE {mine} AND id {one_of_ids} AND status = 'pending'"
        return self._change(sql, {"ids": list(ids)})

    def purge(self, which: Which) -> int:
        ids, values = which.sql()
        return self._change(f"DELETE FROM {{letters}} WHERE {{mine}} AND id IN ({ids}) AND replay IS NULL", values)

    def lease(self, which: Which, replay: str) -> int:
        """Take letters for a replay, one attempt more."""
        ids, values = which.sql()
        return self._change(
            "UPDATE {letters} SET status = 'leased', replay = :replay, attempt = attempt + 1 "
            f"WHERE {{mine}} AND id IN ({ids}) AND replay IS NULL",
            values | {"replay": replay},
        )

    def open_replay(self) -> str | None:
        """The replay that has letters in hand, alive or dead."""
        found = self._ask("SELECT replay FROM {letters} WHERE {mine} AND replay IS NOT NULL LIMIT 1")
        return found[0][0] if found else None

    def leased(self, replay: str) -> Iterator[DeadLetter]:
        sql = "SELECT id FROM {letters} WHERE {mine} AND replay = :replay {oldest_first}"
        return self._letters(self._ids(sql, {"replay": replay}))

    def settle(self, replay: str, failed: Iterable[DeadLetter], max_attempts: int) -> Settled:
        """Step 6 of a replay. What it reads are letters, so that the position of a row that failed is the id of its
        letter, which waits again or is parked. The other letters of the replay are done with. A row of which nobody
        knows the origin, because several were made into one, is a new letter."""
        settled = Settled()
        for some in _portions(failed):
            if made := [row for row in some if not _IS_ID.fullmatch(row.position)]:
                self._put(made)
            if again := [row for row in some if _IS_ID.fullmatch(row.position)]:
                settled += self._put_back(replay, again, max_attempts)
        return settled + self._done(replay)

    def close(self) -> None:
        self._db.close()

    def _run(self, work: Callable[[Cursor], R]) -> R:
        """`work` in one transaction. It may be called again, if the first time was in vain."""
        with self._db:
            return work(self._db.cursor())

    def _put(self, letters: Sequence[DeadLetter]) -> int:
        def write(db: Cursor) -> int:
            db.executemany(self.dialect.sql(_PUT), [self._row(letter) for letter in letters])
            return db.rowcount

        return self._run(write)

    def _put_back(self, replay: str, failed: Sequence[DeadLetter], max_attempts: int) -> Settled:
        """Letters that failed again."""
        facts = {"replay": replay, "max_attempts": max_attempts}
        rows = [self._row(row) | facts | {"id": row.position} for row in failed]

        def write(db: Cursor) -> Settled:
            ids = [row.position for row in failed]
            ((parked,),) = self._execute(db, _TRIED_TOO_OFTEN, facts | {"ids": ids}).fetchall()
            db.executemany(self.dialect.sql(_FAILED_AGAIN), rows)
            return Settled(failed_again=db.rowcount, parked=parked)

        return self._run(write)

    def _done(self, replay: str) -> Settled:
        """Letters that did not fail again."""

        def write(db: Cursor) -> Settled:
            # A pipeline that was reset reads everything again, and what failed before may fail again.
            self._execute(db, "DELETE FROM {replayed} WHERE {mine} AND generation <> :generation")
            self._execute(db, _REMEMBER, {"replay": replay})
            self._execute(db, "DELETE FROM {letters} WHERE {mine} AND replay = :replay", {"replay": replay})
            return Settled(succeeded=db.rowcount)

        return self._run(write)

    def _letters(self, ids: Sequence[str]) -> Iterator[DeadLetter]:
        """So few at a time that neither their payloads fill the memory, nor a slow reader keeps a transaction open."""
        for some in _portions(ids):
            yield from map(letter_of, self._ask(LETTERS, {"ids": some}))

    def _ids(self, sql: str, values: Mapping[str, object]) -> list[str]:
        return [id for (id,) in self._ask(sql, values)]

    def _ask(self, sql: str, values: Mapping[str, object] | None = None) -> list[tuple[Any, ...]]:
        return self._run(lambda db: self._execute(db, sql, values).fetchall())

    def _change(self, sql: str, values: Mapping[str, object]) -> int:
        return self._run(lambda db: self._execute(db, sql, values).rowcount)

    def _execute(self, db: Cursor, sql: str, values: Mapping[str, object] | None = None) -> Cursor:
        given = {name: self.dialect.value(value) for name, value in (values or {}).items()}
        db.execute(self.dialect.sql(sql), self._facts | given)
        return db

    def _row(self, letter: DeadLetter) -> dict[str, object]:
        return self._facts | {column: self.dialect.value(getattr(letter, column)) for column in COLUMNS}


def letter_of(row: Sequence[Any]) -> DeadLetter:
    """From all columns but the id, which follows from them."""
    facts = dict(zip(COLUMNS[1:], row, strict=True))
    return DeadLetter(**facts | {name: _moment(facts[name]) for name in ("event_ts", "failed_at")})


def _moment(value: str | datetime | None) -> Any:
    moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    return None if moment is None else moment.astimezone(UTC)


def _portions(things: Iterable[T]) -> Iterator[list[T]]:
    rest = iter(things)
    while some := list(islice(rest, _AT_ONCE)):
        yield some
