"""The MySQL and MariaDB target: executors load rows into a table beside it, one transaction brings them into the table.

A statement that creates or drops a table commits what is open, so that the staged rows are made before the transaction
and removed after it; what a crash leaves of them is dropped by the next batch.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ematix_flow.connections import MySQLConnection
from ematix_flow.errors import FlowError
from ematix_flow.sinks import mysql_types
from ematix_flow.sinks.base import ROW, Batch, SchemaDrift, Staged, TargetRefused
from ematix_flow.sinks.copying import COPY, Copied, StagedTable, copied, staging_name
from ematix_flow.sinks.database import Database, Query
from ematix_flow.sinks.drift import TableColumn
from ematix_flow.sinks.mysql_address import connected, understood
from ematix_flow.sinks.mysql_load import WRONG, ingest
from ematix_flow.sinks.server import ServerSink
from ematix_flow.sinks.tables import Dialect, Load, quoted
from ematix_flow.sinks.widening import name_of
from ematix_flow.specs import Target
from ematix_flow.state.fence import Fence

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

_LONGEST_NAME = 64
# An index of InnoDB takes so many bytes, of which a character may need four.
_INDEX_BYTES, _BYTES_OF_OTHERS, _LONGEST_KEY = 3072, 24, 255
# Lost connection, shutdown, locks, deadlock, too many connections, a server that only reads after a failover.
_PASSING = frozenset({1040, 1053, 1077, 1080, 1158, 1159, 1160, 1161, 1205, 1213, 1290, 1792, 1836, 1927, 2002, 2003,
                      2006, 2013, 2014, 2055, 3024, 3168, 4031})  # fmt: skip
# By a constraint, by a trigger, by a partition that is not there, as too long, too large or of another type.
_REFUSING = frozenset({1048, 1062, 1216, 1217, 1263, 1264, 1265, 1292, 1300, 1364, 1365, 1366, 1367, 1406, 1411, 1441,
                       1451, 1452, 1526, 1557, 1586, 1644, 1690, 1748, 1761, 1762, 1859, 3140, 3141, 3146, 3155, 3156,
                       3157, 3819, 3854, 4025, 4078})  # fmt: skip
_NO_TABLE = 1146

_COLUMNS = """
SELECT column_name, column_type, is_nullable = 'YES', column_default IS NOT NULL OR extra LIKE '%%auto_increment%%',
    character_set_name, collation_name
FROM information_schema.columns
WHERE table_schema = %s AND table_name = %s AND COALESCE(generation_expression, '') = '' ORDER BY ordinal_position"""
_JSON_COLUMNS = """
SELECT check_clause FROM information_schema.check_constraints
WHERE constraint_schema = %s AND table_name = %s AND check_clause LIKE 'json_valid(%%'"""


@dataclass(frozen=True, kw_only=True)
class Loaded(StagedTable):
    sound: bool = False
    """Rows with a value that MySQL cannot hold are left out."""


class _Connection:
    """PyMySQL's connection with the calls that are used here."""

    def __init__(self, db: Any) -> None:
        self._db = db

    def execute(self, sql: str, parameters: Any = None, /) -> Any:
        cursor = self._db.cursor()
        cursor.execute(sql, parameters)
        return cursor

    def close(self) -> None:
        if self._db.open:
            self._db.close()


