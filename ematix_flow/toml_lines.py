"""Finds the line of every key in a TOML text that `tomllib` has already accepted (it does not keep lines itself)."""

from __future__ import annotations

import bisect
import re
import tomllib
from contextlib import suppress

from ematix_flow.problems import Loc

_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_SPACE = re.compile(r"[ \t]*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_BASIC_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_LITERAL_STRING = re.compile(r"'[^'\n]*'")
_LONG_BASIC_STRING = re.compile(r'"""(?:[^\\]|\\.)*?"""+', re.DOTALL)
_LONG_LITERAL_STRING = re.compile(r"'''.*?'''+", re.DOTALL)
_SCALAR = re.compile(r"[^,\]}\n#]*")


def key_lines(text: str) -> dict[Loc, int]:
    """Place -> line, for tables, keys, and the elements of arrays and inline tables."""
    scanner = _Scanner(text)
    with suppress(ValueError, IndexError):  # a line that cannot be told must not hide the problem that stands there
        scanner.scan()
    return scanner.lines


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.lines: dict[Loc, int] = {}
        self.line_starts = [0, *(match.end() for match in re.finditer("\n", text))]
        self.last_index: dict[Loc, int] = {}
        """Array of tables -> index of its latest element."""

    def scan(self) -> None:
        table: Loc = ()
        self.skip(_BLANK)
        while self.at < len(self.text):
            table = self.header() if self.text[self.at] == "[" else self.pair(table)
            self.skip(_BLANK)

    def header(self) -> Loc:
        line, is_array = self.line(), self.text.startswith("[[", self.at)
        self.at += 2 if is_array else 1
        *parents, last = self.key()
        self.at = self.text.index("]", self.at) + (2 if is_array else 1)
        table: Loc = ()
        for step in parents:
            table = (*table, step)
            self.lines.setdefault(table, line)  # until it has a header of its own
            table = self.latest(table)
        table = (*table, last)
        if is_array:
            self.last_index[table] = self.last_index.get(table, -1) + 1
            self.lines.setdefault(table, line)
            table = self.latest(table)
        self.lines[table] = line
        return table

    def latest(self, table: Loc) -> Loc:
        return (*table, self.last_index[table]) if table in self.last_index else table

    def pair(self, table: Loc) -> Loc:
        line, place = self.line(), table
        for step in self.key():
            place = (*place, step)
            self.lines.setdefault(place, line)
        self.skip(_SPACE)
        self.at += 1  # the equals sign
        self.skip(_SPACE)
        self.value(place)
        return table

    def key(self) -> list[str]:
        steps = []
        while True:
            self.skip(_SPACE)
            quote = self.text[self.at]
            if quote == '"':
                steps.append(str(tomllib.loads(f"key = {self.skip(_BASIC_STRING)}")["key"]))
            elif quote == "'":
                steps.append(self.skip(_LITERAL_STRING)[1:-1])
            else:
                steps.append(self.skip(_BARE_KEY))
            self.skip(_SPACE)
            if self.text[self.at] != ".":
                return steps
            self.at += 1

    def value(self, place: Loc) -> None:
        if self.text.startswith('"""', self.at):
            self.skip(_LONG_BASIC_STRING)
        elif self.text.startswith("'''", self.at):
            self.skip(_LONG_LITERAL_STRING)
        elif self.text[self.at] == '"':
            self.skip(_BASIC_STRING)
        elif self.text[self.at] == "'":
            self.skip(_LITERAL_STRING)
        elif self.text[self.at] in "[{":
            self.collection(place)
        else:
            self.skip(_SCALAR)

    def collection(self, place: Loc) -> None:
        is_table, index = self.text[self.at] == "{", 0
        self.at += 1
        self.skip(_BLANK)
        while self.text[self.at] not in "]}":
            if is_table:
                self.pair(place)
            else:
                self.lines.setdefault((*place, index), self.line())
                self.value((*place, index))
                index += 1
            self.skip(_BLANK)
            if self.text[self.at] == ",":
                self.at += 1
                self.skip(_BLANK)
        self.at += 1

    def line(self) -> int:
        return bisect.bisect_right(self.line_starts, self.at)

    def skip(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self.text, self.at)
        if match is None:
            raise ValueError(f"line {self.line()} is not TOML")
        self.at = match.end()
        return match.group()
