"""Reads a schema such as `id long, tags array<string>` the way Spark does, to tell mistakes before Spark is started."""

from __future__ import annotations

import re

from ematix_flow.model import Complaint
from ematix_flow.problems import near

_TOKEN = re.compile(r"`(?:[^`]|``)*`|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|\w+|\S")
_TYPES = (
    "boolean", "tinyint", "byte", "smallint", "short", "int", "integer", "bigint", "long", "float", "real", "double",
    "decimal", "dec", "numeric", "string", "char", "character", "varchar", "binary", "date", "time", "timestamp",
    "timestamp_ntz", "timestamp_ltz", "interval", "variant", "void", "array", "map", "struct",
)  # fmt: skip
_AFTER_A_TYPE = frozenset({"not", "collate", "comment", "default", "generated"})
_WITH_SIZE = frozenset({"decimal", "dec", "numeric", "char", "character", "varchar", "time"})


def schema_complaint(text: str, key: str) -> Complaint | None:
    """What is wrong with the schema that stands at `key`, or nothing."""
    try:
        names = column_names(text)
    except SchemaMistake as mistake:
        return Complaint((key,), mistake.found, mistake.allowed, mistake.suggestion)
    # Spark does not tell `id` and `ID` apart.
    known = [name.lower() for name in names]
    twice = [name for number, name in enumerate(names) if name.lower() in known[:number]]
    return Complaint((key,), f"the column {twice[0]} is there twice") if twice else None


def column_names(text: str) -> list[str]:
    """Of a schema without mistakes."""
    return _Reader(_TOKEN.findall(text)).columns(until="")


class SchemaMistake(Exception):
    def __init__(self, found: str, allowed: str = "", suggestion: str = "") -> None:
        self.found, self.allowed, self.suggestion = found, allowed, suggestion


class _Reader:
    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._at = 0

    def columns(self, until: str) -> list[str]:
        names = []
        while True:
            names.append(self._column(inside=bool(until)))
            if self._next == until:
                return names
            self._expect(",", after="a column")

    def _column(self, *, inside: bool) -> str:
        name = self._take()
        if not re.match(r"\w|`", name):
            raise SchemaMistake(f"found {_shown(name)}", "the name of a column")
        if self._next == ":":
            self._take()
        if self._next in ("", ","):
            raise SchemaMistake(f"the column {name} has no type", "name and type, such as id long")
        self._type()
        if inside and self._next.lower() == "not":
            allowed = "NOT NULL for a whole column, and a WHERE for what is inside"
            raise SchemaMistake(f"{name} is NOT NULL inside of a struct", allowed)
        if self._next.lower() in _AFTER_A_TYPE:
            while self._next not in ("", ",", ">"):
                self._take()
        return name[1:-1].replace("``", "`") if name.startswith("`") else name

    def _type(self) -> None:
        word = self._take()
        kind = word.lower()
        if kind not in _TYPES:
            raise SchemaMistake(f"unknown type {_shown(word)}", ", ".join(_TYPES), near(word, _TYPES))
        if kind in ("array", "map", "struct"):
            self._expect("<", after=word)
            self._parts(kind)
            self._expect(">", after=word)
        elif kind == "interval":
            while self._next.lower() in ("year", "month", "day", "hour", "minute", "second", "to"):
                self._take()
        elif kind in _WITH_SIZE and self._next == "(":
            while self._take() != ")":
                pass

    def _parts(self, kind: str) -> None:
        if kind == "struct":
            if self._next != ">":
                self.columns(until=">")
            return
        self._type()
        if kind == "map":
            self._expect(",", after="the type of the keys of a map")
            self._type()

    @property
    def _next(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self) -> str:
        token = self._next
        if not token:
            raise SchemaMistake("the schema ends too early")
        self._at += 1
        return token

    def _expect(self, token: str, after: str) -> None:
        if self._next != token:
            raise SchemaMistake(f"found {_shown(self._next)} after {after}", f'"{token}"')
        self._take()


def _shown(token: str) -> str:
    return f'"{token}"' if token else "the end"
