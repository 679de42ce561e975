"""Normalizers as text: the exact Spark SQL, the quoting, and what is refused. tests/integration runs them on Spark."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from ematix_flow import normalize as n
from ematix_flow.errors import DeclarationError

DATE, TIMESTAMP = (
    f"CASE WHEN typeof(c) IN ('date', 'timestamp', 'timestamp_ntz') THEN CAST(CAST(c AS string) AS {kind}) ELSE"
    for kind in ("date", "timestamp")
)


@pytest.mark.parametrize(
    ("normalizer", "expected"),
    [
        (n.trim(), "trim(c)"),
        (n.lower(), "lower(c)"),
        (n.upper(), "upper(c)"),
        (n.empty_to_null(), "nullif(CAST(c AS string), '')"),
        (n.replace("a'b", "\\"), r"replace(c, 'a\'b', '\\')"),
        (n.regex_replace(r"\s+", "-"), r"regexp_replace(c, '\\s+', '-')"),
        (n.regex_replace("(a)", r"\1$1\& 5$", "gi"), r"regexp_replace(c, '(?i)(a)', '$1$1$0 5\\$')"),
        (n.truncate(3), "left(c, 3)"),
        (n.to_timezone("Europe/Berlin"), "convert_timezone('Europe/Berlin', c)"),
        (n.date_trunc("Month"), "date_trunc('month', c)"),
        (n.round(2), "round(c, 2)"),
        (n.clamp(0, Decimal("9.5")), "if(c IS NULL, NULL, least(greatest(c, 0), 9.5BD))"),
        (n.parse_int(), "try_cast(c AS bigint)"),
        (n.parse_int("error"), "CAST(c AS bigint)"),
        (n.parse_int("default", -1), "coalesce(try_cast(c AS bigint), -1)"),
        (n.parse_numeric(10, 2), "try_cast(c AS decimal(10,2))"),
        (n.parse_date("YYYY-MM-DD"), f"{DATE} try_to_date(CAST(c AS string), 'yyyy-MM-dd') END"),
        (n.parse_date("%d.%m.%Y", on_failure="error"), f"{DATE} to_date(CAST(c AS string), 'dd.MM.yyyy') END"),
        (
            n.parse_timestamp(formats=["yyyy", "yyyyMM"], on_failure="error"),
            f"{TIMESTAMP} coalesce(try_to_timestamp(CAST(c AS string), 'yyyy'), "
            "to_timestamp(CAST(c AS string), 'yyyyMM')) END",
        ),
        (
            n.parse_date(formats=["yyyy", "yyyyMM"], on_failure="default", default=date(2024, 1, 2)),
            f"coalesce({DATE} coalesce(try_to_date(CAST(c AS string), 'yyyy'), "
            "try_to_date(CAST(c AS string), 'yyyyMM')) END, DATE'2024-01-02')",
        ),
        (
            n.parse_bool(truthy=["Ja"], falsy=["nein", "NEIN"]),
            "CASE WHEN lower(trim(CAST(c AS string))) IN ('ja') THEN true "
            "WHEN lower(trim(CAST(c AS string))) IN ('nein') THEN false END",
        ),
        (n.default("x"), "coalesce(c, 'x')"),
        (n.not_null_or(0), "coalesce(c, 0)"),
        (n.nullif(False), "nullif(c, false)"),
        (n.sql("{col} + {col}"), "(c + c)"),
        (n.sql("collate(col, 'col') || `col` || col_count"), "(collate(c, 'col') || `col` || col_count)"),
        (n.derive("a || b"), "(a || b)"),
    ],
    ids=repr,
)
def test_sql(normalizer: n.Normalizer, expected: str) -> None:
    assert normalizer.to_sql("c") == expected


def test_a_chain_goes_from_left_to_right_around_the_quoted_column() -> None:
    chain = [n.trim(), n.lower(), n.empty_to_null()]
    assert n.compose(chain, "e-mail") == "nullif(CAST(lower(trim(`e-mail`)) AS string), '')"
    assert n.compose([], "a`b.c") == "`a``b.c`"
    assert n.compose([n.derive("first || last"), n.trim()], "name") == "trim((first || last))"
    assert n.compose([n.replace("{col}", "x"), n.trim()], "a") == "trim(replace(`a`, '{col}', 'x'))"


def test_derive_comes_first_or_not_at_all() -> None:
    with pytest.raises(DeclarationError, match=r"derive\('1'\) after trim\(\) would throw its result away"):
        n.compose([n.trim(), n.derive("1")], "a")


def test_normalizers_are_values() -> None:
    assert n.replace("a", "b") == n.replace("a", "b")
    assert n.replace("a", "b") != n.replace("a", "c")
    assert len({n.trim(), n.trim(), n.parse_int(), n.parse_int("error")}) == 3
    assert repr(n.parse_int("default", 3)) == "parse_int(on_failure='default', default=3)"
    assert repr(n.replace("a", "b")) == "replace('a', 'b')"
    with pytest.raises(FrozenInstanceError):
        n.trim().call = "x"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("it's ${HOME} \\", r"'it\'s $\{HOME} \\'"),
        (True, "true"),
        (-3, "-3"),
        (0.5, "0.5"),
        (float("inf"), "double('inf')"),
        (Decimal("1E+3"), "1000BD"),
        (b"\x00\xff", "X'00ff'"),
        (date(2024, 1, 2), "DATE'2024-01-02'"),
        (datetime(2024, 1, 2, 3, 4, 5), "TIMESTAMP_NTZ'2024-01-02 03:04:05'"),  # noqa: DTZ001
        (datetime(2024, 1, 2, 3, 4, 5, 6, UTC), "TIMESTAMP'2024-01-02 03:04:05.000006+00:00'"),
    ],
)
def test_literals(value: Any, expected: str) -> None:
    assert n.literal(value, "default(...)") == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("YYYY-MM-DD HH24:MI:SS.MS", "yyyy-MM-dd HH:mm:ss.SSSSSS"),
        ("YYYY-MM-DDTHH24:MI:SSOF", "yyyy-MM-dd'T'HH:mm:ss[XXX][XX][X]"),
        ("yyyy-mm-dd hh24:mi:ss", "yyyy-MM-dd HH:mm:ss"),
        ("DD Mon YYYY HH12:MI AM", "dd MMM yyyy hh:mm a"),
        ('YYYY"year"DDD', "yyyy'year'DDD"),
        ("YYYYMMDD", "yyyyMMdd"),
        ("%Y-%m-%dT%H:%M:%S.%f%z", "yyyy-MM-dd'T'HH:mm:ss.SSSSSS[XXX][XX][X]"),
        ("%d %b %y, %I:%M %p", "dd MMM yy, hh:mm a"),
        ("%F %T", "yyyy-MM-dd HH:mm:ss"),
        ("[%Y]", "'['yyyy']'"),
        ("yyyy-MM-dd'T'HH:mm:ss[.SSS]", "yyyy-MM-dd'T'HH:mm:ss[.SSS]"),
        ("d MMM yyyy 'Year'", "d MMM yyyy 'Year'"),
        ("HH:mm", "HH:mm"),
    ],
)
def test_formats_in_three_notations(given: str, expected: str) -> None:
    assert n.spark_pattern(given) == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("%Q", "'%Q' in '%Q'; allowed: %Y"),
        ("YYYY-Q", "'Q' in 'YYYY-Q'; allowed: YYYY"),
        ("E yyyy", "'E' in 'E yyyy'; allowed: the letters"),
        ("yyyy-MM-dd'T", '"\'" in "yyyy-MM-dd\'T"; allowed: the letters'),
        ("yyyy-mm-dd", 'reads mm as minutes, and has no month; did you mean "yyyy-MM-dd"?'),
        ("--", "'--' has no part of a date or time"),
    ],
)
def test_formats_that_cannot_work_are_refused(given: str, message: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        n.parse_timestamp(given)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: n.parse_int("nul"), "on_failure: 'nul'; allowed: null, error, default; did you mean \"null\"?"),
        (lambda: n.parse_int("default"), 'default: missing, though on_failure="default"; allowed: a value'),
        (lambda: n.parse_int(default=3), 'default: given, though on_failure="null"; allowed: on_failure="default"'),
        (lambda: n.parse_numeric(2, 5), "scale: 5; allowed: 0 to the precision, 2"),
        (lambda: n.parse_date("yyyy", formats=["yy"]), "formats: given together with format; allowed: one of the two"),
        (lambda: n.parse_date(formats=[]), "formats: empty; allowed: one format or more"),
        (lambda: n.parse_bool(truthy=["y"], falsy=["Y"]), "falsy: y is also in truthy; allowed: each word once"),
        (lambda: n.date_trunc("mnth"), 'precision: \'mnth\'; allowed: year, quarter, month, week, day, hour, minute, '
         'second, millisecond, microsecond; did you mean "month"?'),
        (lambda: n.to_timezone("Europe/Berln"), "tz: 'Europe/Berln'; allowed: a zone like \"Europe/Berlin\" or "
         '"+02:00"; did you mean "Europe/Berlin"?'),
        (lambda: n.truncate(-1), "n: -1; allowed: a whole number from 0"),
        (lambda: n.round("2"), "n: '2'; allowed: a whole number"),  # type: ignore[arg-type]
        (lambda: n.sample_pct("1"), "p: '1'; allowed: 0 to 1; 10 percent is 0.1"),  # type: ignore[arg-type]
        (lambda: n.filter_where(1), "expr: 1; allowed: a condition"),  # type: ignore[arg-type]
        (lambda: n.clamp(3, 1), "lo: 3 is greater than hi, 1; allowed: lo <= hi"),
        (lambda: n.regex_replace("a", "b", ""), "flags: '' would replace the first match only; "
         'allowed: "g", with any of "i", "m", "s"'),
        (lambda: n.default(None), "value: None of type NoneType; allowed: str, bool, int, float, Decimal, date, "
         "datetime, bytes; sql(...) takes any expression"),
        (lambda: n.limit(-1), "n: -1; allowed: a whole number from 0"),
        (lambda: n.sample_pct(10), "p: 10; allowed: 0 to 1; 10 percent is 0.1"),
        (n.deduplicate_by, "keys: none; allowed: one column or more"),
        (lambda: n.filter_where(" "), "expr: empty; allowed: a condition"),
    ],
)  # fmt: skip
def test_mistakes_are_refused(make: Any, message: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        make()
    assert [str(problem) for problem in caught.value.problems] == [message]


@pytest.mark.parametrize(
    ("transform", "expected"),
    [
        (n.filter_where("a > 1"), "SELECT * FROM (t) WHERE a > 1"),
        (n.limit(5), "SELECT * FROM (t) LIMIT 5"),
        (n.sample_pct(0.25), "SELECT * FROM (t) WHERE rand(20260101) < 0.25"),
        (
            n.deduplicate_by("k", "l", order_by="seen DESC"),
            "SELECT * EXCEPT (__rank) FROM (SELECT *, row_number() OVER (PARTITION BY `k`, `l` ORDER BY seen DESC) "
            "AS __rank FROM (t)) WHERE __rank = 1",
        ),
    ],
    ids=repr,
)
def test_transforms_wrap_a_query(transform: n.FrameTransform, expected: str) -> None:
    assert transform.to_sql("t ; ") == expected
    assert transform.to_sql("t") == expected


def test_parameters_have_the_names_of_the_reference() -> None:
    assert n.regex_replace(pattern="a", repl="b").to_sql("c") == "regexp_replace(c, 'a', 'b')"
    assert n.parse_numeric(p=6, s=2).to_sql("c") == "try_cast(c AS decimal(6,2))"
    assert n.default(v=1).to_sql("c") == "coalesce(c, 1)"
    assert n.nullif(v=1).to_sql("c") == "nullif(c, 1)"
    assert n.not_null_or(v=1).to_sql("c") == "coalesce(c, 1)"
    assert n.sql(expr="{col} + 1").to_sql("c") == "(c + 1)"
    assert n.derive(expr="a + b").to_sql("c") == "(a + b)"
