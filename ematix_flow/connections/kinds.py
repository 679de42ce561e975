"""All kinds of connections, and how one is built from a kind and fields that somebody wrote down."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AliasChoices, Field

from ematix_flow.connections.base import Connection
from ematix_flow.connections.brokers import KafkaConnection, KinesisConnection, PubSubConnection, RabbitMQConnection
from ematix_flow.connections.databases import (
    DuckDBConnection,
    MySQLConnection,
    PostgresConnection,
    RedisConnection,
    SQLiteConnection,
)
from ematix_flow.connections.lakes import (
    DeltaLocalConnection,
    DeltaS3Connection,
    ObjectStoreLocalConnection,
    ObjectStoreS3Connection,
)
from ematix_flow.connections.schema_registries import GlueSchemaRegistryConnection, SchemaRegistryConnection
from ematix_flow.connections.warehouses import BigQueryConnection, RedshiftConnection, SnowflakeConnection
from ematix_flow.errors import DeclarationError, Problem
from ematix_flow.problems import near

AnyConnection = Annotated[
    PostgresConnection
    | MySQLConnection
    | SQLiteConnection
    | DuckDBConnection
    | DeltaLocalConnection
    | DeltaS3Connection
    | ObjectStoreLocalConnection
    | ObjectStoreS3Connection
    | KafkaConnection
    | RabbitMQConnection
    | PubSubConnection
    | KinesisConnection
    | RedisConnection
    | SchemaRegistryConnection
    | GlueSchemaRegistryConnection
    | SnowflakeConnection
    | BigQueryConnection
    | RedshiftConnection,
    Field(discriminator="kind"),
]

CONNECTION_KINDS: dict[str, type[Connection]] = {
    cls.model_fields["kind"].default: cls
    for cls in AnyConnection.__origin__.__args__  # type: ignore[attr-defined]
}


def input_names(cls: type[Connection]) -> list[str]:
    """The names a user may give to the fields of a class, synonyms included."""
    names: list[str] = []
    for field, info in cls.model_fields.items():
        choices = info.validation_alias.choices if isinstance(info.validation_alias, AliasChoices) else []
        names += dict.fromkeys([field, *(choice for choice in choices if isinstance(choice, str))])
    return names


def build_connection(subject: str, fields: Mapping[str, Any], *, origin: str = "") -> Connection:
    """The connection that `kind` and the other fields describe, or all that is wrong with them."""
    try:
        return _class_of(subject, fields.get("kind"))(**fields)
    except DeclarationError as error:
        raise DeclarationError(subject, error.problems, origin=origin) from None


def _class_of(subject: str, kind: object) -> type[Connection]:
    if isinstance(kind, str) and kind in CONNECTION_KINDS:
        return CONNECTION_KINDS[kind]
    allowed = ", ".join(CONNECTION_KINDS)
    if kind is None:
        raise DeclarationError(subject, [Problem("kind", "missing", allowed)])
    raise DeclarationError(
        subject, [Problem("kind", f'unknown kind "{kind}"', allowed, near(str(kind), CONNECTION_KINDS))]
    )
