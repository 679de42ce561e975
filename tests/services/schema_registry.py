"""A schema registry for tests that speaks Confluent's protocol, built once per machine and kept in memory."""

import functools
import json
import os
import shutil
import subprocess
import tempfile
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import URLError

from tests.services.server import Server

VERSION = "v0.2.1"
_MODULE = "github.com/axonops/axonops-schema-registry"


class SchemaRegistry(Server):
    def __init__(self) -> None:
        super().__init__()
        self.url = f"http://127.0.0.1:{self.port}"
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

    def register(self, subject: str, schema: Any, kind: str = "AVRO") -> int:
        body = json.dumps({"schema": json.dumps(schema), "schemaType": kind}).encode()
        headers = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
        request = urllib.request.Request(f"{self.url}/subjects/{subject}/versions", body, headers)
        with urllib.request.urlopen(request, timeout=10) as answer:
            return int(json.load(answer)["id"])

    def schema(self, id: int) -> Any:
        with urllib.request.urlopen(f"{self.url}/schemas/ids/{id}", timeout=10) as answer:
            return json.loads(json.load(answer)["schema"])


@functools.cache
def schema_registry() -> SchemaRegistry:
    """One for all tests of this process."""
    return SchemaRegistry()


@functools.cache
def _program() -> Path:
    """Built once per machine, which takes a minute."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ematix-flow-tests"
    program = caches / f"schema-registry-{VERSION}"
    if not program.exists():
        assert shutil.which("go"), "the schema registry for tests is built with Go: install it"
        caches.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=caches) as draft:
            for command in (
                ["go", "mod", "init", "local/registry"],
                ["go", "mod", "edit", f"-require={_MODULE}@{VERSION}"],
                ["go", "build", "-mod=mod", "-o", "registry", f"{_MODULE}/cmd/schema-registry"],
            ):
                subprocess.run(command, cwd=draft, check=True, capture_output=True)
            Path(draft, "registry").replace(program)
    return program
