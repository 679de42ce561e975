"""A pipeline whose source and targets are one database, with nothing to compute elsewhere: statements of that database,
each with its fence in one transaction, and no Spark."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from uuid import uuid4

from ematix_flow.connections import Connection
from ematix_flow.result import RunResult
from ematix_flow.sinks.base import Batch
from ematix_flow.sinks.database import DatabaseSink, Query
from ematix_flow.sinks.opening import open_sink, sink_type
from ematix_flow.specs import PipelineSpec, Target
from ematix_flow.state.home import home
from ematix_flow.streams.sources.database.base import SourceColumn, spark_schema
from ematix_flow.streams.sources.database.source import DATABASES, Looked
from ematix_flow.streams.steps import reached
from ematix_flow.types import String

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

_PLAIN = frozenset({"smallint", "int", "bigint", "float", "double", "string", "binary"})
_KINDS = {
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint"), "whole number"),
    **dict.fromkeys(("float", "double", "decimal"), "number"),
    "string": "text",
    "boolean": "boolean",
}
# Databases agree on these. Others they write or round each in its own way, or keep a text in a column of numbers.
_AGREED = frozenset({("whole number", "number"), ("whole number", "text")})


def obstacle(spec: PipelineSpec, *, transforms: bool) -> str:
    """Why a pipeline has to go through Spark; an empty text if it has not."""
    source = spec.sources[0]
    if len(spec.sources) > 1 or source.kind not in DATABASES:
        return "it has a source that is no database"
    if any(_place(target.connection) != _place(source.connection) for target in spec.targets):
        return "source and target are different databases"
    if transforms or source.schema is not None:
        return "Spark has to transform or cast the rows"
    if source.incremental_column is not None:
        return "only new rows are read"
    return next(filter(None, map(_obstacle_of, spec.targets)), "")


def _obstacle_of(target: Target) -> str:
    definition = target.table.definition if target.table else None
    if target.mode == "scd2":
        return "scd2 compares versions by a hash that Spark computes"
    columns = definition.columns if definition else ()
    if any(column.normalizers for column in columns):
        return "the table has normalizers"
    written = [column.name for column in columns if column.type.spark_type not in _PLAIN]
    if written and not sink_type(target).capabilities.typed:
        return f"Spark has to write {', '.join(written)} in the form that the database keeps"
    return ""


def unlike(spec: PipelineSpec, looked: Looked, wanted: Wanted) -> str:
    """Why rows of this source have to go through Spark to get the types of the targets; an empty text if not."""
    return next(filter(None, (_unlike(target, looked, wanted) for target in spec.targets)), "")


def _unlike(target: Target, looked: Looked, wanted: Wanted) -> str:
    definition = target.table.definition if target.table else None
    declared = {column.name.lower(): column for column in (definition.columns if definition else ())}
    limited = not sink_type(target).capabilities.limits
    for name, column in _read(looked, target, wanted).items():
        there = declared.get(name.lower())
        if there is None:
            continue
        # Sums of whole numbers are decimals without a fraction in many databases.
        given = "bigint" if getattr(column.type, "scale", 1) == 0 else column.type.typeName()
        kinds = _kind(given), _kind(there.type.spark_type)
        if kinds[0] != kinds[1] and kinds not in _AGREED and column.type.typeName() != "void":
            return f"{name} is {column.type.simpleString()} in the source and {there.type.spark_type} in the table"
        if limited and isinstance(there.type, String):
            return f"the database does not see to the length of {name}"
    return ""


def _kind(type_name: str) -> str:
    plain = type_name.partition("(")[0]
    names = {"integer": "int", "long": "bigint", "short": "smallint", "byte": "tinyint"}
    return _KINDS.get(names.get(plain, plain), "other")


def _place(connection: str | Connection) -> tuple[str, str]:
    if isinstance(connection, str):
        return connection, ""
    return connection.kind, str(getattr(connection, "url", "") or getattr(connection, "path", ""))


@dataclass(frozen=True)
class Wanted:
    """Which columns of the rows go on, and under which names."""

    columns: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """By table, column of the target -> column of the source; without them, all under their own names."""
    only_orders: str = ""
    """The column of the event time, if no target has it."""


def run_in_database(spec: PipelineSpec, looked: Looked, wanted: Wanted) -> RunResult:
    """`looked` is its source, which has the columns that are wanted."""
    began, generation = time.monotonic(), uuid4().hex
    order = spec.sources[0].event_time_column or ""
    written, counted = {}, {}
    for name, target in zip(spec.target_names, spec.targets, strict=True):
        sink = open_sink(target, name)
        assert isinstance(sink, DatabaseSink)
        query, types = _query(looked, target, wanted, order)
        taken = sink.prepare(spark_schema(types)).fieldNames()
        # Some may be left out, because the table has none of that name.
        query = replace(query, columns=tuple(name for name in query.columns if name in taken))
        batch = Batch(spec.name, generation, 0, scratch=lambda part: home() / part, reached=lambda p: reached(p, 0))
        applied = sink.load_query(query, batch, batch.fence(name))
        counted[name] = dict(applied.counts)
        written[name] = applied.counts.get("inserted", 0) + applied.counts.get("updated", 0)
    return RunResult(
        spec.name,
        "success",
        batches=1,
        rows_written=written,
        row_counts=counted,
        duration_seconds=time.monotonic() - began,
    )


def _query(looked: Looked, target: Target, wanted: Wanted, order: str) -> tuple[Query, list[tuple[str, DataType]]]:
    """The SELECT for a target, and the columns that it gives."""
    held = {column.name.lower(): column for column in looked.columns}
    given, quoted = _read(looked, target, wanted), looked.database.quoted
    chosen = [f"{quoted(column.name)} AS {quoted(name)}" for name, column in given.items()]
    hidden = "_flow_order" if order else ""
    if hidden:
        chosen.append(f"{quoted(held[order.lower()].name)} AS {quoted(hidden)}")
    sql = f"SELECT {', '.join(chosen)} FROM {looked.relation}"
    return Query(sql, tuple(given), hidden), [(name, column.type) for name, column in given.items()]


def _read(looked: Looked, target: Target, wanted: Wanted) -> dict[str, SourceColumn]:
    """By column of the target, what the source has for it."""
    held = {column.name.lower(): column for column in looked.columns}
    every = {c.name: c.name for c in looked.columns if c.name.lower() != wanted.only_orders.lower()}
    read = wanted.columns.get(target.table.full_name if target.table else "") or every
    return {name: held[of.lower()] for name, of in read.items()}
