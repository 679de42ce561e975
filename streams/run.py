"""Running a declared pipeline in this process: bounded, or until it is told to stop."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from ematix_flow.config import resolve_connection
from ematix_flow.result import RunResult
from ematix_flow.sinks.opening import open_sink
from ematix_flow.specs import PipelineSpec
from ematix_flow.state.definition import Definition
from ematix_flow.state.kernel import NO_WATERMARK
from ematix_flow.state.store import Store, open_store
from ematix_flow.streams.built import refuse_what_is_not_built
from ematix_flow.streams.failures import explained, spark_errors_in_words
from ematix_flow.streams.functions import register
from ematix_flow.streams.lookups import Lookups
from ematix_flow.streams.needs import jar_groups_of
from ematix_flow.streams.query import Plan, plan, start
from ematix_flow.streams.runner import BatchReport, Drained, Runner, Tally
from ematix_flow.streams.session import WITH_STATE, session_for
from ematix_flow.streams.sources.base import NothingToInfer, StreamSource
from ematix_flow.streams.sources.opening import open_source
from ematix_flow.streams.stopping import asked_to_stop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

IsIdle = Callable[[], bool]
OpenSource = Callable[[PipelineSpec, int, Store, "SparkSession"], StreamSource]

_log = logging.getLogger(__name__)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# How often the main thread looks whether it should stop.
_POLL_SECONDS = 0.1


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
) -> RunResult:
    """Run a frozen spec until its input is done (`bounded`), a signal arrives, or `stop` is set.

    `flush` closes open windows at the end of a bounded run; without an operator there are none. Without it, event time
    goes on to `clock`, as with a row of that time. `store` and `opening` take the place of the declared ones; a store
    that is given stays open.
    `on_start` is told how to find out whether the pipeline has nothing to do.
    """
    began = time.monotonic()
    spec = spec.with_connections(resolve_connection)
    refuse_what_is_not_built(spec)
    sinks = {name: open_sink(target, name) for name, target in zip(spec.target_names, spec.targets, strict=True)}
    tally, watermark = Tally(), None
    with _opened(spec, store) as memory, asked_to_stop(stop) as asked:
        conf = {"spark.sql.streaming.pollingDelay": f"{spec.idle_pause_ms}ms"}
        conf |= WITH_STATE if spec.transform.window or spec.transform.join else {}
        session = session_for(spec.spark, spark=spark, conf=conf, jar_groups=jar_groups_of(spec))
        with spark_errors_in_words():
            opened = _open_when_there_is_input(spec, opening, memory, session, asked, on_start, bounded=bounded)
            if opened is not None:
                register(spec.transform.udfs, session)
                lookups = Lookups(spec.transform.lookups, memory, session)
                planned = plan(spec, opened, session, memory)
                memory.agree(Definition.of(spec, planned.operator))
                runner = Runner(spec, opened, sinks, memory, planned, lookups, on_batch, on_step)
                tally = runner.tally
                _run(spec, runner, planned, memory, asked, on_start, bounded=bounded)
                if bounded and not asked.is_set() and _moved_at_the_end(spec, runner, planned, flush, clock):
                    _run(spec, runner, planned, memory, asked, on_start, bounded=bounded)
                watermark = runner.watermark
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
    from pyspark.errors import StreamingQueryException

    query = runner.run_in(lambda: start(spec, planned.rows, runner, store, bounded=bounded))
    on_start(lambda: str(query.status["message"]).startswith("Waiting"))
    try:
        while not query.awaitTermination(_POLL_SECONDS):  # type: ignore[arg-type]  # it takes fractions
            if asked.is_set():
                runner.drain()
            elif not bounded and runner.quiet_seconds * 1000 > spec.watermark.source_idleness_ms:
                _moved_to_the_last_deadline(runner, planned)
    except StreamingQueryException as error:
        if isinstance(runner.failure, Drained):
            return
        raise explained(runner.failure or error, *(runner.current or ("plan", 0))) from error
    # Spark knows the name of a query for a moment longer than the query lasts, and allows no other of that name.
    while any(active.id == query.id for active in planned.rows.sparkSession.streams.active):
        time.sleep(_POLL_SECONDS)


def _moved_to_the_last_deadline(runner: Runner, planned: Plan) -> bool:
    """Let a tick close what is open, if anything is. It moves the watermark no further than that, because the watermark
    is kept, and newer rows must not be late for it."""
    return runner.told is not None and _moved(runner, planned, runner.told.held.last_deadline)


def _moved_at_the_end(spec: PipelineSpec, runner: Runner, planned: Plan, flush: bool, clock: datetime | None) -> bool:
    if flush:
        return _moved_to_the_last_deadline(runner, planned)
    lateness = timedelta(milliseconds=spec.watermark.lateness_ms)
    return clock is not None and _moved(runner, planned, (clock - lateness - _EPOCH) // timedelta(microseconds=1))


def _moved(runner: Runner, planned: Plan, watermark: int | None) -> bool:
    if planned.ticks is None or watermark is None or (runner.watermark is not None and watermark <= runner.watermark):
        return False
    planned.ticks.move(watermark)
    return True


def _open_when_there_is_input(
    spec: PipelineSpec,
    opening: OpenSource,
    store: Store,
    session: SparkSession,
    asked: threading.Event,
    on_start: Callable[[IsIdle], None],
    *,
    bounded: bool,
) -> StreamSource | None:
    """Without a schema, a daemon waits for the first input to infer it from; a bounded run has nothing to do."""
    while True:
        try:
            return opening(spec, 0, store, session)
        except NothingToInfer as error:
            on_start(lambda: True)
            if bounded or asked.wait(spec.idle_pause_ms / 1000):
                return None
            _log.info("waiting", extra={"pipeline": spec.name, "reason": error.found})


def _result(spec: PipelineSpec, tally: Tally, status: str, watermark: int | None, seconds: float) -> RunResult:
    return RunResult(
        pipeline=spec.name,
        status=status,
        batches=tally.batches,
        rows_consumed=tally.consumed,
        rows_written={name: tally.written[name] for name in spec.target_names},
        row_counts={name: dict(counts) for name, counts in tally.counts.items()},
        late_rows=dict(tally.late),
        dlq_rows=dict(tally.dead),
        dropped_rows=dict(tally.dropped),
        watermark=None if watermark in (None, NO_WATERMARK) else _EPOCH + timedelta(microseconds=watermark),
        duration_seconds=seconds,
    )
