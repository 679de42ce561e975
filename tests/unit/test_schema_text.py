"""The schema of a source, read without Spark."""

import pytest

from ematix_flow.schema_text import schema_complaint


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
    assert schema_complaint(text, "schema") is None


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("id", "the column id has no type; name and type, such as id long"),
        ("id long name string", 'found "name" after a column; ","'),
        ("id long,, b int", 'found ","; the name of a column'),
        ("a map<string>", 'found ">" after the type of the keys of a map; ","'),
        ("a array<int", 'found the end after array; ">"'),
        ("id long,", "the schema ends too early; "),
        (
            "s struct<a: int NOT NULL>",
            "a is NOT NULL inside of a struct; NOT NULL for a whole column, and a WHERE for what is inside",
        ),
        ("id long, ID string", "the column ID is there twice; "),
    ],
)
def test_what_spark_refuses_is_told_in_words(text: str, found: str) -> None:
    complaint = schema_complaint(text, "schema")
    assert complaint is not None
    assert f"{complaint.found}; {complaint.allowed}" == found


@pytest.mark.parametrize("text", ["id lnog, b int", "a array<lnog>"])
def test_a_near_type_is_suggested(text: str) -> None:
    complaint = schema_complaint(text, "schema")
    assert complaint is not None
    assert (complaint.found, complaint.suggestion) == ('unknown type "lnog"', "long")
