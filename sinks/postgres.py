"""The PostgreSQL target: executors copy rows into an unlogged table, one transaction brings them into the table."""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ematix_flow.connections import PostgresConnection
from ematix_flow.errors import FlowError, MissingExtra
from ematix_flow.sinks import postgres_types
from ematix_flow.sinks.ahead import AHEAD
from ematix_flow.sinks.base import CHANGE, ROW, Batch, Made, SchemaDrift, Staged, TargetRefused
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
    from pyspark.sql.types import StructField, StructType

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


# Modes in which each staged row becomes one row of the table.
_ROW_BY_ROW = frozenset({"append", "truncate"})
# What a value is refused with while it is copied.
_NO_VALUE = "SQLSTATE: 22"


@dataclass(frozen=True, kw_only=True)
class Exactly(StagedTable):
    """Rows of which each can be told: with numbers, those of the attempt that copied them among them, and texts as
    bytes. That costs a third of the time of a large batch, so that what is only added comes without, until a row is
    refused."""


@dataclass(frozen=True, kw_only=True)
class Plainly(StagedTable):
    """Rows that are added as they are. There have to be as many as Spark has counted."""

    refused: str = ""
    """Why none of them could be copied."""


class PostgresSink(ServerSink):
    product = "PostgreSQL"
    # Waiting for whoever holds a lock has an end.
    begin = "BEGIN; SET LOCAL lock_timeout = '30s'; SET LOCAL TIME ZONE 'UTC'"
    types = postgres_types.TYPES

    def __init__(self, target: Target, connection: PostgresConnection, name: str) -> None:
        self._conninfo, place = understood(connection, f"target {name}")
        super().__init__(target, place, name)
        self._schema = self._ref.schema or ""
        self._rows: DataFrame | None = None
        """Of the batch, for the case that it has to be staged exactly."""
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

    def tables(self, schema: StructType) -> Made | None:
        """Rows that are only added, as they are."""
        if self._mode not in _ROW_BY_ROW or not all(postgres_types.is_staged_as_it_is(f.dataType) for f in schema):
            return None
        return lambda rows: rows

    def _encoded(self, rows: DataFrame, *, exact: bool = True) -> DataFrame:
        fields = rows.schema.fields
        columns = [postgres_types.encoded(rows, field, exact=exact) for field in _columns_of(fields)]
        return rows.select(*columns, *(field.name for field in fields if field.name == AHEAD))

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
        if self._mode not in _ROW_BY_ROW or CHANGE in rows.columns:
            return self._exactly(rows, batch)
        self._rows = rows
        table, found = self._copied(rows.drop(ROW), batch, exact=False)
        refused = found.failure.splitlines()[0] if _NO_VALUE in found.failure else ""
        if found.failure and not refused:
            raise self._unavailable(found.failure.splitlines()[0])
        columns = tuple(name for name in rows.columns if name not in {ROW, AHEAD})
        schema = rows.drop(ROW, AHEAD).schema
        return Plainly(Path(), columns, table=table, schema=schema, copied=found, refused=refused)

    def _exactly(self, rows: DataFrame, batch: Batch) -> StagedTable:
        rows = self._resolved(rows)
        table, found = self._copied(rows, batch, exact=True)
        if found.failure:
            raise self._unavailable(found.failure.splitlines()[0])
        return Exactly(Path(), tuple(rows.columns), table=table, schema=rows.schema, copied=found)

    def _copied(self, rows: DataFrame, batch: Batch, *, exact: bool) -> tuple[str, Copied]:
        """Where the rows are now, and how they came there."""
        name = staging_name(batch.pipeline, self._name)
        columns = _columns_of(rows.schema.fields)
        kinds = {f.name: postgres_types.staging_type(f.dataType, exact=exact) for f in columns}
        kinds |= {COPY: "BIGINT"} if exact else {}
        with self._database() as db, transaction(db, self.begin):
            table = self._qualified(name)
            listed = ", ".join(f"{quoted(column)} {kind}" for column, kind in kinds.items())
            db.execute(f"DROP TABLE IF EXISTS {table}")
            db.execute(f"CREATE UNLOGGED TABLE {table} ({listed}) WITH (autovacuum_enabled = false)")
        arriving = partial(ingest, self._conninfo, self._schema, name)
        return table, copied(self._encoded(rows, exact=exact), arriving, numbered=exact)

    def forget(self) -> None:
        self._rows = None

    def refusals(self, staged: Staged, batch: Batch) -> dict[int, str]:
        if isinstance(staged, Plainly):
            if not staged.refused and self._takes_all(staged, batch):
                return {}
            assert self._rows is not None, "the batch is not over"
            staged = self._exactly(self._rows, batch)
        return super().refusals(staged, batch)

    def _takes_all(self, staged: Plainly, batch: Batch) -> bool:
        """Tried, and taken back."""
        with self._database() as db:
            try:
                with transaction(db, self.begin, keep=False):
                    self._load(db, staged, self._source(db, staged), batch)
            except self._driver_error() as error:
                if self._refusal(error):
                    return False
                raise
        return True

    def _source(self, db: Database, staged: Staged) -> str:
        assert isinstance(staged, StagedTable)
        if isinstance(staged, Plainly) and staged.refused:
            raise TargetRefused(staged.refused, next_step="correct the rows in the transform")
        copies = f"{COPY} = ANY ('{{{', '.join(map(str, staged.copied.copies))}}}'::bigint[])"
        exact = isinstance(staged, Exactly)
        self._check_there(db, staged, copies if exact else "TRUE")
        there = {column.name.lower(): column for column in self._columns(db)}
        columns = ", ".join(
            postgres_types.decoded(field.name, field.dataType, there.get(field.name.lower()), exact=exact)
            for field in staged.schema.fields
        )
        return f"(SELECT {columns} FROM {staged.table}{f' WHERE {copies}' if exact else ''})"

    def _check_there(self, db: Database, staged: StagedTable, which: str) -> None:
        """After a crash of the server an unlogged table is empty, and an empty batch would pass for the whole one."""
        if not staged.copied.rows:
            return
        (known,) = db.execute("SELECT to_regclass(%s)", [staged.table]).fetchone()
        if not known or not db.execute(f"SELECT 1 FROM {staged.table} WHERE {which} LIMIT 1").fetchone():
            raise self._unavailable("the rows that were staged are gone, as after a crash of the server")

    def _load(self, db: Database, staged: Staged, source: str, batch: Batch) -> Counter[str]:
        counts = super()._load(db, staged, source, batch)
        if isinstance(staged, Plainly) and counts["inserted"] != staged.copied.rows:
            # A trigger may leave rows out; others are of an attempt that Spark gave up after it had copied them.
            (held,) = db.execute(f"SELECT COUNT(*) FROM {staged.table}").fetchone()
            if held != staged.copied.rows:
                raise self._unavailable(f"{held} rows were staged instead of {staged.copied.rows}")
        # Those that wait for the end of the transaction would speak up when nobody asks for single rows any more.
        db.execute("SET CONSTRAINTS ALL IMMEDIATE")
        return counts

    def _of_query(self, query: Query) -> Staged:
        from pyspark.sql.types import StructType

        # Of what is not copied nobody knows whether it is NULL.
        unknown = Copied((), 0, frozenset(query.columns))
        return Exactly(Path(), query.columns, table="", schema=StructType(), copied=unknown)

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


def _columns_of(fields: Sequence[StructField]) -> list[StructField]:
    """Of the rows, of which many may come as one. Asking Spark for rows without `AHEAD` would take milliseconds."""
    return [field for field in fields if field.name != AHEAD]


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
    # What is copied is UTF-8, whatever the database keeps.
    return make_conninfo(**{**added, **parts, "client_encoding": "UTF8"}), place


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
