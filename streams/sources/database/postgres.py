"""PostgreSQL as a source: Arrow through binary COPY, in parallel over the pages of a table, all in one snapshot."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

from ematix_flow.connections import PostgresConnection
from ematix_flow.sinks import postgres_types
from ematix_flow.sinks.postgres import is_passing, understood
from ematix_flow.streams.sources.database.base import Database, Slice, SourceColumn, SourceRefused, first_line

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType

_PIECE_BYTES = 4 << 20
# Below this, another reader costs more than it helps.
_SLICE_BYTES = 4 << 20
_BEGIN = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"

_KEY = """
SELECT a.attname FROM pg_index AS i JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
WHERE i.indrelid = to_regclass(%s) AND i.indisprimary ORDER BY array_position(i.indkey, a.attnum)"""


class Postgres(Database):
    product, text = "PostgreSQL", "text"

    def __init__(self, connection: PostgresConnection, whose: str) -> None:
        self.conninfo, place = understood(connection, whose)
        super().__init__(place, whose)
        self._held: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_held": None}

    def named(self, table: str) -> str:
        return ".".join(map(self.quoted, table.split(".")))

    def columns(self, relation: str) -> list[SourceColumn]:
        with self.in_words(), closing(self._connected()) as db:
            found = db.execute(f"SELECT * FROM {relation} LIMIT 0")
            result = found.pgresult
            kinds = [
                db.execute("SELECT format_type(%s, %s)", [column.type_code, result.fmod(index)]).fetchone()[0]
                for index, column in enumerate(found.description)
            ]
            names = [column.name for column in found.description]
        return [self._column(name, kind) for name, kind in zip(names, kinds, strict=True)]

    def _column(self, name: str, kind: str) -> SourceColumn:
        from pyspark.sql.types import DecimalType, StringType

        spark: DataType = postgres_types.spark_type(kind)
        if isinstance(spark, DecimalType | StringType):
            # Decimals as text, because PostgreSQL's know NaN and more digits than Spark's.
            return SourceColumn(name, spark, f"CAST({self.quoted(name)} AS text)", StringType())
        return SourceColumn(name, spark, self.quoted(name), spark)

    def primary_key(self, table: str) -> tuple[str, ...]:
        with self.in_words(), closing(self._connected()) as db:
            return tuple(name for (name,) in db.execute(_KEY, [self.named(table)]).fetchall())

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        with closing(self._connected()) as db:
            found: list[tuple[Any, ...]] = db.execute(sql).fetchall()
            return found

    def batches(self, sql: str, schema: pa.Schema, snapshot: str) -> Iterator[pa.RecordBatch]:
        from adbc_driver_postgresql import dbapi

        with dbapi.connect(self.conninfo, autocommit=True) as db, db.cursor() as cursor:
            for setting in (
                "SET TIME ZONE 'UTC'",
                _BEGIN,
                *([f"SET TRANSACTION SNAPSHOT '{snapshot}'"] * bool(snapshot)),
            ):
                cursor.execute(setting)
            cursor.adbc_statement.set_options(**{"adbc.postgresql.batch_size_hint_bytes": str(_PIECE_BYTES)})
            cursor.execute(sql)
            for batch in cursor.fetch_record_batch():
                yield batch.cast(schema)

    def literal(self, value: Any) -> str:
        from psycopg.sql import Literal

        return Literal(value).as_string(None)

    def joined(self, parts: Any) -> str:
        return " || chr(31) || ".join(parts)

    @property
    def parallel(self) -> bool:
        return True

    def hold(self) -> str:
        self._held = self._connected()
        self._held.execute(_BEGIN)
        return str(self._held.execute("SELECT pg_export_snapshot()").fetchone()[0])

    def release(self) -> None:
        if self._held is not None:
            self._held.close()
            self._held = None

    def slices(self, table: str, most: int) -> list[Slice]:
        """By pages. What has none of its own, such as a view or a partitioned table, is read by one."""
        found = self.rows(
            "SELECT pg_relation_size(oid), current_setting('block_size')::int FROM pg_class "
            f"WHERE oid = to_regclass({self.literal(self.named(table))}) AND relkind = 'r'"
        )
        size, block = found[0] if found else (0, 8192)
        parts = min(most, size // _SLICE_BYTES)
        if parts < 2:
            return [Slice()]
        edges = [size // block * number // parts for number in range(parts)]
        return [
            Slice(f"ctid >= '({low},0)'::tid" + (f" AND ctid < '({high},0)'::tid" if high else ""))
            for low, high in zip(edges, [*edges[1:], 0], strict=True)
        ]

    def failure(self, error: Exception) -> SourceRefused | None:
        import psycopg
        from adbc_driver_manager import Error

        if not isinstance(error, psycopg.Error | Error):
            return None
        # A snapshot lives as long as the process that planned the batch; it is planned again.
        if is_passing(error) or "invalid snapshot identifier" in str(error):
            return self.unavailable(first_line(error))
        return self.refused(first_line(error), "check user and password, the query, and what the user may read")

    def _connected(self) -> Any:
        import psycopg

        db = psycopg.connect(self.conninfo, autocommit=True)
        db.execute("SET TIME ZONE 'UTC'")
        return db
