"""From a declared join to the operator that computes it over the rows of two sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ematix_flow.errors import DeclarationError, Problem
from ematix_flow.joins.kernel import Side, StreamJoin
from ematix_flow.problems import near
from ematix_flow.specs.join import Join
from ematix_flow.state.kernel import TIME, Operator

if TYPE_CHECKING:
    import pyarrow as pa

_PLACE = "[transform.join]"


def join_operator(
    join: Join,
    left: pa.Schema,
    right: pa.Schema,
    key_types: Sequence[pa.DataType],
    *,
    lateness_ms: int = 0,
    buckets: int = 16,
) -> Operator:
    """The columns of both sides are those that a user sees; `key_types` hold the keys of both."""
    sides = (
        _side("left", left, join.left_keys, join.left_column_prefix, outer=join.kind in {"left_outer", "full_outer"}),
        _side(
            "right", right, join.right_keys, join.right_column_prefix, outer=join.kind in {"right_outer", "full_outer"}
        ),
    )
    _refuse_equal_names(*sides)
    least, most = join.deltas
    reopens = join.late_data == "reopen"
    kernel = StreamJoin(
        left=sides[0],
        right=sides[1],
        key_types=tuple(key_types),
        min_us=least * 1000,
        max_us=most * 1000,
        late=join.late_data,
        allowed_us=(join.allowed_lateness_ms or 0) * 1000 if reopens else 0,
    )
    return Operator(
        kernel=kernel,
        output=kernel.output,
        event_time=join.event_time_column,
        keys=join.left_keys,
        buckets=buckets,
        lateness_ms=lateness_ms,
        late=join.late_data,
        time_column=TIME,
        withdraws=kernel.withdraws,
    )


def key_problems(join: Join, left: Mapping[str, str], right: Mapping[str, str]) -> list[Problem]:
    """What is wrong with the names of the keys; `left` and `right` are the columns and the words for their types."""
    problems = []
    for side, keys, columns in (("left_keys", join.left_keys, left), ("right_keys", join.right_keys, right)):
        for place, name in enumerate(keys):
            if name not in columns:
                found = f'found "{name}"'
                problems.append(Problem(f"{side}[{place}]", found, ", ".join(columns), near(name, list(columns))))
    return problems


def differing_keys(join: Join, place: int, left: str, right: str) -> Problem:
    names = join.left_keys[place], join.right_keys[place]
    found = f'"{names[0]}" is {left} and "{names[1]}" is {right}, which cannot be compared'
    return Problem(f"right_keys[{place}]", found, "keys of the same type; declare it in `schema` of a source")


def _side(name: str, columns: pa.Schema, keys: Sequence[str], prefix: str, *, outer: bool) -> Side:
    return Side(
        name=name,
        columns=tuple(column.with_name(f"{prefix}{column.name}").with_nullable(True) for column in columns),
        keys=tuple(f"{prefix}{key}" for key in keys),
        outer=outer,
    )


def _refuse_equal_names(left: Side, right: Side) -> None:
    both = {column.name for column in left.columns} & {column.name for column in right.columns}
    if both:
        found = f"gives two columns the name {', '.join(sorted(both))}"
        problem = Problem("right_column_prefix", found, "another prefix, or other names in the sources")
        raise DeclarationError(_PLACE, [problem])
