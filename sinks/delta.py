"""The Delta target on a local disk: Spark stages Parquet, and one commit brings it into the table with its fence."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from ematix_flow.connections import DeltaLocalConnection
from ematix_flow.sinks.base import AT, CHANGE, PRESENT, ROW, Applied, Batch, Capabilities, Staged
from ematix_flow.sinks.changes import GONE_AT, UPSERT, every_change, gate_name, last_changes
from ematix_flow.sinks.delta_changes import Door
from ematix_flow.sinks.delta_history import HistoryDoor
from ematix_flow.sinks.delta_modes import MODES, Load
from ematix_flow.sinks.delta_table import DeltaTable, write_errors_in_words
from ematix_flow.sinks.delta_types import TYPES
from ematix_flow.sinks.drift import TableColumn
from ematix_flow.sinks.ordering import resolved
from ematix_flow.sinks.shape import Shape
from ematix_flow.sinks.tables import IS_DELETED, SEEN_AT
from ematix_flow.specs import CDC, Target
from ematix_flow.state.fence import Fence
from ematix_flow.state.kernel import GONE

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType


class DeltaSink:
    capabilities: ClassVar[Capabilities] = Capabilities(
        fenced=True,
        transactional=True,
        modes=frozenset(MODES),
        visibility="a batch appears whole, with its fence, in one commit of the table's log",
        refines=True,
        takes_changes=frozenset({"merge", "scd2"}),
        refuses=True,
    )

    def __init__(self, target: Target, connection: DeltaLocalConnection, name: str) -> None:
        self._name, self._mode, self._target = name, target.mode, target
        self._shape = Shape(target, name, TYPES)
        parts = (target.table.schema, target.table.name) if target.table else ()
        # Absolute, because Spark would write below the folder in which its Java process was started.
        self._path = str(Path(connection.path).absolute().joinpath(*filter(None, parts)))
        self._constraints: dict[str, str] = {}
        self._columns: frozenset[str] = frozenset()
        self._session: SparkSession | None = None
        self._changes: CDC | None = None

    def take_changes(self, changes: CDC) -> None:
        """Rows will be changes."""
        self._changes = changes

    def columns(self) -> list[TableColumn]:
        """Of the table as it is now; none if there is no table."""
        table = self._table()
        return table.columns() if table.exists else []

    def add_columns(self, columns: Sequence[TableColumn]) -> None:
        """To the table as it is."""
        if columns:
            self._table().add(columns)

    def _gate(self) -> DeltaTable:
        path = Path(self._path)
        return DeltaTable(str(path.with_name(gate_name(path.name))), self._table().session)

    def _create_gate(self, rows: Sequence[TableColumn]) -> None:
        from pyspark.sql.types import StringType, TimestampType

        gate, keys = self._gate(), {key.lower() for key in self._shape.keys}
        if not gate.exists:
            held = [replace(column, nullable=True) for column in rows if column.name.lower() in keys]
            gone = [TableColumn(GONE_AT, TimestampType())] if self._mode == "scd2" else []
            gate.create([*held, TableColumn(AT, StringType()), *gone], ())

    def prepare(self, schema: StructType) -> StructType:
        table = self._table()
        rows = self._shape.rows(schema)
        if not table.exists:
            table.create(self._shape.created(rows), self._shape.partition_by)
        fitted = self._shape.fitted(rows, table.columns())
        if fitted.added:
            table.add(fitted.added)
        if fitted.widened:
            table.widen(fitted.widened)
        self._columns = frozenset(column.name.lower() for column in table.columns())
        self._constraints = table.constraints()
        if self._changes is not None:
            self._create_gate(table.columns())
        return fitted.rows

    def stage(self, rows: DataFrame, batch: Batch) -> Staged:
        self._session = rows.sparkSession
        folder = batch.scratch(self._name)
        if CHANGE in rows.columns:
            gathered = every_change if self._mode == "scd2" else last_changes
            rows = gathered(rows, self._shape.keys)
        else:
            rows = resolved(rows, self._target)
        rows.write.mode("overwrite").option("compression", "snappy").parquet(str(folder))
        return Staged(folder, tuple(rows.columns))

    def refusals(self, staged: Staged, batch: Batch) -> dict[int, str]:
        """Delta takes a row only if each CHECK is true, so that NULL is not enough."""
        from pyspark.sql import functions as F

        if not self._constraints or ROW not in staged.columns:
            return {}
        rows = self._read(staged)
        if GONE in staged.columns:
            rows = rows.where(f"{GONE} IS NOT TRUE")
        if CHANGE in staged.columns:
            # Of a change that does not have all columns, only the table can say what it makes of the row.
            whole = f" AND coalesce(instr({PRESENT}, '0') = 0, true)" if PRESENT in staged.columns else ""
            rows = rows.where(f"{CHANGE} = '{UPSERT}'{whole}")
        reason = F.coalesce(
            *(
                F.when(~F.coalesce(F.expr(check), F.lit(False)), F.lit(f"CHECK constraint {name} ({check}) violated"))
                for name, check in self._constraints.items()
            )
        )
        refused = rows.select(ROW, reason.alias("reason")).where("reason IS NOT NULL").collect()
        return {row[ROW]: row["reason"] for row in refused}

    def forget(self) -> None:
        """What is staged lies on the disk, or in the database."""

    def apply(self, staged: Staged, batch: Batch, fence: Fence) -> Applied:
        table = self._table()
        application = f"{fence.pipeline}/{fence.target}/{fence.generation}"
        if CHANGE in staged.columns:
            return self._apply_changes(table, staged, batch, fence, application)
        if fence.passed(fence.generation, table.newest_transaction(application)):
            return Applied(done=False)
        rows = self._read(staged).drop(ROW)
        batch.reached("apply/before-commit")
        now, target = datetime.now(UTC), self._target
        load = Load(
            table,
            rows,
            application,
            fence.batch,
            self._shape.keys,
            self._filled(rows, batch, now),
            updates=target.update_columns,
            decides=target.compare_columns,
            absent=target.handle_deletes or "",
            moment=now,
            stale=now - target.ttl if target.ttl else None,
        )
        with write_errors_in_words(self._path, batch.number):
            counts = MODES[self._mode](load)
        shutil.rmtree(staged.folder)
        return Applied(done=True, counts=counts)

    def _apply_changes(
        self, table: DeltaTable, staged: Staged, batch: Batch, fence: Fence, application: str
    ) -> Applied:
        rows, gate = self._read(staged).drop(ROW), self._gate()
        filled = self._filled(rows, batch, datetime.now(UTC))
        load = Load(table, rows, application, fence.batch, self._shape.keys, filled)
        door_of = HistoryDoor if self._mode == "scd2" else Door
        door = door_of(load, gate, (self._changes.soft_delete_column if self._changes else None) or "")
        done = not fence.passed(fence.generation, table.newest_transaction(application))
        counts: Counter[str] = Counter()
        batch.reached("apply/before-commit")
        with write_errors_in_words(self._path, batch.number):
            if done:
                counts = door.apply()
            batch.reached("apply/before-gate")
            if not fence.passed(fence.generation, gate.newest_transaction(application)):
                door.settle(application)
        shutil.rmtree(staged.folder)
        return Applied(done=done, changes=counts)

    def _filled(self, rows: DataFrame, batch: Batch, now: datetime) -> dict[str, Column]:
        from pyspark.sql import functions as F

        values = {"_loaded_at": F.lit(now), "_batch_id": F.lit(f"{batch.pipeline}/{batch.number}")}
        filled = {name: values[name] for name in self._shape.audit(rows.columns) if name in self._columns}
        if self._target.handle_deletes == "soft" and self._mode == "merge":
            filled[IS_DELETED] = F.lit(False)
        return filled | ({SEEN_AT: F.lit(now)} if self._target.ttl else {})

    def _read(self, staged: Staged) -> DataFrame:
        return self._table().session.read.parquet(str(staged.folder))

    def _table(self) -> DeltaTable:
        """In the session of the batch; before there is one, in that of the process."""
        from pyspark.sql import SparkSession

        session = self._session or SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()
        return DeltaTable(self._path, session)
