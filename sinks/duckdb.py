"""The DuckDB target: executors stage Parquet, one transaction on the driver loads it and sets the fence."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ematix_flow.connections import DuckDBConnection
from ematix_flow.errors import FlowError
from ematix_flow.sinks import duckdb_types
from ematix_flow.sinks.base import SchemaDrift, Staged
from ematix_flow.sinks.database import Database, DatabaseSink, first_line
from ematix_flow.sinks.drift import TableColumn
from ematix_flow.sinks.tables import literal, quoted
from ematix_flow.specs import Target

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# A person looking into the file with the DuckDB shell holds its lock; that passes.
_LOCK_PATIENCE_SECONDS = 30.0


class DuckDBSink(DatabaseSink):
    capabilities = replace(DatabaseSink.capabilities, limits=False)
    product = "DuckDB"
    types = duckdb_types.TYPES

    def __init__(self, target: Target, connection: DuckDBConnection, name: str) -> None:
        super().__init__(target, connection.path, name)

    def _open(self) -> Database:
        import duckdb

        deadline = time.monotonic() + _LOCK_PATIENCE_SECONDS
        while True:
            try:
                db = duckdb.connect(self._path)
            except duckdb.IOException as error:
                if not _is_lock(error):
                    raise FlowError(
                        f"DuckDB cannot open {self._path}: {first_line(error)}",
                        next_step="check the path and its permissions",
                    ) from error
                if time.monotonic() > deadline:
                    raise self._failure(error) from error
                time.sleep(0.1)
            else:
                db.execute("SET TimeZone = 'UTC'")
                return db

    def _located(self, db: Database) -> str:
        return f"{self._within(db)}.{quoted(self._ref.name)}"

    def _within(self, db: Database) -> str:
        """With the database's name, because a schema may have the same one."""
        (database,) = db.execute("SELECT current_database()").fetchone()
        return f"{quoted(database)}.{quoted(self._schema)}"

    def _columns(self, db: Database) -> list[TableColumn]:
        found = db.execute(
            "SELECT column_name, is_nullable, column_default IS NOT NULL FROM duckdb_columns() "
            "WHERE database_name = current_database() "
            "AND lower(schema_name) = lower(?) AND lower(table_name) = lower(?) ORDER BY column_index",
            (self._schema, self._ref.name),
        ).fetchall()
        types = self._types(db) if found else []
        return [
            TableColumn(name, duckdb_types.spark_type(kind), nullable, has_default, kind=str(kind))
            for (name, nullable, has_default), kind in zip(found, types, strict=True)
        ]

    def _types(self, db: Database) -> list[Any]:
        return [column[1] for column in db.execute(f"SELECT * FROM {self._located(db)} LIMIT 0").description]

    def _create(self, db: Database, statement: str, primary_key: Sequence[str]) -> None:
        db.execute(f"CREATE SCHEMA IF NOT EXISTS {self._within(db)}")
        db.execute(statement)

    def _widen(self, db: Database, column: TableColumn) -> None:
        import duckdb

        kind = self.types.named(column)
        try:
            db.execute(f"ALTER TABLE {self._located(db)} ALTER COLUMN {quoted(column.name)} TYPE {kind}")
        except duckdb.Error as error:
            difference = f"column {column.name} has to become {kind}, which DuckDB refuses: {first_line(error)}"
            raise SchemaDrift(self._ref.full_name, [difference]) from error

    def _encoded(self, rows: DataFrame) -> DataFrame:
        return rows

    def _source(self, db: Database, staged: Staged) -> str:
        """Read in place; each value is cast to its column, so that it is compared as what it will be."""
        files = sorted(staged.folder.glob("part-*.parquet"))
        types = {column.name.lower(): column.kind for column in self._columns(db)}
        columns = ", ".join(
            f"CAST({quoted(name)} AS {types[name.lower()]}) AS {quoted(name)}"
            if name.lower() in types
            else quoted(name)
            for name in staged.columns
        )
        if not files:
            none = ", ".join(quoted(n) if n.lower() in types else f"NULL AS {n}" for n in staged.columns)
            return f"(SELECT {none} FROM {self._located(db)} LIMIT 0)"
        return f"(SELECT {columns} FROM read_parquet([{', '.join(literal(str(file)) for file in files)}]))"

    def _affected(self, result: Any) -> int:
        return int(result.fetchone()[0])

    def _driver_error(self) -> type[Exception]:
        import duckdb

        return duckdb.Error

    def _refusal(self, error: Exception) -> bool:
        import duckdb

        return isinstance(error, duckdb.DataError | duckdb.IntegrityError | duckdb.InvalidInputException)

    def _busy(self, error: Exception) -> bool:
        """A lock of another process, or a conflict with another pipeline of this one."""
        import duckdb

        return isinstance(error, duckdb.TransactionException) or _is_lock(error)


def _is_lock(error: Exception) -> bool:
    import duckdb

    return isinstance(error, duckdb.IOException) and "lock" in str(error).lower()
