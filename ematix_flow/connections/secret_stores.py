"""The built-in resolvers of `${vault:...}`, `${aws:...}` and `${gcp:...}`; clients are imported at first use."""

from __future__ import annotations

import json
import os
from typing import Any

from ematix_flow.errors import MissingExtra
from ematix_flow.secrets import Resolver


class VaultResolver:
    """`path#key` in the key-value store (version 2) of HashiCorp Vault, mounted at `secret` unless told otherwise.

    Without a client, one is made from `VAULT_ADDR` and `VAULT_TOKEN`.
    """

    def __init__(self, client: Any = None, mount_point: str = "secret") -> None:
        self._client = client
        self._mount_point = mount_point

    def resolve(self, reference: str) -> str:
        path, _, key = reference.partition("#")
        if self._client is None:
            try:
                import hvac
            except ImportError:
                raise MissingExtra("hvac", "vault") from None
            self._client = hvac.Client()
        store = self._client.secrets.kv.v2
        answer = store.read_secret_version(path=path, mount_point=self._mount_point, raise_on_deleted_version=True)
        return _member(answer["data"]["data"], key, f"Vault secret {self._mount_point}/{path}")


class AwsResolver:
    """`name#field` in AWS Secrets Manager: a field of a JSON secret, or the whole secret without `#`."""

    def __init__(self, client: Any = None) -> None:
        self._client = client

    def resolve(self, reference: str) -> str:
        name, _, field = reference.partition("#")
        if self._client is None:
            try:
                import boto3
            except ImportError:
                raise MissingExtra("boto3", "aws") from None
            self._client = boto3.client("secretsmanager")
        text: str = self._client.get_secret_value(SecretId=name)["SecretString"]
        if not field:
            return text
        try:
            members = json.loads(text)
        except json.JSONDecodeError:
            members = None
        if not isinstance(members, dict):
            raise LookupError(f"AWS secret {name} is not a JSON object, so it has no field {field}")
        return _member(members, field, f"AWS secret {name}")


class GcpResolver:
    """`name#version` in Google Secret Manager; the latest version without `#`.

    `name` is a full `projects/...` resource name, or a secret of the project in `GOOGLE_CLOUD_PROJECT`.
    """

    def __init__(self, client: Any = None, project: str = "") -> None:
        self._client = client
        self._project = project

    def resolve(self, reference: str) -> str:
        name, _, version = reference.partition("#")
        if not name.startswith("projects/"):
            project = self._project or os.environ.get("GOOGLE_CLOUD_PROJECT")
            if not project:
                raise LookupError(f"no project for the secret {name}: set GOOGLE_CLOUD_PROJECT")
            name = f"projects/{project}/secrets/{name}"
        if "/versions/" not in name:
            name = f"{name}/versions/{version or 'latest'}"
        if self._client is None:
            try:
                from google.cloud import secretmanager
            except ImportError:
                raise MissingExtra("google-cloud-secret-manager", "gcp") from None
            self._client = secretmanager.SecretManagerServiceClient()
        payload: bytes = self._client.access_secret_version(name=name).payload.data
        return payload.decode()


def built_in(prefix: str) -> Resolver:
    """The resolver that comes with the product for one of its prefixes."""
    resolvers: dict[str, type[VaultResolver | AwsResolver | GcpResolver]] = {
        "vault": VaultResolver,
        "aws": AwsResolver,
        "gcp": GcpResolver,
    }
    return resolvers[prefix]()


def _member(members: dict[str, Any], key: str, secret: str) -> str:
    if key not in members:
        has = ", ".join(sorted(members)) or "nothing"
        found = f"{secret} has no key {key}" if key else f"{secret}: name a key after #"
        raise LookupError(f"{found}; it has {has}")
    value = members[key]
    return value if isinstance(value, str) else json.dumps(value)
