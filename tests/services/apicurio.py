"""Apicurio's schema registry for tests, of which the product uses what it has in common with Confluent's."""

import functools
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from tests.services.schema_registry import SchemaRegistry

# Later ones need Java 21.
VERSION = "3.0.9"


class Apicurio(SchemaRegistry):
    path = "/apis/ccompat/v7"

    def __init__(self) -> None:
        super().__init__()
        # It accepts everything unless it is told otherwise.
        body = json.dumps({"compatibility": "BACKWARD"}).encode()
        request = urllib.request.Request(f"{self.url}/config", body, {"Content-Type": "application/json"}, method="PUT")
        urllib.request.urlopen(request, timeout=10).close()

    def command(self) -> Sequence[str]:
        home = os.environ.get("JAVA_HOME")
        settings = {
            "quarkus.http.host": "127.0.0.1",
            "quarkus.http.port": self.port,
            "apicurio.datasource.jdbc.initial-size": 1,
            "apicurio.datasource.jdbc.min-size": 1,
        }
        given = [f"-D{key}={value}" for key, value in settings.items()]
        java = f"{home}/bin/java" if home else "java"
        return [java, "-Xmx384m", "-XX:TieredStopAtLevel=1", *given, "-jar", str(_program())]


@functools.cache
def apicurio() -> Apicurio:
    """One for all tests of this process."""
    return Apicurio()


@functools.cache
def _program() -> Path:
    """Fetched once per machine, 109 MB."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ematix-flow-tests"
    folder = caches / f"apicurio-{VERSION}"
    if not folder.exists():
        assert shutil.which("mvn"), "Apicurio's registry is fetched with Maven for tests: install it"
        caches.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".apicurio-", dir=caches) as draft:
            artifact = f"io.apicurio:apicurio-registry-app:{VERSION}:tar.gz:all"
            command = ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={draft}"]
            subprocess.run(command, check=True, capture_output=True)
            with tarfile.open(next(Path(draft).glob("*.tar.gz"))) as archive:
                archive.extractall(Path(draft, "unpacked"), filter="data")
            Path(draft, "unpacked").rename(folder)
    return folder / f"apicurio-registry-app-{VERSION}-runner.jar"
