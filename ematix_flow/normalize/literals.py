"""Names and values as Spark SQL text that nothing in them can break out of."""

from __future__ import annotations

import math
from datetime import date, datetime
from decimal import Decimal

from ematix_flow.errors import DeclarationError, Problem

Literal = str | bool | int | float | Decimal | date | datetime | bytes


def identifier(name: str) -> str:
    """The name of one column, quoted; a dot in it is part of the name."""
    return "`" + name.replace("`", "``") + "`"


def text_literal(value: str) -> str:
    """A string constant. `${` is broken up because Spark would substitute `${name}` even inside a constant."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'").replace("${", "$\\{")
    return f"'{escaped}'"


def literal(value: Literal, subject: str) -> str:
    """A constant of any supported Python type; `subject` is named when the type is not supported."""
    match value:
        case str():
            return text_literal(value)
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return repr(value) if math.isfinite(value) else f"double('{value}')"
        case Decimal() if value.is_finite():
            return f"{value:f}BD"
        case datetime():
            kind = "TIMESTAMP_NTZ" if value.tzinfo is None else "TIMESTAMP"
            return f"{kind}'{value.isoformat(sep=' ')}'"
        case date():
            return f"DATE'{value.isoformat()}'"
        case bytes():
            return f"X'{value.hex()}'"
    problem = Problem(
        "value",
        f"{value!r} of type {type(value).__name__}",
        allowed="str, bool, int, float, Decimal, date, datetime, bytes; sql(...) takes any expression",
    )
    raise DeclarationError(subject, [problem])


def whole_number(value: object, subject: str, least: int | None = None) -> None:
    """Refuse what is none, or too small a one."""
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if not is_whole or (least is not None and value < least):  # type: ignore[operator]
        allowed = "a whole number" if least is None else f"a whole number from {least}"
        raise DeclarationError(subject, [Problem("n", f"{value!r}", allowed)])


def columns_in(expression: str) -> tuple[str, ...]:
    """The columns that a Spark SQL expression names; none if it cannot be read, or has a query inside."""
    import sqlglot
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    try:
        tree = sqlglot.parse_one(expression, read="spark")
    except SqlglotError:
        return ()
    if tree.find(exp.Query):
        return ()
    return tuple(dict.fromkeys(column.parts[0].name for column in tree.find_all(exp.Column)))
