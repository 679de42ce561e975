"""One Delta table at a path: what it is, what was written to it last, and how its columns are made and changed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ematix_flow.sinks.base import SchemaDrift, TargetRefused, TargetUnavailable
from ematix_flow.sinks.delta_types import found, named, quoted
from ematix_flow.sinks.drift import TableColumn

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# A checkpoint of the log takes seconds, reading a hundred small files of it does not.
_PROPERTIES = {"delta.checkpointInterval": "100"}
# Parquet cannot name its columns with these; Delta then gives the files other names than the table.
_NEEDS_MAPPING = frozenset(" ,;{}()\n\t=")
_CONSTRAINT = "delta.constraints."

_LOST_A_RACE = ("[DELTA_CONCURRENT_", "[DELTA_METADATA_CHANGED", "[DELTA_PROTOCOL_CHANGED")
_REFUSED = (
    "[DELTA_VIOLATE_CONSTRAINT",
    "[DELTA_NOT_NULL_CONSTRAINT_VIOLATED",
    "[DELTA_EXCEED_CHAR_VARCHAR_LIMIT",
    "[EXCEED_LIMIT_LENGTH",
)


@dataclass(frozen=True)
class DeltaTable:
    path: str
    session: SparkSession

    @property
    def sql_name(self) -> str:
        return f"delta.{quoted(self.path)}"

    @property
    def exists(self) -> bool:
        java = self._java.io.delta.tables.DeltaTable
        return bool(java.isDeltaTable(self.session._jsparkSession, self.path))  # noqa: SLF001

    def rows(self) -> DataFrame:
        return self.session.read.format("delta").load(self.path)

    def columns(self) -> list[TableColumn]:
        return [found(field) for field in self.rows().schema.fields]

    def constraints(self) -> dict[str, str]:
        """The CHECK constraints: name -> expression."""
        properties = self.session.sql(f"SHOW TBLPROPERTIES {self.sql_name}").collect()
        return {key.removeprefix(_CONSTRAINT): value for key, value in properties if key.startswith(_CONSTRAINT)}

    def newest_transaction(self, application: str) -> int | None:
        """Read from the log by Delta's kernel, which takes no Spark job."""
        kernel = self._java.io.delta.kernel
        settings = self.session._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001
        engine = kernel.defaults.engine.DefaultEngine.create(settings)
        snapshot = kernel.Table.forPath(engine, self.path).getLatestSnapshot(engine)
        version = snapshot.getLatestTransactionVersion(engine, application)
        return int(version.get()) if version.isPresent() else None

    def create(self, columns: Sequence[TableColumn], partition_by: Sequence[str]) -> None:
        parts = ", ".join(f"{quoted(c.name)} {named(c)}{'' if c.nullable else ' NOT NULL'}" for c in columns)
        properties = dict(_PROPERTIES)
        if _NEEDS_MAPPING & set("".join(_names(columns))):
            properties["delta.columnMapping.mode"] = "name"
        partitions = f" PARTITIONED BY ({', '.join(map(quoted, partition_by))})" if partition_by else ""
        settings = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
        with self._schema_errors("create the table"):
            self.session.sql(
                f"CREATE TABLE {self.sql_name} ({parts}) USING delta{partitions} TBLPROPERTIES ({settings})"
            )

    def add(self, columns: Sequence[TableColumn]) -> None:
        with self._schema_errors(f"add {', '.join(c.name for c in columns)}"):
            if any("timestamp_ntz" in column.words for column in columns):
                self._set("delta.feature.timestampNtz", "supported")
            parts = ", ".join(f"{quoted(c.name)} {named(c)}" for c in columns)
            self.session.sql(f"ALTER TABLE {self.sql_name} ADD COLUMNS ({parts})")

    def widen(self, columns: Sequence[TableColumn]) -> None:
        self._set("delta.enableTypeWidening", "true")
        for column in columns:
            with self._schema_errors(f"make {column.name} {column.words}"):
                self.session.sql(f"ALTER TABLE {self.sql_name} ALTER COLUMN {quoted(column.name)} TYPE {named(column)}")

    def _set(self, key: str, value: str) -> None:
        self.session.sql(f"ALTER TABLE {self.sql_name} SET TBLPROPERTIES ('{key}' = '{value}')")

    @contextmanager
    def _schema_errors(self, attempt: str) -> Iterator[None]:
        try:
            yield
        except _spark_errors() as error:
            raise SchemaDrift(self.path, [f"Delta does not {attempt}: {_words(error)}"]) from error

    @property
    def _java(self) -> Any:
        return self.session._jvm  # noqa: SLF001


@contextmanager
def write_errors_in_words(path: str, batch: int) -> Iterator[None]:
    """What Delta raises while a batch is written, as errors that say whether the batch may be tried again."""
    try:
        yield
    except _spark_errors() as error:
        words = _words(error)
        if words.startswith(_LOST_A_RACE):
            raise TargetUnavailable(
                f"another program changed {path} while batch {batch} was being written: {words}",
                next_step="nothing of the batch was written; it is tried again",
            ) from error
        if words.startswith(_REFUSED):
            raise TargetRefused(
                f"Delta refuses the rows of batch {batch} for {path}: {words}",
                next_step="correct the rows in the transform, or the table; nothing of the batch was written",
            ) from error
        raise


def _spark_errors() -> tuple[type[Exception], ...]:
    """PySpark knows only some of the Java errors; Delta's own are not among them."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    return PySparkException, Py4JJavaError


def _words(error: Exception) -> str:
    """The line that begins with a condition, such as `[DELTA_CONCURRENT_APPEND] ...`, or the first one."""
    text = str(error)
    found = re.search(r"\[[A-Z][A-Z0-9_.]+\][^\n]*", text)
    return found.group() if found else text.strip().splitlines()[0]


def _names(columns: Sequence[TableColumn]) -> Iterator[str]:
    """Of columns and of the fields inside them."""
    for column in columns:
        yield column.name
        yield from _field_names(json.loads(column.type.json()))


def _field_names(kind: Any) -> Iterator[str]:
    if isinstance(kind, dict):
        for field in kind.get("fields", ()):
            yield field["name"]
        for part in (*kind.values(), *kind.get("fields", ())):
            yield from _field_names(part)
