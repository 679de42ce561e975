"""The keyword door: the flat keywords of a decorator or a call become one `PipelineSpec`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal, TypedDict, Unpack, get_args, get_type_hints

from pydantic import ValidationError

from ematix_flow.connections import Connection
from ematix_flow.errors import DeclarationError, Problem
from ematix_flow.problems import Loc, Spelling, arranged, problems_of, unknown_key
from ematix_flow.specs import (
    CDC,
    Join,
    Lookup,
    PipelineSpec,
    Source,
    SparkSettings,
    StateStore,
    TableRef,
    Target,
    Watermark,
    Window,
)
from ematix_flow.udf import AggregateUdf, ScalarUdf


class At:
    """The place in the spec that a keyword fills."""

    def __init__(self, *loc: str | int) -> None:
        self.loc: Loc = loc


class Keywords(TypedDict, total=False):
    """Every keyword of `@ematix.streaming_pipeline` and `run_streaming_pipeline`, and the place each one fills."""

    name: Annotated[str, At("name")]
    source: Annotated[str | Connection | None, At("sources", 0, "connection")]
    source_query: Annotated[str | None, At("sources", 0, "query")]
    source_name: Annotated[str | None, At("sources", 0, "name")]
    schema: Annotated[str | None, At("sources", 0, "schema")]
    event_time_column: Annotated[str | None, At("sources", 0, "event_time_column")]
    max_rows_per_batch: Annotated[int | None, At("sources", 0, "max_rows_per_batch")]
    max_files_per_batch: Annotated[int | None, At("sources", 0, "max_files_per_batch")]
    on_data_loss: Annotated[str | None, At("sources", 0, "on_data_loss")]
    start: Annotated[str | int | datetime | None, At("sources", 0, "start")]
    change_feed: Annotated[bool | None, At("sources", 0, "change_feed")]
    snapshot: Annotated[bool | None, At("sources", 0, "snapshot")]
    incremental_column: Annotated[str | None, At("sources", 0, "incremental_column")]
    source_keys: Annotated[Sequence[str] | None, At("sources", 0, "keys")]
    lookback: Annotated[int | None, At("sources", 0, "lookback")]
    source_csv_delimiter: Annotated[str | None, At("sources", 0, "csv_delimiter")]
    source_csv_header: Annotated[bool | None, At("sources", 0, "csv_header")]
    source_csv_quote: Annotated[str | None, At("sources", 0, "csv_quote")]
    source_csv_escape: Annotated[str | None, At("sources", 0, "csv_escape")]
    source_csv_null_value: Annotated[str | None, At("sources", 0, "csv_null_value")]
    sources: Annotated[Sequence[Source] | None, At("sources")]
    target: Annotated[str | Connection | None, At("targets", 0, "connection")]
    target_table: Annotated[tuple[str, str] | str | TableRef | type | None, At("targets", 0, "table")]
    target_topic: Annotated[str | None, At("targets", 0, "topic")]
    target_queue: Annotated[str | None, At("targets", 0, "queue")]
    target_exchange: Annotated[str | None, At("targets", 0, "exchange")]
    target_routing_key: Annotated[str | None, At("targets", 0, "routing_key")]
    target_stream: Annotated[str | None, At("targets", 0, "stream")]
    target_key_prefix: Annotated[str | None, At("targets", 0, "key_prefix")]
    target_prefix: Annotated[str | None, At("targets", 0, "prefix")]
    target_partition_by: Annotated[Sequence[str] | None, At("targets", 0, "partition_by")]
    target_partition_key_prefix: Annotated[str | None, At("targets", 0, "partition_key_prefix")]
    target_partition_key_column: Annotated[str | None, At("targets", 0, "partition_key_column")]
    target_message_key_column: Annotated[str | None, At("targets", 0, "message_key_column")]
    target_headers_column: Annotated[str | None, At("targets", 0, "headers_column")]
    target_partition_column: Annotated[str | None, At("targets", 0, "partition_column")]
    target_topic_column: Annotated[str | None, At("targets", 0, "topic_column")]
    target_schema_registration: Annotated[
        Literal["off", "check", "register"] | None, At("targets", 0, "schema_registration")
    ]
    target_primary_key: Annotated[Sequence[str] | None, At("targets", 0, "primary_key")]
    target_parquet_compression: Annotated[str | None, At("targets", 0, "parquet_compression")]
    target_csv_delimiter: Annotated[str | None, At("targets", 0, "csv_delimiter")]
    target_csv_header: Annotated[bool | None, At("targets", 0, "csv_header")]
    target_csv_quote: Annotated[str | None, At("targets", 0, "csv_quote")]
    target_csv_escape: Annotated[str | None, At("targets", 0, "csv_escape")]
    target_csv_null_value: Annotated[str | None, At("targets", 0, "csv_null_value")]
    mode: Annotated[Literal["append", "merge", "truncate", "scd1", "scd2"] | None, At("targets", 0, "mode")]
    keys: Annotated[Sequence[str] | None, At("targets", 0, "keys")]
    update_columns: Annotated[Sequence[str] | None, At("targets", 0, "update_columns")]
    compare_columns: Annotated[Sequence[str] | None, At("targets", 0, "compare_columns")]
    handle_deletes: Annotated[Literal["hard", "soft"] | None, At("targets", 0, "handle_deletes")]
    ttl: Annotated[timedelta | float | str | None, At("targets", 0, "ttl")]
    on_drift: Annotated[Literal["error", "evolve", "ignore"] | None, At("targets", 0, "on_drift")]
    targets: Annotated[Sequence[Target] | None, At("targets")]
    transform_sql: Annotated[str | None, At("transform", "sql")]
    transform_on_error: Annotated[Literal["fail", "drop", "dlq"] | None, At("transform", "on_error")]
    dialect: Annotated[Literal["spark", "duckdb", "datafusion"] | None, At("transform", "dialect")]
    lookups: Annotated[Mapping[str, Lookup] | None, At("transform", "lookups")]
    window: Annotated[Window | None, At("transform", "window")]
    join: Annotated[Join | None, At("transform", "join")]
    cdc: Annotated[CDC | None, At("transform", "cdc")]
    udfs: Annotated[Sequence[ScalarUdf] | None, At("transform", "udfs")]
    aggregate_udfs: Annotated[Sequence[AggregateUdf] | None, At("transform", "aggregate_udfs")]
    state_store: Annotated[StateStore | None, At("state_store")]
    watermark: Annotated[Watermark | None, At("watermark")]
    dead_letter_topic: Annotated[str | None, At("dead_letter_topic")]
    dlq_store: Annotated[Literal["auto", "topic", "table"] | None, At("dlq_store")]
    dlq_max_attempts: Annotated[int | None, At("dlq_max_attempts")]
    delivery: Annotated[Literal["at_least_once", "exactly_once"] | None, At("delivery")]
    trigger_interval_ms: Annotated[int | None, At("trigger_interval_ms")]
    batch_bytes: Annotated[int | None, At("batch_bytes")]
    idle_pause_ms: Annotated[int | None, At("idle_pause_ms")]
    metrics_port: Annotated[int | None, At("metrics_port")]
    spark: Annotated[SparkSettings | Mapping[str, Any] | None, At("spark")]


PLACES: dict[str, Loc] = {
    keyword: next(part.loc for part in get_args(hint) if isinstance(part, At))
    for keyword, hint in get_type_hints(Keywords, include_extras=True).items()
}
"""Keyword -> the place in the spec that it fills."""

_ENDS: dict[str, tuple[str, type[Source | Target]]] = {"sources": ("source", Source), "targets": ("target", Target)}
_FOR_EVERY_SOURCE = "max_rows_per_batch"
_MEANT = {"pipeline_name": "name", "sql": "transform_sql", "topic": "target_topic", "table": "target_table"}


def spec_from_keywords(origin: str = "", **keywords: Unpack[Keywords]) -> PipelineSpec:
    """The spec that the keywords describe; None stands for a keyword that is not given."""
    given: dict[str, Any] = {key: value for key, value in keywords.items() if value is not None}
    places = {key: loc for key, loc in PLACES.items() if not _is_overruled(loc, given)}
    spelling = Spelling({loc: (key,) for key, loc in places.items()} | _paths_of_ends(given), {(): list(PLACES)})
    problems = _misplaced(given, spelling)
    fields: dict[str, Any] = {"origin": origin}
    for key in (key for key in given if key in places):
        _put(fields, places[key], given[key])
    if "sources" in given and _FOR_EVERY_SOURCE in given:
        fields["sources"] = _with_row_limit(given["sources"], given[_FOR_EVERY_SOURCE])
    try:
        spec = PipelineSpec.model_validate(fields)
    except ValidationError as error:
        problems = arranged([*problems, *problems_of(error, PipelineSpec, spelling)])
        raise DeclarationError(_subject(given), problems, origin=origin) from None
    if problems:
        raise DeclarationError(_subject(given), problems, origin=origin)
    return spec


def _is_overruled(loc: Loc, given: Mapping[str, Any]) -> bool:
    """Whether a keyword of the single source or target means nothing because the list is given."""
    return len(loc) > 1 and loc[0] in _ENDS and loc[0] in given


def _paths_of_ends(given: Mapping[str, Any]) -> dict[Loc, Loc]:
    """A pipeline without any source lacks `source`, not `sources`; a limit for all sources is one keyword."""
    paths: dict[Loc, Loc] = {(plural,): (single,) for plural, (single, _) in _ENDS.items() if plural not in given}
    if isinstance(given.get("sources"), list | tuple) and _FOR_EVERY_SOURCE in given:
        paths |= {("sources", i, _FOR_EVERY_SOURCE): (_FOR_EVERY_SOURCE,) for i in range(len(given["sources"]))}
    return paths


def _misplaced(given: Mapping[str, Any], spelling: Spelling) -> list[Problem]:
    problems = []
    for key in given:
        loc = PLACES.get(key)
        if loc is None:
            problems.append(unknown_key((key,), list(PLACES), spelling, meant=_MEANT.get(key, "")))
        elif _is_overruled(loc, given) and key != _FOR_EVERY_SOURCE:
            plural, model = str(loc[0]), _ENDS[str(loc[0])][1].__name__
            problems.append(Problem(key, f"given together with {plural}", f"{loc[-1]} of each {model}"))
    return problems


def _put(fields: dict[str, Any], loc: Loc, value: Any) -> None:
    """Put a value at its place; the only index is the 0 of the single source or target."""
    if len(loc) > 1 and loc[0] in _ENDS:
        fields.setdefault(str(loc[0]), [{}])[0][loc[-1]] = value
    elif len(loc) > 1:
        fields.setdefault(str(loc[0]), {})[loc[-1]] = value
    else:
        fields[str(loc[0])] = value


def _with_row_limit(sources: Any, limit: Any) -> Any:
    if not isinstance(sources, list | tuple):
        return sources
    limited = []
    for source in sources:
        given = {key: getattr(source, key) for key in source.model_fields_set} if isinstance(source, Source) else source
        limited.append({_FOR_EVERY_SOURCE: limit, **given} if isinstance(given, Mapping) else given)
    return limited


def _subject(given: Mapping[str, Any]) -> str:
    return f'pipeline "{given["name"]}"' if isinstance(given.get("name"), str) else "pipeline"
