"""Counts taken while the rows of a batch pass, so that counting never needs a second look at them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ematix_flow.streams.envelope import ERROR, BadRow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

_METRIC = "flow"


@dataclass(frozen=True)
class Counts:
    consumed: int = 0
    bad: dict[str, int] = field(default_factory=dict)
    """By stage."""
    first_bad: BadRow | None = None


def observed(rows: DataFrame) -> DataFrame:
    """Three cheap aggregates: each one more is paid for every row."""
    from pyspark.sql import functions as F

    return rows.observe(
        _METRIC,
        F.count(F.lit(1)).alias("consumed"),
        F.count(ERROR).alias("decode"),
        F.min(ERROR).alias("first"),
    )


class Passing:
    """Rows that are counted while a target stages them."""

    def __init__(self, rows: DataFrame) -> None:
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        self._seen = Observation()
        self.rows = rows.observe(self._seen, F.count(F.lit(1)).alias("rows"))

    def count(self) -> int:
        return int(self._seen.get["rows"])


def counts_of(query: StreamingQuery) -> Counts:
    """What was observed in the batch that runs now. Spark reports it publicly only after the batch is committed, which
    is too late to refuse it; the execution in progress knows it as soon as the rows have passed."""
    execution = query._jsq.streamingQuery().lastExecution()  # noqa: SLF001
    metrics: dict[str, Any] = json.loads(execution.observedMetrics().apply(_METRIC).json())
    if not metrics["decode"]:
        return Counts(metrics["consumed"])
    return Counts(metrics["consumed"], {"decode": metrics["decode"]}, BadRow.read(metrics["first"]))
