"""From a declared source to the stream that reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ematix_flow.config import connect, resolve_connection
from ematix_flow.errors import NotBuilt
from ematix_flow.specs import Source
from ematix_flow.state.store import LocalStore
from ematix_flow.streams.sources.base import StreamSource
from ematix_flow.streams.sources.files import FileSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SOURCES: dict[str, Any] = {"object_store_local": FileSource}


def open_source(source: Source, name: str, store: LocalStore, session: SparkSession) -> StreamSource:
    opened: StreamSource = source_type(source)(source, connect(source.connection), name, store, session)
    return opened


def source_type(source: Source) -> Any:
    """The class that reads this source, which knows what it can do before anything is opened."""
    kind = resolve_connection(source.connection).kind
    if kind not in _SOURCES:
        raise NotBuilt(f"source {kind!r}", instead=f"sources built so far: {', '.join(_SOURCES)}")
    return _SOURCES[kind]
