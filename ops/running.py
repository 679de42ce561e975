"""Runs one pipeline for the command line: signals, progress, log events, and the result in words."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING

from ematix_flow.config import resolve_connection
from ematix_flow.ops.java import java_died
from ematix_flow.ops.output import as_json, by_name, counted, table
from ematix_flow.ops.progress import Progress
from ematix_flow.ops.serving import watched
from ematix_flow.ops.settings import Settings
from ematix_flow.ops.supervisor import may_pass
from ematix_flow.result import RunResult
from ematix_flow.sinks.opening import sink_type
from ematix_flow.specs import PipelineSpec
from ematix_flow.state.history import recorded
from ematix_flow.streams.backfill import Range
from ematix_flow.streams.built import refuse_what_is_not_built
from ematix_flow.streams.sources.opening import source_type
from ematix_flow.streams.stopping import asked_to_stop

if TYPE_CHECKING:
    from ematix_flow.streams.runner import BatchReport

_log = logging.getLogger(__name__)


def run(
    spec: PipelineSpec,
    settings: Settings,
    *,
    bounded: bool,
    flush: bool = True,
    metrics_port: int | None = None,
    restarts: int = 0,
    wanted: Range | None = None,
) -> RunResult:
    """Until the input is done (`bounded`), or until SIGTERM or SIGINT: then the batch in progress is finished first."""
    refuse_what_cannot_run(spec)
    port = spec.metrics_port if metrics_port is None else metrics_port
    with (
        asked_to_stop() as stop,
        watched(spec, port, restarts=restarts) as watch,
        Progress(spec, settings) as progress,
    ):
        if watch.url is not None:
            progress.tell(f"metrics on {watch.url}")
        # After the signals: loading takes a moment, and a signal must not be lost in it.
        from ematix_flow.streams.run import run_spec

        def on_batch(report: BatchReport) -> None:
            watch.batch(report)
            _log.info("batch", extra=_batch_facts(report))
            progress.batch(report)

        def on_start(is_idle: Callable[[], bool]) -> None:
            watch.health.started(is_idle)
            progress.started()

        def tell() -> None:
            stop.wait()
            if not over.is_set():
                progress.note("asked to stop, finishing what is in progress ...")

        def work() -> RunResult:
            try:
                return run_spec(
                    spec,
                    bounded=bounded,
                    flush=flush,
                    on_batch=on_batch,
                    on_step=watch.health.step,
                    on_start=on_start,
                    stop=stop,
                    wanted=wanted,
                )
            except Exception as error:
                failure = java_died() if may_pass(error) else None
                code = getattr(failure or error, "code", "unexpected")
                _log.info("ended", extra={"pipeline": spec.name, "status": "failed", "code": code})
                if failure is not None:
                    raise failure from error
                raise

        over = threading.Event()
        threading.Thread(target=tell, daemon=True).start()
        _log.info("started", extra={"pipeline": spec.name, "bounded": bounded, "pid": os.getpid()})
        try:
            result = recorded(spec, work)
        finally:
            over.set()
        _log.info("ended", extra=_result_facts(result))
    return result


def refuse_what_cannot_run(spec: PipelineSpec) -> None:
    """At once, before Spark is started for nothing."""
    known = spec.with_connections(resolve_connection)
    refuse_what_is_not_built(known)
    for source in known.sources:
        source_type(source)
    for target in known.targets:
        sink_type(target)


def result_text(result: RunResult, spec: PipelineSpec) -> str:
    ended = "stopped as asked" if result.status == "stopped" else "done"
    head = f"{result.pipeline}: {ended}, {counted(result.batches, 'batch')} in {result.duration_seconds:.1f} s"
    if not result.batches:
        return f"{head}; there was nothing new to read"
    rows = [["rows read", f"{result.rows_consumed:,}"]]
    rows += [["rows written", f"{count:,} to {target}"] for target, count in result.rows_written.items()]
    for name, changes in {"": result.changes, **result.changes_by_table}.items():
        if found := {what: number for what, number in changes.items() if number}:
            rows.append([f"changes {name}".rstrip(), by_name(found)])
    if result.held_changes:
        rows.append(["held back", f"{result.held_changes:,} changes, whose transactions are not complete"])
    if late := sum(result.late_rows.values()):
        rows.append(["late", f"{late:,} ({by_name(result.late_rows)})"])
    if dropped := sum(result.dropped_rows.values()):
        rows.append(["dropped", f"{dropped:,} ({by_name(result.dropped_rows)})"])
    if dead := sum(result.dlq_rows.values()):
        rows.append(["dead letters", f"{dead:,} ({by_name(result.dlq_rows)}), {_kept(spec)}"])
    if result.watermark is not None:
        rows.append(["watermark", result.watermark.isoformat()])
    return f"{head}\n{table(rows, indent='  ')}"


def result_json(result: RunResult) -> str:
    return as_json(asdict(result))


def _kept(spec: PipelineSpec) -> str:
    if spec.dead_letter_topic is not None and spec.dlq_store != "table":
        return f"in topic {spec.dead_letter_topic}"
    return f"see `flow dlq list {spec.name}`"


def _batch_facts(report: BatchReport) -> dict[str, object]:
    bad = {f"bad_{stage}": count for stage, count in report.bad.items()}
    steps = {f"{step}_seconds": round(took, 3) for step, took in report.seconds.items()}
    seen = {
        "pipeline": report.pipeline,
        "batch": report.number,
        "consumed": report.consumed,
        "written": sum(report.written.values()),
    }
    return {**seen, **bad, **steps}


def _result_facts(result: RunResult) -> dict[str, object]:
    counts = {"batches": result.batches, "consumed": result.rows_consumed, "written": sum(result.rows_written.values())}
    aside = {"dead_letters": sum(result.dlq_rows.values()), "dropped": sum(result.dropped_rows.values())}
    seconds = round(result.duration_seconds, 3)
    return {"pipeline": result.pipeline, "status": result.status, **counts, **aside, "seconds": seconds}
