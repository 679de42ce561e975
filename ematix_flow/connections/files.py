"""Connections in TOML files: `[connections.<name>]` in the project's and in the user's file."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ematix_flow.connections.base import Connection
from ematix_flow.connections.kinds import build_connection
from ematix_flow.connections.urls import connection_from_url
from ematix_flow.errors import DeclarationError, Problem, UsageError
from ematix_flow.secrets import warn_inline_credentials


def project_file() -> Path:
    """`./.ematix-flow.toml`."""
    return Path.cwd() / ".ematix-flow.toml"


def user_file() -> Path:
    """`~/.ematix-flow/connections.toml`."""
    return Path.home() / ".ematix-flow" / "connections.toml"


def entries(file: Path) -> dict[str, Any]:
    """What a file says under `[connections]`, by name; nothing if there is no such file."""
    if not file.is_file():
        return {}
    try:
        section = tomllib.loads(file.read_text(encoding="utf-8")).get("connections", {})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        line = re.search(r"at line (\d+)", str(error))
        problem = Problem("", f"not valid TOML: {error}", file=str(file), line=int(line.group(1)) if line else None)
        raise DeclarationError(str(file), [problem]) from None
    if not isinstance(section, dict):
        found = f"{type(section).__name__}, not a table"
        raise DeclarationError(str(file), [Problem("connections", found, "[connections.<name>]", file=str(file))])
    return section


def from_file(name: str, file: Path) -> tuple[Connection, str] | None:
    """The connection of a name in a file, with the place; warns about credentials in plain text."""
    declared = entries(file)
    if name not in declared:
        return None
    try:
        built = _built(name, declared[name])
    except DeclarationError as error:
        text = file.read_text(encoding="utf-8")
        raise DeclarationError(error.subject, [_placed(p, name, file, text) for p in error.problems]) from None
    warn_inline_credentials(built, file)
    return built, f"{file} [connections.{name}]"


def write_entry(name: str, dsn: str, file: Path) -> None:
    """Set `[connections.<name>]` of a file to a DSN and leave every other byte of it alone."""
    before = entries(file)
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    key = name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)
    # A JSON string is a TOML basic string, apart from DEL and from surrogate pairs, which ensure_ascii would make.
    entry = f"[connections.{key}]\ndsn = {json.dumps(dsn, ensure_ascii=False)}\n"
    start, end = _section(text, name)
    changed = text[:start] + entry + text[end:] if start >= 0 else f"{text.rstrip()}\n\n{entry}".lstrip()
    expected = {**tomllib.loads(text), "connections": {**before, name: {"dsn": dsn}}}
    try:
        kept = tomllib.loads(changed) == expected
    except tomllib.TOMLDecodeError:
        kept = False
    if not kept:
        found = f'{file} declares "{name}" in a form that cannot be replaced without touching the rest'
        raise UsageError(found, next_step=f"edit the entry of {name} in {file} by hand")
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_name(f"{file.name}.new")
    beside.touch(mode=0o600)
    beside.write_text(changed, encoding="utf-8")
    beside.replace(file)


def _built(name: str, entry: Any) -> Connection:
    if isinstance(entry, str):
        return connection_from_url(entry, name=name)
    if not isinstance(entry, Mapping):
        problem = Problem("", f"{type(entry).__name__}, not a table", 'dsn = "...", or kind and its fields')
        raise DeclarationError(f'connection "{name}"', [problem])
    for synonym in ("dsn", "url"):
        if "kind" not in entry and isinstance(entry.get(synonym), str):
            more = {key: value for key, value in entry.items() if key != synonym}
            return connection_from_url(entry[synonym], name=name, more={**more, "name": name})
    return build_connection(f'connection "{name}"', {**entry, "name": name})


def _placed(problem: Problem, name: str, file: Path, text: str) -> Problem:
    start, end = _section(text, name)
    line = text.count("\n", 0, start) + 1 if start >= 0 else None
    written = re.search(rf"(?m)^[ \t]*{re.escape(problem.key)}[ \t]*=", text[start:end])
    if line and problem.key and written:
        line += text.count("\n", start, start + written.end())
    key = f"connections.{name}.{problem.key}".rstrip(".")
    return Problem(key, problem.found, problem.allowed, problem.suggestion, str(file), line)


def _section(text: str, name: str) -> tuple[int, int]:
    """Where the table `[connections.<name>]` begins and ends in the text; -1 if it has no header of its own."""
    key = rf"(?:{re.escape(name)}|\"{re.escape(name)}\"|'{re.escape(name)}')"
    header = re.search(rf"(?m)^[ \t]*\[[ \t]*connections[ \t]*\.[ \t]*{key}[ \t]*\][^\n]*(?:\n|\Z)", text)
    if header is None:
        return -1, -1
    # Blank and comment lines before the next header belong to that header.
    following = re.compile(r"(?m)^(?:[ \t]*(?:#[^\n]*)?\n)*[ \t]*\[").search(text, header.end())
    return header.start(), following.start() if following else len(text)
