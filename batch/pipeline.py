"""Running a batch pipeline: the same runner as for a stream, until the input that was there is done."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from ematix_flow.batch.after import run_statement
from ematix_flow.config import connect, resolve_connection
from ematix_flow.errors import FlowError
from ematix_flow.jobs import BatchPipeline, JobResult
from ematix_flow.result import RunResult
from ematix_flow.specs import PipelineSpec
from ematix_flow.state.history import recorded
from ematix_flow.streams.in_database import obstacle, run_in_database
from ematix_flow.streams.looking import first_rows
from ematix_flow.streams.run import run_spec
from ematix_flow.streams.sources.database.source import DATABASES, DatabaseSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_COUNTS = ("inserted", "updated", "unchanged", "deleted", "closed")


class AfterFailed(FlowError):
    """What was to be done after a load failed; the rows themselves are in the target."""

    code = "after-failed"


def sync(pipeline: BatchPipeline, *, spark: SparkSession | None = None) -> JobResult:
    began, spec = time.monotonic(), pipeline.spec().with_connections(resolve_connection)
    path = _path(pipeline, spec)
    if path == "same_db":
        of_table = pipeline.job.source_table is not None
        result = recorded(spec, lambda: run_in_database(spec, pipeline.job.column_map, of_table=of_table))
    else:
        result = recorded(spec, lambda: run_spec(spec, bounded=True, spark=spark))
    _afterwards(pipeline)
    return _result(pipeline, result, path, time.monotonic() - began)


def dry_run(pipeline: BatchPipeline, *, spark: SparkSession | None = None) -> JobResult:
    """The source is opened and its columns are looked at; no table is made and no row read."""
    began, spec = time.monotonic(), pipeline.spec().with_connections(resolve_connection)
    path = _path(pipeline, spec)
    for source, name in zip(spec.sources, spec.source_names, strict=True):
        if source.kind in DATABASES:
            DatabaseSource.look(source, connect(source.connection), name)
    return _result(pipeline, RunResult(spec.name, "dry_run"), path, time.monotonic() - began)


def preview(pipeline: BatchPipeline, rows: int, *, spark: SparkSession | None = None) -> list[dict[str, Any]]:
    return first_rows(pipeline.spec().with_connections(resolve_connection), rows, spark)


def _path(pipeline: BatchPipeline, spec: PipelineSpec) -> str:
    reason = obstacle(spec, transforms=bool(pipeline.job.transforms_pre))
    forced = pipeline.job.force_path
    if forced == "same_db" and reason:
        raise FlowError(
            f'pipeline "{spec.name}": force_path is same_db, but it cannot run in the database: {reason}',
            next_step="leave force_path out, or change what stands in the way",
        )
    return forced or ("cross_db" if reason else "same_db")


def _afterwards(pipeline: BatchPipeline) -> None:
    for number, step in enumerate(pipeline.job.transforms_post, 1):
        try:
            if isinstance(step, str):
                run_statement(connect(pipeline.job.target_connection), step)
            else:
                step()
        except Exception as error:
            if pipeline.job.continue_on_failure_post:
                continue
            words = (str(error).splitlines() or [type(error).__name__])[0]
            raise AfterFailed(
                f'pipeline "{pipeline.job.name}": transforms_post {number} failed: {words}',
                next_step="correct it, or set continue_on_failure_post; the rows themselves were written",
            ) from error


def _result(pipeline: BatchPipeline, result: RunResult, path: str, seconds: float) -> JobResult:
    targets: dict[str, Mapping[str, int]] = {}
    for name, written in result.rows_written.items():
        # A target that cannot tell has only added rows, as far as anyone knows.
        counts = result.row_counts.get(name) or {"inserted": written}
        targets[name] = {what: counts.get(what, 0) for what in _COUNTS}
    totals = {f"rows_{what}": sum(counts[what] for counts in targets.values()) for what in _COUNTS}
    return JobResult(
        pipeline=pipeline.job.name,
        run_id=uuid4().hex,
        status=result.status,
        path=path,
        duration_seconds=seconds,
        targets=targets,
        **totals,
    )
