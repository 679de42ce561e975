"""Every normalizer and transform on a real Spark, in ANSI mode: what goes in, what comes out."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from ematix_flow import normalize as n


def moment(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)  # type: ignore[misc, arg-type]


def wall_clock(*parts: int) -> datetime:
    return moment(*parts).replace(tzinfo=None)


LONG = "YYYY-MM-DD HH24:MI:SS"
TEXT: list[tuple[n.Normalizer, dict[str | None, Any]]] = [
    (n.trim(), {"  a b ": "a b", "\ta": "\ta"}),
    (n.lower(), {"ÄB": "äb"}),
    (n.upper(), {"äb": "ÄB"}),
    (n.empty_to_null(), {"": None, " ": " ", "a": "a"}),
    (n.whitespace_to_null(), {"": None, " \t\r\n": None, "\n a b ": "a b"}),
    (n.replace("'", '"'), {"it's": 'it"s'}),
    (n.replace("\\n", "${HOME}"), {"a\\nb": "a${HOME}b", "a\nb": "a\nb"}),
    (n.replace("{col}", "x"), {"{col}": "x"}),
    (n.regex_replace(r"(\d+)-(\d+)", r"\2-$1"), {"12-34 5-6": "34-12 6-5", "x": "x"}),
    (n.regex_replace("[€']", "$"), {"5€'": "5$$"}),
    (n.regex_replace("(?<first>[a-z])", "${first}."), {"ab": "a.b."}),
    (n.regex_replace("^a", "b", "gim"), {"A\na": "b\nb"}),
    (n.truncate(3), {"abcdef": "abc", "a": "a"}),
    (n.truncate(0), {"abc": ""}),
    (n.email_normalize(), {" \tAnn@Example.COM\n": "ann@example.com", "": ""}),
    (n.phone_normalize(), {"(+49) 170-1+2": "+4917012", "00 1 (2)": "0012", "n/a": "", "+": "", " + 1": "+1"}),
    (n.parse_int(), {" 12 ": 12, "-3": -3, "1.5": None, "x": None, "": None, "9" * 20: None}),
    (n.parse_int("default", 7), {"x": 7, "1": 1}),
    (n.parse_numeric(6, 2), {"1.005": Decimal("1.01"), "-12": Decimal("-12.00"), "123456": None, "1,5": None}),
    (n.parse_numeric(6, 2, "default", Decimal("0.5")), {"x": Decimal("0.50"), "1": Decimal("1.00")}),
    (n.parse_bool(), {"TRUE": True, " y ": True, "0": False, "No": False, "maybe": None, "": None}),
    (n.parse_bool(["Oui", "l'un"], ["Non"]), {"OUI": True, "l'un": True, "non": False, "true": None}),
    (n.parse_bool(on_failure="default", default=False), {"maybe": False, "yes": True}),
    (n.parse_date(), {"2024-02-29": date(2024, 2, 29), "20240102": date(2024, 1, 2), "01/02/2024": date(2024, 1, 2)}),
    (n.parse_date(), {"2023-02-29": None, "today": None, "": None}),
    (n.parse_date("%d.%m.%y"), {"31.12.99": date(2099, 12, 31), "1.1.2024": None}),
    (n.parse_date("d MMM yyyy"), {"2 Jan 2024": date(2024, 1, 2)}),
    (n.parse_date(LONG, on_failure="default", default=date(1970, 1, 1)), {"x": date(1970, 1, 1)}),
    (n.parse_timestamp(LONG), {"2024-01-02 03:04:05": moment(2024, 1, 2, 3, 4, 5), "2024-01-02": None, "x": None}),
    (n.parse_timestamp("DD Mon YYYY HH12:MI PM"), {"02 Jan 2024 03:04 PM": moment(2024, 1, 2, 15, 4)}),
    (n.parse_timestamp("%Y-%m-%dT%H:%M:%S%z"), {"2024-01-02T03:00:00+0530": moment(2024, 1, 1, 21, 30)}),
    (n.parse_timestamp("yyyyMMddHH"), {"2024010203": moment(2024, 1, 2, 3)}),
    (
        n.parse_timestamp(),
        {
            "2024-01-02 03:04:05.5": moment(2024, 1, 2, 3, 4, 5, 500_000),
            "2024-01-02T03:04:05Z": moment(2024, 1, 2, 3, 4, 5),
            "2024-01-02T03:04:05.123456+02:00": moment(2024, 1, 2, 1, 4, 5, 123_456),
            "2024-01-02T03:04:05.123": moment(2024, 1, 2, 3, 4, 5, 123_000),
            "2024-01-02T03:04:05+02": moment(2024, 1, 2, 1, 4, 5),
            "2024-01-02T03:04:05": moment(2024, 1, 2, 3, 4, 5),
            "2024-01-02": moment(2024, 1, 2),
            "12/31/2024": moment(2024, 12, 31),
            "31/12/2024": None,
        },
    ),
    (
        n.parse_timestamp(on_failure="default", default=moment(2000, 1, 1)),
        {"x": moment(2000, 1, 1), "2024-01-02": moment(2024, 1, 2)},
    ),
    (n.default("it's"), {None: "it's", "a": "a"}),
    (n.not_null_or("?"), {None: "?", "": ""}),
    (n.nullif("N/A"), {"N/A": None, "n/a": "n/a"}),
    (n.sql("concat({col}, '-', {col})"), {"a": "a-a"}),
    (n.sql("concat(col, ' col')"), {"a": "a col"}),
    (n.derive("concat(other, '!')"), {"a": "other!", None: "other!"}),
]
FILLS_NULL = ("default", "not_null_or", "derive")


@pytest.fixture(scope="module")
def text_results(spark: SparkSession) -> dict[tuple[str, str | None], Any]:
    """(normalizer, value) -> result, for every normalizer of TEXT and every value of it, from one query."""
    values = list({None, *(value for _, expected in TEXT for value in expected)})
    spark.createDataFrame([(v, "other") for v in values], "`a ``col``.b` string, other string").createOrReplaceTempView(
        "t"
    )
    normalizers = {repr(normalizer): normalizer for normalizer, _ in TEXT}
    columns = (f"{n.compose([each], 'a `col`.b')} AS c{i}" for i, each in enumerate(normalizers.values()))
    rows = collected(spark.sql(f"SELECT `a ``col``.b`, {', '.join(columns)} FROM t"))
    return {(name, row[0]): result for row in rows for name, result in zip(normalizers, row[1:], strict=True)}


def results(spark: SparkSession, normalizers: list[n.Normalizer], values: list[Any], kind: str) -> list[Any]:
    """What the chain makes of each value."""
    spark.createDataFrame([(v, "other") for v in values], f"a {kind}, other string").createOrReplaceTempView("t")
    return [row[0] for row in collected(spark.sql(f"SELECT {n.compose(normalizers, 'a')} FROM t"))]


def collected(frame: DataFrame) -> list[list[Any]]:
    """The rows, with moments in UTC: collect() gives them as local time without zone."""
    moments = {i for i, (_, kind) in enumerate(frame.dtypes) if kind == "timestamp"}
    return [[v.astimezone(UTC) if v and i in moments else v for i, v in enumerate(row)] for row in frame.collect()]


@pytest.mark.parametrize(("normalizer", "expected"), TEXT, ids=[repr(normalizer) for normalizer, _ in TEXT])
def test_text(
    text_results: dict[tuple[str, str | None], Any], normalizer: n.Normalizer, expected: dict[str | None, Any]
) -> None:
    assert {value: text_results[repr(normalizer), value] for value in expected} == expected


def test_null_stays_null(text_results: dict[tuple[str, str | None], Any]) -> None:
    filled = {name for (name, value), result in text_results.items() if value is None and result is not None}
    assert {name for name in filled if not name.startswith(FILLS_NULL) and "default=" not in name} == set()


@pytest.mark.parametrize(
    ("normalizer", "kind", "expected"),
    [
        (n.round(1), "double", {1.25: 1.3, -1.25: -1.3, None: None}),
        (n.round(-1), "int", {15: 20, None: None}),
        (n.round(1), "decimal(6,3)", {Decimal("1.250"): Decimal("1.3")}),
        (n.clamp(0, 10), "int", {-5: 0, 5: 5, 50: 10, None: None}),
        (
            n.clamp(Decimal("0.5"), Decimal("1.5")),
            "decimal(4,2)",
            {Decimal(0): Decimal("0.5"), Decimal(9): Decimal("1.5")},
        ),
        (n.clamp(0.5, 1e-1 + 1), "double", {0.0: 0.5, 9.0: 1.1}),
        (n.clamp(date(2024, 1, 1), date(2024, 1, 31)), "date", {date(2023, 5, 5): date(2024, 1, 1), None: None}),
        (n.default(0), "bigint", {None: 0, 3: 3}),
        (n.default(float("nan")), "double", {1.0: 1.0}),
        (n.default(True), "boolean", {None: True, False: False}),
        (n.default(b"\x00'"), "binary", {None: bytearray(b"\x00'")}),
        (n.default(moment(2024, 1, 1)), "timestamp", {None: moment(2024, 1, 1)}),
        (n.default(wall_clock(2024, 1, 1)), "timestamp_ntz", {None: wall_clock(2024, 1, 1)}),
        (n.nullif(-1), "int", {-1: None, 1: 1}),
        (n.empty_to_null(), "int", {0: "0", None: None}),
        (n.parse_int("error"), "int", {3: 3}),
        (n.parse_bool(), "boolean", {True: True, False: False, None: None}),
        (n.parse_bool(), "int", {1: True, 0: False, 2: None}),
        (n.parse_timestamp(), "timestamp", {moment(2024, 1, 2, 3): moment(2024, 1, 2, 3), None: None}),
        (n.parse_date(), "date", {date(2024, 1, 2): date(2024, 1, 2), None: None}),
        (n.parse_date("DD.MM.YYYY"), "timestamp", {moment(2024, 1, 2, 3): date(2024, 1, 2), None: None}),
        (n.parse_date("YYYYMMDD"), "int", {20240102: date(2024, 1, 2), 20240230: None, None: None}),
        (n.parse_timestamp("%Y-%d-%m"), "date", {date(2024, 1, 2): moment(2024, 1, 2)}),
        (n.parse_timestamp("YYYYMMDDHH24", on_failure="error"), "bigint", {2024010203: moment(2024, 1, 2, 3)}),
        (n.date_trunc("month"), "timestamp", {moment(2024, 7, 5, 6): moment(2024, 7, 1), None: None}),
        (n.date_trunc("hour"), "timestamp", {moment(1969, 12, 31, 23, 59): moment(1969, 12, 31, 23)}),
        (n.to_timezone("Europe/Berlin"), "timestamp", {moment(2024, 7, 1): wall_clock(2024, 7, 1, 2), None: None}),
        (
            n.to_timezone("+05:30"),
            "timestamp",
            {datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=1))): wall_clock(2024, 1, 1, 4, 30)},
        ),
    ],
    ids=lambda value: repr(value) if isinstance(value, n.Normalizer) else None,
)
def test_other_types(spark: SparkSession, normalizer: n.Normalizer, kind: str, expected: dict[Any, Any]) -> None:
    assert results(spark, [normalizer], list(expected), kind) == list(expected.values())


@pytest.mark.parametrize(
    ("normalizer", "good", "value", "reason"),
    [
        (n.parse_int("error"), "12", 12, "CAST_INVALID_INPUT"),
        (n.parse_numeric(6, 2, "error"), "1.5", Decimal("1.50"), "CAST_INVALID_INPUT"),
        (n.parse_bool(on_failure="error"), "yes", True, "not one of its words: it's bad"),
        (n.parse_date("YYYY-MM-DD", on_failure="error"), "2024-01-02", date(2024, 1, 2), "CANNOT_PARSE_TIMESTAMP"),
        (n.parse_date(on_failure="error"), "20240102", date(2024, 1, 2), "CANNOT_PARSE_TIMESTAMP"),
        (n.parse_timestamp(on_failure="error"), "2024-01-02", moment(2024, 1, 2), "CANNOT_PARSE_TIMESTAMP"),
    ],
    ids=repr,
)
def test_on_failure_error(spark: SparkSession, normalizer: n.Normalizer, good: str, value: Any, reason: str) -> None:
    assert results(spark, [normalizer], [good, None], "string") == [value, None]
    with pytest.raises(PySparkException, match=reason):
        results(spark, [normalizer], ["it's bad"], "string")


def test_a_chain_from_left_to_right(spark: SparkSession) -> None:
    chain = [
        n.trim(),
        n.replace(",", "."),
        n.nullif("-"),
        n.parse_numeric(8, 3),
        n.round(1),
        n.clamp(0, 100),
        n.default(1),
    ]
    assert results(spark, chain, [" 12,34 ", "-", "500", "x", None], "string") == [
        Decimal("12.3"),
        Decimal("1.0"),
        Decimal("100.0"),
        Decimal("1.0"),
        Decimal("1.0"),
    ]
    assert results(spark, [n.derive("upper(other)"), n.truncate(2)], ["a"], "string") == ["OT"]


ORDERS = (
    "SELECT * FROM VALUES (1, 'b', 10), (1, 'a', 20), (2, 'c', NULL), (NULL, 'd', 5), (NULL, 'e', 6) AS t(k, v, seen);"
)


@pytest.mark.parametrize(
    ("transform", "expected"),
    [
        (n.deduplicate_by("k", order_by="seen DESC"), [(1, "a", 20), (2, "c", None), (None, "e", 6)]),
        (n.deduplicate_by("k", order_by="seen"), [(1, "b", 10), (2, "c", None), (None, "d", 5)]),
        (n.deduplicate_by("k"), [(1, "a", 20), (2, "c", None), (None, "d", 5)]),
        (n.deduplicate_by("k", "v"), [(1, "a", 20), (1, "b", 10), (2, "c", None), (None, "d", 5), (None, "e", 6)]),
        (n.filter_where("seen > 5 AND v <> 'e'"), [(1, "a", 20), (1, "b", 10)]),
        (n.sample_pct(1), [(1, "a", 20), (1, "b", 10), (2, "c", None), (None, "d", 5), (None, "e", 6)]),
        (n.sample_pct(0), []),
        (n.limit(0), []),
    ],
    ids=repr,
)
def test_transforms(spark: SparkSession, transform: n.FrameTransform, expected: list[tuple[Any, ...]]) -> None:
    rows = [tuple(row) for row in spark.sql(transform.to_sql(ORDERS)).collect()]
    assert sorted(rows, key=lambda row: row[1]) == sorted(expected, key=lambda row: row[1])


def test_transforms_nest_over_a_table(spark: SparkSession) -> None:
    spark.range(100).createOrReplaceTempView("numbers")
    query = n.limit(3).to_sql(n.filter_where("id >= 50").to_sql("numbers"))
    assert [row.id >= 50 for row in spark.sql(query).collect()] == [True] * 3
