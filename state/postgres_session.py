"""A connection to the Postgres database of a state store: opened when it is needed, and again when it was lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from ematix_flow.errors import FlowError, UsageError
from ematix_flow.secrets import redact_text
from ematix_flow.state.vault import StateStoreRefused, StateStoreUnavailable

if TYPE_CHECKING:
    from psycopg import Connection, Error

R = TypeVar("R")

VERSION = 1
"""Of the tables. A release that needs others changes them, and writes its own number."""

_TABLES = """
CREATE TABLE IF NOT EXISTS ematix_flow_version (version int NOT NULL);
CREATE TABLE IF NOT EXISTS ematix_flow_pipelines (
    pipeline text PRIMARY KEY, generation text, save bigint NOT NULL, batch bigint, saved_at timestamptz,
    holder text, token bigint NOT NULL, beat bigint NOT NULL, beat_at timestamptz NOT NULL
);
CREATE TABLE IF NOT EXISTS ematix_flow_files (
    pipeline text NOT NULL, generation text NOT NULL, path text NOT NULL, part int NOT NULL,
    size bigint NOT NULL, digest text NOT NULL, content bytea NOT NULL,
    PRIMARY KEY (pipeline, generation, path, part)
);
ALTER TABLE ematix_flow_files ALTER COLUMN content SET STORAGE EXTERNAL;
CREATE TABLE IF NOT EXISTS ematix_flow_dead_letters (
    letters_of text NOT NULL, id text NOT NULL, pipeline text NOT NULL, stage text NOT NULL, error_code text NOT NULL,
    error text NOT NULL, source text NOT NULL, position text NOT NULL, event_ts timestamptz,
    failed_at timestamptz NOT NULL, attempt int NOT NULL, payload_format text NOT NULL, payload bytea,
    status text NOT NULL, replay text,
    PRIMARY KEY (letters_of, id)
);
CREATE TABLE IF NOT EXISTS ematix_flow_replayed (
    letters_of text NOT NULL, id text NOT NULL, generation text NOT NULL, PRIMARY KEY (letters_of, id)
);
"""
# Two pipelines that start at the same time must not both create them; any number that nobody else uses will do.
_CREATING = 7_316_020_431

# Shorter than a lease lasts without a heartbeat: whoever waits longer has lost it.
_PATIENCE_SECONDS = 8.0
_FIRST_PAUSE_SECONDS = 0.2
_CONNECT_SECONDS = 5
# A process that is paused within a transaction must not keep others waiting for as long as it is.
_SETTINGS = "-c idle_in_transaction_session_timeout=8s -c lock_timeout=10s -c client_min_messages=warning"

# libpq tells why it was not let in by words alone.
_REFUSALS = (
    "authentication failed", "does not exist", "pg_hba.conf", "no password supplied", "certificate", "not support SSL",
    "permission denied", "too many connections for role", "invalid connection option", "missing \"=\"",
)  # fmt: skip


class PostgresSession:
    def __init__(self, url: str, schema: str, name: str) -> None:
        self._url, self._schema, self._name = url, schema, name
        self._db: Connection[Any] | None = None
        self._created = False
        # The heartbeat, Spark's callback and the main thread.
        self._lock = threading.RLock()
        self.place = f"Postgres {redact_text(url)}" + (f", schema {schema}" if schema != "public" else "")

    def look(self, work: Callable[[Connection[Any]], R], nothing: R) -> R:
        """As `run`, but only to read: where there are no tables yet, `nothing` is what is in them."""
        return self._tried(lambda db: work(db) if self._has_tables(db) else nothing)

    def run(self, work: Callable[[Connection[Any]], R]) -> R:
        """`work` in one transaction, with the tables there. After a lost connection it is done again for a while: all
        of it was rolled back, or is such that doing it twice does no harm."""

        def with_tables(db: Connection[Any]) -> R:
            if not self._has_tables(db):
                self._create(db)
            return work(db)

        return self._tried(with_tables)

    def _tried(self, work: Callable[[Connection[Any]], R]) -> R:
        from psycopg import Error, OperationalError

        until, pause, again = time.monotonic() + _PATIENCE_SECONDS, _FIRST_PAUSE_SECONDS, False
        with self._lock:
            while True:
                try:
                    db = self._connected()
                    with db.transaction():
                        return work(db)
                except OperationalError as error:
                    self.close()
                    failure = self._failure(error)
                    # Once more in any case: a process that was paused finds its time over and its connection cut.
                    if not failure.transient or (again and time.monotonic() + pause > until):
                        raise failure from error
                    again = True
                    time.sleep(pause)
                    pause *= 2
                except Error as error:
                    self.close()
                    raise self._failure(error) from error

    def rename(self, name: str) -> None:
        """As the database shows it to an operator."""
        with self._lock:
            self._name = name
            self.close()

    def another(self, purpose: str) -> PostgresSession:
        return PostgresSession(self._url, self._schema, f"{self._name.split(' lease')[0]} {purpose}")

    def close(self) -> None:
        with self._lock:
            if self._db is not None:
                self._db.close()
                self._db = None

    def _connected(self) -> Connection[Any]:
        if self._db is not None and not self._db.closed:
            return self._db
        try:
            import psycopg
        except ImportError:
            raise StateStoreRefused(
                "the Postgres driver is not installed", next_step="pip install 'ematix-flow-spark[postgres]'"
            ) from None
        given = self._understood()
        self._db = psycopg.connect(
            self._url,
            autocommit=True,
            application_name=self._name,
            connect_timeout=given.get("connect_timeout", _CONNECT_SECONDS),
            prepare_threshold=2,
            options=f"{_SETTINGS} {given.get('options', '')}",
        )
        # In another zone, the first and the last day that Python knows are none.
        settings = psycopg.sql.SQL("SET search_path TO {}; SET TIME ZONE 'UTC'")
        self._db.execute(settings.format(psycopg.sql.Identifier(self._schema)))
        return self._db

    def _understood(self) -> dict[str, Any]:
        """The parts of the URL. What is wrong in it is not quoted, because it may be a part of the password."""
        from psycopg import ProgrammingError
        from psycopg.conninfo import conninfo_to_dict

        try:
            given = conninfo_to_dict(self._url)
        except ProgrammingError:
            given = {"host": "@"}
        if "@" in str(given.get("host", "")) or not str(given.get("port", "0")).isdigit():
            raise UsageError(
                "`url` of the state store is not the URL of a Postgres database",
                next_step="write postgresql://user:password@host:port/database, with %25 for a % in the password, "
                "%40 for an @, %2F for a / and %3A for a :",
            ) from None
        return given

    def _has_tables(self, db: Connection[Any]) -> bool:
        if self._created:
            return True
        if db.execute("SELECT to_regclass('ematix_flow_version')").fetchone() == (None,):
            return False
        found = db.execute("SELECT version FROM ematix_flow_version").fetchone()
        if found != (VERSION,):
            version = found[0] if found else "unknown"
            raise StateStoreRefused(
                f"the tables in {self.place} have version {version}, this release needs {VERSION}",
                next_step="use the release that made them, or another schema",
            )
        self._created = True
        return True

    def _create(self, db: Connection[Any]) -> None:
        """All tables or none, with whatever is done in the same transaction."""
        from psycopg import sql

        db.execute("SELECT pg_advisory_xact_lock(%s)", [_CREATING])
        if db.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", [self._schema]).fetchone() is None:
            db.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(self._schema)))
        db.execute(_TABLES)
        number = "INSERT INTO ematix_flow_version SELECT %s WHERE NOT EXISTS (SELECT 1 FROM ematix_flow_version)"
        db.execute(number, [VERSION])

    def _failure(self, error: Error) -> FlowError:
        from psycopg import OperationalError

        words = redact_text(str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__)
        passing = isinstance(error, OperationalError) and not any(part in str(error) for part in _REFUSALS)
        if passing:
            return StateStoreUnavailable(
                f"{self.place} cannot be reached: {words}",
                next_step="nothing of the batch is visible; start the pipeline again when the database is back, or let "
                "`flow consume --restart-on-error` do so",
            )
        return StateStoreRefused(
            f"{self.place} does not accept the pipeline: {words}",
            next_step="check the user, the password, the database and its rights in `url` of the state store",
        )
