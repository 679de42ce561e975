"""What happens between sources and targets: SQL, lookups, and at most one kind of stateful operator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PlainValidator
from pydantic.json_schema import SkipJsonSchema

from ematix_flow.model import Complaint, Declared, check
from ematix_flow.problems import complain, near, shown
from ematix_flow.specs.cdc import CDC
from ematix_flow.specs.fields import (
    SQL_KINDS,
    Name,
    Positive,
)
from ematix_flow.specs.join import Join
from ematix_flow.specs.reading import Reading
from ematix_flow.specs.window import AGGREGATES, Window
from ematix_flow.udf import AggregateUdf, ScalarUdf


class Lookup(Reading):
    """A table that SQL can join, read at the start and again when it is told to."""

    table: Name | None = None
    """Table to read."""
    schema: str = ""  # type: ignore[assignment]
    """Schema of the table."""
    refresh_interval_ms: Positive | None = None
    """How often it is read again; without it, once per start."""
    query: Name | None = None
    """What to read instead of a table: a SELECT, or a folder or glob of a file connection."""

    @check
    def _table_or_query(self) -> Iterator[Complaint]:
        if self.table and self.query:
            yield Complaint(("query",), "given together with table", "one of the two")
        if not self.table and not self.query and (self.kind is None or self.kind in SQL_KINDS):
            yield Complaint(("table",), "missing; a lookup needs table or query")

    @check
    def _schema_belongs_to_a_table(self) -> Iterator[Complaint]:
        if self.schema and self.query:
            yield Complaint(("schema",), "has no meaning for a query, only for a table")


def _udf(value: Any) -> Any:
    if not isinstance(value, ScalarUdf):
        raise complain(f"found {shown(value)}", "a function decorated with @udf")
    return value


def _udaf(value: Any) -> Any:
    if not isinstance(value, AggregateUdf):
        raise complain(f"found {shown(value)}", "a class decorated with @udaf")
    return value


class Transform(Declared):
    """Everything between sources and targets."""

    __meant__: ClassVar[Mapping[str, str]] = {"query": "sql", "lookup": "lookups", "transform_sql": "sql"}

    sql: Name | None = None
    """SELECT over the table `source`, or over the names of the sources."""
    on_error: Literal["fail", "drop", "dlq"] = "fail"
    """What happens to a row that cannot be decoded, transformed or written."""
    dialect: Literal["spark", "duckdb", "datafusion"] = "spark"
    """SQL dialect of `sql`."""
    lookups: dict[str, Lookup] = Field(default_factory=dict)
    """Name in SQL -> table to join."""
    window: Window | None = None
    """Windowed aggregation of the rows."""
    join: Join | None = None
    """Join of two sources."""
    cdc: CDC | None = None
    """The rows are changes of tables."""
    udfs: SkipJsonSchema[tuple[Annotated[ScalarUdf, PlainValidator(_udf)], ...]] = Field(default=(), exclude=True)
    """Functions for SQL, declared with `@udf`; only in Python."""
    aggregate_udfs: SkipJsonSchema[tuple[Annotated[AggregateUdf, PlainValidator(_udaf)], ...]] = Field(
        default=(), exclude=True
    )
    """Aggregates, declared with `@udaf`; only in Python."""

    @check
    def _changes_are_not_aggregated(self) -> Iterator[Complaint]:
        if self.cdc is not None:
            for operator in ("window", "join"):
                if getattr(self, operator) is not None:
                    yield Complaint((operator,), "given together with cdc", f"either {operator} or cdc")

    @check
    def _aggregates_exist(self) -> Iterator[Complaint]:
        known = [*AGGREGATES, *(udaf.name for udaf in self.aggregate_udfs)]
        for i, aggregation in enumerate(self.window.aggregations if self.window else ()):
            if aggregation.agg not in known:
                place = ("window", "aggregations", i, "agg")
                yield Complaint(place, f'found "{aggregation.agg}"', ", ".join(known), near(aggregation.agg, known))
