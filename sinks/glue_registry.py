"""AWS Glue's schema registry through boto3, and its form of a record: 3, how it is compressed, 16 bytes of id."""

from __future__ import annotations

import importlib.util
import time
import uuid
import zlib
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from ematix_flow.connections import GlueSchemaRegistryConnection
from ematix_flow.errors import FlowError, MissingExtra
from ematix_flow.sinks.schema_registry import (
    Reference,
    RegistryRefused,
    RegistryUnavailable,
    Schema,
    SchemaId,
    UnknownSchema,
)

_HEAD, _PLAIN, _ZLIB = 3, 0, 5
_HEADER_BYTES = 18
_PENDING_SECONDS = 30.0
_NOT_LET_IN = ("AccessDenied", "UnrecognizedClient", "ExpiredToken", "InvalidSignature", "InvalidClientTokenId")


@dataclass(frozen=True)
class GlueRegistry:
    """Asked by workers as well as by the driver, each with a client of its own."""

    name: str
    region: str
    endpoint: str | None = None
    profile: str | None = None
    key_id: str | None = None
    secret: str | None = field(default=None, repr=False)
    beginning: str = "3, 0 or 5, then 16 bytes of id"

    @classmethod
    def of(cls, connection: GlueSchemaRegistryConnection) -> GlueRegistry:
        if importlib.util.find_spec("boto3") is None:
            raise MissingExtra("boto3", connection.driver_extra)
        return cls(
            connection.registry_name,
            connection.region,
            connection.endpoint,
            connection.aws_profile,
            connection.aws_access_key_id,
            connection.aws_secret_access_key,
        )

    def subject_of(self, topic: str) -> str:
        """As AWS's own serializers name it."""
        return topic

    def header(self, id: SchemaId) -> bytes:
        return bytes((_HEAD, _PLAIN)) + uuid.UUID(str(id)).bytes

    def opened(self, value: bytes) -> tuple[SchemaId, bytes] | None:
        if len(value) < _HEADER_BYTES or value[0] != _HEAD or value[1] not in (_PLAIN, _ZLIB):
            return None
        content = value[_HEADER_BYTES:]
        try:
            plain = zlib.decompress(content) if value[1] == _ZLIB else content
        except zlib.error:
            return None
        return str(uuid.UUID(bytes=value[2:_HEADER_BYTES])), plain

    def schema(self, id: SchemaId) -> Schema:
        return _schema(self._ask("get_schema_version", SchemaVersionId=str(id)))

    def latest(self, subject: str) -> Schema | None:
        wanted = {"SchemaId": self._named(subject), "SchemaVersionNumber": {"LatestVersion": True}}
        try:
            return _schema(self._ask("get_schema_version", **wanted))
        except UnknownSchema:
            return None

    def register(self, subject: str, text: str, kind: str, references: tuple[Reference, ...] = ()) -> Schema:
        try:
            made = self._ask("register_schema_version", SchemaId=self._named(subject), SchemaDefinition=text)
        except UnknownSchema:
            made = self._ask(
                "create_schema",
                RegistryId={"RegistryName": self.name},
                SchemaName=subject,
                DataFormat=kind,
                Compatibility="BACKWARD",
                SchemaDefinition=text,
            )
            made = {"Status": made.get("SchemaVersionStatus"), **made}
        return Schema(self._checked(made["SchemaVersionId"], made.get("Status"), subject), text, kind, references)

    def referenced(self, schema: Schema) -> dict[str, str]:
        """Glue has no references."""
        return {}

    def _checked(self, id: str, status: str | None, subject: str) -> str:
        """Glue compares a version with those before it after it has taken it."""
        deadline = time.monotonic() + _PENDING_SECONDS
        while status == "PENDING" and time.monotonic() < deadline:
            time.sleep(0.5)
            status = self._ask("get_schema_version", SchemaVersionId=id).get("Status")
        if status == "FAILURE":
            raise RegistryRefused(
                f"the Glue registry {self.name} does not take the schema of {subject}: it does not fit those before",
                next_step="make the rows fit what is registered, or register what they are",
            )
        return id

    def _named(self, subject: str) -> dict[str, str]:
        return {"RegistryName": self.name, "SchemaName": subject}

    def _ask(self, call: str, **given: Any) -> Any:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            return getattr(_client(self), call)(**given)
        except ClientError as error:
            raise self._failure(error.response["Error"]) from error
        except BotoCoreError as error:
            words = f"the Glue registry {self.name} in {self.region} cannot be asked: {error}"
            if "redential" in str(error) or "profile" in str(error):
                raise RegistryRefused(words, next_step="set aws_profile, or the two keys") from error
            raise RegistryUnavailable(words, next_step="see that this machine reaches AWS") from error

    def _failure(self, error: Any) -> FlowError:
        code, words = str(error.get("Code")), str(error.get("Message"))
        said = f"the Glue registry {self.name} in {self.region} says: {words} ({code})"
        if code == "EntityNotFoundException":
            return UnknownSchema(said, next_step="register the schema, or correct the topic")
        if code.startswith(_NOT_LET_IN):
            return RegistryRefused(said, next_step="correct the credentials, or their rights")
        if "Throttl" in code or "Internal" in code or "Unavailable" in code:
            return RegistryUnavailable(said, next_step="try again")
        return RegistryRefused(said, next_step="make the rows fit what is registered, or register what they are")


@cache
def _client(registry: GlueRegistry) -> Any:
    import boto3

    session = boto3.Session(
        profile_name=registry.profile,
        aws_access_key_id=registry.key_id,
        aws_secret_access_key=registry.secret,
        region_name=registry.region,
    )
    return session.client("glue", endpoint_url=registry.endpoint)


def _schema(found: Any) -> Schema:
    return Schema(found["SchemaVersionId"], found["SchemaDefinition"], found["DataFormat"])
