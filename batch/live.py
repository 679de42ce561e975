"""An open connection to the database of a target, for what is done there after a load."""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ematix_flow.connections import Connection
from ematix_flow.errors import NotBuilt
from ematix_flow.specs import Target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Live(ABC):
    """What a function of `transforms_post` is given. All that it executes is one transaction."""

    matches: ClassVar[str]
    """How a text is compared with a regular expression."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        """As it was declared."""

    @abstractmethod
    def execute(self, sql: str) -> list[tuple[Any, ...]]:
        """Run a statement; the rows that it gives, if any."""

    def quoted(self, name: str) -> str:
        return '"' + name.replace('"', '""') + '"'

    def located(self, target: Target) -> str:
        """A table as it stands after FROM."""
        assert target.table is not None, "the spec has been checked"
        return ".".join(map(self.quoted, filter(None, (target.table.schema, target.table.name))))

    def literal(self, value: Any) -> str:
        if isinstance(value, datetime):
            return self.moment(value.astimezone(UTC) if value.tzinfo else value)
        if isinstance(value, str | date):
            return "'" + str(value).replace("'", "''") + "'"
        return "NULL" if value is None else str(value)

    def moment(self, time: datetime) -> str:
        """A time as a literal, in UTC if it has a zone."""
        return f"TIMESTAMP '{time:%Y-%m-%d %H:%M:%S.%f}'"

    def as_number(self, column: str) -> str:
        """A column that is compared with numbers."""
        return column


class _OfDriver(Live):
    def __init__(self, connection: Connection, db: Any) -> None:
        super().__init__(connection)
        self._db = db

    def execute(self, sql: str) -> list[tuple[Any, ...]]:
        cursor = self._db.cursor()
        cursor.execute(sql)
        return [tuple(row) for row in cursor.fetchall()] if cursor.description else []


class _Postgres(_OfDriver):
    matches = "{} ~ {}"

    def moment(self, time: datetime) -> str:
        return f"TIMESTAMPTZ '{time:%Y-%m-%d %H:%M:%S.%f}+00'" if time.tzinfo else super().moment(time)


class _MySQL(_OfDriver):
    matches = "{} REGEXP {}"

    def quoted(self, name: str) -> str:
        return "`" + name.replace("`", "``") + "`"

    def literal(self, value: Any) -> str:
        return f"X'{value.encode().hex()}'" if isinstance(value, str) and value else super().literal(value)


class _SQLite(_OfDriver):
    matches = "regexp({1}, {0})"

    def moment(self, time: datetime) -> str:
        """Times are kept as texts."""
        return f"'{time:%Y-%m-%dT%H:%M:%S.%f}{'Z' if time.tzinfo else ''}'"

    def as_number(self, column: str) -> str:
        """Decimals are kept as texts, which would be compared letter by letter."""
        return f"CAST({column} AS NUMERIC)"


class _DuckDB(_Postgres):
    matches = "regexp_matches({}, {})"

    def execute(self, sql: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self._db.execute(sql).fetchall()]


class _Delta(Live):
    """Each statement is a commit of its own: Delta has no transaction over several."""

    matches = "{} RLIKE {}"

    def __init__(self, connection: Connection, session: SparkSession) -> None:
        super().__init__(connection)
        self._session = session

    def execute(self, sql: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self._session.sql(sql).collect()]

    def quoted(self, name: str) -> str:
        return "`" + name.replace("`", "``") + "`"

    def located(self, target: Target) -> str:
        parts = (target.table.schema, target.table.name) if target.table else ()
        path = Path(getattr(self.connection, "path", "")).absolute().joinpath(*filter(None, parts))
        return f"delta.{self.quoted(str(path))}"


@contextmanager
def opened(connection: Any, spark: SparkSession | None = None) -> Iterator[Live]:
    """Committed at the end, unless it fails."""
    if connection.kind == "delta_local":
        from ematix_flow.specs import SparkSettings
        from ematix_flow.streams.session import session_for

        yield _Delta(connection, session_for(SparkSettings(), jar_groups={"delta"}, spark=spark))
        return
    with closing(_connected(connection)) as db:
        live: type[_OfDriver] = {"postgres": _Postgres, "mysql": _MySQL, "sqlite": _SQLite, "duckdb": _DuckDB}[
            connection.kind
        ]
        if connection.kind in {"mysql", "duckdb"}:
            db.begin()
        elif connection.kind == "sqlite":  # its driver would begin with the first row, and keep a table made before it
            db.execute("BEGIN")
        yield live(connection, db)
        db.commit()


def _connected(connection: Any) -> Any:
    match connection.kind:
        case "postgres":
            import psycopg

            from ematix_flow.streams.sources.database.postgres import Postgres

            return psycopg.connect(Postgres(connection, "transforms_post").conninfo)
        case "mysql":
            from ematix_flow.streams.sources.database.mysql import MySQL

            return MySQL(connection, "transforms_post").connected()
        case "sqlite":
            db = sqlite3.connect(connection.path, isolation_level=None)
            db.create_function("regexp", 2, _matches, deterministic=True)
            return db
        case "duckdb":
            import duckdb

            return duckdb.connect(connection.path)
    raise NotBuilt(f"statements in {connection.kind!r} after a load", instead="use a function without arguments")


def _matches(pattern: str, text: str | None) -> bool | None:
    import re

    return None if text is None else re.search(pattern, str(text)) is not None