class MySQLSink(ServerSink):
    product = "MySQL"
    moment = "%Y-%m-%d %H:%M:%S.%f"
    types = mysql_types.TYPES

    def __init__(self, target: Target, connection: MySQLConnection, name: str) -> None:
        self._address = understood(connection, f"target {name}")
        super().__init__(target, str(self._address), name)
        self._schema = self._ref.schema or self._address.database
        if not self._schema:
            raise FlowError(
                f"target {name}: neither the URL of the connection nor the table names a database",
                next_step="end the URL with /database, or give the table a schema",
            )
        _check_names(name, [self._schema, self._ref.name])
        self._is_mariadb = False

    # What MySQL does in its own way.

    def _open(self) -> Database:
        import pymysql

        try:
            db = _Connection(connected(replace(self._address, database="")))
            (version,) = db.execute("SELECT VERSION()").fetchone()
            self._is_mariadb = "mariadb" in version.lower()
            level = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"
            # MariaDB joins rows that have no index by comparing each with each, unless it is told of its hash join.
            for setting in (level, *(["SET SESSION join_cache_level = 8"] if self._is_mariadb else [])):
                db.execute(setting)
            self._enter(db)
        except pymysql.Error as error:
            raise self._failure(error) from error
        return db

    def _enter(self, db: Database) -> None:
        """A database that is still to be made cannot be entered."""
        if db.execute("SELECT 1 FROM information_schema.schemata WHERE schema_name = %s", (self._schema,)).fetchone():
            db.execute(f"USE {quoted(self._schema)}")

    def _columns(self, db: Database) -> list[TableColumn]:
        place = (self._schema, self._ref.name)
        found = db.execute(_COLUMNS, place).fetchall()
        checks = db.execute(_JSON_COLUMNS, place).fetchall() if self._is_mariadb and found else []
        # MariaDB keeps JSON as a text with a check.
        as_json = {re.sub(r'^json_valid\(["`](.*)["`]\)$', r"\1", clause) for (clause,) in checks}
        self._collations = {name: (charset, collation) for name, *_, charset, collation in found if charset}
        return [
            TableColumn(
                name,
                mysql_types.spark_type(kind),
                bool(nullable),
                bool(has_default),
                mysql_types.max_length(kind),
                "json" if name in as_json else kind,
            )
            for name, kind, nullable, has_default, *_ in found
        ]

    def _key_type(self, column: TableColumn) -> str:
        charset, collation = self._collations.get(column.name, ("", ""))
        return f"{column.kind} CHARACTER SET {charset} COLLATE {collation}" if charset else column.kind

    def _create_table(self, db: Database, columns: Sequence[TableColumn]) -> None:
        """Texts of an index need a length."""
        indexed = {
            *self._shape.keys,
            *self._shape.primary_key(columns),
            *(n for some in self._shape.unique for n in some),
        }
        low = {name.lower() for name in indexed}
        endless = [
            column
            for column in columns
            if column.name.lower() in low and name_of(column.type) in {"string", "binary"} and not column.max_length
        ]
        room = (_INDEX_BYTES - _BYTES_OF_OTHERS * len(low)) // 4 // max(1, len(endless))
        limited = {column.name: min(_LONGEST_KEY, room) for column in endless if column.kind != "UUID"}
        super()._create_table(db, [replace(c, max_length=limited.get(c.name, c.max_length)) for c in columns])

    def _create(self, db: Database, statement: str, primary_key: Sequence[str]) -> None:
        statement = statement.replace("CREATE TABLE", "CREATE TABLE IF NOT EXISTS", 1)
        db.execute(f"{statement} {self._storage}")
        if self._shape.keys and not primary_key:
            # Keys that may be NULL are no primary key, but every batch looks them up.
            keys = ", ".join(map(quoted, self._shape.keys))
            db.execute(f"CREATE INDEX {quoted('ematix_flow_keys')} ON {self._located(db)} ({keys})")

    @property
    def _collation(self) -> str:
        """Texts are the same if all of their bytes are, blanks at the end included."""
        return "utf8mb4_nopad_bin" if self._is_mariadb else "utf8mb4_0900_bin"

    @property
    def _storage(self) -> str:
        return f"ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE {self._collation}"

    def _widen(self, db: Database, column: TableColumn) -> None:
        kind = self.types.named(column)
        null = "NULL" if column.nullable else "NOT NULL"
        try:
            db.execute(f"ALTER TABLE {self._located(db)} MODIFY COLUMN {quoted(column.name)} {kind} {null}")
        except self._driver_error() as error:
            if self._busy(error):
                raise
            difference = f"column {column.name} has to become {kind}, which MySQL refuses: {self._words(error)}"
            raise SchemaDrift(self._ref.full_name, [difference]) from error

    def _encoded(self, rows: DataFrame) -> DataFrame:
        return rows.select(*(mysql_types.encoded(rows, field) for field in rows.schema.fields))

    def _driver_error(self) -> type[Exception]:
        import pymysql

        base: type[Exception] = pymysql.Error
        return base

    def _refusal(self, error: Exception) -> bool:
        return isinstance(error, TargetRefused) or _code(error) in _REFUSING

    def _busy(self, error: Exception) -> bool:
        return is_passing(error)

    def _words(self, error: Exception) -> str:
        words = str(error.args[-1] if error.args else error).splitlines()[0]
        return f"{words} ({_code(error)})" if _code(error) else words

    # The calls of the commit protocol.

    def prepare(self, schema: StructType) -> StructType:
        _check_names(self._name, schema.fieldNames())
        fitted = super().prepare(schema)
        with self._database() as db:
            self._check_engine(db)
        return fitted

    def _check_engine(self, db: Database) -> None:
        engine = db.execute(
            "SELECT t.engine, e.transactions FROM information_schema.tables AS t LEFT JOIN information_schema.engines "
            "AS e ON e.engine = t.engine WHERE t.table_schema = %s AND t.table_name = %s",
            (self._schema, self._ref.name),
        ).fetchone()
        if engine and engine[1] == "NO":
            raise FlowError(
                f"table {self._ref.full_name} is kept by {engine[0]}, which has no transactions: after a crash, half "
                "a batch would be in it",
                next_step=f"ALTER TABLE {self._ref.name} ENGINE = InnoDB",
            )

    def stage(self, rows: DataFrame, batch: Batch) -> Loaded:
        rows = self._resolved(rows)
        table = self._qualified(staging_name(batch.pipeline, self._name))
        kinds = {field.name: mysql_types.staging_type(field.dataType) for field in rows.schema.fields}
        with self._database() as db:
            kinds |= {COPY: "BIGINT", WRONG: "TEXT"}
            db.execute(f"DROP TABLE IF EXISTS {table}")
            listed = ", ".join(f"{quoted(column)} {kind}" for column, kind in kinds.items())
            db.execute(f"CREATE TABLE {table} ({listed}) {self._storage}")
        found = copied(self._encoded(rows), partial(ingest, replace(self._address, database=""), table))
        if found.failure:
            raise self._unavailable(found.failure.splitlines()[0])
        return Loaded(Path(), tuple(rows.columns), table=table, schema=rows.schema, copied=found)

    def refusals(self, staged: Staged, batch: Batch) -> dict[int, str]:
        assert isinstance(staged, Loaded)
        with self._database() as db:
            wrong = db.execute(
                f"SELECT {ROW}, {WRONG} FROM {staged.table} WHERE {_of(staged)} AND {WRONG} IS NOT NULL"
            ).fetchall()
        others = super().refusals(replace(staged, sound=True), batch)
        return dict(sorted((dict(wrong) | others).items()))

    def _source(self, db: Database, staged: Staged) -> str:
        assert isinstance(staged, Loaded)
        self._check_there(db, staged)
        there = {column.name.lower(): column for column in self._columns(db)}
        columns = ", ".join(self._decoded(field.name, there.get(field.name.lower())) for field in staged.schema.fields)
        sound = f" AND {WRONG} IS NULL" if staged.sound else ""
        return f"(SELECT {columns} FROM {staged.table} WHERE {_of(staged)}{sound})"

    def _decoded(self, name: str, column: TableColumn | None) -> str:
        """A staged column as the table has it, by the name that it has there."""
        if column is None:
            return quoted(name)
        value = quoted(name)
        charset, collation = self._collations.get(column.name, ("", ""))
        if column.kind == "json" and not self._is_mariadb:
            value = f"CAST({value} AS JSON)"
        elif found := re.fullmatch(r"(?:datetime|timestamp)(?:\((\d)\))?", column.kind):
            value = f"CAST({value} AS DATETIME({found[1] or 0}))"
        elif charset == "utf8mb4":
            # A comparison in another order than that of its index would read the whole table.
            value = f"{value} COLLATE {collation}"
        return f"{value} AS {quoted(column.name)}"

    def _check_there(self, db: Database, staged: Loaded) -> None:
        """A server that does not flush at each commit may lose some of them in a crash."""
        if not staged.copied.rows:
            return
        try:
            held, wrong = db.execute(
                f"SELECT COUNT(*), MIN({WRONG}) FROM {staged.table} WHERE {_of(staged)}"
            ).fetchone()
        except self._driver_error() as error:
            if _code(error) != _NO_TABLE:
                raise
            held, wrong = 0, None
        if held != staged.copied.rows:
            raise self._unavailable("the rows that were staged are gone, as after a crash of the server")
        if wrong and not staged.sound:
            raise TargetRefused(wrong, next_step="correct the rows in the transform; nothing of the batch was written")

    def _planned(self, db: Database, staged: Staged, source: str, batch: Batch) -> Load:
        assert isinstance(staged, Loaded)
        load, found = super()._planned(db, staged, source, batch), self._columns(db)
        named = {column.name.lower(): column.name for column in found}
        with_null = {name.lower() for name in staged.copied.with_null}
        exact = "CAST(CONVERT({} USING utf8mb4) AS BINARY)"
        return replace(
            load,
            columns=tuple(named[name.lower()] for name in load.columns),
            keys=tuple(named[key.lower()] for key in load.keys),
            firm=frozenset(named[key.lower()] for key in load.keys if key.lower() not in with_null),
            dialect=Dialect("{} <=> {}", "NOT ({} <=> {})", "DROP TEMPORARY TABLE", joins_first=True),
            # Most orders of texts know no difference between small and capital letters.
            compared={
                column.name: exact
                for column in found
                if self._collations.get(column.name, ("", self._collation))[1] != self._collation
                or column.kind == "json"
            },
        )

    def _of_query(self, query: Query) -> Staged:
        from pyspark.sql.types import StructType

        # Of what is not copied nobody knows whether it is NULL.
        unknown = Copied((), 0, frozenset(query.columns))
        return Loaded(Path(), query.columns, table="", schema=StructType(), copied=unknown)

    def _enter_for_query(self, db: Database) -> None:
        if self._address.database:
            db.execute(f"USE {quoted(self._address.database)}")

    def _create_fences(self, db: Database) -> None:
        # Without asking first, also somebody who may not create a database would have to.
        if db.execute("SELECT DATABASE()").fetchone() == (None,):
            db.execute(f"CREATE DATABASE IF NOT EXISTS {quoted(self._schema)}")
            self._enter(db)
        db.execute(
            f"CREATE TABLE IF NOT EXISTS {self._fences} (pipeline VARCHAR(255) NOT NULL, target VARCHAR(255) NOT NULL, "
            f"generation VARCHAR(255), batch BIGINT, applied_at DATETIME(6), PRIMARY KEY (pipeline, target)) "
            f"{self._storage}"
        )

    def _passed(self, db: Database, fence: Fence) -> bool:
        """There is a row to lock from the first batch on, so that of two processes one waits for the other."""
        of = (fence.pipeline, fence.target)
        db.execute(f"INSERT IGNORE INTO {self._fences} (pipeline, target) VALUES (%s, %s)", of)
        found = db.execute(
            f"SELECT generation, batch FROM {self._fences} WHERE pipeline = %s AND target = %s FOR UPDATE", of
        ).fetchone()
        return fence.passed(*found)

    def _settle(self, db: Database, staged: Staged, fence: Fence) -> None:
        db.execute(
            f"UPDATE {self._fences} SET generation = %s, batch = %s, applied_at = UTC_TIMESTAMP(6) "
            "WHERE pipeline = %s AND target = %s",
            (fence.generation, fence.batch, fence.pipeline, fence.target),
        )

    def _forget(self, staged: Staged) -> None:
        assert isinstance(staged, Loaded)
        with self._database() as db:
            db.execute(f"DROP TABLE IF EXISTS {staged.table}")

    @property
    def _fences(self) -> str:
        return self._qualified("_ematix_flow_fences")


def _of(staged: Loaded) -> str:
    """Only what Spark counted; none if there was nothing to copy."""
    return f"{COPY} IN ({', '.join(map(str, staged.copied.copies)) or 'NULL'})"


def _code(error: Exception) -> int:
    """Of the server or the driver; 0 without one."""
    code = error.args[0] if error.args else 0
    return code if isinstance(code, int) else 0


def is_passing(error: Exception) -> bool:
    import pymysql

    # Without a code the connection was lost in the middle of an answer.
    return _code(error) in _PASSING or isinstance(error, pymysql.err.InterfaceError)


def _check_names(target: str, names: Sequence[str]) -> None:
    if wrong := [name for name in names if len(name) > _LONGEST_NAME or name.endswith(" ")]:
        raise FlowError(
            f"target {target}: MySQL takes no names of more than {_LONGEST_NAME} characters or with a blank at the "
            f"end: {', '.join(wrong)}",
            next_step="rename them, columns for example with AS in the transform",
        )
