"""Connections to message brokers: Kafka, RabbitMQ, Pub/Sub and Kinesis."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AliasChoices, BeforeValidator, Discriminator, Field, Tag

from ematix_flow.connections.base import Connection, Property, Text, listed
from ematix_flow.connections.schema_registries import GlueSchemaRegistryConnection, SchemaRegistryConnection
from ematix_flow.model import Complaint, check


def _registry_form(value: Any) -> str:
    kind = value.get("kind") if isinstance(value, Mapping) else getattr(value, "kind", None)
    if kind == "glue_schema_registry":
        return "<glue>"
    return "<confluent>" if isinstance(value, Mapping | SchemaRegistryConnection) else "<name>"


# Tags in angle brackets are no step of a key that a user could have written; errors leave them out.
RegistryOrName = Annotated[
    Annotated[str, Tag("<name>")]
    | Annotated[SchemaRegistryConnection, Tag("<confluent>")]
    | Annotated[GlueSchemaRegistryConnection, Tag("<glue>")],
    Discriminator(_registry_form),
]
_GLUE_FORMATS = ("avro", "protobuf")


def _properties(value: Any) -> Any:
    """Environment variables hold text, so there the properties are a JSON object."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except json.JSONDecodeError:
        raise ValueError('expected a JSON object such as {"client.id": "flow"}') from None


Properties = Annotated[dict[str, Property], BeforeValidator(_properties)]


class KafkaConnection(Connection):
    """A Kafka cluster, as a source and as a target. At most one way to authenticate may be set."""

    driver_extra: ClassVar[str] = "kafka"
    together: ClassVar[tuple[tuple[str, ...], ...]] = (
        ("schema_registry_basic_auth_user", "schema_registry_basic_auth_password"),
        ("sasl_plain_username", "sasl_plain_password"),
        ("sasl_scram_username", "sasl_scram_password", "sasl_scram_mechanism"),
        ("ssl_cert", "ssl_key"),
    )

    bootstrap_servers: Text
    """`host:port`, several separated by commas."""

    group_id: str | None = None
    """The consumer group whose offsets are committed, so that lag is visible to Kafka tools."""

    payload_format: Literal["json", "raw_bytes", "avro", "protobuf", "json_schema"] = "json"
    """How message values are encoded."""

    auto_offset_reset: Literal["earliest", "latest"] = "earliest"
    """Where a pipeline without a checkpoint starts to read."""

    schema_registry: RegistryOrName | None = None
    """The schema registry: the name of a connection, or a connection."""

    schema_registry_url: str | None = None
    """The address of a Confluent registry, instead of `schema_registry`."""

    schema_registry_basic_auth_user: str | None = None
    """The user for `schema_registry_url`."""

    schema_registry_basic_auth_password: str | None = None
    """The password for `schema_registry_url`."""

    sasl_plain_username: str | None = None
    """The user for SASL/PLAIN."""

    sasl_plain_password: str | None = None
    """The password for SASL/PLAIN."""

    sasl_scram_username: str | None = None
    """The user for SASL/SCRAM."""

    sasl_scram_password: str | None = None
    """The password for SASL/SCRAM."""

    sasl_scram_mechanism: Literal["sha-256", "sha-512"] | None = None
    """The hash that the cluster uses for SASL/SCRAM."""

    msk_iam_region: str | None = None
    """The AWS region of an MSK cluster that authenticates with IAM."""

    sasl_oauth_provider: str | None = Field(default=None, pattern=r"^[\w.]+:\w+$")
    """`module:function` of a function that gives a token and when it expires, for SASL/OAUTHBEARER."""

    ssl_ca: str | None = None
    """The PEM file of the certificate authority; goes with every way to authenticate."""

    ssl_cert: str | None = None
    """The PEM file of the client certificate (mTLS)."""

    ssl_key: str | None = None
    """The PEM file of the client's private key (mTLS)."""

    extra: Properties = Field(default_factory=dict)
    """Any other Kafka client property, by its own name."""

    kind: Literal["kafka"] = "kafka"

    @check
    def one_way_to_authenticate(self) -> Iterator[Complaint]:
        families = {
            "sasl_plain_*": ("sasl_plain_username", "sasl_plain_password"),
            "sasl_scram_*": ("sasl_scram_username", "sasl_scram_password", "sasl_scram_mechanism"),
            "msk_iam_region": ("msk_iam_region",),
            "sasl_oauth_provider": ("sasl_oauth_provider",),
            "ssl_cert with ssl_key": ("ssl_cert", "ssl_key"),
        }
        touched = {family: [field for field in fields if getattr(self, field)] for family, fields in families.items()}
        chosen = [family for family, fields in touched.items() if fields]
        if len(chosen) > 1:
            yield Complaint((touched[chosen[1]][0],), f"{listed(chosen)} are set", "one way to authenticate")

    @check
    def a_beginning_has_its_field(self) -> Iterator[Complaint]:
        if "auto.offset.reset" in self.extra:
            yield Complaint(("extra", "auto.offset.reset"), "has a field of its own", "auto_offset_reset")

    @check
    def one_schema_registry(self) -> Iterator[Complaint]:
        if self.schema_registry and self.schema_registry_url:
            yield Complaint(("schema_registry_url",), "set together with schema_registry", "one of the two")

    @check
    def basic_auth_has_its_url(self) -> Iterator[Complaint]:
        if self.schema_registry_basic_auth_user and not self.schema_registry_url:
            found = "set without schema_registry_url; a connection in schema_registry has its own user and password"
            yield Complaint(("schema_registry_basic_auth_user",), found)

    @check
    def glue_has_schemas(self) -> Iterator[Complaint]:
        if isinstance(self.schema_registry, GlueSchemaRegistryConnection) and self.payload_format not in _GLUE_FORMATS:
            found = f'"{self.payload_format}" does not go with a Glue schema registry'
            yield Complaint(("payload_format",), found, ", ".join(_GLUE_FORMATS))


