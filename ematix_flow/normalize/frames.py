"""Transforms of a whole batch before it is written (`transforms_pre`): each wraps a query in another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ematix_flow.errors import DeclarationError, Problem
from ematix_flow.normalize.literals import columns_in, identifier, whole_number

_SEED = 20_260_101  # any number; without one, Spark takes another at each start


@dataclass(frozen=True)
class FrameTransform:
    """A query around a query: the text before and after the inner one."""

    call: str
    before: str
    after: str
    expressions: tuple[str, ...] = ()
    """Spark SQL over the columns of the inner one."""

    def to_sql(self, inner: str) -> str:
        """The Spark SQL query for this transform over `inner`, a query or the name of a table."""
        query = inner.strip().rstrip(";").rstrip()
        return f"{self.before}({query}){self.after}"

    @property
    def named(self) -> tuple[str, ...]:
        """The columns that it looks at, as far as its SQL can be read."""
        return tuple(dict.fromkeys(name for one in self.expressions for name in columns_in(one)))

    def __repr__(self) -> str:
        return self.call


def deduplicate_by(
    *columns: str | Sequence[str], keys: Sequence[str] = (), order_by: str | None = None
) -> FrameTransform:
    """Keep one row per key: the first by `order_by` (Spark SQL, such as `updated_at DESC`).

    The columns of the key may stand alone or in a list. Without `order_by` it is the first by the row's own content, so
    that the same rows always give the same result.
    """
    keys = [name for one in (*columns, keys) for name in ([one] if isinstance(one, str) else one)]
    call = f"deduplicate_by({', '.join([*map(repr, keys), *([f'order_by={order_by!r}'] if order_by else [])])})"
    if not keys:
        raise DeclarationError(call, [Problem("keys", "none", allowed="one column or more")])
    partition = ", ".join(map(identifier, keys))
    ranking = f"row_number() OVER (PARTITION BY {partition} ORDER BY {order_by or 'to_json(struct(*))'})"
    return FrameTransform(
        call,
        f"SELECT * EXCEPT (__rank) FROM (SELECT *, {ranking} AS __rank FROM ",
        ") WHERE __rank = 1",
        (*map(identifier, keys), *([f"row_number() OVER (ORDER BY {order_by})"] if order_by else [])),
    )


def filter_where(expr: str) -> FrameTransform:
    """Keep the rows for which a Spark SQL condition is true."""
    if not isinstance(expr, str) or not expr.strip():
        found = "empty" if isinstance(expr, str) else f"{expr!r}"
        raise DeclarationError(f"filter_where({expr!r})", [Problem("expr", found, allowed="a condition")])
    return FrameTransform(f"filter_where({expr!r})", "SELECT * FROM ", f" WHERE {expr}", (expr,))


def limit(n: int) -> FrameTransform:
    """Keep at most `n` rows."""
    whole_number(n, f"limit({n!r})", least=0)
    return FrameTransform(f"limit({n!r})", "SELECT * FROM ", f" LIMIT {n}")


def sample_pct(p: float) -> FrameTransform:
    """Keep each row with probability `p`, from 0 to 1: the same rows if a batch is repeated after a crash."""
    if not isinstance(p, int | float) or not 0 <= p <= 1:
        raise DeclarationError(f"sample_pct({p!r})", [Problem("p", f"{p!r}", allowed="0 to 1; 10 percent is 0.1")])
    return FrameTransform(f"sample_pct({p!r})", "SELECT * FROM ", f" WHERE rand({_SEED}) < {float(p)!r}")
