"""Columns that a declaration names, compared with the schemas of its sources."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ematix_flow.model import Complaint
from ematix_flow.problems import Loc, near
from ematix_flow.schema_text import SchemaMistake, column_names
from ematix_flow.specs.join import Join
from ematix_flow.specs.source import Source
from ematix_flow.specs.transform import Transform
from ematix_flow.specs.window import AGGREGATES, BY_ANOTHER, Window


def unknown_columns(sources: Sequence[Source], transform: Transform) -> Iterator[Complaint]:
    """As far as they can be known without Spark: what SQL makes of the columns, only Spark can tell."""
    schemas = [_columns(source) for source in sources]
    for number, (source, known) in enumerate(zip(sources, schemas, strict=True)):
        if known and source.event_time_column:
            yield from _unknown(("sources", number, "event_time_column"), source.event_time_column, known)
    if transform.join:
        yield from _unknown_keys(sources, schemas, transform.join)
    window = transform.window
    if window is None or transform.sql or transform.join or not all(schemas):
        return
    together = [name for schema in schemas for name in schema]
    known = list(dict.fromkeys([*together, "source_name"] if len(schemas) > 1 else together))
    for at, name in _named(window):
        yield from _unknown(("transform", "window", *at), name, known)


def _unknown_keys(sources: Sequence[Source], schemas: Sequence[list[str]], join: Join) -> Iterator[Complaint]:
    for side, name, keys in (
        ("left_keys", join.left_source, join.left_keys),
        ("right_keys", join.right_source, join.right_keys),
    ):
        known = next((schema for source, schema in zip(sources, schemas, strict=True) if name == source.name), [])
        for number, key in enumerate(keys if known else ()):
            yield from _unknown(("transform", "join", side, number), key, known)


def _columns(source: Source) -> list[str]:
    """None where no schema is declared, or one that cannot be read."""
    try:
        return column_names(source.schema) if source.schema else []
    except SchemaMistake:
        return []


def _named(window: Window) -> Iterator[tuple[Loc, str]]:
    yield ("event_time_column",), window.event_time_column
    for number, name in enumerate(window.group_by):
        yield ("group_by", number), name
    for number, one in enumerate(window.aggregations):
        if one.agg in AGGREGATES and one.column:
            yield ("aggregations", number, "column"), one.column
        if one.agg in BY_ANOTHER and one.mode:
            yield ("aggregations", number, "mode"), one.mode


def _unknown(at: Loc, name: str, known: list[str]) -> Iterator[Complaint]:
    # What begins with `_` may lie beside the payload, such as the key of a record.
    if name not in known and not name.startswith("_"):
        yield Complaint(at, f'found "{name}"', ", ".join(known), near(name, known))
