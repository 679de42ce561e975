"""Running a batch pipeline: the same runner as for a stream, until the input that was there is done."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ematix_flow.batch.after import AfterFailed, run_step
from ematix_flow.batch.quality import check_quality
from ematix_flow.config import connect, resolve_connection
from ematix_flow.errors import FlowError
from ematix_flow.job_fields import Retry
from ematix_flow.jobs import BatchPipeline, JobResult
from ematix_flow.result import RunResult
from ematix_flow.secrets import redact_text
from ematix_flow.specs import PipelineSpec
from ematix_flow.state.history import FAILED, new_run_id, recorded_as
from ematix_flow.streams.in_database import Wanted, obstacle, run_in_database, unlike
from ematix_flow.streams.looking import first_rows
from ematix_flow.streams.run import run_spec
from ematix_flow.streams.sources.database.source import DATABASES, DatabaseSource, Looked

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_COUNTS = ("inserted", "updated", "unchanged", "deleted", "closed")
# What a declaration says wrong stays wrong.
_USAGE = 2
_log = logging.getLogger(__name__)


@dataclass
class _Progress:
    """What a run has done, so that an attempt after a failure does not do it again."""

    loaded: dict[str, tuple[str, RunResult]] = field(default_factory=dict)
    """By the name of the stream: path and result."""
    run_id: str = ""
    errors: dict[str, str] = field(default_factory=dict)
    steps: int = 0
    """Of transforms_post, those that are done."""


def sync(pipeline: BatchPipeline, *, spark: SparkSession | None = None) -> JobResult:
    """Tried again as `retry` says, with what is done already left as it is."""
    began, progress, rules = time.monotonic(), _Progress(), pipeline.job.retry or Retry()
    attempt = 1
    while True:
        try:
            result = _attempt(pipeline, progress, began, spark)
            if result.status != FAILED or attempt >= rules.max_attempts:
                return result
            reason = next(iter(result.errors.values()))
        except Exception as error:
            if attempt >= rules.max_attempts or getattr(error, "exit_code", 1) == _USAGE:
                raise
            reason = redact_text(str(error).partition("\n")[0])
        wait = rules.wait_after(attempt)
        facts = {"pipeline": pipeline.name, "attempt": attempt, "wait_seconds": wait, "reason": reason}
        _log.warning("attempt failed", extra=facts)
        time.sleep(wait)
        attempt += 1


def _attempt(pipeline: BatchPipeline, progress: _Progress, began: float, spark: SparkSession | None) -> JobResult:
    """A run of the history: the load, what is checked after it and what is done then."""
    results: list[JobResult] = []

    def work(run_id: str) -> RunResult:
        progress.run_id = run_id
        results.append(_done(pipeline, progress, began, spark))
        return _recorded(results[0], progress)

    recorded_as(pipeline, work)
    return results[0]


def _done(pipeline: BatchPipeline, progress: _Progress, began: float, spark: SparkSession | None) -> JobResult:
    specs = [spec.with_connections(resolve_connection) for spec in pipeline.specs()]
    progress.errors.clear()
    for spec in specs:
        if spec.name not in progress.loaded:
            try:
                progress.loaded[spec.name] = _load(pipeline, spec, spark)
            except FlowError as error:
                if len(specs) == 1:
                    raise
                reason = redact_text(error.found)
                _log.warning("target failed", extra={"pipeline": pipeline.name, "target": spec.name, "reason": reason})
                progress.errors[spec.target_names[0]] = reason
    result = _result(pipeline, progress, time.monotonic() - began)
    if not progress.errors:
        result = replace(result, failed_expectations=check_quality(pipeline, specs, spark))
        _afterwards(pipeline, progress, result, spark)
    return replace(result, errors=dict(progress.errors), duration_seconds=time.monotonic() - began)


def _recorded(result: JobResult, progress: _Progress) -> RunResult:
    """What the history keeps of it: the loads of all targets in one."""
    loads = [load for _, load in progress.loaded.values()]
    return RunResult(
        result.pipeline,
        result.status,
        batches=sum(load.batches for load in loads),
        rows_consumed=sum(load.rows_consumed for load in loads),
        rows_written={name: rows for load in loads for name, rows in load.rows_written.items()},
        row_counts={name: counts for load in loads for name, counts in load.row_counts.items()},
        duration_seconds=result.duration_seconds,
    )


def _load(pipeline: BatchPipeline, spec: PipelineSpec, spark: SparkSession | None) -> tuple[str, RunResult]:
    """The way that it went, and what it did."""
    looked = _looked(pipeline, spec)
    path = _path(pipeline, spec, looked)
    if path == "same_db" and looked is not None:
        return path, run_in_database(spec, looked, _wanted(pipeline))
    return path, run_spec(spec, bounded=True, spark=spark)


def dry_run(pipeline: BatchPipeline, *, spark: SparkSession | None = None) -> JobResult:
    """The source is opened and its columns are looked at; no table is made and no row read."""
    began, spec = time.monotonic(), pipeline.spec().with_connections(resolve_connection)
    path = _path(pipeline, spec, _looked(pipeline, spec))
    looked = _Progress({spec.name: (path, RunResult(spec.name, "dry_run"))})
    return _result(pipeline, looked, time.monotonic() - began)


def _looked(pipeline: BatchPipeline, spec: PipelineSpec) -> Looked | None:
    """The source as it is now, if it is a database. Fails in words if it lacks what the declaration names."""
    source, name = spec.sources[0], spec.source_names[0]
    if source.kind not in DATABASES:
        return None
    looked = DatabaseSource.look(source, connect(source.connection), name)
    read = [pipeline.columns_read(one) for one in pipeline.job.all_targets()]
    named = {of: "column_map" if of != column else "source_table" for one in read for column, of in one.items()}
    time_column = {source.event_time_column: "event_timestamp_column"} if source.event_time_column else {}
    looked.check(name, {**named, **time_column}.items())
    return looked


def preview(pipeline: BatchPipeline, rows: int, *, spark: SparkSession | None = None) -> list[dict[str, Any]]:
    spec = pipeline.spec().with_connections(resolve_connection)
    _looked(pipeline, spec)
    return first_rows(spec, rows, spark, whole=bool(pipeline.job.transforms_pre))


def _wanted(pipeline: BatchPipeline) -> Wanted:
    targets = pipeline.job.all_targets()
    return Wanted({one.target.__table__.full_name: pipeline.columns_read(one) for one in targets}, pipeline.only_orders)


def _path(pipeline: BatchPipeline, spec: PipelineSpec, looked: Looked | None) -> str:
    reason = obstacle(spec, transforms=bool(pipeline.job.transforms_pre))
    if not reason and looked is not None:
        reason = unlike(spec, looked, _wanted(pipeline))
    forced = pipeline.job.force_path
    if forced == "same_db" and reason:
        raise FlowError(
            f'pipeline "{spec.name}": force_path is same_db, but it cannot run in the database: {reason}',
            next_step="leave force_path out, or change what stands in the way",
        )
    return forced or ("cross_db" if reason else "same_db")


def _afterwards(pipeline: BatchPipeline, progress: _Progress, result: JobResult, spark: SparkSession | None) -> None:
    for number, step in enumerate(pipeline.job.transforms_post, 1):
        if number <= progress.steps:
            continue
        try:
            run_step(step, pipeline, result, spark)
        except Exception as error:
            words = redact_text((str(error).splitlines() or [type(error).__name__])[0])
            if not pipeline.job.continue_on_failure_post:
                raise AfterFailed(
                    f'pipeline "{pipeline.name}": transforms_post {number} failed: {words}',
                    next_step="correct it, or set continue_on_failure_post; the rows themselves were written",
                ) from error
            _log.warning("step failed", extra={"pipeline": pipeline.name, "step": number, "reason": words})
            progress.errors[f"transforms_post {number}"] = words
        progress.steps = number


def _result(pipeline: BatchPipeline, progress: _Progress, seconds: float) -> JobResult:
    targets: dict[str, Mapping[str, int]] = {}
    for _, result in progress.loaded.values():
        for name, written in result.rows_written.items():
            # A target that cannot tell has only added rows, as far as anyone knows.
            counts = result.row_counts.get(name) or {"inserted": written}
            targets[name] = {what: counts.get(what, 0) for what in _COUNTS}
    totals: dict[str, Any] = {f"rows_{what}": sum(counts[what] for counts in targets.values()) for what in _COUNTS}
    paths = {path for path, _ in progress.loaded.values()}
    return JobResult(
        pipeline=pipeline.name,
        run_id=progress.run_id or new_run_id(),
        status=FAILED if progress.errors else next((r.status for _, r in progress.loaded.values()), "success"),
        path="same_db" if paths == {"same_db"} else "cross_db",
        duration_seconds=seconds,
        targets=targets,
        **totals,
    )
