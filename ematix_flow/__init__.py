"""Declarative ETL and streaming pipelines on Spark: declare connections, tables and pipelines, then run them.

Importing this package declares things and nothing else; Spark is loaded when a pipeline runs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ematix_flow import config
from ematix_flow.config import connect
from ematix_flow.connections import (
    BigQueryConnection,
    DeltaLocalConnection,
    DeltaS3Connection,
    DuckDBConnection,
    GlueSchemaRegistryConnection,
    KafkaConnection,
    KinesisConnection,
    MySQLConnection,
    ObjectStoreLocalConnection,
    ObjectStoreS3Connection,
    PostgresConnection,
    PubSubConnection,
    RabbitMQConnection,
    RedisConnection,
    RedshiftConnection,
    SchemaRegistryConnection,
    SnowflakeConnection,
    SQLiteConnection,
    get_connection,
    register_connection,
    registered_connections,
)
from ematix_flow.decorators import ematix
from ematix_flow.markers import natural_key, nullable, pk
from ematix_flow.secrets import register_resolver
from ematix_flow.specs import CDC, Aggregation, Join, Lookup, Source, StateStore, Target, Watermark, Window
from ematix_flow.table import ManagedTable
from ematix_flow.triggers import AllOf, AnyOf
from ematix_flow.udf import udaf, udf

if TYPE_CHECKING:
    from ematix_flow.ops.api import run_pipeline, run_streaming_pipeline

__all__ = [
    "CDC",
    "Aggregation",
    "AllOf",
    "AnyOf",
    "BigQueryConnection",
    "DeltaLocalConnection",
    "DeltaS3Connection",
    "DuckDBConnection",
    "GlueSchemaRegistryConnection",
    "Join",
    "KafkaConnection",
    "KinesisConnection",
    "Lookup",
    "ManagedTable",
    "MySQLConnection",
    "ObjectStoreLocalConnection",
    "ObjectStoreS3Connection",
    "PostgresConnection",
    "PubSubConnection",
    "RabbitMQConnection",
    "RedisConnection",
    "RedshiftConnection",
    "SQLiteConnection",
    "SchemaRegistryConnection",
    "SnowflakeConnection",
    "Source",
    "StateStore",
    "Target",
    "Watermark",
    "Window",
    "config",
    "connect",
    "ematix",
    "get_connection",
    "natural_key",
    "nullable",
    "pk",
    "register_connection",
    "register_resolver",
    "registered_connections",
    "run_pipeline",
    "run_streaming_pipeline",
    "udaf",
    "udf",
]

_RUNTIME = "ematix_flow.ops.api"


def __getattr__(name: str) -> Any:
    """What needs Spark or the package's metadata is looked up when it is used first."""
    if name in ("run_pipeline", "run_streaming_pipeline"):
        return getattr(importlib.import_module(_RUNTIME), name)
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("ematix-flow-spark")
        except PackageNotFoundError:  # a source tree that is not installed
            return "0.0.0"
    raise AttributeError(f"module 'ematix_flow' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
