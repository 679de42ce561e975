"""From a declared target to the sink that writes it."""

from __future__ import annotations

from typing import Any

from ematix_flow.config import connect, resolve_connection
from ematix_flow.connections import KafkaConnection
from ematix_flow.errors import DeclarationError, NotBuilt, Problem
from ematix_flow.sinks.base import Sink
from ematix_flow.sinks.delta import DeltaSink
from ematix_flow.sinks.duckdb import DuckDBSink
from ematix_flow.sinks.files import FilesSink
from ematix_flow.sinks.kafka import KafkaSink
from ematix_flow.sinks.kafka_letters import DeadLetterTopic
from ematix_flow.sinks.kafka_transactions import TransactionalKafkaSink
from ematix_flow.sinks.mysql import MySQLSink
from ematix_flow.sinks.postgres import PostgresSink
from ematix_flow.sinks.sqlite import SQLiteSink
from ematix_flow.specs import CDC, PipelineSpec, Target

SINKS: dict[str, Any] = {
    "duckdb": DuckDBSink,
    "sqlite": SQLiteSink,
    "postgres": PostgresSink,
    "mysql": MySQLSink,
    "delta_local": DeltaSink,
    "object_store_local": FilesSink,
    "kafka": KafkaSink,
}
_REFINING = ("update_columns", "compare_columns", "handle_deletes", "ttl")
# Where a pipeline has the choice.
EXACTLY_ONCE: dict[str, Any] = {"kafka": TransactionalKafkaSink}


def open_sink(target: Target, name: str, delivery: str = "at_least_once", changes: CDC | None = None) -> Sink:
    """`changes` says that its rows are changes of tables."""
    opened = sink_type(target, delivery)
    if changes is None:
        sink: Sink = opened(target, connect(target.connection), name)
        return sink
    modes = opened.capabilities.takes_changes
    if target.mode not in modes:
        words = f"mode = {', '.join(sorted(modes))}" if modes else "not at all"
        raise NotBuilt(f"[transform.cdc] into {target.kind!r} with mode {target.mode!r}", instead=f"it runs: {words}")
    # The columns are those of the table, and a value that one of them does not hold is a bad row.
    grows = "evolve" if changes.schema_evolution in {"evolve", "try_evolve"} else "ignore"
    taking = opened(target.model_copy(update={"on_drift": grows}), connect(target.connection), name)
    taking.take_changes(changes)
    changing: Sink = taking
    return changing


def dead_letter_topic(spec: PipelineSpec) -> DeadLetterTopic | None:
    cluster = dead_letter_cluster(spec)
    if cluster is None or spec.dead_letter_topic is None:
        return None
    return DeadLetterTopic(spec.dead_letter_topic, connect(cluster))


def dead_letter_cluster(spec: PipelineSpec) -> KafkaConnection | None:
    """The one that the pipeline reads from, or else the one that it writes to."""
    if not spec.has_dead_letter_topic:
        return None
    given = [*(source.connection for source in spec.sources), *(target.connection for target in spec.targets)]
    for connection in map(resolve_connection, given):
        if isinstance(connection, KafkaConnection):
            return connection
    problem = Problem("dead_letter_topic", "neither a source nor a target is kafka", 'dlq_store = "table"')
    raise DeclarationError(f'pipeline "{spec.name}"', [problem], origin=spec.origin)


def sink_type(target: Target, delivery: str = "at_least_once") -> Any:
    """The class that writes this target, which knows what it can do before anything is opened."""
    kind = resolve_connection(target.connection).kind
    if kind not in SINKS:
        raise NotBuilt(f"target {kind!r}", instead=f"targets built so far: {', '.join(SINKS)}")
    modes = SINKS[kind].capabilities.modes
    if target.mode not in modes:
        raise NotBuilt(f"mode {target.mode!r} on {kind!r}", instead=f"modes built so far: {', '.join(sorted(modes))}")
    refined = [option for option in _REFINING if getattr(target, option)]
    if refined and not SINKS[kind].capabilities.refines:
        raise NotBuilt(f"{', '.join(refined)} on {kind!r}", instead="on SQL databases and Delta it runs")
    return EXACTLY_ONCE.get(kind, SINKS[kind]) if delivery == "exactly_once" else SINKS[kind]