class RabbitMQConnection(Connection):
    """A RabbitMQ broker (AMQP 0.9.1)."""

    driver_extra: ClassVar[str] = "rabbitmq"

    amqp_url: Text = Field(validation_alias=AliasChoices("amqp_url", "url", "dsn"))
    """`amqp://user:password@host:5672/vhost`, or `amqps://` for TLS; `url` and `dsn` are synonyms."""

    consumer_tag: str | None = None
    """The name by which the broker lists this consumer."""

    # Messages are acknowledged when their batch is committed, so this also bounds the size of a batch.
    prefetch: int = Field(default=10_000, ge=1, le=65_535)
    """How many unacknowledged messages the broker may have handed out."""

    kind: Literal["rabbitmq"] = "rabbitmq"


class PubSubConnection(Connection):
    """A Google Cloud Pub/Sub project."""

    driver_extra: ClassVar[str] = "pubsub"

    project_id: Text
    """The project."""

    endpoint: str | None = None
    """The address of an emulator; Google itself when omitted."""

    anonymous_auth: bool = False
    """Send no credentials, as an emulator wants it."""

    kind: Literal["pubsub"] = "pubsub"


class KinesisConnection(Connection):
    """An AWS Kinesis stream."""

    driver_extra: ClassVar[str] = "kinesis"
    together: ClassVar[tuple[tuple[str, ...], ...]] = (("access_key_id", "secret_access_key"),)

    stream_name: Text
    """The stream."""

    region: str | None = None
    """The AWS region; the default of the AWS configuration when omitted."""

    endpoint: str | None = None
    """The address of a compatible server; AWS itself when omitted."""

    access_key_id: str | None = None
    """Static credentials; without them the default AWS credential chain is used."""

    secret_access_key: str | None = None
    """The secret that belongs to `access_key_id`."""

    kind: Literal["kinesis"] = "kinesis"
