"""Running a declared pipeline in this process: bounded, or until it is told to stop."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from os import PathLike
from typing import TYPE_CHECKING, Any, Unpack

from ematix_flow.config import resolve_connection
from ematix_flow.errors import UsageError
from ematix_flow.keywords import Keywords, spec_from_keywords
from ematix_flow.result import RunResult
from ematix_flow.sinks.opening import open_sink
from ematix_flow.specs import PipelineSpec, SparkSettings
from ematix_flow.state.store import LocalStore, open_store
from ematix_flow.streams.built import refuse_what_is_not_built
from ematix_flow.streams.failures import explained, spark_errors_in_words
from ematix_flow.streams.query import plan, start
from ematix_flow.streams.runner import BatchReport, Drained, Runner, Tally
from ematix_flow.streams.session import session_for
from ematix_flow.streams.sources.base import NothingToInfer, StreamSource
from ematix_flow.streams.sources.opening import open_source
from ematix_flow.streams.stopping import asked_to_stop
from ematix_flow.toml import load_toml

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_log = logging.getLogger(__name__)

# How often the main thread looks whether it should stop.
_POLL_SECONDS = 0.1


def run_pipeline(
    config: str | PathLike[str] | None = None,
    config_str: str | None = None,
    *,
    pipeline: str | None = None,
    bounded: bool = False,
    flush: bool = True,
    metrics_port: int | None = None,
    spark: SparkSession | None = None,
) -> RunResult:
    """Run a pipeline that is declared in TOML, from a file or from text.

    `pipeline` chooses one of several in the file. With `bounded`, the run ends when the input that existed at the
    start is done; calling it again goes on from the checkpoint.
    """
    if (config is None) == (config_str is None):
        raise UsageError(
            "run_pipeline takes a file or a text, and exactly one of them", next_step="pass config= or config_str="
        )
    specs = load_toml(config, config_str)
    return run_spec(choose(specs, pipeline), bounded=bounded, flush=flush, metrics_port=metrics_port, spark=spark)


def run_streaming_pipeline(  # type: ignore[misc]  # `spark` is also the keyword for the settings of a session
    *,
    bounded: bool = False,
    flush: bool = True,
    spark: SparkSession | SparkSettings | Mapping[str, Any] | None = None,
    **declaration: Unpack[Keywords],
) -> RunResult:
    """Run a pipeline that is declared by keywords, the same as those of `@ematix.streaming_pipeline`.

    `spark` is a session to run in, or the settings to make one from.
    """
    if isinstance(spark, SparkSettings | Mapping):
        return run_spec(spec_from_keywords(**declaration, spark=spark), bounded=bounded, flush=flush)
    return run_spec(spec_from_keywords(**declaration), bounded=bounded, flush=flush, spark=spark)


def choose(specs: tuple[PipelineSpec, ...], name: str | None) -> PipelineSpec:
    if name is None and len(specs) == 1:
        return specs[0]
    for spec in specs:
        if spec.name == name:
            return spec
    known = ", ".join(spec.name for spec in specs)
    found = "the file declares several pipelines" if name is None else f"the file declares no pipeline {name!r}"
    raise UsageError(f"{found}: {known}", next_step="name one of them with pipeline=")


def run_spec(
    spec: PipelineSpec,
    *,
    bounded: bool = False,
    flush: bool = True,
    metrics_port: int | None = None,
    spark: SparkSession | None = None,
    on_batch: Callable[[BatchReport], None] = lambda _: None,
    stop: threading.Event | None = None,
) -> RunResult:
    """Run a frozen spec until its input is done (`bounded`), a signal arrives, or `stop` is set.

    `flush` closes open windows at the end of a bounded run; without an operator there are none.
    """
    began = time.monotonic()
    if metrics_port is not None:
        spec = spec.model_copy(update={"metrics_port": metrics_port})
    spec = spec.with_connections(resolve_connection)
    refuse_what_is_not_built(spec)
    sinks = {name: open_sink(target, name) for name, target in zip(spec.target_names, spec.targets, strict=True)}
    tally = Tally()
    with closing(open_store(spec)) as store, asked_to_stop(stop) as asked:
        polling = {"spark.sql.streaming.pollingDelay": f"{spec.idle_pause_ms}ms"}
        session = session_for(spec.spark, spark=spark, conf=polling)
        with spark_errors_in_words():
            source = _open_when_there_is_input(spec, store, session, asked, bounded=bounded)
            if source is not None:
                planned = plan(spec, source, session)
                runner = Runner(spec, source, sinks, store, planned, on_batch)
                tally = runner.tally
                _run(spec, runner, planned.rows, store, asked, bounded=bounded)
        status = "stopped" if asked.is_set() else "success"
    return _result(spec, tally, status, time.monotonic() - began)


def _run(
    spec: PipelineSpec, runner: Runner, rows: DataFrame, store: LocalStore, asked: threading.Event, *, bounded: bool
) -> None:
    from pyspark.errors import StreamingQueryException

    query = start(spec, rows, runner, str(store.checkpoint), bounded=bounded)
    runner.bind(query)
    try:
        while not query.awaitTermination(_POLL_SECONDS):  # type: ignore[arg-type]  # it takes fractions
            if asked.is_set():
                runner.drain()
    except StreamingQueryException as error:
        if isinstance(runner.failure, Drained):
            return
        raise explained(runner.failure or error, *(runner.current or ("plan", 0))) from error


def _open_when_there_is_input(
    spec: PipelineSpec, store: LocalStore, session: SparkSession, asked: threading.Event, *, bounded: bool
) -> StreamSource | None:
    """Without a schema, a daemon waits for the first input to infer it from; a bounded run has nothing to do."""
    while True:
        try:
            return open_source(spec, 0, store, session)
        except NothingToInfer as error:
            if bounded or asked.wait(spec.idle_pause_ms / 1000):
                return None
            _log.info("waiting", extra={"pipeline": spec.name, "reason": error.found})


def _result(spec: PipelineSpec, tally: Tally, status: str, seconds: float) -> RunResult:
    return RunResult(
        pipeline=spec.name,
        status=status,
        batches=tally.batches,
        rows_consumed=tally.consumed,
        rows_written={name: tally.written[name] for name in spec.target_names},
        dlq_rows=dict(tally.dead),
        dropped_rows=dict(tally.dropped),
        duration_seconds=seconds,
    )
