"""Connections to SQL databases and Redis."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import AliasChoices, Field

from ematix_flow.connections.base import Connection, PathText, Text


class PostgresConnection(Connection):
    """A PostgreSQL database."""

    driver_extra: ClassVar[str] = "postgres"

    url: Text = Field(validation_alias=AliasChoices("url", "dsn"))
    """`postgresql://user:password@host:5432/database`; `dsn` is a synonym."""

    kind: Literal["postgres"] = "postgres"


class MySQLConnection(Connection):
    """A MySQL or MariaDB database."""

    driver_extra: ClassVar[str] = "mysql"

    url: Text = Field(validation_alias=AliasChoices("url", "dsn"))
    """`mysql://user:password@host:3306/database`; `dsn` is a synonym."""

    kind: Literal["mysql"] = "mysql"


class SQLiteConnection(Connection):
    """A SQLite database file."""

    path: PathText
    """The database file, or `:memory:`."""

    kind: Literal["sqlite"] = "sqlite"


class DuckDBConnection(Connection):
    """A DuckDB database file."""

    path: PathText
    """The database file, or `:memory:`."""

    kind: Literal["duckdb"] = "duckdb"


class RedisConnection(Connection):
    """A Redis server."""

    driver_extra: ClassVar[str] = "redis"

    url: Text = Field(validation_alias=AliasChoices("url", "dsn"))
    """`redis://:password@host:6379/0`, or `rediss://` for TLS; `dsn` is a synonym."""

    kind: Literal["redis"] = "redis"
