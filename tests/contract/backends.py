"""The targets of the behaviour suite: how each is declared, how it is read back, and what it cannot do."""

import base64
import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import duckdb
import psycopg
import pyarrow.parquet as pq
from pymysql.cursors import DictCursor
from pyspark.sql import SparkSession
from pyspark.sql.types import DataType, StructType

from ematix_flow import (
    DeltaLocalConnection,
    DuckDBConnection,
    KafkaConnection,
    MySQLConnection,
    ObjectStoreLocalConnection,
    PostgresConnection,
    SQLiteConnection,
)
from ematix_flow.specs import Target
from ematix_flow.table import SCD2_COLUMNS
from tests.services import mysql as mysql_servers
from tests.services.kafka import kafka
from tests.services.postgres import Postgres as Server
from tests.services.postgres import postgres

TABLE = "orders"
_FILES_ONLY_ADD = "files are added and never changed"
_DELTA_HAS_NO_KEYS = "Delta knows neither primary keys nor unique columns"
_TOPICS_TAKE_ALL = "a topic has no table that rows could fit or miss, and refuses none"
_FILES_HAVE_NO_TABLE = "files have no table that rows could fit or miss"

Row = dict[str, Any]


class Backend:
    """One target. A case is the name of a test without `test_`; a case declared here must fail, and no other may."""

    name: ClassVar[str]
    delivery: ClassVar[str] = "at_least_once"
    never: ClassVar[Mapping[str, str]] = {}
    """Case -> why it will always be so."""
    not_yet: ClassVar[Mapping[str, str]] = {}
    """Case -> what is missing."""
    slow: ClassVar[frozenset[str]] = frozenset()
    """Cases that take long here and show nothing that a quicker one does not; `make test-slow` runs them."""

    def __init__(self, folder: Path, spark: SparkSession) -> None:
        self.folder, self.spark = folder, spark

    def target(self, table: Any = TABLE, **options: Any) -> Target:
        """Declared as a user does. `table` is a name or a declared class."""
        raise NotImplementedError

    def read(self, columns: StructType) -> list[Row]:
        """All that a reader finds, with the values as Python has them; `columns` tells what text stands for."""
        raise NotImplementedError


class Everything(frozenset[str]):
    """Every case."""

    def __contains__(self, case: object) -> bool:
        return True


class Files(Backend):
    name = "object_store_local"
    never: ClassVar = {
        "truncate_replaces_everything": _FILES_ONLY_ADD,
        "merge_inserts_new_keys_and_updates_what_differs": _FILES_ONLY_ADD,
        "merge_leaves_an_unchanged_row_as_it_was_loaded": _FILES_ONLY_ADD,
        "merge_changes_chosen_columns_sees_what_is_gone_and_counts": _FILES_ONLY_ADD,
        "last_by_time_then_by_order_wins_within_a_batch": _FILES_ONLY_ADD,
        "a_null_key_is_a_key": _FILES_ONLY_ADD,
        "merge_deletes_a_withdrawn_row": _FILES_ONLY_ADD,
        "a_withdrawn_row_is_not_refused_and_frees_what_is_unique": _FILES_ONLY_ADD,
        "scd2_keeps_every_version_of_a_batch": _FILES_ONLY_ADD,
        "scd2_splits_the_interval_that_an_older_event_falls_into": _FILES_ONLY_ADD,
        "scd2_replaces_a_version_of_the_same_time_and_repeats_nothing": _FILES_ONLY_ADD,
        "scd2_closes_what_the_source_no_longer_shows_and_takes_it_up_again": _FILES_ONLY_ADD,
        "scd2_closes_keys_that_were_not_shown_for_the_ttl": _FILES_ONLY_ADD,
        "scd2_agrees_with_a_plain_model_over_random_histories": _FILES_ONLY_ADD,
        "a_declared_class_becomes_the_table": _FILES_HAVE_NO_TABLE,
        "drift_is_an_error_that_names_every_difference": _FILES_HAVE_NO_TABLE,
        "drift_evolves_the_table": _FILES_HAVE_NO_TABLE,
        "drift_is_ignored": _FILES_HAVE_NO_TABLE,
        "refused_rows_are_found_exactly": "files have no constraints",
    }

    def target(self, table: Any = None, **options: Any) -> Target:
        place = {"table": table} if table else {}
        connection = ObjectStoreLocalConnection(path=str(self.folder / "files"), format="parquet")
        return Target(connection=connection, **place, **options)

    def read(self, columns: StructType) -> list[Row]:
        files = sorted((self.folder / "files").glob("[!_.]*.parquet"))
        return [row for file in files for row in pq.read_table(file).to_pylist(maps_as_pydicts="strict")]


