"""The changes of one table: which columns they have, and how these are read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ematix_flow.cdc.changes import PROBLEM, Reading, Seen, misfits, named
from ematix_flow.cdc.envelopes import envelope_of
from ematix_flow.errors import DeclarationError, FlowError, Problem
from ematix_flow.sinks.base import SchemaDrift
from ematix_flow.sinks.drift import TableColumn, of_declared, of_rows
from ematix_flow.sinks.widening import widened
from ematix_flow.specs import CDC, PipelineSpec
from ematix_flow.state.store import Store
from ematix_flow.streams.change_tables import ChangeTable
from ematix_flow.streams.envelope import ERROR, PAYLOAD, Origin
from ematix_flow.streams.sources.schemas import declared_schema
from ematix_flow.table import SCD2_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType

# After every place.
_NOBODY_KNOWS = "~"
_EVOLVING = ("evolve", "try_evolve")
Types = dict[str, "DataType"]


class TruncateRefused(FlowError):
    """The source table was emptied, and the declaration says that this must not happen unseen."""

    code = "truncate-refused"


def with_error(changes: DataFrame, origin: Origin) -> DataFrame:
    from pyspark.sql import functions as F

    error = origin.error(changes, "decode", F.lit("bad-envelope"), F.col(PROBLEM))
    return changes.withColumn(ERROR, F.when(F.col(PROBLEM).isNotNull(), error)).drop(PROBLEM)


class TableCapture:
    """The changes of one table: which columns they have, and how these are read."""

    def __init__(self, table: ChangeTable, cdc: CDC, store: Store, origin: Origin) -> None:
        self.table = table
        self._spec, self._sinks, self._cdc, self._store, self._origin = table.spec, table.sinks, cdc, store, origin
        self._keys = _one_key(table.spec)
        self._history = any(target.mode == "scd2" for target in table.spec.targets)
        self._there: list[TableColumn] | None = None

    def __call__(self, changes: DataFrame, found: Seen) -> DataFrame:
        if found.truncates and self._cdc.truncate_mode == "fail":
            raise TruncateRefused(
                f'the source table was truncated, and truncate_mode is "fail": {self._spec.target_names[0]} stays as '
                "it is",
                next_step='see whether that was meant; then set truncate_mode = "apply" or "ignore"',
            )
        memory = json.loads(self._store.recall(self.table.memory) or "{}")
        columns = self._columns(found, changes, memory)
        overlaps = not self._history and found.first < memory.get("until", _NOBODY_KNOWS)
        return self._read(changes, found, columns, overlaps=overlaps)

    def has_columns(self, found: Seen) -> bool:
        return bool(found.names or self._as_it_is() or self._declared())

    def without_columns(self, changes: DataFrame, found: Seen) -> DataFrame:
        """Envelopes without any row, while there is no table either: they can only be bad."""
        from pyspark.sql.types import StringType

        return self._read(changes, found, dict.fromkeys(self._keys, StringType()), overlaps=False)

    def _read(self, changes: DataFrame, found: Seen, columns: Types, *, overlaps: bool) -> DataFrame:
        low = {name.lower(): name for name in columns}
        keys = tuple(low[key.lower()] for key in self._keys)
        reading = Reading(self._cdc, keys, columns, named(list(columns), found.names), self._history, overlaps)
        return with_error(reading(changes, found), self._origin)

    def _columns(self, found: Seen, rows: DataFrame, memory: Mapping[str, Any]) -> Types:
        """As declared with the source, or else those of the table; where there is none yet, those of the first batch.
        What is known stays as it was, and what the table needs is among them."""
        known = _fields(memory.get("columns"))
        table = self._as_it_is()
        told = {name.lower() for name in (*found.names, *memory.get("seen", ()), *self._keys)}
        wanted = self._declared()
        if table and memory.get("provisional") and found.rows:
            table = self._completed(table, found, rows)
        if table:
            types = wanted | known
            columns = {
                column.name: _held(types, column)
                for column in table
                if column.name.lower() in told or not (column.nullable or column.has_default)
            }
            columns |= self._new_columns(found, rows, table, columns)
            columns |= self._wider_columns(found, rows, columns)
        else:
            columns = wanted or known or self._inferred(found, rows)
            if wanted and self._cdc.many:
                # Of the columns that are declared, each table has its own.
                types = {} if all(name in wanted for name in found.names) else self._inferred(found, rows)
                columns = {name: wanted.get(name) or types[name] for name in found.names}
        for key in self._keys:
            if key.lower() not in {name.lower() for name in columns}:
                from pyspark.sql.types import StringType

                columns = {key: StringType(), **columns}
        columns.pop(self._cdc.soft_delete_column or "", None)
        until = max(found.last, memory.get("until", ""))
        # Without a row that is there, nobody knows all columns; deletes have to be remembered nevertheless.
        provisional = not found.rows and (not table or memory.get("provisional", False))
        now = {"columns": _struct(columns, found).jsonValue(), "seen": sorted(told), "until": until}
        now |= {"provisional": True} if provisional and not wanted else {}
        if now != memory:
            self._store.remember(self.table.memory, json.dumps(now))
        return columns

    def _completed(self, table: list[TableColumn], found: Seen, rows: DataFrame) -> list[TableColumn]:
        """A table that was made before there was any row in it, with the columns of the first rows."""
        there, types = {column.name.lower() for column in table}, self._inferred(found, rows)
        new = [name for name in found.names if name.lower() not in there]
        added = of_rows(_struct({name: types[name] for name in new}, found))
        for sink in self._sinks.values():
            sink.add_columns(added)  # type: ignore[attr-defined]
        self._there = None
        return self._as_it_is()

    def _new_columns(self, found: Seen, rows: DataFrame, table: Iterable[TableColumn], columns: Types) -> Types:
        """Columns of the envelopes that the table does not have."""
        there = {column.name.lower() for column in table}
        new = [name for name in found.names if name.lower() not in there]
        policy = self._cdc.schema_evolution
        if not new or policy in {"skip", "lenient"}:
            return {}
        name = self._spec.target_names[0]
        if policy == "fail":
            raise SchemaDrift(
                name,
                [f"column {column} of the changes is not in the table" for column in new],
                next_step='add it to the table, or set schema_evolution = "evolve" to have that done, or "skip"',
            )
        types = self._inferred(found, rows)
        return self._evolved(columns, {column: types[column] for column in new if column in types}, found)

    def _wider_columns(self, found: Seen, rows: DataFrame, columns: Types) -> Types:
        """Types for columns that cannot hold what the envelopes have, where there are wider ones. Keys stay what they
        are: the gate has them, too."""
        if self._cdc.schema_evolution not in _EVOLVING:
            return {}
        keys = {key.lower() for key in self._keys}
        narrow = misfits(rows, found, {name: kind for name, kind in columns.items() if name.lower() not in keys})
        if not narrow:
            return {}
        called, types = named(narrow, found.names), self._inferred(found, rows)
        wider = {name: widened(columns[name], types[called.get(name, name)]) for name in narrow}
        return self._evolved(columns, {name: kind for name, kind in wider.items() if kind is not None}, found)

    def _evolved(self, columns: Types, changed: Types, found: Seen) -> Types:
        """With the table; or not at all, where that is only tried."""
        self._there = None
        if changed and self._cdc.schema_evolution == "try_evolve":
            try:
                for sink in self._sinks.values():
                    sink.prepare(_struct({**columns, **changed}, found))
            except SchemaDrift:
                return {}
        return changed

    def _declared(self) -> Types:
        """By the schema of the source, which tells the columns of the row or of the whole envelope, or the table."""
        source, name = self._spec.sources[0], self._spec.source_names[0]
        if source.schema is not None:
            schema = declared_schema(source.schema, name)
            within = _rows_within(schema, envelope_of(self._cdc).paths)
            return within or {field.name: field.dataType for field in schema.fields}
        definition = self._spec.targets[0].table and self._spec.targets[0].table.definition
        if not definition:
            return {}
        return {column.name: column.type for column in of_declared(definition.columns)}

    def _inferred(self, found: Seen, rows: DataFrame) -> Types:
        """From the JSON of all envelopes of the batch."""
        from pyspark.sql import functions as F
        from pyspark.sql.types import StringType, StructType

        if all(name in found.fields for name in found.names):
            ddl = ", ".join(f"`{name}` {found.fields[name].kind}" for name in found.names)
            return {field.name: field.dataType for field in declared_schema(ddl, self._spec.source_names[0]).fields}
        texts = rows.select(F.col(PAYLOAD).cast("string"))
        session: Any = rows.sparkSession._jsparkSession  # noqa: SLF001
        strings = rows.sparkSession._jvm.org.apache.spark.sql.Encoders.STRING()  # type: ignore[union-attr]  # noqa: SLF001
        dataset = getattr(texts._jdf, "as")(strings)  # noqa: SLF001
        schema = StructType.fromJson(json.loads(session.read().json(dataset).schema().json()))
        types = _rows_within(schema, envelope_of(self._cdc).paths)
        return {name: types.get(name, StringType()) for name in found.names}

    def _as_it_is(self) -> list[TableColumn]:
        """The table does not change while the pipeline runs, unless the pipeline changes it."""
        if not self._there:
            tables: Iterable[list[TableColumn]] = (s.columns() for s in self._sinks.values())  # type: ignore[attr-defined]
            found = next((columns for columns in tables if columns), [])
            own = {column.name for column in SCD2_COLUMNS} if self._history else set()
            self._there = [column for column in found if column.name.lower() not in own]
        return self._there


def _one_key(spec: PipelineSpec) -> tuple[str, ...]:
    found = {target.merge_keys for target in spec.targets}
    if len(found) > 1:
        listed = "; ".join(", ".join(keys) for keys in sorted(found))
        problem = Problem("[[targets]] keys", f"found {listed}", "the same keys for all targets of [transform.cdc]")
        raise DeclarationError(f'pipeline "{spec.name}"', [problem], origin=spec.origin)
    return found.pop()


def _rows_within(schema: StructType, paths: Iterable[tuple[str, ...]]) -> Types:
    """The columns of the rows at these places of an envelope."""
    from pyspark.sql.types import StructType

    types: Types = {}
    for path in paths:
        kind: Any = schema
        for part in path:
            inside = isinstance(kind, StructType) and part in kind.fieldNames()
            kind = kind[part].dataType if inside else None
        if isinstance(kind, StructType):
            types |= {field.name: field.dataType for field in kind.fields if field.name not in types}
    return types


def _held(types: Types, column: TableColumn) -> DataType:
    low = {name.lower(): kind for name, kind in types.items()}
    return low.get(column.name.lower(), column.type)


def _struct(columns: Types, found: Seen) -> StructType:
    from pyspark.sql.types import StructField, StructType

    return StructType([StructField(name, kind, metadata=found.told(name)) for name, kind in columns.items()])


def _fields(known: Any) -> Types:
    from pyspark.sql.types import StructType

    return {field.name: field.dataType for field in StructType.fromJson(known).fields} if known else {}
