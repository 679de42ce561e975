"""Rows that could not be used, kept with their original bytes, in one SQLite file per pipeline.

A running pipeline and `flow dlq` use the file at the same time. Every method is one transaction, and doing it again
after a crash gives the same end.
"""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

PENDING, LEASED, PARKED = STATUSES = ("pending", "leased", "parked")

_TABLES = """
CREATE TABLE IF NOT EXISTS dead_letters (
    id TEXT PRIMARY KEY, pipeline TEXT NOT NULL, stage TEXT NOT NULL, error_code TEXT NOT NULL, error TEXT NOT NULL,
    source TEXT NOT NULL, position TEXT NOT NULL, event_ts TEXT, failed_at TEXT NOT NULL, attempt INTEGER NOT NULL,
    payload_format TEXT NOT NULL, payload BLOB, status TEXT NOT NULL, replay TEXT
);
CREATE TABLE IF NOT EXISTS replayed (id TEXT PRIMARY KEY, generation TEXT NOT NULL) WITHOUT ROWID;
"""

_COLUMNS = (
    "id", "pipeline", "stage", "error_code", "error", "source", "position", "event_ts", "failed_at", "attempt",
    "payload_format", "payload", "status",
)  # fmt: skip
_ORDER = "ORDER BY failed_at, position"

# What a batch that is repeated may tell anew of a letter. How often it was tried, and what became of it, is ours.
_TOLD = ("stage", "error_code", "error", "event_ts", "failed_at", "payload_format", "payload")

_PUT = f"""
INSERT INTO dead_letters ({", ".join(_COLUMNS)}) SELECT {", ".join(f":{column}" for column in _COLUMNS)}
WHERE NOT EXISTS (SELECT 1 FROM replayed WHERE id = :id AND generation = :generation)
ON CONFLICT (id) DO UPDATE SET {", ".join(f"{column} = excluded.{column}" for column in _TOLD)}"""

_FAILED_AGAIN = """
UPDATE dead_letters SET stage = :stage, error_code = :error_code, error = :error, failed_at = :failed_at, replay = NULL,
    status = CASE WHEN attempt >= :max_attempts THEN 'parked' ELSE 'pending' END
WHERE id = :id AND replay = :replay
RETURNING status"""

_ID_LENGTH = 24
_IS_ID = re.compile(f"[0-9a-f]{{{_ID_LENGTH}}}")

# The daemon and a replay write for moments only; whoever waits longer meets a process that hangs.
_BUSY_SECONDS = 60


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

    def sql(self) -> tuple[str, list[object]]:
        """A SELECT of their ids, and its parameters."""
        terms: dict[str, object] = {
            "status IN (SELECT value FROM json_each(?))": json.dumps(self.statuses),
            "stage = ?": self.stage,
            "failed_at >= ?": _text(self.since),
            "failed_at < ?": _text(self.before),
            "id IN (SELECT value FROM json_each(?))": None if self.ids is None else json.dumps(self.ids),
        }
        used = {term: value for term, value in terms.items() if value is not None}
        limit = -1 if self.limit is None else self.limit
        return f"SELECT id FROM dead_letters WHERE {' AND '.join(used)} {_ORDER} LIMIT ?", [*used.values(), limit]


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


