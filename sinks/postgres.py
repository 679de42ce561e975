"""The PostgreSQL target: executors copy rows into an unlogged table, one transaction brings them into the table."""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ematix_flow.connections import PostgresConnection
from ematix_flow.errors import FlowError, MissingExtra
from ematix_flow.sinks import postgres_types
from ematix_flow.sinks.base import Batch, SchemaDrift, Staged
from ematix_flow.sinks.copying import COPY, Copied, StagedTable, copied, staging_name
from ematix_flow.sinks.database import Database, Query, first_line, transaction
from ematix_flow.sinks.drift import TableColumn
from ematix_flow.sinks.postgres_copy import ingest
from ematix_flow.sinks.postgres_types import max_length, spark_type
from ematix_flow.sinks.server import ServerSink
from ematix_flow.sinks.tables import Dialect, Load, quoted
from ematix_flow.specs import Target
from ematix_flow.state.fence import Fence

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

_CONNECT_SECONDS = 10
_MOST_NAME_BYTES = 63
# Two pipelines that start at the same time must not both create the fences; any number that nobody else uses will do.
_CREATING = 7_316_020_432
# libpq tells why it was not let in by words alone.
_NOT_LET_IN = (
    "authentication failed", "no password supplied", "does not exist", "pg_hba.conf", "certificate",
    "not support SSL", "not permitted to log in", "permission denied",
)  # fmt: skip
# Classes of SQLSTATE that pass: lost connection, wrong state after a failover, conflict, resources, locks, shutdown.
_PASSING = ("08", "25", "40", "53", "55", "57", "58")
# What else a row may be refused with: by a trigger, by a view, for a key too long for its index.
_REFUSING = ("P0001", "44000", "54000")

_COLUMNS = """
SELECT a.attname,
    CASE t.typtype WHEN 'd' THEN format_type(t.typbasetype, t.typtypmod) ELSE format_type(t.oid, a.atttypmod) END,
    NOT (a.attnotnull OR t.typnotnull), a.atthasdef OR a.attidentity <> '' OR t.typdefault IS NOT NULL
FROM pg_attribute AS a JOIN pg_type AS t ON t.oid = a.atttypid
WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
ORDER BY a.attnum"""


