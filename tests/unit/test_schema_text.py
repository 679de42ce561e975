"""The schema of a source, read without Spark."""

import pytest

from ematix_flow.ops.schema_text import schema_problem


@pytest.mark.parametrize(
    "text",
    [
        "id long, name string",
        "id: long, `a b` string NOT NULL COMMENT 'a, b', at timestamp_ntz",
        "a array<struct<x: int, y: map<string, decimal(10, 2)>>>, e struct<>, c varchar(3), i interval day to second",
        "order INT, date DATE, table string, s string collate utf8_lcase, v variant, n void",
    ],
)
def test_what_spark_accepts_is_accepted(text: str) -> None:
    assert schema_problem(text, "schema") is None


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("id lnog, b int", 'unknown type "lnog"; allowed: boolean, '),
        ("id", "the column id has no type; allowed: name and type, such as id long"),
        ("id long name string", 'found "name" after a column; allowed: ","'),
        ("id long,, b int", 'found ","; allowed: the name of a column'),
        ("a array<strng>", 'unknown type "strng"'),
        ("a map<string>", 'found ">" after the type of the keys of a map; allowed: ","'),
        ("a array<int", 'found the end after array; allowed: ">"'),
        ("id long,", "the schema ends too early"),
    ],
)
def test_what_spark_refuses_is_told_in_words(text: str, found: str) -> None:
    assert str(schema_problem(text, "schema")).startswith(f"schema: {found}")


def test_a_near_type_is_suggested() -> None:
    problem = schema_problem("id lnog", "schema")
    assert problem is not None
    assert problem.suggestion == "long"
