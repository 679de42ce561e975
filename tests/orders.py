"""A small pipeline over files of orders, for tests that state only what differs from it."""

import json
import os
import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
from deltalake import DeltaTable

from ematix_flow import run_pipeline
from ematix_flow.result import RunResult
from ematix_flow.state.dead_letters import DeadLetter, DeadLetters
from ematix_flow.state.home import dead_letters_of
from tests.services.mysql import mariadb
from tests.services.postgres import postgres

SCHEMA = "id long, amount double"


def aggregation(agg: str, as_: str, **more: str) -> str:
    """One aggregate of a window."""
    keys = {"agg": agg, "as": as_, **more}
    return "\n[[transform.window.aggregations]]\n" + "".join(f'{key} = "{value}"\n' for key, value in keys.items())


PER_MINUTE = """
[transform.window]
kind = "tumbling"
duration_ms = 60000
group_by = ["shop"]
event_time_column = "at"
late_data = "dlq"
"""
PER_MINUTE += aggregation("count", "orders") + aggregation("sum", "amount", column="amount")


class Orders:
    """Files of orders in `inbox`, and the places a pipeline can bring them to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.inbox = folder / "inbox"
        self.inbox.mkdir()
        self.database = folder / "orders.db"
        self.outbox = folder / "outbox"
        self._clock = 1_767_225_600

    def arrive(self, name: str, rows: Iterable[Mapping[str, Any] | str | bytes]) -> Path:
        """A file of JSON lines; a text or bytes stand for themselves."""
        file = self.inbox / name
        file.write_bytes(b"".join(_line(row) + b"\n" for row in rows))
        # A second apart, because batches take files in order of their time, and that is coarse.
        self._clock += 1
        os.utime(file, (self._clock, self._clock))
        return file

    def numbered(self, *files: range) -> None:
        """One file per range, each order with its number as its id."""
        for number, ids in enumerate(files):
            self.arrive(f"{number}.jsonl", ({"id": i, "amount": i / 2} for i in ids))

    def toml(
        self,
        *,
        name: str = "orders",
        source: str = "",
        schema: str | None = SCHEMA,
        form: str = "json_lines",
        sql: str | None = None,
        on_error: str = "fail",
        targets: tuple[str, ...] = ("duckdb",),
        table: str = "",
        more: str = "",
    ) -> str:
        lines = [f'pipeline_name = "{name}"', "[source]", 'kind = "object_store_local"', f'path = "{self.inbox}"']
        lines += [f'format = "{form}"', source, f'schema = "{schema}"' if schema else ""]
        lines += ["[transform]", f'on_error = "{on_error}"', f'sql = """{sql}"""' if sql else ""]
        lines += [self._target(target, table) for target in targets]
        return "\n".join([*lines, more])

    def run(self, **declaration: Any) -> RunResult:
        return self.run_text(self.toml(**declaration))

    def run_text(self, text: str) -> RunResult:
        return run_pipeline(config_str=text, bounded=True)

    def in_database(self, query: str = "SELECT * FROM orders ORDER BY ALL") -> list[tuple[Any, ...]]:
        if not self.database.exists():
            return []
        with duckdb.connect(str(self.database), read_only=True) as db:
            return db.execute(query).fetchall()

    def ids_in_database(self) -> list[int]:
        return [row[0] for row in self.in_database("SELECT id FROM orders ORDER BY id")]

    def ids_in_files(self) -> list[int]:
        return sorted(row["id"] for row in self.in_files())

    def in_files(self) -> list[dict[str, Any]]:
        return [row for file in self.files() for row in _rows(file)]

    def files(self) -> list[Path]:
        """What a reader of the outbox sees, also while it is written to."""
        found = []
        for folder, below, names in os.walk(self.outbox):
            below[:] = [name for name in below if not name.startswith(("_", "."))]
            found += [Path(folder) / name for name in names if not name.startswith(("_", "."))]
        return sorted(found)

    def dead_letters(self, name: str = "orders") -> list[DeadLetter]:
        store = DeadLetters(dead_letters_of(name))
        try:
            return store.all()
        finally:
            store.close()

    def in_new_database(self, *statements: str) -> None:
        with duckdb.connect(str(self.database)) as db:
            for statement in statements:
                db.execute(statement)

    def in_sqlite(self, query: str = "SELECT * FROM orders") -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.folder / "orders.sqlite")) as db:
            return db.execute(query).fetchall()

    @cached_property
    def postgres_url(self) -> str:
        """A database of these orders alone, on a server that is started by the first test that needs it."""
        return postgres().new_database()

    def in_postgres(self, query: str = "SELECT * FROM orders") -> list[tuple[Any, ...]]:
        return postgres().query(self.postgres_url, query)

    @cached_property
    def mysql_url(self) -> str:
        """As `postgres_url`, of MariaDB."""
        return mariadb().new_database()

    def in_mysql(self, query: str = "SELECT * FROM orders") -> list[tuple[Any, ...]]:
        return mariadb().query(self.mysql_url, query)

    def in_delta(self, query: str = "SELECT * FROM orders") -> list[tuple[Any, ...]]:
        """As a reader without Spark sees the table."""
        with duckdb.connect() as db:
            db.register("orders", DeltaTable(self.folder / "lake" / "orders").to_pyarrow_table())
            return db.execute(query).fetchall()

    def _target(self, target: str, table: str) -> str:
        """`table` is what all targets that are tables say of it."""
        places = {"duckdb": self.database, "sqlite": self.folder / "orders.sqlite", "delta_local": self.folder / "lake"}
        if target in places or target in {"postgres", "mysql"}:
            url = "" if target in places else self.postgres_url if target == "postgres" else self.mysql_url
            where = f'url = "{url}"' if url else f'path = "{places[target]}"'
            place = f'kind = "{target}"\n{where}'
            return f'[[targets]]\n{place}\n{table}\n[targets.table]\nname = "orders"'
        form, _, options = target.partition("\n")
        return f'[[targets]]\nkind = "object_store_local"\npath = "{self.outbox}"\nformat = "{form}"\n{options}'


def _line(row: Mapping[str, Any] | str | bytes) -> bytes:
    if isinstance(row, bytes):
        return row
    return row.encode() if isinstance(row, str) else json.dumps(row).encode()


def _rows(file: Path) -> list[dict[str, Any]]:
    if file.suffix == ".parquet":
        return pq.read_table(file, partitioning=None).to_pylist()
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