class PostgresSink(ServerSink):
    product = "PostgreSQL"
    # Waiting for whoever holds a lock has an end.
    begin = "BEGIN; SET LOCAL lock_timeout = '30s'; SET LOCAL TIME ZONE 'UTC'"
    types = postgres_types.TYPES

    def __init__(self, target: Target, connection: PostgresConnection, name: str) -> None:
        self._conninfo, place = understood(connection, f"target {name}")
        super().__init__(target, place, name)
        self._schema = self._ref.schema or ""
        _check_names(name, [self._schema, self._ref.name])

    # What PostgreSQL does in its own way.

    def _open(self) -> Database:
        import psycopg

        try:
            db = psycopg.connect(self._conninfo, autocommit=True)
        except psycopg.OperationalError as error:
            raise self._failure(error) from error
        if not self._schema:
            found = db.execute("SELECT current_schema()").fetchone()
            self._schema = (found and found[0]) or "public"
        return cast(Database, db)

    def _columns(self, db: Database) -> list[TableColumn]:
        return [
            TableColumn(name, spark_type(kind), nullable, has_default, max_length(kind), kind)
            for name, kind, nullable, has_default in db.execute(_COLUMNS, [self._located(db)]).fetchall()
        ]

    def _create(self, db: Database, statement: str, primary_key: Sequence[str]) -> None:
        db.execute(statement)
        if self._shape.keys and not primary_key:
            # Keys that may be NULL are no primary key, but every batch looks them up.
            db.execute(f"CREATE INDEX ON {self._located(db)} ({', '.join(map(quoted, self._shape.keys))})")

    def _widen(self, db: Database, column: TableColumn) -> None:
        import psycopg

        kind = self.types.named(column)
        try:
            db.execute(f"ALTER TABLE {self._located(db)} ALTER COLUMN {quoted(column.name)} TYPE {kind}")
        except psycopg.NotSupportedError as error:
            difference = f"column {column.name} has to become {kind}, which PostgreSQL refuses: {first_line(error)}"
            raise SchemaDrift(self._ref.full_name, [difference]) from error

    def _encoded(self, rows: DataFrame) -> DataFrame:
        return rows.select(*(postgres_types.encoded(rows, field) for field in rows.schema.fields))

    def _driver_error(self) -> type[Exception]:
        import psycopg

        return psycopg.Error

    def _refusal(self, error: Exception) -> bool:
        import psycopg

        return isinstance(error, psycopg.DataError | psycopg.IntegrityError) or _sqlstate(error) in _REFUSING

    def _busy(self, error: Exception) -> bool:
        return is_passing(error)

    # The calls of the commit protocol.

    def prepare(self, schema: StructType) -> StructType:
        _check_names(self._name, schema.fieldNames())
        return super().prepare(schema)

    def stage(self, rows: DataFrame, batch: Batch) -> StagedTable:
        rows = self._resolved(rows)
        name = staging_name(batch.pipeline, self._name)
        columns = {field.name: postgres_types.staging_type(field.dataType) for field in rows.schema.fields}
        with self._database() as db, transaction(db, self.begin):
            table = self._qualified(name)
            listed = ", ".join(f"{quoted(column)} {kind}" for column, kind in {**columns, COPY: "BIGINT"}.items())
            db.execute(f"DROP TABLE IF EXISTS {table}")
            db.execute(f"CREATE UNLOGGED TABLE {table} ({listed}) WITH (autovacuum_enabled = false)")
        found = copied(self._encoded(rows), partial(ingest, self._conninfo, self._schema, name))
        if found.failure:
            raise self._unavailable(found.failure.splitlines()[0])
        return StagedTable(Path(), tuple(rows.columns), table=table, schema=rows.schema, copied=found)

    def _source(self, db: Database, staged: Staged) -> str:
        assert isinstance(staged, StagedTable)
        copies = f"{COPY} = ANY ('{{{', '.join(map(str, staged.copied.copies))}}}'::bigint[])"
        self._check_there(db, staged, copies)
        there = {column.name.lower(): column for column in self._columns(db)}
        columns = ", ".join(
            postgres_types.decoded(field.name, field.dataType, there.get(field.name.lower()))
            for field in staged.schema.fields
        )
        return f"(SELECT {columns} FROM {staged.table} WHERE {copies})"

    def _check_there(self, db: Database, staged: StagedTable, copies: str) -> None:
        """After a crash of the server an unlogged table is empty, and an empty batch would pass for the whole one."""
        if not staged.copied.rows:
            return
        (known,) = db.execute("SELECT to_regclass(%s)", [staged.table]).fetchone()
        if not known or not db.execute(f"SELECT 1 FROM {staged.table} WHERE {copies} LIMIT 1").fetchone():
            raise self._unavailable("the rows that were staged are gone, as after a crash of the server")

    def _load(self, db: Database, staged: Staged, source: str, batch: Batch) -> Counter[str]:
        counts = super()._load(db, staged, source, batch)
        # Those that wait for the end of the transaction would speak up when nobody asks for single rows any more.
        db.execute("SET CONSTRAINTS ALL IMMEDIATE")
        return counts

    def _of_query(self, query: Query) -> Staged:
        from pyspark.sql.types import StructType

        # Of what is not copied nobody knows whether it is NULL.
        unknown = Copied((), 0, frozenset(query.columns))
        return StagedTable(Path(), query.columns, table="", schema=StructType(), copied=unknown)

    def _planned(self, db: Database, staged: Staged, source: str, batch: Batch) -> Load:
        assert isinstance(staged, StagedTable)
        load, found = super()._planned(db, staged, source, batch), self._columns(db)
        named = {column.name.lower(): column.name for column in found}
        with_null = {name.lower() for name in staged.copied.with_null}
        never_null = {column.name.lower() for column in found if not column.nullable}
        return replace(
            load,
            source=source if staged.table else _typed(source, load.columns, found),
            # Quoted names are those of the table to the letter.
            columns=tuple(named[name.lower()] for name in load.columns),
            keys=tuple(named[key.lower()] for key in load.keys),
            firm=frozenset(named[key.lower()] for key in load.keys if key.lower() not in with_null - never_null),
            # IS NOT DISTINCT FROM compares each row with each; arrays can be hashed, and in them NULL equals NULL.
            dialect=Dialect(same="ARRAY[{}] = ARRAY[{}]"),
            compared={c.name: "CAST({} AS TEXT)" for c in found if c.kind in postgres_types.NO_EQUALITY},
        )

    def _create_fences(self, db: Database) -> None:
        db.execute("SELECT pg_advisory_xact_lock(%s)", [_CREATING])
        # Without asking first, also somebody who may not create a schema would have to.
        if not db.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", [self._schema]).fetchone():
            db.execute(f"CREATE SCHEMA {quoted(self._schema)}")
        db.execute(
            f"CREATE TABLE IF NOT EXISTS {self._fences} (pipeline text, target text, generation text, batch bigint, "
            "applied_at timestamptz, PRIMARY KEY (pipeline, target))"
        )

    def _passed(self, db: Database, fence: Fence) -> bool:
        """There is a row to lock from the first batch on, so that of two processes one waits for the other."""
        of = (fence.pipeline, fence.target)
        db.execute(f"INSERT INTO {self._fences} (pipeline, target) VALUES (%s, %s) ON CONFLICT DO NOTHING", of)
        found = db.execute(
            f"SELECT generation, batch FROM {self._fences} WHERE pipeline = %s AND target = %s FOR UPDATE", of
        ).fetchone()
        return fence.passed(*found)

    def _settle(self, db: Database, staged: Staged, fence: Fence) -> None:
        db.execute(
            f"UPDATE {self._fences} SET generation = %s, batch = %s, applied_at = now() "
            "WHERE pipeline = %s AND target = %s",
            (fence.generation, fence.batch, fence.pipeline, fence.target),
        )
        self._discard(db, staged)

    def _discard(self, db: Database, staged: Staged) -> None:
        assert isinstance(staged, StagedTable)
        if staged.table:
            db.execute(f"DROP TABLE {staged.table}")

    def _forget(self, staged: Staged) -> None:
        """Nothing: the table went with the transaction."""

    @property
    def _fences(self) -> str:
        return self._qualified("_ematix_flow_fences")


