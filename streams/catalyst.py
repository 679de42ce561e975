"""The few places where Spark's own plans and expressions are handled, which its public API does not offer.

Spark's parser and analyzer know best what a SELECT does, and its `TryEval` can try any expression. Everything that
depends on these internals of Spark 4.2 is here, and the tests of the transform notice if an upgrade changes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

Plan = Any
"""A logical plan of Spark's."""
Expression = Any
"""An expression of Spark's, resolved or not."""


def analyzed(rows: DataFrame) -> Plan:
    return rows._jdf.queryExecution().analyzed()  # noqa: SLF001


def optimized(rows: DataFrame) -> Plan:
    """As Spark would run it. Of a frame of its own, because one that was optimized once does not notice what is kept
    afterwards."""
    return frame(analyzed(rows), rows.sparkSession)._jdf.queryExecution().optimizedPlan()  # noqa: SLF001


def parsed(session: SparkSession, sql: str) -> Plan:
    return session._jsparkSession.sessionState().sqlParser().parsePlan(sql)  # noqa: SLF001


def inlined(plan: Plan) -> Plan:
    """The plan with every WITH clause put where it is used."""
    return _jvm().org.apache.spark.sql.catalyst.optimizer.InlineCTE(True, False).apply(plan)


def frame(plan: Plan, session: SparkSession) -> DataFrame:
    from pyspark.sql.classic.dataframe import DataFrame

    dataset = _jvm().org.apache.spark.sql.classic.Dataset
    return DataFrame(dataset.ofRows(session._jsparkSession, plan), session)  # noqa: SLF001


def column(expression: Expression) -> Column:
    from pyspark.sql.classic.column import Column

    return Column(_jvm().org.apache.spark.sql.classic.ExpressionUtils.column(expression))


def expression(of: Column) -> Expression:
    return _jvm().org.apache.spark.sql.classic.ExpressionUtils.expression(of._jc)  # noqa: SLF001


def named(of: Column, rows: DataFrame) -> Expression:
    """A column with a name, resolved over `rows`."""
    return items(analyzed(rows.select(of)).projectList())[0]


def tried(child: Expression) -> Expression:
    """The child's value, or NULL if evaluating it raises anything."""
    return _jvm().org.apache.spark.sql.catalyst.expressions.TryEval(child)


def text(of: Expression) -> str:
    """As a person would write it, without the casts that Spark adds."""
    pretty = getattr(_jvm().org.apache.spark.sql.catalyst.util, "package$")
    return str(getattr(pretty, "MODULE$").toPrettySQL(of, True))


# With inputs that do not fail, these do not, either; what is not listed is tried.
_HARMLESS = frozenset({
    "AttributeReference", "Literal", "PythonUDF", "GetStructField", "CreateNamedStruct", "IsNull", "IsNotNull", "Not",
    "And", "Or", "EqualTo", "EqualNullSafe", "LessThan", "LessThanOrEqual", "GreaterThan", "GreaterThanOrEqual", "In",
    "InSet", "CaseWhen", "If", "Coalesce", "Upper", "Lower", "Length", "Concat", "ConcatWs", "StringTrim",
    "StringTrimLeft", "StringTrimRight", "StartsWith", "EndsWith", "Contains",
})  # fmt: skip


def cannot_fail(value: Expression) -> bool:
    harmless = kind(value) in _HARMLESS or (kind(value) == "Cast" and _is_widening(value))
    return harmless and all(cannot_fail(child) for child in children(value))


def _is_widening(cast: Expression) -> bool:
    source, result = cast.child().dataType(), cast.dataType()
    rule = getattr(getattr(_jvm().org.apache.spark.sql.catalyst.expressions, "Cast$"), "MODULE$")
    return bool(source.sameType(result) or rule.canUpCast(source, result))


def spelled_out(value: Expression, meant: Mapping[str, Expression] | None = None) -> Expression:
    """With what is evaluated once and meant several times, as in `nullif` and `between`, written where it is meant:
    an expression can then be taken apart."""
    meant = meant or {}
    if kind(value) == "CommonExpressionRef":
        return meant[value.id().toString()]
    if kind(value) == "With":
        defined = {one.id().toString(): spelled_out(one.child(), meant) for one in items(value.defs())}
        return spelled_out(value.child(), {**meant, **defined})
    before = children(value)
    after = [spelled_out(child, meant) for child in before]
    return value if all(one is other for one, other in zip(before, after, strict=True)) else with_children(value, after)


def kind(node: Plan | Expression) -> str:
    return str(node.getClass().getSimpleName())


def items(sequence: Any) -> list[Any]:
    """A Scala sequence as a list."""
    return [sequence.apply(i) for i in range(sequence.size())]


def children(node: Plan | Expression) -> list[Any]:
    return items(node.children())


def with_children(node: Expression, new: Sequence[Expression]) -> Expression:
    jvm = _jvm()
    listed = jvm.java.util.ArrayList()
    for child in new:
        listed.add(child)
    return node.withNewChildren(jvm.scala.jdk.javaapi.CollectionConverters.asScala(listed).toSeq())


def _jvm() -> Any:
    from pyspark import SparkContext

    context = SparkContext._active_spark_context  # noqa: SLF001
    assert context is not None
    return context._jvm  # noqa: SLF001
