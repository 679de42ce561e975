"""Typed connections, the registry of those declared in code, and the ways to write one down."""

from ematix_flow.connections.base import Connection
from ematix_flow.connections.brokers import KafkaConnection, KinesisConnection, PubSubConnection, RabbitMQConnection
from ematix_flow.connections.databases import (
    DuckDBConnection,
    MySQLConnection,
    PostgresConnection,
    RedisConnection,
    SQLiteConnection,
)
from ematix_flow.connections.kinds import CONNECTION_KINDS, AnyConnection, build_connection
from ematix_flow.connections.lakes import (
    DeltaLocalConnection,
    DeltaS3Connection,
    FileFormat,
    ObjectStoreLocalConnection,
    ObjectStoreS3Connection,
    format_from_path,
)
from ematix_flow.connections.registry import (
    clear_registry,
    connection,
    get_connection,
    register_connection,
    registered_connections,
)
from ematix_flow.connections.schema_registries import GlueSchemaRegistryConnection, SchemaRegistryConnection
from ematix_flow.connections.urls import connection_from_url
from ematix_flow.connections.warehouses import BigQueryConnection, RedshiftConnection, SnowflakeConnection
from ematix_flow.secrets import expanded, redact, redact_text, warn_inline_credentials

__all__ = [
    "CONNECTION_KINDS",
    "AnyConnection",
    "BigQueryConnection",
    "Connection",
    "DeltaLocalConnection",
    "DeltaS3Connection",
    "DuckDBConnection",
    "FileFormat",
    "GlueSchemaRegistryConnection",
    "KafkaConnection",
    "KinesisConnection",
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
    "build_connection",
    "clear_registry",
    "connection",
    "connection_from_url",
    "expanded",
    "format_from_path",
    "get_connection",
    "redact",
    "redact_text",
    "register_connection",
    "registered_connections",
    "warn_inline_credentials",
]
