"""Rows as the tables hold them: normalized, cast, and without what a column does not take. A row that does not fit a
table is tagged and goes to no target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ematix_flow.specs import Target
from ematix_flow.streams import catalyst
from ematix_flow.streams.envelope import OURS, Origin
from ematix_flow.streams.tagging import Attempt, fails, tagged, words

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
    given_types = {field.name.lower(): field.dataType for field in rows.schema.fields}
    names = {field.name.lower(): field.name for field in rows.schema.fields}
    attempts: list[Attempt] = []
    temporary: list[str] = []
    columns: dict[str, list[Column]] = {}
    for number, (name, table) in enumerate(tables.items()):
        columns[name] = []
        for field in table.fields:
            given = _given(field.name, names, targets[name])
            if given is None:
                continue
            plain = field.name.lower() in given_types and not _is_normalized(field.name, targets[name])
            if plain and _holds_everything(field, given_types[field.name.lower()]):
                columns[name].append(given.alias(field.name))
                continue
            checked = _checked(field, given, f"{OURS}{number}_{field.name}", rows)
            if checked is not None:
                attempts.append(checked)
                temporary.append(f"{OURS}{number}_{field.name}")
            column = given if checked is None else F.col(f"`{temporary[-1]}`")
            columns[name].append(column.alias(field.name))
    if not attempts:
        return Fitted(rows, columns, tagged=False)
    outputs = [F.col(f"`{name}`") for name in rows.columns if not name.startswith(OURS)]
    outputs += [F.col(f"`{name}`") for name in temporary]
    return Fitted(tagged(rows, attempts, outputs, origin, "write"), columns, tagged=True)


def _holds_everything(field: StructField, given: DataType) -> bool:
    return bool(given == field.dataType and field.nullable and "max_length" not in field.metadata)


def _is_normalized(column: str, target: Target) -> bool:
    definition = target.table.definition if target.table else None
    columns = definition.columns if definition else ()
    return any(one.normalizers for one in columns if one.name.lower() == column.lower())


def _given(column: str, known: Mapping[str, str], target: Target) -> Column | None:
    """What the rows have for a column of the table: a column of the same name, normalized as the table declares."""
    from pyspark.sql import functions as F

    definition = target.table.definition if target.table else None
    declared = {one.name.lower(): one for one in definition.columns} if definition else {}
    wanted = declared.get(column.lower())
    if wanted is not None and wanted.normalizers:
        derived = wanted.normalizers[0].derived
        return F.expr(wanted.expression) if derived or column.lower() in known else None
    return F.col(f"`{known[column.lower()]}`") if column.lower() in known else None


def _checked(field: StructField, given: Column, name: str, rows: DataFrame) -> Attempt | None:
    """How to compute the column and tell whether a row fits, unless every row does."""
    from pyspark.sql import functions as F

    found = rows.select(given.alias("c")).schema[0]
    normalized = catalyst.kind(catalyst.expression(given)) != "UnresolvedAttribute"
    longest = field.metadata.get("max_length")
    if found.dataType == field.dataType and not normalized and field.nullable and longest is None:
        return None
    source = catalyst.column(catalyst.tried(catalyst.expression(given))) if normalized else given
    computed, kind = F.col(f"`{name}`"), field.dataType.simpleString()
    column = f"column {field.name}"
    cases = []
    if normalized:
        failed = computed.isNull() & fails(catalyst.expression(given))
        cases.append((failed, words("bad-value", f"{column}: the value cannot be normalized")))
    if found.dataType != field.dataType:
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
