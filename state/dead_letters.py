"""Rows that could not be used, kept with their original bytes, in one SQLite file per pipeline."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

_TABLE = """
CREATE TABLE IF NOT EXISTS dead_letters (
    id TEXT PRIMARY KEY, pipeline TEXT NOT NULL, stage TEXT NOT NULL, error_code TEXT NOT NULL, error TEXT NOT NULL,
    source TEXT NOT NULL, position TEXT NOT NULL, event_ts TEXT, failed_at TEXT NOT NULL, attempt INTEGER NOT NULL,
    payload_format TEXT NOT NULL, payload BLOB, status TEXT NOT NULL
)"""

_COLUMNS = (
    "id", "pipeline", "stage", "error_code", "error", "source", "position", "event_ts", "failed_at", "attempt",
    "payload_format", "payload", "status",
)  # fmt: skip


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
    status: str = "pending"

    @property
    def id(self) -> str:
        """Derived from where the row came from, so that a replayed batch overwrites instead of adding."""
        where = f"{self.pipeline}\x00{self.source}\x00{self.position}"
        return hashlib.sha256(where.encode()).hexdigest()[:24]


class DeadLetters:
    def __init__(self, path: Path) -> None:
        # Used from Spark's callback thread and from the caller's, never at the same time.
        self._db = sqlite3.connect(path, check_same_thread=False)
        self._db.execute("PRAGMA journal_mode=WAL")
        # The batch commits only after this file is on the disk.
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.execute(_TABLE)
        self._db.commit()

    def put(self, letters: Iterable[DeadLetter]) -> int:
        """Step 6 of the commit protocol: all letters of a batch in one transaction."""
        marks = ", ".join("?" * len(_COLUMNS))
        with self._db:
            written = self._db.executemany(
                f"INSERT OR REPLACE INTO dead_letters ({', '.join(_COLUMNS)}) VALUES ({marks})", map(_row, letters)
            )
        return written.rowcount

    def all(self) -> list[DeadLetter]:
        rows = self._db.execute(f"SELECT {', '.join(_COLUMNS[1:])} FROM dead_letters ORDER BY failed_at, position")
        return [_letter(row) for row in rows]

    def close(self) -> None:
        self._db.close()


def _row(letter: DeadLetter) -> tuple[object, ...]:
    values = (getattr(letter, column) for column in _COLUMNS)
    return tuple(v.astimezone(UTC).isoformat() if isinstance(v, datetime) else v for v in values)


def _letter(row: tuple[object, ...]) -> DeadLetter:
    facts = dict(zip(_COLUMNS[1:], row, strict=True))
    for column in ("event_ts", "failed_at"):
        text = facts[column]
        facts[column] = datetime.fromisoformat(text) if isinstance(text, str) else None
    return DeadLetter(**facts)  # type: ignore[arg-type]
