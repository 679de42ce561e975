"""What a batch pipeline expects of its target after a load: conditions in SQL, or a function that is given `Checks`.

def sound(t):
    t.column("email").not_null().regex("@")
    t.row_count(at_least=1)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ematix_flow.durations import Duration
from ematix_flow.errors import DeclarationError, FlowError, Problem
from ematix_flow.problems import shown

ROWS, UNIQUE, COUNT, FRESH = "rows", "unique", "row_count", "freshness"


@dataclass(frozen=True)
class Expectation:
    name: str
    """For messages, such as `email.not_null`."""
    kind: str
    """`rows`: a condition holds for each; `unique`, `row_count`, `freshness`."""
    column: str = ""
    condition: str = ""
    """SQL of the target; `{column}` stands for the column, `{0}` and `{1}` for the values."""
    values: tuple[Any, ...] = ()
    at_least: int | None = None
    at_most: int | None = None
    within: timedelta | None = None


@dataclass
class Checks:
    """Given to a function under `expectations`; what it is told is checked after each load."""

    found: list[Expectation] = field(default_factory=list)

    def column(self, name: str) -> ColumnChecks:
        """What is expected of the values of a column."""
        return ColumnChecks(self, name)

    def row_count(self, *, at_least: int | None = None, at_most: int | None = None) -> Checks:
        """How many rows the table has."""
        if at_least is None and at_most is None:
            raise DeclarationError("row_count()", [Problem("", "no limit", "at_least, at_most, or both")])
        self.found.append(Expectation("row_count", COUNT, at_least=at_least, at_most=at_most))
        return self

    def freshness(self, column: str, *, within: Any) -> Checks:
        """The newest value of a column of times is not older than this."""
        try:
            limit = TypeAdapter(Duration).validate_python(within)
        except ValidationError as error:
            raise DeclarationError("freshness()", [Problem("within", error.errors()[0]["msg"])]) from None
        self.found.append(Expectation(f"{column}.freshness", FRESH, column, within=limit))
        return self

    def condition(self, sql: str) -> Checks:
        """A condition in the SQL of the target that holds for every row."""
        self.found.append(Expectation(sql, ROWS, condition=sql.replace("{", "{{").replace("}", "}}")))
        return self


@dataclass(frozen=True)
class ColumnChecks:
    """NULL breaks nothing but `not_null`."""

    _checks: Checks
    _column: str

    def not_null(self) -> ColumnChecks:
        return self._rows("not_null", "{column} IS NOT NULL")

    def unique(self) -> ColumnChecks:
        """No value twice; NULL is none."""
        self._checks.found.append(Expectation(f"{self._column}.unique", UNIQUE, self._column))
        return self

    def between(self, low: Any, high: Any) -> ColumnChecks:
        return self._rows("between", "{column} BETWEEN {0} AND {1}", low, high)

    def is_in(self, allowed: Sequence[Any]) -> ColumnChecks:
        places = ", ".join(f"{{{i}}}" for i in range(len(allowed)))
        return self._rows("is_in", f"{{column}} IN ({places})", *allowed)

    def regex(self, pattern: str) -> ColumnChecks:
        """Each text has a part that matches."""
        return self._rows("regex", "{regex}", pattern)

    def _rows(self, what: str, condition: str, *values: Any) -> ColumnChecks:
        self._checks.found.append(Expectation(f"{self._column}.{what}", ROWS, self._column, condition, values))
        return self


_KNOWN = "row_count, freshness, condition, and column(name) with not_null, unique, between, is_in, regex"
Expected = Callable[[Checks], Any] | Sequence[str] | Mapping[str, str]


def expectations_of(given: Any) -> tuple[Expectation, ...]:
    """A function, a list of conditions, or conditions by name."""
    checks = Checks()
    if callable(given):
        try:
            given(checks)
        except FlowError:
            raise
        except Exception as error:
            found = f"the function failed: {type(error).__name__}: {error}"
            raise DeclarationError("expectations", [Problem("expectations", found, _KNOWN)]) from error
        return tuple(checks.found)
    named = given if isinstance(given, Mapping) else {sql: sql for sql in given}
    for name, sql in named.items():
        if not isinstance(sql, str) or not sql.strip():
            raise DeclarationError("expectations", [Problem(str(name), f"found {shown(sql)}", "a condition in SQL")])
        checks.condition(sql)
        checks.found[-1] = Expectation(str(name), ROWS, condition=checks.found[-1].condition)
    return tuple(checks.found)
