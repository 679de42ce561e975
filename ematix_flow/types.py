"""Column types of declared tables: frozen values that know their Spark SQL type.

A type is written in an annotation as a class (`BigInt`) or, where it has parameters, as `String[256]` and
`Numeric[12, 2]`; `T | None`, `Optional[T]` and `Annotated[T, ...]` work with both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ematix_flow.errors import DeclarationError, Problem

MAX_PRECISION = 38
"""The widest decimal that Spark can hold."""


class ColumnType:
    """What a column holds. Compared by value; two types with the same parameters are equal."""

    @property
    def spark_type(self) -> str:
        """The type in Spark SQL, as it stands in a DDL string or a cast."""
        raise NotImplementedError

    def __or__(self, other: object) -> Nullable:
        return Nullable(self) if other is None or other is type(None) else NotImplemented

    __ror__ = __or__

    def __repr__(self) -> str:
        return type(self).__name__


@dataclass(frozen=True)
class Nullable:
    """`String[256] | None`: what the union of a type that has parameters and None evaluates to."""

    inner: ColumnType

    def __repr__(self) -> str:
        return f"{self.inner!r} | None"


@dataclass(frozen=True, repr=False)
class SmallInt(ColumnType):
    """16 bits, signed."""

    spark_type = "smallint"


@dataclass(frozen=True, repr=False)
class Integer(ColumnType):
    """32 bits, signed."""

    spark_type = "int"


@dataclass(frozen=True, repr=False)
class BigInt(ColumnType):
    """64 bits, signed."""

    spark_type = "bigint"


@dataclass(frozen=True, repr=False)
class Float(ColumnType):
    """32-bit floating point."""

    spark_type = "float"


@dataclass(frozen=True, repr=False)
class Double(ColumnType):
    """64-bit floating point."""

    spark_type = "double"


@dataclass(frozen=True, repr=False)
class Boolean(ColumnType):
    """True or false."""

    spark_type = "boolean"


@dataclass(frozen=True, repr=False)
class Text(ColumnType):
    """A string of any length."""

    spark_type = "string"


@dataclass(frozen=True, repr=False)
class Date(ColumnType):
    """A calendar day."""

    spark_type = "date"


@dataclass(frozen=True, repr=False)
class Timestamp(ColumnType):
    """A wall-clock time without a zone."""

    spark_type = "timestamp_ntz"


@dataclass(frozen=True, repr=False)
class TimestampTZ(ColumnType):
    """A moment in time."""

    spark_type = "timestamp"


@dataclass(frozen=True, repr=False)
class JSON(ColumnType):
    """A JSON document, carried as its text."""

    spark_type = "string"


@dataclass(frozen=True, repr=False)
class JSONB(ColumnType):
    """A JSON document that the target may store parsed; carried as its text."""

    spark_type = "string"


@dataclass(frozen=True, repr=False)
class UUID(ColumnType):
    """A UUID, carried as its canonical text."""

    spark_type = "string"


@dataclass(frozen=True, repr=False)
class Bytes(ColumnType):
    """A string of bytes."""

    spark_type = "binary"


@dataclass(frozen=True, repr=False)
class String(ColumnType):
    """A string of at most `length` characters: `String[256]`."""

    length: int

    spark_type = "string"

    def __post_init__(self) -> None:
        if not _is_whole(self.length) or self.length < 1:
            problem = Problem("length", f"{self.length!r}", allowed="a whole number from 1; Text has no limit")
            raise DeclarationError(repr(self), [problem])

    def __class_getitem__(cls, length: int) -> String:
        return cls(length)

    def __repr__(self) -> str:
        return f"String[{self.length}]"


@dataclass(frozen=True, repr=False)
class Numeric(ColumnType):
    """A decimal of `precision` digits, `scale` of them after the point: `Numeric[12, 2]`."""

    precision: int
    scale: int

    def __post_init__(self) -> None:
        problems = []
        if not _is_whole(self.precision) or not 1 <= self.precision <= MAX_PRECISION:
            problems.append(Problem("precision", f"{self.precision!r}", allowed=f"1 to {MAX_PRECISION}"))
        elif not _is_whole(self.scale) or not 0 <= self.scale <= self.precision:
            problems.append(Problem("scale", f"{self.scale!r}", allowed=f"0 to the precision, {self.precision}"))
        if problems:
            raise DeclarationError(repr(self), problems)

    def __class_getitem__(cls, parameters: tuple[int, int]) -> Numeric:
        if not isinstance(parameters, tuple) or len(parameters) != 2:
            problem = Problem(
                "", f"{parameters!r} in the brackets", allowed="precision and scale, as in Numeric[12, 2]"
            )
            raise DeclarationError(f"Numeric[{parameters!r}]", [problem])
        return cls(*parameters)

    @property
    def spark_type(self) -> str:
        return f"decimal({self.precision},{self.scale})"

    def __repr__(self) -> str:
        return f"Numeric[{self.precision}, {self.scale}]"


COLUMN_TYPES: dict[str, type[ColumnType]] = {
    kind.__name__: kind
    for kind in (
        SmallInt, Integer, BigInt, Float, Double, Boolean, Text, String, Numeric, Date, Timestamp, TimestampTZ,
        JSON, JSONB, UUID, Bytes,
    )
}  # fmt: skip
"""Every column type by its name."""


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
