"""What a normalizer is, and how several become one Spark SQL expression."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ematix_flow.errors import DeclarationError, Problem
from ematix_flow.normalize.literals import columns_in, identifier


@dataclass(frozen=True, repr=False)
class Normalizer:
    """One step of a chain: the SQL text around the column.

    The text is kept in pieces, with the column between each two of them, so that nothing inside a constant can be
    taken for a placeholder. One piece alone does not use the column: that is a derived column.
    """

    call: str
    """How it was declared, for messages: `replace('a', 'b')`."""
    pieces: tuple[str, ...]
    derived: bool = field(default=False, kw_only=True)
    """True for `derive(...)`, which must be the first of a chain."""

    def to_sql(self, column_sql: str) -> str:
        """The Spark SQL expression for this step applied to the expression `column_sql`."""
        return column_sql.join(self.pieces)

    def __repr__(self) -> str:
        return self.call


def step(name: str, arguments: Iterable[object], *pieces: str) -> Normalizer:
    """A normalizer from its name, its arguments and the SQL text around the column."""
    return Normalizer(f"{name}({', '.join(map(repr, arguments))})", pieces)


def compose(normalizers: Iterable[Normalizer], column_name: str) -> str:
    """One Spark SQL expression for a column: the normalizers from left to right, around the quoted column."""
    chain = tuple(normalizers)
    if problems := chain_problems(chain):
        raise DeclarationError(f"normalizers of {column_name}", problems)
    expression = identifier(column_name)
    for normalizer in chain:
        expression = normalizer.to_sql(expression)
    return expression


def columns_named(normalizers: Iterable[Normalizer], column_name: str) -> tuple[str, ...]:
    """The columns that the SQL of `derive` and `sql` names, as far as it can be read."""
    chain = tuple(normalizers)
    free = any(one.derived or one.call.startswith("sql(") for one in chain)
    return columns_in(compose(chain, column_name)) if free else ()


def chain_problems(chain: tuple[Normalizer, ...]) -> list[Problem]:
    """What is wrong with the order of a chain."""
    return [
        Problem("", f"{normalizer} after {chain[0]} would throw its result away", allowed="derive(...) first")
        for normalizer in chain[1:]
        if normalizer.derived
    ]
