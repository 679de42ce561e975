"""Arrow reads JSON beside Spark: what it reads has the same values, and what it does not read is left to Spark."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from ematix_flow.streams.decode import json_text
from ematix_flow.streams.json_reader import plain_objects, reader

COLUMNS = (
    "l long, i int, s short, b byte, d double, f float, t string, o boolean, ts timestamp, n timestamp_ntz, day date, "
    "m decimal(12,3), st struct<x: long, y: string, z: array<double>>, a array<struct<k: string, v: int>>"
)
NUMBERS = (
    "0", "1", "-7", "127", "128", "255", "256", "-129", "32768",
    "2147483647", "2147483648", "9223372036854775807", "9223372036854775808",
    "1.0", "1e3", "1E-3", "0.1", "1e400", "5e-324", "123456789.123", "123456789.1235", "1234567890.1", "NaN",
    "Infinity", "-Infinity", "Inf", "01", "1.", "+1", '"1"', '"1.5"', '"NaN"', "1.00000017881393432617187499",
    "16777217", "1.50", "1e309", "-1e309", "3.5e38", "3.4028235677973366e38", "253402300800",
)  # fmt: skip
TIMES = (
    "2026-01-01T00:00:00Z", "2026-01-01 00:00:00", "2026-01-01T00:00:00.123456Z", "2026-01-01T00:00:00.1234567Z",
    "1969-12-31T23:59:59.123456789Z", "2026-01-01T00:00:00.1+01:00", "2026-01-01T00:00:00+0100",
    "2026-01-01T00:00:00-05", "2026-01-01", "2026-01-01T00", "2026-01-01T00:00", "2026-1-1", "2026", "2026-02-30",
    "2026-01-01T24:00:00Z", "2026-01-01T00:00:60Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z",
    "1500-02-29T00:00:00Z", "1582-10-10", "2026-01-01T00:00:00 UTC", "2026-01-01T00:00:00+19:00",
    "2026-01-01T00:00:00+17:59", "12026-01-01T00:00:00Z", "",
    "20260101", "202601", "1", "-5", "T10:00:00", "10:00:00", "1:00-05:00", "0000-01-01", "0000-12-31T23:59:59Z",
    "0001-01-01T00:00:00+01:00", "9999-12-31T23:59:59-01:00", "9999-12-31",
)  # fmt: skip
TEXTS = (
    '"a"', '""', '"\\u0000"', '"\\ud83d\\ude00"', '"\\ud800"', '"é"', '"a\\nb"', '"a\tb"', '"\\/"', '"\\x"', "null",
    "true", '{"q": [1,  2]}', '[1, "x"]',
)  # fmt: skip
NESTED = (
    '{"x": 1, "y": "q", "z": [1.5, null]}', "{}", '{"x": 5, "w": 1}', '{"x":1,"x":2}', '{"x": 1.5}', '{"y": 5}', "[]",
    '{"z": [1e400]}', '{"z": [Infinity, NaN]}', '{"z": ["-Infinity"]}',
    '[{"k":"a","v":1},{"k":null}]', "[null]", "[1]", '{"k":"a"}', "[[]]",
)  # fmt: skip
WHOLE = (
    "", " ", "null", "[1]", "{", "}", "{}", "{}{}", "{} {}", '{"l":1}\n{"l":2}', '{"l":1}\r', '{"l":\n1}', " {}",
    "{} ", "\ufeff{}", "x", "{'l':1}", '{"l":1,}', '{"l":1}x', '{"l":1 /*c*/}', "{,}", '{"l"}', '{"t":"x"',
    '{"l":1,"l":2}', '{"L":1}', '{"zz":{"a":[1,{}]},"l":4}', "1", '"x"', "true",
)  # fmt: skip


def awkward() -> list[bytes | None]:
    fields = {"lisbdfm": NUMBERS, "to": TEXTS}
    values = [(name, value) for names, of in fields.items() for name in names for value in of]
    values += [(name, f'"{time}"') for name in ("ts", "n", "day") for time in TIMES]
    values += [(name, value) for name in ("st", "a") for value in NESTED]
    values += [(name, value) for name in ("l", "ts", "t") for value in (*NUMBERS[:2], *NUMBERS[-1:], *TEXTS[:2], '"x"')]
    lines = [f'{{"{name}": {value}, "i": 7}}' for name, value in values]
    return [None, b'{"t":"\xff"}', *[line.encode() for line in (*WHOLE, *lines)]]


def read_by_spark(spark: SparkSession, texts: list[bytes | None], *, beside: bool) -> list[tuple[Any, ...]]:
    """Whether each is bad, and its values if it is not."""
    schema = StructType.fromDDL(COLUMNS)
    numbered = [(number, text) for number, text in enumerate(texts)]
    rows: DataFrame = spark.createDataFrame(numbered, "number int, value binary").coalesce(1)
    plain = plain_objects(F.col("value"), schema.fields) if beside else None
    parsed = json_text(rows.withColumn("text", F.col("value").cast("string")), "text", schema.fields, plain)
    wrong = F.coalesce(parsed.wrong, F.lit(True))
    values = [F.when(~wrong, column.cast("string")).alias(name) for name, column in parsed.columns.items()]
    return [tuple(row)[1:] for row in parsed.rows.select("number", wrong, *values).orderBy("number").collect()]


def test_what_arrow_reads_spark_reads_alike(spark: SparkSession) -> None:
    """Each text by itself, so that none of them is left to Spark because of its neighbours."""
    texts, schema = awkward(), to_arrow_schema(StructType.fromDDL(COLUMNS), timezone="UTC")
    read = reader(schema)
    rows = pa.concat_arrays([read(pa.array([text], pa.binary())) for text in texts])
    expected = read_by_spark(spark, texts, beside=False)
    table = pa.Table.from_struct_array(rows).append_column("number", pa.array(range(len(texts))))
    frame = spark.createDataFrame(table.filter(rows.is_valid()))
    found = frame.select("number", *[F.col(name).cast("string") for name in schema.names]).orderBy("number").collect()
    assert {row[0]: tuple(row)[1:] for row in found} == {row[0]: expected[row[0]][1:] for row in found}
    assert not any(expected[row[0]][0] for row in found)
    assert len(found) > 100, "most of what is good is read by Arrow"


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 1.0])
def test_rows_keep_their_places_among_bad_ones(spark: SparkSession, share: float) -> None:
    chance = random.Random(7)
    strange = awkward()
    texts = [
        chance.choice(strange) if chance.random() < share else b'{"l": %d, "ts": "2026-01-01T00:00:00Z"}' % number
        for number in range(3000)
    ]
    assert read_by_spark(spark, texts, beside=True) == read_by_spark(spark, texts, beside=False)


def test_types_that_arrow_reads_otherwise_are_left_to_spark() -> None:
    for columns in ("b binary", "m map<string, long>", "a array<timestamp>", "s struct<d: decimal(9,2)>"):
        assert plain_objects(F.col("value"), StructType.fromDDL(columns).fields) is None


def test_large_texts_are_read_in_pieces() -> None:
    large = [b'{"t": "%s", "l": %d}' % (b"x" * 5_000_000, number) for number in range(9)]
    rows = reader(pa.schema([("l", pa.int64()), ("t", pa.string())]))(pa.array([*large, None]))
    assert [row and row["l"] for row in rows.to_pylist()] == [*range(9), None]
