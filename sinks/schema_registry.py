"""Schema registries: schemas by id and by subject, and the form of a record that names one.

Of Confluent's protocol few calls are needed, by workers as well as by the driver, so that no library is: a worker asks
once per schema.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import Request, urlopen

from ematix_flow.config import connect
from ematix_flow.connections import GlueSchemaRegistryConnection, KafkaConnection, SchemaRegistryConnection
from ematix_flow.errors import DeclarationError, FlowError, NotBuilt, Problem

MAGIC = b"\x00"
HEADER_BYTES = 5
_SECONDS = 10
_MEDIA = "application/vnd.schemaregistry.v1+json"


class RegistryUnavailable(FlowError):
    """The schema registry cannot be reached now."""

    code = "registry-unavailable"
    transient = True


class RegistryRefused(FlowError):
    """The schema registry does not let this client in, or does not take a schema."""

    code = "registry-refused"


class UnknownSchema(FlowError):
    """A schema that the registry does not have."""

    code = "unknown-schema"


class Unwritable(Exception):
    """What a row holds that its schema has no place for, for a person."""


@dataclass(frozen=True)
class Reference:
    """Another schema that one imports by a name."""

    name: str
    subject: str
    version: int


SchemaId = int | str


@dataclass(frozen=True)
class Schema:
    id: SchemaId
    text: str
    kind: str
    """AVRO, PROTOBUF or JSON."""
    references: tuple[Reference, ...] = ()


class Registry(Protocol):
    """Can be compared and sent to workers."""

    @property
    def beginning(self) -> str:
        """How a record begins, for a person."""

    def subject_of(self, topic: str) -> str:
        """The name under which the schemas of a topic are kept."""

    def header(self, id: SchemaId) -> bytes:
        """What stands before a record."""

    def opened(self, value: bytes) -> tuple[SchemaId, bytes] | None:
        """The id of a record's schema and what follows it; None if it does not begin so."""

    def schema(self, id: SchemaId) -> Schema: ...

    def latest(self, subject: str) -> Schema | None: ...

    def register(self, subject: str, text: str, kind: str, references: tuple[Reference, ...] = ()) -> Schema: ...

    def referenced(self, schema: Schema) -> dict[str, str]:
        """By name, the texts of all schemas that this one imports, and that those import."""


@dataclass(frozen=True)
class ConfluentRegistry:
    url: str
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    beginning: str = "0, then four bytes of id"

    def subject_of(self, topic: str) -> str:
        return f"{topic}-value"

    def header(self, id: SchemaId) -> bytes:
        return MAGIC + int(id).to_bytes(HEADER_BYTES - 1, "big")

    def opened(self, value: bytes) -> tuple[SchemaId, bytes] | None:
        if len(value) < HEADER_BYTES or value[:1] != MAGIC:
            return None
        return int.from_bytes(value[1:HEADER_BYTES], "big"), value[HEADER_BYTES:]

    def schema(self, id: SchemaId) -> Schema:
        return _schema({"id": id, **self._ask("GET", f"/schemas/ids/{id}")})

    def latest(self, subject: str) -> Schema | None:
        try:
            return self._version(subject, "latest")
        except UnknownSchema:
            return None

    def register(self, subject: str, text: str, kind: str, references: tuple[Reference, ...] = ()) -> Schema:
        body: dict[str, Any] = {"schema": text} if kind == "AVRO" else {"schema": text, "schemaType": kind}
        if references:
            body["references"] = [asdict(one) for one in references]
        found = self._ask("POST", f"/subjects/{quote(subject, safe='')}/versions", body)
        return Schema(found["id"], text, kind, references)

    def referenced(self, schema: Schema) -> dict[str, str]:
        found: dict[str, str] = {}
        waiting = [*schema.references]
        while waiting:
            one = waiting.pop()
            if one.name not in found:
                imported = self._version(one.subject, one.version)
                found[one.name] = imported.text
                waiting += imported.references
        return found

    def _version(self, subject: str, version: int | str) -> Schema:
        return _schema(self._ask("GET", f"/subjects/{quote(subject, safe='')}/versions/{version}"))

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        headers = {"Content-Type": _MEDIA, "Accept": _MEDIA}
        if self.user:
            login = f"{self.user}:{self.password or ''}".encode()
            headers["Authorization"] = f"Basic {base64.b64encode(login).decode()}"
        data = None if body is None else json.dumps(body).encode()
        request = Request(self.url.rstrip("/") + path, data, headers, method=method)  # noqa: S310 - see `registry_of`
        try:
            with urlopen(request, timeout=_SECONDS) as answer:  # noqa: S310
                return json.load(answer)
        except HTTPError as error:
            raise self._failure(error, path) from error
        except (URLError, OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise RegistryUnavailable(
                f"the schema registry at {self.url} does not answer: {reason}",
                next_step="start it, or correct its url",
            ) from error

    def _failure(self, error: HTTPError, path: str) -> FlowError:
        try:
            words = json.loads(error.read()).get("message") or error.reason
        except (ValueError, AttributeError):
            words = error.reason
        said = f"the schema registry at {self.url} says to {path}: {words} ({error.code})"
        if error.code == 404:
            return UnknownSchema(said, next_step="register the schema, or correct the topic")
        if error.code in {401, 403}:
            return RegistryRefused(said, next_step="correct its user and password")
        if error.code < 500:
            return RegistryRefused(said, next_step="make the rows fit what is registered, or register what they are")
        return RegistryUnavailable(said, next_step="look at the log of the registry")


def registry_of(connection: KafkaConnection, user: str) -> Registry:
    """The one that a Kafka connection names."""
    given = connection.schema_registry
    if given is not None:
        found = connect(given)
        if isinstance(found, GlueSchemaRegistryConnection):
            return _glue(found, connection.payload_format)
        if not isinstance(found, SchemaRegistryConnection):
            problem = Problem(f"{user} schema_registry", f"a connection of kind {found.kind!r}", "a schema registry")
            raise DeclarationError(user, [problem])
        registry = ConfluentRegistry(found.url, found.basic_auth_user, found.basic_auth_password)
    elif connection.schema_registry_url:
        registry = ConfluentRegistry(
            connection.schema_registry_url,
            connection.schema_registry_basic_auth_user,
            connection.schema_registry_basic_auth_password,
        )
    else:
        problem = Problem(
            f"{user} schema_registry", f'missing; payload_format = "{connection.payload_format}" needs it'
        )
        raise DeclarationError(user, [problem])
    if not registry.url.startswith(("http://", "https://")):
        problem = Problem(f"{user} schema_registry", "its url is no http or https address")
        raise DeclarationError(user, [problem])
    return registry


def _glue(connection: GlueSchemaRegistryConnection, form: str) -> Registry:
    from ematix_flow.sinks.glue_registry import GlueRegistry

    if form != "avro":
        raise NotBuilt(f'payload_format "{form}" with a Glue schema registry', instead="Avro is")
    return GlueRegistry.of(connection)


def _schema(found: Mapping[str, Any]) -> Schema:
    references = tuple(
        Reference(one["name"], one["subject"], int(one["version"])) for one in found.get("references") or ()
    )
    return Schema(found["id"], found["schema"], found.get("schemaType") or "AVRO", references)
