"""The columns of a table as the declaration of its target wants them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ematix_flow.errors import FlowError
from ematix_flow.sinks.base import SchemaDrift
from ematix_flow.sinks.drift import Fit, TableColumn, Types, fit, of_declared, of_rows
from ematix_flow.sinks.tables import IS_DELETED, SEEN_AT
from ematix_flow.specs import Target
from ematix_flow.table import AUDIT_COLUMNS, SCD2_COLUMNS, VALID_FROM, Column, TableDefinition
from ematix_flow.types import Boolean, TimestampTZ

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_HISTORY = tuple(column.name for column in SCD2_COLUMNS)


@dataclass(frozen=True)
class Shape:
    target: Target
    name: str
    """Of the table, for messages."""
    types: Types

    @property
    def keys(self) -> tuple[str, ...]:
        """What rows are matched by; none where they are not matched."""
        return self.target.merge_keys if self.target.mode in {"merge", "scd2"} else ()

    @property
    def partition_by(self) -> tuple[str, ...]:
        return self.target.partition_by or (self._definition.partition_columns if self._definition else ())

    @property
    def unique(self) -> tuple[tuple[str, ...], ...]:
        """Not for scd2, whose older rows repeat what is unique among the current ones."""
        return self._definition.unique_constraints if self._definition and not self._is_history else ()

    def rows(self, schema: StructType) -> list[TableColumn]:
        """The columns of the rows, with the types of the declared table and the columns that it derives; without those
        that it only derives from, and those that scd2 fills itself."""
        declared = {c.name.lower(): c for c in of_declared(self._definition.columns)} if self._definition else {}
        derived = [c.name for c in (self._definition.columns if self._definition else ()) if _is_derived(c)]
        own = {*(_HISTORY if self._is_history else ()), *(self._definition.only_read if self._definition else ())}
        given = {column.name.lower(): column for column in of_rows(schema) if column.name.lower() not in own}
        keys = {key.lower() for key in self.keys}
        rows = [
            # That Spark knows of no NULL today is no reason to forbid them in the table, except in a key.
            replace(declared[low], name=c.name)
            if low in declared
            else replace(c, nullable=c.nullable or low not in keys)
            for low, c in given.items()
        ]
        rows += [declared[name.lower()] for name in derived if name.lower() not in given]
        self._check_keys(rows)
        return rows

    def created(self, rows: Sequence[TableColumn]) -> list[TableColumn]:
        """The columns of a new table."""
        definition = self._definition
        columns = of_declared((*definition.columns, *definition.audit_columns())) if definition else list(rows)
        if self._is_history:
            columns = [c for c in columns if c.name.lower() not in _HISTORY] + of_declared(SCD2_COLUMNS)
        columns += of_declared([c for c in self._flags if c.name not in {one.name.lower() for one in columns}])
        firm = {name.lower() for name in self._declared_key}
        return [replace(c, nullable=c.nullable and c.name.lower() not in firm) for c in columns]

    def primary_key(self, columns: Sequence[TableColumn]) -> tuple[str, ...]:
        """Of a new table: the declared one, or the keys of merge and scd2 if they cannot be NULL."""
        firm = {column.name.lower() for column in columns if not column.nullable}
        keys = self.keys if all(key.lower() in firm for key in self.keys) else ()
        if self._is_history:
            return (*keys, VALID_FROM) if keys else ()
        return self._declared_key or keys

    def audit(self, rows: Collection[str]) -> list[str]:
        """The audit columns of a declared table that the rows do not bring themselves."""
        brought = {name.lower() for name in rows}
        return [c.name for c in AUDIT_COLUMNS if c.name not in brought] if self._definition else []

    @property
    def _flags(self) -> tuple[Column, ...]:
        """Columns that a way of deleting or closing needs."""
        soft = self.target.handle_deletes == "soft" and self.target.mode == "merge"
        flag = (Column(Boolean(), name=IS_DELETED),) if soft else ()
        return (Column(TimestampTZ(), name=SEEN_AT),) if self.target.ttl else flag

    def fitted(self, rows: Sequence[TableColumn], found: Sequence[TableColumn]) -> Fit:
        """How rows go into the table that was found."""
        from pyspark.sql.types import StructType

        there = {column.name.lower() for column in found}
        history = _HISTORY if self._is_history else ()
        if missing := [f"column {n}, which scd2 fills, is not in the table" for n in history if n not in there]:
            raise SchemaDrift(self.name, missing)
        audit = self.audit([column.name for column in rows])
        # A table made by others that has all columns of the rows fits them without ours.
        audit = [name for name in audit if name in there or self.target.on_drift == "evolve"]
        own, flags = [c for c in AUDIT_COLUMNS if c.name in audit], of_declared(self._flags)
        filled = (*history, *(column.name for column in flags))
        fitted = fit(self.name, [*rows, *of_declared(own)], found, self.target.on_drift, self.types, filled=filled)
        names = {column.name for column in own}
        return replace(
            fitted,
            rows=StructType([f for f in fitted.rows.fields if f.name not in names]),
            # Whoever asks for a way of deleting asks for its column.
            added=(*fitted.added, *(column for column in flags if column.name not in there)),
        )

    def _check_keys(self, rows: Sequence[TableColumn]) -> None:
        names = {column.name.lower() for column in rows}
        absent = [key for key in self.keys if key.lower() not in names]
        nothing = self.target.mode in {"merge", "scd2"} and not self.keys
        if absent or nothing:
            by = f"{', '.join(absent)}, which the rows do not have" if absent else "a key, and none is given"
            raise FlowError(
                f"target {self.name}: {self.target.mode} finds rows by {by}",
                next_step='name columns of the rows as the keys, such as keys = ["id"]',
            )

    @property
    def _definition(self) -> TableDefinition | None:
        return self.target.table.definition if self.target.table else None

    @property
    def _declared_key(self) -> tuple[str, ...]:
        return self.target.table.primary_key if self.target.table else ()

    @property
    def _is_history(self) -> bool:
        return self.target.mode == "scd2"


def _is_derived(column: Column) -> bool:
    return bool(column.normalizers) and column.normalizers[0].derived