def understood(connection: PostgresConnection, whose: str) -> tuple[str, str]:
    """The URL with what we add to it, and where it leads, without the password. `whose` names the target or source."""
    for package in ("psycopg", "adbc_driver_postgresql"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtra(package, connection.driver_extra)
    from psycopg import ProgrammingError
    from psycopg.conninfo import conninfo_to_dict, make_conninfo

    try:
        parts: dict[str, Any] = dict(conninfo_to_dict(connection.url))
    except ProgrammingError:
        parts = {}  # its words repeat the URL
    host, port, database = (str(parts.get(part) or "") for part in ("host", "port", "dbname"))
    # A password with a slash shifts everything that comes after it.
    if not parts or "@" in database or not all(one.isdigit() for one in port.split(",") if one):
        raise FlowError(
            f"{whose}: the URL of the connection is not one that PostgreSQL understands",
            next_step="write postgresql://user:password@host:5432/database; a password has %2F for / and %40 for @",
        )
    added = {"connect_timeout": _CONNECT_SECONDS, "fallback_application_name": "ematix-flow"}
    place = f"{host or 'the local socket'}{':' + port if port else ''}" + (f"/{database}" if database else "")
    return make_conninfo(**{**added, **parts}), place


def is_passing(error: Exception) -> bool:
    """Without a code of the server, the connection was lost or never made."""
    import psycopg

    if code := _sqlstate(error):
        return code.startswith(_PASSING)
    # The Arrow driver names it so, too.
    lost = isinstance(error, psycopg.OperationalError) or type(error).__name__ == "OperationalError"
    return lost and not any(part in str(error) for part in _NOT_LET_IN)


def _check_names(target: str, names: Sequence[str]) -> None:
    if long := [name for name in names if len(name.encode()) > _MOST_NAME_BYTES]:
        raise FlowError(
            f"target {target}: PostgreSQL would cut off names of more than {_MOST_NAME_BYTES} bytes: {', '.join(long)}",
            next_step="rename them, columns for example with AS in the transform",
        )


def _typed(query: str, columns: Sequence[str], table: Sequence[TableColumn]) -> str:
    """Rows of a query in the types of the table, so that PostgreSQL can compare them with its rows."""
    there = {column.name.lower(): column for column in table}
    typed = (postgres_types.in_table(quoted(name), there[name.lower()]) for name in columns)
    return f"(SELECT {', '.join(typed)} FROM {query} AS q)"


def _sqlstate(error: Exception) -> str:
    return getattr(error, "sqlstate", None) or ""