class DeadLetters:
    def __init__(self, path: Path, generation: str = "") -> None:
        """`generation` is that of the pipeline's checkpoint; only who writes letters needs it."""
        self._generation = generation
        # Used from Spark's callback thread and from the caller's, never at the same time.
        self._db = sqlite3.connect(path, timeout=_BUSY_SECONDS, check_same_thread=False)
        self._db.execute("PRAGMA journal_mode=WAL")
        # The batch commits only after this file is on the disk.
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.executescript(_TABLES)

    def put(self, letters: Iterable[DeadLetter]) -> int:
        """Step 6 of the commit protocol: all letters of a batch. A batch that is repeated changes neither the status
        of a letter nor its attempts, and does not bring back a letter that was replayed meanwhile."""
        with self._db:
            written = self._db.executemany(_PUT, (_row(one) | {"generation": self._generation} for one in letters))
            # A pipeline that was reset reads everything again, and what failed before may fail again.
            self._db.execute("DELETE FROM replayed WHERE generation <> ?", [self._generation])
        return max(0, written.rowcount)

    def find(self, which: Which = Which()) -> Iterator[DeadLetter]:  # noqa: B008 - it is frozen
        """Oldest first."""
        ids, values = which.sql()
        return self._letters(f"id IN ({ids}) {_ORDER}", values)

    def all(self) -> list[DeadLetter]:
        return list(self.find())

    def starting_with(self, prefix: str) -> list[DeadLetter]:
        """Letters whose id begins like this; a few, if there are many."""
        # Ids are hexadecimal, so that "g" comes after all that may follow.
        return list(self._letters("id >= ? AND id < ? || 'g' ORDER BY id LIMIT 5", [prefix, prefix]))

    def count(self, which: Which = Which()) -> int:  # noqa: B008
        ids, values = which.sql()
        (number,) = self._db.execute(f"SELECT count(*) FROM ({ids})", values).fetchone()
        return int(number)

    def counts(self) -> list[Count]:
        rows = self._db.execute(
            "SELECT stage, error_code, status, count(*), min(failed_at) FROM dead_letters "
            "GROUP BY stage, error_code, status ORDER BY stage, error_code, status"
        )
        return [
            Count(stage, code, status, letters, datetime.fromisoformat(oldest))
            for stage, code, status, letters, oldest in rows
        ]

    def park(self, ids: Iterable[str]) -> int:
        """Not the leased ones: a replay has them in hand."""
        with self._db:
            parked = self._db.executemany(
                "UPDATE dead_letters SET status = 'parked' WHERE id = ? AND status = 'pending'", [(one,) for one in ids]
            )
        return max(0, parked.rowcount)

    def purge(self, which: Which) -> int:
        ids, values = which.sql()
        with self._db:
            return self._db.execute(f"DELETE FROM dead_letters WHERE id IN ({ids}) AND replay IS NULL", values).rowcount

    def lease(self, which: Which, replay: str) -> int:
        """Take letters for a replay, one attempt more."""
        ids, values = which.sql()
        with self._db:
            return self._db.execute(
                "UPDATE dead_letters SET status = 'leased', replay = ?, attempt = attempt + 1 "
                f"WHERE id IN ({ids}) AND replay IS NULL",
                [replay, *values],
            ).rowcount

    def open_replay(self) -> str | None:
        """The replay that has letters in hand, alive or dead."""
        found = self._db.execute("SELECT replay FROM dead_letters WHERE replay IS NOT NULL LIMIT 1").fetchone()
        return found[0] if found else None

    def leased(self, replay: str) -> Iterator[DeadLetter]:
        return self._letters(f"replay = ? {_ORDER}", [replay])

    def settle(self, replay: str, failed: Iterable[DeadLetter], max_attempts: int) -> Settled:
        """Step 6 of a replay. What it reads are letters, so that the position of a row that failed is the id of its
        letter, which waits again or is parked. The other letters of the replay are done with. A row of which nobody
        knows the origin, because several were made into one, is a new letter."""
        statuses: list[str] = []
        with self._db:
            for row in failed:
                if _IS_ID.fullmatch(row.position):
                    facts = _row(row) | {"id": row.position, "replay": replay, "max_attempts": max_attempts}
                    statuses += [status for (status,) in self._db.execute(_FAILED_AGAIN, facts).fetchall()]
                else:
                    self._db.execute(_PUT, _row(row) | {"generation": self._generation})
            self._db.execute(
                "INSERT OR REPLACE INTO replayed SELECT id, ? FROM dead_letters WHERE replay = ?",
                [self._generation, replay],
            )
            done = self._db.execute("DELETE FROM dead_letters WHERE replay = ?", [replay]).rowcount
        return Settled(done, len(statuses), statuses.count(PARKED))

    def close(self) -> None:
        self._db.close()

    def _letters(self, where: str, values: list[object]) -> Iterator[DeadLetter]:
        rows = self._db.execute(f"SELECT {', '.join(_COLUMNS[1:])} FROM dead_letters WHERE {where}", values)
        return map(_letter, rows)


def _row(letter: DeadLetter) -> dict[str, object]:
    values = {column: getattr(letter, column) for column in _COLUMNS}
    return {column: _text(value) if isinstance(value, datetime) else value for column, value in values.items()}


def _text(moment: datetime | None) -> str | None:
    return None if moment is None else moment.astimezone(UTC).isoformat()


def _letter(row: tuple[object, ...]) -> DeadLetter:
    facts = dict(zip(_COLUMNS[1:], row, strict=True))
    for column in ("event_ts", "failed_at"):
        text = facts[column]
        facts[column] = datetime.fromisoformat(text) if isinstance(text, str) else None
    return DeadLetter(**facts)  # type: ignore[arg-type]
