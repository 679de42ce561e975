"""The API of AWS Glue's schema registry for tests, as moto serves it."""

import json
import sys
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from urllib.error import URLError
from uuid import UUID

from tests.services.server import Server


class Glue(Server):
    name = "shop"

    def __init__(self) -> None:
        super().__init__()
        self.url = f"http://127.0.0.1:{self.port}"
        self.start()
        self.client.create_registry(RegistryName=self.name)

    def command(self) -> Sequence[str]:
        return [sys.executable, "-P", "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]

    def answers(self) -> bool:
        with suppress(URLError, OSError):
            return urllib.request.urlopen(f"{self.url}/moto-api/data.json", timeout=1).status == 200
        return False

    @property
    def client(self) -> Any:
        import boto3

        keys = {"aws_access_key_id": "k", "aws_secret_access_key": "s"}
        return boto3.client("glue", region_name="eu-west-1", endpoint_url=self.url, **keys)

    def register(self, schema_name: str, schema: Any) -> UUID:
        made = self.client.create_schema(
            RegistryId={"RegistryName": self.name},
            SchemaName=schema_name,
            DataFormat="AVRO",
            Compatibility="BACKWARD",
            SchemaDefinition=json.dumps(schema),
        )
        return UUID(made["SchemaVersionId"])

    def schema(self, id: UUID) -> Any:
        return json.loads(self.client.get_schema_version(SchemaVersionId=str(id))["SchemaDefinition"])
