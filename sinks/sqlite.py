"""The SQLite target: executors stage Parquet in SQLite's own types, one transaction on the driver loads it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ematix_flow.connections import SQLiteConnection
from ematix_flow.errors import FlowError
from ematix_flow.sinks import sqlite_types
from ematix_flow.sinks.base import HIDDEN, Batch, Staged
from ematix_flow.sinks.database import Database, DatabaseSink, first_line
from ematix_flow.sinks.drift import TableColumn
from ematix_flow.sinks.tables import Load, quoted
from ematix_flow.specs import Target

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# A program that writes to the file holds its lock; that passes.
_LOCK_PATIENCE_SECONDS = 30.0
_STAGED = "temp._flow_staged"
# The primary key, if the table was made so that it has no other identity.
_WITHOUT_ROWID = """
SELECT c.name FROM pragma_table_list(?) AS t JOIN pragma_table_xinfo(t.name, t.schema) AS c
WHERE t.schema = 'main' AND t.wr AND c.pk > 0"""


class SQLiteSink(DatabaseSink):
    capabilities = replace(DatabaseSink.capabilities, typed=False, limits=False)
    product = "SQLite"
    # At once, because a transaction that reads first could not wait for another writer.
    begin = "BEGIN IMMEDIATE"
    types = sqlite_types.TYPES

    def __init__(self, target: Target, connection: SQLiteConnection, name: str) -> None:
        super().__init__(target, connection.path, name)
        if self._schema.lower() != "main":
            raise FlowError(
                f"target {name}: SQLite has no schema {self._schema!r}, only main",
                next_step='leave the schema out, or say schema = "main"',
            )

    def _open(self) -> Database:
        try:
            return sqlite3.connect(self._path, timeout=_LOCK_PATIENCE_SECONDS, isolation_level=None)
        except sqlite3.OperationalError as error:
            raise FlowError(
                f"SQLite cannot open {self._path}: {first_line(error)}", next_step="check the path and its permissions"
            ) from error

    def _located(self, db: Database) -> str:
        return f'"main".{quoted(self._ref.name)}'

    def _columns(self, db: Database) -> list[TableColumn]:
        found = db.execute(
            'SELECT name, type, "notnull", dflt_value IS NOT NULL FROM pragma_table_xinfo(?, ?) WHERE hidden = 0',
            (self._ref.name, "main"),
        )
        return [
            TableColumn(
                name,
                sqlite_types.spark_type(kind),
                not notnull,
                bool(has_default),
                sqlite_types.max_length(kind),
                kind,
            )
            for name, kind, notnull, has_default in found
        ]

    def _create(self, db: Database, statement: str, primary_key: Sequence[str]) -> None:
        db.execute(statement)
        if self._shape.keys and not primary_key:
            # Keys that may be NULL are no primary key, but every batch looks them up.
            index = quoted(f"{self._ref.name}_keys")
            db.execute(f"CREATE INDEX {index} ON {quoted(self._ref.name)} ({', '.join(map(quoted, self._shape.keys))})")

    def _widen(self, db: Database, column: TableColumn) -> None:
        """Nothing: a column keeps any value, whatever its declared type."""

    def _encoded(self, rows: DataFrame) -> DataFrame:
        return rows.select(*(sqlite_types.encoded(rows, field) for field in rows.schema.fields))

    def _source(self, db: Database, staged: Staged) -> str:
        """A temporary table whose columns prefer the same kinds of values as the table's."""
        assert isinstance(db, sqlite3.Connection)
        columns = ", ".join(f"0 AS {name}" if name in HIDDEN else quoted(name) for name in staged.columns)
        db.execute(f"CREATE TABLE {_STAGED} AS SELECT {columns} FROM {self._located(db)} WHERE 0")
        places = ", ".join("?" * len(staged.columns))
        db.executemany(f"INSERT INTO {_STAGED} VALUES ({places})", _staged_rows(staged))
        return _STAGED

    def _planned(self, db: Database, staged: Staged, source: str, batch: Batch) -> Load:
        """SQLite knows no DELETE ... USING, and for EXISTS it would compare each row of the table with each staged
        one."""
        load = super()._planned(db, staged, source, batch)
        if not load.withdraws:
            return load
        primary_key = db.execute(_WITHOUT_ROWID, (self._ref.name,)).fetchall()
        return replace(load, identity=tuple(quoted(name) for (name,) in primary_key) or ("_rowid_",))

    def _driver_error(self) -> type[Exception]:
        return sqlite3.Error

    def _refusal(self, error: Exception) -> bool:
        return isinstance(error, sqlite3.IntegrityError | sqlite3.DataError)

    def _busy(self, error: Exception) -> bool:
        # The lower byte is the error, the rest says more about it.
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        return code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


def _staged_rows(staged: Staged) -> Iterator[tuple[Any, ...]]:
    import pyarrow.parquet as pq

    for file in sorted(Path(staged.folder).glob("part-*.parquet")):
        for batch in pq.ParquetFile(file).iter_batches():
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)
