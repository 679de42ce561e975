"""From a declared target to the sink that writes it."""

from __future__ import annotations

from typing import Any

from ematix_flow.config import connect, resolve_connection
from ematix_flow.errors import NotBuilt
from ematix_flow.sinks.base import Sink
from ematix_flow.sinks.delta import DeltaSink
from ematix_flow.sinks.duckdb import DuckDBSink
from ematix_flow.sinks.files import FilesSink
from ematix_flow.sinks.mysql import MySQLSink
from ematix_flow.sinks.postgres import PostgresSink
from ematix_flow.sinks.sqlite import SQLiteSink
from ematix_flow.specs import Target

SINKS: dict[str, Any] = {
    "duckdb": DuckDBSink,
    "sqlite": SQLiteSink,
    "postgres": PostgresSink,
    "mysql": MySQLSink,
    "delta_local": DeltaSink,
    "object_store_local": FilesSink,
}


def open_sink(target: Target, name: str) -> Sink:
    sink: Sink = sink_type(target)(target, connect(target.connection), name)
    return sink


def sink_type(target: Target) -> Any:
    """The class that writes this target, which knows what it can do before anything is opened."""
    kind = resolve_connection(target.connection).kind
    if kind not in SINKS:
        raise NotBuilt(f"target {kind!r}", instead=f"targets built so far: {', '.join(SINKS)}")
    modes = SINKS[kind].capabilities.modes
    if target.mode not in modes:
        raise NotBuilt(f"mode {target.mode!r} on {kind!r}", instead=f"modes built so far: {', '.join(sorted(modes))}")
    refined = [option for option in ("update_columns", "compare_columns", "handle_deletes") if getattr(target, option)]
    if refined and not SINKS[kind].capabilities.refines:
        raise NotBuilt(f"{', '.join(refined)} on {kind!r}", instead="on SQL databases it runs")
    return SINKS[kind]
