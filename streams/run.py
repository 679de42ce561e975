"""Running a declared pipeline in this process: bounded, or until it is told to stop."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from ematix_flow.config import resolve_connection
from ematix_flow.result import RunResult
from ematix_flow.sinks.base import NeedsRows, Sink
from ematix_flow.sinks.opening import dead_letter_topic, open_sink
from ematix_flow.specs import PipelineSpec
from ematix_flow.state.definition import Definition
from ematix_flow.state.kernel import NO_WATERMARK
from ematix_flow.state.rewinding import begin_again
from ematix_flow.state.store import Store, open_beside, open_store
from ematix_flow.streams.anew import begin_anew
from ematix_flow.streams.backfill import Range
from ematix_flow.streams.built import refuse_what_is_not_built
from ematix_flow.streams.change_tables import by_key, one_by_one, with_tables
from ematix_flow.streams.failures import explained, is_slow_start, let_go, spark_errors_in_words
from ematix_flow.streams.functions import register, register_aggregates
from ematix_flow.streams.lookups import Lookups
from ematix_flow.streams.needs import jar_groups_of
from ematix_flow.streams.query import Plan, plan, start
from ematix_flow.streams.runner import BatchReport, Drained, Runner, Tally, in_all
from ematix_flow.streams.session import WITH_CHANGES, WITH_PAYLOADS, WITH_RECORDS, WITH_STATE, session_for
from ematix_flow.streams.source_order import note_order
from ematix_flow.streams.sources.base import NothingToInfer, StreamSource
from ematix_flow.streams.sources.opening import open_source
from ematix_flow.streams.sources.several import Sources
from ematix_flow.streams.stopping import asked_to_stop

if TYPE_CHECKING:
    from pyspark.errors import StreamingQueryException
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

IsIdle = Callable[[], bool]
OpenSource = Callable[[PipelineSpec, int, Store, "SparkSession"], StreamSource]
"""By its place among the sources of the pipeline."""

_log = logging.getLogger(__name__)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# How often the main thread looks whether it should stop.
_POLL_SECONDS = 0.1
# Spark waits ten seconds for the Python process that plans the batches of a source, which a busy machine may not give.
_STARTS = 3


@dataclass(frozen=True)
class Watching:
    """What a run tells while it goes on."""

    on_batch: Callable[[BatchReport], None] = lambda _: None
    on_step: Callable[[str, int], None] = lambda _step, _batch: None
    on_start: Callable[[IsIdle], None] = lambda _is_idle: None


def run_spec(
    spec: PipelineSpec,
    *,
    bounded: bool = False,
    flush: bool = True,
    clock: datetime | None = None,
    spark: SparkSession | None = None,
    store: Store | None = None,
    opening: OpenSource = open_source,
    on_batch: Callable[[BatchReport], None] = lambda _: None,
    on_step: Callable[[str, int], None] = lambda _step, _batch: None,
    on_start: Callable[[IsIdle], None] = lambda _is_idle: None,
    stop: threading.Event | None = None,
    wanted: Range | None = None,
) -> RunResult:
    """Run a frozen spec until its input is done (`bounded`), a signal arrives, or `stop` is set.

    `flush` closes open windows at the end of a bounded run; without an operator there are none. Without it, event time
    goes on to `clock`, as with a row of that time. `store` and `opening` take the place of the declared ones; a store
    that is given stays open.
    `on_start` is told how to find out whether the pipeline has nothing to do. With `wanted`, that range is read, beside
    the pipeline.
    """
    from ematix_flow.streams.stages import run_stages

    spec = by_key(spec.with_connections(resolve_connection))
    refuse_what_is_not_built(spec)
    ending = Ending(bounded, flush, clock)
    watching = Watching(on_batch, on_step, on_start)
    with asked_to_stop(stop) as asked:
        if spec.transform.join is not None and spec.transform.window is not None:
            return run_stages(spec, ending, watching, asked, spark)
        if wanted is not None:
            with closing(open_beside(spec, f"backfill {wanted}")) as memory:
                memory.publish = dead_letter_topic(spec)
                spec = one_by_one(wanted.of_sources(spec))
                result = run_stage(spec, memory, wanted.opening, open_sinks(spec), ending, watching, asked, spark)
                # One that was interrupted goes on; one that is done can be done again.
                if not asked.is_set():
                    begin_again(memory)
                return result
        if store is None:
            begin_anew(spec)
        with _opened(spec, store) as memory:
            memory.publish = dead_letter_topic(spec)
            return run_stage(spec, memory, opening, open_sinks(spec), ending, watching, asked, spark)


@dataclass(frozen=True)
class Ending:
    """When a run is over, and what then becomes of what is open."""

    bounded: bool
    flush: bool
    clock: datetime | None


def open_sinks(spec: PipelineSpec) -> dict[str, Sink]:
    if spec.transform.cdc is not None and spec.transform.cdc.many:
        # Each table has its own.
        return {}
    targets = zip(spec.target_names, spec.targets, strict=True)
    return {name: open_sink(target, name, spec.delivery, spec.transform.cdc) for name, target in targets}


def run_stage(
    spec: PipelineSpec,
    memory: Store,
    opening: OpenSource,
    sinks: Mapping[str, Sink],
    ending: Ending,
    watching: Watching,
    asked: threading.Event,
    spark: SparkSession | None,
) -> RunResult:
    """One query; most pipelines are one. Its connections have been looked up."""
    began, bounded = time.monotonic(), ending.bounded
    tally, watermark = Tally(), None
    conf = {"spark.sql.streaming.pollingDelay": f"{spec.idle_pause_ms}ms"}
    if operator := spec.transform.join or spec.transform.window:
        with_payloads = operator.late_data == "dlq" or any(source.kind == "kafka" for source in spec.sources)
        conf |= WITH_STATE | (WITH_PAYLOADS if with_payloads else {})
    elif any(source.kind == "kafka" for source in spec.sources):
        conf |= WITH_RECORDS
    conf |= WITH_CHANGES if spec.transform.cdc else {}
    session = session_for(spec.spark, spark=spark, conf=conf, jar_groups=jar_groups_of(spec))
    with spark_errors_in_words():
        opened = _open_when_there_is_input(spec, opening, memory, session, asked, watching.on_start, bounded=bounded)
        if opened is not None:
            register(spec.transform.udfs, session)
            register_aggregates(spec.transform.aggregate_udfs, spec.transform.sql, session)
            lookups = Lookups(spec.transform.lookups, memory, session)

            def begun(*, one_by_one: bool) -> tuple[Plan, Runner]:
                planned = plan(spec, opened, session, memory, sinks, one_by_one=one_by_one)
                planned = replace(planned, one_by_one=one_by_one)
                memory.agree(Definition.of(spec, planned.operator))
                note_order(planned.rows, memory)
                told = watching.on_batch, watching.on_step
                runner = Runner(spec, opened, sinks, memory, planned, lookups, *told, tally)
                runner.flushes = bounded and ending.flush
                _run(spec, runner, planned, memory, asked, watching.on_start, bounded=bounded)
                return planned, runner

            try:
                planned, runner = begun(one_by_one=False)
            except NeedsRows:
                # The batch, of which nothing is visible, is planned again with the same rows.
                planned, runner = begun(one_by_one=True)
            if bounded and not asked.is_set() and _moved_at_the_end(spec, runner, ending):
                _run(spec, runner, planned, memory, asked, watching.on_start, bounded=bounded)
            watermark = runner.watermark
            if bounded and planned.capture is not None and not asked.is_set():
                planned.capture.back.at_the_end(spec.name)
    status = "stopped" if asked.is_set() else "success"
    return _result(spec, tally, status, watermark, time.monotonic() - began)


@contextmanager
def _opened(spec: PipelineSpec, given: Store | None) -> Iterator[Store]:
    if given is not None:
        yield given
        return
    with closing(open_store(spec)) as store:
        yield store


def _run(
    spec: PipelineSpec,
    runner: Runner,
    planned: Plan,
    store: Store,
    asked: threading.Event,
    on_start: Callable[[IsIdle], None],
    *,
    bounded: bool,
) -> None:
    before = runner.current
    for left in reversed(range(_STARTS)):
        query = runner.run_in(lambda: start(spec, runner.rows, runner, store, bounded=bounded))
        on_start(lambda query=query: str(query.status["message"]).startswith("Waiting"))  # type: ignore[misc]
        failure = _ended(query, runner, asked, bounded=bounded)
        if isinstance(runner.failure, Drained):
            return
        if NeedsRows.is_in(runner.failure):
            let_go(runner.failure)
            _forgotten(query, planned)
            raise NeedsRows
        untouched = runner.failure is None and runner.current == before
        if failure is not None and not (left and untouched and is_slow_start(failure)):
            let_go(runner.failure)
            raise explained(runner.failure or failure, *(runner.current or ("plan", 0))) from failure
        _forgotten(query, planned)
        if failure is None or asked.is_set():
            return
        _log.warning("worker did not start in time", extra={"pipeline": spec.name, "start": _STARTS - left})


def _ended(
    query: StreamingQuery, runner: Runner, asked: threading.Event, *, bounded: bool
) -> StreamingQueryException | None:
    """Wait for the end of a query. Gives what ended it, if that was a failure."""
    from pyspark.errors import StreamingQueryException

    try:
        while not query.awaitTermination(_POLL_SECONDS):  # type: ignore[arg-type]  # it takes fractions
            if asked.is_set() or runner.is_over:
                runner.drain()
            elif not bounded and runner.told is not None:
                runner.clocks.tend(runner.told.held.last_deadline)
    except StreamingQueryException as error:
        return error
    return None


def _forgotten(query: StreamingQuery, planned: Plan) -> None:
    """Spark knows the name of a query for a moment longer than the query lasts, and allows no other of that name."""
    while any(active.id == query.id for active in planned.rows.sparkSession.streams.active):
        time.sleep(_POLL_SECONDS)


def _moved_at_the_end(spec: PipelineSpec, runner: Runner, ending: Ending) -> bool:
    if runner.told is None:
        return False
    if ending.flush:
        return runner.clocks.move(runner.told.held.last_deadline)
    if ending.clock is None:
        return False
    lateness = timedelta(milliseconds=spec.watermark.lateness_ms)
    return runner.clocks.move((ending.clock - lateness - _EPOCH) // timedelta(microseconds=1))


def _open_when_there_is_input(
    spec: PipelineSpec,
    opening: OpenSource,
    store: Store,
    session: SparkSession,
    asked: threading.Event,
    on_start: Callable[[IsIdle], None],
    *,
    bounded: bool,
) -> Sources | None:
    """Without a schema, a daemon waits for the first input to infer it from. A bounded run without any input has
    nothing to do; one that has some, but not of every source, cannot know the columns."""
    while True:
        opened: list[StreamSource] = []
        missing: list[NothingToInfer] = []
        for place in range(len(spec.sources)):
            try:
                opened.append(opening(spec, place, store, session))
            except NothingToInfer as error:
                missing.append(error)
        if not missing:
            return Sources(opened)
        on_start(lambda: True)
        if bounded and opened:
            raise missing[0]
        if bounded or asked.wait(spec.idle_pause_ms / 1000):
            return None
        _log.info("waiting", extra={"pipeline": spec.name, "reason": missing[0].found})


def _result(spec: PipelineSpec, tally: Tally, status: str, watermark: int | None, seconds: float) -> RunResult:
    names = with_tables(spec).target_names
    return RunResult(
        pipeline=spec.name,
        status=status,
        batches=tally.batches,
        rows_consumed=tally.consumed,
        rows_written={name: tally.written[name] for name in dict.fromkeys([*names, *tally.written])},
        row_counts={name: dict(counts) for name, counts in tally.counts.items()},
        late_rows=dict(tally.late),
        dlq_rows=dict(tally.dead),
        dropped_rows=dict(tally.dropped),
        changes=in_all(tally.changes) if spec.transform.cdc else {},
        changes_by_table={table: in_all({table: counts}) for table, counts in tally.changes.items() if table},
        held_changes=tally.held.changes,
        watermark=None if watermark in (None, NO_WATERMARK) else _moment(watermark),
        duration_seconds=seconds,
    )


def _moment(micros: int) -> datetime:
    """The end of the last window of the year 9999 is one that `datetime` does not have."""
    return _EPOCH + min(timedelta(microseconds=micros), datetime.max.replace(tzinfo=UTC) - _EPOCH)
