"""Markers for the columns of a declared table: `Annotated[BigInt, pk()]`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class PrimaryKey:
    """The column is part of the primary key."""

    def __repr__(self) -> str:
        return "pk()"


@dataclass(frozen=True)
class NaturalKey:
    """The column is part of a business key; columns with the same group form one unique constraint."""

    group: str = ""

    def __repr__(self) -> str:
        return f"natural_key({self.group!r})" if self.group else "natural_key()"


@dataclass(frozen=True)
class MayBeNull:
    """The column takes NULL; the same as `T | None`."""

    def __repr__(self) -> str:
        return "nullable()"


def pk(**_options: Any) -> PrimaryKey:
    """Make the column part of the primary key, in the order of declaration; options are accepted and have no effect.

    Merge keys, first that is given: `keys=` of the pipeline, `__merge_keys__` of the table, its first natural key, its
    primary key.
    """
    return PrimaryKey()


def natural_key(group: str = "") -> NaturalKey:
    """Make the column part of a business key: a unique constraint, and the merge keys unless others are named."""
    return NaturalKey(group)


def nullable() -> MayBeNull:
    """Let the column take NULL."""
    return MayBeNull()
