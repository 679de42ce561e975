"""Counts taken while the rows of a batch pass, so that counting never needs a second look at them."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ematix_flow.streams.envelope import ERROR

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

_METRIC = "flow"
# Where a row can go wrong before the transform.
_STAGES = ("decode", "event_time")


@dataclass(frozen=True)
class BadRow:
    """The first bad row of a batch, for the message of a pipeline that stops on it."""

    stage: str
    code: str
    message: str | None
    source: str
    position: str
    payload: bytes


@dataclass(frozen=True)
class Counts:
    consumed: int = 0
    bad: dict[str, int] = field(default_factory=dict)
    first_bad: BadRow | None = None


def observed(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    return rows.observe(
        _METRIC,
        F.count(F.lit(1)).alias("consumed"),
        *[F.count_if(F.col(f"{ERROR}.stage") == stage).alias(stage) for stage in _STAGES],
        F.first(ERROR, ignorenulls=True).alias("first"),
    )


def counts_of(query: StreamingQuery) -> Counts:
    """What was observed in the batch that runs now. Spark reports it publicly only after the batch is committed, which
    is too late to refuse it; the execution in progress knows it as soon as the rows have passed."""
    execution = query._jsq.streamingQuery().lastExecution()  # noqa: SLF001
    metrics: Any = json.loads(execution.observedMetrics().apply(_METRIC).json())
    first = metrics.get("first")
    return Counts(
        consumed=metrics["consumed"],
        bad={stage: metrics[stage] for stage in _STAGES if metrics[stage]},
        first_bad=None
        if first is None
        else BadRow(
            stage=first["stage"],
            code=first["code"],
            message=first.get("message"),
            source=first["source"],
            position=first["position"],
            payload=base64.b64decode(first.get("payload") or ""),
        ),
    )
