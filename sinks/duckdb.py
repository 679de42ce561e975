"""The DuckDB target: executors stage Parquet, one transaction on the driver loads it and sets the fence."""

from __future__ import annotations

import shutil
import time
from typing import TYPE_CHECKING

from ematix_flow.connections import DuckDBConnection
from ematix_flow.errors import FlowError
from ematix_flow.sinks.base import Applied, Batch, Capabilities, SchemaDrift, Staged, TargetRefused, TargetUnavailable
from ematix_flow.sinks.duckdb_types import column_type
from ematix_flow.specs import Target
from ematix_flow.state.fence import Fence

if TYPE_CHECKING:
    import duckdb
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

_FENCES = """
CREATE TABLE IF NOT EXISTS _ematix_flow_fences (
    pipeline VARCHAR, target VARCHAR, generation VARCHAR, batch BIGINT, applied_at TIMESTAMPTZ DEFAULT now(),
    PRIMARY KEY (pipeline, target)
)"""

# A person looking into the file with the DuckDB shell holds its lock; that passes.
_LOCK_PATIENCE_SECONDS = 30.0


class DuckDBSink:
    capabilities = Capabilities(
        fenced=True,
        transactional=True,
        modes=frozenset({"append"}),
        visibility="a batch appears whole, with its fence, in one transaction",
    )

    def __init__(self, target: Target, connection: DuckDBConnection, name: str) -> None:
        assert target.table is not None, "the spec has been checked"
        if connection.path == ":memory:":
            raise FlowError(
                f"target {name}: an in-memory DuckDB is empty again when the batch ends",
                next_step="give the connection a file as its path",
            )
        self._path = connection.path
        self._name = name
        self._schema = target.table.schema or "main"
        self._table = f"{_quoted(self._schema)}.{_quoted(target.table.name)}"
        self._primary_key = target.table.primary_key
        self._bare_name = target.table.name

    def prepare(self, schema: StructType) -> None:
        columns = {field.name: column_type(field.dataType) for field in schema.fields}
        with self._open() as db:
            db.execute(_FENCES)
            db.execute(f"CREATE SCHEMA IF NOT EXISTS {_quoted(self._schema)}")
            found = self._columns(db)
            if not found:
                db.execute(self._create(columns))
            else:
                self._check(columns, found)

    def stage(self, rows: DataFrame, batch: Batch) -> Staged:
        folder = batch.scratch(self._name)
        rows.write.mode("overwrite").option("compression", "snappy").parquet(str(folder))
        return Staged(folder, tuple(rows.columns))

    def apply(self, staged: Staged, batch: Batch, fence: Fence) -> Applied:
        import duckdb

        try:
            return self._apply(staged, batch, fence)
        except (duckdb.DataError, duckdb.IntegrityError, duckdb.ProgrammingError) as error:
            raise TargetRefused(
                f"DuckDB refuses the rows of batch {batch.number} for table {self._name}: {_first_line(error)}",
                next_step="correct the rows in the transform, or the table; nothing of the batch was written",
            ) from error

    def _apply(self, staged: Staged, batch: Batch, fence: Fence) -> Applied:
        files = [str(p) for p in sorted(staged.folder.glob("part-*.parquet"))]
        with self._open() as db:
            db.begin()
            found = db.execute(
                "SELECT generation, batch FROM _ematix_flow_fences WHERE pipeline = ? AND target = ?",
                [fence.pipeline, fence.target],
            ).fetchone()
            if found and fence.passed(*found):
                db.rollback()
                return Applied(done=False)
            if files:
                columns = ", ".join(map(_quoted, staged.columns))
                db.execute(f"INSERT INTO {self._table} ({columns}) SELECT {columns} FROM read_parquet(?)", [files])
            db.execute(
                "INSERT OR REPLACE INTO _ematix_flow_fences (pipeline, target, generation, batch) VALUES (?, ?, ?, ?)",
                [fence.pipeline, fence.target, fence.generation, fence.batch],
            )
            batch.reached("apply/before-commit")
            db.commit()
        shutil.rmtree(staged.folder)
        return Applied(done=True)

    def _open(self) -> duckdb.DuckDBPyConnection:
        """Opened for each batch: a file that is held open for months could not be read by anyone else."""
        import duckdb

        deadline = time.monotonic() + _LOCK_PATIENCE_SECONDS
        while True:
            try:
                db = duckdb.connect(self._path)
            except duckdb.IOException as error:
                if "lock" not in str(error).lower():
                    raise FlowError(
                        f"DuckDB cannot open {self._path}: {_first_line(error)}",
                        next_step="check the path and its permissions",
                    ) from error
                if time.monotonic() > deadline:
                    raise TargetUnavailable(
                        f"another process holds the lock of {self._path}: {_first_line(error)}",
                        next_step="close the other program; the batch is tried again",
                    ) from error
                time.sleep(0.1)
            else:
                db.execute("SET TimeZone = 'UTC'")
                return db

    def _columns(self, db: duckdb.DuckDBPyConnection) -> dict[str, str]:
        rows = db.execute(
            "SELECT column_name, data_type FROM information_schema.columns "
            "WHERE table_catalog = current_database() AND table_schema = ? AND table_name = ?",
            [self._schema, self._bare_name],
        ).fetchall()
        return dict(rows)

    def _create(self, columns: dict[str, str]) -> str:
        parts = [f"{_quoted(name)} {kind}" for name, kind in columns.items()]
        if self._primary_key:
            parts.append(f"PRIMARY KEY ({', '.join(map(_quoted, self._primary_key))})")
        return f"CREATE TABLE {self._table} ({', '.join(parts)})"

    def _check(self, columns: dict[str, str], found: dict[str, str]) -> None:
        known = {name.lower() for name in found}
        missing = [
            f"column {name} ({kind}) is not in the table" for name, kind in columns.items() if name.lower() not in known
        ]
        if missing:
            raise SchemaDrift(self._table.replace('"', ""), missing)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]
