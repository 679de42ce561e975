"""One micro-batch, eight steps; the only place that knows their order."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from ematix_flow.sinks.base import Batch, Sink
from ematix_flow.specs import PipelineSpec
from ematix_flow.state.store import Store
from ematix_flow.streams.bisecting import without_culprits
from ematix_flow.streams.clocks import Clocks
from ematix_flow.streams.failures import BadRowError, is_of_a_row
from ematix_flow.streams.held_back import Held
from ematix_flow.streams.lanes import Lanes
from ematix_flow.streams.lookups import Lookups
from ematix_flow.streams.observed import Arrived, Seen, notes_among, seen_among, seen_by
from ematix_flow.streams.open_windows import OpenWindows, Told
from ematix_flow.streams.query import Plan
from ematix_flow.streams.reading import readings
from ematix_flow.streams.set_aside import SetAside, letters, placed
from ematix_flow.streams.sources.several import Sources
from ematix_flow.streams.steps import Stopwatch, reached
from ematix_flow.streams.targets import Targets, wanted, with_numbers
from ematix_flow.streams.watermark import brings_nothing, last_plan, last_planned, move, planned

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

P = ParamSpec("P")
R = TypeVar("R")

_POLL_SECONDS = 0.02
CHANGES = ("creates", "updates", "deletes", "skipped", "idempotent_skipped", "truncates")


@dataclass
class Tally:
    """What one run did so far."""

    batches: int = 0
    consumed: int = 0
    written: Counter[str] = field(default_factory=Counter)
    dead: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    late: Counter[str] = field(default_factory=Counter)
    counts: Mapping[str, Counter[str]] = field(default_factory=dict)
    changes: dict[str, Counter[str]] = field(default_factory=dict)
    """By table."""
    held: Held = field(default_factory=Held)
    """After the latest batch."""


@dataclass(frozen=True)
class BatchReport:
    """What one batch did that is about to be committed, for progress lines and metrics."""

    pipeline: str
    number: int
    consumed: int
    written: Mapping[str, int]
    """Rows by target; none where a fence showed that the batch was there already."""
    dead: Mapping[str, int]
    """Rows kept as dead letters, by stage."""
    dropped: Mapping[str, int]
    """Bad rows that were only counted, by stage."""
    seconds: Mapping[str, float]
    """Time by step of the commit protocol."""
    windows: Told | None = None
    """What the operator told, if there is one."""
    changes: Mapping[str, int] = field(default_factory=dict)
    """By what they were, if rows are changes of tables."""
    operator: str | None = None
    """Which one: `join` or `window`."""
    latest: int | None = None
    """The latest event time among its rows, if they carry it, in microseconds since 1970."""
    held: Held = field(default_factory=Held)
    """Changes that wait for the rest of their transactions."""

    @property
    def bad(self) -> Mapping[str, int]:
        return {**self.dropped, **self.dead}


@dataclass(frozen=True)
class Routed:
    """The rows of a batch on their way to the targets. Nothing is computed before `stage`."""

    taken: DataFrame
    """As the streaming plan gives them, bad rows tagged."""
    produced: Any
    """What the transform made of the good ones; bad rows tagged again. Rows, or changes of several tables."""


def in_all(changes: Mapping[str, Counter[str]]) -> dict[str, int]:
    """Of all tables together."""
    found: Counter[str] = sum(changes.values(), Counter())
    return {what: found[what] for what in CHANGES}


class Drained(Exception):
    """Ends a batch that would have begun after the pipeline was told to stop; it is planned again at the next start."""


def step(method: Callable[Concatenate[Runner, Any, P], R]) -> Callable[Concatenate[Runner, Any, P], R]:
    """Time a step under its own name, and let a crash test end the process as it begins."""

    @wraps(method)
    def timed(self: Runner, batch: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        number = batch.number if isinstance(batch, Batch) else batch
        self.current = (method.__name__, number)
        self.on_step(method.__name__, number)
        with self.watch.step(method.__name__, number):
            return method(self, batch, *args, **kwargs)

    return timed


class Runner:
    """Spark calls it with each batch. It raises to have the batch planned again, and returns to have it committed."""

    def __init__(
        self,
        spec: PipelineSpec,
        sources: Sources,
        sinks: Mapping[str, Sink],
        store: Store,
        plan: Plan,
        lookups: Lookups,
        on_batch: Callable[[BatchReport], None],
        on_step: Callable[[str, int], None],
        tally: Tally,
    ) -> None:
        self._spec, self._sources, self._store, self._plan, self._lookups = spec, sources, store, plan, lookups
        self._targets: Targets | Lanes = (
            Lanes(plan.origin, store, self._set_aside)
            if plan.capture
            else Targets(spec, sinks, plan.origin, store, self._set_aside, one_by_one=plan.one_by_one)
        )
        self.rows = plan.rows
        """Of the streaming plan, as the runner is to be called with those of each batch."""
        if plan.batch_transform is None and isinstance(self._targets, Targets):
            self.rows = self._targets.shaped(plan.rows)
        self._is_shaped = self.rows is not plan.rows
        self._on_batch, self.on_step = on_batch, on_step
        self._policy = spec.transform.on_error
        self._open = OpenWindows(store, plan.operator) if plan.operator else None
        self._query: StreamingQuery | None = None
        self._materialised: DataFrame | None = None
        self._started = threading.Event()
        self._draining, self._turn = False, threading.Lock()
        self.tally = tally
        self.watch = Stopwatch()
        self.consumed = self.kept = 0
        self.latest: int | None = None
        self.written: dict[str, int] = {}
        self.changes: dict[str, Counter[str]] = {}
        self.bad = SetAside()
        self.told = Told(self._open.held()) if self._open else None
        latest = self.told.held.latest if self.told else ()
        self.clocks = Clocks(plan.ticks, spec.watermark.source_idleness_ms, latest)
        self._arrived: Mapping[int, Arrived] = {}
        self.watermark = last_planned(store.checkpoint) if self._open else None
        self.current: tuple[str, int] | None = None
        self.failure: BaseException | None = None
        self.is_over = False
        """All of a range is read, and no window waits for more."""
        self.flushes = False
        """What is open when the input ends is to be closed."""
        self._repeats = -1

    def __call__(self, rows: DataFrame, number: int) -> None:
        try:
            self._begin(number)
            batch = self.plan(number)
            routed = self.compute(batch, rows)
            staged = self.stage(batch, routed)
            self.save(batch)
            self.apply(batch, staged)
            self.divert(batch)
            self.release(batch)
            self.commit(batch)
            self._on_batch(self._report(batch))
        except BaseException as error:
            self.failure = error
            raise
        finally:
            self._forget()
            self.clocks.end()

    def _begin(self, number: int) -> None:
        """From here on `drain` waits for the batch; it must not begin while `drain` looks at the one before it."""
        with self._turn:
            if self._draining:
                raise Drained
            self.current = ("plan", number)
        self.clocks.begin()
        self.bad = SetAside()

    @step
    def plan(self, number: int) -> Batch:
        """1. Spark has fixed the offsets of the batch in the checkpoint; open it."""
        return Batch(
            self._store.pipeline,
            self._store.generation,
            number,
            scratch=self._store.scratch,
            rows=self._rows_of(number),
            # Workers may be told of it.
            reached=partial(reached, batch=number),
        )

    @step
    def compute(self, batch: Batch, rows: DataFrame) -> Routed:
        """2. Decode, a row-wise transform and an operator are in `rows`; any other transform sees the good rows."""
        if self._plan.is_materialised and not (self._is_shaped and batch.is_small):
            self._materialised = rows.persist()
        if self._is_shaped:
            return Routed(rows, rows)
        produced = self._transformed(batch, wanted(rows))
        if self._plan.batch_transform is not None:
            self._keep_unless_read_once(rows, readings(rows, produced))
        return Routed(rows, produced)

    @step
    def stage(self, batch: Batch, routed: Routed) -> Any:
        """3. Every target writes the rows where nobody reads. Under `fail`, a bad row ends the batch here."""
        staging, taken = self._staged(batch, routed)
        self.consumed, self.kept, self.latest = taken.rows, taken.kept, taken.latest
        self.bad.seen(taken, routed.taken)
        if self._open is not None:
            self.watermark = planned(self._store.checkpoint, batch.number)
            self._arrived = taken.inputs
            latest = self.clocks.after(taken.inputs)
            self.told = self._open.told(batch.number, notes_among(taken, routed.taken), latest)
        for seen, rows in staging.looked_at:
            self.bad.seen(seen, rows)
        self._fail_if_asked()
        return self._targets.settled(batch, staging)

    @step
    def save(self, batch: Batch) -> None:
        """4. The plan of this batch is durable before any target shows its rows."""
        if self._open is not None and self.told is not None:
            self._open.remember(batch.number, self.told.held)
        self._store.save(batch.number)

    @step
    def apply(self, batch: Batch, staging: Any) -> None:
        """5. One transaction per target, each behind its own fence."""
        staging, done = self._targets.apply(batch, staging)
        self.written = {name: rows if name in done else 0 for name, rows in staging.rows(self.kept).items()}
        if isinstance(self._targets, Lanes):
            self.changes = self._targets.changes

    @step
    def divert(self, batch: Batch) -> None:
        """6. Dead letters, with ids derived from where the rows came from."""
        if self._policy == "dlq" or self._counted("dlq"):
            kept = (bad for bad in self.bad if self._fate(bad.stage) == "dlq")
            self._store.divert(letters(self._spec.name, batch.number, self._sources, kept))

    @step
    def release(self, batch: Batch) -> None:
        """7. The source may forget what is now durable in every target."""
        self._sources.release(batch.number)

    @step
    def commit(self, batch: Batch) -> None:
        """8. Returning lets Spark write `commits/N`."""
        self.is_over = self._plan.is_row_by_row and self._sources.are_over(batch.number)
        self.tally.batches += 1
        self.tally.consumed += self.consumed
        self.tally.written.update(self.written)
        self.tally.counts = self._targets.counts
        for table, changes in self.changes.items():
            self.tally.changes.setdefault(table, Counter()).update(changes)
        if self._plan.capture is not None:
            self.tally.held = self._plan.capture.back.held
        self.tally.dead.update(self._counted("dlq"))
        self.tally.dropped.update(self._counted("drop"))
        if self.told is not None:
            self.tally.late.update(self.told.late)
            self.clocks.commit(self._arrived)
            if self.flushes and not self._draining and self._is_last(batch.number):
                self._flush()

    def _is_last(self, number: int) -> bool:
        """Whether no rows come after a batch in a run that reads what there is. After one that is repeated, there may
        be what has come since it was planned."""
        if number <= self._repeats:
            return False
        return self._sources.take_all or brings_nothing(self._store.checkpoint, number)

    def _flush(self) -> None:
        """The next batch, which Spark runs without rows because the watermark moves, closes what is open. If there is
        no such batch in this query, a tick does it."""
        assert self.told is not None
        self._started.wait()
        if self._query is not None and self.told.held.last_deadline is not None:
            move(self._query, self.told.held.last_deadline)

    def _rows_of(self, number: int) -> int | None:
        """How many come to the targets, about. A window gives no more than it holds and is given; a join may."""
        if self._plan.batch_transform is not None or self._spec.transform.join is not None:
            return None
        rows = self._sources.rows_of(number)
        return rows if rows is None or self.told is None else rows + self.told.held.groups

    def _forget(self) -> None:
        """The rows of the batch are no longer needed."""
        self._targets.forget()
        if self._materialised is not None:
            self._materialised.unpersist()
            self._materialised = None

    def _report(self, batch: Batch) -> BatchReport:
        return BatchReport(
            pipeline=self._spec.name,
            number=batch.number,
            consumed=self.consumed,
            written=dict(self.written),
            dead=self._counted("dlq"),
            dropped=self._counted("drop"),
            seconds=dict(self.watch.latest),
            changes=in_all(self.changes) if self._plan.capture else {},
            windows=self.told,
            held=self.tally.held,
            operator="join" if self._spec.transform.join else "window" if self._open else None,
            latest=self.latest,
        )

    def run_in(self, start: Callable[[], StreamingQuery]) -> StreamingQuery:
        """Start the query that calls the runner. Its first call may come before `start` has returned."""
        self._started.clear()
        last = last_plan(self._store.checkpoint)
        self._repeats = -1 if last is None else last
        self._query = start()
        self._started.set()
        return self._query

    def drain(self) -> None:
        """Finish the batch in progress, commit it, and begin no other; then end the query.

        `stop` alone would cut the batch off in the middle.
        """
        assert self._query is not None
        with self._turn:
            self._draining = True
        while self._query.isActive and self.current is not None and not self._store.committed(self.current[1]):
            self._query.awaitTermination(_POLL_SECONDS)  # type: ignore[arg-type]  # it takes fractions
        self._query.stop()

    def _transformed(self, batch: Batch, good: DataFrame) -> Any:
        transform, capture = self._plan.batch_transform, self._plan.capture
        if capture is not None:
            return capture(with_numbers(good), batch.number)
        if transform is None:
            return good
        return transform(with_numbers(good), self._lookups.tables(batch.number, good.sparkSession))

    def _keep_unless_read_once(self, rows: DataFrame, reads_all: list[bool]) -> None:
        """Rows are counted, and bad ones found, whenever Spark reads them."""
        if reads_all != [True] and self._materialised is None:
            self._materialised = rows.persist()
        if not any(reads_all):
            rows.count()

    def _staged(self, batch: Batch, routed: Routed) -> tuple[Any, Seen]:
        """With what Spark has counted on the way."""
        from pyspark.errors import PySparkException

        counted = self._plan.batch_transform is None and self._plan.capture is None
        try:
            return self._targets.stage(batch, routed.produced, self._seen_by_spark, counted=counted)
        except PySparkException as error:
            if self._plan.batch_transform is None or self._policy == "fail" or not is_of_a_row(error):
                raise
            # A transform over a whole batch failed on a row, and does not say on which.
            good, errors = without_culprits(
                wanted(routed.taken), lambda rows: self._transformed(batch, rows), self._plan.origin
            )
            if not errors:
                raise
            self.bad.found(errors)
            produced = self._transformed(batch, good)
            return self._targets.stage(batch, produced, lambda: seen_among(routed.taken), counted=False)

    def _set_aside(self, errors: list[str]) -> None:
        self.bad.found(errors)
        self._fail_if_asked()

    def _fail_if_asked(self) -> None:
        if not (stopping := self._counted("fail")):
            return
        assert self.current is not None
        first, _ = next(placed(self._sources, self.current[1], (bad for bad in self.bad if bad.stage in stopping)))
        source, payload = self._sources.named(first.source), first.payload or b""
        raise BadRowError(
            stage=first.stage,
            position=source.place(first.position, payload) if source and first.position else "",
            reason=first.message or (source.reason(payload) if source else ""),
            others=sum(stopping.values()) - 1,
        )

    def _fate(self, stage: str) -> str:
        """Rows that came late are here only where they are kept."""
        return "dlq" if stage == "late" else self._policy

    def _counted(self, fate: str) -> dict[str, int]:
        """Bad rows by stage, those with this fate."""
        return {stage: rows for stage, rows in self.bad.by_stage().items() if self._fate(stage) == fate}

    def _seen_by_spark(self) -> Seen:
        # Spark may call with the first batch before `start` has returned the query.
        self._started.wait()
        assert self._query is not None
        return seen_by(self._query, len(self._plan.ticks))
