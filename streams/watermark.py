"""The watermark: how it moves, and how rows behind it still reach an operator.

Spark's watermark begins at 1970 and never goes back, so that it would stand still for earlier times. It is therefore
given times that are counted from the year 1.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ematix_flow.state.kernel import NO_WATERMARK, YEAR_1_MS

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

_KEY = "spark.watermarkDelayMs"
_CLOCK, _MARKED = "_flow_clock", "_flow_marked"
# Never earlier than a watermark. A time far in the future would be, one day, and pandas could not read it.
_NEVER = "CAST(NULL AS TIMESTAMP)"


def moved_by(rows: DataFrame, time: str, lateness_ms: int) -> DataFrame:
    """Let the watermark follow the column `time`; a NULL in it moves nothing."""
    from pyspark.sql import functions as F

    clock = F.timestamp_micros(F.unix_micros(time) + YEAR_1_MS * 1000)
    return rows.withColumn(_CLOCK, clock).withWatermark(_CLOCK, f"{lateness_ms} milliseconds").drop(_CLOCK)


def never_late(rows: DataFrame) -> DataFrame:
    """Rows of which Spark leaves none out for being late, whatever their event times.

    An operator with event-time time-outs compares the column that is marked as the event time, and there must be one.
    So a constant is marked. The watermark itself is measured where `moved_by` stands, below in the plan.
    """
    from pyspark.sql import functions as F

    return rows.withColumn(_MARKED, F.expr(_NEVER).alias(_MARKED, metadata={_KEY: 0}))


def from_spark(watermark_ms: int) -> int:
    """Spark's watermark in microseconds since 1970; `NO_WATERMARK` before any row was seen."""
    return (watermark_ms - YEAR_1_MS) * 1000 if watermark_ms else NO_WATERMARK


def for_spark(deadline: int) -> int:
    """When Spark is to wake a group, so that it does once the watermark is at `deadline`: it waits until the watermark
    is beyond a whole millisecond."""
    return -(-deadline // 1000) - 1 + YEAR_1_MS


def move(query: StreamingQuery, watermark: int) -> None:
    """Let Spark's next batch have this one at least. Spark keeps it with the batch in progress, and runs a batch
    without rows if nothing else does."""
    tracker = query._jsq.streamingQuery().watermarkTracker()  # noqa: SLF001
    tracker.setWatermark(max(tracker.currentWatermark(), for_spark(watermark) + 1))


def last_plan(checkpoint: Path) -> int | None:
    """The last batch that was planned."""
    plans = (int(file.name) for file in (checkpoint / "offsets").glob("[0-9]*") if file.name.isdecimal())
    return max(plans, default=None)


def last_planned(checkpoint: Path) -> int:
    """That of the last batch that was planned."""
    last = last_plan(checkpoint)
    return NO_WATERMARK if last is None else planned(checkpoint, last)


def planned(checkpoint: Path, batch: int) -> int:
    """That of a batch, which Spark knows as long as it could be repeated; none before the first batch."""
    file = checkpoint / "offsets" / str(batch)
    if not file.exists():
        return NO_WATERMARK
    _, facts, *_ = file.read_text(encoding="utf-8").splitlines()
    return from_spark(json.loads(facts)["batchWatermarkMs"])


def brings_nothing(checkpoint: Path, batch: int) -> bool:
    """Whether a batch that is planned ends where the one before it does, in every source."""
    ends = [checkpoint / "offsets" / str(number) for number in (batch - 1, batch)]
    if not ends[0].exists():
        return False
    before, now = (file.read_text(encoding="utf-8").splitlines()[2:] for file in ends)
    return before == now
