"""Brings rows to a target the way the runner does, without a streaming query."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from ematix_flow.sinks.base import EVENT_TIME, HIDDEN, ORDER, ROW, Applied, Batch, Staged
from ematix_flow.sinks.opening import open_sink
from ematix_flow.specs import Target
from ematix_flow.state.kernel import GONE
from tests.contract.backends import Backend, Row

START = datetime(2026, 1, 1, tzinfo=UTC)


def at(hour: int) -> datetime:
    return START + timedelta(hours=hour)


class Feed:
    """A pipeline into one target, batch by batch."""

    def __init__(self, backend: Backend, columns: str, **options: Any) -> None:
        self.backend, self.columns = backend, columns
        self.target: Target = backend.target(**options)
        self.sink = open_sink(self.target, "orders", backend.delivery)
        self.schema = StructType()
        self._generation, self._number = uuid4().hex, -1

    def write(
        self, *rows: Sequence[Any], hours: Sequence[int] = (), gone: Sequence[bool | None] = (), again: bool = False
    ) -> Applied:
        """One batch of rows in the order in which they came; `hours` is when each of them happened, `gone` which of
        them withdraw a row."""
        self._number += 0 if again else 1
        batch = self._batch()
        try:
            return self.sink.apply(self.stage(*rows, hours=hours, gone=gone), batch, batch.fence("orders"))
        finally:
            self.sink.forget()

    def stage(self, *rows: Sequence[Any], hours: Sequence[int] = (), gone: Sequence[bool | None] = ()) -> Staged:
        frame = self._frame(rows, hours or [0] * len(rows), gone or [None] * len(rows))
        self.schema = self.sink.prepare(frame.drop(*HIDDEN).schema)
        cast = [F.col(field.name).cast(field.dataType).alias(field.name) for field in self.schema.fields]
        hidden = [*self._hidden(), *([GONE] if gone else [])]
        return self.sink.stage(frame.select(*cast, *hidden), self._batch())

    def refusals(self, staged: Staged) -> dict[int, str]:
        return self.sink.refusals(staged, self._batch())

    def rows(self) -> list[Row]:
        spark_schema = self.backend.spark.createDataFrame([], self.columns).schema
        return self.backend.read(spark_schema)

    def values(self, *names: str) -> list[tuple[Any, ...]]:
        """The rows as tuples, in an order that does not depend on the target."""
        return sorted((tuple(row[name] for name in names) for row in self.rows()), key=repr)

    def _frame(self, rows: Sequence[Sequence[Any]], hours: Sequence[int], gone: Sequence[bool | None]) -> DataFrame:
        hidden = f"{ROW} long, {EVENT_TIME} timestamp, {ORDER} long, {GONE} boolean"
        numbered = [
            (*row, number, at(hour), number, withdrawn)
            for number, (row, hour, withdrawn) in enumerate(zip(rows, hours, gone, strict=True))
        ]
        return self.backend.spark.createDataFrame(numbered, f"{self.columns}, {hidden}").coalesce(1)

    def _hidden(self) -> list[str]:
        """What the runner adds: a number where rows may be refused, and their order where it counts."""
        order = [EVENT_TIME, ORDER] if self.target.mode in {"merge", "scd2"} else []
        return [*order, ROW] if order or self.sink.capabilities.refuses else []

    def _batch(self) -> Batch:
        return Batch("shop", self._generation, self._number, scratch=self._scratch)

    def _scratch(self, name: str) -> Path:
        return self.backend.folder / "scratch" / name
