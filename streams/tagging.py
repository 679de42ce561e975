"""Expressions that may fail on a row, evaluated so that a failure tags that row and touches no other.

A failed expression gives NULL. A result that is NULL is looked at again, inside a struct, which is NULL only if
evaluating it failed. So a good row costs next to nothing, conditions and short cuts keep their meaning, and it works
for every function that Spark has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ematix_flow.streams import catalyst
from ematix_flow.streams.catalyst import Expression
from ematix_flow.streams.envelope import ERROR, IS_GOOD, OURS, Origin

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

KEEP = "_flow_keep"
"""Whether the WHERE of the transform keeps the row. It is left out only after it was counted."""

_SHOWN = 60
# What is inside these is evaluated for some rows only, and by itself it may fail where it never does in its place.
_CONDITIONAL = frozenset({"CaseWhen", "If", "Coalesce", "And", "Or"})
_DIVISIONS = frozenset({"Divide", "IntegralDivide", "Remainder", "Pmod"})


@dataclass(frozen=True)
class Attempt:
    """A column to compute, and what to say when that fails."""

    value: Column
    """The computed column, under its name."""
    failed: Column
    """Whether it could not be computed; over rows that have their old columns and the new one."""
    why: Column
    """A struct of code and message; looked at only when it failed."""


def attempt(value: Expression, named: Expression, rows: DataFrame) -> Attempt:
    """Compute `value`, as the alias `named`, for rows that may go on."""
    from pyspark.sql import functions as F

    guarded = F.when(may_go_on(rows), catalyst.column(catalyst.tried(value)))
    return Attempt(
        value=catalyst.column(catalyst.with_children(named, [catalyst.expression(guarded)])),
        failed=catalyst.column(named.toAttribute()).isNull() & fails(value),
        why=_reason(named.name(), value),
    )


def tagged(
    rows: DataFrame,
    attempts: Sequence[Attempt],
    outputs: Sequence[Column],
    origin: Origin,
    stage: str,
    without: str | None = None,
) -> DataFrame:
    """`outputs`, and all that is ours (`without` one); rows for which an attempt failed are tagged."""
    from pyspark.sql import functions as F

    ours = [F.col(name) for name in rows.columns if name.startswith(OURS) and name not in {ERROR, without}]
    if not attempts:
        return rows.select(*outputs, *ours, ERROR)
    failed = F.lit(False)
    for one in attempts:
        failed |= one.failed
    why = F.coalesce(*[F.when(one.failed, one.why) for one in attempts])
    error = F.when(may_go_on(rows) & failed, origin.error(rows, stage, why["code"], why["message"]))
    computed = rows.select("*", *[one.value for one in attempts])
    return computed.select(*outputs, *ours, F.coalesce(F.col(ERROR), error).alias(ERROR))


def may_go_on(rows: DataFrame) -> Column:
    """Whether a row is good and wanted, so that expressions are worth evaluating for it."""
    from pyspark.sql import functions as F

    fine = F.expr(IS_GOOD)
    # Not by name: a second filter puts another column of this name beside the first.
    kept = [a for a in catalyst.items(catalyst.analyzed(rows).output()) if a.name() == KEEP]
    return fine & catalyst.column(kept[0]) if kept else fine


def words(code: str, *parts: Column | str) -> Column:
    """Code and message, as `Attempt.why` has them; values in it are cut short."""
    from pyspark.sql import functions as F

    return _why(code, *[F.lit(part) if isinstance(part, str) else _shown(part) for part in parts])


def _why(code: str, *parts: Column) -> Column:
    from pyspark.sql import functions as F

    return F.struct(F.lit(code).alias("code"), F.concat(*parts).alias("message"))


def _shown(value: Column) -> Column:
    from pyspark.sql import functions as F

    text = value.cast("string")
    short = F.when(F.length(text) > _SHOWN, F.concat(F.substring(text, 1, _SHOWN), F.lit("..."))).otherwise(text)
    return F.coalesce(short, F.lit("NULL"))


def fails(value: Expression) -> Column:
    from pyspark.sql import functions as F

    struct = catalyst.expression(F.struct(catalyst.column(value)))
    return catalyst.column(catalyst.tried(struct)).isNull()


def _reason(name: str, value: Expression) -> Column:
    """What a function of the user's raised; otherwise the smallest part of the expression that fails by itself."""
    from pyspark.sql import functions as F

    raised = [catalyst.column(catalyst.tried(message)) for message in _raised(value)]
    found = [F.when(message.isNotNull(), _why("raised", F.lit(_where(name)), message)) for message in raised]
    found += [F.when(fails(part), _words(name, part)) for part in _parts(value)]
    return F.coalesce(*found, _words(name, value))


def _raised(value: Expression) -> Iterator[Expression]:
    """Messages that come from the row, as those of Python functions do; a constant one says nothing about it."""
    if catalyst.kind(value) == "RaiseError":
        # Its parameters are a map of one entry, the message.
        message = catalyst.children(value.errorParms())[1]
        if not message.foldable():
            yield message
    for child in catalyst.children(value):
        yield from _raised(child)


def _parts(value: Expression) -> Iterator[Expression]:
    """Inner ones first."""
    inner = catalyst.children(value)
    if catalyst.kind(value) not in _CONDITIONAL:
        for child in inner:
            yield from _parts(child)
    if inner and not _has_variables(value):
        yield value


def _has_variables(value: Expression) -> bool:
    """Whether it is a part of a lambda, which means nothing outside of it."""
    return catalyst.kind(value) in {"LambdaFunction", "NamedLambdaVariable"} or (
        "namedlambdavariable" in value.sql() and "lambdafunction" not in value.sql()
    )


def _words(name: str, failing: Expression) -> Column:
    kind, where = catalyst.kind(failing), _where(name)
    if kind == "RaiseError":
        return words("raised", where, catalyst.column(catalyst.children(failing.errorParms())[1]))
    if kind == "Cast":
        return words("bad-cast", where, 'cannot read "', catalyst.column(failing.child()), f'" as {_type(failing)}')
    parts: list[Column | str] = [where, catalyst.text(failing), " fails"]
    inputs = sorted(catalyst.items(failing.references().toSeq()), key=lambda used: str(used.name()))
    for number, used in enumerate(inputs):
        parts += [", " if number else " with ", f"{used.name()} = ", catalyst.column(used)]
    return words("divide-by-zero" if kind in _DIVISIONS else "transform-failed", *parts)


def _where(name: str) -> str:
    return "WHERE: " if name == KEEP else f"column {name}: "


def _type(value: Expression) -> str:
    return str(value.dataType().simpleString())
