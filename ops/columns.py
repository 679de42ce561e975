"""Columns that a declaration names, compared with the schemas that it declares."""

from __future__ import annotations

from collections.abc import Iterator

from ematix_flow.errors import Problem
from ematix_flow.ops.schema_text import column_names
from ematix_flow.problems import near
from ematix_flow.specs import PipelineSpec, Window
from ematix_flow.specs.window import AGGREGATES, BY_ANOTHER


def unknown_columns(spec: PipelineSpec) -> Iterator[Problem]:
    """As far as they can be known without Spark: what SQL makes of the columns, only Spark can tell."""
    schemas = [column_names(source.schema) for source in spec.sources if source.schema]
    for number, source in enumerate(spec.sources):
        if source.schema and source.event_time_column:
            known = column_names(source.schema)
            yield from _unknown(f"sources[{number}].event_time_column", source.event_time_column, known)
    window, transform = spec.transform.window, spec.transform
    if window is None or transform.sql or transform.join or len(schemas) < len(spec.sources):
        return
    together = [name for schema in schemas for name in schema]
    known = list(dict.fromkeys([*together, "source_name"] if len(schemas) > 1 else together))
    for key, name in _named(window):
        yield from _unknown(f"transform.window.{key}", name, known)


def _named(window: Window) -> Iterator[tuple[str, str]]:
    yield "event_time_column", window.event_time_column
    for number, name in enumerate(window.group_by):
        yield f"group_by[{number}]", name
    for number, one in enumerate(window.aggregations):
        if one.agg in AGGREGATES and one.column:
            yield f"aggregations[{number}].column", one.column
        if one.agg in BY_ANOTHER and one.mode:
            yield f"aggregations[{number}].mode", one.mode


def _unknown(key: str, name: str, known: list[str]) -> Iterator[Problem]:
    # What begins with `_` may lie beside the payload, such as the key of a record.
    if name not in known and not name.startswith("_"):
        yield Problem(key, f'found "{name}"', ", ".join(known), near(name, known))
