"""A value of JSON that does not fit its column makes its row bad; it does not become another value."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from ematix_flow.streams.decode import json_text
from ematix_flow.streams.reasons import why_bad_json


def read(spark: SparkSession, kind: str, values: list[str]) -> dict[str, str]:
    """Each as the column `c` of an object of its own, in Spark's words."""
    fields = StructType.fromDDL(f"c {kind}").fields
    texts = [(number, f'{{"c": {value}}}') for number, value in enumerate(values)]
    rows = spark.createDataFrame(texts, "number int, text string").coalesce(1)
    parsed = json_text(rows, "text", fields)
    words = F.coalesce(parsed.columns["c"].cast("string"), F.lit("null"))
    found = parsed.rows.select("number", F.when(parsed.wrong, "bad").otherwise(words)).orderBy("number").collect()
    return {value: row[1] for value, row in zip(values, found, strict=True)}


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("byte", {"127": "127", "-128": "-128", "null": "null"}, ["128", "255", "256", "-129", "1.0"]),
        ("array<byte>", {"[1, null]": "[1, null]", "[]": "[]", "null": "null"}, ["[1, 200]"]),
        ("struct<b: byte>", {'{"b": 7}': "{7}", "{}": "{null}"}, ['{"b": 200}']),
        ("map<string, byte>", {'{"a": 7}': "{a -> 7}"}, ['{"a": 200}']),
        (
            "date",
            {'"2026-01-02"': "2026-01-02", '"2026-01-02T10:00:00Z"': "2026-01-02", '"2026"': "2026-01-01"},
            ['"20260101"', '"1"', '"-5"', '"202601"', '"0000-01-01"', '"12026-01-01"', "2026"],
        ),
        ("array<date>", {'["2026-01-02", null]': "[2026-01-02, null]"}, ['["1"]', '["202601"]']),
        (
            "timestamp",
            {
                '"2026-01-01T10:00:00.123456Z"': "2026-01-01 10:00:00.123456",
                '"2026-01-01 10:00:00+02:00"': "2026-01-01 08:00:00",
                '"2026-01-01"': "2026-01-01 00:00:00",
                '"2026-1-1"': "2026-01-01 00:00:00",
                '"2026"': "2026-01-01 00:00:00",
                "2026": "1970-01-01 00:33:46",
                "-1": "1969-12-31 23:59:59",
                "202601": "1970-01-03 08:16:41",
                "1767225600": "2026-01-01 00:00:00",
                "null": "null",
            },
            [
                '"T10:00:00"', '"10:00:00"', '"1:00-05:00"', '"10:00:0-05:00"', '"202601"', '"20260101"',
                '"12026-01-01"', '"0000-01-01"', '""', "1767225600000", "9223372036854775807", "18446744073710", "1.5",
            ],
        ),
        (
            "struct<t: timestamp, m: decimal(9,2), b: byte>",
            {'{"t": 0, "m": 1.5, "b": 1}': "{1970-01-01 00:00:00, 1.50, 1}"},
            ['{"t": 0, "m": 1e99999999}', '{"t": 0, "b": 200}'],
        ),
        ("timestamp_ntz", {'"2026-01-01T10:00:00"': "2026-01-01 10:00:00"}, ['"202601"', '"T10:00:00"']),
        (
            "struct<a: array<timestamp>>",
            {
                '{"a": [2026, "2026", null]}': "{[1970-01-01 00:33:46, 2026-01-01 00:00:00, null]}",
                '{"a": ["2026-01-01T10:00:00Z"]}': "{[2026-01-01 10:00:00]}",
                "{}": "{null}",
            },
            ['{"a": ["2026-01-01T10:00:00Z", "T10:00:00"]}', '{"a": [1767225600000]}'],
        ),
        ("double", {"1e308": "1.0E308", '"Infinity"': "Infinity", "-Infinity": "-Infinity"}, ["1e309", "-1e309"]),
        ("float", {"3.4e38": "3.4E38", '"-INF"': "-Infinity"}, ["3.5e38", "1e309"]),
        ("array<double>", {"[1, null]": "[1.0, null]", '["Infinity"]': "[Infinity]"}, ["[1, 1e309]", "[-1e309]"]),
        ("struct<m: map<string, array<float>>>", {'{"m": {"a": [1]}}': "{{a -> [1.0]}}"}, ['{"m": {"a": [1e309]}}']),
        ("decimal(9,2)", {"1.5": "1.50"}, ['"x"', "12345678.9", "1e99999999"]),
    ],
)  # fmt: skip
def test_only_what_fits_is_read(spark: SparkSession, kind: str, good: dict[str, str], bad: list[str]) -> None:
    assert read(spark, kind, [*good, *bad]) == good | dict.fromkeys(bad, "bad")


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        ("byte", "200", "c should be tinyint, found 200"),
        ("array<byte>", "[1, 200]", "c[1] should be tinyint, found 200"),
        ("struct<b: byte>", '{"b": 200}', "c.b should be tinyint, found 200"),
        ("map<string, byte>", '{"x": 200}', "c.x should be tinyint, found 200"),
        ("date", '"20260101"', 'c should be date, found "20260101"'),
        ("date", '"2026-02-30"', 'c should be date, found "2026-02-30"'),
        ("timestamp", '"T10:00:00"', 'c should be timestamp, found "T10:00:00"'),
        ("timestamp", "1767225600000", "c should be timestamp, found 1767225600000"),
        ("double", "1e309", "c should be double, found 1e309"),
        ("float", "3.5e38", "c should be float, found 3.5e38"),
        ("decimal(4,2)", "123.4", "c should be decimal(4,2), found 123.4"),
    ],
)
def test_the_reason_names_column_and_value(kind: str, value: str, reason: str) -> None:
    assert why_bad_json(f'{{"c": {value}}}'.encode(), StructType.fromDDL(f"c {kind}")) == reason
