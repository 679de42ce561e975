"""A connection from a URL: the scheme is the kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from ematix_flow.connections.base import Connection
from ematix_flow.connections.kinds import build_connection
from ematix_flow.errors import DeclarationError, Problem, SecretNotFound
from ematix_flow.problems import near
from ematix_flow.secrets import expand

# Kinds that carry the whole URL, so that references inside it stay references until the connection is opened.
_CARRIED = {
    "postgres": ("postgres", "url"),
    "postgresql": ("postgres", "url"),
    "mysql": ("mysql", "url"),
    "mariadb": ("mysql", "url"),
    "redis": ("redis", "url"),
    "rediss": ("redis", "url"),
    "amqp": ("rabbitmq", "amqp_url"),
    "amqps": ("rabbitmq", "amqp_url"),
}
URL_SCHEMES = (*_CARRIED, "sqlite", "duckdb", "kafka", "file")


def connection_from_url(url: str, *, name: str = "", more: Mapping[str, Any] | None = None) -> Connection:
    """The connection that a URL describes, with `more` fields beside it.

    `sqlite:///relative.db`, `sqlite:////absolute.db` and `sqlite://` (in memory), the same for duckdb;
    `kafka://host:9092,host:9092?group_id=etl`; `file:///folder?format=csv`.
    """
    subject = f'connection "{name}"' if name else "connection"
    scheme = _scheme(url, subject)
    fields = _fields(url, scheme, subject)
    return build_connection(subject, {"name": name, **fields, **(more or {})})


def _scheme(url: str, subject: str) -> str:
    before, separator, _ = url.partition("://")
    if "${" in before or (not separator and "${" in url):
        before, separator, _ = _looked_into(url, subject).partition("://")
        if separator and before.lower() not in _CARRIED:
            raise _refused(subject, "a reference hides what kind of connection this is", "kind and its fields")
    scheme = before.lower()
    if not separator:
        raise _refused(subject, "not a URL", "scheme://...")  # not shown: it may be a secret
    if scheme not in URL_SCHEMES:
        problem = Problem("url", f'unknown scheme "{scheme}"', ", ".join(URL_SCHEMES), near(scheme, URL_SCHEMES))
        raise DeclarationError(subject, [problem])
    return scheme


def _looked_into(url: str, subject: str) -> str:
    """The URL with its references expanded, only to see its scheme."""
    try:
        return expand(url, place=f"{subject}, field url")
    except SecretNotFound as error:
        step = f"{error.next_step}, or add kind = ... so that the scheme need not be known yet".lstrip(", ")
        raise SecretNotFound(error.found, tried=error.tried, next_step=step) from None


def _fields(url: str, scheme: str, subject: str) -> dict[str, Any]:
    if scheme in _CARRIED:
        kind, field = _CARRIED[scheme]
        return {"kind": kind, field: url}
    rest = url.partition("://")[2]
    if scheme in ("sqlite", "duckdb"):
        path = rest.removeprefix("/")
        return {"kind": scheme, "path": path or ":memory:"}
    if scheme == "kafka":
        parts = urlsplit(url)
        if "@" in parts.netloc:
            raise _refused(subject, "a kafka URL cannot carry a user", "kind = kafka and the sasl_* fields")
        return {"kind": "kafka", "bootstrap_servers": parts.netloc, **dict(parse_qsl(parts.query))}
    path, _, query = rest.partition("?")
    return {"kind": "object_store_local", "path": path, **dict(parse_qsl(query))}


def _refused(subject: str, found: str, allowed: str) -> DeclarationError:
    return DeclarationError(subject, [Problem("url", found, allowed)])
