"""SQL that runs in the database of a target once its rows are there."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

from ematix_flow.errors import NotBuilt


def run_statement(connection: Any, sql: str) -> None:
    """In a transaction of its own."""
    with closing(_opened(connection)) as db:
        db.cursor().execute(sql)
        db.commit()


def _opened(connection: Any) -> Any:
    match connection.kind:
        case "postgres":
            import psycopg

            from ematix_flow.streams.sources.database.postgres import Postgres

            return psycopg.connect(Postgres(connection, "transforms_post").conninfo)
        case "mysql":
            from ematix_flow.streams.sources.database.mysql import MySQL

            return MySQL(connection, "transforms_post").connected()
        case "sqlite":
            return sqlite3.connect(connection.path)
        case "duckdb":
            import duckdb

            return duckdb.connect(connection.path)
    raise NotBuilt(f"transforms_post on {connection.kind!r}", instead="write a function instead of SQL")
