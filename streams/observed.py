"""Counts taken while the rows of a batch pass, and the bad rows among them, so that neither needs a second look."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any

from ematix_flow.sinks.ahead import AHEAD, ROWS
from ematix_flow.sinks.base import EVENT_TIME
from ematix_flow.state.kernel import GONE
from ematix_flow.streams.envelope import ERROR
from ematix_flow.streams.packing import NOTE
from ematix_flow.streams.tagging import KEEP

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

_METRIC, _INPUT, _TIME = "flow", "flow_input_", "flow_time_"

# The errors of a batch come to the driver with its counts, up to so many and so long ones: at most 100 MB.
# What is beyond is read from the batch a second time, in bounded memory.
_ERRORS_COLLECTED = 50_000
_ERROR_BYTES = 2_048
# More groups than a worker steps through in a minute.
_NOTES = 100_000


@dataclass(frozen=True)
class Arrived:
    """What came to an operator from one source."""

    rows: int = 0
    latest: int | None = None
    """The latest event time of its rows and ticks, in microseconds since 1970."""


@dataclass(frozen=True)
class Seen:
    """What passed one place of a batch."""

    rows: int = 0
    kept: int = 0
    """Good rows that a filter did not leave out."""
    bad: int = 0
    errors: tuple[str, ...] = ()
    """Their `_flow_error`, or as many as could be collected."""
    notes: tuple[str, ...] = ()
    """Of the groups of an operator, or as many as could be collected."""
    noted: int = 0
    inputs: Mapping[int, Arrived] = field(default_factory=dict)
    """Those of an operator, by number."""
    latest: int | None = None
    """The latest event time among the rows, if they carry it, in microseconds since 1970."""

    @property
    def complete(self) -> bool:
        return len(self.errors) == self.bad


class Passing:
    """Rows of a batch that are counted while they are staged."""

    def __init__(self, rows: DataFrame) -> None:
        from pyspark.sql import Observation

        self._observation, self._unobserved = Observation(), rows
        self.rows = rows.observe(self._observation, *_metrics(rows))

    def seen(self) -> Seen:
        from py4j.protocol import Py4JError

        try:
            return _seen(self._observation.get)
        except Py4JError:
            # Where no good row is left, Spark replaces the rest of the plan by nothing, the counts included.
            return _seen(self._unobserved.agg(*_metrics(self._unobserved)).collect()[0].asDict())


def observed(rows: DataFrame) -> DataFrame:
    """The rows of a streaming plan; `seen_by` tells what passed."""
    return rows.observe(_METRIC, *_metrics(rows))


def counted(rows: DataFrame, number: int) -> DataFrame:
    """The rows that go into an operator, of which it makes others; these count as the rows of the batch."""
    return rows.observe(f"{_INPUT}{number}", _rows(rows).alias("rows"))


def timed(rows: DataFrame, clock: str, number: int) -> DataFrame:
    """Rows and ticks of one input of an operator, whose latest time is noted."""
    from pyspark.sql import functions as F

    return rows.observe(f"{_TIME}{number}", F.max(F.unix_micros(clock)).alias("latest"))


def seen_by(query: StreamingQuery, inputs: int) -> Seen:
    """What was observed in the batch that runs now. Spark reports it publicly only after the batch is committed, which
    is too late to refuse it; the execution in progress knows it as soon as the rows have passed. `inputs` is how many
    an operator has; without one there are none."""
    metrics = query._jsq.streamingQuery().lastExecution().observedMetrics()  # noqa: SLF001
    seen = _seen(json.loads(metrics.apply(_METRIC).json()))
    if not inputs:
        return seen

    def of(name: str) -> dict[str, Any]:
        # Spark leaves out what comes from a source that has nothing new, and values that are NULL.
        return json.loads(metrics.apply(name).json()) if metrics.contains(name) else {}

    known = {n: Arrived(of(f"{_INPUT}{n}").get("rows", 0), of(f"{_TIME}{n}").get("latest")) for n in range(inputs)}
    times = [one.latest for one in known.values() if one.rows and one.latest is not None]
    rows = sum(one.rows for one in known.values())
    return replace(seen, rows=rows, inputs=known, latest=max(times, default=None))


def seen_among(rows: DataFrame) -> Seen:
    """By reading the rows once more."""
    passing = Passing(rows)
    passing.rows.write.format("noop").mode("overwrite").save()
    return passing.seen()


def _metrics(rows: DataFrame) -> list[Column]:
    """Few and cheap: each one is paid for every row."""
    from pyspark.sql import functions as F

    counts = [_rows(rows).alias("rows"), F.count(ERROR).alias("bad")]
    if EVENT_TIME in rows.columns:
        counts.append(F.max(F.unix_micros(EVENT_TIME)).alias("latest"))
    conditions = [F.col(KEEP)] if KEEP in rows.columns else []
    # What withdraws a row is none.
    conditions += [~F.coalesce(F.col(GONE), F.lit(False))] if GONE in rows.columns else []
    if conditions:
        counts.append(F.count_if(reduce(and_, conditions, F.col(ERROR).isNull())).alias("kept"))
    short = F.expr(f"CASE WHEN length({ERROR}) <= {_ERROR_BYTES} THEN {ERROR} END")
    lists = [_some(short, _ERRORS_COLLECTED).alias("errors")]
    if NOTE in rows.columns:
        counts.append(F.count(NOTE).alias("noted"))
        lists.append(_some(F.col(NOTE), _NOTES).alias("notes"))
    return [*counts, *lists]


def _rows(rows: DataFrame) -> Column:
    """Some may stand for many."""
    from pyspark.sql import functions as F

    return F.coalesce(F.sum(F.col(AHEAD)[ROWS]), F.lit(0)) if AHEAD in rows.columns else F.count(F.lit(1))


def _some(texts: Column, most: int) -> Column:
    """Those that are not NULL, up to so many. `min_by` can do it as well, but takes the room of all of them in every
    task, whether there are any or not, and brings it to the driver."""
    from pyspark.sql.internal import InternalFunction

    return InternalFunction.collect_top_k(texts, most, False)


def _seen(metrics: dict[str, Any]) -> Seen:
    rows, bad = metrics["rows"], metrics["bad"]
    errors = tuple(error for error in metrics.get("errors") or () if error is not None)
    # A row that cannot be read is not kept, and one on which the filter fails is not, either.
    notes = tuple(metrics.get("notes") or ())
    kept, noted = metrics.get("kept", rows - bad), metrics.get("noted", 0)
    return Seen(rows, kept, bad, errors, notes, noted, latest=metrics.get("latest"))


def notes_among(seen: Seen, rows: DataFrame) -> Sequence[str]:
    if len(seen.notes) == seen.noted:
        return seen.notes
    return [note for (note,) in rows.where(f"{NOTE} IS NOT NULL").select(NOTE).collect()]
