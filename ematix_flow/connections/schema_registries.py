"""Connections to schema registries, which Kafka connections refer to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import AliasChoices, Field

from ematix_flow.connections.base import Connection, Text
from ematix_flow.model import Complaint, check


class SchemaRegistryConnection(Connection):
    """A registry that speaks the Confluent protocol, such as Confluent's own or Apicurio."""

    driver_extra: ClassVar[str] = "kafka"
    together: ClassVar[tuple[tuple[str, ...], ...]] = (("basic_auth_user", "basic_auth_password"),)

    url: Text = Field(validation_alias=AliasChoices("url", "dsn"))
    """The address of the registry; `dsn` is a synonym."""

    basic_auth_user: str | None = None
    """The user, if the registry asks for one."""

    basic_auth_password: str | None = None
    """The password of that user."""

    kind: Literal["schema_registry"] = "schema_registry"


class GlueSchemaRegistryConnection(Connection):
    """The schema registry of AWS Glue."""

    driver_extra: ClassVar[str] = "aws"
    together: ClassVar[tuple[tuple[str, ...], ...]] = (("aws_access_key_id", "aws_secret_access_key"),)

    registry_name: Text
    """The name of the registry."""

    region: Text
    """The AWS region."""

    endpoint: str | None = None
    """The address of a compatible server; AWS itself when omitted."""

    aws_profile: str | None = None
    """A profile of the AWS configuration; without profile and keys the default AWS credential chain is used."""

    aws_access_key_id: str | None = None
    """Static credentials, instead of a profile."""

    aws_secret_access_key: str | None = None
    """The secret that belongs to `aws_access_key_id`."""

    kind: Literal["glue_schema_registry"] = "glue_schema_registry"

    @check
    def profile_or_keys(self) -> Iterator[Complaint]:
        if self.aws_profile and (self.aws_access_key_id or self.aws_secret_access_key):
            yield Complaint(("aws_profile",), "set together with keys; choose the profile or the keys")
