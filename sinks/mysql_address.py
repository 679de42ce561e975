"""Where a MySQL or MariaDB server is, read from a URL, and how it is connected to."""

from __future__ import annotations

import importlib.util
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from ematix_flow.connections import MySQLConnection
from ematix_flow.errors import FlowError, MissingExtra
from ematix_flow.problems import near

_CONNECT_SECONDS = 10
_MODES = ("DISABLED", "PREFERRED", "REQUIRED", "VERIFY_CA", "VERIFY_IDENTITY")
_OPTIONS = ("ssl_mode", "ssl_ca", "ssl_cert", "ssl_key", "connect_timeout", "unix_socket")

_SETTINGS = (
    # Names are quoted as in standard SQL, texts too; a value that does not fit is refused and not made to fit.
    "sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES,STRICT_ALL_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION'",
    "time_zone = '+00:00'",
    # Waiting for whoever holds a lock has an end.
    "innodb_lock_wait_timeout = 30",
    "lock_wait_timeout = 30",
)


@dataclass(frozen=True)
class Address:
    """Travels to the executors."""

    host: str
    port: int
    user: str
    password: str = field(repr=False)
    database: str
    options: Mapping[str, str]

    def __str__(self) -> str:
        """For messages."""
        place = self.options.get("unix_socket") or f"{self.host}:{self.port}"
        return f"{place}/{self.database}" if self.database else place


def understood(connection: MySQLConnection, whose: str) -> Address:
    """`whose` names the target or source in the error. The URL itself is not repeated: it may hold a password."""
    if importlib.util.find_spec("pymysql") is None:
        raise MissingExtra("pymysql", connection.driver_extra)
    try:
        parts = urlsplit(connection.url)
        host, port = parts.hostname, parts.port or 3306
    except ValueError:  # a password with a slash or a bracket shifts everything that comes after it
        parts, host, port = urlsplit(""), None, 0
    options = dict(parse_qsl(parts.query))
    database = unquote(parts.path.removeprefix("/"))
    if parts.scheme not in {"mysql", "mariadb"} or not (host or "unix_socket" in options) or "@" in parts.path:
        raise FlowError(
            f"{whose}: the URL of the connection is not one that MySQL understands",
            next_step="write mysql://user:password@host:3306/database; a password has %2F for / and %40 for @",
        )
    if unknown := [key for key in options if key not in _OPTIONS]:
        guess = near(unknown[0], _OPTIONS)
        raise FlowError(
            f"{whose}: the URL of the connection has the unknown option {unknown[0]}",
            next_step=(f'did you mean "{guess}"? ' if guess else "") + f"allowed: {', '.join(_OPTIONS)}",
        )
    if (mode := options.get("ssl_mode")) and mode.upper() not in _MODES:
        raise FlowError(
            f"{whose}: the URL of the connection has ssl_mode = {mode}", next_step=f"allowed: {', '.join(_MODES)}"
        )
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    return Address(host or "", port, user, password, database, options)


def connected(address: Address, *, settings: tuple[str, ...] = _SETTINGS, **more: Any) -> Any:
    """A connection of PyMySQL, or of the class that `kind` names."""
    import pymysql
    from pymysql.constants import CLIENT

    options = dict(address.options)
    kind = more.pop("kind", pymysql.connections.Connection)
    if socket := options.pop("unix_socket", None):
        more["unix_socket"] = socket
    return kind(
        host=address.host or None,
        port=address.port,
        user=address.user,
        password=address.password,
        database=address.database or None,
        charset="utf8mb4",
        autocommit=True,
        connect_timeout=int(options.pop("connect_timeout", _CONNECT_SECONDS)),
        # An UPDATE tells how many rows it met.
        client_flag=CLIENT.FOUND_ROWS | more.pop("client_flag", 0),
        init_command=f"SET SESSION {', '.join(settings)}" if settings else None,
        **_security(options),
        **more,
    )


def _security(options: Mapping[str, str]) -> dict[str, Any]:
    mode = options.get("ssl_mode", "VERIFY_CA" if "ssl_ca" in options else "PREFERRED").upper()
    if mode == "PREFERRED":
        return {}
    if mode == "DISABLED":
        return {"ssl_disabled": True}
    context = ssl.create_default_context(cafile=options.get("ssl_ca"))
    context.check_hostname = mode == "VERIFY_IDENTITY"
    if mode == "REQUIRED":
        context.verify_mode = ssl.CERT_NONE
    if "ssl_cert" in options:
        context.load_cert_chain(options["ssl_cert"], options.get("ssl_key"))
    return {"ssl": context}
