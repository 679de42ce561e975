"""A schema registry for tests that speaks Confluent's protocol, built once per machine and kept in memory."""

import functools
import json
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import URLError

from tests.services.golang import built
from tests.services.server import Server

VERSION = "v0.2.1"
_MODULE = "github.com/axonops/axonops-schema-registry"


class SchemaRegistry(Server):
    path = ""

    def __init__(self) -> None:
        super().__init__()
        self.url = f"http://127.0.0.1:{self.port}{self.path}"
        settings = {
            "server": {"host": "127.0.0.1", "port": self.port},
            "storage": {"type": "memory"},
            "logging": {"level": "warn"},
        }
        (self.folder / "settings.yaml").write_text(json.dumps(settings), encoding="utf-8")
        self.start()

    def command(self) -> Sequence[str]:
        return [str(_program()), "-config", str(self.folder / "settings.yaml")]

    def answers(self) -> bool:
        with suppress(URLError, OSError):
            return urllib.request.urlopen(f"{self.url}/subjects", timeout=1).status == 200
        return False

    def register(self, subject: str, schema: Any, kind: str = "AVRO", references: Sequence[Any] = ()) -> int:
        text = schema if isinstance(schema, str) else json.dumps(schema)
        body = json.dumps({"schema": text, "schemaType": kind, "references": list(references)}).encode()
        headers = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
        request = urllib.request.Request(f"{self.url}/subjects/{subject}/versions", body, headers)
        with urllib.request.urlopen(request, timeout=10) as answer:
            return int(json.load(answer)["id"])

    def schema(self, id: int) -> Any:
        return json.loads(self.text(id))

    def text(self, id: int) -> str:
        with urllib.request.urlopen(f"{self.url}/schemas/ids/{id}", timeout=10) as answer:
            return str(json.load(answer)["schema"])

    def versions(self, subject: str) -> list[int]:
        with urllib.request.urlopen(f"{self.url}/subjects/{subject}/versions", timeout=10) as answer:
            return list(json.load(answer))


@functools.cache
def schema_registry() -> SchemaRegistry:
    """One for all tests of this process."""
    return SchemaRegistry()


@functools.cache
def _program() -> Path:
    return built("schema-registry", _MODULE, VERSION, "cmd/schema-registry")
