"""The columns of a table, as the declaration of its target wants them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ematix_flow.errors import FlowError
from ematix_flow.sinks.drift import Fit, TableColumn, Types, drift, fit, of_declared, of_rows
from ematix_flow.specs import Target
from ematix_flow.table import AUDIT_COLUMNS, SCD2_COLUMNS, TableDefinition

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_HISTORY = frozenset(column.name for column in SCD2_COLUMNS)


@dataclass(frozen=True)
class Shape:
    target: Target
    name: str
    types: Types

    @property
    def keys(self) -> tuple[str, ...]:
        return self.target.merge_keys if self.target.mode in {"merge", "scd2"} else ()

    @property
    def partition_by(self) -> tuple[str, ...]:
        return self.target.partition_by or (self._definition.partition_columns if self._definition else ())

    def rows(self, schema: StructType) -> list[TableColumn]:
        """The columns of the rows, with the types of the declared table; without those that scd2 fills itself."""
        declared = {c.name.lower(): c for c in of_declared(self._definition.columns)} if self._definition else {}
        rows = [
            replace(declared[column.name.lower()], name=column.name) if column.name.lower() in declared else column
            for column in of_rows(schema)
            if not (self._is_history and column.name.lower() in _HISTORY)
        ]
        names = {column.name.lower() for column in rows}
        if absent := [key for key in self.keys if key.lower() not in names]:
            raise FlowError(
                f"target {self.name}: {self.target.mode} finds rows by {', '.join(absent)}, which the rows do not have",
                next_step='name columns of the rows as the keys, such as keys = ["id"]',
            )
        return rows

    def created(self, rows: Sequence[TableColumn]) -> list[TableColumn]:
        """The columns of a new table."""
        definition = self._definition
        columns = of_declared((*definition.columns, *definition.audit_columns())) if definition else list(rows)
        if self._is_history:
            columns = [c for c in columns if c.name.lower() not in _HISTORY] + of_declared(SCD2_COLUMNS)
        firm = {name.lower() for name in (self.target.table.primary_key if self.target.table else ())}
        return [replace(c, nullable=c.nullable and c.name.lower() not in firm) for c in columns]

    def audit(self, rows: Collection[str]) -> list[str]:
        """The audit columns of a declared table that the rows do not bring themselves."""
        brought = {name.lower() for name in rows}
        return [c.name for c in AUDIT_COLUMNS if c.name not in brought] if self._definition else []

    def fitted(self, rows: Sequence[TableColumn], found: Sequence[TableColumn]) -> Fit:
        from pyspark.sql.types import StructType

        there = {column.name.lower() for column in found}
        history = sorted(_HISTORY) if self._is_history else []
        if missing := [
            f"column {name}, which scd2 fills, is not in the table" for name in history if name not in there
        ]:
            raise drift(self.name, missing)
        audit = self.audit([column.name for column in rows])
        wanted = [*rows, *of_declared([c for c in AUDIT_COLUMNS if c.name in audit])]
        fitted = fit(self.name, wanted, found, self.target.on_drift, self.types, filled=history)
        return replace(fitted, rows=StructType([f for f in fitted.rows.fields if f.name not in audit]))

    @property
    def _definition(self) -> TableDefinition | None:
        return self.target.table.definition if self.target.table else None

    @property
    def _is_history(self) -> bool:
        return self.target.mode == "scd2"
