"""Envelopes as changes of rows: what is to be done to which key, with which columns, and which of them are bad."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any

from ematix_flow.cdc.envelopes import CREATE, DELETE, ROW_TYPE, SKIP, TRUNCATE, UPDATE, Envelope, envelope_of
from ematix_flow.cdc.logical import Field, fields_of, readable
from ematix_flow.cdc.transactions import transaction_columns
from ematix_flow.cdc.values import UNAVAILABLE, decoded
from ematix_flow.sinks.base import AT, CHANGE, EVENT_TIME, OP, ORDER, PLACES, PRESENT, ROW
from ematix_flow.sinks.changes import EMPTY, MARK, REMOVE, UPSERT
from ematix_flow.sinks.drift import KIND
from ematix_flow.specs import CDC

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

TOMBSTONE = "_flow_tombstone"
"""Column of rows from a source: the record has no value."""
PROBLEM = "_flow_problem"
"""Column of changes: why the envelope cannot be used, in words."""
RECORD_KEY = "_flow_record_key"
"""Column of rows from a source: the key of the record, if keys of tables are to be found there."""
ONLY = ""
"""The name of the table, if there is but one."""
TABLE = "_flow_table"
"""Column of changes, where they are of several tables: the name of the source table; NULL if the envelope has none."""
_KIND, _BEFORE, _AFTER, _KEY, _SCHEMA, _MOMENT, _EMPTIED = (
    "_flow_kind", "_flow_before", "_flow_after", "_flow_of_key", "_flow_schema", "_flow_moment", "_flow_emptied",
)  # fmt: skip
_OURS = "_flow_"


@dataclass(frozen=True)
class Seen:
    """What the changes of a batch are, before their values are looked at."""

    changes: int = 0
    """Those that are not skipped."""
    skipped: int = 0
    truncates: int = 0
    rows: tuple[tuple[str, ...], ...] = ()
    """The different sets of columns of their rows after a change."""
    rows_before: tuple[tuple[str, ...], ...] = ()
    unavailable: bool = False
    """Some values were not logged."""
    first: str = ""
    last: str = ""
    """The places of the first and the last change in the log."""
    keys: tuple[str, ...] = ()
    """Columns of the keys of the records, where these were asked for."""
    schemas: Mapping[int, Mapping[str, Field]] = field(default_factory=dict)
    """What the envelopes say of their columns, by a number that each has."""

    @property
    def fields(self) -> dict[str, Field]:
        return {name: one for fields in self.schemas.values() for name, one in fields.items()}

    def told(self, name: str) -> dict[str, str]:
        """What there is to say of a column, beside its type."""
        own = self.fields[name].own if name in self.fields else ""
        return {KIND: own} if own else {}

    @property
    def names(self) -> list[str]:
        """All columns, in the order of the longest rows."""
        longest = sorted(self.rows, key=lambda names: (-len(names), names))
        longest += sorted(self.rows_before, key=lambda names: (-len(names), names))
        return list(dict.fromkeys(name for names in longest for name in names))


def opened(rows: DataFrame, cdc: CDC) -> DataFrame:
    """What is ours of the rows, and the parts of their envelopes."""
    from pyspark.sql import functions as F

    envelope = envelope_of(cdc)
    op = F.expr(envelope.op)
    kind = F.when(F.col(TOMBSTONE) | (op.isNull() & F.expr(envelope.ignorable)), F.lit(SKIP))
    ignored = [DELETE] if cdc.delete_mode == "ignore" else []
    ignored += [TRUNCATE] if cdc.truncate_mode == "ignore" else []
    for name, meaning in envelope.ops.items():
        kind = kind.when(op == name, F.lit(SKIP if meaning in ignored else meaning))
    unknown = F.concat(F.lit('the operation "'), op, F.lit(f'" is none of {", ".join(envelope.ops)}'))
    why = F.when(op.isNull(), F.lit(f"the envelope has no operation ({_where(envelope.op)})")).otherwise(unknown)
    table = _table(envelope, cdc)
    if cdc.many and cdc.unlisted == "ignore":
        kind = F.when(~table.isin(*(cdc.tables or {})), F.lit(SKIP)).otherwise(kind)
    nameless = "the envelope does not say which table was changed"
    why = F.when(kind.isNull(), why).when(table.isNull() & (kind != SKIP), F.lit(nameless))
    # A tombstone has no place in the log either.
    return rows.select(
        *[name for name in rows.columns if name.startswith(_OURS) and name != TOMBSTONE],
        kind.alias(_KIND),
        F.expr(envelope.before).alias(_BEFORE),
        F.expr(envelope.after).alias(_AFTER),
        F.expr(envelope.key).alias(_KEY),
        F.expr(envelope.at).alias(AT),
        F.timestamp_millis(F.expr(envelope.moment)).alias(_MOMENT),
        F.expr(envelope.schema).alias(_SCHEMA),
        table.alias(TABLE),
        why.alias(PROBLEM),
        *transaction_columns(envelope, cdc, table),
    )


def _table(envelope: Envelope, cdc: CDC) -> Column:
    """As it is listed, or as it is usually called."""
    from pyspark.sql import functions as F

    if not cdc.many:
        return F.lit(ONLY)
    listed = [F.when(F.expr(name).isin(*(cdc.tables or {})), F.expr(name)) for name in envelope.tables]
    return F.coalesce(*listed, F.expr(envelope.table))


def seen(changes: DataFrame) -> dict[str | None, Seen]:
    """One look at the changes of a batch, by table."""
    from pyspark.sql import functions as F

    kind, writes = F.col(_KIND), F.col(_KIND).isin(CREATE, UPDATE)
    unlogged = reduce(or_, [F.array_contains(F.map_values(_AFTER), value) for value in UNAVAILABLE])
    in_key = [F.collect_set(F.map_keys(_object(F.col(RECORD_KEY))))] if RECORD_KEY in changes.columns else []
    found = changes.groupBy(TABLE).agg(
        F.count_if(kind.isNull() | (kind != SKIP)),
        F.count_if(kind == SKIP),
        F.count_if(kind == TRUNCATE),
        F.collect_set(F.when(writes, F.map_keys(_AFTER))),
        F.collect_set(F.when(kind.isin(UPDATE, DELETE), F.map_keys(_BEFORE))),
        F.count_if(writes & unlogged),
        F.collect_set(F.when(F.col(_SCHEMA).isNotNull(), F.struct(F.xxhash64(_SCHEMA), F.col(_SCHEMA)))),
        F.min(F.when(kind != SKIP, F.col(AT))),
        F.max(F.when(kind != SKIP, F.col(AT))),
        *in_key,
    )
    return {row[0]: _seen(*row[1:]) for row in found.collect()}


def _seen(
    changes: int, skipped: int, truncates: int, after: Any, before: Any, unlogged: int, schemas: Any,
    first: str | None, last: str | None, keys: Any = (),
) -> Seen:  # fmt: skip
    rows, rows_before = (tuple(tuple(names) for names in some) for some in (after, before))
    known = {number: fields for number, text in schemas if (fields := fields_of(text))}
    key: tuple[str, ...] = max(map(tuple, keys), key=len, default=())
    few = changes, skipped, truncates, rows, rows_before, unlogged > 0
    return Seen(*few, first or "", last or "", key, known)


def _object(key: Column) -> Column:
    """The key of a record, with and without the wrapper of schema and payload."""
    from pyspark.sql import functions as F

    text = key.cast("string")
    return F.from_json(F.coalesce(F.get_json_object(text, "$.payload"), text), ROW_TYPE)


@dataclass(frozen=True)
class Reading:
    """How the rows in the envelopes of a batch become rows of a table."""

    cdc: CDC
    keys: tuple[str, ...]
    columns: Mapping[str, DataType]
    """Of the table; the keys are among them."""
    named: Mapping[str, str]
    """Columns as the envelopes call them, where they do not call them as the table does."""
    history: bool = False
    """The table keeps what rows were."""
    overlaps: bool = False
    """Some changes may be older than what the table has."""

    def __call__(self, changes: DataFrame, seen: Seen) -> DataFrame:
        """Changes for `sinks.changes`; `PROBLEM` is NULL in those that are good."""
        from pyspark.sql import functions as F

        key_text = F.col(_KEY)
        as_object = F.from_json(key_text, ROW_TYPE)
        of_key = F.coalesce(as_object, F.create_map(F.lit(self._name(self.keys[0])), key_text))
        kind = F.col(_KIND)
        known = F.when(key_text.isNotNull(), of_key)
        before, after = F.col(_BEFORE), F.col(_AFTER)
        # An update need not repeat what of the key stays.
        kept = F.when((kind == UPDATE) & after.isNotNull(), before)
        new = {
            key: F.coalesce(
                after[self._name(key)],
                known[self._name(key)],
                F.when(~F.map_contains_key(after, self._name(key)), kept[self._name(key)]),
            )
            for key in self.keys
        }
        gone = {key: F.coalesce(before[self._name(key)], new[key]) for key in self.keys}
        old = {
            key: F.when(kind == UPDATE, gone[key]).otherwise(
                F.coalesce(before[self._name(key)], known[self._name(key)], after[self._name(key)])
            )
            for key in self.keys
        }
        moved = (kind == UPDATE) & reduce(or_, [new[key] != old[key] for key in self.keys])
        removal = MARK if self.cdc.delete_mode == "soft" else REMOVE
        parts = (
            F.when(moved, F.array(F.lit(removal), F.lit(UPSERT)))
            .when(kind.isin(CREATE, UPDATE), F.array(F.lit(UPSERT)))
            .when(kind == DELETE, F.array(F.lit(removal)))
            .when(kind == TRUNCATE, F.array(F.lit(EMPTY)))
            .otherwise(F.array(F.lit("")))
        )
        rows = changes.where(~F.coalesce(kind == SKIP, F.lit(False))).withColumn(CHANGE, F.explode(parts))
        # Of the two parts of a row that has moved, one is counted.
        second = moved & (F.col(CHANGE) == removal)
        rows = rows.withColumn(OP, F.when(second, F.lit("")).when(kind == TRUNCATE, F.lit(DELETE)).otherwise(kind))
        if seen.truncates and not self.history:
            rows = _emptied(rows, removal)
        change = F.col(CHANGE)
        is_removed, is_written = change.isin(REMOVE, MARK), change == UPSERT
        texts = {
            name: F.when(is_removed, old[name]).when(is_written, new[name])
            if name in self.keys
            else F.when(is_written & ~after[self._name(name)].isin(*UNAVAILABLE), after[self._name(name)])
            for name in self.columns
        }
        columns = {
            name: decoded(_written_out(text, self._name(name), seen), self.columns[name])
            for name, text in texts.items()
        }
        soft = self.cdc.soft_delete_column
        if soft:
            columns[soft] = F.when(change.isin(UPSERT, MARK), change == MARK)
        ours = {name: F.col(name) for name in rows.columns if name.startswith(_OURS)}
        for name in (_KIND, _BEFORE, _AFTER, _KEY, _SCHEMA, _MOMENT, TABLE):
            ours.pop(name)
        ours.pop(RECORD_KEY, None)
        if self.history:
            ours[EVENT_TIME] = F.coalesce(F.col(_MOMENT), F.col(EVENT_TIME))
        ours[PROBLEM] = F.coalesce(F.col(PROBLEM), self._problem(kind, after, texts, columns))
        if self.overlaps:
            ours[PLACES] = F.lit(None).cast("string")
        if self.partial(seen):
            ours[PRESENT] = self._present(after, change)
        return rows.select(
            *[column.alias(name, metadata=seen.told(self._name(name))) for name, column in columns.items()],
            *[column.alias(name) for name, column in ours.items()],
        )

    def partial(self, seen: Seen) -> bool:
        """Whether some change does not bring all columns of the table."""
        wanted = {self._name(name) for name in self._content if name != self.cdc.soft_delete_column}
        if not self._content:
            return False
        some_are_short = any(not wanted <= set(names) for names in seen.rows)
        # A row that is only marked keeps all of its columns.
        return self.cdc.delete_mode == "soft" or seen.unavailable or some_are_short

    @property
    def _content(self) -> list[str]:
        soft = [self.cdc.soft_delete_column] if self.cdc.soft_delete_column else []
        return [name for name in [*self.columns, *soft] if name not in self.keys]

    def _name(self, column: str) -> str:
        return self.named.get(column, column)

    def _present(self, after: Column, change: Column) -> Column:
        from pyspark.sql import functions as F

        flags = []
        for name in self._content:
            if name == self.cdc.soft_delete_column:
                has = change.isin(UPSERT, MARK)
            else:
                text = after[self._name(name)]
                unlogged = F.coalesce(text.isin(*UNAVAILABLE), F.lit(False))
                has = (change == UPSERT) & F.map_contains_key(after, self._name(name)) & ~unlogged
            flags.append(F.when(has, F.lit("1")).otherwise(F.lit("0")))
        return F.concat(*flags)

    def _problem(
        self, kind: Column, after: Column, texts: Mapping[str, Column], columns: Mapping[str, Column]
    ) -> Column:
        from pyspark.sql import functions as F

        needs_key = kind != TRUNCATE
        cases = [F.when(kind.isin(CREATE, UPDATE) & after.isNull(), F.lit("the envelope has no row after the change"))]
        for name in self.keys:
            words = f"the envelope does not say the key: {name} is missing or NULL"
            cases.append(F.when(needs_key & texts[name].isNull(), F.lit(words)))
        for name, text in texts.items():
            if self.cdc.schema_evolution == "lenient" and name not in self.keys:
                continue
            kind_name = self.columns[name].simpleString()
            words_ = F.concat(F.lit(f'column {name}: cannot read "'), text, F.lit(f'" as {kind_name}'))
            cases.append(F.when(text.isNotNull() & columns[name].isNull(), words_))
        return F.coalesce(*cases)


def misfits(changes: DataFrame, seen: Seen, columns: Mapping[str, DataType]) -> list[str]:
    """Columns of a table that cannot hold some value of the batch."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import StringType

    called = named(list(columns), seen.names)
    counts = []
    for name, kind in columns.items():
        text = F.col(_AFTER)[called.get(name, name)]
        value = decoded(_written_out(text, called.get(name, name), seen), kind)
        if not isinstance(kind, StringType):
            counts.append(F.count_if(text.isNotNull() & ~text.isin(*UNAVAILABLE) & value.isNull()).alias(name))
    found = changes.agg(*counts).collect()[0].asDict() if counts else {}
    return [name for name, number in found.items() if number]


