"""Running a declared pipeline in this process: the functions that `ematix_flow` exports, with metrics if asked for."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from os import PathLike
from typing import TYPE_CHECKING, Any, Unpack

from ematix_flow.errors import UsageError
from ematix_flow.keywords import Keywords, spec_from_keywords
from ematix_flow.ops.serving import watched
from ematix_flow.result import RunResult
from ematix_flow.specs import PipelineSpec, SparkSettings
from ematix_flow.state.history import recorded
from ematix_flow.streams.backfill import Range
from ematix_flow.streams.run import run_spec
from ematix_flow.toml import load_toml

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run_pipeline(
    config: str | PathLike[str] | None = None,
    config_str: str | None = None,
    *,
    pipeline: str | None = None,
    bounded: bool = False,
    flush: bool = True,
    metrics_port: int | None = None,
    spark: SparkSession | None = None,
    from_: str | datetime | None = None,
    to: str | datetime | None = None,
) -> RunResult:
    """Run a pipeline that is declared in TOML, from a file or from text.

    `pipeline` chooses one of several in the file. With `bounded`, the run ends when the input that existed at the
    start is done; calling it again goes on from the checkpoint. `from_` and `to` read a range of Kafka instead, beside
    the pipeline, as `--from` and `--to` of `flow run` do.
    """
    if (config is None) == (config_str is None):
        raise UsageError(
            "run_pipeline takes a file or a text, and exactly one of them", next_step="pass config= or config_str="
        )
    spec = _chosen(load_toml(config, config_str), pipeline)
    wanted = Range.of(_text(from_), _text(to), spec, bounded=bounded)
    return run_declared(spec, bounded=bounded, flush=flush, metrics_port=metrics_port, spark=spark, wanted=wanted)


def run_streaming_pipeline(  # type: ignore[misc]  # `spark` is also the keyword for the settings of a session
    *,
    bounded: bool = False,
    flush: bool = True,
    spark: SparkSession | SparkSettings | Mapping[str, Any] | None = None,
    from_: str | datetime | None = None,
    to: str | datetime | None = None,
    **declaration: Unpack[Keywords],
) -> RunResult:
    """Run a pipeline that is declared by keywords, the same as those of `@ematix.streaming_pipeline`.

    `spark` is a session to run in, or the settings to make one from.
    """
    session = None
    if isinstance(spark, SparkSettings | Mapping):
        spec = spec_from_keywords(**declaration, spark=spark)
    else:
        spec, session = spec_from_keywords(**declaration), spark
    wanted = Range.of(_text(from_), _text(to), spec, bounded=bounded)
    return run_declared(spec, bounded=bounded, flush=flush, spark=session, wanted=wanted)


def run_declared(
    spec: PipelineSpec,
    *,
    bounded: bool = False,
    flush: bool = True,
    metrics_port: int | None = None,
    spark: SparkSession | None = None,
    wanted: Range | None = None,
) -> RunResult:
    """Run a frozen spec, leave a record of it, and serve its metrics meanwhile if it, or the caller, names a port."""
    port = spec.metrics_port if metrics_port is None else metrics_port
    with watched(spec, port) as watch:
        return recorded(
            spec,
            lambda: run_spec(
                spec,
                bounded=bounded,
                flush=flush,
                spark=spark,
                on_batch=watch.batch,
                on_step=watch.health.step,
                on_start=watch.health.started,
                wanted=wanted,
            ),
        )


def _text(position: str | datetime | None) -> str | None:
    return position.isoformat() if isinstance(position, datetime) else position


def _chosen(specs: tuple[PipelineSpec, ...], name: str | None) -> PipelineSpec:
    if name is None and len(specs) == 1:
        return specs[0]
    for spec in specs:
        if spec.name == name:
            return spec
    known = ", ".join(spec.name for spec in specs)
    found = "the file declares several pipelines" if name is None else f"the file declares no pipeline {name!r}"
    raise UsageError(f"{found}: {known}", next_step="name one of them with pipeline=")
