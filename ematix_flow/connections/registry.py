"""The connections declared in code, by name."""

from __future__ import annotations

from typing import TypeVar

from ematix_flow.connections.base import Connection
from ematix_flow.connections.kinds import build_connection
from ematix_flow.errors import DeclarationError, Problem
from ematix_flow.origins import users_line

C = TypeVar("C", bound=Connection)

_registered: dict[str, Connection] = {}


def register_connection(conn: C) -> C:
    """Make a connection known by its name, and return it. The last one of a name counts, as in a notebook."""
    given: object = conn
    if not isinstance(given, Connection):
        problem = Problem("", f"{type(given).__name__} is not a connection", "a typed connection")
        raise DeclarationError("register_connection", [problem], origin=users_line())
    if not conn.name:
        problem = Problem("name", "missing: a registered connection is found by its name")
        raise DeclarationError(f"{conn!r}", [problem], origin=users_line())
    _registered[conn.name] = conn
    return conn


def get_connection(name: str) -> Connection:
    """The connection of this name: from code, environment or configuration files; `${...}` is not expanded yet."""
    from ematix_flow.config import resolve_connection

    return resolve_connection(name)


def registered_connections() -> dict[str, Connection]:
    """The connections declared in code; changing the result changes nothing."""
    return dict(_registered)


def clear_registry() -> None:
    """Forget every connection declared in code."""
    _registered.clear()


def connection(cls: type | None = None) -> Connection:
    """Register the connection that a class body describes; the class name is the connection's name.

    `kind` says what it is, the other attributes are its fields. The decorated name is the connection itself.
    """
    if not isinstance(cls, type):
        found = "no class" if cls is None else f"{type(cls).__name__} is not a class"
        allowed = "@ematix.connection, without parentheses, on a class with kind = ... and fields"
        raise DeclarationError("@ematix.connection", [Problem("", found, allowed)], origin=users_line())
    body: dict[str, object] = {}
    for part in reversed(cls.__mro__[:-1]):
        body |= {key: value for key, value in vars(part).items() if not key.startswith("_")}
    fields = {"name": cls.__name__, **body}
    return register_connection(build_connection(f"connection {cls.__name__}", fields, origin=users_line()))
