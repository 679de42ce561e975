"""What a registered schema says of the columns of rows, whatever its form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.types import StructField, StructType


@dataclass(frozen=True)
class Known:
    """A field of a schema."""

    words: tuple[str, ...]
    """The types that it takes; none for any."""
    required: bool
    """A record cannot be without it."""
    column: StructField | None = None
    """What a row must have for it; None if it is written as it is."""


@dataclass(frozen=True)
class Fields:
    known: Mapping[str, Known]
    closed: bool = True
    """A record cannot have any other."""


def fields_of(columns: StructType, optional: frozenset[str] = frozenset()) -> Fields:
    """Of a schema that is, in Spark's types, these columns."""
    return Fields(
        {
            field.name: Known(
                (field.dataType.simpleString(),),
                required=not field.nullable and field.name not in optional,
                column=field,
            )
            for field in columns.fields
        }
    )
