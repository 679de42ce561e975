"""A table or a query of a database as a stream."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar
from uuid import uuid4

from ematix_flow.errors import DeclarationError, Problem
from ematix_flow.problems import near
from ematix_flow.specs import Source
from ematix_flow.state.store import Store
from ematix_flow.streams.columns import misfit, quoted
from ematix_flow.streams.envelope import Carried, Decoded, Origin, as_json_bytes, wrapped
from ematix_flow.streams.sources.database.base import Database, SourceColumn, spark_schema
from ematix_flow.streams.sources.database.files import DuckDB, SQLite
from ematix_flow.streams.sources.database.mysql import MySQL
from ematix_flow.streams.sources.database.postgres import Postgres
from ematix_flow.streams.sources.schemas import fix_schema, known_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

DATABASES: dict[str, Any] = {"postgres": Postgres, "mysql": MySQL, "sqlite": SQLite, "duckdb": DuckDB}
_SHOWN_CHARACTERS = 200


@dataclass(frozen=True)
class Looked:
    """A table or query of a database, as it is now."""

    database: Database
    table: str
    """As declared, if it is a table and no query."""
    relation: str
    """What stands after FROM."""
    columns: list[SourceColumn]

    def check(self, source: str, names: Iterable[tuple[str, str]]) -> None:
        """Columns that a declaration names, each with the key that names it."""
        known = [column.name for column in self.columns]
        there = {name.lower() for name in known}
        if problems := [
            Problem(f"source {source!r} {key}", f"no column {name}", ", ".join(known), near(name, known))
            for name, key in names
            if name.lower() not in there
        ]:
            raise DeclarationError(f"{self.table or 'query'} of {self.database.place}", problems)


class DatabaseSource:
    """Without an incremental column all rows, once per run; with one, what is new."""

    replayable: ClassVar[bool] = True
    ranged: ClassVar[bool] = False
    snapshots: ClassVar[bool] = True
    payload_format = "database"
    exact_positions = False

    def __init__(
        self,
        source: Source,
        connection: Any,
        name: str,
        batch_bytes: int | None,
        store: Store,
        session: SparkSession,
    ) -> None:
        self._source, self._name = source, name
        looked = self.look(source, connection, name)
        self._database, self._table = looked.database, looked.table
        self._relation, self._columns = looked.relation, looked.columns
        self.origin = Origin(name, as_json_bytes)
        self.payload_schema = self._fixed(store)
        self._run = uuid4().hex

    @staticmethod
    def look(source: Source, connection: Any, name: str) -> Looked:
        """What it would read. Fails in words if there is no such thing."""
        database: Database = DATABASES[connection.kind](connection, f"source {name!r}")
        table = "" if is_query(source.query) else source.query.strip()
        # On a line of its own, because the query may end in a comment.
        relation = database.named(table) if table else f"({_bare(source.query)}\n) AS q"
        return Looked(database, table, relation, database.columns(relation))

    def read(self, session: SparkSession, carried: Carried) -> DataFrame:
        from pyspark.sql import functions as F
        from pyspark.sql.types import TimestampType

        from ematix_flow.streams.sources.database.reader import AT, Reading, data_source

        wanted = [self._held[field.name.lower()] for field in self.payload_schema.fields]
        reading = Reading(
            self._database,
            self._relation,
            self._table,
            tuple(wanted),
            self._run,
            partitions=session.sparkContext.defaultParallelism,
            max_rows=self._source.max_rows_per_batch,
            incremental=self._named(self._source.incremental_column, "incremental_column"),
            keys=self._keys() if self._source.incremental_column else (),
            lookback=self._source.lookback or 0,
        )
        kind = f"ematix_flow_{hashlib.sha256(f'{self._run}{self._name}'.encode()).hexdigest()[:12]}"
        wire = spark_schema([*((column.name, column.wire) for column in wanted), (AT, TimestampType())])
        session.dataSource.register(data_source(reading, wire, kind))
        rows = session.readStream.format(kind).load()
        pairs = list(zip(self.payload_schema.fields, wanted, strict=True))
        raw = {field.name: F.col(quoted(column.name)) for field, column in pairs}
        misfits = [misfit(column.name, field.dataType) for field, column in pairs if field.dataType != column.wire]
        message = F.coalesce(F.lit(None).cast("string"), *misfits)
        incremental = [raw[name] for name in raw if name.lower() == (self._source.incremental_column or "").lower()]
        decoded = Decoded(
            rows=rows,
            columns={
                field.name: raw[field.name].try_cast(field.dataType)
                if field.dataType != column.wire
                else raw[field.name]
                for field, column in pairs
            },
            arrived=F.col(AT),
            order=F.struct(F.col(AT).alias("read"), *(one.alias("value") for one in incremental)),
            wrong=message.isNotNull(),
            code="bad-value",
            message=message,
            position=F.lit(f"{self._table or 'query'}#"),
            payload=F.struct(*raw.values()),
        )
        return wrapped(decoded, self.origin, carried, self.payload_schema, self._source.event_time_column)

    def reason(self, payload: bytes) -> str:
        return "the row does not fit the declared schema"

    def lines(self, file: str, payloads: Collection[bytes]) -> Mapping[bytes, Sequence[int]]:
        return {}

    def place(self, position: str, payload: bytes) -> str:
        text = payload.decode("utf-8", "replace")
        shown = text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]} ..."
        return f"{self._table or 'query'} of {self._database.place}, row {shown}"

    def arrived(self, position: str) -> datetime | None:
        return None

    def release(self, batch: int) -> None:
        """Rows stay where they are; how far they were read is part of the checkpoint."""

    @property
    def _held(self) -> dict[str, SourceColumn]:
        return {column.name.lower(): column for column in self._columns}

    def _fixed(self, store: Store) -> StructType:
        """Declared, or as the table or query is now: what that means for a target, its `on_drift` says."""
        schema = known_schema(self._source, self._name, store)
        if schema is None or self._source.schema is None:
            before = {} if schema is None or self._database.typed else {f.name: f.dataType for f in schema.fields}
            schema = spark_schema([(column.name, before.get(column.name, column.type)) for column in self._columns])
            fix_schema(schema, self._name, store)
        self._check([(name, "schema") for name in schema.fieldNames()])
        return schema

    def _keys(self) -> tuple[str, ...]:
        """What tells two rows of the same value apart: declared, or the primary key, or all that they hold."""
        if self._source.keys:
            return tuple(self._named(key, "keys") for key in self._source.keys)
        found = self._database.primary_key(self._table) if self._table else ()
        return found or tuple(column.name for column in self._columns)

    def _named(self, name: str | None, key: str) -> str:
        """A column as the database spells it."""
        if name is None:
            return ""
        self._check([(name, key)])
        return self._held[name.lower()].name

    def _check(self, names: list[tuple[str, str]]) -> None:
        Looked(self._database, self._table, self._relation, self._columns).check(self._name, names)


def is_query(text: str) -> bool:
    """A SELECT, as against the name of a table."""
    return bool(re.match(r"\s*(?:--[^\n]*\n\s*)*[(]*\s*(?:SELECT|WITH|VALUES|TABLE|FROM)\b", text, re.IGNORECASE))


def _bare(query: str) -> str:
    return query.strip().rstrip(";").rstrip()
