"""Rows as the tables hold them: normalized, cast, and without what a column does not take. A row that does not fit a
table is tagged and goes to no target."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ematix_flow.specs import Target
from ematix_flow.streams import catalyst
from ematix_flow.streams.columns import quoted
from ematix_flow.streams.envelope import OURS, Origin
from ematix_flow.streams.failures import SparkRefused, spark_words
from ematix_flow.streams.tagging import Attempt, fails, tagged, words
from ematix_flow.table import Column as TableColumn

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructField, StructType


@dataclass(frozen=True)
class Fitted:
    rows: DataFrame
    columns: Mapping[str, list[Column]]
    """By target, over the rows."""
    tagged: bool
    """Whether any row can have failed."""


def fitted(rows: DataFrame, tables: Mapping[str, StructType], targets: Mapping[str, Target], origin: Origin) -> Fitted:
    """`tables` are the columns of each target."""
    from pyspark.sql import functions as F

    # Asked once: each question to Spark costs milliseconds, and a batch may be one row.
    known = {field.name.lower(): field for field in rows.schema.fields}
    attempts: list[Attempt] = []
    temporary: list[str] = []
    columns: dict[str, list[Column]] = {}
    for number, (name, table) in enumerate(tables.items()):
        columns[name] = []
        for field in table.fields:
            wanted = _declared(field.name, targets[name])
            normalized = wanted is not None and bool(wanted.normalizers)
            with _named(field.name):
                given = _given(field.name, known, wanted)
                if given is None:
                    continue
                found = rows.select(given).schema[0].dataType if normalized else known[field.name.lower()].dataType
            if normalized or not _holds_everything(field, found):
                temporary.append(f"{OURS}{number}_{field.name}")
                attempts.append(_attempt(field, given, temporary[-1], found, normalized=normalized))
                given = F.col(quoted(temporary[-1]))
            columns[name].append(given.alias(field.name))
    if not attempts:
        return Fitted(rows, columns, tagged=False)
    outputs = [F.col(quoted(name)) for name in rows.columns if not name.startswith(OURS)]
    outputs += [F.col(quoted(name)) for name in temporary]
    return Fitted(tagged(rows, attempts, outputs, origin, "write"), columns, tagged=True)


@contextmanager
def _named(column: str) -> Iterator[None]:
    """Spark tells what is wrong with an expression, but not whose it is."""
    from pyspark.errors import AnalysisException

    try:
        yield
    except AnalysisException as error:
        raise SparkRefused(
            f"column {column}: Spark does not accept its normalizers: {spark_words(error)[1]}",
            next_step="correct them in the class of the table, or give the column another type before",
        ) from error


def _holds_everything(field: StructField, given: DataType) -> bool:
    return bool(given == field.dataType and field.nullable and "max_length" not in field.metadata)


def _declared(column: str, target: Target) -> TableColumn | None:
    definition = target.table.definition if target.table else None
    columns = definition.columns if definition else ()
    return next((one for one in columns if one.name.lower() == column.lower()), None)


def _given(column: str, known: Mapping[str, StructField], wanted: TableColumn | None) -> Column | None:
    """What the rows have for a column of the table: a column of the same name, normalized as the table declares."""
    from pyspark.sql import functions as F

    there = known.get(column.lower())
    if wanted is not None and wanted.normalizers:
        return F.expr(wanted.expression) if there is not None or wanted.normalizers[0].derived else None
    return None if there is None else F.col(quoted(there.name))


def _attempt(field: StructField, given: Column, name: str, found: DataType, *, normalized: bool) -> Attempt:
    """How to compute the column, and how to tell that a row does not fit."""
    from pyspark.sql import functions as F

    longest = field.metadata.get("max_length")
    source = catalyst.column(catalyst.tried(catalyst.expression(given))) if normalized else given
    computed, kind = F.col(quoted(name)), field.dataType.simpleString()
    column = f"column {field.name}"
    cases = []
    if normalized:
        failed = computed.isNull() & fails(catalyst.expression(given))
        cases.append((failed, words("bad-value", f"{column}: the value cannot be normalized")))
    if found != field.dataType:
        failed = computed.isNull() & source.isNotNull()
        cases.append((failed, words("bad-value", f'{column}: cannot store "', source, f'" as {kind}')))
    if not field.nullable:
        cases.append((computed.isNull(), words("null-value", f"{column} must not be NULL")))
    if longest is not None:
        failed = F.length(computed) > longest
        cases.append((failed, words("too-long", f'{column}: "', source, f'" has more than {longest} characters')))
    any_failed = F.coalesce(*[F.when(case, F.lit(True)) for case, _ in cases], F.lit(False))
    why = F.coalesce(*[F.when(case, words_) for case, words_ in cases])
    return Attempt(source.try_cast(field.dataType).alias(name), any_failed, why)
