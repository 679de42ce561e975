"""Whether the rows of a pipeline fit the table they go to, and what `on_drift` makes of it if they do not."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ematix_flow.sinks.base import SchemaDrift
from ematix_flow.sinks.widening import name_of, spark_named, widened
from ematix_flow.types import String

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructField, StructType

    from ematix_flow.table import Column

MAX_LENGTH = "max_length"
"""Key of a field's metadata: the longest text that the column takes."""
KIND = "kind"
"""Key of a field's metadata: what a declaration would call the type, where that says more than Spark's."""


@dataclass(frozen=True)
class TableColumn:
    """A column of a table that is there, or of rows that go into one."""

    name: str
    type: DataType
    """As Spark holds its values."""
    nullable: bool = True
    has_default: bool = False
    max_length: int | None = None
    kind: str = ""
    """What the database or the declaration calls the type, which may say more than Spark's."""

    @property
    def field(self) -> StructField:
        from pyspark.sql.types import StructField

        return StructField(
            self.name, self.type, self.nullable, {MAX_LENGTH: self.max_length} if self.max_length else {}
        )

    @property
    def words(self) -> str:
        return (
            f"{self.type.simpleString()} of at most {self.max_length}" if self.max_length else self.type.simpleString()
        )


Meet = Callable[[TableColumn, TableColumn], "DataType | None"]
"""From a column of the table and the same column of the rows to a type for both; None if there is none."""


@dataclass(frozen=True)
class Types:
    """How a database meets Spark's types."""

    named: Callable[[TableColumn], str]
    """As the type stands in a CREATE TABLE."""
    staged_as: Meet
    """The type in which values of the rows enter the column without loss."""
    widened: Meet
    """The type that the column has to get, to hold what it has and what the rows bring."""


@dataclass(frozen=True)
class Fit:
    """How rows go into a table."""

    rows: StructType
    """The columns that rows must have, as the table holds them."""
    added: tuple[TableColumn, ...]
    """Columns that the table gets first."""
    widened: tuple[TableColumn, ...]
    """Columns of the table that get another type first."""


@dataclass(frozen=True)
class _Verdict:
    """What becomes of one column of the rows."""

    staged: TableColumn | None = None
    added: TableColumn | None = None
    widened: TableColumn | None = None
    difference: str = ""


def unless_text(staged_as: Meet) -> Meet:
    """How columns widen in a database in which every value could be a text, but a column must not become one."""

    def wider(column: TableColumn, given: TableColumn) -> DataType | None:
        fitting = staged_as(column, given)
        if fitting is not None or name_of(column.type) == "string":
            return fitting
        return widened(column.type, given.type)

    return wider


def of_rows(schema: StructType) -> list[TableColumn]:
    return [TableColumn(f.name, f.dataType, f.nullable, kind=f.metadata.get(KIND, "")) for f in schema.fields]


def of_declared(columns: Sequence[Column]) -> list[TableColumn]:
    return [
        TableColumn(
            column.name,
            spark_named(column.type.spark_type),
            nullable=column.nullable and not column.primary_key,
            max_length=column.type.length if isinstance(column.type, String) else None,
            kind=repr(column.type),
        )
        for column in columns
    ]


def fit(
    table: str,
    rows: Sequence[TableColumn],
    found: Sequence[TableColumn],
    on_drift: str,
    types: Types,
    *,
    filled: Collection[str] = (),
) -> Fit:
    """Compare by name, without regard to case. `filled` are the columns that the target fills without the rows."""
    from pyspark.sql.types import StructType

    held = {column.name.lower(): column for column in found}
    verdicts = [
        _meeting(column, given, on_drift, types)
        if (column := held.get(given.name.lower()))
        else _missing(given, on_drift)
        for given in rows
    ]
    brought = {name.lower() for name in (*(column.name for column in rows), *filled)}
    lacking = [
        f"column {column.name} takes no NULL and has no default, but the rows do not have it"
        for column in found
        if not column.nullable and not column.has_default and column.name.lower() not in brought
    ]
    if differences := [v.difference for v in verdicts if v.difference] + lacking:
        raise SchemaDrift(table, differences)
    return Fit(
        StructType([v.staged.field for v in verdicts if v.staged]),
        added=tuple(v.added for v in verdicts if v.added),
        widened=tuple(v.widened for v in verdicts if v.widened),
    )


def _missing(given: TableColumn, on_drift: str) -> _Verdict:
    if on_drift == "evolve":
        return _Verdict(staged=given, added=replace(given, nullable=True))
    return _Verdict(
        difference=f"column {given.name} ({given.words}) is not in the table" if on_drift == "error" else ""
    )


def _meeting(column: TableColumn, given: TableColumn, on_drift: str, types: Types) -> _Verdict:
    nullable = given.nullable and column.nullable
    staged = replace(given, nullable=nullable, max_length=given.max_length or column.max_length)
    fitting = types.staged_as(column, given)
    longer = bool(column.max_length and given.max_length and given.max_length > column.max_length)
    if fitting is not None and not longer:
        return _Verdict(staged=replace(staged, type=fitting))
    if on_drift == "ignore":
        return _Verdict(staged=replace(staged, type=fitting or column.type, max_length=column.max_length))
    wider = types.widened(column, given) if on_drift == "evolve" else None
    if wider is None:
        cannot = ", and no wider type holds both" if on_drift == "evolve" else ""
        return _Verdict(
            difference=f"column {column.name} is {column.words} in the table and {given.words} in the rows{cannot}"
        )
    changed = (
        replace(column, type=wider, max_length=given.max_length, kind="") if wider != column.type or longer else None
    )
    return _Verdict(staged=replace(staged, type=wider), widened=changed)
