"""Column types and their markers as a user meets them: values with a name, a Spark type and no surprises."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from ematix_flow.errors import DeclarationError
from ematix_flow.markers import natural_key, nullable, pk
from ematix_flow.triggers import AllOf, AnyOf, as_trigger
from ematix_flow.types import COLUMN_TYPES, JSON, JSONB, BigInt, ColumnType, Numeric, String, Text

SPARK_TYPES = {
    "SmallInt": "smallint",
    "Integer": "int",
    "BigInt": "bigint",
    "Float": "float",
    "Double": "double",
    "Boolean": "boolean",
    "Text": "string",
    "Date": "date",
    "Timestamp": "timestamp_ntz",
    "TimestampTZ": "timestamp",
    "JSON": "string",
    "JSONB": "string",
    "UUID": "string",
    "Bytes": "binary",
}


@pytest.mark.parametrize("name", SPARK_TYPES)
def test_a_plain_type_knows_its_spark_type_as_class_and_as_instance(name: str) -> None:
    kind = COLUMN_TYPES[name]
    assert (kind.spark_type, kind().spark_type, repr(kind())) == (SPARK_TYPES[name], SPARK_TYPES[name], name)


def test_types_with_parameters() -> None:
    assert (String[256].spark_type, repr(String[256])) == ("string", "String[256]")
    assert (Numeric[12, 2].spark_type, repr(Numeric[12, 2])) == ("decimal(12,2)", "Numeric[12, 2]")
    assert Numeric[38, 38].spark_type == "decimal(38,38)"


def test_types_are_values() -> None:
    assert BigInt() == BigInt()
    assert String[5] == String(5)
    assert String[5] != String[6]
    assert JSON() != JSONB()
    assert len({Text(), Text(), String[5], String[5], Numeric[3, 1]}) == 3


@pytest.mark.parametrize("frozen", [BigInt(), String[5], Numeric[5, 2], pk(), natural_key("a"), AllOf("a")])
def test_nothing_can_be_changed(frozen: object) -> None:
    with pytest.raises(FrozenInstanceError):
        frozen.length = 3  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: String[0], "length: 0; allowed: a whole number from 1; Text has no limit"),
        (lambda: String["5"], "length: '5'; allowed: a whole number from 1; Text has no limit"),
        (lambda: String[True], "length: True; allowed: a whole number from 1; Text has no limit"),
        (lambda: Numeric[2, 5], "scale: 5; allowed: 0 to the precision, 2"),
        (lambda: Numeric[5, -1], "scale: -1; allowed: 0 to the precision, 5"),
        (lambda: Numeric[39, 2], "precision: 39; allowed: 1 to 38"),
        (lambda: Numeric[12], "12 in the brackets; allowed: precision and scale, as in Numeric[12, 2]"),
    ],
)
def test_bad_parameters_are_refused(make: object, message: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        make()  # type: ignore[operator]
    assert [str(problem) for problem in caught.value.problems] == [message]


def test_every_type_is_a_column_type() -> None:
    assert all(issubclass(kind, ColumnType) for kind in COLUMN_TYPES.values())
    assert set(COLUMN_TYPES) == {*SPARK_TYPES, "String", "Numeric"}


def test_markers_read_as_they_were_written() -> None:
    assert [repr(m) for m in (pk(), natural_key(), natural_key("mail"), nullable())] == [
        "pk()",
        "natural_key()",
        "natural_key('mail')",
        "nullable()",
    ]


def test_triggers_nest_and_name_each_job_once() -> None:
    trigger = AllOf("orders", AnyOf("customers", AllOf("orders", "items")))
    assert trigger.names() == ("orders", "customers", "items")
    assert repr(trigger) == "AllOf('orders', AnyOf('customers', AllOf('orders', 'items')))"
    assert AllOf("a") == AllOf("a")
    assert AllOf("a") != AnyOf("a")
    assert len({AllOf("a"), AllOf("a"), AnyOf("a")}) == 2


def test_one_name_and_a_list_of_names_mean_all_of_them() -> None:
    assert as_trigger("a") == AllOf("a")
    assert as_trigger(["a", "b"]) == AllOf("a", "b")
    assert as_trigger(AnyOf("a")) == AnyOf("a")


def test_a_trigger_says_everything_that_is_wrong_with_it() -> None:
    with pytest.raises(DeclarationError, match="no members; allowed: one or more names"):
        AnyOf()
    with pytest.raises(DeclarationError, match="2 problems") as caught:
        AllOf("a", 3, "")  # type: ignore[arg-type]
    assert "member 2: 3; allowed: the name of a job" in str(caught.value)
