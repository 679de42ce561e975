"""When a workflow runs: `AllOf` and `AnyOf` over the names of jobs and workflows, nested as needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ematix_flow.errors import DeclarationError, Problem


@dataclass(frozen=True, init=False, repr=False)
class _Combination:
    members: tuple[str | AllOf | AnyOf, ...]

    def __init__(self, *members: str | AllOf | AnyOf) -> None:
        kind = type(self).__name__
        problems = [
            Problem(f"member {place}", f"{member!r}", allowed="the name of a job, or AllOf / AnyOf")
            for place, member in enumerate(members, start=1)
            if not isinstance(member, _Combination) and not (isinstance(member, str) and member.strip())
        ]
        if not members:
            problems.append(Problem("", "no members", allowed=f'one or more names, as in {kind}("load_orders")'))
        if problems:
            raise DeclarationError(f"{kind}(...)", problems)
        object.__setattr__(self, "members", members)

    def names(self) -> tuple[str, ...]:
        """Every job named anywhere in the expression, once each, in the order of first mention."""
        found: dict[str, None] = {}
        for member in self.members:
            found.update(dict.fromkeys([member] if isinstance(member, str) else member.names()))
        return tuple(found)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.members))})"


@dataclass(frozen=True, init=False, repr=False)
class AllOf(_Combination):
    """Ready when every member has succeeded since the workflow last ran."""


@dataclass(frozen=True, init=False, repr=False)
class AnyOf(_Combination):
    """Ready as soon as one member has succeeded since the workflow last ran."""


def as_trigger(value: str | AllOf | AnyOf | Sequence[str | AllOf | AnyOf]) -> AllOf | AnyOf:
    """The expression that `triggered_by=` means: one name and a list of names are `AllOf`."""
    if isinstance(value, AllOf | AnyOf):
        return value
    return AllOf(value) if isinstance(value, str) else AllOf(*value)
