"""The databases of the suite of sources: how each is declared, and how others write to it."""

import sqlite3
from contextlib import closing
from datetime import date
from pathlib import Path
from typing import Any, ClassVar

import duckdb
import psycopg

from ematix_flow import DuckDBConnection, MySQLConnection, PostgresConnection, SQLiteConnection
from ematix_flow.connections import Connection
from tests.services.mysql import MySQL as MySQLServer
from tests.services.mysql import connected, mariadb
from tests.services.postgres import Postgres as PostgresServer
from tests.services.postgres import postgres


class Base:
    """A database with nothing in it."""

    name: ClassVar[str]
    moment: ClassVar[str]
    """The type of a time with microseconds."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def connection(self) -> Connection:
        raise NotImplementedError

    def run(self, *statements: str) -> None:
        raise NotImplementedError

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        raise NotImplementedError

    def fill(self, table: str, row: list[Any]) -> None:
        """One row, by the driver's own parameters."""
        raise NotImplementedError


class OfPostgres(Base):
    name, moment = "postgres", "timestamptz"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.url = postgres().new_database()

    @property
    def connection(self) -> Connection:
        return PostgresConnection(url=self.url)

    def run(self, *statements: str) -> None:
        for statement in statements:
            PostgresServer.query(self.url, statement)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        return PostgresServer.query(self.url, query)

    def fill(self, table: str, row: list[Any]) -> None:
        with psycopg.connect(self.url, autocommit=True) as db:
            places = ", ".join(["%s"] * len(row))
            db.execute(f"INSERT INTO {table} VALUES ({places})", row)  # type: ignore[arg-type]


class OfMySQL(Base):
    name, moment = "mysql", "datetime(6)"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.url = mariadb().new_database()

    @property
    def connection(self) -> Connection:
        return MySQLConnection(url=self.url)

    def run(self, *statements: str) -> None:
        for statement in statements:
            MySQLServer.query(self.url, statement)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        return MySQLServer.query(self.url, query)

    def fill(self, table: str, row: list[Any]) -> None:
        with closing(connected(self.url)) as db, db.cursor() as cursor:
            cursor.execute(f"INSERT INTO {table} VALUES ({', '.join(['%s'] * len(row))})", row)


class OfSQLite(Base):
    name, moment = "sqlite", "timestamp"

    @property
    def connection(self) -> Connection:
        return SQLiteConnection(path=str(self.folder / "in.sqlite"))

    def run(self, *statements: str) -> None:
        with closing(sqlite3.connect(self.folder / "in.sqlite", isolation_level=None)) as db:
            for statement in statements:
                db.execute(statement)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.folder / "in.sqlite")) as db:
            return db.execute(query).fetchall()

    def fill(self, table: str, row: list[Any]) -> None:
        with closing(sqlite3.connect(self.folder / "in.sqlite", isolation_level=None)) as db:
            texts = [str(value) if isinstance(value, date) else value for value in row]
            db.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", texts)


class OfDuckDB(Base):
    name, moment = "duckdb", "timestamptz"

    @property
    def connection(self) -> Connection:
        return DuckDBConnection(path=str(self.folder / "in.duckdb"))

    def run(self, *statements: str) -> None:
        with duckdb.connect(str(self.folder / "in.duckdb")) as db:
            db.execute("SET TimeZone = 'UTC'")
            for statement in statements:
                db.execute(statement)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with duckdb.connect(str(self.folder / "in.duckdb"), read_only=True) as db:
            return db.execute(query).fetchall()

    def fill(self, table: str, row: list[Any]) -> None:
        with duckdb.connect(str(self.folder / "in.duckdb")) as db:
            db.execute("SET TimeZone = 'UTC'")
            db.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)


ORIGINS: tuple[type[Base], ...] = (OfPostgres, OfMySQL, OfSQLite, OfDuckDB)


def values(rows: list[tuple[Any, ...]]) -> str:
    return ", ".join(f"({', '.join(map(str, row))})" for row in rows)
