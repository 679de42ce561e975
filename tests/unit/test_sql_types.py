"""Which types fit which columns, without Spark's Java process."""

import pytest

from ematix_flow.sinks import duckdb_types, sqlite_types
from ematix_flow.sinks.drift import TableColumn
from ematix_flow.sinks.widening import holds, spark_named, widened


@pytest.mark.parametrize(
    ("held", "given"),
    [
        ("bigint", "int"), ("decimal(12,2)", "int"), ("double", "int"), ("double", "float"), ("timestamp", "date"),
        ("timestamp_ntz", "timestamp"), ("string", "bigint"), ("decimal(12,4)", "decimal(10,2)"),
    ],
)  # fmt: skip
def test_a_wider_column_holds_a_narrower_type_and_not_the_other_way_round(held: str, given: str) -> None:
    assert holds(spark_named(held), spark_named(given))
    assert not holds(spark_named(given), spark_named(held)) or {held, given} == {"timestamp", "timestamp_ntz"}


@pytest.mark.parametrize(
    ("held", "given"),
    [
        ("int", "string"), ("double", "bigint"), ("float", "int"), ("decimal(10,2)", "double"), ("string", "binary"),
        ("decimal(18,0)", "bigint"), ("boolean", "int"),
    ],
)  # fmt: skip
def test_what_would_lose_something_does_not_fit(held: str, given: str) -> None:
    assert not holds(spark_named(held), spark_named(given))


@pytest.mark.parametrize(
    ("held", "given", "both"),
    [
        ("int", "bigint", "bigint"), ("int", "decimal(10,2)", "decimal(12,2)"), ("bigint", "double", "double"),
        ("float", "double", "double"), ("date", "timestamp", "timestamp"), ("double", "bigint", "double"),
        ("decimal(10,2)", "decimal(10,4)", "decimal(12,4)"), ("int", "string", None), ("boolean", "int", None),
        ("decimal(38,0)", "decimal(10,2)", None), ("decimal(10,2)", "double", None),
    ],
)  # fmt: skip
def test_a_column_is_widened_to_hold_both(held: str, given: str, both: str | None) -> None:
    found = widened(spark_named(held), spark_named(given))
    assert (found and found.simpleString()) == both


@pytest.mark.parametrize(
    ("declared", "given", "staged"),
    [
        ("TEXT", "decimal(38,10)", "decimal(38,10)"), ("TEXT", "timestamp", "timestamp"), ("TEXT", "int", "string"),
        ("TEXT", "binary", None), ("INTEGER", "bigint", "bigint"), ("INTEGER", "string", None),
        ("INTEGER", "decimal(10,0)", "bigint"), ("INTEGER", "double", None), ("DOUBLE", "int", "double"),
        ("DOUBLE", "bigint", None), ("BLOB", "string", None), ("", "string", "string"),
        ("BOOLEAN", "boolean", "boolean"), ("BOOLEAN", "string", None), ("DATETIME", "timestamp", "timestamp"),
        ("DECIMAL(10,2)", "decimal(10,2)", "decimal(10,2)"), ("DECIMAL(38,2)", "decimal(38,2)", None),
        ("NUMERIC", "string", None), ("VARCHAR(10)", "string", "string"),
    ],
)  # fmt: skip
def test_a_column_of_sqlite_takes_what_it_keeps_whole(declared: str, given: str, staged: str | None) -> None:
    column = TableColumn("c", sqlite_types.spark_type(declared), kind=declared)
    found = sqlite_types.TYPES.staged_as(column, TableColumn("c", spark_named(given)))
    assert (found and found.simpleString()) == staged


def test_declared_types_have_their_own_names() -> None:
    text = spark_named("string")
    assert duckdb_types.column_type(text, "UUID") == "UUID"
    assert duckdb_types.column_type(text, "JSONB") == "JSON"
    assert sqlite_types.column_type(TableColumn("c", text, max_length=5)) == "VARCHAR(5)"
    assert sqlite_types.max_length("VARCHAR(5)") == 5
    assert sqlite_types.column_type(TableColumn("c", spark_named("int"))) == "INT"