class Kafka(Backend):
    """With transactions; without them, a batch that is repeated is written again."""

    name = "kafka"
    delivery = "exactly_once"
    never: ClassVar = {
        case: {
            _FILES_ONLY_ADD: "records are added and never changed",
            "files have no constraints": _TOPICS_TAKE_ALL,
        }.get(reason, _TOPICS_TAKE_ALL)
        for case, reason in Files.never.items()
    }

    def __init__(self, folder: Path, spark: SparkSession) -> None:
        super().__init__(folder, spark)
        self._topic = kafka().new_topic()

    def target(self, table: Any = None, **options: Any) -> Target:
        place = {"table": table} if table else {}
        connection = KafkaConnection(bootstrap_servers=kafka().bootstrap)
        return Target(connection=connection, topic=self._topic, **place, **options)

    def read(self, columns: StructType) -> list[Row]:
        found = [json.loads(message.value(), parse_float=Decimal) for message in kafka().read(self._topic)]
        return [_from_json(row, columns) for row in found]


class DuckDB(Backend):
    name = "duckdb"

    def target(self, table: Any = TABLE, **options: Any) -> Target:
        return Target(connection=DuckDBConnection(path=str(self.folder / "a.duckdb")), table=table, **options)

    def read(self, columns: StructType) -> list[Row]:
        with duckdb.connect(str(self.folder / "a.duckdb"), read_only=True) as db:
            db.execute("SET TimeZone = 'UTC'")
            found = db.execute(f"SELECT * FROM {TABLE}")
            names = [column[0] for column in found.description]
            return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


class SQLite(Backend):
    name = "sqlite"
    slow = frozenset(
        {
            "merge_changes_chosen_columns_sees_what_is_gone_and_counts",
            "scd2_closes_keys_that_were_not_shown_for_the_ttl",
            "scd2_closes_what_the_source_no_longer_shows_and_takes_it_up_again",
        }
    )

    def target(self, table: Any = TABLE, **options: Any) -> Target:
        return Target(connection=SQLiteConnection(path=str(self.folder / "a.sqlite")), table=table, **options)

    def read(self, columns: StructType) -> list[Row]:
        kinds = {field.name: field.dataType.typeName() for field in columns.fields}
        kinds |= {column.name: column.type.spark_type for column in SCD2_COLUMNS}
        db = sqlite3.connect(self.folder / "a.sqlite")
        try:
            db.row_factory = sqlite3.Row
            found = db.execute(f"SELECT * FROM {TABLE}").fetchall()
            return [{name: _from_text(kinds.get(name, ""), row[name]) for name in row.keys()} for row in found]  # noqa: SIM118
        finally:
            db.close()


class Postgres(Backend):
    name = "postgres"
    never: ClassVar = {
        "every_type_comes_back_as_it_was": "PostgreSQL's text holds every character but NUL; a row with it is refused",
    }
    slow = frozenset(
        {
            "last_by_time_then_by_order_wins_within_a_batch",
            "merge_changes_chosen_columns_sees_what_is_gone_and_counts",
            "merge_leaves_an_unchanged_row_as_it_was_loaded",
            "scd2_closes_keys_that_were_not_shown_for_the_ttl",
            "scd2_closes_what_the_source_no_longer_shows_and_takes_it_up_again",
            "scd2_keeps_every_version_of_a_batch",
            "scd2_replaces_a_version_of_the_same_time_and_repeats_nothing",
            "scd2_splits_the_interval_that_an_older_event_falls_into",
        }
    )

    def __init__(self, folder: Path, spark: SparkSession, server: Server | None = None) -> None:
        super().__init__(folder, spark)
        server = server or postgres()
        database = server.new_database()
        # The cases declare their classes for this schema; all else goes where the connection looks first.
        self.url = f"{database}{'&' if '?' in database else '?'}options=-csearch_path%3Dmain"
        server.query(self.url, "CREATE SCHEMA main")

    def target(self, table: Any = TABLE, **options: Any) -> Target:
        return Target(connection=PostgresConnection(url=self.url), table=table, **options)

    def read(self, columns: StructType) -> list[Row]:
        nested = {field.name for field in columns.fields if field.dataType.typeName() in {"array", "map", "struct"}}
        with psycopg.connect(self.url, row_factory=psycopg.rows.dict_row) as db:
            db.execute("SET TIME ZONE 'UTC'")
            for kind in ("json", "jsonb"):
                db.adapters.register_loader(kind, psycopg.types.string.TextLoader)
            found = db.execute(f"SELECT * FROM {TABLE}").fetchall()
        return [{name: _from_text("struct" * (name in nested), row[name]) for name in row} for row in found]


