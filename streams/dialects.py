"""SQL of other dialects as Spark's, where the text alone does not tell: DataFusion divides whole numbers as wholes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_NUMBER = "flow_division"


def in_spark_sql(tree: Any, dialect: str, tables: Mapping[str, DataFrame]) -> str:
    """`tables` are those that the SELECT may name."""
    from sqlglot import exp

    if dialect == "datafusion":
        divisions = list(tree.find_all(exp.Div))
        for number, division in enumerate(divisions):
            division.meta[_NUMBER] = number
        whole = _whole(tree, tables) if divisions else set()
        for number in whole:
            one = divisions[number]
            one.replace(exp.IntDiv(this=one.this, expression=one.expression))
    return str(tree.sql(dialect="spark"))


def _whole(tree: Any, tables: Mapping[str, DataFrame]) -> set[int]:
    """Which divisions are those of whole numbers, as far as types can be told. A copy of the tree is changed."""
    from sqlglot import exp
    from sqlglot.errors import SqlglotError
    from sqlglot.optimizer.annotate_types import annotate_types
    from sqlglot.optimizer.qualify import qualify
    from sqlglot.schema import MappingSchema

    columns: dict[str, object] = {
        name: {field.name: field.dataType.simpleString() for field in table.schema} for name, table in tables.items()
    }
    try:
        schema = MappingSchema(columns, dialect="spark")
        typed = annotate_types(
            qualify(tree.copy(), schema=schema, expand_stars=False, validate_qualify_columns=False), schema=schema
        )
    except SqlglotError:
        return set()
    wholes = exp.DataType.INTEGER_TYPES
    return {
        division.meta[_NUMBER]
        for division in typed.find_all(exp.Div)
        if division.left.is_type(*wholes) and division.right.is_type(*wholes)
    }
