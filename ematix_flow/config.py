"""Where a connection name is looked up, and in which order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from ematix_flow.connections import environment, files
from ematix_flow.connections.base import Connection
from ematix_flow.connections.registry import registered_connections
from ematix_flow.connections.urls import connection_from_url
from ematix_flow.errors import FlowError, UnknownConnection, UsageError
from ematix_flow.problems import shown
from ematix_flow.secrets import expanded

__all__ = ["Found", "connect", "list_connections", "resolve_connection", "set_connection"]


@dataclass(frozen=True)
class Found:
    """A connection and the place that declares it, or what is wrong with the declaration."""

    name: str
    origin: str
    connection: Connection | None = None
    problem: FlowError | None = None


def resolve_connection(name: str | Connection) -> Connection:
    """The connection of a name from the first place that knows it, references unexpanded; a connection is itself."""
    if isinstance(name, Connection):
        return name
    if not isinstance(name, str):
        raise UsageError(f"a connection is found by its name, not by {shown(name)}", next_step="give its name")
    for place in _PLACES:
        hit = place.find(name)
        if hit is not None:
            return hit[0]
    near = get_close_matches(name, _all_names(), n=3)
    hint = f"did you mean {' or '.join(near)}? Otherwise declare" if near else "declare"
    raise UnknownConnection(
        f'no connection is named "{name}"',
        tried=[place.describe(name) for place in _PLACES],
        next_step=f'{hint} it in code with register_connection(...), or run: flow connections set {name} "<dsn>"',
    )


def connect(name: str | Connection = "default", *, url: str | None = None) -> Connection:
    """The connection ready to be opened: found by name or made from `url`, with every `${...}` expanded now."""
    if url is not None:
        label = name if isinstance(name, str) else name.name
        return expanded(connection_from_url(url, name=label))
    return expanded(resolve_connection(name))


def list_connections() -> dict[str, Found]:
    """Every connection that can be found by name, from the place that wins."""
    found = (_found(name) for name in sorted(_all_names()))
    return {each.name: each for each in found if each is not None}


def set_connection(name: str, dsn: str) -> Path:
    """Write a connection to the user's file, beside what is there, and return the file."""
    connection_from_url(dsn, name=name)
    file = files.user_file()
    files.write_entry(name, dsn, file)
    return file


@dataclass(frozen=True)
class _Place:
    describe: Callable[[str], str]
    find: Callable[[str], tuple[Connection, str] | None]


def _in_code(name: str) -> tuple[Connection, str] | None:
    conn = registered_connections().get(name)
    return None if conn is None else (conn, "code")


def _registered(_: str) -> str:
    return f"connections registered in code ({', '.join(sorted(registered_connections())) or 'none'})"


def _entry(file: Path, name: str) -> str:
    return f"{file} [connections.{name}]" + ("" if file.is_file() else " (no such file)")


_PLACES = (
    _Place(_registered, _in_code),
    _Place(environment.describe_dsn_variable, environment.from_dsn_variable),
    _Place(environment.describe_field_variables, environment.from_field_variables),
    _Place(lambda name: _entry(files.project_file(), name), lambda name: files.from_file(name, files.project_file())),
    _Place(lambda name: _entry(files.user_file(), name), lambda name: files.from_file(name, files.user_file())),
)


def _found(name: str) -> Found | None:
    for place in _PLACES:
        try:
            hit = place.find(name)
        except FlowError as error:
            return Found(name, place.describe(name), problem=error)
        if hit is not None:
            return Found(name, hit[1], hit[0])
    return None  # such as an environment variable that is empty


def _all_names() -> set[str]:
    in_files = {name for file in (files.project_file(), files.user_file()) for name in files.entries(file)}
    return {*registered_connections(), *environment.names_in_environment(), *in_files}