def _written_out(text: Column, name: str, seen: Seen) -> Column:
    """As the schema of its envelope says; most batches know one."""
    from pyspark.sql import functions as F

    said = {number: fields[name] for number, fields in seen.schemas.items() if name in fields}
    if all(one.is_plain for one in said.values()):
        return text
    result = text
    for number, one in said.items():
        result = F.when(F.xxhash64(_SCHEMA) == F.lit(number), readable(text, one)).otherwise(result)
    return result


def _emptied(rows: DataFrame, removal: str) -> DataFrame:
    """What came before the last truncate of a batch is gone with it."""
    from pyspark.sql import functions as F

    place = F.struct(AT, ORDER, ROW)
    last = rows.where(F.col(CHANGE) == EMPTY).agg(F.max(place).alias(_EMPTIED))
    gone = (place < F.col(_EMPTIED)) & F.col(CHANGE).isin(UPSERT, MARK)
    return (
        rows.crossJoin(F.broadcast(last))
        .withColumn(CHANGE, F.when(gone, F.lit(removal)).otherwise(F.col(CHANGE)))
        .drop(_EMPTIED)
    )


def _where(expression: str) -> str:
    return expression.replace("`", "").removeprefix("coalesce(").removesuffix(")").replace(", ", " or ")


def named(columns: Sequence[str], found: Sequence[str]) -> dict[str, str]:
    """Columns that envelopes write with other small and capital letters than the table does."""
    there = set(found)
    low = {name.lower(): name for name in found}
    return {name: low[name.lower()] for name in columns if name not in there and name.lower() in low}
