"""The Delta target on a local disk: Spark stages Parquet, and one commit brings it into the table with its fence."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from ematix_flow.connections import DeltaLocalConnection
from ematix_flow.sinks.base import EVENT_TIME, ORDER, ROW, Applied, Batch, Capabilities, Staged
from ematix_flow.sinks.delta_modes import MODES, Load
from ematix_flow.sinks.delta_table import DeltaTable, write_errors_in_words
from ematix_flow.sinks.delta_types import TYPES
from ematix_flow.sinks.ordering import latest_per_key, versions
from ematix_flow.sinks.shape import Shape
from ematix_flow.specs import Target
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
        refuses=True,
    )

    def __init__(self, target: Target, connection: DeltaLocalConnection, name: str) -> None:
        self._name, self._mode = name, target.mode
        self._shape = Shape(target, name, TYPES)
        parts = (target.table.schema, target.table.name) if target.table else ()
        # Absolute, because Spark would write below the folder in which its Java process was started.
        self._path = str(Path(connection.path).absolute().joinpath(*filter(None, parts)))
        self._constraints: dict[str, str] = {}
        self._columns: frozenset[str] = frozenset()
        self._session: SparkSession | None = None

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
        return fitted.rows

    def stage(self, rows: DataFrame, batch: Batch) -> Staged:
        self._session = rows.sparkSession
        folder = batch.scratch(self._name)
        resolved = {"merge": latest_per_key, "scd2": versions}.get(self._mode)
        rows = resolved(rows, self._shape.keys) if resolved else rows.drop(EVENT_TIME, ORDER)
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
        if fence.passed(fence.generation, table.newest_transaction(application)):
            return Applied(done=False)
        rows = self._read(staged).drop(ROW)
        batch.reached("apply/before-commit")
        with write_errors_in_words(self._path, batch.number):
            filled = self._filled(rows, batch)
            MODES[self._mode](Load(table, rows, application, fence.batch, self._shape.keys, filled))
        shutil.rmtree(staged.folder)
        return Applied(done=True)

    def _filled(self, rows: DataFrame, batch: Batch) -> dict[str, Column]:
        from pyspark.sql import functions as F

        values = {"_loaded_at": F.lit(datetime.now(UTC)), "_batch_id": F.lit(f"{batch.pipeline}/{batch.number}")}
        return {name: values[name] for name in self._shape.audit(rows.columns) if name in self._columns}

    def _read(self, staged: Staged) -> DataFrame:
        return self._table().session.read.parquet(str(staged.folder))

    def _table(self) -> DeltaTable:
        """In the session of the batch; before there is one, in that of the process."""
        from pyspark.sql import SparkSession

        session = self._session or SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()
        return DeltaTable(self._path, session)
