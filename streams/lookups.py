"""Lookups: tables for SQL to join, copied when they are read, so that a repeated batch sees what it saw before.

A version is a folder of Parquet files in the pipeline's checkpoint. Which versions a batch uses is on the disk before
the batch goes on.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ematix_flow.config import connect
from ematix_flow.errors import NotBuilt
from ematix_flow.specs import Lookup
from ematix_flow.state import durable
from ematix_flow.state.home import file_name
from ematix_flow.state.store import Store
from ematix_flow.streams.lookup_base import LookupFailed, Origin
from ematix_flow.streams.lookup_databases import DuckDBOrigin, SQLiteOrigin
from ematix_flow.streams.lookup_files import DeltaOrigin, FilesOrigin
from ematix_flow.streams.lookup_servers import MySQLOrigin, PostgresOrigin

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_log = logging.getLogger(__name__)

ORIGINS: dict[str, type[Origin]] = {
    "sqlite": SQLiteOrigin,
    "duckdb": DuckDBOrigin,
    "postgres": PostgresOrigin,
    "mysql": MySQLOrigin,
    "delta_local": DeltaOrigin,
    "object_store_local": FilesOrigin,
}

# Beside Spark's own notes about its batches, so that it goes when they go.
_NOTE, _COPIES = "lookups.json", "lookups"

Versions = dict[str, str]
"""Name of the lookup -> version."""


@dataclass(frozen=True)
class Read:
    version: str
    at: float


class Lookups:
    """The lookups of one pipeline while it runs."""

    def __init__(
        self,
        declared: Mapping[str, Lookup],
        store: Store,
        session: SparkSession,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._declared, self._store, self._session, self._clock = declared, store, session, clock
        self._origins = {name: _origin(name, lookup, session) for name, lookup in declared.items()}
        self._read: dict[str, Read] = {}
        self._schemas: dict[Path, StructType] = {}
        note = store.checkpoint / _NOTE
        known = json.loads(note.read_text(encoding="utf-8")) if note.exists() else {}
        self._noted: dict[int, Versions] = {int(batch): versions for batch, versions in known.items()}

    def tables(self, batch: int, session: SparkSession | None = None) -> dict[str, DataFrame]:
        """Name in SQL -> rows, as this batch sees them whenever it is planned. In `session`, which in a batch of a
        streaming query is that of its rows."""
        noted = self._noted.get(batch, {})
        versions = {name: self._version(name, noted.get(name)) for name in self._declared}
        if versions != noted:
            self._note(batch, versions)
        return {name: self._rows(self._folder(name, version), session) for name, version in versions.items()}

    def _version(self, name: str, noted: str | None) -> str:
        if noted is not None:
            if self._folder(name, noted).exists():
                return noted
            self._warn("lookup lost", name, "its copy is gone; the batch is repeated with what is there now")
        known = self._read.get(name)
        if known is not None and not self._is_due(name, known):
            return known.version
        try:
            version = self._copied(name)
        except LookupFailed as error:
            if known is None:
                raise
            self._warn("lookup not refreshed", name, error.found)
            version = known.version
        self._read[name] = Read(version, self._clock())
        return version

    def _is_due(self, name: str, known: Read) -> bool:
        interval = self._declared[name].refresh_interval_ms
        return interval is not None and self._clock() - known.at >= interval / 1000

    def _copied(self, name: str) -> str:
        """The version of what is there now, which exists already if nothing has changed."""
        origin = self._origins[name]
        state = origin.state()
        declared = repr((origin.lookup, origin.connection))
        version = hashlib.sha256(f"{declared}{state}".encode()).hexdigest()[:16] if state else uuid.uuid4().hex[:16]
        folder = self._folder(name, version)
        if not folder.exists():
            draft = folder.with_name(f".{version}")
            shutil.rmtree(draft, ignore_errors=True)
            durable.make(folder.parent)
            origin.copy(draft)
            self._schemas[folder] = self._schema(origin, draft)
            for path in (*draft.iterdir(), draft):
                durable.sync(path)
            draft.rename(folder)
            durable.sync(folder.parent)
        return version

    def _schema(self, origin: Origin, folder: Path) -> StructType:
        from pyspark.errors import PySparkException

        try:
            return self._session.read.parquet(str(folder)).schema
        except PySparkException as error:
            raise origin.failed(
                f"Spark cannot use a column of it: {str(error).splitlines()[0]}",
                "cast or leave out the column in `query`",
            ) from error

    def _note(self, batch: int, versions: Versions) -> None:
        """What the batch uses is on the disk; what only older batches used goes."""
        before = [number for number in sorted(self._noted) if number < batch][-1:]
        self._noted = {number: self._noted[number] for number in before} | {batch: versions}
        durable.write(self._store.checkpoint / _NOTE, json.dumps(self._noted))
        kept = {self._folder(name, version) for used in self._noted.values() for name, version in used.items()}
        self._schemas = {folder: schema for folder, schema in self._schemas.items() if folder in kept}
        for folder in (self._store.checkpoint / _COPIES).glob("*/*"):
            if folder not in kept:
                shutil.rmtree(folder, ignore_errors=True)

    def _rows(self, folder: Path, session: SparkSession | None) -> DataFrame:
        if folder not in self._schemas:
            self._schemas[folder] = self._session.read.parquet(str(folder)).schema
        return (session or self._session).read.schema(self._schemas[folder]).parquet(str(folder))

    def _folder(self, name: str, version: str) -> Path:
        return self._store.checkpoint / _COPIES / file_name(name) / version

    def _warn(self, event: str, name: str, reason: str) -> None:
        _log.warning(event, extra={"pipeline": self._store.pipeline, "lookup": name, "reason": reason})


def _origin(name: str, lookup: Lookup, session: SparkSession) -> Origin:
    connection = connect(lookup.connection)
    if connection.kind not in ORIGINS:
        raise NotBuilt(f"lookup from {connection.kind!r}", instead=f"lookups built so far: {', '.join(ORIGINS)}")
    return ORIGINS[connection.kind](name, lookup, connection, session)
