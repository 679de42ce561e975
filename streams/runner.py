"""One micro-batch, eight steps; the only place that knows their order."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from ematix_flow.sinks.base import Batch, Sink, Staged
from ematix_flow.specs import PipelineSpec
from ematix_flow.state.dead_letters import DeadLetter
from ematix_flow.state.store import LocalStore
from ematix_flow.streams import envelope
from ematix_flow.streams.failures import BadRowError
from ematix_flow.streams.observed import Counts, Passing, counts_of
from ematix_flow.streams.query import Plan
from ematix_flow.streams.sources.base import StreamSource
from ematix_flow.streams.steps import Stopwatch, reached

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

P = ParamSpec("P")
R = TypeVar("R")

_POLL_SECONDS = 0.02


@dataclass
class Tally:
    """What one run did so far."""

    batches: int = 0
    consumed: int = 0
    written: Counter[str] = field(default_factory=Counter)
    dead: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class BatchReport:
    """What one committed batch did, for progress lines and metrics."""

    pipeline: str
    number: int
    consumed: int
    written: Mapping[str, int]
    """Rows by target; none where a fence showed that the batch was there already."""
    bad: Mapping[str, int]
    """Rows set aside, by stage."""
    seconds: Mapping[str, float]
    """Time by step of the commit protocol."""


@dataclass(frozen=True)
class Routed:
    """The rows of a batch, split by their tag. Nothing is computed before `stage`."""

    good: DataFrame
    rows: DataFrame


class Drained(Exception):
    """Ends a batch that would have begun after the pipeline was told to stop; it is planned again at the next start."""


def step(method: Callable[Concatenate[Runner, Any, P], R]) -> Callable[Concatenate[Runner, Any, P], R]:
    """Time a step under its own name, and let a crash test end the process as it begins."""

    @wraps(method)
    def timed(self: Runner, batch: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        number = batch.number if isinstance(batch, Batch) else batch
        self.current = (method.__name__, number)
        with self.watch.step(method.__name__, number):
            return method(self, batch, *args, **kwargs)

    return timed


class Runner:
    """Spark calls it with each batch. It raises to have the batch planned again, and returns to have it committed."""

    def __init__(
        self,
        spec: PipelineSpec,
        source: StreamSource,
        sinks: Mapping[str, Sink],
        store: LocalStore,
        plan: Plan,
        on_batch: Callable[[BatchReport], None],
    ) -> None:
        self._spec, self._source, self._sinks, self._store = spec, source, sinks, store
        self._plan = plan
        self._on_batch = on_batch
        self._prepared: StructType | None = None
        self._query: StreamingQuery | None = None
        self._started, self._draining = threading.Event(), threading.Event()
        self._kept: DataFrame | None = None
        self.tally = Tally()
        self.watch = Stopwatch()
        self.counts = Counts()
        self.good_rows = 0
        self.written: dict[str, int] = {}
        self.current: tuple[str, int] | None = None
        self.failure: BaseException | None = None

    def __call__(self, rows: DataFrame, number: int) -> None:
        try:
            if self._draining.is_set():
                raise Drained
            batch = self.plan(number)
            routed = self.compute(batch, rows)
            staged = self.stage(batch, routed)
            self.save(batch)
            self.apply(batch, staged)
            self.divert(batch, routed)
            self.release(batch)
            self.commit(batch)
        except BaseException as error:
            self.failure = error
            raise
        finally:
            if self._kept is not None:
                self._kept.unpersist()
                self._kept = None

    @step
    def plan(self, number: int) -> Batch:
        """1. Spark has fixed the offsets of the batch in the checkpoint; open it."""
        return Batch(
            self._spec.name,
            self._store.generation,
            number,
            scratch=self._store.scratch,
            reached=lambda point: reached(point, number),
        )

    @step
    def compute(self, batch: Batch, rows: DataFrame) -> Routed:
        """2. Decode, transform and operator are in `rows`; split it by tag, and keep it if it is needed twice."""
        if len(self._sinks) > 1:
            rows = self._kept = rows.persist()
        good = envelope.good(rows) if envelope.ERROR in rows.columns else rows
        if self._plan.batch_transform is not None:
            good = self._plan.batch_transform(good)
        return Routed(good, rows)

    @step
    def stage(self, batch: Batch, routed: Routed) -> dict[str, Staged]:
        """3. Every target writes the rows where nobody reads. Under `fail`, a bad row ends the batch here."""
        if routed.good.schema != self._prepared:
            for sink in self._sinks.values():
                sink.prepare(routed.good.schema)
            self._prepared = routed.good.schema
        passing = None if self._plan.keeps_every_row else Passing(routed.good)
        rows = passing.rows if passing else routed.good
        staged = {name: sink.stage(rows, batch) for name, sink in self._sinks.items()}
        self.counts = self._observed()
        self.good_rows = passing.count() if passing else self.counts.consumed - sum(self.counts.bad.values())
        if self.counts.first_bad is not None and self._spec.transform.on_error == "fail":
            raise self._refusal(self.counts.first_bad)
        return staged

    @step
    def save(self, batch: Batch) -> None:
        """4. The plan of this batch is durable before any target shows its rows."""
        self._store.save(batch.number)

    @step
    def apply(self, batch: Batch, staged: Mapping[str, Staged]) -> None:
        """5. One transaction per target, each behind its own fence."""
        for name, sink in self._sinks.items():
            applied = sink.apply(staged[name], batch, batch.fence(name))
            self.written[name] = self.good_rows if applied.done else 0

    @step
    def divert(self, batch: Batch, routed: Routed) -> None:
        """6. Dead letters, with ids derived from where the rows came from."""
        if self.counts.bad and self._spec.transform.on_error == "dlq":
            self._store.dead_letters.put(map(self._letter, envelope.bad(routed.rows).toLocalIterator()))

    @step
    def release(self, batch: Batch) -> None:
        """7. The source may forget what is now durable in every target."""
        self._source.release(batch.number)

    @step
    def commit(self, batch: Batch) -> None:
        """8. Returning lets Spark write `commits/N`."""
        self.tally.batches += 1
        self.tally.consumed += self.counts.consumed
        self.tally.written.update(self.written)
        outcome = {"drop": self.tally.dropped, "dlq": self.tally.dead}.get(self._spec.transform.on_error)
        if outcome is not None:
            outcome.update(self.counts.bad)
        seconds = dict(self.watch.latest)
        self._on_batch(
            BatchReport(
                self._spec.name, batch.number, self.counts.consumed, dict(self.written), self.counts.bad, seconds
            )
        )

    def bind(self, query: StreamingQuery) -> None:
        """Tell the runner which query it runs in, once that has started."""
        self._query = query
        self._started.set()

    def drain(self) -> None:
        """Finish the batch in progress, commit it, and begin no other; then end the query.

        `stop` alone would cut the batch off in the middle.
        """
        assert self._query is not None
        self._draining.set()
        while self._query.isActive and self.current is not None and not self._store.committed(self.current[1]):
            self._query.awaitTermination(_POLL_SECONDS)  # type: ignore[arg-type]  # it takes fractions
        self._query.stop()

    def _observed(self) -> Counts:
        # Spark may call with the first batch before `start` has returned the query.
        self._started.wait()
        assert self._query is not None
        return counts_of(self._query)

    def _refusal(self, bad: envelope.BadRow) -> BadRowError:
        return BadRowError(
            stage=bad.stage,
            position=self._source.place(bad.position, bad.payload),
            reason=bad.message or self._source.reason(bad.payload),
            others=sum(self.counts.bad.values()) - 1,
        )

    def _letter(self, row: Row) -> DeadLetter:
        number, error = row
        bad = envelope.BadRow.read(error)
        return DeadLetter(
            pipeline=self._spec.name,
            stage=bad.stage,
            error_code=bad.code,
            error=bad.message or self._source.reason(bad.payload),
            source=bad.source,
            position=f"{bad.position}+{number}",
            event_ts=bad.event_ts or self._source.arrived(bad.position),
            payload_format=self._source.payload_format,
            payload=bad.payload,
            failed_at=datetime.now(UTC),
        )
