"""Formats of dates and times: Postgres templates, strftime codes and Spark patterns, all as Spark patterns."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ematix_flow.errors import DeclarationError, Problem

DEFAULT_TIMESTAMP_FORMATS = (
    "YYYY-MM-DD HH24:MI:SS.MS",
    "YYYY-MM-DDTHH24:MI:SS.MSOF",
    "YYYY-MM-DDTHH24:MI:SSOF",
    "YYYY-MM-DDTHH24:MI:SS.MS",
    "YYYY-MM-DDTHH24:MI:SS",
    "YYYY-MM-DD HH24:MI:SS",
    "YYYY-MM-DD",
    "MM/DD/YYYY",
)
"""Tried in this order when `parse_timestamp` is given no format."""

DEFAULT_DATE_FORMATS = ("YYYY-MM-DD", "YYYYMMDD", "MM/DD/YYYY")
"""Tried in this order when `parse_date` is given no format."""

_FRACTION = "SSSSSS"  # Spark reads up to as many digits as there are letters
_OFFSET = "[XXX][XX][X]"  # +05:30, +0530, +05 or Z

_POSTGRES = {
    "YYYY": "yyyy", "YY": "yy", "MONTH": "MMMM", "MON": "MMM", "MM": "MM", "DDD": "DDD", "DD": "dd",
    "HH24": "HH", "HH12": "hh", "HH": "hh", "MI": "mm", "SS": "ss", "MS": _FRACTION, "US": _FRACTION,
    "AM": "a", "PM": "a", "TZH:TZM": _OFFSET, "TZH": _OFFSET, "TZ": "z", "OF": _OFFSET,
}  # fmt: skip
_STRFTIME = {
    "%Y": "yyyy", "%y": "yy", "%m": "MM", "%d": "dd", "%j": "DDD", "%b": "MMM", "%h": "MMM", "%B": "MMMM",
    "%H": "HH", "%I": "hh", "%M": "mm", "%S": "ss", "%f": _FRACTION, "%p": "a", "%z": _OFFSET, "%Z": "z",
    "%T": "HH:mm:ss", "%R": "HH:mm", "%F": "yyyy-MM-dd", "%D": "MM/dd/yy", "%%": "%",
}  # fmt: skip
_SPARK_LETTERS = "GyMLdDHhkKmsSaBVzOXxZ"  # those that Spark can parse; E, F, Q and q only format

_POSTGRES_TOKEN = re.compile(
    "|".join([r'"[^"]*"', *sorted(_POSTGRES, key=len, reverse=True), "[A-Za-z]+?", r"[^A-Za-z\"]+"]), re.IGNORECASE
)
_STRFTIME_TOKEN = re.compile(r"%.?|[^%]+", re.DOTALL)
_SPARK_TOKEN = re.compile(r"'(?:[^']|'')*'|([A-Za-z])\1*|[^A-Za-z']+|'")


def spark_pattern(format: str) -> str:
    """The Spark pattern for a format in any of the three notations.

    `%` makes it strftime; a capital `Y`, `HH24`, `HH12` or `MI` makes it a Postgres template (`YYYY-MM-DD HH24:MI:SS`);
    anything else is a Spark pattern (`yyyy-MM-dd`).
    """
    if "%" in format:
        return _translate_strftime(format)
    if re.search(r"Y|HH24|HH12|MI|hh24|hh12|mi", re.sub(r"'[^']*'", "", format)):
        return _translate_postgres(format)
    return _check_spark(format)


def chosen_formats(call: str, format: str | None, formats: Sequence[str] | None, otherwise: Sequence[str]) -> list[str]:
    """The Spark patterns to try, from `format=` or `formats=` or the defaults."""
    if format is not None and formats is not None:
        raise DeclarationError(call, [Problem("formats", "given together with format", allowed="one of the two")])
    given = [format] if format is not None else [formats] if isinstance(formats, str) else formats
    if given is not None and not given:
        raise DeclarationError(call, [Problem("formats", "empty", allowed="one format or more")])
    return [spark_pattern(each) for each in (otherwise if given is None else given)]


def _translate_postgres(format: str) -> str:
    pattern, problems = [], []
    for token in _POSTGRES_TOKEN.findall(format):
        if token.upper() in _POSTGRES:
            pattern.append(_POSTGRES[token.upper()])
        elif token.startswith('"') or token in ("T", "Z"):
            pattern.append(_quoted(token.strip('"')))
        elif token.isalpha():
            allowed = f"{' '.join(_POSTGRES)}, other text in double quotes"
            problems.append(Problem("format", f"{token!r} in {format!r}", allowed=allowed))
        else:
            pattern.append(_plain(token))
    if problems:
        raise DeclarationError(f"format {format!r}", problems)
    return "".join(pattern)


def _translate_strftime(format: str) -> str:
    pattern, problems = [], []
    for token in _STRFTIME_TOKEN.findall(format):
        if token in _STRFTIME:
            pattern.append(_STRFTIME[token])
        elif token.startswith("%"):
            problems.append(Problem("format", f"{token!r} in {format!r}", allowed=" ".join(_STRFTIME)))
        else:
            pattern.append(_quoted(token) if re.search("[A-Za-z]", token) else _plain(token))
    if problems:
        raise DeclarationError(f"format {format!r}", problems)
    return "".join(pattern)


def _check_spark(format: str) -> str:
    tokens = [match[0] for match in _SPARK_TOKEN.finditer(format)]
    problems = [
        Problem("format", f"{token!r} in {format!r}", allowed=f"the letters {_SPARK_LETTERS}, others in single quotes")
        for token in tokens
        if token.count("'") == 1 or (token[0].isalpha() and token[0] not in _SPARK_LETTERS)
    ]
    letters = {token[0] for token in tokens}
    if not letters & set(_SPARK_LETTERS):
        problems.append(Problem("format", f"{format!r} has no part of a date or time", allowed='such as "YYYY-MM-DD"'))
    elif "m" in letters and "y" in letters and not letters & set("MLDHhkK"):
        found = f"{format!r} reads mm as minutes, and has no month"
        problems.append(Problem("format", found, suggestion=format.replace("m", "M")))
    if problems:
        raise DeclarationError(f"format {format!r}", problems)
    return format


def _plain(text: str) -> str:
    """Text without letters, with what has a meaning in a Spark pattern quoted."""
    return _quoted(text) if re.search(r"['\[\]{}#]", text) else text


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
