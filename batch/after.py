"""What is done once the rows of a load are there: SQL, functions and named transforms, each in its own transaction."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ematix_flow import pipelines, transforms
from ematix_flow.batch.live import opened
from ematix_flow.config import connect
from ematix_flow.connections import Connection
from ematix_flow.errors import FlowError
from ematix_flow.jobs import BatchPipeline, FunctionFailed, JobResult
from ematix_flow.secrets import redact_text
from ematix_flow.transforms import Transform, TransformRef

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class AfterFailed(FlowError):
    """What was to be done after a load failed; the rows themselves are in the target."""

    code = "after-failed"


def run_step(step: Any, pipeline: BatchPipeline, result: JobResult, spark: SparkSession | None) -> None:
    """A step of `transforms_post`."""
    if isinstance(step, TransformRef):
        found = transforms.get(step.name)
        step = found if found is not None else pipelines.get(step.name)
    if isinstance(step, BatchPipeline):
        step.sync(spark=spark)
        return
    own = step.target_connection if isinstance(step, Transform) else None
    connection = connect(own or pipeline.job.home)
    if isinstance(step, str):
        with opened(connection, spark) as live:
            live.execute(step)
    else:
        _called(step.function if isinstance(step, Transform) else step, connection, result, spark)


def run_transform(transform: Transform, *, spark: SparkSession | None = None) -> Any:
    """On its own: what a load would tell is None."""
    try:
        return _called(transform.function, connect(transform.target_connection or "default"), None, spark)
    except FlowError:
        raise
    except Exception as error:
        words = redact_text((str(error).splitlines() or [""])[0])
        raise FunctionFailed(
            f'transform "{transform.name}" failed: {type(error).__name__}: {words}',
            next_step=f"correct it at {transform.origin}",
        ) from error


def _called(
    function: Callable[..., Any], connection: Connection, result: JobResult | None, spark: SparkSession | None
) -> Any:
    """With as much as it takes: nothing, an open connection, or that and the result of the load."""
    wanted = [
        parameter
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        and parameter.default is parameter.empty
    ]
    if not wanted:
        return function()
    with opened(connection, spark) as live:
        return function(*(live, result)[: len(wanted)])
