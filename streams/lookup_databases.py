"""Lookups from database files: a table or a SELECT of SQLite or DuckDB, copied by the driver in bounded memory."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ematix_flow.streams.lookup_base import LookupBusy, Origin

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

# Whoever writes the file holds its lock for as long as a transaction lasts.
_PATIENCE_SECONDS = 10.0
_ROWS_AT_ONCE = 10_000

# What Spark cannot read from Parquet, or not without loss.
_DUCKDB_CASTS = {
    "HUGEINT": "DECIMAL(38, 0)",
    "UHUGEINT": "DECIMAL(38, 0)",
    "TIMESTAMP_S": "TIMESTAMP",
    "TIMESTAMP_MS": "TIMESTAMP",
    "TIMESTAMP_NS": "TIMESTAMP",
    **dict.fromkeys(("UUID", "TIME", "TIME_NS", "TIME WITH TIME ZONE", "INTERVAL", "BIT", "BIGNUM", "JSON"), "VARCHAR"),
}


class _Database(Origin):
    @property
    def path(self) -> str:
        path = str(self.connection.path)
        if path == ":memory:":
            raise self.failed("a database in memory has no tables to read", "give the connection a file as its path")
        if not Path(path).is_file():
            raise self.failed(
                f"there is no file {Path(path).absolute()}", "create it, or correct `path` of the connection"
            )
        return path

    def select(self, *catalog: str) -> str:
        if self.lookup.query is not None:
            return self.lookup.query.rstrip().rstrip(";")
        assert self.lookup.table is not None, "the spec has been checked"
        parts = [*catalog, self.lookup.schema or "main", self.lookup.table]
        return f"SELECT * FROM {'.'.join(map(_quoted, parts))}"

    def refused(self, error: Exception) -> Exception:
        words = str(error).splitlines()[0]
        return self.failed(
            f"{self.connection.path} refuses to be read: {words}",
            "correct `query` of the lookup"
            if self.lookup.query
            else "correct `schema` and `table`, or create the table",
        )

    def busy(self, error: Exception) -> Exception:
        words = str(error).splitlines()[0]
        return self.failed(f"{self.connection.path} is in use: {words}", "close the program that writes it", LookupBusy)


class DuckDBOrigin(_Database):
    def copy(self, folder: Path) -> None:
        import duckdb

        path = self.path
        folder.mkdir()
        with closing(self._opened(path)) as db:
            try:
                # Named after the file; without it, a schema of the same name would be ambiguous.
                ((catalog,),) = db.execute("SELECT current_database()").fetchall()
                select = self.select(catalog)
                kinds = {name: kind for name, kind, *_ in db.execute(f"DESCRIBE {select}").fetchall()}
                casts = [
                    f"CAST({_quoted(name)} AS {_DUCKDB_CASTS[kind]}) AS {_quoted(name)}"
                    for name, kind in kinds.items()
                    if kind in _DUCKDB_CASTS
                ]
                columns = f"* REPLACE ({', '.join(casts)})" if casts else "*"
                file = str(folder / "rows.parquet").replace("'", "''")
                db.execute(f"COPY (SELECT {columns} FROM ({select})) TO '{file}' (FORMAT parquet)")
            except duckdb.Error as error:
                raise self.refused(error) from error

    def _opened(self, path: str) -> duckdb.DuckDBPyConnection:
        import duckdb

        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                return duckdb.connect(path, read_only=True)
            # The second: this process has it open for writing.
            except (duckdb.IOException, duckdb.ConnectionException) as error:
                if "lock" not in str(error).lower() and not isinstance(error, duckdb.ConnectionException):
                    raise self.refused(error) from error
                if time.monotonic() > deadline:
                    raise self.busy(error) from error
                time.sleep(0.1)
            except duckdb.Error as error:
                raise self.refused(error) from error


class SQLiteOrigin(_Database):
    def copy(self, folder: Path) -> None:
        import pyarrow as pa
        from pyarrow import parquet

        path = self.path
        folder.mkdir()
        with self._reading(path) as db:
            # A view tells the declared type of each of its columns.
            db.execute(f"CREATE TEMP VIEW _flow_lookup AS {self.select()}")
            declared = {name: kind for _, name, kind, *_ in db.execute("PRAGMA temp.table_info(_flow_lookup)")}
            classes = ", ".join(f"group_concat(DISTINCT typeof({_quoted(name)}))" for name in declared)
            found = db.execute(f"SELECT {classes} FROM temp._flow_lookup").fetchone()
            kinds = [
                _kind(kind, set((held or "").split(","))) for kind, held in zip(declared.values(), found, strict=True)
            ]
            schema = pa.schema(list(zip(declared, kinds, strict=True)))
            rows = db.execute("SELECT * FROM temp._flow_lookup")
            with parquet.ParquetWriter(folder / "rows.parquet", schema) as writer:
                while some := rows.fetchmany(_ROWS_AT_ONCE):
                    columns = [
                        pa.array([_fitted(value, kind) for value in column], kind)
                        for column, kind in zip(zip(*some, strict=True), kinds, strict=True)
                    ]
                    writer.write_batch(pa.record_batch(columns, schema=schema))

    @contextmanager
    def _reading(self, path: str) -> Iterator[sqlite3.Connection]:
        """One transaction, so that all that is read belongs together."""
        uri = f"{Path(path).absolute().as_uri()}?mode=ro"
        try:
            with closing(sqlite3.connect(uri, uri=True, timeout=_PATIENCE_SECONDS, isolation_level=None)) as db:
                db.text_factory = lambda text: text.decode("utf-8", "replace")
                db.execute("BEGIN")
                yield db
        except sqlite3.Error as error:
            # The low byte of an extended code is the code itself.
            locked = getattr(error, "sqlite_errorcode", 0) & 0xFF in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
            raise (self.busy(error) if locked else self.refused(error)) from error


def _kind(declared: str, held: set[str]) -> pa.DataType:
    """SQLite stores any class of value in any column: what a column holds decides, then what it is declared as."""
    import pyarrow as pa

    declared = declared.upper()
    fractions = any(word in declared for word in ("REAL", "FLOA", "DOUB", "DEC", "NUM"))
    if "blob" in held:
        return pa.binary()
    if "text" in held:
        return pa.string()
    if "real" in held or ("integer" in held and fractions):
        return pa.float64()
    if "integer" in held or "INT" in declared:
        return pa.int64()
    if "BLOB" in declared:
        return pa.binary()
    return pa.float64() if fractions else pa.string()


def _fitted(value: Any, kind: pa.DataType) -> Any:
    """A value as its column has it, where other rows hold another class."""
    import pyarrow as pa

    if value is None or kind == pa.int64():
        return value
    if kind == pa.float64():
        return float(value)
    if kind == pa.string():
        return str(value)
    return value if isinstance(value, bytes) else str(value).encode()


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
