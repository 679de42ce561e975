"""Functions for SQL: handles that are values, types by either name, and every mistake at once."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from ematix_flow.errors import DeclarationError
from ematix_flow.types import BigInt, Numeric
from ematix_flow.udf import AggregateUdf, ScalarUdf, spark_type, udaf, udf


def add(left: Any, right: Any) -> Any:
    return left + right


class Vwap:
    def __init__(self) -> None:
        self.total = 0.0

    def update_batch(self, prices: Any, quantities: Any) -> None: ...
    def merge_batch(self, totals: Any) -> None: ...
    def state(self) -> Any: ...
    def evaluate(self) -> Any: ...


def test_a_function_becomes_a_frozen_handle_that_still_is_the_function() -> None:
    handle = udf(args=("Float64", "int"), returns="decimal(10, 2)")(add)
    assert handle == ScalarUdf("add", ("double", "int"), "decimal(10,2)", add)
    assert handle(1, 2) == 3
    assert udf("Float64", "Float64", "plain")(abs).args == ("double",)
    with pytest.raises(FrozenInstanceError):
        handle.name = "other"  # type: ignore[misc]


def test_a_class_becomes_a_frozen_handle_that_makes_instances() -> None:
    handle = udaf(args=("Float64", "Float64"), state=("Float64",), returns="Float64", name="vwap")(Vwap)
    assert handle == AggregateUdf("vwap", ("double", "double"), ("double",), "double", Vwap)
    assert isinstance(handle(), Vwap)
    assert udaf(("double", "double"), "double", "double")(Vwap).name == "Vwap"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Boolean", "boolean"),
        ("Int8", "tinyint"),
        ("Int16", "smallint"),
        ("Int32", "int"),
        ("Int64", "bigint"),
        ("UInt8", "smallint"),
        ("UInt32", "bigint"),
        ("UInt64", "decimal(20,0)"),
        ("Float32", "float"),
        ("Float64", "double"),
        ("Utf8", "string"),
        ("LargeUtf8", "string"),
        ("Binary", "binary"),
        ("Date32", "date"),
        ("Timestamp", "timestamp"),
        ("Timestamp(Microsecond, None)", "timestamp_ntz"),
        ('Timestamp(Microsecond, Some("UTC"))', "timestamp"),
        ("Decimal128(10, 2)", "decimal(10,2)"),
        ("List(Int64)", "array<bigint>"),
        ("long", "bigint"),
        ("string", "string"),
        (" DOUBLE ", "double"),
        ("decimal(7)", "decimal(7,0)"),
        ("varchar(20)", "string"),
        ("timestamp_ntz", "timestamp_ntz"),
        ("map<string, array<decimal(5,1)>>", "map<string,array<decimal(5,1)>>"),
        ("struct<a: int, b: map<string,Utf8>>", "struct<a:int,b:map<string,string>>"),
        (BigInt, "bigint"),
        (Numeric[5, 1], "decimal(5,1)"),
    ],
)
def test_types_by_arrow_and_spark_names(name: Any, expected: str) -> None:
    assert spark_type(name) == expected


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [("Float46", "Float64"), ("strng", "string"), ("array<strng>", ""), ("map<int>", ""), (7, ""), ("", "")],
)
def test_unknown_types_are_refused(name: Any, suggestion: str) -> None:
    with pytest.raises(DeclarationError, match="unknown type") as caught:
        spark_type(name)
    assert caught.value.problems[0].suggestion == suggestion


def test_a_decimal_that_no_engine_holds_is_refused() -> None:
    with pytest.raises(DeclarationError, match="precision: 50; allowed: 1 to 38"):
        spark_type("Decimal256(50, 2)")


def test_all_mistakes_of_a_function_at_once() -> None:
    with pytest.raises(DeclarationError) as caught:
        udf(args=("Flot64", "Int64", "Int64"), returns="nothing at all", name="my-function")(add)
    assert caught.value.subject == "udf my-function"
    assert [(p.key, p.found) for p in caught.value.problems] == [
        ("name", "'my-function'"),
        ("args[0]", "unknown type 'Flot64'"),
        ("returns", "unknown type 'nothing at all'"),
        ("args", "the function takes (left: 'Any', right: 'Any') -> 'Any'"),
    ]
    assert caught.value.problems[1].suggestion == "Float64"


def test_all_missing_methods_are_named() -> None:
    class Half:
        def update_batch(self, values: Any) -> None: ...
        def state(self) -> Any: ...

    with pytest.raises(DeclarationError) as caught:
        udaf(args=("Int64",), state=("Int64",), returns="Int64")(Half)
    assert [str(p) for p in caught.value.problems] == [
        "Half has no merge_batch, evaluate; allowed: update_batch, merge_batch, state, evaluate"
    ]


def test_methods_that_take_something_else_are_refused() -> None:
    with pytest.raises(DeclarationError) as caught:
        udaf(args=("Int64",), state=("Int64", "Int64"), returns="Int64")(Vwap)
    assert [p.key for p in caught.value.problems] == ["update_batch", "merge_batch"]


def test_declaring_needs_neither_arrow_nor_spark() -> None:
    program = (
        "import sys, ematix_flow.udf, ematix_flow.table, ematix_flow.triggers\n"
        "print([m for m in ('pyarrow', 'pyspark', 'pandas', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_types_of_pyarrow_are_types() -> None:
    import pyarrow as pa

    row = pa.struct([("a", pa.int64()), pa.field("at", pa.timestamp("us", "UTC"), nullable=False)])
    handle = udf(row, pa.list_(pa.decimal128(10, 2)), "f")(lambda rows: rows)
    assert (handle.args, handle.returns) == (("struct<a:bigint,at:timestamp>",), "array<decimal(10,2)>")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("list<item: string>", "array<string>"),
        ("fixed_size_list<item: int64 not null>[3]", "array<bigint>"),
        ("timestamp[us, tz=UTC]", "timestamp"),
        ("timestamp[ms]", "timestamp_ntz"),
        ("date32[day]", "date"),
        ("large_string", "string"),
        ("fixed_size_binary[16]", "binary"),
        ("decimal128(10, 2)", "decimal(10,2)"),
        ("map<string, int64, keys_sorted>", "map<string,bigint>"),
        ("halffloat", "float"),
    ],
)
def test_types_as_arrow_writes_them(name: str, expected: str) -> None:
    assert spark_type(name) == expected


@pytest.mark.parametrize("name", ["time64[us]", "duration[s]", "null", "dictionary<values=string, indices=int32>"])
def test_a_type_that_spark_does_not_have(name: str) -> None:
    with pytest.raises(DeclarationError, match="Spark has no type for Arrow's"):
        spark_type(name)
