"""SQLite and DuckDB as sources: a file that is opened to be read and closed at once, so that others may write it."""

from __future__ import annotations

import sqlite3
import time
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import closing
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ematix_flow.connections import DuckDBConnection, SQLiteConnection
from ematix_flow.sinks import duckdb_types, sqlite_types
from ematix_flow.streams.sources.base import SourceNotFound
from ematix_flow.streams.sources.database.base import Database, SourceColumn, SourceRefused, first_line

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

# Whoever writes the file holds its lock for as long as a transaction lasts.
_PATIENCE_SECONDS = 30.0
_ROWS_AT_ONCE = 10_000


class _File(Database):
    text = "VARCHAR"

    def __init__(self, connection: SQLiteConnection | DuckDBConnection, whose: str) -> None:
        if connection.path != ":memory:" and not Path(connection.path).is_file():
            raise SourceNotFound(
                f"{whose}: there is no file {Path(connection.path).absolute()}",
                next_step="create it, or correct `path` of the connection",
            )
        if connection.path == ":memory:":
            raise SourceRefused(
                f"{whose}: a database in memory has no tables to read",
                next_step="give the connection a file as its path",
            )
        super().__init__(str(Path(connection.path).absolute()), whose)

    def literal(self, value: Any) -> str:
        if isinstance(value, date):  # a time, too, is written as SQL wants it
            return f"'{value}'"
        if isinstance(value, str):
            return "'" + value.replace("'", "''") + "'"
        return repr(value) if isinstance(value, float) else str(value)

    def joined(self, parts: Any) -> str:
        return " || chr(31) || ".join(parts)

    def named(self, table: str) -> str:
        return ".".join(map(self.quoted, table.split(".")))

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        with closing(self._opened()) as db:
            found: list[tuple[Any, ...]] = db.execute(sql).fetchall()
            return found

    @abstractmethod
    def _opened(self) -> Any:
        """To be read only."""

    def _next_step(self) -> str:
        return "correct the query of the source, or create the table"


class SQLite(_File):
    product, text, typed = "SQLite", "TEXT", False

    def columns(self, relation: str) -> list[SourceColumn]:
        from pyspark.sql.types import BinaryType, StringType

        with self.in_words(), closing(self._opened()) as db:
            # A view tells the declared type of each of its columns.
            db.execute(f"CREATE TEMP VIEW _flow_source AS SELECT * FROM {relation}")
            declared = [(name, kind) for _, name, kind, *_ in db.execute("PRAGMA temp.table_info(_flow_source)")]
            held = [self._held(db, name) for name, _ in declared]
        columns = []
        for (name, kind), found in zip(declared, held, strict=True):
            spark = sqlite_types.spark_type(kind or found)
            wire = BinaryType() if isinstance(spark, BinaryType) else StringType()
            columns.append(SourceColumn(name, spark, self.quoted(name), wire))
        return columns

    def _held(self, db: sqlite3.Connection, name: str) -> str:
        """The class of the first value of a column, for one that nobody declared."""
        column = self.quoted(name)
        found = db.execute(f"SELECT typeof({column}) FROM temp._flow_source WHERE {column} IS NOT NULL LIMIT 1")
        return str((found.fetchone() or ("text",))[0]).replace("real", "double")

    def primary_key(self, table: str) -> tuple[str, ...]:
        with self.in_words():
            found = self.rows(
                f"SELECT name FROM pragma_table_info({self.literal(table.rpartition('.')[2])}) WHERE pk > 0 ORDER BY pk"
            )
        return tuple(name for (name,) in found)

    def batches(self, sql: str, schema: pa.Schema, snapshot: str) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        with closing(self._opened()) as db:
            found = db.execute(sql)
            while some := found.fetchmany(_ROWS_AT_ONCE):
                columns = [
                    pa.array([_as(value, field.type) for value in column], field.type)
                    for column, field in zip(zip(*some, strict=True), schema, strict=True)
                ]
                yield pa.record_batch(columns, schema=schema)

    def joined(self, parts: Any) -> str:
        return " || char(31) || ".join(parts)

    def failure(self, error: Exception) -> SourceRefused | None:
        if not isinstance(error, sqlite3.Error):
            return None
        # The low byte of an extended code is the code itself.
        locked = getattr(error, "sqlite_errorcode", 0) & 0xFF in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
        return self.unavailable(first_line(error)) if locked else self.refused(first_line(error), self._next_step())

    def _opened(self) -> sqlite3.Connection:
        uri = f"{Path(self.place).as_uri()}?mode=ro"
        db = sqlite3.connect(uri, uri=True, timeout=_PATIENCE_SECONDS, isolation_level=None)
        db.text_factory = lambda text: text.decode("utf-8", "replace")
        return db


class DuckDB(_File):
    product = "DuckDB"

    def columns(self, relation: str) -> list[SourceColumn]:
        with self.in_words(), closing(self._opened()) as db:
            found: list[Any] = list(db.execute(f"SELECT * FROM {relation} LIMIT 0").description or ())
        columns = []
        for name, kind, *_ in found:
            spark = duckdb_types.spark_type(kind)
            expression = f"CAST({self.quoted(name)} AS {duckdb_types.column_type(spark)})"
            columns.append(SourceColumn(name, spark, expression, spark))
        return columns

    def primary_key(self, table: str) -> tuple[str, ...]:
        schema, _, name = table.rpartition(".")
        with self.in_words():
            found = self.rows(
                "SELECT unnest(constraint_column_names) FROM duckdb_constraints() "
                f"WHERE constraint_type = 'PRIMARY KEY' AND lower(table_name) = lower({self.literal(name)}) "
                f"AND lower(schema_name) = lower({self.literal(schema or 'main')})"
            )
        return tuple(name for (name,) in found)

    def batches(self, sql: str, schema: pa.Schema, snapshot: str) -> Iterator[pa.RecordBatch]:
        with closing(self._opened()) as db:
            # By `sql` and not by `execute`, which would hold all rows in memory first.
            for batch in db.sql(sql).to_arrow_reader(_ROWS_AT_ONCE):
                yield batch.cast(schema)

    def failure(self, error: Exception) -> SourceRefused | None:
        import duckdb

        if not isinstance(error, duckdb.Error):
            return None
        if "lock" in str(error).lower() and isinstance(error, duckdb.IOException):
            return self.unavailable(first_line(error))
        return self.refused(first_line(error), self._next_step())

    def _opened(self) -> duckdb.DuckDBPyConnection:
        import duckdb

        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                db = duckdb.connect(self.place, read_only=True)
            # The second: this process has it open for writing.
            except (duckdb.IOException, duckdb.ConnectionException) as error:
                if "lock" not in str(error).lower() and not isinstance(error, duckdb.ConnectionException):
                    raise
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
            else:
                db.execute("SET TimeZone = 'UTC'")
                return db


def _as(value: Any, kind: pa.DataType) -> Any:
    """A value as its column has it on the way: SQLite keeps any class of value in any column."""
    import pyarrow as pa

    if value is None or pa.types.is_integer(kind):
        return value
    if pa.types.is_binary(kind):
        return value if isinstance(value, bytes) else str(value).encode()
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return repr(value) if isinstance(value, float) else str(value)
