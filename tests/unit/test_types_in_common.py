"""One type for the columns of two sources."""

import pytest
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
)

from ematix_flow.streams.types_in_common import common_type

INT, LONG, TEXT, DAY, VOID = IntegerType(), LongType(), StringType(), DateType(), NullType()


def struct(nullable: bool = True, **fields: DataType) -> StructType:
    return StructType([StructField(name, kind, nullable) for name, kind in fields.items()])


@pytest.mark.parametrize(
    ("one", "other", "common"),
    [
        (INT, VOID, INT),
        (VOID, VOID, VOID),
        (ArrayType(VOID), ArrayType(TEXT), ArrayType(TEXT)),
        (ArrayType(INT, False), ArrayType(LONG), ArrayType(LONG)),
        (MapType(TEXT, VOID), MapType(TEXT, DAY), MapType(TEXT, DAY)),
        (struct(a=INT, b=VOID), struct(a=LONG, b=ArrayType(INT)), struct(a=LONG, b=ArrayType(INT))),
        (struct(False, a=INT), struct(a=INT), struct(a=INT)),
        (struct(a=INT), struct(b=INT), None),
        (struct(a=INT), struct(a=TEXT), None),
        (ArrayType(INT), ArrayType(TEXT), None),
        (ArrayType(INT), INT, None),
        (INT, TEXT, None),
        (DecimalType(10, 2), INT, DecimalType(12, 2)),
        (DoubleType(), DoubleType(), DoubleType()),
    ],
)
def test_the_common_type_holds_the_values_of_both(one: DataType, other: DataType, common: DataType | None) -> None:
    assert common_type(one, other) == common_type(other, one) == common