class MariaDB(Backend):
    name = "mysql (MariaDB)"
    slow = Postgres.slow | {
        "a_null_key_is_a_key",
        "append_adds_the_rows_of_each_batch",
        "drift_evolves_the_table",
        "drift_is_ignored",
        "merge_inserts_new_keys_and_updates_what_differs",
        "truncate_replaces_everything",
    }

    def __init__(self, folder: Path, spark: SparkSession, server: mysql_servers.MySQL | None = None) -> None:
        super().__init__(folder, spark)
        server = server or self._server()
        # The cases declare their classes for this database.
        server.query(server.url, "DROP DATABASE IF EXISTS main;\nCREATE DATABASE main")
        self.url = server.within("main")

    def _server(self) -> mysql_servers.MySQL:
        return mysql_servers.mariadb()

    def target(self, table: Any = TABLE, **options: Any) -> Target:
        return Target(connection=MySQLConnection(url=self.url), table=table, **options)

    def read(self, columns: StructType) -> list[Row]:
        kinds = {field.name: field.dataType.typeName() for field in columns.fields}
        kinds |= {column.name: column.type.spark_type for column in SCD2_COLUMNS}
        with closing(mysql_servers.connected(self.url, cursorclass=DictCursor)) as db, db.cursor() as cursor:
            cursor.execute(f"SELECT * FROM {TABLE}")
            found = list(cursor.fetchall())
        return [{name: _of_mysql(kinds.get(name, ""), row[name]) for name in row} for row in found]


class MySQL(MariaDB):
    """The same code as for MariaDB, but for a few words of SQL."""

    name = "mysql"
    slow = Everything()

    def _server(self) -> mysql_servers.MySQL:
        return mysql_servers.mysql()


class Delta(Backend):
    name = "delta_local"
    never: ClassVar = {
        "refused_rows_are_found_exactly": _DELTA_HAS_NO_KEYS,
    }
    slow = frozenset(
        {
            "a_null_key_is_a_key",
            "a_withdrawn_row_is_not_refused_and_frees_what_is_unique",
            "drift_evolves_the_table",
            "drift_is_an_error_that_names_every_difference",
            "last_by_time_then_by_order_wins_within_a_batch",
            "merge_changes_chosen_columns_sees_what_is_gone_and_counts",
            "merge_leaves_an_unchanged_row_as_it_was_loaded",
            "scd2_agrees_with_a_plain_model_over_random_histories",
            "scd2_closes_keys_that_were_not_shown_for_the_ttl",
            "scd2_closes_what_the_source_no_longer_shows_and_takes_it_up_again",
            "scd2_keeps_every_version_of_a_batch",
            "scd2_replaces_a_version_of_the_same_time_and_repeats_nothing",
        }
    )

    def target(self, table: Any = ("main", TABLE), **options: Any) -> Target:
        return Target(connection=DeltaLocalConnection(path=str(self.folder / "lake")), table=table, **options)

    def read(self, columns: StructType) -> list[Row]:
        """From the table's own log, which is quicker than Spark and shows what other programs see."""
        table = self.folder / "lake" / "main" / TABLE
        names: list[str] = []
        files: set[str] = set()
        for commit in sorted((table / "_delta_log").glob("*.json")):
            for action in map(json.loads, commit.read_text(encoding="utf-8").splitlines()):
                if "metaData" in action:
                    names = [field["name"] for field in json.loads(action["metaData"]["schemaString"])["fields"]]
                if "add" in action:
                    files.add(action["add"]["path"])
                if "remove" in action:
                    files.discard(action["remove"]["path"])
        found = [
            row for file in sorted(files) for row in pq.read_table(table / file).to_pylist(maps_as_pydicts="strict")
        ]
        return [{name: row.get(name) for name in names} for row in found]


def _from_json(value: Any, kind: DataType) -> Any:
    if value is None:
        return None
    if isinstance(kind, StructType):
        return {field.name: _from_json(value.get(field.name), field.dataType) for field in kind.fields}
    readers: dict[str, Any] = {
        "float": float,
        "double": float,
        "binary": base64.b64decode,
        "date": date.fromisoformat,
        "timestamp": datetime.fromisoformat,
        "timestamp_ntz": datetime.fromisoformat,
    }
    return readers.get(kind.typeName(), lambda as_it_is: as_it_is)(value)


def _of_mysql(kind: str, value: Any) -> Any:
    if isinstance(value, datetime) and kind == "timestamp":
        return value.replace(tzinfo=UTC)
    return _from_text(kind, value) if kind in {"boolean", "array", "map", "struct"} else value


def _from_text(kind: str, value: Any) -> Any:
    if value is None:
        return None
    readers: dict[str, Any] = {
        "boolean": bool,
        "decimal": Decimal,
        "date": date.fromisoformat,
        "timestamp": datetime.fromisoformat,
        "timestamp_ntz": datetime.fromisoformat,
        **dict.fromkeys(("array", "map", "struct"), json.loads),
    }
    return readers.get(kind, lambda as_it_is: as_it_is)(value)


BACKENDS: tuple[type[Backend], ...] = (Files, DuckDB, SQLite, Postgres, MySQL, MariaDB, Delta, Kafka)
