"""Lookups from database servers: a table or a SELECT of PostgreSQL or MySQL, read as a source reads it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from ematix_flow.streams.columns import quoted
from ematix_flow.streams.failures import spark_words
from ematix_flow.streams.lookup_base import LookupBusy, LookupFailed, Origin
from ematix_flow.streams.sources.database.base import Database, SourceRefused, arrow_schema
from ematix_flow.streams.sources.database.mysql import MySQL
from ematix_flow.streams.sources.database.postgres import Postgres


class _Server(Origin):
    kind: ClassVar[type[Postgres | MySQL]]

    def copy(self, folder: Path) -> None:
        with self._in_words():
            database = self.kind(self.connection, f"lookup {self.name!r}")
            relation = self._relation(database)
            columns = database.columns(relation)
            # Values come as the driver has them, and Spark knows how to read these.
            raw = folder.with_name(f"{folder.name}-raw")
            shutil.rmtree(raw, ignore_errors=True)
            raw.mkdir()
            try:
                wires = arrow_schema([(column.name, column.wire) for column in columns])
                selected = ", ".join(f"{one.expression} AS {database.quoted(one.name)}" for one in columns)
                with database.in_words():
                    _write(raw / "rows.parquet", database, f"SELECT {selected} FROM {relation}", wires)
                rows = self.session.read.parquet(str(raw))
                kinds = [rows[quoted(one.name)].cast(one.type).alias(one.name) for one in columns]
                rows.select(*kinds).write.parquet(str(folder))
            finally:
                shutil.rmtree(raw, ignore_errors=True)

    def _relation(self, database: Database) -> str:
        if self.lookup.query is not None:
            return f"({self.lookup.query.rstrip().rstrip(';')}\n) AS q"
        assert self.lookup.table is not None, "the spec has been checked"
        if self.lookup.schema:
            return f"{database.quoted(self.lookup.schema)}.{database.quoted(self.lookup.table)}"
        return database.named(self.lookup.table)

    @contextmanager
    def _in_words(self) -> Iterator[None]:
        from pyspark.errors import PySparkException

        try:
            yield
        except SourceRefused as error:
            failed = LookupBusy if error.transient else LookupFailed
            raise failed(error.found, next_step=error.next_step) from error
        except PySparkException as error:
            found = f"Spark cannot use a value of it: {spark_words(error)[1]}"
            raise self.failed(found, "cast or leave out its column in `query`") from error


class PostgresOrigin(_Server):
    kind = Postgres


class MySQLOrigin(_Server):
    kind = MySQL


def _write(file: Path, database: Database, sql: str, schema: Any) -> None:
    from pyarrow import parquet

    with parquet.ParquetWriter(file, schema) as writer:
        for batch in database.batches(sql, schema, ""):
            writer.write_batch(batch)
