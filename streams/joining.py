"""The two sides of a join as inputs of its operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ematix_flow.errors import DeclarationError, Problem
from ematix_flow.joins.kernel import SIDE
from ematix_flow.joins.operator import differing_keys, join_operator, key_problems
from ematix_flow.specs import Join, PipelineSpec
from ematix_flow.state.kernel import Operator
from ematix_flow.state.store import Store
from ematix_flow.streams.branches import Branch
from ematix_flow.streams.columns import quoted
from ematix_flow.streams.observed import counted
from ematix_flow.streams.operators import buckets, event_time
from ematix_flow.streams.stateful import Input, alike
from ematix_flow.streams.types_in_common import common_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

_PLACE = "[transform.join]"


def join_operator_of(spec: PipelineSpec, branches: Sequence[Branch], store: Store) -> Operator:
    from pyspark.sql.pandas.types import to_arrow_schema, to_arrow_type

    join = spec.transform.join
    assert join is not None
    sides = _sides(join, branches)
    kinds = [to_arrow_type(kind, timezone="UTC") for kind in _key_types(join, *sides)]
    left, right = (
        to_arrow_schema(side.rows.select(*map(quoted, side.visible)).schema, timezone="UTC") for side in sides
    )
    return join_operator(
        join,
        left,
        right,
        kinds,
        lateness_ms=spec.watermark.lateness_ms,
        buckets=buckets(spec, branches[0].rows, store),
    )


def join_inputs(join: Join, branches: Sequence[Branch], ticks: Sequence[DataFrame]) -> list[Input]:
    """In the order of the sources, each of which has its own ticks and its own watermark."""
    from pyspark.sql import functions as F

    sides = _sides(join, branches)
    kinds = _key_types(join, *sides)
    given = []
    for number, branch in enumerate(branches):
        is_right = branch is sides[1]
        prefix, keys = (
            (join.right_column_prefix, join.right_keys) if is_right else (join.left_column_prefix, join.left_keys)
        )
        columns = {f"{prefix}{name}": F.col(quoted(name)) for name in branch.visible}
        columns[SIDE] = F.lit(int(is_right)).cast("byte")
        given.append(
            Input(
                counted(branch.rows, number),
                event_time(_PLACE, join.event_time_column, branch.rows),
                columns,
                [alike(F.col(quoted(key)).cast(kind), kind) for key, kind in zip(keys, kinds, strict=True)],
                branch.origin,
                ticks[number],
            )
        )
    return given


def _sides(join: Join, branches: Sequence[Branch]) -> tuple[Branch, Branch]:
    by_name = {branch.origin.source: branch for branch in branches}
    return by_name[join.left_source], by_name[join.right_source]


def _key_types(join: Join, left: Branch, right: Branch) -> list[DataType]:
    from pyspark.sql.types import ArrayType, MapType, StructType, VariantType

    words = [{name: kind.simpleString() for name, kind in side.columns.items()} for side in (left, right)]
    problems = key_problems(join, *words)
    kinds = []
    for place, names in enumerate(zip(join.left_keys, join.right_keys, strict=True) if not problems else ()):
        one, other = left.columns[names[0]], right.columns[names[1]]
        if isinstance(one, ArrayType | MapType | StructType | VariantType):
            found = f'column "{names[0]}" is {one.simpleString()}'
            problems.append(Problem(f"left_keys[{place}]", found, "a column of a plain type"))
        elif (kind := common_type(one, other)) is None:
            problems.append(differing_keys(join, place, one.simpleString(), other.simpleString()))
        else:
            kinds.append(kind)
    if problems:
        raise DeclarationError(_PLACE, problems)
    return kinds
