"""From a declared source to the stream that reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ematix_flow.cdc.envelopes import envelope_of
from ematix_flow.config import connect, resolve_connection
from ematix_flow.errors import NotBuilt
from ematix_flow.specs import CDC, PipelineSpec, Source
from ematix_flow.state.store import Store
from ematix_flow.streams.sources.base import StreamSource
from ematix_flow.streams.sources.database.source import DATABASES, DatabaseSource
from ematix_flow.streams.sources.delta import DeltaSource
from ematix_flow.streams.sources.files import FileSource
from ematix_flow.streams.sources.kafka import KafkaSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SOURCES: dict[str, Any] = {
    "object_store_local": FileSource,
    "delta_local": DeltaSource,
    "kafka": KafkaSource,
    **dict.fromkeys(DATABASES, DatabaseSource),
}

# The formats in which envelopes are read: JSON texts, and what becomes one.
_TEXTS = ("json", "json_lines")


def open_source(spec: PipelineSpec, index: int, store: Store, session: SparkSession) -> StreamSource:
    source, name = spec.sources[index], spec.source_names[index]
    if spec.transform.cdc is not None:
        source = _of_envelopes(source, spec.transform.cdc)
    connection = connect(source.connection)
    opened: StreamSource = source_type(source)(source, connection, name, spec.batch_bytes, store, session)
    if spec.transform.cdc is not None and isinstance(opened, KafkaSource):
        opened.envelopes = True
    return opened


def _of_envelopes(source: Source, cdc: CDC) -> Source:
    """What is declared are the columns of the table; the source reads the envelopes around them."""
    connection: Any = connect(source.connection)
    form = getattr(connection, "payload_format", None) or getattr(connection, "format", None)
    if form not in _TEXTS and (connection.kind, form) != ("kafka", "avro"):
        found = f"[transform.cdc] from {connection.kind} with {form or 'columns'}"
        raise NotBuilt(found, instead="envelopes are read as json, json_lines and, from Kafka, avro")
    return source.model_copy(update={"schema": envelope_of(cdc).ddl})


def source_type(source: Source) -> Any:
    """The class that reads this source, which knows what it can do before anything is opened."""
    kind = resolve_connection(source.connection).kind
    if kind not in SOURCES:
        raise NotBuilt(f"source {kind!r}", instead=f"sources built so far: {', '.join(SOURCES)}")
    return SOURCES[kind]
